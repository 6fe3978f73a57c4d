//! The receive buffer: the memory that received packets may hold, the corresponding window, and the
//! growth of both.
//!
//! Above: `segment::window` announces the free part; `input::data` and `socket::api` report
//! arrivals and reads. RFC 7323 §1.1 (a window of one bandwidth-delay product) and §2 (its scale),
//! RFC 9293 §3.8.6; Linux: tcp_rcv_space_adjust (dynamic right-sizing), tcp_grow_window,
//! tcp_clamp_window, tcp_set_window_clamp, tcp_set_rcvlowat.
//!
//! The receive buffer has three limits, the lowest first:
//!
//! ```text
//!   ssthresh       grows with arriving data, less if its packets have much overhead
//!   window_clamp   TCP_WINDOW_CLAMP, or the window for `rcvbuf` bytes of memory if smaller
//!   rcvbuf         grows with the application's reads per round trip, up to tcp_rmem[2]
//! ```
//!
//! The buffer counts `truesize`, the window counts bytes; `scaling_ratio` converts between them and
//! is measured on the arriving packets.
//!
//! Not here: the window of a segment (`segment::window`), pruning (`input::prune`).

use core::time::Duration;

use pkt::Instant;

use crate::{
    cx::config::{PathMetrics, SocketOptions, TcpConfig},
    wire::{option::WINDOW_SCALE_MAX, seq::SeqNum},
};

/// Initial ratio: half of the buffer is window until arriving packets show the real ratio (Linux
/// `tcp_adv_win_scale` = 1).
const SCALING_RATIO_INITIAL: u8 = 128;

/// Largest window of a SYN, which is never scaled.
pub(crate) const UNSCALED_MAX: u32 = 65_535;

/// Segments of a sender's initial window: the expected data of the first round trip.
const INITIAL_ROUND_SEGMENTS: u32 = 10;

/// Smallest receive buffer that a socket may request (Linux `SOCK_MIN_RCVBUF`); half of it is the
/// smallest window clamp.
const RCVBUF_MIN: u32 = 2304;

/// Smallest packet that affects the limit of the announced window. Smaller packets are copied
/// together.
pub(crate) const GROW_BYTES_MIN: u32 = 128;

/// Memory of a packet descriptor. The growth of the window disregards this memory, up to a quarter
/// of the packet's memory (Linux truesize_adjust).
const DESCRIPTOR_BYTES: u32 = 704;

/// Receive buffer of a connection.
#[derive(Clone, Debug)]
pub(crate) struct ReceiveBuffer {
    /// Limit of the receive and out-of-order queues, in `truesize` bytes (`SO_RCVBUF`).
    rcvbuf: u32,
    /// Upper bound of the announced window.
    window_clamp: u32,
    /// Current limit of the announced window (Linux `rcv_ssthresh`).
    ssthresh: u32,
    /// `TCP_WINDOW_CLAMP`; `u32::MAX` without one.
    user_clamp: u32,
    /// `SO_RCVLOWAT`: number of bytes that make the socket readable. At least 1.
    lowat: u32,
    /// Bytes of window per 256 bytes of buffer.
    scaling_ratio: u8,
    /// Whether `SO_RCVBUF` was set, which disables autotuning.
    locked: bool,
    /// Whether memory was scarce when data last arrived, or when a window was announced since.
    scarce: bool,
    advmss: u16,
    /// `initrwnd` of the route, in segments; 0 without one.
    initrwnd: u16,
    /// Round-trip time measured by the receiver, in microseconds × 8; 0 when unknown.
    rtt_us_x8: u32,
    /// Last echoed timestamp that gave a sample: each timestamp gives one sample only.
    rtt_echo: u32,
    /// Without timestamps: value of RCV.NXT that ends the current measurement of the round-trip
    /// time.
    rtt_end: SeqNum,
    /// Without timestamps: start of this measurement.
    rtt_start: Instant,
    /// Largest number of bytes that the application has read in a round, which lasts one round-trip
    /// time.
    space: u32,
    /// Bytes that the application read in this round.
    copied: u32,
    /// Start of this round.
    round_start: Instant,
}

