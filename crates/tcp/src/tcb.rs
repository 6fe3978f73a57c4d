//! The transmission control block: the state of one connection.
//!
//! Above: `stack::socket` owns it behind a socket lock. RFC 9293 §3.3.1; Linux: struct tcp_sock.
//!
//! Call order per batch: any of [`input`](crate::input::input),
//! [`on_timer`](crate::close::timer::on_timer) and the calls of `socket::api`, then
//! [`output`](crate::output::output) once, then read `state`, `readiness` and `next_deadline`.
//! Setters send nothing; `input` itself sends only segments that must be sent at once.
//!
//! The files of `tcb/` are the parts of the block: queues, estimates, limits, and the deadlines of
//! the timers (the actions of a timer are in `close::timer`). They read and write the block, and
//! send no segments.
//!
//! Fields are grouped by the code that accesses them (see "Layout" on [`Tcb`]). A sequence
//! variable that an RFC defines has its RFC name, except `rcv_wup`. `snd_nxt` never moves back: a
//! retransmission sets a mark in the send queue and leaves SND.NXT unchanged.
//!
//! Not here: steps of the state machine (`open`, `loss`, `output`, `close`, `input`), the
//! application's calls (`socket`).

pub(crate) mod ack_compression;
pub(crate) mod acked;
pub(crate) mod delayed_ack;
pub mod delivery_rate;
pub(crate) mod ecn;
pub mod fast_open;
pub(crate) mod keepalive;
pub mod memory;
pub(crate) mod mss;
pub(crate) mod mtu_probe;
pub(crate) mod pacing;
pub(crate) mod packet_cache;
pub(crate) mod rack;
pub mod reassembly;
pub(crate) mod receive_buffer;
pub(crate) mod receive_queue;
pub(crate) mod recovery;
pub mod rtt;
pub(crate) mod sack_report;
pub(crate) mod send_buffer;
pub(crate) mod send_queue;
pub(crate) mod timers;
pub(crate) mod totals;
pub(crate) mod urgent;

use alloc::boxed::Box;
use core::{mem::offset_of, ops::Range, time::Duration};

use bitflags::bitflags;
use pkt::Instant;

use crate::{
    base::{counters::Counter, error::TcpError, state::State},
    congestion::{Congestion, CongestionConfig, LossThresh},
    cx::{
        Cx,
        config::{PathMetrics, PathParams, SocketOptions, TcpConfig},
    },
    tcb::{
        ack_compression::AckCompression,
        delayed_ack::DelayedAck,
        delivery_rate::DeliveryRate,
        ecn::EcnState,
        fast_open::{FastOpen, FastOpenState},
        keepalive::IdleLimits,
        mss::PathMss,
        mtu_probe::MtuProbing,
        pacing::Pacing,
        packet_cache::PacketCache,
        reassembly::Reassembly,
        receive_buffer::ReceiveBuffer,
        receive_queue::ReceiveQueue,
        recovery::Recovery,
        rtt::{RttConfig, RttEstimator},
        sack_report::SackReport,
        send_queue::SendQueue,
        timers::Timers,
        totals::Totals,
        urgent::Urgent,
    },
    wire::{four_tuple::FourTuple, option, pseudo, seq::SeqNum},
};

