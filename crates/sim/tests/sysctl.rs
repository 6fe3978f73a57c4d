//! docs/sysctl.md: every setting with its default, what it allows and what it does.
//!
//! What it does is the doc comment of the field that keeps it, so that code and page say the same. After a change of the
//! tables or of a comment: `UPDATE_DOCS=1 cargo test -p quietline-sim --test sysctl`.

#[cfg(test)]
mod tests {
    use std::{
        fmt::Write as _,
        fs,
        path::{Path, PathBuf},
    };

    use stack::sysctl::Sysctls;

    const HEAD: &str = "# Settings

Every setting of a host: `Builder::sysctl(NAME, VALUE)`, `--sysctl NAME=VALUE` on the command line, or
`Stack::set_sysctl` while it runs. Names, forms and defaults are Linux's (Documentation/networking/ip-sysctl.rst and
admin-guide/sysctl/net.rst) except below `net.quietline`, which is what Linux has as a constant, keeps in sysfs, or never had.
A value out of bounds is refused with the bounds in the message. `quietline sysctl` lists this table in a terminal.
`crates/sim/tests/sysctl.rs` writes this page from the tables and the comments of the code.
";

    /// Where the table, its comments and the fields of its parts are, below `crates`.
    const SOURCES: [&str; 4] = [
        "stack/src/sysctl.rs",
        "stack/src/sysctl/device/settings.rs",
        "stack/src/neighbour.rs",
        "tcp/src/cx/config.rs",
    ];

    fn crates() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    /// The field that keeps the setting: of a line of the table the one it begins with or names, of a device's its last word.
    fn field_of<'a>(name: &'a str, sources: &'a [String]) -> &'a str {
        let quoted = format!("\"{name}\"");
        let line =
            sources.iter().flat_map(|source| source.lines()).find(|line| line.contains(&quoted));
        let Some(line) = line.map(str::trim_start) else {
            return name.rsplit('.').next().unwrap_or(name);
        };
        let place = match line.strip_prefix(quoted.as_str()) {
            Some(rest) => rest.trim_start_matches([',', ' ']).split(',').next(),
            None => line.split(':').next(),
        };
        place.unwrap_or_default().rsplit('.').next().unwrap_or_default()
    }

    /// What the comment above `field: …` says, from any of the sources.
    fn doc_of(field: &str, sources: &[String]) -> String {
        let is_field = |line: &str| {
            let line = line.trim_start();
            line.strip_prefix("pub ")
                .unwrap_or(line)
                .strip_prefix(field)
                .is_some_and(|rest| rest.starts_with(':'))
        };
        for source in sources {
            let lines: Vec<_> = source.lines().collect();
            for (index, _) in lines.iter().enumerate().filter(|(_, line)| is_field(line)) {
                let above =
                    lines[..index].iter().rev().map(|line| line.trim_start().strip_prefix("///"));
                let mut doc: Vec<_> = above.map_while(|line| line.map(str::trim)).collect();
                doc.reverse();
                if !doc.is_empty() {
                    return plain(&doc.join(" "));
                }
            }
        }
        panic!("{field} has no comment that says what it does");
    }

    /// Without the name in front, which the table has, and as a cell of it.
    fn plain(doc: &str) -> String {
        let named = doc.starts_with('`').then(|| doc.split_once(": ")).flatten();
        let text = named.map_or(doc, |(_, text)| text);
        let mut chars = text.chars();
        let first = chars.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
        let text = format!("{first}{}", chars.as_str());
        text.trim_end_matches('.').replace('|', "\\|").replace("[`", "`").replace("`]", "`")
    }

    fn page() -> String {
        let read = |path: &&str| fs::read_to_string(crates().join(path)).expect("a source");
        let sources: Vec<_> = SOURCES.iter().map(read).collect();
        let defaults = Sysctls::default();
        let mut page = String::from(HEAD);
        let groups = [
            ("net.core", "net.core."),
            ("net.ipv4", "net.ipv4."),
            ("net.quietline", "net.quietline."),
        ];
        for (title, prefix) in groups {
            write!(
            page,
            "\n## {title}\n\n| setting | default | a value is | what it does |\n|---|---|---|---|\n"
        )
        .unwrap();
            let mut names: Vec<_> =
                Sysctls::names().filter(|(name, _)| name.starts_with(prefix)).collect();
            names.sort_unstable();
            for (name, allowed) in names {
                let field = field_of(name, &sources);
                let default = match name {
                    "net.ipv4.tcp_mem" => String::from("by the packet memory"),
                    _ => defaults.get(name).expect("it is listed").replace('\t', " "),
                };
                writeln!(
                    page,
                    "| `{name}` | {default} | {allowed} | {} |",
                    doc_of(field, &sources)
                )
                .unwrap();
            }
        }
        page
    }

    #[test]
    fn the_page_of_settings_is_up_to_date() {
        let path = crates().join("../docs/sysctl.md");
        let page = page();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            fs::write(&path, &page).expect("docs are writable");
        }
        // Only CI insists, so that two branches that add a row each need not meet.
        if !std::env::var("CI").is_ok_and(|value| value == "true") {
            return;
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(found == page, "stale: UPDATE_DOCS=1 cargo test -p quietline-sim --test sysctl");
    }
}
