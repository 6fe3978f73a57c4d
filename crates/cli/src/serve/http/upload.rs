//! PUT: a body becomes a file, all of it or nothing.
//!
//! Written under another name in the same directory and renamed when complete, so that readers see the old
//! file or the new one, and a broken upload leaves nothing.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Write as _},
    os::{fd::OwnedFd, unix::ffi::OsStringExt as _},
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, statat, unlinkat};

use super::{
    super::BUFFER_BYTES,
    body::BodyReader,
    error::{Refusal, Trouble},
    files::Root,
    head::Request,
};
use crate::endpoint::Stream;

/// Makes the temporary names of simultaneous uploads different. Relaxed: only uniqueness matters.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// An upload in progress. Dropping it before the end removes what was written.
#[derive(Debug)]
pub(super) struct Upload {
    directory: OwnedFd,
    name: OsString,
    temporary: OsString,
    file: File,
    /// The file has its name: nothing to remove.
    complete: bool,
}

impl Upload {
    /// Checks the target and creates the temporary file. No byte of the body was read yet.
    pub(super) fn begin(root: &Root, request: &Request) -> Result<Self, Refusal> {
        if request.names_directory || request.path.is_empty() {
            return Err(Refusal::new(409, "a directory cannot be stored"));
        }
        let slash = request.path.iter().rposition(|byte| *byte == b'/');
        let (directory, name) = match slash {
            Some(slash) => (&request.path[..slash], &request.path[slash + 1..]),
            None => (&b""[..], request.path.as_slice()),
        };
        Self::create(root, directory, name).map_err(|error| Refusal::from_file_error(&error))
    }

    fn create(root: &Root, directory: &[u8], name: &[u8]) -> io::Result<Self> {
        let directory = root.open_beneath(directory, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let temporary = OsString::from(format!(".upload-{}-{number}", std::process::id()));
        let name = OsString::from_vec(name.to_vec());
        if let Ok(stat) = statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW)
            && rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir()
        {
            return Err(rustix::io::Errno::ISDIR.into());
        }
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&directory, &temporary, flags, Mode::from_raw_mode(0o644))?;
        Ok(Self { directory, name, temporary, file: file.into(), complete: false })
    }

    /// Writes the body and gives the file its name; `true` if there was none of that name before.
    pub(super) fn receive<S: Stream>(
        mut self,
        body: &mut BodyReader<'_, '_, '_, S>,
    ) -> Result<bool, Trouble> {
        let refuse = |error: io::Error| Trouble::from(Refusal::from_file_error(&error));
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            match body.read(&mut buffer)? {
                0 => break,
                count => self.file.write_all(&buffer[..count]).map_err(refuse)?,
            }
        }
        let created = statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW).is_err();
        renameat(&self.directory, &self.temporary, &self.directory, &self.name)
            .map_err(|errno| refuse(errno.into()))?;
        self.complete = true;
        Ok(created)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.complete {
            let _ = unlinkat(&self.directory, &self.temporary, AtFlags::empty());
        }
    }
}
