//! Places in a TOML text, for error messages: the line of a byte, and the name of its field.
//!
//! Not here: the errors themselves (`file`).

/// Returns the number of the line that contains the byte `at`, counted from 1.
pub(super) fn line(text: &str, at: usize) -> usize {
    let before = &text.as_bytes()[..at.min(text.len())];
    1 + before.iter().filter(|byte| **byte == b'\n').count()
}

/// Returns the name of the field around the byte `at`: the header of its table, and its key. The
/// items of an array may be on later lines than the key.
pub(super) fn field(text: &str, at: usize) -> Option<String> {
    let (mut table, mut key) = (None, None);
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        if start > at {
            break;
        }
        start += line.len();
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            // An array may continue on a line that begins with a bracket, too; a header ends with
            // one and contains no quote, comma or equals sign outside of quoted keys.
            let header = header.trim_start_matches('[').trim();
            if let Some(name) = header.split(']').next().filter(|name| !name.contains(['=', ','])) {
                (table, key) = (Some(name.trim().to_owned()), None);
            }
        } else if let Some((name, _)) = line.split_once('=') {
            let name = name.trim();
            let is_key = !name.is_empty() && !name.starts_with(['#', '{', '"']);
            let is_quoted = name.starts_with('"') && name.ends_with('"') && name.len() > 1;
            if is_key || is_quoted {
                key = Some(name.trim_matches('"').to_owned());
            }
        }
    }
    match (table, key) {
        (Some(table), Some(key)) => Some(format!("{table}.{key}")),
        (table, key) => table.or(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
cores = 2
# comment = 1

[[link]]
device = \"tap:a\"
addresses = [
    \"10.0.0.1/24\",
    \"bad\",
]

[sysctl]
\"net.ipv4.tcp_sack\" = 7
";

    fn at(needle: &str) -> (usize, Option<String>) {
        let at = TEXT.find(needle).expect("a part of the text");
        (line(TEXT, at), field(TEXT, at))
    }

    #[test]
    fn a_byte_has_a_line_and_a_field() {
        assert_eq!(at("2"), (1, Some("cores".to_owned())));
        assert_eq!(at("tap"), (5, Some("link.device".to_owned())));
        assert_eq!(at("bad"), (8, Some("link.addresses".to_owned())));
        assert_eq!(at("7"), (12, Some("sysctl.net.ipv4.tcp_sack".to_owned())));
        assert_eq!(line(TEXT, usize::MAX), 13);
    }
}
