//! Hostile input for datagram sockets: a string of bytes as packets, time and socket calls of both
//! IP versions, played to one host.
//!
//! Below: the fuzz target `datagrams`, and the tests that play its seeds and random inputs. Any
//! string is a valid input. Most packets are modified from valid ones: a datagram, an error that
//! quotes one, an echo reply or a membership query.
//!
//! Requirements on the host: no panic; every frame it sends is a valid one; a socket shows
//! addresses of its family only; received bytes are those of a delivered payload, unless its packet
//! was edited; at the end no packet and no page of datagram memory is left.
//!
//! Not here: TCP (`hostile`), more than one host, threads.

mod packets;

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    sync::Arc,
    time::Duration,
};

use stack::{
    base::ids::DeviceIndex,
    socket::{
        DatagramSocket,
        datagram::{ReceiveMessage, SendControl, SendMessage, SocketKind},
        options::{OptionValue, SocketOption, SocketSettings},
    },
};

use crate::{
    Rig, RigConfig,
    hostile::input::Input,
    rig::{HOST_IP, HOST_LINK, HOST_V6, PEER_IP, PEER_LINK, PEER_V6},
};

/// Steps of one run.
const STEPS_MAX: usize = 300;

/// Largest number of open sockets.
const SOCKETS_MAX: usize = 8;

/// Ports of sockets and of the peer, few enough that many packets meet a socket.
const PORTS: [u16; 5] = [53, 54, 7, 1000, 0];

const GROUP_V4: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0x81, 2);

/// Results of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Datagrams that the sockets have received.
    pub received: u64,
    /// Messages that the sockets have sent.
    pub sent: u64,
    /// Packets that the host has dropped.
    pub dropped: u64,
}

/// A socket that an application holds.
#[derive(Debug)]
struct Application {
    socket: Arc<DatagramSocket>,
    kind: SocketKind,
    is_v6: bool,
}

#[derive(Debug)]
struct Play<'a> {
    rig: Rig,
    input: Input<'a>,
    sockets: Vec<Application>,
    /// Payloads of the datagrams that were delivered or sent.
    payloads: BTreeSet<Vec<u8>>,
    /// A packet was edited, so that received bytes are not compared.
    edited: bool,
    outcome: Outcome,
}

/// Plays `input`.
///
/// # Panics
/// When the host violates a requirement of the module head.
pub fn run(input: &[u8]) -> Outcome {
    let mut input = Input::new(input);
    let Some(setting) = input.byte() else { return Outcome::default() };
    let rig = Rig::new(RigConfig {
        ethernet: setting & 1 == 0,
        ipv6: true,
        link_local: setting & 2 == 0,
        mtu: [1500, 1280, 9000, 1500][usize::from(setting >> 2 & 3)],
        memory_bytes: if setting & 16 == 0 { 16 << 20 } else { 340 << 10 },
        second_link: setting & 64 != 0,
        ..RigConfig::default()
    });
    rig.link.set_paged(setting & 32 != 0);
    let mut play = Play {
        rig,
        input,
        sockets: Vec::new(),
        payloads: BTreeSet::new(),
        edited: false,
        outcome: Outcome::default(),
    };
    for _ in 0..STEPS_MAX {
        let Some(step) = play.input.byte() else { break };
        play.step(step);
        play.rig.take();
    }
    play.end()
}

