//! The receive window: how much the peer may send, and how the buffer behind it grows.
//!
//! RFC 9293 §3.8.6.2.2 (silly window avoidance), RFC 7323 §2; Linux: __tcp_select_window, tcp_select_window,
//! tcp_rcv_space_adjust (dynamic right-sizing).
//!
//! The buffer counts `truesize`, the window counts bytes; `scaling_ratio` converts and follows what arrives. The
//! right edge of an announced window never moves back.
//!
//! Not here: what happens to data beyond the window (`input`).

use core::time::Duration;

use pkt::Instant;

use crate::{
    config::{SocketOptions, TcpConfig},
    counters::Counter,
    cx::Cx,
    option::WINDOW_SCALE_MAX,
    seq::SeqNum,
    tcb::Tcb,
};

/// Half of the buffer is window until arrivals show better (Linux `tcp_adv_win_scale` = 1).
const SCALING_RATIO_INITIAL: u8 = 128;

/// Largest window of a SYN, which is never scaled.
const UNSCALED_MAX: u32 = 65_535;

/// Segments of the initial window of a sender: what the first round trip is expected to bring.
const INITIAL_ROUND_SEGMENTS: u32 = 10;

/// See the module head.
#[derive(Clone, Debug)]
pub(crate) struct ReceiveBuffer {
    /// Limit of what the receive and out-of-order queues hold, in `truesize` bytes (`SO_RCVBUF`).
    rcvbuf: u32,
    /// No larger window is announced, whatever is free.
    window_clamp: u32,
    /// Bytes of window per 256 bytes of buffer.
    scaling_ratio: u8,
    /// `SO_RCVBUF` was set: no autotuning.
    locked: bool,
    advmss: u16,
    /// Round-trip time as the receiver sees it, microseconds × 8; 0 when unknown.
    rtt_us_x8: u32,
    /// Without timestamps: the round ends when RCV.NXT reaches this.
    rtt_end: SeqNum,
    rtt_start: Instant,
    /// Bytes the application read in the best round so far.
    space: u32,
    /// Bytes it read in this round.
    copied: u32,
    /// When this round began.
    round_start: Instant,
}

impl ReceiveBuffer {
    pub(crate) fn new(config: &TcpConfig, options: &SocketOptions, advmss: u16) -> Self {
        let rcvbuf = options.rcvbuf.unwrap_or(config.tcp_rmem.default);
        let mut buffer = Self {
            rcvbuf,
            window_clamp: 0,
            scaling_ratio: SCALING_RATIO_INITIAL,
            locked: options.rcvbuf.is_some(),
            advmss,
            rtt_us_x8: 0,
            rtt_end: SeqNum(0),
            rtt_start: Instant::ZERO,
            space: 0,
            copied: 0,
            round_start: Instant::ZERO,
        };
        buffer.window_clamp = buffer.window_of(rcvbuf);
        buffer
    }

    /// The shift our SYN offers: enough for the largest buffer autotuning may reach.
    pub(crate) fn offered_scale(&self, config: &TcpConfig) -> u8 {
        if !config.tcp_window_scaling {
            return 0;
        }
        let largest = if self.locked {
            self.rcvbuf
        } else {
            config.tcp_rmem.max.max(config.rmem_max).max(self.rcvbuf)
        };
        let bits = u32::BITS - largest.leading_zeros();
        u8::try_from(bits.saturating_sub(16)).map_or(WINDOW_SCALE_MAX, |s| s.min(WINDOW_SCALE_MAX))
    }

    /// The window of a SYN: whole segments, as many as 16 bits and the buffer hold.
    pub(crate) fn initial_window(&self) -> u32 {
        let space = self.window_clamp.min(UNSCALED_MAX);
        let mss = u32::from(self.advmss.max(1));
        if space > mss { space - space % mss } else { space }
    }

    pub(crate) fn on_established(&mut self, rcv_nxt: SeqNum, now: Instant) {
        self.space =
            self.initial_window().min(INITIAL_ROUND_SEGMENTS * u32::from(self.advmss)).max(1);
        self.round_start = now;
        self.rtt_start = now;
        self.rtt_end = rcv_nxt + self.initial_window();
    }

    /// `SO_RCVBUF` on a connection: ends autotuning. The announced window shrinks only as data arrives.
    pub(crate) fn set_rcvbuf(&mut self, bytes: u32) {
        self.rcvbuf = bytes;
        self.locked = true;
        self.window_clamp = self.window_of(bytes);
    }

    /// Follows how much memory a byte costs: `bytes` of a full-sized packet against its `truesize`.
    pub(crate) fn on_packet(&mut self, bytes: u32, truesize: u32) {
        if bytes < u32::from(self.advmss) / 2 {
            // Small packets are copied together under pressure; they say nothing about bulk data.
            return;
        }
        let ratio = u64::from(bytes) * 256 / u64::from(truesize.max(1));
        let ratio = u8::try_from(ratio).unwrap_or(u8::MAX).max(1);
        if ratio != self.scaling_ratio {
            self.scaling_ratio = ratio;
            self.window_clamp = self.window_of(self.rcvbuf);
        }
    }

    /// A round-trip sample from an echoed timestamp, milliseconds.
    pub(crate) fn on_rtt_timestamp(&mut self, ms: u32) {
        // A tick may just have passed: less than one cannot be told from one.
        let sample = ms.max(1).saturating_mul(1000).min(1 << 28);
        if self.rtt_us_x8 == 0 {
            self.rtt_us_x8 = sample * 8;
        } else {
            self.rtt_us_x8 = self.rtt_us_x8 - self.rtt_us_x8 / 8 + sample;
        }
    }

