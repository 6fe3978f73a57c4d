//! Sysctls that a script writes in a network namespace of its own.
//!
//! With the flag `netns`, inotify watches `/proc/sys/net` of the namespace, and the stack applies
//! every value that is written there after the library was loaded, even if the machine had the same
//! value before. A setting that no command writes keeps this stack's default. So the result of a
//! script depends on the script alone, and never on the machine.
//!
//! A kernel may refuse a value, for example a congestion control that is not available in
//! namespaces. The file then looks as if the machine's value had been written.
//! [`Watched::is_refused`] distinguishes the two cases.
//!
//! Not here: commands without a namespace (`control`), the meaning of a setting (`stack::sysctl`).

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

use crate::control::Setting;

/// Buffer for the events of one system call: 256 events without a file name.
const EVENTS_BYTES: usize = 4096;

/// See the module head.
#[derive(Debug)]
pub(crate) struct Namespace {
    inotify: OwnedFd,
    files: Vec<Watched>,
}

/// One setting of the namespace.
#[derive(Debug)]
struct Watched {
    /// Watch descriptor.
    wd: i32,
    name: &'static str,
    path: PathBuf,
    /// This stack's default.
    default: String,
    /// Value before the first command.
    machine: String,
    /// Whether the kernel refuses `default`; `None` until it was tried.
    refuses: Option<bool>,
    /// Kept open: the kernel drops a watch of `/proc/sys` with the directory entry, which stays
    /// while the file is open.
    file: File,
}

impl Namespace {
    /// Watches settings, given by name and default, below `root`, which is `/proc/sys` except in
    /// tests. Settings that the kernel does not have keep this stack's default.
    ///
    /// # Errors
    /// Those of inotify, such as `EMFILE` for a user with too many instances.
    pub(crate) fn watch(
        root: &Path,
        settings: impl Iterator<Item = (&'static str, String)>,
    ) -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let mut files = Vec::new();
        for (name, default) in settings {
            let path = root.join(name.replace('.', "/"));
            let Ok(file) = File::open(&path) else { continue };
            let wd = inotify::add_watch(&inotify, &path, WatchFlags::MODIFY)?;
            let (machine, refuses) = (String::new(), None);
            let mut watched = Watched { wd, name, path, default, machine, refuses, file };
            let Ok(machine) = watched.read() else { continue };
            watched.machine = machine;
            files.push(watched);
        }
        Ok(Self { inotify, files })
    }

    /// Returns the settings that were written since the last call, with their present values.
    ///
    /// # Errors
    /// When the kernel has lost events, or a value cannot be read.
    pub(crate) fn read_new(&mut self) -> io::Result<Vec<Setting>> {
        let mut settings: Vec<Setting> = Vec::new();
        let mut buf = [MaybeUninit::uninit(); EVENTS_BYTES];
        let mut events = Reader::new(&self.inotify, &mut buf);
        loop {
            let wd = match events.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                    return Err(io::Error::other("inotify lost events: too many settings at once"));
                }
                Ok(event) => event.wd(),
                Err(rustix::io::Errno::AGAIN) => return Ok(settings),
                Err(error) => return Err(error.into()),
            };
            let Some(watched) = self.files.iter_mut().find(|watched| watched.wd == wd) else {
                continue;
            };
            let value = watched.read()?;
            if watched.is_refused(&value)? {
                continue;
            }
            let setting = Setting { name: watched.name.to_owned(), value };
            // The writes of `is_refused` cause events, too.
            if settings.last() != Some(&setting) {
                settings.push(setting);
            }
        }
    }
}

impl Watched {
    fn read(&mut self) -> io::Result<String> {
        let mut text = String::new();
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_to_string(&mut text)?;
        // The kernel separates numbers by tabs.
        Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// Whether the kernel has probably refused this stack's default, which a command has written:
    /// the file has the machine's `value`, which differs from the default, and a write of the
    /// default fails. Tries once, and restores `value`.
    fn is_refused(&mut self, value: &str) -> io::Result<bool> {
        if value != self.machine || value == self.default {
            return Ok(false);
        }
        if let Some(refuses) = self.refuses {
            return Ok(refuses);
        }
        let write = |value: &str| {
            let mut file = OpenOptions::new().write(true).open(&self.path)?;
            file.write_all(value.as_bytes())
        };
        let refuses = write(&self.default).is_err();
        if !refuses {
            write(value)?;
        }
        self.refuses = Some(refuses);
        if refuses {
            eprintln!(
                "quietline: {}: this kernel refuses {}, which stays in force here",
                self.name, self.default
            );
        }
        Ok(refuses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes as `sysctl` does, but without truncating the file.
    fn write(path: &Path, value: &str) {
        let mut file = OpenOptions::new().write(true).open(path).unwrap();
        file.write_all(value.as_bytes()).unwrap();
    }

    #[test]
    fn a_refused_default_stays_in_force() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("tcp_congestion_control");
        std::fs::write(&path, "bbr\n").unwrap();
        let settings = [("tcp_congestion_control", "cubic".to_owned())];
        let mut namespace = Namespace::watch(root.path(), settings.into_iter()).unwrap();
        // A kernel that refuses `cubic` keeps `bbr`. A file that was moved away cannot be written
        // either.
        write(&path, "bbr\n");
        std::fs::rename(&path, root.path().join("away")).unwrap();
        assert_eq!(namespace.read_new().unwrap(), []);
        // The kernel has accepted a value other than the machine's.
        write(&root.path().join("away"), "reno");
        let setting =
            Setting { name: "tcp_congestion_control".to_owned(), value: "reno".to_owned() };
        assert_eq!(namespace.read_new().unwrap(), [setting]);
    }

    #[test]
    fn a_written_value_is_applied_even_if_the_machine_had_it() {
        let root = tempfile::tempdir().unwrap();
        let ipv4 = root.path().join("net/ipv4");
        std::fs::create_dir_all(&ipv4).unwrap();
        std::fs::write(ipv4.join("tcp_sack"), "0\n").unwrap();
        std::fs::write(ipv4.join("tcp_rmem"), "4096\t131072\t6291456\n").unwrap();
        let settings = [
            ("net.ipv4.tcp_sack", "1".to_owned()),
            ("net.ipv4.tcp_rmem", "4096 131072 6291456".to_owned()),
            ("net.ipv4.tcp_of_another_kernel", "0".to_owned()),
        ];
        let mut namespace = Namespace::watch(root.path(), settings.into_iter()).unwrap();
        assert_eq!(namespace.read_new().unwrap(), [], "the machine's value is not applied");

        write(&ipv4.join("tcp_sack"), "0\n");
        let setting = |name: &str, value: &str| Setting {
            name: format!("net.ipv4.{name}"),
            value: value.to_owned(),
        };
        assert_eq!(namespace.read_new().unwrap(), [setting("tcp_sack", "0")]);
        assert_eq!(namespace.read_new().unwrap(), []);
        write(&ipv4.join("tcp_rmem"), "8192");
        write(&ipv4.join("tcp_sack"), "1\n");
        assert_eq!(
            namespace.read_new().unwrap(),
            [setting("tcp_rmem", "8192 131072 6291456"), setting("tcp_sack", "1")]
        );
    }
}