impl ReceiveBuffer {
    pub(crate) fn new(
        config: &TcpConfig,
        options: &SocketOptions,
        metrics: &PathMetrics,
        advmss: u16,
    ) -> Self {
        let clamp =
            options.window_clamp.or_else(|| (metrics.window != 0).then_some(metrics.window));
        let rcvbuf = options.rcvbuf.unwrap_or(config.tcp_rmem.default);
        let mut buffer = Self {
            rcvbuf,
            window_clamp: 0,
            ssthresh: 0,
            user_clamp: clamp.map_or(u32::MAX, |clamp| clamp.max(RCVBUF_MIN / 2)),
            lowat: 1,
            scaling_ratio: SCALING_RATIO_INITIAL,
            locked: options.rcvbuf.is_some(),
            scarce: false,
            advmss,
            initrwnd: metrics.initrwnd,
            rtt_us_x8: 0,
            rtt_echo: 0,
            rtt_end: SeqNum(0),
            rtt_start: Instant::ZERO,
            space: 0,
            copied: 0,
            round_start: Instant::ZERO,
        };
        buffer.follow_rcvbuf();
        if let Some(bytes) = options.rcvlowat {
            buffer.set_lowat(bytes, config);
        }
        buffer.ssthresh = buffer.initial_window();
        buffer
    }

    /// Returns the shift that our SYN offers: enough for the largest window that autotuning may
    /// reach.
    pub(crate) fn offered_scale(&self, config: &TcpConfig) -> u8 {
        if !config.tcp_window_scaling {
            return 0;
        }
        let largest = if self.locked {
            self.rcvbuf
        } else {
            config.tcp_rmem.max.max(config.rmem_max).max(self.rcvbuf)
        };
        let largest = largest.min(self.user_clamp);
        let bits = u32::BITS - largest.leading_zeros();
        u8::try_from(bits.saturating_sub(16)).map_or(WINDOW_SCALE_MAX, |s| s.min(WINDOW_SCALE_MAX))
    }

    /// Returns the window of a SYN: as many whole segments as the buffer holds, 16 bits can express
    /// and `initrwnd` of the route allows.
    pub(crate) fn initial_window(&self) -> u32 {
        let space = self.window_clamp;
        let mss = u32::from(self.advmss.max(1));
        let whole = if space > mss { space - space % mss } else { space };
        let limit = match self.initrwnd {
            0 => UNSCALED_MAX,
            segments => UNSCALED_MAX.min(u32::from(segments) * mss),
        };
        whole.min(limit)
    }

    /// Starts the first round and the first measurement of the round-trip time.
    pub(crate) fn on_established(&mut self, rcv_nxt: SeqNum, now: Instant) {
        self.ssthresh = self.ssthresh.min(self.window_clamp);
        self.space =
            self.initial_window().min(INITIAL_ROUND_SEGMENTS * u32::from(self.advmss)).max(1);
        self.round_start = now;
        self.rtt_start = now;
        self.rtt_end = rcv_nxt + self.initial_window();
    }

    /// Sets `SO_RCVBUF` on an open connection, which ends autotuning. The announced window shrinks
    /// only as data arrives.
    pub(crate) fn set_rcvbuf(&mut self, bytes: u32) {
        self.rcvbuf = bytes;
        self.locked = true;
        self.follow_rcvbuf();
    }

    /// Sets `TCP_WINDOW_CLAMP`, the upper bound of windows announced later; an already announced
    /// window is kept.
    ///
    /// Differs from Linux: autotuning does not raise the clamp, because the application has set it
    /// as a bound.
    pub(crate) fn set_window_clamp(&mut self, bytes: u32, rcv_wnd: u32) {
        self.user_clamp = if bytes == 0 { u32::MAX } else { bytes.max(RCVBUF_MIN / 2) };
        self.follow_rcvbuf();
        let promised = rcv_wnd.min(self.window_clamp);
        self.ssthresh = self.ssthresh.min(self.window_clamp).max(promised);
    }

