//! A smoltcp server on a tap, for comparison with `quietline serve`.
//!
//! smoltcp has no accept queue: several sockets listen on the port, each with its own buffers, and
//! listen again after their connection has ended.
//!
//! Not here: the tap itself. It already exists, so that both sides know its MTU.

use std::os::fd::AsRawFd as _;
use std::time::Instant as Clock;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use smoltcp::iface::SocketHandle;
use smoltcp::phy::{Medium, TunTapInterface, wait};
use smoltcp::socket::tcp;
use smoltcp::wire::Ipv4Address;

use crate::smoltcp_host::{BUFFER_BYTES, Host};

/// Number of connections that can be open at the same time.
const LISTENERS: usize = 4;

/// Arguments of the hidden command `smoltcp-serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Service to provide.
    #[arg(value_enum)]
    service: Service,
    /// Name of the tap.
    #[arg(long)]
    tap: String,
    /// Address of the server, in a /24.
    #[arg(long)]
    address: Ipv4Address,
    /// Port of the server.
    #[arg(long)]
    port: u16,
    /// Size of the HTTP body, in bytes.
    #[arg(long, default_value_t = 0)]
    bytes: u64,
}

/// Services that both stacks have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Service {
    /// Sends a body of the given size in response to any request, then closes.
    Http,
    /// Reads to the end, then closes.
    Discard,
    /// Sends the received bytes back.
    Echo,
}

/// The connections of one socket, one after the other.
struct Session {
    handle: SocketHandle,
    /// Bytes of the response sent so far; `None` until the request is complete.
    sent: Option<u64>,
    request: Vec<u8>,
}

/// Serves until killed.
pub fn serve(args: &ServeArgs) -> Result<()> {
    let mut device =
        TunTapInterface::new(&args.tap, Medium::Ethernet).context("cannot open the tap")?;
    let descriptor = device.as_raw_fd();
    let mut host = Host::new(&mut device, args.address, 24, Clock::now());
    let mut sessions = Vec::new();
    for _ in 0..LISTENERS {
        let handle = host.add_socket(BUFFER_BYTES);
        host.tcp(handle).listen(args.port)?;
        sessions.push(Session { handle, sent: None, request: Vec::new() });
    }
    let mut block = vec![0x5a; BUFFER_BYTES];
    eprintln!("listening on {}:{}", args.address, args.port);
    loop {
        host.poll(&mut device);
        let mut progress = false;
        for session in &mut sessions {
            progress |= session.step(args, host.tcp(session.handle), &mut block)?;
        }
        if !progress {
            let now = host.now();
            let delay = host.interface.poll_delay(now, &host.sockets);
            wait(descriptor, delay).context("cannot wait on the tap")?;
        }
    }
}

impl Session {
    /// Transfers as much as possible; returns `true` if at least one byte moved.
    fn step(
        &mut self,
        args: &ServeArgs,
        socket: &mut tcp::Socket<'_>,
        block: &mut [u8],
    ) -> Result<bool> {
        if !socket.is_open() {
            self.sent = None;
            self.request.clear();
            socket.listen(args.port)?;
            return Ok(true);
        }
        let moved = match args.service {
            Service::Http => self.http(args.bytes, socket, block)?,
            Service::Discard => discard(socket),
            Service::Echo => echo(socket, block)?,
        };
        // The peer has closed its side, and all bytes it sent were read.
        let over = !socket.may_recv() && socket.state() == tcp::State::CloseWait;
        if over && !moved {
            socket.close();
            return Ok(true);
        }
        Ok(moved)
    }

    fn http(&mut self, bytes: u64, socket: &mut tcp::Socket<'_>, block: &[u8]) -> Result<bool> {
        let mut moved = false;
        if socket.can_recv() {
            let request = &mut self.request;
            socket.recv(|data| {
                request.extend_from_slice(data);
                (data.len(), ())
            })?;
            moved = true;
        }
        if self.sent.is_none() && self.request.ends_with(b"\r\n\r\n") {
            let head =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n");
            socket.send_slice(head.as_bytes())?;
            self.sent = Some(0);
            moved = true;
        }
        let Some(sent) = &mut self.sent else { return Ok(moved) };
        while *sent < bytes && socket.can_send() {
            let left = usize::try_from(bytes - *sent)?.min(block.len());
            *sent += socket.send_slice(&block[..left])? as u64;
            moved = true;
        }
        if *sent == bytes && socket.may_send() {
            socket.close();
            moved = true;
        }
        Ok(moved)
    }
}

fn discard(socket: &mut tcp::Socket<'_>) -> bool {
    let mut moved = false;
    while let Ok(1..) = socket.recv(|data| (data.len(), data.len())) {
        moved = true;
    }
    moved
}

fn echo(socket: &mut tcp::Socket<'_>, block: &mut [u8]) -> Result<bool> {
    let room = (socket.send_capacity() - socket.send_queue()).min(block.len());
    if room == 0 || !socket.can_recv() {
        return Ok(false);
    }
    let taken = socket.recv_slice(&mut block[..room])?;
    socket.send_slice(&block[..taken])?;
    Ok(taken > 0)
}
