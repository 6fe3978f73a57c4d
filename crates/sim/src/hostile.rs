//! Hostile input: a string of bytes as frames, time and socket calls, played to one host.
//!
//! Below: the fuzz target `receive`, and the tests that replay its corpus. Any string is a valid
//! input; most steps are modified from the segment that a real peer would send next, so that few
//! bytes lead deep into an established connection.
//!
//! Requirements on the host: no panic; every frame it sends is a valid one; received data is the
//! peer's stream and sent data the application's, all of it once the peer follows the protocol
//! (`epilogue`); frames and packets are accounted for (`counter_sums`); at the end no connection
//! and no packet is left.
//!
//! Not here: more than one host, threads, offloads.

mod calls;
pub(crate) mod counter_sums;
mod epilogue;
mod frames;
pub(crate) mod input;
mod segments;

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::{Arc, OnceLock},
    time::Duration,
};

use stack::{
    socket::{Connection, Listener},
    sysctl::Sysctls,
};
use tcp::{Flags, SegmentHeader, SeqNum};

use self::input::Input;
use crate::{
    Peer, Rig, RigConfig,
    apps::Pattern,
    frame::Seen,
    modes::{self, Settings},
    rig::PEER_IP,
};

/// Steps of one run: enough to reach everything, few enough that a run stays short.
const STEPS_MAX: usize = 400;

/// The port that the host listens on.
const PORT: u16 = 80;

/// The peer's stream, by offset.
const PEER_PATTERN: Pattern = Pattern(0x0e0f);

/// The streams of the host's applications, by offset.
const HOST_PATTERN: Pattern = Pattern(0xf0e0);

/// Results of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Connections that were established.
    pub established: u64,
    /// Bytes that applications have read.
    pub received: u64,
    /// Bytes of stream that the host has sent, retransmissions included.
    pub sent: u64,
    /// Packets that the host has dropped.
    pub dropped: u64,
}

/// One connection, or an attempt that may become one.
#[derive(Debug)]
struct Attempt {
    peer: Peer,
    /// Sequence number before the first byte of the peer's stream, as the host has acknowledged it.
    irs: Option<SeqNum>,
    /// Sequence number before the first byte of the host's stream.
    iss: Option<SeqNum>,
    /// The peer has sent FIN.
    ended: bool,
    /// The peer has ended its stream twice, or used numbers beyond its end. By the rules of windows
    /// (RFC 9293 §3.10.7.4) the host may then ignore all later segments at lower numbers.
    contradicts: bool,
}

/// A socket that an application holds.
#[derive(Debug)]
struct Application {
    socket: Arc<Connection>,
    sent: u64,
    received: u64,
}

/// The state of one run.
#[derive(Debug)]
struct Play<'a> {
    rig: Rig,
    input: Input<'a>,
    listener: Option<Arc<Listener>>,
    connections: Vec<Attempt>,
    applications: Vec<Application>,
    /// Peers whose frames were edited in place: data received from them is not compared.
    tainted: BTreeSet<SocketAddr>,
    /// The last frame that was delivered, for a repetition.
    last: Vec<u8>,
    /// Number of frames to collect before the host may process any.
    hold: u8,
    short_of_memory: bool,
    /// Applications read urgent data in line (`SO_OOBINLINE`); otherwise a stream with urgent data
    /// has gaps.
    oob_inline: bool,
    /// Number of delivered frames too short for a link header.
    short_frames: u64,
    /// Buffer that applications read into.
    buffer: Vec<u8>,
    outcome: Outcome,
}

/// Plays `input` in the modes that the environment selects.
///
/// # Panics
/// When the host violates a requirement of the module head.
pub fn run(input: &[u8]) -> Outcome {
    run_in(input, &modes::from_environment())
}

/// Plays `input` to a host with `settings`.
///
/// # Panics
/// When the host violates a requirement of the module head.
pub fn run_in(input: &[u8], settings: &Settings) -> Outcome {
    let mut input = Input::new(input);
    let Some(setting) = input.byte() else { return Outcome::default() };
    let mut play = Play::new(input, setting, settings);
    for _ in 0..STEPS_MAX {
        let Some(step) = play.input.byte() else { break };
        play.step(step);
        play.look();
    }
    play.end()
}

impl<'a> Play<'a> {
    fn new(input: Input<'a>, setting: u8, settings: &Settings) -> Self {
        let mut sysctls = if setting & 32 == 0 { Sysctls::default() } else { small_limits() };
        settings.apply(&mut sysctls);
        let mut rig = Rig::new(RigConfig {
            ethernet: setting & 1 == 0,
            mtu: [1500, 576, 9000, 1280][usize::from(setting >> 1 & 3)],
            // The smaller one is eight pages and some ninety descriptors.
            memory_bytes: if setting & 8 == 0 { 16 << 20 } else { 340 << 10 },
            sysctls,
            cores: (1 + u16::from(setting >> 7)).max(settings.cores()),
            ..RigConfig::default()
        });
        rig.link.set_paged(setting & 16 != 0);
        let listener = Some(rig.listen(PORT, 2));
        Self {
            rig,
            input,
            listener,
            connections: Vec::new(),
            applications: Vec::new(),
            tainted: BTreeSet::new(),
            last: Vec::new(),
            hold: 0,
            short_of_memory: setting & 8 != 0,
            oob_inline: setting & 64 == 0,
            short_frames: 0,
            buffer: Vec::new(),
            outcome: Outcome::default(),
        }
    }

