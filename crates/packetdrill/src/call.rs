//! The calls that make, connect and end sockets.
//!
//! Linux: net/socket.c, net/ipv4/af_inet.c.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::RawFd,
    sync::Arc,
};

use stack::{
    Errno, Readiness,
    socket::{Listener, ShutdownHow, TcpSocket},
};

use crate::{
    descriptor::Descriptor,
    runtime::{Patience, Runtime},
    socket::{Kind, Socket, Way},
};

/// Flags that `socket` and `accept4` take beside a type.
const TYPE_FLAGS: i32 = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;

impl Runtime {
    pub(crate) fn socket(&self, domain: i32, kind: i32, protocol: i32) -> Result<RawFd, Errno> {
        if domain != libc::AF_INET {
            return Err(Errno::EAFNOSUPPORT);
        }
        if kind & !TYPE_FLAGS != libc::SOCK_STREAM {
            return Err(Errno::ESOCKTNOSUPPORT);
        }
        if protocol != 0 && protocol != libc::IPPROTO_TCP {
            return Err(Errno::EPROTONOSUPPORT);
        }
        let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        let socket = Box::new(Socket { nonblocking, ..Socket::default() });
        self.run(|state, _, _| state.descriptors.insert(Descriptor::Socket(socket)))
    }

    pub(crate) fn bind(&self, fd: RawFd, local: SocketAddr) -> Result<(), Errno> {
        self.run(|state, _, _| {
            let socket = state.descriptors.socket_mut(fd)?;
            if socket.bound.is_some() || !matches!(socket.kind, Kind::Fresh) {
                return Err(Errno::EINVAL);
            }
            socket.bound = Some(local);
            Ok(())
        })
    }

    pub(crate) fn listen(&self, fd: RawFd, backlog: i32) -> Result<(), Errno> {
        // A negative backlog is a large one, as in Linux.
        let backlog = u32::try_from(backlog).unwrap_or(u32::MAX);
        self.run(|state, host, cx| {
            let socket = state.descriptors.socket_mut(fd)?;
            match socket.kind {
                Kind::Fresh => {}
                Kind::Listening(_) => return Ok(()),
                Kind::Stream(_) => return Err(Errno::EINVAL),
            }
            let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
            let options = socket.settings.listen_options(backlog);
            let local = socket.bound.unwrap_or(any);
            let listener = Listener::listen_with(host, cx, local, &options)?;
            socket.bound = Some(listener.local());
            socket.kind = Kind::Listening(listener);
            Ok(())
        })
    }

    /// Takes a connection; its descriptor and peer.
    pub(crate) fn accept(&self, fd: RawFd) -> Result<(RawFd, SocketAddr), Errno> {
        let patience = self.patience(fd, Way::Receive, false)?;
        self.wait_for(patience, |state, _, _| {
            let stream = state.descriptors.listener(fd)?.accept()?;
            let parent = state.descriptors.socket(fd)?;
            let peer = stream.remote();
            let socket = Box::new(Socket::accepted(stream, false, parent.inq));
            Ok((state.descriptors.insert(Descriptor::Socket(socket))?, peer))
        })
    }

    pub(crate) fn connect(&self, fd: RawFd, remote: SocketAddr) -> Result<(), Errno> {
        let patience = self.patience(fd, Way::Send, false)?;
        self.run(|state, host, cx| {
            let socket = state.descriptors.socket_mut(fd)?;
            match &socket.kind {
                Kind::Listening(_) => return Err(Errno::EISCONN),
                Kind::Stream(_) if !socket.connecting => return Err(Errno::EISCONN),
                Kind::Stream(_) => return Ok(()),
                Kind::Fresh => {}
            }
            let options = socket.settings.connect_options(socket.bound);
            let stream = TcpSocket::connect_with(host, cx, remote, &options)?;
            // With Fast Open and a cookie the first write connects.
            let held = stream.readiness().contains(Readiness::WRITE);
            socket.connect_begun(stream);
            if held { Ok(()) } else { Err(Errno::EINPROGRESS) }
        })
        .or_else(|errno| match (errno, patience) {
            (Errno::EINPROGRESS, Patience::None) => Err(errno),
            (Errno::EINPROGRESS, _) => Ok(()),
            _ => Err(errno),
        })?;
        let ended = self.wait_for(patience, |state, host, cx| {
            let Some(stream) = state.descriptors.stream(fd)? else { return Err(Errno::EINVAL) };
            if !stream
                .readiness()
                .intersects(Readiness::WRITE | Readiness::RDHUP | Readiness::HUP | Readiness::ERROR)
            {
                return Err(Errno::EAGAIN);
            }
            let socket = state.descriptors.socket_mut(fd)?;
            socket.connecting = false;
            let error = stream.take_error(host, cx);
            if error.is_some() || stream.readiness().contains(Readiness::HUP) {
                // The socket may be connected again, as in Linux.
                socket.kind = Kind::Fresh;
                stream.close(host, cx);
                return Err(error.unwrap_or(Errno::ECONNABORTED));
            }
            Ok(())
        });
        match (ended, patience) {
            (Err(Errno::EAGAIN), Patience::None) => Err(Errno::EALREADY),
            (Err(Errno::EAGAIN), _) => Err(Errno::EINPROGRESS),
            (ended, _) => ended,
        }
    }

