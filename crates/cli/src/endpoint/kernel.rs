//! The kernel's sockets, through the standard library.

use std::{
    convert::Infallible,
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::OwnedFd,
    sync::Arc,
    thread,
    time::Duration,
};

use rustix::{
    event::epoll,
    io::Errno,
    net::{RecvFlags, recv},
};

use super::{Datagrams, Host, Listener, OnReadable, Stream, Watch};

/// The machine itself as a host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelHost;

impl Host for KernelHost {
    type Stream = TcpStream;
    type Listener = TcpListener;
    type Watch = Epoll;
    type Datagrams = UdpSocket;

    fn watch(&self, on_readable: OnReadable) -> io::Result<Epoll> {
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        let watched = Arc::clone(&epoll);
        let watcher = thread::Builder::new().name("epoll".to_owned());
        watcher.spawn(move || notify_readable(&watched, &on_readable))?;
        Ok(Epoll(epoll))
    }

    fn bind(&self, address: SocketAddr) -> io::Result<TcpListener> {
        TcpListener::bind(address)
    }

    fn bind_datagrams(&self, address: SocketAddr) -> io::Result<UdpSocket> {
        UdpSocket::bind(address)
    }

    fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(address)
    }
}

/// An epoll descriptor, with a thread that waits on it.
pub(crate) struct Epoll(Arc<OwnedFd>);

impl Watch for Epoll {
    type Stream = TcpStream;

    fn arm(&self, key: u64, stream: &TcpStream) -> io::Result<bool> {
        // Closing the socket removes it from the epoll set.
        let (data, once) = (epoll::EventData::new_u64(key), epoll::EventFlags::ONESHOT);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | once;
        match epoll::modify(&*self.0, stream, data, flags) {
            Err(Errno::NOENT) => epoll::add(&*self.0, stream, data, flags)?,
            other => other?,
        }
        Ok(false)
    }
}

/// Calls `on_readable` for descriptors that have become readable, for as long as the process runs.
fn notify_readable(epoll: &OwnedFd, on_readable: &OnReadable) {
    /// Largest number of events that one call returns.
    const EVENTS: usize = 256;
    let mut events = Vec::with_capacity(EVENTS);
    loop {
        events.clear();
        match epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            // The descriptor is open and refers to an epoll instance, so no other error can occur.
            Err(_) => return,
        }
        for event in &events {
            on_readable(event.data.u64());
        }
    }
}

sockets! {
    type Prepared = Infallible;

    fn prepare(&self, _bytes: &[u8]) -> io::Result<Infallible> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn send_prepared(&mut self, prepared: &Infallible, _from: usize) -> io::Result<usize> {
        match *prepared {}
    }

    fn try_read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (count, _) = recv(&*self, buffer, RecvFlags::DONTWAIT)?;
        Ok(count)
    }

    fn wait_on_close(&self, _limit: Duration) -> io::Result<()> {
        // The kernel keeps sending after the process has exited.
        Ok(())
    }
}
