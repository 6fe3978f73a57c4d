//! A small network in virtual time: two hosts, two directions, seeded impairment.
//!
//! The invariants of a connection are checked after every event and every call. At the end of a
//! test ([`Net::finish_clean`]), all packets must have been freed.

use std::collections::BTreeMap;
use std::vec::Vec;

use core::time::Duration;

use pkt::{Domain, DomainConfig, Ecn, Gso, GsoKind, Instant, Packet};

use super::host::{Host, lend};
use crate::{Counter, Cx, Flags, FourTuple, Rng, SegmentHeader, State, Tcb};

/// One end of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    A,
    B,
}

impl Side {
    pub(crate) fn other(self) -> Self {
        if self == Self::A { Self::B } else { Self::A }
    }
}

/// Probabilities per thousand packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Impairment {
    pub(crate) loss: u32,
    pub(crate) duplicate: u32,
    pub(crate) reorder: u32,
    /// Whether superframes (packets of several segments) are split before the impairment.
    pub(crate) split: bool,
}

/// Changes that routers make to the ECN field, and that broken routers make to the ECN echo.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EcnPath {
    /// CE marks per thousand ECN-capable packets.
    pub(crate) mark: u32,
    /// Value that the path writes into the ECN field of every packet.
    pub(crate) rewrite: Option<Ecn>,
    /// Whether the path sets ECE in every segment that is not a SYN.
    pub(crate) echo: bool,
}

/// Record of a sent segment.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) at: Instant,
    pub(crate) from: Side,
    pub(crate) header: SegmentHeader,
    pub(crate) len: u32,
    pub(crate) gso: Gso,
    /// ECN field at the time of sending.
    pub(crate) ecn: Ecn,
    /// Departure time.
    pub(crate) departs: Instant,
}

/// Two hosts, the packets between them, the virtual time, and a log of all sent segments.
pub(crate) struct Net {
    pub(crate) now: Instant,
    /// One-way delay of a packet.
    pub(crate) delay: Duration,
    pub(crate) impairment: Impairment,
    pub(crate) ecn: EcnPath,
    /// Whether packets that A sends stay in A's device queue until [`Net::release`].
    pub(crate) holds: bool,
    held: Vec<Packet>,
    /// Size in bytes above which IP packets are lost.
    pub(crate) path_mtu: Option<u32>,
    pub(crate) log: Vec<Sent>,
    /// Payload bytes of packets that were CE-marked.
    pub(crate) marked_bytes: u64,
    pub(crate) rng: Rng,
    a: Host,
    b: Host,
    in_flight: BTreeMap<(Instant, u64), (Side, Packet)>,
    /// Number of scheduled packets: keeps packets with the same arrival time in order.
    order: u64,
    /// Positions, among the packets sent from now on, of the packets to lose.
    to_drop: Vec<usize>,
    domain: Domain,
}

impl Net {
    pub(crate) fn new(seed: u64) -> Self {
        Self::with_memory(seed, DomainConfig::default())
    }

    /// A network whose hosts share packet memory with this configuration.
    pub(crate) fn with_memory(seed: u64, config: DomainConfig) -> Self {
        let domain = Domain::new(config);
        let a = "10.0.0.1:1000".parse().unwrap();
        let b = "10.0.0.2:2000".parse().unwrap();
        Self {
            now: Instant::from_secs(1000),
            delay: Duration::from_millis(10),
            impairment: Impairment::default(),
            ecn: EcnPath::default(),
            holds: false,
            held: Vec::new(),
            path_mtu: None,
            log: Vec::new(),
            marked_bytes: 0,
            rng: Rng::new(seed),
            a: Host::new(&domain, FourTuple::new(a, b), seed.wrapping_mul(3) + 1),
            b: Host::new(&domain, FourTuple::new(b, a), seed.wrapping_mul(5) + 2),
            in_flight: BTreeMap::new(),
            order: 0,
            to_drop: Vec::new(),
            domain,
        }
    }

    /// A network with an established connection that A opened.
    pub(crate) fn established(seed: u64) -> Self {
        let mut net = Self::new(seed);
        net.open();
        net
    }

    /// Lets B listen and A connect, and runs until both are in ESTABLISHED.
    pub(crate) fn open(&mut self) {
        self.host(Side::B).listening = true;
        self.connect(Side::A);
        self.run_until(|net| net.state(Side::B) == State::Established);
        assert_eq!(self.state(Side::A), State::Established);
    }

    pub(crate) fn host(&mut self, side: Side) -> &mut Host {
        if side == Side::A { &mut self.a } else { &mut self.b }
    }

    pub(crate) fn tcb(&mut self, side: Side) -> &mut Tcb {
        self.host(side).tcb.as_mut().expect("the host has a connection")
    }

    pub(crate) fn state(&mut self, side: Side) -> State {
        let host = self.host(side);
        match (&host.tcb, &host.request, &host.time_wait) {
            (_, _, Some(_)) => State::TimeWait,
            (Some(tcb), ..) => tcb.state(),
            (_, Some(_), _) => State::SynRecv,
            _ if host.listening => State::Listen,
            _ => State::Close,
        }
    }