bitflags! {
    /// Settings and events of a connection.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct TcbFlags: u32 {
        /// `TCP_NODELAY`.
        const NODELAY = 1;
        /// `TCP_CORK`.
        const CORK = 1 << 1;
        /// `SO_KEEPALIVE`.
        const KEEPALIVE = 1 << 2;
        /// Both sides sent the timestamps option in their SYN.
        const TIMESTAMPS = 1 << 3;
        /// The application closed its socket (Linux `SOCK_DEAD`), or the connection was aborted: no
        /// data will be read.
        const ORPHAN = 1 << 4;
        /// Reading has ended: the application shut it down or the stream ended (Linux
        /// `RCV_SHUTDOWN`).
        const SHUT_READ = 1 << 5;
        /// Writing has ended (Linux `SEND_SHUTDOWN`).
        const SHUT_WRITE = 1 << 6;
        /// `SO_SNDBUF` was set: the send buffer is not autotuned.
        const SNDBUF_LOCKED = 1 << 7;
        /// Header prediction is off: every segment takes all steps of `input` and `output`.
        const NO_FAST_PATH = 1 << 8;
        /// Both sides sent the window scale option in their SYN.
        const WINDOW_SCALING = 1 << 9;
        /// The congestion window alone ended the last transmission, not the application or the
        /// peer.
        const CWND_LIMITED = 1 << 10;
        /// The peer's FIN was processed.
        const FIN_RECEIVED = 1 << 11;
        /// The last write announced another one (`MSG_MORE`).
        const MORE = 1 << 12;
        /// Both sides sent the SACK-permitted option in their SYN.
        const SACK = 1 << 13;
        /// Held-back data may be sent, corked or not, until the next write (Linux
        /// `TCP_NAGLE_PUSH`).
        const PUSH_HELD = 1 << 14;
        /// The application is in the middle of a write: the last small segment waits for the rest
        /// of the write, even if ACKs arrive meanwhile (Linux: the ACK waits in the backlog of
        /// the socket that the writer owns).
        const MID_WRITE = 1 << 15;
        /// The application has written, without `MSG_MORE`, since `output` last sent or held back
        /// data.
        const WRITTEN = 1 << 16;
        /// TCP Small Queues throttled output (`segment::small_queue`).
        const THROTTLED = 1 << 17;
        /// `TCP_NOTSENT_LOWAT` was set and overrides the sysctl.
        const OWN_NOTSENT_LOWAT = 1 << 18;
        /// A write found the send buffer full, and no writer was woken since (Linux
        /// `SOCK_NOSPACE`).
        const NO_SPACE = 1 << 19;
        /// `IP_RECVERR`: ICMP errors of an open connection are reported at once.
        const RECEIVE_ERROR = 1 << 20;
        /// The last announced window ends before `retracted_edge`.
        const RETRACTED = 1 << 21;
        /// A window that ends before `retracted_edge` was announced, and RCV.NXT has not passed
        /// that edge since. The SEG.SEQ of the peer's ACKs may be as low as `retracted_to`.
        const HAS_RETRACTED = 1 << 22;
        /// TCP Small Queues ended the last transmission.
        const HOST_LIMITED = 1 << 23;
        /// Our SYN carries the timestamps option. The options of the SYN are fixed when the
        /// connection begins: a setting that changes during the handshake must not make the two
        /// ends interpret one SYN differently.
        const OFFERS_TIMESTAMPS = 1 << 24;
        /// Our SYN carries the window scale option.
        const OFFERS_SCALING = 1 << 25;
        /// Our SYN carries the SACK-permitted option.
        const OFFERS_SACK = 1 << 26;
        /// A write found no memory: the socket is not writable until memory is available
        /// (`memory`).
        const WRITE_SUPPRESSED = 1 << 29;
        /// Urgent mode: the peer has not acknowledged our urgent mark (`urgent`).
        const URGENT_OUT = 1 << 30;
        /// The peer has marked an urgent byte, and the application has not read past it (`urgent`).
        const URGENT_IN = 1 << 31;
    }
}

