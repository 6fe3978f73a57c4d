//! Ends that send and receive datagrams of 64 bytes: quietline over a wire and a tap, smoltcp over
//! queues.
//!
//! Not here: the kernel's sockets (`udp_kernel`), measurement (`udp`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use anyhow::{Context as _, Result, ensure};
use quietline::device::tun::{Tun, TunConfig};
use quietline::{ReceiveMessage, SendControl, SendMessage, Stack, UdpSocket, Wire, WireConfig};
use smoltcp::iface::SocketHandle;
use smoltcp::socket::udp;
use smoltcp::wire::{IpEndpoint, Ipv4Address};

use crate::smoltcp_host::Host;
use crate::smoltcp_memory::{self, End as Device};
use crate::tap::{KERNEL_NET, TAP};
use crate::udp::{BATCH, DATAGRAM_BYTES, Mode};

/// One end of an exchange of datagrams.
pub trait End {
    /// Sends `count` datagrams, at most [`BATCH`], to the peer: the connected one, or the sender of
    /// the last datagram received.
    fn send(&mut self, count: usize) -> Result<()>;

    /// Receives at most a batch of datagrams and returns their number. An end of the kernel or of a
    /// tap waits for the first one.
    fn receive(&mut self) -> Result<usize>;
}

/// Two ends on one thread: the client sends to the server.
#[allow(missing_debug_implementations, reason = "ends are opaque")]
pub struct Ends {
    /// End that sends.
    pub client: Box<dyn End>,
    /// End that receives.
    pub server: Box<dyn End>,
}

/// A socket of quietline.
struct Quietline {
    socket: UdpSocket,
    mode: Mode,
    /// Destination; `None` for the connected peer.
    peer: Option<SocketAddr>,
    /// Buffers of a batch, or one buffer of as many datagrams.
    buffers: Vec<u8>,
    is_connected: bool,
}

impl Quietline {
    fn new(socket: UdpSocket, mode: Mode, is_connected: bool) -> Result<Self> {
        socket.set_gro(mode == Mode::Segments)?;
        // Several datagrams are joined in the queue; the buffer has room for the largest packet.
        let bytes = if mode == Mode::Segments { 1 << 16 } else { BATCH * DATAGRAM_BYTES };
        Ok(Self { socket, mode, peer: None, buffers: vec![0x5a; bytes], is_connected })
    }

    fn message<'a>(&self, payload: &'a [u8]) -> Result<SendMessage<'a>> {
        if self.is_connected {
            return Ok(SendMessage::new(payload));
        }
        Ok(SendMessage::to(payload, self.peer.context("no datagram was received yet")?))
    }
}

