//! The calls of a program on its descriptors.
//!
//! Every call finds its socket, steps the call of crate `posix`, and sleeps in
//! [`Runtime::wait_for`] as long as the step blocks.
//!
//! Not here: pointers (`interface`), states and errors (`posix`).

use std::{
    io::{IoSlice, IoSliceMut},
    net::SocketAddr,
    os::fd::RawFd,
    sync::Arc,
};

use posix::{
    Accept, Close, Connect, EpollEvent, EpollSet, GiveUp, PollEntry, Received, Recv, Send, Socket,
    Step, limit_of_ms, poll,
};
use stack::{Errno, socket::options::SocketOption};

use crate::{descriptor::Descriptor, runtime::Runtime};

/// Bytes of packetdrill's `struct _tcp_info`.
const TCP_INFO_BYTES: usize = 280;

impl Runtime {
    pub(crate) fn socket(&self, domain: i32, kind: i32, protocol: i32) -> Result<RawFd, Errno> {
        let socket = Arc::new(Socket::open(domain, kind, protocol)?);
        self.run(|state, _, _| state.descriptors.insert(Descriptor::Socket(socket)))
    }

    fn find(&self, fd: RawFd) -> Result<Arc<Socket>, Errno> {
        self.run(|state, _, _| state.descriptors.socket(fd).cloned())
    }

    /// Whether `fd` is a descriptor of this library.
    pub(crate) fn knows(&self, fd: RawFd) -> bool {
        self.run(|state, _, _| state.descriptors.contains(fd))
    }

    pub(crate) fn bind(&self, fd: RawFd, local: SocketAddr) -> Result<(), Errno> {
        self.run(|state, host, cx| state.descriptors.socket(fd)?.bind(host, cx, local))
    }

    pub(crate) fn listen(&self, fd: RawFd, backlog: i32) -> Result<(), Errno> {
        self.run(|state, host, cx| state.descriptors.socket(fd)?.listen(host, cx, backlog))
    }

    /// Takes a connection. Returns its descriptor and its peer.
    pub(crate) fn accept(&self, fd: RawFd) -> Result<(RawFd, SocketAddr), Errno> {
        let socket = self.find(fd)?;
        let call = Accept::default();
        let accepted =
            self.wait_for(call.limit(&socket), |state, _, _| match call.step(&socket)? {
                Step::Blocks => Ok(Step::Blocks),
                Step::Ready(accepted) => {
                    let socket = Descriptor::Socket(Arc::new(accepted.socket));
                    Ok(Step::Ready((state.descriptors.insert(socket)?, accepted.peer)))
                }
            })?;
        accepted.ok_or_else(|| call.give_up(GiveUp::TimedOut))
    }

    /// Connects to `remote`. `None` is `AF_UNSPEC`: ends the connection.
    pub(crate) fn connect(&self, fd: RawFd, remote: Option<SocketAddr>) -> Result<(), Errno> {
        let socket = self.find(fd)?;
        let Some(remote) = remote else {
            return self.run(|_, host, cx| socket.disconnect(host, cx));
        };
        let mut call = Connect::new(remote);
        let limit = call.limit(&socket);
        let connected = self.wait_for(limit, |_, host, cx| call.step(&socket, host, cx))?;
        connected.ok_or_else(|| call.give_up(GiveUp::TimedOut))
    }

    pub(crate) fn shutdown(&self, fd: RawFd, how: i32) -> Result<(), Errno> {
        self.run(|state, host, cx| state.descriptors.socket(fd)?.shutdown(host, cx, how))
    }

    pub(crate) fn close(&self, fd: RawFd) -> Result<(), Errno> {
        let mut call = Close::new();
        let (socket, step) = self.run(|state, host, cx| match state.descriptors.remove(fd)? {
            Descriptor::Socket(socket) => {
                let step = call.step(&socket, host, cx)?;
                Ok::<_, Errno>((Some(socket), step))
            }
            Descriptor::Epoll(_) => Ok((None, Step::Ready(()))),
        })?;
        if let (Some(socket), Step::Blocks) = (socket, step) {
            let limit = call.limit();
            self.wait_for(limit, |_, host, cx| call.step(&socket, host, cx))?;
        }
        Ok(())
    }

    pub(crate) fn fcntl(&self, fd: RawFd, command: i32, argument: usize) -> Result<i32, Errno> {
        let socket = self.find(fd)?;
        match command {
            libc::F_GETFD | libc::F_SETFD => Ok(0),
            _ => socket.fcntl(command, i32::try_from(argument).map_err(|_| Errno::EINVAL)?),
        }
    }