/// One connection.
///
/// # Layout
///
/// ```text
///   line 0    the four-tuple
///   line 1    read for every segment received or sent; written by the handshake and settings
///   line 1-2  written by received segments: SND.UNA, SND.WND, RCV.*, TS.Recent, the owed ACK
///   line 3-6  written by transmission: SND.NXT, timers, the send queue with its scoreboard
///   rest      recovery, buffers, totals, errors: accessed per round trip, per loss or never
/// ```
///
/// A line is a cache line of 64 bytes. Assertions below the type check the groups.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Tcb {
    // ---- read-mostly ----
    /// Addresses and ports of the connection.
    pub(crate) tuple: FourTuple,
    /// Segment sizes and the values from which they are computed.
    pub(crate) mss: PathMss,
    /// Offset that is added to our millisecond clock in TSval (RFC 7323 §7.1): different for every
    /// four-tuple.
    pub(crate) ts_offset: u32,
    /// Send buffer limit in `truesize` bytes.
    pub(crate) sndbuf: u32,
    /// Flow hash, copied to every packet's metadata.
    pub(crate) flow_hash: u32,
    pub(crate) flags: TcbFlags,
    /// Snd.Wind.Shift: shift of the peer's windows (RFC 7323 §2.3).
    pub(crate) snd_wscale: u8,
    /// Rcv.Wind.Shift: shift of our windows.
    pub(crate) rcv_wscale: u8,
    pub(crate) state: State,
    pub(crate) ecn: EcnState,

    // ---- written by received segments ----
    /// SND.UNA: oldest unacknowledged sequence number. `snd_una <= snd_nxt`, and both only move
    /// forward.
    pub(crate) snd_una: SeqNum,
    /// SND.WND: the peer's window, counted from `snd_una`, scaled to bytes.
    pub(crate) snd_wnd: u32,
    /// SND.WL1: sequence number of the segment that last updated `snd_wnd`.
    pub(crate) snd_wl1: SeqNum,
    /// RCV.NXT: next sequence number expected.
    pub(crate) rcv_nxt: SeqNum,
    /// `rcv_nxt` when the last window was announced (Linux `rcv_wup`; RFC 7323's Last.ACK.sent).
    pub(crate) rcv_wup: SeqNum,
    /// RCV.WND: window announced at `rcv_wup`. Its end, `rcv_wup + rcv_wnd`, never moves back
    /// unless `tcp_shrink_window` allows it.
    pub(crate) rcv_wnd: u32,
    /// TS.Recent (RFC 7323 §4.3).
    pub(crate) ts_recent: u32,
    /// Time of arrival of `ts_recent`, which expires after 24 days.
    pub(crate) ts_recent_at: Instant,
    /// Time of arrival of the last acceptable segment, from which keepalive counts its idle time.
    pub(crate) last_received_at: Instant,
    /// State of the ACK that is owed.
    pub(crate) ack: DelayedAck,

    // ---- written by transmission ----
    /// SND.NXT: next sequence number to send for the first time.
    pub(crate) snd_nxt: SeqNum,
    /// End of the last sent segment that was not full (Minshall's SND.SML).
    pub(crate) snd_sml: SeqNum,
    /// Sequence number up to which PSH was set.
    pub(crate) pushed_seq: SeqNum,
    /// Common part of the pseudo-header sums of all segments ([`pseudo::pseudo_sum`]), which is
    /// constant.
    pub(crate) pseudo_sum: u16,
    /// Time when data was last sent.
    pub(crate) last_sent_at: Instant,
    pub(crate) timers: Timers,
    pub(crate) send_queue: SendQueue,

    // ---- per round trip or per loss ----
    pub(crate) receive_queue: ReceiveQueue,
    pub(crate) reassembly: Reassembly,
    /// Blocks that the next ACK reports: data that arrived out of order or twice.
    pub(crate) sack_report: SackReport,
    /// State of ACK compression.
    pub(crate) ack_compression: AckCompression,
    /// Receive buffer and its autotuning.
    pub(crate) receive_buffer: ReceiveBuffer,
    pub(crate) congestion: Congestion,
    pub(crate) recovery: Recovery,
    /// Number of segments behind a hole that indicate a loss. The number grows when reordering is
    /// observed (Linux `tcp_sock.reordering`).
    pub(crate) reordering: u16,
    pub(crate) rtt: RttEstimator,
    pub(crate) rate: DeliveryRate,
    pub(crate) pacing: Pacing,

    // ---- cold ----
    /// ISS: our initial sequence number.
    pub(crate) iss: SeqNum,
    /// IRS: the peer's initial sequence number.
    pub(crate) irs: SeqNum,
    pub(crate) totals: Totals,
    /// Highest right edge that had been announced when the window was last retracted (Linux
    /// `rcv_mwnd_seq`). Valid while RETRACTED or HAS_RETRACTED is set.
    pub(crate) retracted_edge: SeqNum,
    /// While HAS_RETRACTED: lowest right edge announced since then that lies before
    /// `retracted_edge`.
    pub(crate) retracted_to: SeqNum,
    /// Keepalive and the idle timeout.
    pub(crate) idle: IdleLimits,
    pub(crate) user_timeout: Option<Duration>,
    /// `SO_LINGER` in milliseconds; `LINGER_OFF` is off.
    pub(crate) linger_ms: u32,
    /// `TCP_LINGER2` in milliseconds; `LINGER2_DEFAULT` means `tcp_fin_timeout`.
    pub(crate) linger2_ms: u32,
    /// State of Fast Open; `Some` if this connection tries or uses it.
    pub(crate) fast_open: Option<Box<FastOpenState>>,
    /// Time of the last ACK that answered an unacceptable segment, for the rate limit of such ACKs.
    pub(crate) last_challenge_at: Option<Instant>,
    /// Time of the first probe since the peer last answered.
    pub(crate) probe_since: Instant,
    /// Probes without an answer: zero-window or keepalive probes.
    pub(crate) probes_out: u8,
    /// Probes since the window last admitted data: the exponent of the persist timer.
    pub(crate) persist_backoff: u8,
    /// Error that ended the connection, or that ICMP reported with `IP_RECVERR`, until the
    /// application reads it (Linux `sk_err`).
    pub(crate) error: Option<TcpError>,
    /// Last error reported by ICMP, which becomes the error of the connection when a timer gives up
    /// (Linux `sk_err_soft`).
    pub(crate) soft_error: Option<TcpError>,
    /// Search for the path MTU, if there is one.
    pub(crate) mtu_probing: Option<Box<MtuProbing>>,
    /// `TCP_SYNCNT`: number of SYN retransmissions, instead of the stack's setting.
    pub(crate) syn_retries: Option<u8>,
    /// `TCP_THIN_LINEAR_TIMEOUTS`: whether a thin stream's first timeouts do not double.
    pub(crate) thin_linear_timeouts: bool,
    /// Whether timeouts make the route doubtful, and the stack has not looked for another route
    /// since.
    pub(crate) doubts_route: bool,
    /// `TCP_NOTSENT_LOWAT`: while at least this many bytes are unsent, a write starts no new
    /// packet. The socket is writable while fewer than half as many are unsent.
    pub(crate) not_sent_lowat: u32,
    /// Urgent data in both directions; the flags say whether there is any.
    pub(crate) urgent: Urgent,
    /// Used packets that the connection keeps for reuse.
    pub(crate) packet_cache: PacketCache,
    /// Congestion window and segment size for which `sndbuf` was last adjusted.
    pub(crate) sndbuf_follows: (u32, u32),
}