    fn step(&mut self, step: u8) {
        match step & 15 {
            0 => self.raw_frame(),
            1 => self.packet(),
            2 | 3 => self.segment(),
            4 => self.icmp_error(),
            5 => self.echo_request(),
            6 => self.arp(),
            7 => self.time(),
            8 => self.accept(),
            9 => self.send(),
            10 => self.receive(),
            11 => self.control(),
            12 => self.open(),
            13 => self.connect(),
            14 => self.again(),
            _ => self.mode(),
        }
    }

    /// Delivers a frame. The host processes it at once, unless frames are being collected.
    fn give(&mut self, frame: Vec<u8>) {
        self.last = frame;
        let before = self.rig.delivered();
        self.rig.queue(&self.last);
        if self.last.len() < self.link_header_bytes() {
            self.short_frames += self.rig.delivered() - before;
        }
        if self.hold > 0 {
            self.hold -= 1;
        } else {
            self.rig.settle();
        }
    }

    fn give_packet(&mut self, packet: &[u8]) {
        let framed = self.rig.framed(packet);
        self.give(framed);
    }

    const fn link_header_bytes(&self) -> usize {
        if self.is_ethernet() { 14 } else { 1 }
    }

    const fn is_ethernet(&self) -> bool {
        self.rig.is_ethernet()
    }

    fn time(&mut self) {
        let exponent = self.input.next() % 40;
        // At most nine minutes in one step.
        self.rig.pass(Duration::from_nanos(1 << exponent));
    }

    fn mode(&mut self) {
        match self.input.next() {
            value @ 0..64 => self.hold = value,
            64..128 => self.rig.link.set_paged(true),
            128..192 => self.rig.link.set_paged(false),
            192..224 => self.rig.answers_arp = false,
            _ => self.rig.answers_arp = true,
        }
    }

    /// Updates the peers from the frames that the host has sent, and checks the data in them.
    fn look(&mut self) {
        for seen in self.rig.take_sent() {
            let Seen::Tcp(ip, header, payload) = seen else { continue };
            if ip.dst != IpAddr::V4(PEER_IP) {
                continue;
            }
            self.outcome.sent += payload.len() as u64;
            let known = self
                .connections
                .iter_mut()
                .position(|connection| connection.peer.note(&header, payload.len()));
            match known {
                Some(at) => self.connections[at].look(&header, &payload),
                // A connection that the host has opened.
                None if header.flags == Flags::SYN => {
                    let mut peer = Peer::new(header.src_port, header.dst_port);
                    peer.note(&header, 0);
                    self.connections.push(Attempt::new(peer));
                    if let Some(connection) = self.connections.last_mut() {
                        connection.look(&header, b"");
                    }
                }
                None => {}
            }
        }
        self.check_sockets();
    }

    fn check_sockets(&mut self) {
        let host = self.rig.host();
        for application in &self.applications {
            application.socket.with_tcb(&host, &mut self.rig.world.cx, |tcb, _| tcb.check());
        }
    }

    fn end(mut self) -> Outcome {
        self.rig.settle();
        self.look();
        if !self.short_of_memory {
            epilogue::play(&mut self);
        }
        let counters = self.rig.host().counters();
        self.outcome.established = counters.tcp(tcp::Counter::TcpPassiveOpens)
            + counters.tcp(tcp::Counter::TcpActiveOpens);
        self.outcome.dropped = counters.dropped();
        let host = self.rig.host();
        for application in self.applications.drain(..) {
            application.socket.close(&host, &mut self.rig.world.cx);
        }
        if let Some(listener) = self.listener.take() {
            listener.close(&host, &mut self.rig.world.cx);
        }
        drop(host);
        counter_sums::check(&self);
        self.rig.finish();
        self.outcome
    }
}

/// Settings under which every queue and table fills up. They are built once: otherwise a fuzzer
/// takes the setting names that are compared here for parts of its input.
fn small_limits() -> Sysctls {
    static SMALL: OnceLock<Sysctls> = OnceLock::new();
    SMALL.get_or_init(make_small_limits).clone()
}

fn make_small_limits() -> Sysctls {
    let mut sysctls = Sysctls::default();
    let limits = [
        ("net.ipv4.tcp_rmem", "2304 4096 8192"),
        ("net.ipv4.tcp_wmem", "4608 8192 16384"),
        ("net.ipv4.tcp_max_syn_backlog", "2"),
        ("net.ipv4.tcp_max_tw_buckets", "1"),
        ("net.ipv4.neigh.default.unres_qlen", "2"),
        ("net.ipv4.neigh.default.gc_thresh3", "1"),
        ("net.ipv4.tcp_rfc1337", "1"),
        ("net.ipv4.icmp_echo_ignore_broadcasts", "0"),
        ("net.core.netdev_budget", "2"),
    ];
    for (name, value) in limits {
        sysctls.set(name, value).expect("a setting");
    }
    sysctls
}

impl Attempt {
    const fn new(peer: Peer) -> Self {
        Self { peer, irs: None, iss: None, ended: false, contradicts: false }
    }

    fn look(&mut self, header: &SegmentHeader, payload: &[u8]) {
        if header.has(Flags::SYN) {
            self.iss = Some(header.seq);
            self.irs = None;
        }
        if header.has(Flags::ACK) && self.irs.is_none() && self.iss.is_some() {
            // After the host's SYN, the first acknowledgment covers the peer's SYN alone: `segment`
            // sends no data with a SYN. Before it, the acknowledgment belongs to an earlier
            // connection of the same ports (a challenge ACK, RFC 5961 §4) and covers data, too.
            self.irs = Some(header.ack - 1);
        }
        let Some(iss) = self.iss else { return };
        let start = header.seq - (iss + 1);
        if !payload.is_empty() {
            let offset = u64::try_from(start).expect("no byte before the first");
            let other = HOST_PATTERN.first_other(offset, payload);
            assert_eq!(other, None, "a byte differs from the written stream");
        }
    }
}
