//! One end of the pair: the parts of the stack that surround one connection, and an application
//! that reads and writes.
//!
//! An engine holds a listener or none, a connection request, a control block and a TIME-WAIT
//! socket; segments go to the one that exists.

use std::{collections::VecDeque, fmt, mem};

use pkt::{Domain, Gso, Instant, Packet, PacketList, Pool, Verdict};
use tcp::{
    ChallengeBudget, Counters, Cx, Edges, Flags, FourTuple, HostQueue, MemoryState, OpenParams,
    PathMetrics, PathParams, RecvError, Request, RequestTimer, RequestVerdict, Rng, SegmentHeader,
    SendError, SeqNum, SocketOptions, State, Tcb, TcpConfig, TimeWait, TimeWaitVerdict, input,
    on_timer, output, segment::reset,
};

use super::pattern;

/// Memory held besides the buffers: descriptors, unused room of a superframe, packets being
/// processed.
const OVERHEAD_BYTES: usize = 1 << 20;

/// A segment in flight.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) header: SegmentHeader,
    pub(super) payload: Vec<u8>,
    pub(super) gso: Gso,
}

/// One end of the pair: an engine with its surroundings and its application.
pub(super) struct Engine {
    index: usize,
    pub(super) tcb: Option<Tcb>,
    request: Option<Request>,
    time_wait: Option<TimeWait>,
    pub(super) listening: bool,
    config: TcpConfig,
    options: SocketOptions,
    path: PathParams,
    counters: Counters,
    iss: SeqNum,
    tuple: FourTuple,
    pool: Pool,
    out: PacketList,
    emptied: PacketList,
    rng: Rng,
    /// Buffer of writes and reads.
    buffer: Vec<u8>,
    challenges: ChallengeBudget,
    /// Memory pressure that the stack reports.
    pub(super) memory: MemoryState,
    pub(super) sent: VecDeque<Segment>,
    /// Bytes that the application has written, and read.
    pub(super) written: u64,
    pub(super) read: u64,
    /// Whether the data read is compared with the peer's stream.
    pub(super) compares: bool,
    shut: bool,
    ended: bool,
    /// The application has closed, or the connection has failed.
    pub(super) gone: bool,
    /// Largest sum of both buffer limits so far.
    largest_buffers: usize,
}

impl Engine {
    pub(super) fn new(
        index: usize,
        domain: &Domain,
        config: &TcpConfig,
        (setting, sizes): (u8, u8),
    ) -> Self {
        let ends = ["10.0.0.1:1000", "10.0.0.2:2000"].map(|end| end.parse().expect("an address"));
        let seed = u64::from(setting) << 8 | u64::from(sizes);
        let mut config = TcpConfig {
            tcp_sack: setting & 1 == 0,
            tcp_timestamps: setting & 2 == 0,
            tcp_window_scaling: setting & 4 == 0,
            tcp_dsack: setting & 8 == 0,
            ..config.clone()
        };
        if sizes & 1 != 0 {
            config.tcp_rmem.default = 4096;
            config.tcp_rmem.max = 16_384;
        }
        if sizes & 2 != 0 {
            config.tcp_wmem.default = 4608;
            config.tcp_wmem.max = 20_000;
        }
        let mtu = [1500, 576, 9000, 296][usize::from(sizes >> 2 & 3)];
        let gso_bytes_max = if setting & 16 == 0 { 0 } else { 65_535 };
        Self {
            index,
            tcb: None,
            request: None,
            time_wait: None,
            listening: false,
            config,
            options: SocketOptions::default(),
            path: PathParams {
                mtu,
                receive_mtu: mtu,
                gso_bytes_max,
                flow_hash: 7,
                sums_payload: false,
                metrics: PathMetrics::default(),
            },
            counters: Counters::new(),
            // Close to the wrap of sequence numbers in half of the runs.
            iss: SeqNum(if setting & 32 == 0 { 0xffff_f000 } else { 0x1000_0000 }),
            tuple: FourTuple { local: ends[index], remote: ends[1 - index] },
            pool: domain.pool(),
            out: PacketList::new(),
            emptied: PacketList::new(),
            rng: Rng::new(seed),
            buffer: Vec::new(),
            challenges: ChallengeBudget::new(),
            memory: MemoryState::PLENTY,
            sent: VecDeque::new(),
            written: 0,
            read: 0,
            compares: true,
            shut: false,
            ended: false,
            gone: false,
            largest_buffers: 0,
        }
    }

