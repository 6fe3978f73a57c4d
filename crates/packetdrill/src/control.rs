//! Settings that a script changes while it runs.
//!
//! Scripts of packetdrill set sysctls by command: `` `sysctl -q net.ipv4.tcp_sack=0` ``. The
//! command changes the kernel and not this stack. There are two ways to learn of the change.
//!
//! In a network namespace made for the script, the flag `netns` makes the stack apply the values
//! that commands write (`namespace`).
//!
//! Without a namespace, the caller of packetdrill puts a program `sysctl` first in `PATH` that
//! appends its name and arguments as a line to the file that the environment variable `PD_CTL`
//! names. Every call checks whether the file has grown. The line `ip tcp_metrics flush all` is also
//! understood: the host deletes its metrics of peers.
//!
//! Not here: the meaning of a setting (`stack::sysctl`).

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::PathBuf,
};

/// A setting by its Linux name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) name: String,
    pub(crate) value: String,
}

/// The file and the number of bytes read from it.
#[derive(Debug, Default)]
pub(crate) struct ControlFile {
    path: Option<PathBuf>,
    read: u64,
    /// Beginning of a line whose end is not written yet.
    partial: String,
}

impl ControlFile {
    /// The file that `PD_CTL` names. Without the variable nothing is read.
    pub(crate) fn from_environment() -> Self {
        Self { path: std::env::var_os("PD_CTL").map(PathBuf::from), ..Self::default() }
    }

    /// Returns the settings of lines that were added since the last call, and the lines that set
    /// nothing.
    pub(crate) fn read_new(&mut self) -> (Vec<Setting>, Vec<String>) {
        let (mut settings, mut others) = (Vec::new(), Vec::new());
        if let Some(text) = self.read_grown() {
            self.partial.push_str(&text);
        }
        while let Some(end) = self.partial.find('\n') {
            let line: String = self.partial.drain(..=end).collect();
            match parse_line(line.trim()) {
                Some(found) => settings.extend(found),
                None => others.push(line.trim().to_owned()),
            }
        }
        (settings, others)
    }

    /// Returns the new part of the file, which exists after the first command.
    fn read_grown(&mut self) -> Option<String> {
        let path = self.path.as_ref()?;
        if std::fs::metadata(path).ok()?.len() <= self.read {
            return None;
        }
        let mut file = File::open(path).ok()?;
        file.seek(SeekFrom::Start(self.read)).ok()?;
        let mut bytes = Vec::new();
        self.read += file.read_to_end(&mut bytes).ok()? as u64;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Returns the settings of one line; `None` if the line is not a `sysctl` command. A value may
/// contain blanks, because the shell has removed its quotes.
fn parse_line(line: &str) -> Option<Vec<Setting>> {
    let mut words = line.split_whitespace();
    let command = words.next()?;
    if command.rsplit('/').next() != Some("sysctl") {
        return None;
    }
    let mut settings: Vec<Setting> = Vec::new();
    for word in words {
        if let Some((name, value)) = word.split_once('=') {
            settings.push(Setting { name: name.to_owned(), value: value.to_owned() });
        } else if let (false, Some(last)) = (word.starts_with('-'), settings.last_mut()) {
            last.value.push(' ');
            last.value.push_str(word);
        }
    }
    Some(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(name: &str, value: &str) -> Setting {
        Setting { name: name.to_owned(), value: value.to_owned() }
    }

    #[test]
    fn a_sysctl_line_may_contain_several_settings_and_blanks() {
        assert_eq!(
            parse_line("sysctl -q net.ipv4.tcp_rmem=4096 540000 15728640 net.ipv4.tcp_sack=1"),
            Some(vec![
                setting("net.ipv4.tcp_rmem", "4096 540000 15728640"),
                setting("net.ipv4.tcp_sack", "1"),
            ])
        );
        assert_eq!(parse_line("/sbin/sysctl -w a=1"), Some(vec![setting("a", "1")]));
        assert_eq!(parse_line("tc qdisc add dev tun0 root pfifo"), None);
    }

    #[test]
    fn a_line_counts_once_it_is_complete() {
        let path = std::env::temp_dir().join(format!("quietline-control-{}", std::process::id()));
        let mut control = ControlFile { path: Some(path.clone()), ..ControlFile::default() };
        assert_eq!(control.read_new(), (vec![], vec![]));
        std::fs::write(&path, "sysctl a=1\nsysctl b").unwrap();
        assert_eq!(control.read_new().0, [setting("a", "1")]);
        std::fs::write(&path, "sysctl a=1\nsysctl b=2\nip link\n").unwrap();
        assert_eq!(control.read_new(), (vec![setting("b", "2")], vec!["ip link".to_owned()]));
        std::fs::remove_file(&path).unwrap();
    }
}
