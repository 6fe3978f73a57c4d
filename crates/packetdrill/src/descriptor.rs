//! The descriptor table: the sockets and epoll sets that a script's numbers stand for.
//!
//! Every descriptor is a real one, open on /dev/null, because packetdrill passes it to libc's
//! `close` at the end of a script. Linux: the descriptor table of a process, `sockfd_lookup`.

use std::{
    collections::BTreeMap,
    fs::File,
    os::fd::{AsRawFd as _, IntoRawFd as _, OwnedFd, RawFd},
    sync::Arc,
};

use posix::{EpollSet, Socket};
use stack::Errno;

/// Object behind a descriptor.
#[derive(Debug)]
pub(crate) enum Descriptor {
    /// A TCP socket. A call that sleeps keeps a reference.
    Socket(Arc<Socket>),
    /// An epoll set.
    Epoll(EpollSet<RawFd>),
}

/// The open descriptors.
#[derive(Debug, Default)]
pub(crate) struct Descriptors {
    open: BTreeMap<RawFd, (OwnedFd, Descriptor)>,
}

impl Descriptors {
    /// Opens the lowest free descriptor.
    pub(crate) fn insert(&mut self, descriptor: Descriptor) -> Result<RawFd, Errno> {
        let null = File::open("/dev/null").map_err(|_| Errno::EMFILE)?;
        let fd = OwnedFd::from(null);
        let number = fd.as_raw_fd();
        self.open.insert(number, (fd, descriptor));
        Ok(number)
    }

    /// Closes a descriptor, and removes it from every epoll set.
    pub(crate) fn remove(&mut self, fd: RawFd) -> Result<Descriptor, Errno> {
        for (_, descriptor) in self.open.values_mut() {
            if let Descriptor::Epoll(epoll) = descriptor {
                epoll.forget(fd);
            }
        }
        self.open.remove(&fd).map(|(_, descriptor)| descriptor).ok_or(Errno::EBADF)
    }

    /// Whether `fd` is a descriptor of this library.
    pub(crate) fn contains(&self, fd: RawFd) -> bool {
        self.open.contains_key(&fd)
    }

    pub(crate) fn socket(&self, fd: RawFd) -> Result<&Arc<Socket>, Errno> {
        match self.open.get(&fd) {
            Some((_, Descriptor::Socket(socket))) => Ok(socket),
            Some(_) => Err(Errno::ENOTSOCK),
            None => Err(Errno::EBADF),
        }
    }

    pub(crate) fn epoll(&self, fd: RawFd) -> Result<&EpollSet<RawFd>, Errno> {
        match self.open.get(&fd) {
            Some((_, Descriptor::Epoll(epoll))) => Ok(epoll),
            Some(_) => Err(Errno::EINVAL),
            None => Err(Errno::EBADF),
        }
    }

    pub(crate) fn epoll_mut(&mut self, fd: RawFd) -> Result<&mut EpollSet<RawFd>, Errno> {
        match self.open.get_mut(&fd) {
            Some((_, Descriptor::Epoll(epoll))) => Ok(epoll),
            Some(_) => Err(Errno::EINVAL),
            None => Err(Errno::EBADF),
        }
    }

    /// Leaves the real descriptors open: packetdrill has closed them or will close them.
    pub(crate) fn leak(&mut self) {
        for (_, (fd, _)) in std::mem::take(&mut self.open) {
            let _ = fd.into_raw_fd();
        }
    }
}