    /// Sets `SO_RCVLOWAT`, at most half of the buffer's upper bound. Unless `SO_RCVBUF` was set,
    /// the buffer grows so that the window can hold that many bytes.
    pub(crate) fn set_lowat(&mut self, bytes: u32, config: &TcpConfig) {
        let cap = if self.locked { self.rcvbuf / 2 } else { config.tcp_rmem.max / 2 };
        self.lowat = bytes.min(cap).max(1);
        if !self.locked {
            let space = self.space_of(self.lowat);
            if space > self.rcvbuf {
                self.rcvbuf = space;
                self.follow_rcvbuf();
            }
        }
    }

    /// Updates the ratio of window to buffer from `bytes` of a full-sized packet and its
    /// `truesize`.
    pub(crate) fn on_packet(&mut self, bytes: u32, truesize: u32) {
        if bytes < u32::from(self.advmss) / 2 {
            // Small packets are copied together under pressure, so their ratio does not apply to
            // bulk data.
            return;
        }
        let ratio = u64::from(bytes) * 256 / u64::from(truesize.max(1));
        let ratio = u8::try_from(ratio).unwrap_or(u8::MAX).max(1);
        if ratio != self.scaling_ratio {
            self.scaling_ratio = ratio;
            self.follow_rcvbuf();
        }
    }

    /// Raises the limit of the announced window after `bytes` arrived in packets of `truesize`;
    /// `free` is the window of the free memory. The limit grows only as far as a full window of
    /// such packets fits into the largest buffer. Returns whether it grew.
    pub(crate) fn on_arrival(
        &mut self,
        bytes: u32,
        truesize: u32,
        rcv_mss: u32,
        free: u32,
        config: &TcpConfig,
    ) -> bool {
        let room = self.window_clamp.min(free).saturating_sub(self.ssthresh);
        if bytes < GROW_BYTES_MIN || room == 0 {
            return false;
        }
        let truesize = truesize - DESCRIPTOR_BYTES.min(truesize / 4);
        let step = if self.window_of(truesize) <= bytes {
            2 * u32::from(self.advmss)
        } else {
            self.cautious_step(bytes, truesize, rcv_mss, config)
        };
        if step == 0 {
            return false;
        }
        self.ssthresh += step.max(2 * bytes).min(room);
        true
    }

    /// Returns the growth for packets with more overhead than the ratio allows for: each halving of
    /// the largest window permits twice the overhead.
    fn cautious_step(&self, bytes: u32, truesize: u32, rcv_mss: u32, config: &TcpConfig) -> u32 {
        let mut cost = self.window_of(truesize) / 2;
        let mut window = self.window_of(config.tcp_rmem.max) / 2;
        while self.ssthresh <= window && window > 0 {
            if cost <= bytes {
                return 2 * rcv_mss;
            }
            cost /= 2;
            window /= 2;
        }
        0
    }

    /// Records whether memory is scarce when data arrives or a window is announced. While memory is
    /// scarce, the announced window is limited to `segments` full segments (Linux
    /// tcp_adjust_rcv_ssthresh), and any data makes the socket readable.
    pub(crate) fn note_scarcity(&mut self, scarce: bool, segments: u32) {
        self.scarce = scarce;
        if scarce {
            self.ssthresh = self.ssthresh.min(segments * u32::from(self.advmss));
        }
    }

    pub(crate) fn is_scarce(&self) -> bool {
        self.scarce
    }

    /// Handles queues that exceed the buffer: grows the buffer if it may grow. If the queues exceed
    /// even the grown buffer, limits the window to two segments (Linux tcp_clamp_window).
    pub(crate) fn on_overrun(&mut self, rmem_alloc: u32, may_grow: bool, config: &TcpConfig) {
        if may_grow && !self.locked && self.rcvbuf < config.tcp_rmem.max {
            self.rcvbuf = rmem_alloc.min(config.tcp_rmem.max).max(self.rcvbuf);
        }
        if rmem_alloc > self.rcvbuf {
            self.ssthresh = self.window_clamp.min(2 * u32::from(self.advmss));
        }
    }