    /// Runs `f` with the context that every function of the engine needs.
    fn with_cx<R>(&mut self, now: Instant, f: impl FnOnce(&mut Own<'_>, &mut Cx<'_>) -> R) -> R {
        let memory = self.memory;
        let params = OpenParams {
            tuple: self.tuple,
            iss: self.iss,
            ts_offset: self.iss.0.rotate_left(9),
            path: self.path,
            options: self.options.clone(),
            ts_recent: None,
            fast_open: tcp::FastOpen::Off,
        };
        let Self {
            tcb,
            request,
            time_wait,
            pool,
            counters,
            out,
            emptied,
            config,
            rng,
            challenges,
            ..
        } = self;
        let mut cx = Cx {
            now,
            pool,
            counters,
            out,
            read: emptied,
            config,
            rng,
            challenges,
            memory,
            rps_needed: false,
            host_queue: HostQueue::NONE,
        };
        f(&mut Own { tcb, request, time_wait, params }, &mut cx)
    }

    pub(super) fn connect(&mut self, now: Instant) {
        self.with_cx(now, |own, cx| *own.tcb = Some(Tcb::connect(cx, &own.params)));
        self.settle(now);
    }

    /// Makes a call of the application or the network, then does the work that the stack does after
    /// it.
    pub(super) fn call<R>(
        &mut self,
        now: Instant,
        f: impl FnOnce(&mut Tcb, &mut Cx<'_>) -> R,
    ) -> Option<R> {
        let result = self.with_cx(now, |own, cx| own.tcb.as_mut().map(|tcb| f(tcb, cx)));
        self.settle(now);
        result
    }

    pub(super) fn receive(&mut self, now: Instant, segment: &Segment) {
        let Some(packet) = packet(&mut self.pool, segment) else { return };
        let listening = self.listening;
        let reopened =
            self.with_cx(now, |own, cx| take(own, cx, listening, &segment.header, packet));
        if let Some(iss) = reopened {
            self.iss = iss;
        }
        self.settle(now);
    }

    pub(super) fn run_timers(&mut self, now: Instant) {
        self.with_cx(now, |own, cx| {
            if let Some(tcb) = own.tcb.as_mut() {
                on_timer(tcb, cx);
            }
            if own
                .request
                .as_mut()
                .is_some_and(|pending| pending.on_timer(cx) != RequestTimer::Keep)
            {
                *own.request = None;
            }
            if own.time_wait.as_ref().is_some_and(|small| small.deadline() <= now) {
                *own.time_wait = None;
            }
        });
        self.settle(now);
    }

    /// Does the work that the stack does after a batch.
    fn settle(&mut self, now: Instant) {
        self.with_cx(now, |own, cx| {
            let Some(tcb) = own.tcb.as_mut() else { return };
            output(tcb, cx);
            if tcb.state() == State::TimeWait {
                *own.time_wait = Some(TimeWait::from_tcb(tcb));
                tcb.release_time_wait(cx);
            }
        });
        while let Some(packet) = self.out.pop_front() {
            let header = SegmentHeader::parse(packet.linear()).expect("a valid header");
            let behind = usize::from(header.header_len);
            let mut payload = Vec::with_capacity(packet.len() - behind);
            packet.range(behind, usize::MAX).for_each(|slice| payload.extend_from_slice(slice));
            let gso = packet.meta().gso;
            self.pool.free(packet);
            self.sent.push_back(Segment { header, payload, gso });
        }
        if let Some(tcb) = &self.tcb {
            let buffers = tcb.rcvbuf() as usize + tcb.sndbuf() as usize;
            self.largest_buffers = self.largest_buffers.max(buffers);
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        let tcb = self.tcb.as_ref().and_then(Tcb::next_deadline);
        let request = self.request.as_ref().map(Request::deadline);
        let time_wait = self.time_wait.as_ref().map(TimeWait::deadline);
        [tcb, request, time_wait].into_iter().flatten().min()
    }

    pub(super) fn check(&self, now: Instant) -> Option<Edges> {
        self.tcb.as_ref().and_then(|tcb| tcb.check_after_output(now))
    }

    pub(super) fn state(&self) -> Option<State> {
        self.tcb.as_ref().map(Tcb::state)
    }

    /// Packet memory that this end may hold: a queue may exceed its limit by data that was
    /// announced before.
    pub(super) fn memory_allowed(&self) -> usize {
        2 * self.largest_buffers + OVERHEAD_BYTES
    }

    /// Writes up to `len` bytes.
    pub(super) fn write(&mut self, now: Instant, len: usize, more: bool) {
        if self.shut || self.gone {
            return;
        }
        let from = self.written;
        let mut bytes = self.buffer(len);
        pattern(self.index).fill(from, &mut bytes[..len]);
        let result = self.call(now, |tcb, cx| tcb.send(cx, &[&bytes[..len]], more));
        self.buffer = bytes;
        match result {
            Some(Ok(sent)) => self.written += sent as u64,
            Some(Err(SendError::WouldBlock | SendError::NoMemory)) | None => {}
            Some(Err(SendError::BrokenPipe | SendError::Connection(_))) => self.gone = true,
        }
    }

    /// Reads up to `len` bytes; returns false if there are none.
    pub(super) fn read(&mut self, now: Instant, len: usize, peek: bool) -> bool {
        let len = len.max(1);
        let mut buf = self.buffer(len);
        let result = self.call(now, |tcb, cx| tcb.recv(cx, &mut buf[..len], peek));
        let found = self.take_read(result, &buf, peek);
        self.buffer = buf;
        found
    }

    /// Returns a buffer of at least `len` bytes; its old contents stay.
    fn buffer(&mut self, len: usize) -> Vec<u8> {
        let mut buffer = mem::take(&mut self.buffer);
        buffer.resize(buffer.len().max(len), 0);
        buffer
    }

    /// Compares the data read with the peer's stream; returns false if there was none.
    fn take_read(
        &mut self,
        result: Option<Result<usize, RecvError>>,
        buf: &[u8],
        peek: bool,
    ) -> bool {
        match result {
            Some(Ok(0)) => self.ended = true,
            Some(Ok(count)) => {
                let peer = pattern(1 - self.index);
                if self.compares {
                    let other = peer.first_other(self.read, &buf[..count]);
                    assert_eq!(other, None, "a byte of the stream differs");
                }
                if !peek {
                    self.read += count as u64;
                }
                return true;
            }
            Some(Err(RecvError::WouldBlock | RecvError::NoUrgentData)) | None => {}
            Some(Err(RecvError::NotConnected | RecvError::Connection(_))) => self.gone = true,
        }
        false
    }

    pub(super) fn shut_down(&mut self, now: Instant) {
        if matches!(self.state(), Some(State::Established | State::CloseWait)) {
            self.shut = true;
            self.call(now, Tcb::shutdown_write);
        }
    }

    pub(super) fn close(&mut self, now: Instant) {
        self.gone = true;
        self.call(now, Tcb::close);
    }

    pub(super) fn abort(&mut self, now: Instant) {
        self.gone = true;
        self.call(now, Tcb::abort);
    }

    /// Clears the cork and the memory pressure, so that nothing holds the remaining data back.
    pub(super) fn stop_holding(&mut self) {
        self.memory = MemoryState::PLENTY;
        if let Some(tcb) = &mut self.tcb {
            tcb.set_cork(false);
        }
    }

    /// Reads everything and ends the stream. Returns true if either made progress.
    pub(super) fn finish_streams(&mut self, now: Instant) -> bool {
        let mut moved = false;
        if !self.gone && !self.shut {
            self.shut_down(now);
            moved |= self.shut;
        }
        while !self.gone && !self.ended && self.read(now, 10_000, false) {
            moved = true;
        }
        moved
    }

    /// Whether nothing of this connection is in flight: only TIME-WAIT is left, or the peer must
    /// act.
    pub(super) fn is_idle(&self) -> bool {
        self.request.is_none() && self.tcb.as_ref().is_none_or(|tcb| tcb.unacked_bytes() == 0)
    }

    /// Whether both streams have ended in order.
    pub(super) fn is_complete(&self) -> bool {
        self.shut && self.ended && !self.gone
    }
}

/// The objects that a segment may be delivered to.
struct Own<'a> {
    tcb: &'a mut Option<Tcb>,
    request: &'a mut Option<Request>,
    time_wait: &'a mut Option<TimeWait>,
    params: OpenParams,
}

/// Delivers one segment to the object that exists. Returns the initial sequence number if the
/// segment reopens a TIME-WAIT socket.
fn take(
    own: &mut Own<'_>,
    cx: &mut Cx<'_>,
    listening: bool,
    header: &SegmentHeader,
    packet: Packet,
) -> Option<SeqNum> {
    let len = u32::try_from(packet.len()).expect("a small packet");
    let ecn = packet.meta().ecn;
    if let Some(small) = own.time_wait.as_mut() {
        let verdict = small.on_segment(cx, header, len);
        cx.pool.free(packet);
        match verdict {
            TimeWaitVerdict::Keep => {}
            TimeWaitVerdict::Closed => *own.time_wait = None,
            TimeWaitVerdict::Reopen { iss } => {
                *own.time_wait = None;
                own.params.iss = iss;
                if listening && own.tcb.as_ref().is_none_or(|tcb| tcb.state() == State::Close) {
                    *own.request = Request::on_syn(cx, &own.params, header, ecn).ok();
                }
                return Some(iss);
            }
        }
        return None;
    }
    if let Some(tcb) = own.tcb.as_mut().filter(|tcb| tcb.state() != State::Close) {
        let verdict = input(tcb, header, packet, cx);
        free_dropped(cx, verdict);
        return None;
    }
    if let Some(pending) = own.request.as_mut() {
        match pending.on_segment(cx, header, packet, true) {
            RequestVerdict::Drop(_, packet) => {
                cx.pool.free(packet);
            }
            RequestVerdict::Closed(_, packet) => {
                cx.pool.free(packet);
                *own.request = None;
            }
            RequestVerdict::Establish(packet) => {
                let mut tcb = pending.to_tcb(cx, &own.params.options);
                *own.request = None;
                let verdict = input(&mut tcb, header, packet, cx);
                free_dropped(cx, verdict);
                *own.tcb = Some(tcb);
            }
        }
        return None;
    }
    let is_syn = header.flags & (Flags::SYN | Flags::ACK | Flags::RST) == Flags::SYN;
    if listening && is_syn && own.tcb.is_none() {
        *own.request = Request::on_syn(cx, &own.params, header, ecn).ok();
    } else {
        reset::reply(cx, &own.params.tuple, header, len);
    }
    cx.pool.free(packet);
    None
}

fn free_dropped(cx: &mut Cx<'_>, verdict: tcp::SegmentVerdict) {
    if let Verdict::Drop(_, packet) = verdict {
        cx.pool.free(packet);
    }
}

/// Puts the payload into packet memory, as a receiving device does.
fn packet(pool: &mut Pool, segment: &Segment) -> Option<Packet> {
    let bytes = &segment.payload;
    let mut slot = pool.rx_slot(bytes.len())?;
    slot.write(bytes);
    let mut packet = slot.finish(pool, bytes.len());
    packet.meta_mut().gso = segment.gso;
    Some(packet)
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("state", &self.state())
            .field("written", &self.written)
            .field("read", &self.read)
            .field("shut", &self.shut)
            .field("ended", &self.ended)
            .field("gone", &self.gone)
            .field("info", &self.tcb.as_ref().map(Tcb::info))
            .finish_non_exhaustive()
    }
}