    pub(crate) fn count(&mut self, side: Side, counter: Counter) -> u64 {
        self.host(side).count(counter)
    }

    pub(crate) fn connect(&mut self, side: Side) {
        let now = self.now;
        let host = self.host(side);
        let params = host.params();
        let mut cx = lend!(host, now);
        host.tcb = Some(Tcb::connect(&mut cx, &params));
        self.finish(side);
    }

    /// Runs an application call, followed by the stack's work after a batch.
    pub(crate) fn call<R>(&mut self, side: Side, f: impl FnOnce(&mut Tcb, &mut Cx<'_>) -> R) -> R {
        let now = self.now;
        let result = self.host(side).enter(now, f);
        self.finish(side);
        result
    }

    /// Sends `bytes`, which must fit into the send buffer.
    pub(crate) fn send(&mut self, side: Side, bytes: &[u8]) {
        let sent = self.call(side, |tcb, cx| tcb.send(cx, &[bytes], false));
        assert_eq!(sent, Ok(bytes.len()));
    }

    /// Reads all available data.
    pub(crate) fn recv(&mut self, side: Side) -> Vec<u8> {
        let mut all = Vec::new();
        let mut buf = [0; 4096];
        while let Ok(n @ 1..) = self.call(side, |tcb, cx| tcb.recv(cx, &mut buf, false)) {
            all.extend_from_slice(&buf[..n]);
        }
        all
    }

    /// Delivers a segment that the test has built.
    pub(crate) fn inject(&mut self, to: Side, header: &SegmentHeader, payload: &[u8]) {
        self.inject_merged(to, header, payload, Gso::default());
    }

    /// Delivers a packet that consists of several segments, merged by receive offload as `gso`
    /// describes.
    pub(crate) fn inject_merged(
        &mut self,
        to: Side,
        header: &SegmentHeader,
        payload: &[u8],
        gso: Gso,
    ) {
        let now = self.now;
        let host = self.host(to);
        let mut packet = host.pool.alloc_from(payload).expect("the test has enough packet memory");
        packet.meta_mut().gso = gso;
        header.emit(packet.push(header.header_bytes()));
        host.receive(now, packet);
        self.finish(to);
    }

    /// Returns an acceptable next segment from the peer of `to`, for the test to modify and inject.
    pub(crate) fn forge(&mut self, to: Side) -> SegmentHeader {
        let now = self.now;
        let tuple = self.host(to).tuple;
        let tcb = self.tcb(to);
        let mut header = SegmentHeader {
            src_port: tuple.remote.port(),
            dst_port: tuple.local.port(),
            seq: tcb.rcv_nxt,
            ack: tcb.snd_una,
            flags: Flags::ACK,
            window: u16::try_from(tcb.snd_wnd >> tcb.snd_wscale).unwrap(),
            ..SegmentHeader::default()
        };
        if tcb.info().timestamps {
            header.options.timestamps = Some((tcb.ts_recent, tcb.ts_now(now)));
        }
        header
    }

    /// Loses all packets in flight.
    pub(crate) fn lose_in_flight(&mut self) {
        self.in_flight.clear();
    }

    /// Returns the segments that `side` has sent since entry `from` of the log.
    pub(crate) fn sent_by(&self, side: Side, from: usize) -> Vec<&Sent> {
        self.log[from..].iter().filter(|sent| sent.from == side).collect()
    }

    /// Performs the stack's work after a batch, and transmits the packets that the engine has sent.
    fn finish(&mut self, side: Side) {
        let now = self.now;
        self.host(side).finish_batch(now);
        while let Some(packet) = self.host(side).out.pop_front() {
            self.transmit(side, packet);
        }
    }

    fn transmit(&mut self, from: Side, mut packet: Packet) {
        let header = SegmentHeader::parse(packet.linear()).expect("the engine sends valid headers");
        let len = u32::try_from(packet.len()).unwrap() - u32::from(header.header_len);
        let gso = packet.meta().gso;
        let (ecn, departs) = (packet.meta().ecn, packet.meta().timestamp);
        self.log.push(Sent { at: self.now, from, header, len, gso, ecn, departs });
        if self.holds && from == Side::A {
            return self.held.push(packet);
        }
        // The packet has left the host: `orphan` completes its transmission for the sender.
        packet.orphan();
        if self.impairment.split && gso.kind != GsoKind::None {
            for segment in self.segments(from, packet) {
                self.impair(from, segment);
            }
        } else {
            self.impair(from, packet);
        }
    }

    /// Sends the packets that A's device queue holds.
    pub(crate) fn release(&mut self) {
        self.holds = false;
        for mut packet in core::mem::take(&mut self.held) {
            packet.orphan();
            self.impair(Side::A, packet);
        }
    }

    /// Splits a superframe into segments, as GSO does.
    fn segments(&mut self, from: Side, packet: Packet) -> Vec<Packet> {
        let header = SegmentHeader::parse(packet.linear()).expect("the engine sends valid headers");
        let header_len = usize::from(header.header_len);
        let size = usize::from(packet.meta().gso.size);
        let total = packet.len() - header_len;
        let pool = &mut self.host(from).pool;
        let mut segments = Vec::new();
        for offset in (0..total).step_by(size) {
            let len = size.min(total - offset);
            let mut segment = packet.clone_range(pool, header_len + offset, len).unwrap();
            let mut own = header.clone();
            own.seq += u32::try_from(offset).unwrap();
            if offset + len < total {
                own.flags -= Flags::FIN | Flags::PSH;
            }
            if offset > 0 {
                own.flags -= Flags::CWR;
            }
            own.emit(segment.push(header_len));
            segment.meta_mut().ecn = packet.meta().ecn;
            segments.push(segment);
        }
        segments
    }

    /// Loses the packets at these positions among those sent from now on.
    pub(crate) fn drop_segments(&mut self, places: &[usize]) {
        self.to_drop = places.to_vec();
    }

    /// Returns whether the current packet is at one of the positions of [`Net::drop_segments`].
    fn is_to_drop(&mut self) -> bool {
        let lost = self.to_drop.contains(&0);
        self.to_drop.retain(|&place| place > 0);
        self.to_drop.iter_mut().for_each(|place| *place -= 1);
        lost
    }

    /// Loses, duplicates, delays or delivers a packet.
    fn impair(&mut self, from: Side, mut packet: Packet) {
        self.congest(&mut packet);
        if self.is_to_drop() || self.path_mtu.is_some_and(|mtu| ip_bytes(&packet) > mtu) {
            return;
        }
        let Impairment { loss, duplicate, reorder, .. } = self.impairment;
        if self.rng.below(1000) < loss {
            return;
        }
        if self.rng.below(1000) < duplicate
            && let Some(copy) = packet.clone_in(&mut self.host(from).pool)
        {
            self.schedule(from, copy, self.delay * 3 / 2);
        }
        let late = self.rng.below(1000) < reorder;
        let extra = if late { self.delay * self.rng.below(4) } else { Duration::ZERO };
        self.schedule(from, packet, self.delay + extra);
    }

    /// Applies [`EcnPath`].
    fn congest(&mut self, packet: &mut Packet) {
        let EcnPath { mark, rewrite, echo } = self.ecn;
        let codepoint = rewrite.unwrap_or_else(|| packet.meta().ecn);
        packet.meta_mut().ecn = codepoint;
        if mark > 0 && codepoint != Ecn::NotEct && self.rng.below(1000) < mark {
            packet.meta_mut().ecn = Ecn::Ce;
            let header_len = usize::from(packet.linear()[12] >> 4) * 4;
            self.marked_bytes += u64::try_from(packet.len() - header_len).unwrap();
        }
        let flags = &mut packet.linear_mut()[13];
        if echo && *flags & Flags::SYN.bits() == 0 {
            *flags |= Flags::ECE.bits();
        }
    }

    fn schedule(&mut self, from: Side, packet: Packet, delay: Duration) {
        self.order += 1;
        self.in_flight.insert((self.now + delay, self.order), (from.other(), packet));
    }

    /// Returns the time of the next event.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        let delivery = self.in_flight.keys().next().map(|&(at, _)| at);
        [delivery, self.a.deadline(), self.b.deadline()].into_iter().flatten().min()
    }