    pub(crate) fn shutdown(&self, fd: RawFd, how: i32) -> Result<(), Errno> {
        let how = match how {
            libc::SHUT_RD => ShutdownHow::Read,
            libc::SHUT_WR => ShutdownHow::Write,
            libc::SHUT_RDWR => ShutdownHow::Both,
            _ => return Err(Errno::EINVAL),
        };
        self.run(|state, host, cx| {
            let socket = state.descriptors.socket_mut(fd)?;
            match &socket.kind {
                Kind::Fresh => Err(Errno::ENOTCONN),
                Kind::Stream(stream) => stream.shutdown(host, cx, how),
                Kind::Listening(_) if how == ShutdownHow::Write => Ok(()),
                Kind::Listening(listener) => {
                    listener.close(host, cx);
                    socket.kind = Kind::Fresh;
                    Ok(())
                }
            }
        })
    }

    pub(crate) fn close(&self, fd: RawFd) -> Result<(), Errno> {
        let lingering = self.run(|state, host, cx| -> Result<_, Errno> {
            let Descriptor::Socket(socket) = state.descriptors.remove(fd)? else {
                return Ok(None);
            };
            match socket.kind {
                Kind::Fresh => Ok(None),
                Kind::Listening(listener) => {
                    listener.close(host, cx);
                    Ok(None)
                }
                Kind::Stream(stream) => {
                    let linger = stream.linger(host, cx).filter(|time| !time.is_zero());
                    stream.close(host, cx);
                    Ok(linger.filter(|_| !socket.nonblocking).map(|time| (stream, time)))
                }
            }
        })?;
        if let Some((stream, time)) = lingering {
            // What could not be sent in time goes on without the program.
            let _ = self.wait_for(Patience::For(time), |_, _, _| {
                if stream.is_finishing() { Err(Errno::EAGAIN) } else { Ok(()) }
            });
        }
        Ok(())
    }

    /// `F_GETFL` and `F_SETFL`, of which `O_NONBLOCK` is what matters.
    pub(crate) fn fcntl(&self, fd: RawFd, command: i32, argument: usize) -> Result<i32, Errno> {
        self.run(|state, _, _| {
            let socket = state.descriptors.socket_mut(fd)?;
            match command {
                libc::F_GETFL => {
                    let nonblocking = if socket.nonblocking { libc::O_NONBLOCK } else { 0 };
                    Ok(libc::O_RDWR | nonblocking)
                }
                libc::F_SETFL => {
                    let flags = i32::try_from(argument).map_err(|_| Errno::EINVAL)?;
                    socket.nonblocking = flags & libc::O_NONBLOCK != 0;
                    Ok(0)
                }
                libc::F_GETFD | libc::F_SETFD => Ok(0),
                _ => Err(Errno::EINVAL),
            }
        })
    }

    /// How long a call on `fd` may wait.
    pub(crate) fn patience(&self, fd: RawFd, way: Way, dont_wait: bool) -> Result<Patience, Errno> {
        self.run(|state, _, _| Ok(state.descriptors.socket(fd)?.patience(way, dont_wait)))
    }

    /// Our end of a socket's connection, and the peer's.
    pub(crate) fn stream(&self, fd: RawFd) -> Result<Option<Arc<TcpSocket>>, Errno> {
        self.run(|state, _, _| state.descriptors.stream(fd))
    }
}
