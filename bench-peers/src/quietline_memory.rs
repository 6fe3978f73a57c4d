//! Two quietline hosts connected by a wire.
//!
//! The work is that of `smoltcp_memory`: a thread writes 64 KiB at a time on one host and reads on
//! the other. The idle sockets are established connections with both ends open, each of which costs
//! more than a listening socket.
//!
//! Not here: several threads. smoltcp has one thread, so a flow has one; `bulk` runs two flows.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use quietline::{Stack, TcpListener, TcpStream, Wire, WireConfig};

use crate::smoltcp_memory::{COPY_BYTES, Stream};

/// Configuration of the wire.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Whether both ends compute and verify checksums.
    pub checksums: bool,
    /// Whether superframes pass without segmentation.
    pub superframes: bool,
    /// Number of established connections besides the one that streams.
    pub idle_sockets: usize,
}

impl Setup {
    fn wire(self, queues: u16) -> WireConfig {
        WireConfig {
            mtu: 1500,
            checksums: self.checksums,
            tso: self.superframes,
            queues,
            ..WireConfig::default()
        }
    }
}

/// Both ends of one connection, driven by one thread.
#[derive(Debug)]
pub struct Flow {
    sender: TcpStream,
    receiver: TcpStream,
    stacks: [Stack; 2],
    /// Core, of both stacks, that handles the connection.
    core: u16,
}

/// Two hosts, the stream between them, and the idle connections.
#[derive(Debug)]
pub struct Pair {
    flow: Flow,
    _idle: Vec<(TcpStream, TcpStream)>,
}

impl Pair {
    /// Connects the two hosts, the idle sockets first.
    pub fn connect(setup: Setup) -> Result<Self> {
        let [client, server] = hosts(setup, 1)?;
        let listener = TcpListener::bind(&server, "10.0.0.1:5000")?;
        let address = listener.local_addr()?;
        let idle: Result<Vec<_>> =
            (0..setup.idle_sockets).map(|_| open(&client, &listener, address)).collect();
        let idle = idle.context("cannot open the idle connections")?;
        let (sender, receiver) = open(&client, &listener, address)?;
        Ok(Self { flow: Flow::new((sender, receiver), [client, server], 0)?, _idle: idle })
    }

    /// Streams for the given time.
    pub fn stream(&mut self, time: Duration) -> Result<Stream> {
        self.flow.stream(time)
    }

    /// Streams `bytes` bytes.
    pub fn stream_bytes(&self, bytes: u64) -> Result<()> {
        let (mut block, mut moved) = (vec![0x5a; COPY_BYTES], 0);
        while moved < bytes {
            moved += self.flow.turn(&mut block)?;
        }
        Ok(())
    }
}

/// Opens one connection per core between the same two hosts, which have two cores each. The
/// connections share no state.
pub fn two_flows(setup: Setup) -> Result<[Flow; 2]> {
    let [client, server] = hosts(setup, 2)?;
    let address: SocketAddr = "10.0.0.1:5000".parse()?;
    let listen = |core| {
        let options = TcpListener::options().reuse_port(true).incoming_core(core);
        options.listen(&server, address)
    };
    let listeners = [listen(0)?, listen(1)?];
    for listener in &listeners {
        listener.set_nonblocking(true)?;
    }
    let (mut senders, mut flows) = (Vec::new(), [None, None]);
    // The hash of a connection's ports selects its core.
    for _ in 0..64 {
        senders.push(TcpStream::connect(&client, address)?);
        for ((core, listener), flow) in (0..).zip(&listeners).zip(&mut flows) {
            if let Ok((receiver, peer)) = listener.accept() {
                let index = senders
                    .iter()
                    .position(|sender| sender.local_addr().is_ok_and(|local| local == peer));
                let sender =
                    senders.swap_remove(index.context("an accepted connection has no sender")?);
                let stacks = [client.clone(), server.clone()];
                *flow = Some(Flow::new((sender, receiver), stacks, core)?);
            }
        }
        if let [Some(_), Some(_)] = flows {
            let [Some(first), Some(second)] = flows else { unreachable!("both flows are present") };
            return Ok([first, second]);
        }
    }
    bail!("none of 64 connections is on the other core")
}

impl Flow {
    fn new(
        (sender, receiver): (TcpStream, TcpStream),
        stacks: [Stack; 2],
        core: u16,
    ) -> Result<Self> {
        sender.set_nonblocking(true)?;
        receiver.set_nonblocking(true)?;
        Ok(Self { sender, receiver, stacks, core })
    }

    /// Streams for the given time.
    pub fn stream(&self, time: Duration) -> Result<Stream> {
        let mut block = vec![0x5a; COPY_BYTES];
        let (start, mut bytes) = (Instant::now(), 0);
        while start.elapsed() < time {
            for _ in 0..16 {
                bytes += self.turn(&mut block)?;
            }
            // Only timers need a poll: the work itself runs inside the calls. The other flow polls
            // the other core.
            for stack in &self.stacks {
                let _next = stack.poll_core(self.core);
            }
        }
        Ok(Stream { bytes, took: start.elapsed() })
    }

    /// Writes until the buffer is full, then reads until it is empty.
    fn turn(&self, block: &mut [u8]) -> Result<u64> {
        loop {
            match (&self.sender).write(block) {
                Ok(taken) if taken == block.len() => {}
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("cannot write"),
            }
        }
        let mut bytes = 0;
        loop {
            match (&self.receiver).read(block) {
                Ok(taken) => bytes += taken as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(bytes),
                Err(error) => return Err(error).context("cannot read"),
            }
        }
    }
}

/// Creates client and server.
fn hosts(setup: Setup, cores: u16) -> Result<[Stack; 2]> {
    let (left, right) = Wire::pair(&setup.wire(cores)).context("cannot create the wire")?;
    Ok([host(left, "10.0.0.2/24", cores)?, host(right, "10.0.0.1/24", cores)?])
}

fn host(device: Arc<Wire>, address: &str, cores: u16) -> Result<Stack> {
    // The buffers have the size of smoltcp's, and only the streaming threads run the stack.
    let stack = Stack::builder()
        .device(device)
        .address(address.parse()?)
        .sysctl("net.ipv4.tcp_rmem", "4096 1048576 1048576")
        .sysctl("net.ipv4.tcp_wmem", "4096 1048576 1048576")
        .cores(cores)
        .manual();
    stack.build().context("cannot build a stack")
}

fn open(
    client: &Stack,
    listener: &TcpListener,
    address: SocketAddr,
) -> Result<(TcpStream, TcpStream)> {
    let stream = TcpStream::connect(client, address)?;
    let (accepted, _peer) = listener.accept()?;
    Ok((stream, accepted))
}
