//! A tiny network in virtual time: two hosts, two directions, seeded impairment.
//!
//! After every event the blocks' invariants are checked; at the end no packet may be left over.

use std::collections::BTreeMap;
use std::vec::Vec;

use core::time::Duration;

use pkt::{Domain, DomainConfig, Ecn, Gso, GsoKind, Instant, Packet};

use super::host::{Host, lend};
use crate::{Counter, Cx, Flags, FourTuple, Rng, SegmentHeader, State, Tcb};

/// Which end.
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

/// Chances per thousand packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Impairment {
    pub(crate) loss: u32,
    pub(crate) duplicate: u32,
    pub(crate) reorder: u32,
    /// Superframes are cut into segments before anything happens to them.
    pub(crate) split: bool,
}

/// What routers do to the ECN field, and broken ones to the echo.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EcnPath {
    /// ECN-capable packets that are marked, per thousand.
    pub(crate) mark: u32,
    /// The path writes this into the ECN field of everything.
    pub(crate) rewrite: Option<Ecn>,
    /// The path sets ECE in every segment that is not a SYN.
    pub(crate) echo: bool,
}

/// A segment somebody sent.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) at: Instant,
    pub(crate) from: Side,
    pub(crate) header: SegmentHeader,
    pub(crate) len: u32,
    pub(crate) gso: Gso,
    /// The codepoint it left with.
    pub(crate) ecn: Ecn,
    /// Its departure time.
    pub(crate) departs: Instant,
}

/// See the module head.
pub(crate) struct Net {
    pub(crate) now: Instant,
    pub(crate) delay: Duration,
    pub(crate) impairment: Impairment,
    pub(crate) ecn: EcnPath,
    /// What A sends stays in its own host until [`Net::release`].
    pub(crate) holds: bool,
    held: Vec<Packet>,
    /// IP packets above this many bytes vanish.
    pub(crate) path_mtu: Option<u32>,
    pub(crate) log: Vec<Sent>,
    /// Payload bytes of packets that were marked.
    pub(crate) marked_bytes: u64,
    pub(crate) rng: Rng,
    a: Host,
    b: Host,
    in_flight: BTreeMap<(Instant, u64), (Side, Packet)>,
    order: u64,
    /// Which of the next packets are lost, counted down.
    to_drop: Vec<usize>,
    domain: Domain,
}

impl Net {
    pub(crate) fn new(seed: u64) -> Self {
        Self::with_memory(seed, DomainConfig::default())
    }

    /// A network with little packet memory for both ends together.
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

    /// Two hosts whose connection is established: A opened it.
    pub(crate) fn established(seed: u64) -> Self {
        let mut net = Self::new(seed);
        net.open();
        net
    }

    /// A connects to a listening B and both reach ESTABLISHED.
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