/// Upper bound of the fixed memory of an idle connection.
const TCB_BYTES_MAX: usize = 1472;
const _: () = assert!(size_of::<Tcb>() <= TCB_BYTES_MAX);

// The groups of "Layout": data of received and of sent segments shares no cache line.
const LINE: usize = 64;
const _: () = assert!(offset_of!(Tcb, state) < 2 * LINE && offset_of!(Tcb, snd_una) < 2 * LINE);
const _: () = assert!(offset_of!(Tcb, ack) + size_of::<DelayedAck>() == 3 * LINE);
const _: () = assert!(offset_of!(Tcb, snd_nxt) == 3 * LINE);
const _: () = assert!(offset_of!(Tcb, timers) + size_of::<Timers>() <= 4 * LINE + LINE / 2);
const _: () = assert!(offset_of!(Tcb, send_queue) + size_of::<SendQueue>() <= 7 * LINE);

/// Value of `linger_ms` when `SO_LINGER` is off.
pub(crate) const LINGER_OFF: u32 = u32::MAX;

/// Value of `linger2_ms` when `TCP_LINGER2` was not set.
pub(crate) const LINGER2_DEFAULT: u32 = u32::MAX;

/// Largest `TCP_LINGER2` (Linux `TCP_FIN_TIMEOUT_MAX`).
const LINGER2_MAX: Duration = Duration::from_secs(120);

