//! A socket of the kernel that sends and receives datagrams of 64 bytes: by `send` and `recv`, by
//! `sendmmsg` and `recvmmsg`, or with `UDP_SEGMENT` and `UDP_GRO`.
//!
//! Not here: the other ends (`udp_ends`), measurement (`udp`).

use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};

use anyhow::{Context as _, Result, ensure};
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, addr::SocketAddrArg as _,
};

use crate::udp::{BATCH, DATAGRAM_BYTES, Mode};
use crate::udp_ends::End;

/// Bytes of the largest datagram.
const DATAGRAM_BYTES_MAX: usize = 1 << 16;

/// Longest wait for a datagram, in seconds. A lost datagram ends the measurement with an error.
const LIMIT: i64 = 5;

/// A socket of the kernel.
#[derive(Debug)]
pub struct KernelEnd {
    socket: UdpSocket,
    /// Calls for batches and segments.
    state: UdpSocketState,
    mode: Mode,
    /// Sender of the last datagram, or the server.
    peer: Option<SocketAddr>,
    buffers: Vec<u8>,
}

impl KernelEnd {
    /// Creates a client of `server`.
    pub fn connect(server: SocketAddr, mode: Mode) -> Result<Self> {
        let mut end = Self::bind("0.0.0.0:0".parse()?, mode)?;
        end.peer = Some(server);
        Ok(end)
    }

    /// Creates a server.
    pub fn bind(address: SocketAddr, mode: Mode) -> Result<Self> {
        let socket = UdpSocket::bind(address).context("cannot bind")?;
        // The state sets the options for segments and makes the socket nonblocking.
        let state = UdpSocketState::new((&socket).into()).context("cannot set options")?;
        let each = if mode == Mode::Segments { DATAGRAM_BYTES_MAX } else { DATAGRAM_BYTES };
        Ok(Self { socket, state, mode, peer: None, buffers: vec![0x5a; BATCH * each] })
    }

    /// Receives with the calls of the mode; `WouldBlock` if no datagram waits.
    fn try_receive(&mut self) -> std::io::Result<usize> {
        if self.mode == Mode::One {
            let (_, from) = self.socket.recv_from(&mut self.buffers[..DATAGRAM_BYTES])?;
            self.peer = Some(from);
            return Ok(1);
        }
        let each = self.buffers.len() / BATCH;
        let mut metas = [RecvMeta::default(); BATCH];
        let mut chunks = self.buffers.chunks_mut(each);
        let mut slices: [_; BATCH] =
            std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        // A buffer of segments is echoed whole, so that it is received alone.
        let used = if self.mode == Mode::Segments { 1 } else { BATCH };
        let socket = (&self.socket).into();
        let count = self.state.recv(socket, &mut slices[..used], &mut metas[..used])?;
        self.peer = Some(metas[0].addr);
        Ok(metas[..count].iter().map(|meta| meta.len.div_ceil(DATAGRAM_BYTES)).sum())
    }
}

impl End for KernelEnd {
    fn send(&mut self, count: usize) -> Result<()> {
        let peer = self.peer.context("no datagram was received yet")?;
        let payload = &self.buffers[..count * DATAGRAM_BYTES];
        match self.mode {
            Mode::One => {
                for datagram in payload.chunks(DATAGRAM_BYTES) {
                    self.socket.send_to(datagram, peer)?;
                }
            }
            Mode::Batch => {
                let to: SocketAddrAny = peer.as_any();
                let slices: Vec<_> = payload
                    .chunks(DATAGRAM_BYTES)
                    .map(|datagram| [IoSlice::new(datagram)])
                    .collect();
                let mut controls: Vec<_> =
                    slices.iter().map(|_| SendAncillaryBuffer::default()).collect();
                let mut messages: Vec<_> = slices
                    .iter()
                    .zip(&mut controls)
                    .map(|(slice, control)| MMsgHdr::new_with_addr(&to, slice, control))
                    .collect();
                let sent = rustix::net::sendmmsg(&self.socket, &mut messages, SendFlags::empty())?;
                ensure!(sent == count, "{sent} of {count} datagrams were sent");
            }
            Mode::Segments => {
                let segment_size = Some(DATAGRAM_BYTES);
                let (ecn, src_ip) = (None, None);
                let transmit =
                    Transmit { destination: peer, ecn, contents: payload, segment_size, src_ip };
                self.state.try_send((&self.socket).into(), &transmit)?;
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<usize> {
        loop {
            match self.try_receive() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let limit = Timespec { tv_sec: LIMIT, tv_nsec: 0 };
                    let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
                    ensure!(poll(&mut fds, Some(&limit))? == 1, "no datagram in {LIMIT} s");
                }
                received => return received.context("cannot receive"),
            }
        }
    }
}
