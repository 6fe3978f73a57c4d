//! One end of the test network: does the work of the stack for one connection.
//!
//! A host may have a listener, a request, a control block and a TIME-WAIT object. An arriving
//! segment is processed by the first of these that exists: TIME-WAIT object, control block that is
//! not closed, request, listener. Without any of them it is answered by a reset.

use std::vec::Vec;

use pkt::{Domain, DropReason, Instant, Packet, PacketList, Pool, Verdict};

use crate::{
    ChallengeBudget, Counter, Counters, Cx, Flags, FourTuple, MemoryState, OpenParams, PathMetrics,
    PathParams, Request, RequestTimer, RequestVerdict, Rng, SegmentHeader, SeqNum, SocketOptions,
    State, Tcb, TcpConfig, TimeWait, TimeWaitVerdict, input, on_timer, output, output_nothing,
    segment::reset,
};

/// Builds the engine's context (`Cx`) from the parts of a host, for one call.
macro_rules! lend {
    ($host:expr, $now:expr) => {
        $crate::Cx {
            now: $now,
            pool: &mut $host.pool,
            counters: &$host.counters,
            out: &mut $host.out,
            read: &mut $host.read,
            config: &$host.config,
            rng: &mut $host.rng,
            challenges: &$host.challenges,
            memory: $host.memory,
            rps_needed: false,
            host_queue: $crate::HostQueue::NONE,
        }
    };
}
pub(super) use lend;

/// One end of the network.
pub(crate) struct Host {
    pub(crate) tcb: Option<Tcb>,
    pub(crate) request: Option<Request>,
    pub(crate) time_wait: Option<TimeWait>,
    pub(crate) listening: bool,
    /// Whether the accept queue has room.
    pub(crate) accept_room: bool,
    pub(crate) config: TcpConfig,
    pub(crate) options: SocketOptions,
    pub(crate) path: PathParams,
    pub(crate) counters: Counters,
    /// Reasons of all dropped segments.
    pub(crate) drops: Vec<DropReason>,
    /// Initial sequence number of the next connection.
    pub(crate) iss: SeqNum,
    pub(super) tuple: FourTuple,
    pub(super) pool: Pool,
    /// Packets that the engine has sent.
    pub(super) out: PacketList,
    pub(super) read: PacketList,
    pub(super) rng: Rng,
    pub(super) challenges: ChallengeBudget,
    pub(crate) memory: MemoryState,
}

impl Host {
    pub(super) fn new(domain: &Domain, tuple: FourTuple, seed: u64) -> Self {
        Self {
            tcb: None,
            request: None,
            time_wait: None,
            listening: false,
            accept_room: true,
            config: TcpConfig::default(),
            options: SocketOptions::default(),
            path: PathParams {
                mtu: 1500,
                receive_mtu: 1500,
                gso_bytes_max: 0,
                flow_hash: 7,
                sums_payload: true,
                metrics: PathMetrics::default(),
            },
            counters: Counters::new(),
            drops: Vec::new(),
            iss: SeqNum(Rng::new(seed).next_u32()),
            tuple,
            pool: domain.pool(),
            out: PacketList::new(),
            read: PacketList::new(),
            rng: Rng::new(seed),
            challenges: ChallengeBudget::new(),
            memory: MemoryState::PLENTY,
        }
    }

    pub(super) fn params(&self) -> OpenParams {
        OpenParams {
            tuple: self.tuple,
            iss: self.iss,
            ts_offset: self.iss.0.rotate_left(9),
            path: self.path,
            options: self.options.clone(),
            ts_recent: None,
            fast_open: crate::FastOpen::Off,
        }
    }

    pub(crate) fn count(&self, counter: Counter) -> u64 {
        self.counters.value(counter)
    }