/// Parameters of an active or passive open.
#[derive(Clone, Debug)]
pub struct OpenParams {
    /// Addresses and ports, the local port included.
    pub tuple: FourTuple,
    /// Initial send sequence number (RFC 6528).
    pub iss: SeqNum,
    /// Timestamp offset (RFC 7323 §7.1).
    pub ts_offset: u32,
    /// Properties of the route.
    pub path: PathParams,
    /// Options of the socket.
    pub options: SocketOptions,
    /// TS.Recent of the connection whose TIME-WAIT this one takes over (RFC 6191 §2): timestamps of
    /// the peer's answers must not be older.
    pub ts_recent: Option<u32>,
    /// Fast Open (RFC 7413).
    pub fast_open: FastOpen,
}

impl Tcb {
    /// Returns a connection in CLOSED, without any state of the peer.
    pub(crate) fn new(cx: &Cx<'_>, params: &OpenParams) -> Self {
        let OpenParams { tuple, iss, ts_offset, path, options, ts_recent, .. } = params;
        let (config, mss) = (cx.config, PathMss::new(cx.config, *tuple, path, options));
        let receive_buffer = ReceiveBuffer::new(config, options, &path.metrics, mss.advertised());
        Self {
            tuple: *tuple,
            ts_offset: *ts_offset,
            sndbuf: options.sndbuf.unwrap_or(config.tcp_wmem.default),
            flow_hash: path.flow_hash,
            flags: flags_of(options),
            snd_wscale: 0,
            rcv_wscale: receive_buffer.offered_scale(config),
            state: State::Close,
            ecn: EcnState::empty(),
            snd_una: *iss,
            snd_wnd: 0,
            snd_wl1: SeqNum(0),
            rcv_nxt: SeqNum(0),
            rcv_wup: SeqNum(0),
            rcv_wnd: receive_buffer.initial_window(),
            ts_recent: ts_recent.unwrap_or(0),
            ts_recent_at: cx.now,
            last_received_at: cx.now,
            ack: DelayedAck::new(config),
            snd_nxt: *iss + 1,
            snd_sml: *iss,
            pushed_seq: *iss,
            pseudo_sum: pseudo::pseudo_sum(tuple),
            last_sent_at: cx.now,
            send_queue: SendQueue::new(*iss + 1, LossThresh(config.bbr_loss_thresh)),
            timers: Timers::new(),
            receive_queue: ReceiveQueue::default(),
            reassembly: Reassembly::new(),
            sack_report: SackReport::default(),
            ack_compression: AckCompression::new(),
            receive_buffer,
            congestion: Congestion::new(&congestion_config(config, params), mss.effective()),
            recovery: Recovery::new(*iss),
            reordering: config.tcp_reordering.into(),
            rtt: RttEstimator::new(&rtt_config(config, options, &path.metrics)),
            rate: DeliveryRate::default(),
            pacing: Pacing::new(),
            iss: *iss,
            irs: SeqNum(0),
            totals: Totals::default(),
            retracted_edge: SeqNum(0),
            retracted_to: SeqNum(0),
            idle: IdleLimits::new(options, cx.now),
            user_timeout: options.user_timeout,
            linger_ms: linger_ms(options.linger),
            linger2_ms: LINGER2_DEFAULT,
            fast_open: None,
            last_challenge_at: None,
            probe_since: cx.now,
            probes_out: 0,
            persist_backoff: 0,
            error: None,
            soft_error: None,
            mtu_probing: None,
            syn_retries: options.syn_retries,
            thin_linear_timeouts: options.thin_linear_timeouts,
            doubts_route: false,
            not_sent_lowat: options.notsent_lowat.unwrap_or(config.tcp_notsent_lowat),
            urgent: Urgent::new(options.oob_inline),
            packet_cache: PacketCache::default(),
            sndbuf_follows: (0, 0),
            mss,
        }
        .with_options(options, &path.metrics)
    }

