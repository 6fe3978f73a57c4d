//! PUT: stores a body as a file, completely or not at all.
//!
//! The body is written to an unnamed file (`O_TMPFILE`), which is linked to its name when it is
//! complete. Readers therefore see the old file or the new one, and an interrupted upload leaves no
//! file, even if the process is killed. On a file system without `O_TMPFILE`, and at the moment an
//! existing file is replaced, the file has a temporary name with a leading dot, which no request
//! can ask for.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Write as _},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::ffi::OsStringExt as _,
    },
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, linkat, openat, renameat, statat, unlinkat},
    io::Errno,
};

use super::{
    super::BUFFER_BYTES,
    body::BodyReader,
    error::{Refusal, RequestError},
    files::Root,
    head::{Body, Request},
};
use crate::endpoint::Stream;

/// Counter that makes the temporary names of concurrent uploads unique. Relaxed: only uniqueness
/// matters.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// An upload in progress. Dropping it before the end removes the temporary file.
#[derive(Debug)]
pub(super) struct Upload {
    directory: OwnedFd,
    name: OsString,
    temporary: OsString,
    file: File,
    /// Largest size of the body, in bytes.
    bytes_max: u64,
    /// The file has its temporary name, which must be removed.
    is_named: bool,
}

impl Upload {
    /// Checks the target and creates the temporary file, before any byte of the body is read.
    pub(super) fn begin(root: &Root, request: &Request, bytes_max: u64) -> Result<Self, Refusal> {
        if matches!(request.body, Body::Length(length) if length > bytes_max) {
            return Err(too_large(bytes_max));
        }
        if request.names_directory || request.path.is_empty() {
            return Err(Refusal::new(409, "the path names a directory"));
        }
        let slash = request.path.iter().rposition(|byte| *byte == b'/');
        let (directory, name) = match slash {
            Some(slash) => (&request.path[..slash], &request.path[slash + 1..]),
            None => (&b""[..], request.path.as_slice()),
        };
        Self::create(root, directory, name, bytes_max)
            .map_err(|error| Refusal::from_file_error(&error))
    }

    fn create(root: &Root, directory: &[u8], name: &[u8], bytes_max: u64) -> io::Result<Self> {
        let directory = root.open_beneath(directory, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let temporary = OsString::from(format!(".upload-{}-{number}", std::process::id()));
        let name = OsString::from_vec(name.to_vec());
        if let Ok(stat) = statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW)
            && rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir()
        {
            return Err(Errno::ISDIR.into());
        }
        let mode = Mode::from_raw_mode(0o644);
        let write = OFlags::WRONLY | OFlags::CLOEXEC;
        let (file, is_named) = match openat(&directory, ".", write | OFlags::TMPFILE, mode) {
            Ok(file) => (file, false),
            // Errors of kernels and file systems without O_TMPFILE.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
                let create = write | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
                (openat(&directory, &temporary, create, mode)?, true)
            }
            Err(errno) => return Err(errno.into()),
        };
        Ok(Self { directory, name, temporary, file: file.into(), bytes_max, is_named })
    }

    /// Writes the body and gives the file its name; `true` if no file had that name before.
    pub(super) fn receive<S: Stream>(
        mut self,
        body: &mut BodyReader<'_, S>,
    ) -> Result<bool, RequestError> {
        let refuse = |error: io::Error| RequestError::from(Refusal::from_file_error(&error));
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut left = self.bytes_max;
        loop {
            let count = body.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            // The length of a chunked body is unknown until its end.
            let Some(rest) = left.checked_sub(count as u64) else {
                return Err(too_large(self.bytes_max).into());
            };
            left = rest;
            self.file.write_all(&buffer[..count]).map_err(refuse)?;
        }
        self.publish().map_err(|errno| refuse(errno.into()))
    }

    /// Gives the file its name; `true` if no file had that name before.
    fn publish(&mut self) -> Result<bool, Errno> {
        let created = statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW).is_err();
        if !self.is_named {
            let unnamed = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            let follow = AtFlags::SYMLINK_FOLLOW;
            match linkat(CWD, &unnamed, &self.directory, &self.name, follow) {
                // linkat cannot replace an existing file; renameat can.
                Err(Errno::EXIST) => {
                    linkat(CWD, &unnamed, &self.directory, &self.temporary, follow)?;
                    self.is_named = true;
                }
                other => return other.map(|()| created),
            }
        }
        renameat(&self.directory, &self.temporary, &self.directory, &self.name)?;
        self.is_named = false;
        Ok(created)
    }
}

fn too_large(bytes_max: u64) -> Refusal {
    Refusal::new(413, format!("an upload is limited to {bytes_max} bytes"))
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.is_named {
            let _ = unlinkat(&self.directory, &self.temporary, AtFlags::empty());
        }
    }
}
