//! Creates the file of a capture: readable by its owner only, and exactly at the given path.
//!
//! Captures are often written as root into directories that other users may write to. A link under
//! the file's name would let another user choose the file that root overwrites, and an existing
//! file could be readable for its owner.
//!
//! Not here: the contents (`writer`).

use std::fs::File;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fchmod, fstat, ftruncate, open};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Returns whether only the system creates links in the path's directory, as for `/dev/stdout`. All
/// users can create files in `/dev/shm`.
fn is_of_the_system(path: &Path) -> bool {
    let parent = path.parent();
    parent == Some(Path::new("/dev"))
        || parent == Some(Path::new("/dev/fd"))
        || path.starts_with("/proc")
}

/// Opens the file and truncates it. An error is an errno and a hint.
pub(super) fn create(path: &Path) -> Result<File, (i32, &'static str)> {
    let follows = is_of_the_system(path);
    let link = if follows { OFlags::empty() } else { OFlags::NOFOLLOW };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOCTTY | link;
    let mode = Mode::RUSR | Mode::WUSR;
    let file = open(path, flags, mode).map_err(|errno| {
        let hint = if errno == Errno::LOOP { "it is a symbolic link; remove it first" } else { "" };
        (errno.raw_os_error(), hint)
    })?;
    let failed = |errno: Errno| (errno.raw_os_error(), "");
    let stat = fstat(&file).map_err(failed)?;
    // A pipe or a device has its own readers, and a descriptor that the caller was given
    // (/dev/stdout) keeps its mode.
    if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && !follows {
        if stat.st_uid != geteuid().as_raw() {
            return Err((libc::EPERM, "it belongs to another user; remove it first"));
        }
        if stat.st_nlink > 1 {
            return Err((libc::EPERM, "it has other names (hard links); remove it first"));
        }
        // Set the mode before the first byte is written.
        fchmod(&file, mode).map_err(failed)?;
        ftruncate(&file, 0).map_err(failed)?;
    }
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("a file").permissions().mode() & 0o777
    }

    #[test]
    fn only_its_owner_can_read_a_capture() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("new.pcapng");
        create(&path).expect("a new file");
        assert_eq!(mode(&path), 0o600);

        let path = dir.path().join("old.pcapng");
        fs::write(&path, "an old capture").expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("a mode");
        create(&path).expect("the old file");
        assert_eq!((mode(&path), fs::metadata(&path).expect("a file").len()), (0o600, 0));
    }

    #[test]
    fn a_link_under_the_name_of_a_capture_is_not_followed() {
        let dir = tempfile::tempdir().expect("a directory");
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        fs::write(&target, "precious").expect("a file");
        symlink(&target, &link).expect("a link");
        let (errno, hint) = create(&link).expect_err("a symbolic link");
        assert_eq!(errno, libc::ELOOP);
        assert!(hint.contains("symbolic link"), "{hint}");
        // A dangling link would create a file at a path that the link's owner chose.
        let (nothing, dangling) = (dir.path().join("nothing"), dir.path().join("dangling"));
        symlink(&nothing, &dangling).expect("a link");
        create(&dangling).expect_err("a symbolic link");
        assert!(!nothing.exists());

        let hard = dir.path().join("hard");
        fs::hard_link(&target, &hard).expect("a second name");
        assert_eq!(create(&hard).expect_err("a hard link").0, libc::EPERM);
        assert_eq!(fs::read_to_string(&target).expect("the file"), "precious");
    }

    #[test]
    fn a_file_of_another_user_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("theirs");
        fs::write(&path, "bait").expect("a file");
        // Only root can change the owner of a file.
        if chown(&path, Some(65_534), None).is_err() {
            return;
        }
        assert_eq!(fs::metadata(&path).expect("a file").uid(), 65_534);
        let (errno, hint) = create(&path).expect_err("another user's file");
        assert_eq!(errno, libc::EPERM);
        assert!(hint.contains("another user"), "{hint}");
        assert_eq!(fs::read_to_string(&path).expect("the file"), "bait");
    }

    #[test]
    fn devices_and_descriptors_are_opened_without_checks() {
        create(Path::new("/dev/null")).expect("a device");
        assert!(!is_of_the_system(Path::new("/dev/shm/x.pcapng")));
        let file = tempfile::tempfile().expect("a file");
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        create(Path::new(&format!("/proc/self/fd/{fd}"))).expect("a descriptor");
    }
}