    /// Applies the socket options and metrics that are not plain fields.
    fn with_options(mut self, options: &SocketOptions, metrics: &PathMetrics) -> Self {
        self.ack.set_never_delays(metrics.quickack);
        self.set_linger2(options.linger2);
        if options.pingpong {
            self.ack.set_quick(false);
        }
        self.pacing.set_max_rate(options.max_pacing_rate);
        self
    }

    /// Moves to a state that RFC 9293 figure 5 allows, and updates the counters that depend on the
    /// state.
    pub(crate) fn set_state(&mut self, cx: &Cx<'_>, next: State) {
        let before = self.state;
        debug_assert!(before.may_become(next), "no transition from {before} to {next}");
        match (before.counts_as_established(), next.counts_as_established()) {
            (false, true) => cx.count(Counter::TcpCurrEstab),
            (true, false) => cx.counters.sub(Counter::TcpCurrEstab, 1),
            _ => {}
        }
        if next == State::Close && matches!(before, State::SynSent | State::SynRecv) {
            cx.count(Counter::TcpAttemptFails);
        }
        // RFC 4022 counts every direct transition from ESTABLISHED and CLOSE-WAIT to CLOSED,
        // whichever side caused it. An orderly close passes through other states.
        if next == State::Close && before.counts_as_established() {
            cx.count(Counter::TcpEstabResets);
        }
        self.state = next;
    }

    /// Ends the connection: nothing is sent or received after this. Received data stays readable
    /// unless the socket is an orphan.
    pub(crate) fn finish(&mut self, cx: &mut Cx<'_>, error: Option<TcpError>) {
        if self.state != State::Close {
            fast_open::on_finish(self);
            self.set_state(cx, State::Close);
        }
        self.timers.stop_all();
        self.ack.cancel();
        self.flags |= TcbFlags::SHUT_READ | TcbFlags::SHUT_WRITE;
        self.flags -= TcbFlags::URGENT_OUT;
        self.send_queue.purge(cx.pool);
        self.packet_cache.clear(cx.pool, cx.counters);
        self.reassembly.clear().free_all(cx.pool);
        self.recovery.forget(self.snd_una);
        if self.flags.contains(TcbFlags::ORPHAN) {
            self.receive_queue.purge(cx.pool);
        }
        self.error = self.error.or(error);
    }

    /// Returns the bytes assumed to be in flight (RFC 6675's pipe): sent, neither acknowledged nor
    /// reported by SACK nor lost, plus retransmissions.
    pub(crate) fn pipe(&self) -> u32 {
        let queue = &self.send_queue;
        // A Fast Open server may send before its SYN-ACK is acknowledged. SND.NXT - SND.UNA then
        // includes the SYN-ACK, which is not data.
        let syn = u32::from(self.is_open_early());
        (self.snd_nxt.since(self.snd_una) + queue.retrans_bytes())
            .saturating_sub(queue.lost_bytes() + queue.sacked_bytes() + syn)
    }

    /// Returns the connection's state.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns the connection's addresses and ports.
    #[must_use]
    pub fn tuple(&self) -> &FourTuple {
        &self.tuple
    }