impl End for Quietline {
    fn send(&mut self, count: usize) -> Result<()> {
        let payload = &self.buffers[..count * DATAGRAM_BYTES];
        match self.mode {
            Mode::One => {
                for datagram in payload.chunks(DATAGRAM_BYTES) {
                    self.socket.send_message(&self.message(datagram)?)?;
                }
            }
            Mode::Batch => {
                let mut messages = [SendMessage::new(&[]); BATCH];
                for (message, datagram) in messages.iter_mut().zip(payload.chunks(DATAGRAM_BYTES)) {
                    *message = self.message(datagram)?;
                }
                let sent = self.socket.send_batch(&messages[..count])?;
                ensure!(sent == count, "{sent} of {count} datagrams were sent");
            }
            Mode::Segments => {
                let segment = Some(DATAGRAM_BYTES as u16);
                let control = SendControl { segment, ..SendControl::default() };
                self.socket.send_message(&SendMessage { control, ..self.message(payload)? })?;
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<usize> {
        let (received, count) = match self.mode {
            Mode::One => (self.socket.recv_message(&mut self.buffers[..DATAGRAM_BYTES])?, 1),
            Mode::Batch => {
                let mut buffers = self.buffers.chunks_mut(DATAGRAM_BYTES);
                let mut messages: [_; BATCH] = std::array::from_fn(|_| {
                    ReceiveMessage::new(buffers.next().unwrap_or_default())
                });
                let count = self.socket.recv_batch(&mut messages)?;
                (messages[0].received.context("no description")?, count)
            }
            Mode::Segments => {
                let received = self.socket.recv_message(&mut self.buffers)?;
                (received, received.len / DATAGRAM_BYTES)
            }
        };
        if !self.is_connected {
            self.peer = Some(received.source);
        }
        Ok(count)
    }
}

/// Creates two quietline hosts connected by a wire, each with a connected socket.
pub fn quietline(mode: Mode, checksums: bool) -> Result<Ends> {
    let wire = WireConfig { checksums, ..WireConfig::default() };
    let (left, right) = Wire::pair(&wire).context("cannot create the wire")?;
    let bind = |device: Arc<Wire>, address: &str| -> Result<UdpSocket> {
        let builder = Stack::builder().device(device).address(format!("{address}/24").parse()?);
        let stack = builder.manual().build().context("cannot build a stack")?;
        Ok(UdpSocket::bind(&stack, format!("{address}:5000"))?)
    };
    let (client, server) = (bind(left, "10.0.0.2")?, bind(right, "10.0.0.1")?);
    client.connect(server.local_addr()?)?;
    server.connect(client.local_addr()?)?;
    // The first datagram waits until the neighbor is resolved.
    client.send(&[0; DATAGRAM_BYTES])?;
    server.recv(&mut [0; DATAGRAM_BYTES])?;
    let end = |socket| Quietline::new(socket, mode, true);
    Ok(Ends { client: Box::new(end(client)?), server: Box::new(end(server)?) })
}

/// Creates a quietline host on a new tap, with an unconnected socket at `address`.
pub fn over_tap(address: SocketAddr, mode: Mode) -> Result<impl End> {
    let host_address = Some(KERNEL_NET.parse().context("the kernel's address")?);
    let tap = Tun::create(&TunConfig { host_address, ..TunConfig::tap(TAP) })?;
    let own = format!("{}/24", address.ip()).parse()?;
    let stack =
        Stack::builder().device(tap).address(own).build().context("cannot build a stack")?;
    Quietline::new(UdpSocket::bind(&stack, address)?, mode, false)
}

/// A socket of smoltcp. It has neither batches nor segments: these modes poll once for a batch.
struct Smoltcp {
    host: Host,
    device: Device,
    handle: SocketHandle,
    peer: IpEndpoint,
    buffer: [u8; DATAGRAM_BYTES],
}

impl Smoltcp {
    fn socket(&mut self) -> &mut udp::Socket<'static> {
        self.host.sockets.get_mut(self.handle)
    }
}

impl End for Smoltcp {
    fn send(&mut self, count: usize) -> Result<()> {
        let (buffer, peer) = (self.buffer, self.peer);
        for _ in 0..count {
            self.socket().send_slice(&buffer, peer)?;
        }
        self.host.poll(&mut self.device);
        Ok(())
    }

    fn receive(&mut self) -> Result<usize> {
        self.host.poll(&mut self.device);
        let mut buffer = self.buffer;
        let mut count = 0;
        while count < BATCH && self.socket().recv_slice(&mut buffer).is_ok() {
            count += 1;
        }
        Ok(count)
    }
}

/// Creates two smoltcp hosts with a queue for each direction, each with one socket.
pub fn smoltcp(mode: Mode, checksums: bool) -> Result<Ends> {
    const SERVER: Ipv4Address = Ipv4Address::new(10, 0, 0, 1);
    const CLIENT: Ipv4Address = Ipv4Address::new(10, 0, 0, 2);
    const PORT: u16 = 5000;
    let setup = smoltcp_memory::Setup { mtu: 1500, checksums, idle_sockets: 0 };
    let [server, client] = Device::pair(setup);
    let epoch = Clock::now();
    let end = |mut device: Device, own: Ipv4Address, peer: Ipv4Address| -> Result<Smoltcp> {
        let mut host = Host::new(&mut device, own, 24, epoch);
        let buffer = || {
            let packets = vec![udp::PacketMetadata::EMPTY; 2 * BATCH];
            udp::PacketBuffer::new(packets, vec![0; 2 * BATCH * DATAGRAM_BYTES])
        };
        let mut socket = udp::Socket::new(buffer(), buffer());
        socket.bind((own, PORT))?;
        let handle = host.sockets.add(socket);
        let peer = IpEndpoint::new(peer.into(), PORT);
        Ok(Smoltcp { host, device, handle, peer, buffer: [0x5a; DATAGRAM_BYTES] })
    };
    let mut server = end(server, SERVER, CLIENT)?;
    let mut client = end(client, CLIENT, SERVER)?;
    client.send(1)?;
    let mut received = 0;
    let deadline = Clock::now() + Duration::from_secs(5);
    while received == 0 {
        ensure!(Clock::now() < deadline, "the smoltcp pair did not connect");
        received = server.receive()?;
        client.host.poll(&mut client.device);
    }
    ensure!(mode == Mode::One || received == 1, "{received} datagrams of 1");
    Ok(Ends { client: Box::new(client), server: Box::new(server) })
}
