//! Socket calls of the host's applications.

use std::{
    io::IoSlice,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use stack::{
    Errno,
    socket::{Connection, Listener, ShutdownHow},
};

use super::{Application, HOST_PATTERN, PEER_PATTERN, PORT, Play};
use crate::rig::{HOST_IP, PEER_IP};

/// Largest number of sockets held at once.
const APPLICATIONS_MAX: usize = 16;

impl Play<'_> {
    fn application(&self, at: u8) -> Option<usize> {
        let count = self.applications.len();
        (count > 0).then(|| usize::from(at) % count)
    }

    fn hold_socket(&mut self, socket: std::sync::Arc<Connection>) {
        if self.applications.len() == APPLICATIONS_MAX {
            let oldest = self.applications.remove(0);
            let host = self.rig.host();
            oldest.socket.close(&host, &mut self.rig.world.cx);
        }
        let (host, inline) = (self.rig.host(), self.oob_inline);
        socket.with_tcb(&host, &mut self.rig.world.cx, |tcb, _| tcb.set_oob_inline(inline));
        self.applications.push(Application { socket, sent: 0, received: 0 });
    }

    pub(super) fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        match listener.accept() {
            Ok(socket) => self.hold_socket(socket),
            Err(error) => assert_eq!(error, Errno::EAGAIN),
        }
    }

    pub(super) fn connect(&mut self) {
        let remote = SocketAddr::new(PEER_IP.into(), 3000 + u16::from(self.input.next() & 3));
        let local = match self.input.next() {
            port @ 1..8 => Some(SocketAddr::new(HOST_IP.into(), 4000 + u16::from(port))),
            _ => None,
        };
        let host = self.rig.host();
        if let Ok(socket) = Connection::connect(&host, &mut self.rig.world.cx, local, remote) {
            let tuple = (socket.local(), socket.remote());
            self.connections.retain(|connection| {
                (connection.peer.tuple.local, connection.peer.tuple.remote) != tuple
            });
            self.hold_socket(socket);
        }
        self.rig.settle();
    }

    pub(super) fn send(&mut self) {
        let (at, len) = (self.input.next(), usize::from(self.input.next_u16()));
        let Some(at) = self.application(at) else { return };
        let host = self.rig.host();
        let application = &mut self.applications[at];
        let from = application.sent;
        let bytes: Vec<u8> = (from..).take(len).map(|at| HOST_PATTERN.byte(at)).collect();
        let bufs = bytes.split_at(len / 3);
        let bufs = [IoSlice::new(bufs.0), IoSlice::new(bufs.1)];
        if let Ok(taken) = application.socket.send(&host, &mut self.rig.world.cx, &bufs) {
            assert!(taken <= len, "{taken} of {len} bytes written");
            application.sent += taken as u64;
        }
        self.rig.settle();
    }

    pub(super) fn receive(&mut self) {
        let (at, len) = (self.input.next(), self.input.next_u16());
        if let Some(at) = self.application(at) {
            self.receive_at(at, len);
        }
    }

    /// Reads up to `len` bytes; an odd `len` peeks. Returns true if there were any.
    pub(super) fn receive_at(&mut self, at: usize, len: u16) -> bool {
        let peek = len & 1 == 1;
        let len = usize::from(len);
        self.buffer.resize(self.buffer.len().max(len), 0);
        let buf = &mut self.buffer[..len];
        let host = self.rig.host();
        let application = &mut self.applications[at];
        let read = application.socket.recv(&host, &mut self.rig.world.cx, buf, peek);
        let Ok(read) = read else { return false };
        let remote = application.socket.remote();
        let tainted = remote.ip() != IpAddr::V4(PEER_IP) || self.tainted.contains(&remote);
        if !tainted {
            let other = PEER_PATTERN.first_other(application.received, &buf[..read]);
            assert_eq!(other, None, "a byte differs from the peer's stream");
        }
        if !peek {
            application.received += read as u64;
            self.outcome.received += read as u64;
        }
        self.rig.settle();
        read > 0
    }

    /// Makes a call that transfers no data.
    pub(super) fn control(&mut self) {
        let (at, what) = (self.input.next(), self.input.next());
        if what & 15 >= 12 {
            return self.relisten();
        }
        let Some(at) = self.application(at) else { return };
        let host = self.rig.host();
        let cx = &mut self.rig.world.cx;
        let socket = &self.applications[at].socket;
        match what & 15 {
            0 => drop(socket.shutdown(&host, cx, ShutdownHow::Write)),
            1 => drop(socket.shutdown(&host, cx, ShutdownHow::Read)),
            2 => drop(socket.shutdown(&host, cx, ShutdownHow::Both)),
            3 => socket.abort(&host, cx),
            4 => drop(socket.take_error(&host, cx)),
            5 => socket.with_tcb(&host, cx, |tcb, _| tcb.set_nodelay(what & 16 != 0)),
            6 => socket.with_tcb(&host, cx, |tcb, _| tcb.set_cork(what & 16 != 0)),
            7 => {
                let linger = (what & 16 != 0).then(|| Duration::from_secs(u64::from(what >> 5)));
                socket.with_tcb(&host, cx, |tcb, _| tcb.set_linger(linger));
            }
            8 => socket.with_tcb(&host, cx, |tcb, _| tcb.set_rcvbuf(u32::from(what) << 6)),
            9 => socket.with_tcb(&host, cx, |tcb, _| tcb.set_sndbuf(u32::from(what) << 6)),
            10 => {
                let keepalive = tcp::Keepalive {
                    time: Duration::from_secs(10),
                    interval: Duration::from_secs(1),
                    probes: 3,
                };
                socket.with_tcb(&host, cx, |tcb, cx| tcb.set_keepalive(cx, Some(keepalive)));
            }
            _ => {
                socket.close(&host, cx);
                self.applications.swap_remove(at);
            }
        }
        self.rig.settle();
    }

    fn relisten(&mut self) {
        let host = self.rig.host();
        match self.listener.take() {
            Some(listener) => listener.close(&host, &mut self.rig.world.cx),
            None => {
                let local = SocketAddr::new(HOST_IP.into(), PORT);
                let listener = Listener::listen(&host, &mut self.rig.world.cx, local, 2);
                self.listener = Some(listener.expect("the port is free again"));
            }
        }
        self.rig.settle();
    }
}