impl Play<'_> {
    fn step(&mut self, step: u8) {
        match step & 15 {
            0 => self.raw_packet(),
            1 | 2 => self.datagram(),
            3 => self.icmp_error(),
            4 => self.echo_reply(),
            5 => self.membership_query(),
            6 => self.open(),
            7 => self.connect(),
            8 | 9 => self.send(),
            10 => self.receive(),
            11 => self.receive_batch(),
            12 => self.option(),
            13 => self.membership(),
            14 => self.close(),
            _ => {
                let time = Duration::from_millis(u64::from(self.input.next()) * 20);
                self.rig.pass(time);
            }
        }
    }

    /// Takes the index of an open socket.
    fn pick_socket(&mut self) -> Option<usize> {
        let byte = usize::from(self.input.next());
        (!self.sockets.is_empty()).then(|| byte % self.sockets.len())
    }

    /// Takes any address that a call may name.
    fn pick_address(&mut self) -> SocketAddr {
        let port = self.input.pick(&PORTS);
        let scope = u32::from(self.input.next() % 4);
        let ip: IpAddr = match self.input.next() % 14 {
            0 => PEER_IP.into(),
            1 => HOST_IP.into(),
            2 => Ipv4Addr::UNSPECIFIED.into(),
            3 => GROUP_V4.into(),
            4 => Ipv4Addr::new(10, 0, 0, 255).into(),
            5 => Ipv4Addr::LOCALHOST.into(),
            6 => PEER_V6.into(),
            7 => HOST_V6.into(),
            8 => Ipv6Addr::UNSPECIFIED.into(),
            9 => GROUP_V6.into(),
            10 => PEER_LINK.into(),
            11 => HOST_LINK.into(),
            12 => PEER_IP.to_ipv6_mapped().into(),
            _ => HOST_IP.to_ipv6_mapped().into(),
        };
        match ip {
            IpAddr::V4(_) => SocketAddr::new(ip, port),
            IpAddr::V6(ip) => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope)),
        }
    }

    fn open(&mut self) {
        let flags = self.input.next();
        let local = self.pick_address();
        if self.sockets.len() >= SOCKETS_MAX {
            return;
        }
        let kind = if flags & 3 == 3 { SocketKind::Ping } else { SocketKind::Udp };
        let settings = SocketSettings::default()
            .reuse_address(flags & 4 != 0)
            .reuse_port(flags & 8 != 0)
            .v6_only(flags & 16 != 0);
        let host = self.rig.host();
        let cx = &mut self.rig.world.cx;
        if let Ok(socket) = DatagramSocket::open(&host, cx, kind, local, &settings) {
            self.sockets.push(Application { socket, kind, is_v6: local.is_ipv6() });
        }
    }

    fn connect(&mut self) {
        let Some(at) = self.pick_socket() else { return };
        let to = self.pick_address();
        let host = self.rig.host();
        let application = &self.sockets[at];
        let _ = application.socket.connect(&host, &mut self.rig.world.cx, to);
        let local = application.socket.local(&host, &mut self.rig.world.cx);
        assert_eq!(local.is_ipv6(), application.is_v6, "the family of {local}");
    }

    fn send(&mut self) {
        let Some(at) = self.pick_socket() else { return };
        let (flags, len) = (self.input.next(), self.input.next_u16() % 4000);
        let to = self.pick_address();
        let mut payload: Vec<u8> = vec![self.input.next(); usize::from(len)];
        if self.sockets[at].kind == SocketKind::Ping && payload.len() >= 8 && flags & 1 == 0 {
            payload[..2].copy_from_slice(&[if self.sockets[at].is_v6 { 128 } else { 8 }, 0]);
        }
        let given = |bit: u8| (flags & bit != 0).then_some(flags);
        let control = SendControl {
            source: (flags & 2 != 0).then(|| self.pick_address().ip()),
            device: given(4).map(|flags| DeviceIndex(u32::from(flags >> 6))),
            tos: given(8),
            ttl: given(16),
            segment: given(32).map(|flags| u16::from(flags) * 4),
        };
        let to = (flags & 64 == 0).then_some(to);
        let message = SendMessage { payload: &payload, to, control };
        let host = self.rig.host();
        let sent = self.sockets[at].socket.send(&host, &mut self.rig.world.cx, &message);
        self.outcome.sent += u64::from(sent.is_ok());
        // `UDP_SEGMENT` may cut the payload at any size.
        self.edited |= len > 0;
        self.payloads.insert(payload);
    }

    fn receive(&mut self) {
        let Some(at) = self.pick_socket() else { return };
        let flags = self.input.next();
        let mut buf = vec![0; if flags & 2 == 0 { 65_536 } else { 16 }];
        let host = self.rig.host();
        let application = &self.sockets[at];
        let cx = &mut self.rig.world.cx;
        let Ok(received) = application.socket.recv(&host, cx, &mut buf, flags & 1 != 0) else {
            return;
        };
        let source = received.source;
        assert!(received.len <= received.datagram_len, "{received:?}");
        assert_eq!(source.is_ipv6(), application.is_v6, "the family of {source}");
        assert_eq!(received.destination.is_ipv6(), application.is_v6, "{received:?}");
        let is_whole = received.len == received.datagram_len && received.segment.is_none();
        if is_whole && application.kind == SocketKind::Udp && !self.edited {
            assert!(self.payloads.contains(&buf[..received.len]), "{received:?}");
        }
        self.outcome.received += 1;
    }

    fn receive_batch(&mut self) {
        let Some(at) = self.pick_socket() else { return };
        let mut bufs = vec![vec![0; 2000]; usize::from(self.input.next() % 8)];
        let mut messages: Vec<_> = bufs.iter_mut().map(|buf| ReceiveMessage::new(buf)).collect();
        let host = self.rig.host();
        let socket = &self.sockets[at].socket;
        if let Ok(count) = socket.recv_batch(&host, &mut self.rig.world.cx, &mut messages) {
            let described = messages.iter().take_while(|message| message.received.is_some());
            assert_eq!(described.count(), count);
            self.outcome.received += count as u64;
        }
    }

    fn option(&mut self) {
        let Some(at) = self.pick_socket() else { return };
        let option = self.input.pick(SocketOption::ALL);
        let value = match self.input.next() % 4 {
            0 => OptionValue::Bytes(self.input.counted().to_vec()),
            1 => OptionValue::Int(self.input.next_u32().cast_signed()),
            _ => OptionValue::Int(i32::from(self.input.next())),
        };
        let host = self.rig.host();
        let socket = &self.sockets[at].socket;
        let cx = &mut self.rig.world.cx;
        let _ = socket.set_option(&host, cx, option, &value);
        let _ = socket.option(&host, cx, option);
        let _ = socket.take_report(&host, cx);
    }

    fn membership(&mut self) {
        let Some(at) = self.pick_socket() else { return };
        let (flags, group) = (self.input.next(), self.pick_address().ip());
        let device = (flags & 2 != 0).then_some(DeviceIndex(u32::from(flags >> 6)));
        let host = self.rig.host();
        let socket = &self.sockets[at].socket;
        let cx = &mut self.rig.world.cx;
        let _ = match flags & 1 {
            0 => socket.join(&host, cx, group, device),
            _ => socket.leave(&host, cx, group, device),
        };
    }

    fn close(&mut self) {
        let Some(at) = self.pick_socket() else { return };
        let host = self.rig.host();
        self.sockets.remove(at).socket.close(&host, &mut self.rig.world.cx);
    }

    fn end(mut self) -> Outcome {
        let host = self.rig.host();
        for application in self.sockets.drain(..) {
            application.socket.close(&host, &mut self.rig.world.cx);
        }
        assert_eq!(host.udp_memory_pages(), 0, "pages of datagram memory are left");
        self.outcome.dropped = host.counters().dropped();
        drop(host);
        let outcome = self.outcome;
        self.rig.finish();
        outcome
    }
}
