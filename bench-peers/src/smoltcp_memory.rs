//! Two smoltcp interfaces on one thread, connected by in-memory queues.
//!
//! The device reuses its frame buffers, so that the measurement does not include the allocator.
//!
//! Not here: the quietline side of the comparison (`quietline_memory`).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant as Clock};

use anyhow::{Result, ensure};
use smoltcp::iface::SocketHandle;
use smoltcp::phy::{
    ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken as Receive,
    TxToken as Transmit,
};
use smoltcp::time::Instant;
use smoltcp::wire::Ipv4Address;

use crate::smoltcp_host::{BUFFER_BYTES, Host};

const SERVER: Ipv4Address = Ipv4Address::new(10, 0, 0, 1);
const CLIENT: Ipv4Address = Ipv4Address::new(10, 0, 0, 2);
const PORT: u16 = 5000;

/// Buffer size of an idle socket. It is small because no data flows, and because as many of the
/// 10,000 sockets as possible should fit the cache.
const IDLE_BUFFER_BYTES: usize = 64;

/// Bytes that one `send` or `recv` of the application transfers.
pub const COPY_BYTES: usize = 64 << 10;

/// Result of one run.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    /// Bytes that the receiver has read.
    pub bytes: u64,
    /// Duration of the run.
    pub took: Duration,
}

/// Configuration of the link.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// MTU of the IP packet.
    pub mtu: usize,
    /// Whether both ends compute and verify checksums.
    pub checksums: bool,
    /// Number of listening sockets without a connection on each host.
    pub idle_sockets: usize,
}

/// Frames in transit in one direction, and the buffers of frames that have arrived.
#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Vec<u8>>,
    recycle: Vec<Vec<u8>>,
}

type Shared = Rc<RefCell<Queue>>;

/// One end of the link.
#[derive(Debug)]
pub struct End {
    rx: Shared,
    tx: Shared,
    setup: Setup,
}

impl End {
    /// Creates both ends of a link.
    pub fn pair(setup: Setup) -> [Self; 2] {
        let (there, back) = (Shared::default(), Shared::default());
        let near = Self { rx: Rc::clone(&there), tx: Rc::clone(&back), setup };
        [near, Self { rx: back, tx: there, setup }]
    }
}

impl Device for End {
    type RxToken<'a> = RxToken;
    type TxToken<'a> = TxToken;

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.setup.mtu + 14;
        if !self.setup.checksums {
            capabilities.checksum = ChecksumCapabilities::ignored();
        }
        capabilities
    }

    fn receive(&mut self, _now: Instant) -> Option<(RxToken, TxToken)> {
        let frame = self.rx.borrow_mut().frames.pop_front()?;
        Some((RxToken { frame, queue: Rc::clone(&self.rx) }, TxToken(Rc::clone(&self.tx))))
    }

    fn transmit(&mut self, _now: Instant) -> Option<TxToken> {
        // The limit is that of veth's default queue. A full queue makes smoltcp wait instead of
        // drop.
        let room = self.tx.borrow().frames.len() < 1000;
        room.then(|| TxToken(Rc::clone(&self.tx)))
    }
}

/// A received frame.
#[derive(Debug)]
pub struct RxToken {
    frame: Vec<u8>,
    queue: Shared,
}

impl Receive for RxToken {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        let result = take(&self.frame);
        self.queue.borrow_mut().recycle.push(self.frame);
        result
    }
}

/// Room for a frame.
#[derive(Debug)]
pub struct TxToken(Shared);

impl Transmit for TxToken {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        let mut frame = self.0.borrow_mut().recycle.pop().unwrap_or_default();
        frame.resize(length, 0);
        let result = fill(&mut frame);
        self.0.borrow_mut().frames.push_back(frame);
        result
    }
}

/// Two hosts and the stream between them.
#[allow(missing_debug_implementations, reason = "Host has no Debug")]
pub struct Pair {
    server: (Host, End, SocketHandle),
    client: (Host, End, SocketHandle),
    block: Vec<u8>,
    received: u64,
}

impl Pair {
    /// Connects the two hosts.
    pub fn connect(setup: Setup) -> Result<Self> {
        let [mut server_end, mut client_end] = End::pair(setup);
        let epoch = Clock::now();
        let mut server = Host::new(&mut server_end, SERVER, 24, epoch);
        let mut client = Host::new(&mut client_end, CLIENT, 24, epoch);
        for number in 0..setup.idle_sockets {
            for host in [&mut server, &mut client] {
                let handle = host.add_socket(IDLE_BUFFER_BYTES);
                let port = 10_000 + u16::try_from(number % 40_000)?;
                host.tcp(handle).listen(port)?;
            }
        }
        let listening = server.add_socket(BUFFER_BYTES);
        server.tcp(listening).listen(PORT)?;
        let connecting = client.add_socket(BUFFER_BYTES);
        let context = client.interface.context();
        let socket = client.sockets.get_mut::<smoltcp::socket::tcp::Socket<'_>>(connecting);
        socket.connect(context, (SERVER, PORT), 49_152)?;
        let mut pair = Self {
            server: (server, server_end, listening),
            client: (client, client_end, connecting),
            block: vec![0x5a; COPY_BYTES],
            received: 0,
        };
        for _ in 0..100 {
            pair.turn();
        }
        ensure!(pair.received > 0, "the smoltcp pair did not connect");
        Ok(pair)
    }

    /// Streams for the given time.
    pub fn stream(&mut self, time: Duration) -> Stream {
        let (start, before) = (Clock::now(), self.received);
        while start.elapsed() < time {
            for _ in 0..16 {
                self.turn();
            }
        }
        Stream { bytes: self.received - before, took: start.elapsed() }
    }

    /// Streams `bytes` bytes.
    pub fn stream_bytes(&mut self, bytes: u64) {
        let end = self.received + bytes;
        while self.received < end {
            self.turn();
        }
    }

    /// Fills the client's send buffer, polls both hosts, and reads all bytes that the server has
    /// received.
    fn turn(&mut self) {
        let (host, end, handle) = &mut self.client;
        while host.tcp(*handle).send_slice(&self.block).is_ok_and(|sent| sent > 0) {}
        host.poll(end);
        let (host, end, handle) = &mut self.server;
        host.poll(end);
        while let Ok(taken @ 1..) = host.tcp(*handle).recv_slice(&mut self.block) {
            self.received += taken as u64;
        }
    }
}