    /// Runs `f` with the connection and its context.
    pub(super) fn enter<R>(
        &mut self,
        now: Instant,
        f: impl FnOnce(&mut Tcb, &mut Cx<'_>) -> R,
    ) -> R {
        let Self { tcb, .. } = self;
        let mut cx = lend!(self, now);
        f(tcb.as_mut().expect("the host has a connection"), &mut cx)
    }

    pub(super) fn receive(&mut self, now: Instant, mut packet: Packet) {
        let header = SegmentHeader::parse(packet.linear()).expect("the host sends valid headers");
        assert!(packet.pull(usize::from(header.header_len)));
        if self.time_wait.is_some() {
            return self.receive_in_time_wait(now, &header, packet);
        }
        if self.tcb.as_ref().is_some_and(|tcb| tcb.state() != State::Close) {
            let verdict = self.enter(now, |tcb, cx| input(tcb, &header, packet, cx));
            return self.note(verdict);
        }
        if self.request.is_some() {
            return self.receive_in_request(now, &header, packet);
        }
        let params = self.params();
        let mut cx = lend!(self, now);
        let len = u32::try_from(packet.len()).unwrap();
        let is_syn = header.flags & (Flags::SYN | Flags::ACK | Flags::RST) == Flags::SYN;
        if self.listening && is_syn {
            self.request = Request::on_syn(&mut cx, &params, &header, packet.meta().ecn).ok();
        } else {
            reset::reply(&mut cx, &params.tuple, &header, len);
            self.drops.push(DropReason::TcpNoSocket);
        }
    }

    fn receive_in_time_wait(&mut self, now: Instant, header: &SegmentHeader, packet: Packet) {
        let len = u32::try_from(packet.len()).unwrap();
        let Self { time_wait, .. } = self;
        let mut cx = lend!(self, now);
        let small = time_wait.as_mut().expect("the caller has checked that the object exists");
        match small.on_segment(&mut cx, header, len) {
            TimeWaitVerdict::Keep => self.drops.push(DropReason::TcpTimeWait),
            TimeWaitVerdict::Closed => self.time_wait = None,
            TimeWaitVerdict::Reopen { iss } => {
                self.time_wait = None;
                self.tcb = None;
                self.iss = iss;
                let params = self.params();
                let mut cx = lend!(self, now);
                self.request = Request::on_syn(&mut cx, &params, header, packet.meta().ecn).ok();
            }
        }
    }

    fn receive_in_request(&mut self, now: Instant, header: &SegmentHeader, packet: Packet) {
        let Self { request, .. } = self;
        let mut cx = lend!(self, now);
        let pending = request.as_mut().expect("the caller has checked that the request exists");
        match pending.on_segment(&mut cx, header, packet, self.accept_room) {
            RequestVerdict::Drop(reason, _) => self.drops.push(reason),
            RequestVerdict::Closed(reason, _) => {
                self.drops.push(reason);
                self.request = None;
            }
            RequestVerdict::Establish(packet) => {
                self.tcb = Some(pending.to_tcb(&cx, &self.options));
                self.request = None;
                let verdict = self.enter(now, |tcb, cx| input(tcb, header, packet, cx));
                self.note(verdict);
            }
        }
    }

    /// Records the drop reason and frees the packet if the engine has rejected it.
    fn note(&mut self, verdict: crate::SegmentVerdict) {
        if let Verdict::Drop(reason, packet) = verdict {
            self.drops.push(reason);
            self.pool.free(packet);
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let tcb = self.tcb.as_ref().and_then(Tcb::next_deadline);
        let request = self.request.as_ref().map(Request::deadline);
        let time_wait = self.time_wait.as_ref().map(TimeWait::deadline);
        [tcb, request, time_wait].into_iter().flatten().min()
    }

    pub(super) fn run_timers(&mut self, now: Instant) {
        if self.tcb.as_ref().and_then(Tcb::next_deadline).is_some_and(|at| at <= now) {
            self.enter(now, on_timer);
        }
        if let Some(mut request) = self.request.take() {
            let mut cx = lend!(self, now);
            if request.on_timer(&mut cx) == RequestTimer::Keep {
                self.request = Some(request);
            }
        }
        if self.time_wait.as_ref().is_some_and(|small| small.deadline() <= now) {
            self.counters.inc(Counter::TcpExtTW);
            self.time_wait = None;
        }
    }

    /// Performs the stack's work after a batch of segments or an application call.
    pub(super) fn finish_batch(&mut self, now: Instant) {
        if self.tcb.is_none() {
            return;
        }
        self.enter(now, |tcb, cx| {
            // The stack makes these calls in the same order.
            if !output_nothing(tcb, cx.now) {
                output(tcb, cx);
            }
            tcb.check();
        });
        let tcb = self.tcb.as_ref().expect("the connection was checked above");
        if tcb.state() == State::TimeWait {
            self.time_wait = Some(TimeWait::from_tcb(tcb, now));
            self.enter(now, |tcb, cx| tcb.release_time_wait(cx));
        }
    }
}