    /// Handles the next event; returns `false` if there is none.
    pub(crate) fn step(&mut self) -> bool {
        let Some(at) = self.next_event() else { return false };
        self.now = self.now.max(at);
        let now = self.now;
        if let Some(entry) = self.in_flight.first_entry()
            && entry.key().0 <= now
        {
            let (to, packet) = entry.remove();
            self.host(to).receive(now, packet);
            self.finish(to);
            return true;
        }
        for side in [Side::A, Side::B] {
            self.host(side).run_timers(now);
            self.finish(side);
        }
        true
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.next_event().is_some_and(|at| at <= end) {
            self.step();
        }
        self.now = end;
    }

    pub(crate) fn run_until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        let mut steps = 0;
        while !done(self) {
            assert!(self.step(), "no event is left");
            steps += 1;
            assert!(steps < 2_000_000, "no progress");
        }
    }

    /// Aborts both connections and checks that every packet is free.
    pub(crate) fn finish_clean(mut self) {
        for side in [Side::A, Side::B] {
            if self.host(side).tcb.is_some() {
                self.call(side, |tcb, cx| tcb.abort(cx));
            }
        }
        let domain = self.domain.clone();
        drop(self);
        assert_eq!(domain.balance(), 0, "some packets were not freed");
    }
}

/// Returns the size of the IPv4 packet around a segment, or around the largest segment of a
/// superframe.
fn ip_bytes(packet: &Packet) -> u32 {
    let header = SegmentHeader::parse(packet.linear()).expect("the engine sends valid headers");
    let gso = packet.meta().gso;
    let segment = match gso.kind {
        GsoKind::None => packet.len(),
        _ => usize::from(header.header_len) + usize::from(gso.size),
    };
    20 + u32::try_from(segment).unwrap()
}
