//! One host with its loopback, and a device on which every packet is lost.

use std::{
    io::{IoSlice, IoSliceMut},
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use pkt::{Batch, Instant, PacketList};
use stack::{
    Capabilities, Cx, Device, Errno, Memory,
    device::{Doorbell, LinkType, QueueId},
    host::{
        Host,
        config::{DeviceConfig, HostConfig},
    },
    socket::options::SocketOption,
};

use crate::{Accept, Close, Connect, Recv, Send, Socket, Step, abi};

/// A host and the running context of its only thread.
pub(super) struct Net {
    pub(super) host: Arc<Host>,
    pub(super) cx: Cx,
    /// A listening socket with room for connections.
    listener: Socket,
    /// Sockets at the other ends.
    pub(super) peers: Vec<Socket>,
}

/// A device that loses every packet.
#[derive(Debug)]
struct Lossy {
    caps: Capabilities,
    doorbell: OnceLock<Doorbell>,
}

impl Device for Lossy {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    fn receive(&self, _queue: QueueId, _cx: &mut Cx, _budget: usize, _out: &mut Batch) -> usize {
        0
    }

    fn transmit(&self, _queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
        while let Some(packet) = list.pop_front() {
            cx.pool.free(packet);
        }
    }

    fn attach(&self, _queue: QueueId, doorbell: Doorbell) {
        let _ = self.doorbell.set(doorbell);
    }
}

/// Behind the lossy device.
pub(super) const BLACK_HOLE: &str = "10.0.0.2:80";
/// A port on which no socket listens.
pub(super) const REFUSED: &str = "127.0.0.1:9";
/// The listener of the network.
pub(super) const SERVICE: &str = "127.0.0.1:8080";

pub(super) fn at(address: &str) -> SocketAddr {
    address.parse().expect("an address")
}

/// A result in words of a table.
pub(super) fn show(result: Result<i64, Errno>) -> String {
    result.map_or_else(|errno| errno.name().to_owned(), |value| value.to_string())
}

/// The answer of one step in words of a table.
pub(super) fn answer<T>(step: crate::Answer<T>, value: impl FnOnce(T) -> i64) -> String {
    match step {
        Ok(Step::Ready(ready)) => show(Ok(value(ready))),
        Ok(Step::Blocks) => String::from("Blocks"),
        Err(errno) => show(Err(errno)),
    }
}

impl Net {
    pub(super) fn new() -> Self {
        let memory = Memory::new(1 << 26);
        let device = Arc::new(Lossy {
            caps: Capabilities::plain("lossy0", 1500, LinkType::Ip),
            doorbell: OnceLock::new(),
        });
        let addresses = vec!["10.0.0.1/24".parse().expect("a prefix")];
        let devices = vec![DeviceConfig { device, addresses }];
        let host = Host::new(&memory, HostConfig { devices, ..HostConfig::replay(1) });
        let host = host.expect("a valid configuration");
        let mut cx = Cx::replay(&memory, 1);
        cx.now = Instant::from_secs(1000);
        let listener = Socket::open(abi::AF_INET, abi::SOCK_STREAM, 0).expect("a socket");
        listener.set_nonblocking(true);
        let mut net = Self { host, cx, listener, peers: Vec::new() };
        net.listener.bind(&net.host, &mut net.cx, at(SERVICE)).expect("a free address");
        net.listener.listen(&net.host, &mut net.cx, 64).expect("a free port");
        net
    }

    /// Runs the host until it rests.
    pub(super) fn poll(&mut self) {
        for _ in 0..8 {
            let _ = self.host.poll(&mut self.cx);
        }
    }

    pub(super) fn fresh(&self, nonblocking: bool) -> Socket {
        let flags = if nonblocking { abi::SOCK_NONBLOCK } else { 0 };
        Socket::open(abi::AF_INET, abi::SOCK_STREAM | flags, 0).expect("a socket")
    }

    /// A nonblocking socket whose attempt to connect to `remote` no call has reported.
    pub(super) fn connecting(&mut self, remote: &str) -> Socket {
        let socket = self.fresh(true);
        assert_eq!(self.connect(&socket, remote), "EINPROGRESS");
        self.poll();
        socket
    }

    /// A nonblocking, connected socket. Its peer is the last of `peers`.
    pub(super) fn connected(&mut self) -> Socket {
        let socket = self.connecting(SERVICE);
        let peer = self.accept();
        self.peers.push(peer);
        assert_eq!(self.connect(&socket, SERVICE), "0");
        socket
    }

    /// Takes a connection from the listener.
    pub(super) fn accept(&self) -> Socket {
        match Accept::new(abi::SOCK_NONBLOCK).step(&self.listener) {
            Ok(Step::Ready(accepted)) => accepted.socket,
            other => panic!("a connection waits: {other:?}"),
        }
    }

    /// Closes the other end of the last connection; with `reset` it sends a RST.
    pub(super) fn close_peer(&mut self, reset: bool) {
        let peer = self.peers.pop().expect("a connection");
        if reset {
            let linger = [1i32, 0].map(i32::to_ne_bytes).concat();
            self.set(&peer, SocketOption::Linger, &linger).expect("an option");
        }
        Close::new().step(&peer, &self.host, &mut self.cx).expect("an open socket");
        self.poll();
    }

    pub(super) fn set(
        &mut self,
        socket: &Socket,
        option: SocketOption,
        value: &[u8],
    ) -> Result<(), Errno> {
        let number = (option.level(), option.number());
        socket.setsockopt(&self.host, &mut self.cx, number, value)
    }

    pub(super) fn connect(&mut self, socket: &Socket, remote: &str) -> String {
        answer(Connect::new(at(remote)).step(socket, &self.host, &mut self.cx), |()| 0)
    }

    pub(super) fn send(&mut self, socket: &Socket, bytes: &[u8], flags: i32) -> String {
        let to = (flags & abi::MSG_FASTOPEN != 0).then(|| at(SERVICE));
        self.step_send(&mut Send::new(flags, to), socket, bytes)
    }

    pub(super) fn step_send(&mut self, call: &mut Send, socket: &Socket, bytes: &[u8]) -> String {
        let step = call.step(socket, &self.host, &mut self.cx, &[IoSlice::new(bytes)]);
        answer(step, |bytes| i64::try_from(bytes).expect("small"))
    }

    pub(super) fn recv(&mut self, socket: &Socket, room: usize, flags: i32) -> String {
        self.step_recv(&mut Recv::new(flags), socket, &mut vec![0; room])
    }

    pub(super) fn step_recv(&mut self, call: &mut Recv, socket: &Socket, buf: &mut [u8]) -> String {
        let step = call.step(socket, &self.host, &mut self.cx, &mut [IoSliceMut::new(buf)]);
        answer(step, |received| i64::try_from(received.bytes).expect("small"))
    }

    pub(super) fn error_of(&mut self, socket: &Socket) -> i32 {
        let number = (SocketOption::Error.level(), SocketOption::Error.number());
        let mut room = [0; 4];
        let len = socket.getsockopt(&self.host, &mut self.cx, number, &mut room);
        assert_eq!(len, Ok(4));
        i32::from_ne_bytes(room)
    }
}