    /// Returns the names and address ranges of the queues' memory, for tools that attribute memory
    /// accesses to data structures.
    #[must_use]
    pub fn queue_memory(&self) -> [(&'static str, Range<usize>); 2] {
        [("SendQueue", self.send_queue.memory()), ("ReceiveQueue", self.receive_queue.memory())]
    }

    /// Returns SND.UNA, which advances when the peer has acknowledged new data.
    #[inline]
    #[must_use]
    pub fn snd_una(&self) -> SeqNum {
        self.snd_una
    }

    /// Returns RCV.NXT, which advances when data or a FIN has arrived in order.
    #[inline]
    #[must_use]
    pub fn rcv_nxt(&self) -> SeqNum {
        self.rcv_nxt
    }

    /// Returns our millisecond timestamp clock at `now`, as sent in TSval.
    pub(crate) fn ts_now(&self, now: Instant) -> u32 {
        option::ts_clock(now, self.ts_offset)
    }

    /// Returns whether an unacceptable segment may be answered now (RFC 5961 §7; Linux
    /// `tcp_oow_rate_limited`).
    pub(crate) fn may_answer_invalid(&mut self, cx: &Cx<'_>) -> bool {
        let limit = cx.config.tcp_invalid_ratelimit;
        if self.last_challenge_at.is_some_and(|at| cx.now - at < limit) {
            return false;
        }
        self.last_challenge_at = Some(cx.now);
        true
    }

    /// Returns whether header prediction is off.
    pub(crate) fn no_fast_path(&self) -> bool {
        self.flags.contains(TcbFlags::NO_FAST_PATH)
    }

    /// Sets `TCP_LINGER2`: the time that an orphan stays in FIN-WAIT-2, at most two minutes, but at
    /// least 3.5 RTO. Zero resets the connection in that state, `None` means `tcp_fin_timeout`.
    pub fn set_linger2(&mut self, timeout: Option<Duration>) {
        self.linger2_ms =
            timeout.map_or(LINGER2_DEFAULT, |timeout| linger_ms(Some(timeout.min(LINGER2_MAX))));
    }

    /// Counts a probe that is sent now and that the peer has not answered yet.
    pub(crate) fn count_probe(&mut self, now: Instant) {
        if self.probes_out == 0 {
            self.probe_since = now;
        }
        self.probes_out = self.probes_out.saturating_add(1);
    }

    /// Returns `TCP_LINGER2`.
    #[must_use]
    pub fn linger2(&self) -> Option<Duration> {
        (self.linger2_ms != LINGER2_DEFAULT)
            .then(|| Duration::from_millis(u64::from(self.linger2_ms)))
    }
}

fn congestion_config(config: &TcpConfig, params: &OpenParams) -> CongestionConfig {
    let (options, metrics) = (&params.options, &params.path.metrics);
    let algorithm = options.congestion(config, metrics);
    let mut congestion = CongestionConfig { algorithm, ..CongestionConfig::default() };
    if metrics.initcwnd != 0 {
        congestion.initial_window_segments = metrics.initcwnd.into();
    }
    congestion
}

fn rtt_config(config: &TcpConfig, options: &SocketOptions, metrics: &PathMetrics) -> RttConfig {
    RttConfig {
        rto_min: config.tcp_rto_min,
        rto_max: options.rto_max.unwrap_or(config.tcp_rto_max),
        min_rtt_window: config.tcp_min_rtt_wlen,
        expected: Duration::from_millis(metrics.rtt_ms.into()),
        ..RttConfig::default()
    }
}

/// Returns the flags of the socket's options.
fn flags_of(options: &SocketOptions) -> TcbFlags {
    let mut flags = TcbFlags::empty();
    flags.set(TcbFlags::NODELAY, options.nodelay);
    flags.set(TcbFlags::CORK, options.cork);
    flags.set(TcbFlags::RECEIVE_ERROR, options.receive_error);
    flags.set(TcbFlags::KEEPALIVE, options.keepalive);
    flags.set(TcbFlags::SNDBUF_LOCKED, options.sndbuf.is_some());
    flags.set(TcbFlags::OWN_NOTSENT_LOWAT, options.notsent_lowat.is_some());
    flags
}

/// Converts a linger time to the field's format: fractions of a millisecond are rounded up, times
/// above 49 days are reduced to 49 days.
pub(crate) fn linger_ms(linger: Option<Duration>) -> u32 {
    linger.map_or(LINGER_OFF, |time| {
        let ms = time.as_nanos().div_ceil(1_000_000);
        u32::try_from(ms).unwrap_or(LINGER_OFF - 1).min(LINGER_OFF - 1)
    })
}