    pub(crate) fn ioctl(&self, fd: RawFd, request: u64, argument: &mut i32) -> Result<(), Errno> {
        self.run(|state, host, cx| state.descriptors.socket(fd)?.ioctl(host, cx, request, argument))
    }

    pub(crate) fn setsockopt(
        &self,
        fd: RawFd,
        level: i32,
        name: i32,
        value: &[u8],
    ) -> Result<(), Errno> {
        self.run(|state, host, cx| {
            state.descriptors.socket(fd)?.setsockopt(host, cx, (level, name), value)
        })
    }

    /// Writes the value of an option into `room`. Returns its length.
    pub(crate) fn getsockopt(
        &self,
        fd: RawFd,
        level: i32,
        name: i32,
        room: &mut [u8],
    ) -> Result<usize, Errno> {
        let len = self.run(|state, host, cx| {
            state.descriptors.socket(fd)?.getsockopt(host, cx, (level, name), room)
        })?;
        if SocketOption::from_number(level, name) != Some(SocketOption::Info) {
            return Ok(len);
        }
        // packetdrill refuses a `tcp_info` shorter than its own, which is longer than the kernel's:
        // zeros follow.
        let end = room.len().min(TCP_INFO_BYTES).max(len);
        room[len..end].fill(0);
        Ok(end)
    }

    /// `to` is the address to which a call with `MSG_FASTOPEN` connects.
    pub(crate) fn send(
        &self,
        fd: RawFd,
        bufs: &[IoSlice<'_>],
        flags: i32,
        to: Option<SocketAddr>,
    ) -> Result<usize, Errno> {
        let socket = self.find(fd)?;
        let mut call = Send::new(flags, to);
        let limit = call.limit(&socket);
        let sent = self.wait_for(limit, |_, host, cx| call.step(&socket, host, cx, bufs))?;
        sent.map_or_else(|| call.give_up(GiveUp::TimedOut), Ok)
    }

    pub(crate) fn recv(
        &self,
        fd: RawFd,
        bufs: &mut [IoSliceMut<'_>],
        mut call: Recv,
    ) -> Result<Received, Errno> {
        let socket = self.find(fd)?;
        let limit = call.limit(&socket);
        let received = self.wait_for(limit, |_, host, cx| call.step(&socket, host, cx, bufs))?;
        if let Some(received) = received {
            return Ok(received);
        }
        self.run(|_, host, cx| call.give_up(&socket, host, cx, bufs, GiveUp::TimedOut))
    }

    /// Fills `revents`. Returns the number of entries that have any.
    pub(crate) fn poll(&self, entries: &mut [PollEntry], timeout_ms: i32) -> Result<usize, Errno> {
        let ready = self.wait_for(limit_of_ms(timeout_ms), |state, _, _| {
            let events_of = |fd| state.descriptors.socket(fd).ok().map(|s| s.poll_events());
            Ok(match poll(entries, events_of) {
                0 => Step::Blocks,
                ready => Step::Ready(ready),
            })
        })?;
        Ok(ready.unwrap_or(0))
    }

    pub(crate) fn epoll_create(&self, size: i32) -> Result<RawFd, Errno> {
        if size <= 0 {
            return Err(Errno::EINVAL);
        }
        self.run(|state, _, _| state.descriptors.insert(Descriptor::Epoll(EpollSet::default())))
    }

    pub(crate) fn epoll_ctl(
        &self,
        epoll: RawFd,
        operation: i32,
        fd: RawFd,
        event: Option<EpollEvent>,
    ) -> Result<(), Errno> {
        self.run(|state, _, _| {
            let socket = Arc::clone(state.descriptors.socket(fd)?);
            state.descriptors.epoll_mut(epoll)?.control(operation, fd, &*socket, event)
        })
    }

    /// Returns the events that have occurred, at most `max`.
    pub(crate) fn epoll_wait(
        &self,
        epoll: RawFd,
        max: usize,
        timeout_ms: i32,
    ) -> Result<Vec<EpollEvent>, Errno> {
        if max == 0 {
            return Err(Errno::EINVAL);
        }
        let events = self.wait_for(limit_of_ms(timeout_ms), |state, _, _| {
            let events = state.descriptors.epoll(epoll)?.collect(max, |fd| {
                let socket = state.descriptors.socket(fd).ok()?;
                Some(u32::from(socket.poll_events().cast_unsigned()))
            });
            Ok(if events.is_empty() { Step::Blocks } else { Step::Ready(events) })
        })?;
        Ok(events.unwrap_or_default())
    }
}