    /// An application call followed by what the stack does after it.
    pub(crate) fn call<R>(&mut self, side: Side, f: impl FnOnce(&mut Tcb, &mut Cx<'_>) -> R) -> R {
        let now = self.now;
        let result = self.host(side).enter(now, f);
        self.finish(side);
        result
    }

    /// Sends `bytes`, which must fit.
    pub(crate) fn send(&mut self, side: Side, bytes: &[u8]) {
        let sent = self.call(side, |tcb, cx| tcb.send(cx, &[bytes], false));
        assert_eq!(sent, Ok(bytes.len()));
    }

    /// Reads what is there.
    pub(crate) fn recv(&mut self, side: Side) -> Vec<u8> {
        let mut all = Vec::new();
        let mut buf = [0; 4096];
        while let Ok(n @ 1..) = self.call(side, |tcb, cx| tcb.recv(cx, &mut buf, false)) {
            all.extend_from_slice(&buf[..n]);
        }
        all
    }

    /// Delivers a segment made by the test.
    pub(crate) fn inject(&mut self, to: Side, header: &SegmentHeader, payload: &[u8]) {
        self.inject_merged(to, header, payload, Gso::default());
    }

    /// As [`inject`](Self::inject), of a packet that receive offload has merged as `gso` says.
    pub(crate) fn inject_merged(
        &mut self,
        to: Side,
        header: &SegmentHeader,
        payload: &[u8],
        gso: Gso,
    ) {
        let now = self.now;
        let host = self.host(to);
        let mut packet = host.pool.alloc_from(payload).expect("test memory");
        packet.meta_mut().gso = gso;
        header.emit(packet.push(header.header_bytes()));
        host.receive(now, packet);
        self.finish(to);
    }

    /// A plausible next segment from the peer of `to`, to be changed and injected.
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

    /// Takes everything in flight away.
    pub(crate) fn lose_in_flight(&mut self) {
        self.in_flight.clear();
    }

    /// Segments `side` sent since `from` in the log.
    pub(crate) fn sent_by(&self, side: Side, from: usize) -> Vec<&Sent> {
        self.log[from..].iter().filter(|sent| sent.from == side).collect()
    }

    fn finish(&mut self, side: Side) {
        let now = self.now;
        self.host(side).finish_batch(now);
        while let Some(packet) = self.host(side).out.pop_front() {
            self.transmit(side, packet);
        }
    }

    fn transmit(&mut self, from: Side, mut packet: Packet) {
        let header = SegmentHeader::parse(packet.linear()).expect("a sound header");
        let len = u32::try_from(packet.len()).unwrap() - u32::from(header.header_len);
        let gso = packet.meta().gso;
        let (ecn, departs) = (packet.meta().ecn, packet.meta().timestamp);
        self.log.push(Sent { at: self.now, from, header, len, gso, ecn, departs });
        if self.holds && from == Side::A {
            return self.held.push(packet);
        }
        // It leaves the host: what is in flight is nobody's to wait for.
        packet.orphan();
        if self.impairment.split && gso.kind != GsoKind::None {
            for segment in self.segments(from, packet) {
                self.impair(from, segment);
            }
        } else {
            self.impair(from, packet);
        }
    }

    /// The device of A sends what it held.
    pub(crate) fn release(&mut self) {
        self.holds = false;
        for mut packet in core::mem::take(&mut self.held) {
            packet.orphan();
            self.impair(Side::A, packet);
        }
    }

    /// What GSO would do.
    fn segments(&mut self, from: Side, packet: Packet) -> Vec<Packet> {
        let header = SegmentHeader::parse(packet.linear()).expect("a sound header");
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

    /// Loses the packets that have these places among those sent from now on.
    pub(crate) fn drop_segments(&mut self, places: &[usize]) {
        self.to_drop = places.to_vec();
    }

    /// Whether the packet sent now is one of those.
    fn is_to_drop(&mut self) -> bool {
        let lost = self.to_drop.contains(&0);
        self.to_drop.retain(|&place| place > 0);
        self.to_drop.iter_mut().for_each(|place| *place -= 1);
        lost
    }

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

    /// What [`EcnPath`] says.
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

    /// When something happens next.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        let delivery = self.in_flight.keys().next().map(|&(at, _)| at);
        [delivery, self.a.deadline(), self.b.deadline()].into_iter().flatten().min()
    }

    /// Handles the next event; `false` when nothing will ever happen.
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
            assert!(self.step(), "nothing will happen any more");
            steps += 1;
            assert!(steps < 2_000_000, "no progress");
        }
    }

    /// Ends both hosts and checks that no packet is left.
    pub(crate) fn finish_clean(mut self) {
        for side in [Side::A, Side::B] {
            if self.host(side).tcb.is_some() {
                self.call(side, |tcb, cx| tcb.abort(cx));
            }
        }
        let domain = self.domain.clone();
        drop(self);
        assert_eq!(domain.balance(), 0, "every packet is freed");
    }
}

/// Bytes of the IPv4 packet around a segment, or around the largest one of a superframe.
fn ip_bytes(packet: &Packet) -> u32 {
    let header = SegmentHeader::parse(packet.linear()).expect("a sound header");
    let gso = packet.meta().gso;
    let segment = match gso.kind {
        GsoKind::None => packet.len(),
        _ => usize::from(header.header_len) + usize::from(gso.size),
    };
    20 + u32::try_from(segment).unwrap()
}