    /// Takes a round-trip sample from an echoed timestamp, in milliseconds.
    pub(crate) fn on_rtt_timestamp(&mut self, echo: u32, ms: u32) {
        if core::mem::replace(&mut self.rtt_echo, echo) == echo {
            // A later segment with the same echo may have waited at the sender, so it gives no
            // sample.
            return;
        }
        // A sample of less than one tick cannot be distinguished from one tick.
        let sample = ms.max(1).saturating_mul(1000).min(1 << 28);
        if self.rtt_us_x8 == 0 {
            self.rtt_us_x8 = sample * 8;
        } else {
            self.rtt_us_x8 = self.rtt_us_x8 - self.rtt_us_x8 / 8 + sample;
        }
    }

    /// Takes a round-trip sample without timestamps: a whole window takes at least one round trip
    /// to arrive.
    pub(crate) fn on_rtt_window(&mut self, rcv_nxt: SeqNum, rcv_wnd: u32, now: Instant) {
        if rcv_nxt.lt(self.rtt_end) {
            return;
        }
        let sample = micros(now - self.rtt_start).clamp(1, 1 << 28) * 8;
        if self.rtt_us_x8 == 0 || sample < self.rtt_us_x8 {
            self.rtt_us_x8 = sample;
        }
        self.rtt_end = rcv_nxt + rcv_wnd;
        self.rtt_start = now;
    }

    /// Processes a read of `copied` bytes. At the end of a round trip in which more was read than
    /// in any earlier one, the buffer grows to twice these bytes, plus space for a sender whose
    /// window still doubles (`tcp_moderate_rcvbuf`).
    pub(crate) fn on_read(
        &mut self,
        copied: u32,
        may_grow: bool,
        config: &TcpConfig,
        now: Instant,
    ) {
        self.copied = self.copied.saturating_add(copied);
        let round_ns = u64::from(self.rtt_us_x8 / 8) * 1_000;
        if round_ns == 0 || now.nanos_since(self.round_start) < round_ns {
            return;
        }
        if self.copied > self.space {
            if config.tcp_moderate_rcvbuf && may_grow && !self.locked {
                self.grow(config.tcp_rmem.max);
            }
            self.space = self.copied;
        }
        self.copied = 0;
        self.round_start = now;
    }

    /// Grows the buffer for the bytes read in this round, which exceed the bytes of every earlier
    /// round.
    fn grow(&mut self, rcvbuf_max: u32) {
        let (copied, space) = (u64::from(self.copied), u64::from(self.space.max(1)));
        let window = 2 * copied + 16 * u64::from(self.advmss);
        let faster = window * (copied - space) / space;
        let buffer = (window + 2 * faster) * 256 / u64::from(self.scaling_ratio);
        let rcvbuf = u32::try_from(buffer).unwrap_or(u32::MAX).min(rcvbuf_max);
        if rcvbuf > self.rcvbuf {
            self.rcvbuf = rcvbuf;
            self.follow_rcvbuf();
        }
    }

    /// Computes `window_clamp` after a change of the values from which it follows.
    fn follow_rcvbuf(&mut self) {
        self.window_clamp = self.window_of(self.rcvbuf).min(self.user_clamp);
    }

    /// Returns the window for `space` bytes of buffer.
    pub(crate) fn window_of(&self, space: u32) -> u32 {
        let window = u64::from(space) * u64::from(self.scaling_ratio) / 256;
        u32::try_from(window).unwrap_or(u32::MAX)
    }

    /// Returns the buffer for a window of `window` bytes.
    fn space_of(&self, window: u32) -> u32 {
        let space = (u64::from(window) * 256).div_ceil(u64::from(self.scaling_ratio));
        u32::try_from(space).unwrap_or(u32::MAX)
    }

    pub(crate) fn rcvbuf(&self) -> u32 {
        self.rcvbuf
    }

    pub(crate) fn window_clamp(&self) -> u32 {
        self.window_clamp
    }

    /// Returns the current limit of the announced window.
    pub(crate) fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    /// Returns `SO_RCVLOWAT`.
    pub(crate) fn lowat(&self) -> u32 {
        self.lowat
    }

    /// Returns the round-trip time measured by the receiver.
    pub(crate) fn rtt(&self) -> Duration {
        Duration::from_micros(u64::from(self.rtt_us_x8 / 8))
    }

    /// Returns the largest number of bytes that the application has read in one round.
    pub(crate) fn space(&self) -> u32 {
        self.space
    }
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}
