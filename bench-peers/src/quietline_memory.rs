//! Two quietline hosts joined by a wire on one thread.
//!
//! The same work as `smoltcp_memory`: one thread writes 64 KiB at a time on one host and reads on the other. The idle
//! sockets are established connections, each with both ends alive, which is more than a listening socket costs.
//!
//! Not here: several threads. smoltcp has one, so this has one.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use quietline::{Stack, TcpListener, TcpStream, Wire, WireConfig};

use crate::smoltcp_memory::{COPY_BYTES, Stream};

/// How the wire is set up.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Both ends compute and verify checksums.
    pub checksums: bool,
    /// Superframes pass whole.
    pub superframes: bool,
    /// Established connections besides the one that streams.
    pub idle_sockets: usize,
}

/// Two hosts, the stream between them, and the connections that idle.
#[derive(Debug)]
pub struct Pair {
    sender: TcpStream,
    receiver: TcpStream,
    _idle: Vec<(TcpStream, TcpStream)>,
    _stacks: [Stack; 2],
    block: Vec<u8>,
}

impl Pair {
    /// Connects the two hosts, the idle sockets first.
    pub fn connect(setup: Setup) -> Result<Self> {
        let config = WireConfig {
            mtu: 1500,
            checksums: setup.checksums,
            tso: setup.superframes,
            ..WireConfig::default()
        };
        let (left, right) = Wire::pair(&config).context("making the wire")?;
        let client = host(left, "10.0.0.2/24")?;
        let server = host(right, "10.0.0.1/24")?;
        let listener = TcpListener::bind(&server, "10.0.0.1:5000".parse()?)?;
        let address = listener.local_addr()?;
        let idle: Result<Vec<_>> =
            (0..setup.idle_sockets).map(|_| open(&client, &listener, address)).collect();
        let idle = idle.context("opening the idle connections")?;
        let (sender, receiver) = open(&client, &listener, address)?;
        sender.set_nonblocking(true)?;
        receiver.set_nonblocking(true)?;
        Ok(Self {
            sender,
            receiver,
            _idle: idle,
            _stacks: [client, server],
            block: vec![0x5a; COPY_BYTES],
        })
    }

    /// Streams for this long.
    pub fn stream(&mut self, time: Duration) -> Result<Stream> {
        let (start, mut bytes) = (Instant::now(), 0);
        while start.elapsed() < time {
            for _ in 0..16 {
                bytes += self.turn()?;
            }
            // Timers only: the work itself runs inside the calls.
            for stack in &self._stacks {
                let _next = stack.poll();
            }
        }
        Ok(Stream { bytes, took: start.elapsed() })
    }

    /// Writes what fits, reads what came.
    fn turn(&mut self) -> Result<u64> {
        loop {
            match self.sender.write(&self.block) {
                Ok(taken) if taken == self.block.len() => {}
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error).context("writing"),
            }
        }
        let mut bytes = 0;
        loop {
            match self.receiver.read(&mut self.block) {
                Ok(taken) => bytes += taken as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(bytes),
                Err(error) => return Err(error).context("reading"),
            }
        }
    }
}

fn host(device: std::sync::Arc<Wire>, address: &str) -> Result<Stack> {
    // As much buffer as the smoltcp side has, and nobody but this thread runs the stack.
    let stack = Stack::builder()
        .device(device)
        .address(address.parse()?)
        .sysctl("net.ipv4.tcp_rmem", "4096 1048576 6291456")
        .sysctl("net.ipv4.tcp_wmem", "4096 1048576 4194304")
        .manual();
    stack.build().context("building a stack")
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
