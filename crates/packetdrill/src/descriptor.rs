//! File descriptors: what a script's numbers stand for.
//!
//! Every descriptor is a real one, open on /dev/null, because packetdrill hands it to libc's `close` at the end of a
//! script. Linux: the descriptor table of a process, `sockfd_lookup`.

use std::{
    collections::BTreeMap,
    fs::File,
    os::fd::{IntoRawFd as _, OwnedFd, RawFd},
    sync::Arc,
};

use stack::{
    Errno,
    socket::{Listener, TcpSocket},
};

use crate::{epoll::Epoll, socket::Socket};

/// What is behind a descriptor.
#[derive(Debug)]
pub(crate) enum Descriptor {
    /// A TCP socket.
    Socket(Box<Socket>),
    /// An epoll set.
    Epoll(Epoll),
}

/// The open descriptors.
#[derive(Debug, Default)]
pub(crate) struct Descriptors {
    open: BTreeMap<RawFd, (OwnedFd, Descriptor)>,
}

impl Descriptors {
    /// Opens the lowest free descriptor.
    pub(crate) fn insert(&mut self, descriptor: Descriptor) -> Result<RawFd, Errno> {
        use std::os::fd::AsRawFd as _;
        let null = File::open("/dev/null").map_err(|_| Errno::EMFILE)?;
        let fd = OwnedFd::from(null);
        let number = fd.as_raw_fd();
        self.open.insert(number, (fd, descriptor));
        Ok(number)
    }

    /// Closes one.
    pub(crate) fn remove(&mut self, fd: RawFd) -> Result<Descriptor, Errno> {
        for (_, descriptor) in self.open.values_mut() {
            if let Descriptor::Epoll(epoll) = descriptor {
                epoll.forget(fd);
            }
        }
        self.open.remove(&fd).map(|(_, descriptor)| descriptor).ok_or(Errno::EBADF)
    }

    /// Whether `fd` is one of ours.
    pub(crate) fn contains(&self, fd: RawFd) -> bool {
        self.open.contains_key(&fd)
    }

    pub(crate) fn socket(&self, fd: RawFd) -> Result<&Socket, Errno> {
        match self.open.get(&fd) {
            Some((_, Descriptor::Socket(socket))) => Ok(socket),
            Some(_) => Err(Errno::ENOTSOCK),
            None => Err(Errno::EBADF),
        }
    }

    pub(crate) fn socket_mut(&mut self, fd: RawFd) -> Result<&mut Socket, Errno> {
        match self.open.get_mut(&fd) {
            Some((_, Descriptor::Socket(socket))) => Ok(socket),
            Some(_) => Err(Errno::ENOTSOCK),
            None => Err(Errno::EBADF),
        }
    }

    pub(crate) fn epoll_mut(&mut self, fd: RawFd) -> Result<&mut Epoll, Errno> {
        match self.open.get_mut(&fd) {
            Some((_, Descriptor::Epoll(epoll))) => Ok(epoll),
            Some(_) => Err(Errno::EINVAL),
            None => Err(Errno::EBADF),
        }
    }

    /// The connection of a socket, if it has ever had one.
    pub(crate) fn stream(&self, fd: RawFd) -> Result<Option<Arc<TcpSocket>>, Errno> {
        Ok(self.socket(fd)?.stream().cloned())
    }

    /// The listener of a listening socket.
    pub(crate) fn listener(&self, fd: RawFd) -> Result<Arc<Listener>, Errno> {
        self.socket(fd)?.listener().cloned().ok_or(Errno::EINVAL)
    }

    /// Leaves the real descriptors to the process: somebody else has closed them, or will.
    pub(crate) fn leak(&mut self) {
        for (_, (fd, _)) in std::mem::take(&mut self.open) {
            let _ = fd.into_raw_fd();
        }
    }
}