    /// Without timestamps: a whole window takes at least one round trip to arrive.
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

    /// The application read `copied` bytes: once per round trip the buffer becomes twice what it read, with room
    /// for a sender that is still doubling (`tcp_moderate_rcvbuf`).
    pub(crate) fn on_read(&mut self, copied: u32, config: &TcpConfig, now: Instant) {
        self.copied = self.copied.saturating_add(copied);
        let round = Duration::from_micros(u64::from(self.rtt_us_x8 / 8));
        if round.is_zero() || now - self.round_start < round {
            return;
        }
        if self.copied > self.space {
            if config.tcp_moderate_rcvbuf && !self.locked {
                self.grow(config.tcp_rmem.max);
            }
            self.space = self.copied;
        }
        self.copied = 0;
        self.round_start = now;
    }

    fn grow(&mut self, rcvbuf_max: u32) {
        let (copied, space) = (u64::from(self.copied), u64::from(self.space.max(1)));
        let window = 2 * copied + 16 * u64::from(self.advmss);
        let faster = window * (copied - space) / space;
        let buffer = (window + 2 * faster) * 256 / u64::from(self.scaling_ratio);
        let rcvbuf = u32::try_from(buffer).unwrap_or(u32::MAX).min(rcvbuf_max);
        if rcvbuf > self.rcvbuf {
            self.rcvbuf = rcvbuf;
            self.window_clamp = self.window_of(rcvbuf);
        }
    }

    /// Bytes of window that `space` bytes of buffer carry.
    fn window_of(&self, space: u32) -> u32 {
        let window = u64::from(space) * u64::from(self.scaling_ratio) / 256;
        u32::try_from(window).unwrap_or(u32::MAX)
    }

    pub(crate) fn rcvbuf(&self) -> u32 {
        self.rcvbuf
    }

    pub(crate) fn window_clamp(&self) -> u32 {
        self.window_clamp
    }

    /// Round-trip time as the receiver sees it.
    pub(crate) fn rtt(&self) -> Duration {
        Duration::from_micros(u64::from(self.rtt_us_x8 / 8))
    }

    /// Bytes the application read in the best round.
    pub(crate) fn space(&self) -> u32 {
        self.space
    }
}

/// What is left of the announced window.
pub(crate) fn receive_window(tcb: &Tcb) -> u32 {
    let end = tcb.rcv_wup + tcb.rcv_wnd;
    if end.gt(tcb.rcv_nxt) { end.since(tcb.rcv_nxt) } else { 0 }
}

/// Memory the receive side holds.
pub(crate) fn rmem_alloc(tcb: &Tcb) -> u32 {
    let waiting = u32::try_from(tcb.reassembly.truesize()).unwrap_or(u32::MAX);
    tcb.receive_queue.rmem_alloc().saturating_add(waiting)
}

/// The window the free buffer allows, in whole segments: 0 rather than a silly one (RFC 9293 §3.8.6.2.2).
pub(crate) fn wanted_window(tcb: &Tcb) -> u32 {
    let buffer = &tcb.receive_buffer;
    let free = buffer.window_of(buffer.rcvbuf.saturating_sub(rmem_alloc(tcb)));
    let full = buffer.window_clamp;
    let mss = tcb.ack.rcv_mss().min(full);
    if free < full / 2 && (free < full / 16 || free < mss) {
        return 0;
    }
    let free = free.min(full);
    if tcb.rcv_wscale > 0 {
        let unit = 1 << tcb.rcv_wscale;
        return free.next_multiple_of(unit);
    }
    // Unscaled: move the edge by whole segments only.
    let current = tcb.rcv_wnd;
    if current <= free.saturating_sub(mss) || current > free {
        free - free % mss.max(1)
    } else {
        current
    }
}

/// Chooses the window of the segment about to leave and answers its 16-bit field.
pub(crate) fn select_window(tcb: &mut Tcb, cx: &Cx<'_>) -> u16 {
    let before = tcb.rcv_wnd;
    let current = receive_window(tcb);
    let mut window = wanted_window(tcb);
    if window < current {
        // The edge never moves back (RFC 9293 §3.8.6.2.1).
        if window == 0 {
            cx.count(Counter::TcpExtTCPWantZeroWindowAdv);
        }
        window = current.next_multiple_of(1 << tcb.rcv_wscale);
    }
    let field = (window >> tcb.rcv_wscale).min(UNSCALED_MAX);
    tcb.rcv_wnd = field << tcb.rcv_wscale;
    tcb.rcv_wup = tcb.rcv_nxt;
    match (before, tcb.rcv_wnd) {
        (0, 1..) => cx.count(Counter::TcpExtTCPFromZeroWindowAdv),
        (1.., 0) => cx.count(Counter::TcpExtTCPToZeroWindowAdv),
        _ => {}
    }
    u16::try_from(field).unwrap_or(u16::MAX)
}

/// The window of a duplicate ACK: the same as in the one before it, although there may be more room by now. The peer
/// takes an ACK that changes the window for news (RFC 5681 §2), and would not count it.
pub(crate) fn hold_window(tcb: &mut Tcb, cx: &Cx<'_>) -> u16 {
    if tcb.rcv_nxt != tcb.rcv_wup {
        return select_window(tcb, cx);
    }
    u16::try_from(tcb.rcv_wnd >> tcb.rcv_wscale).unwrap_or(u16::MAX)
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}
