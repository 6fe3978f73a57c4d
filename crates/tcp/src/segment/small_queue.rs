//! TCP Small Queues: the limit on one connection's packets below TCP, in qdiscs and devices.
//!
//! Above: `output` and `loss::retransmit` ask before each packet. Below: the stack counts the bytes
//! of the packets that it hands down and passes the count with each call (`HostQueue`); a
//! completion (the report that a packet was sent and freed) resumes a throttled connection. Linux:
//! tcp_small_queue_check, tcp_tsq_write, tcp_should_autocork;
//! Documentation/networking/ip-sysctl.rst `tcp_limit_output_bytes`.
//!
//! Packets that wait in queues of this host delay other flows, and congestion control attributes
//! the delay to the network path. Therefore a connection may keep only about a millisecond of data
//! at its pacing rate below TCP, but always two packets.
//!
//! Not here: the setting (`cx::host_queue`), the wake-up and its races (`sync::small_queue`).

use pkt::Packet;

use crate::{
    base::counters::Counter,
    cx::{Cx, host_queue::TsqLimit},
    segment::pacing,
    tcb::{Tcb, TcbFlags},
};

impl TsqLimit {
    /// Returns the limit of a connection whose next packet has `truesize` and whose pacing rate is
    /// `pace` bytes in about a millisecond (`TcpConfig::pacing_shift`).
    const fn bytes(self, sysctl: u32, truesize: u32, pace: u64, paced: bool) -> u64 {
        let sysctl = sysctl as u64;
        let two = 2 * truesize as u64;
        let dynamic = if two > pace { two } else { pace };
        match self {
            Self::Off => u64::MAX,
            Self::Static131072Ge => sysctl,
            Self::DynMax if sysctl > pace => sysctl,
            Self::DynMax => pace,
            Self::PacedExempt if paced => dynamic,
            Self::DynMin2 | Self::PacedExempt | Self::V619 if dynamic < sysctl => dynamic,
            Self::DynMin2 | Self::PacedExempt | Self::V619 => sysctl,
        }
    }

    /// Returns the number of bytes above which a connection with this limit is throttled.
    ///
    /// In Linux `sk_wmem_alloc` includes one byte for the socket itself, so a connection whose
    /// packets equal the limit is throttled, too. This matters when the limit is two packets: then
    /// two are the maximum, not three.
    ///
    /// Differs from Linux in [`DynMax`](Self::DynMax), which admits one more packet if the limit is
    /// a multiple of the packet size.
    const fn throttles_above(self, limit: u64) -> u64 {
        match self {
            Self::Off | Self::DynMax => limit,
            // Linux 3.6 throttles a connection that equals the limit.
            Self::Static131072Ge | Self::DynMin2 | Self::PacedExempt | Self::V619 => {
                limit.saturating_sub(1)
            }
        }
    }

    /// Returns the number of packets in flight up to which a connection is not throttled. With
    /// nothing in flight only a completion could resume a throttled connection, and a device may
    /// defer completions until more packets are sent. With one packet in flight its ACK would
    /// resume the connection, but a device that defers completions may defer that ACK, too.
    ///
    /// Differs from the Linux versions of [`DynMax`](Self::DynMax), which had no exception.
    const fn exempt_in_flight(self) -> Option<usize> {
        match self {
            Self::Off | Self::Static131072Ge => None,
            Self::DynMax | Self::DynMin2 | Self::PacedExempt => Some(0),
            Self::V619 => Some(1),
        }
    }
}

/// Kind of transmission. The limit is doubled for retransmissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    New,
    /// A retransmission, which is more urgent than new data.
    Retransmission,
}

/// Returns whether the packet of entry `index`, cut to `len` bytes of payload, must wait for
/// completions. If so, marks the connection as throttled; the stack then arranges that a completion
/// resumes it.
pub(crate) fn is_full(tcb: &mut Tcb, cx: &Cx<'_>, index: usize, len: u32, kind: Kind) -> bool {
    let mode = cx.config.tsq_limit;
    if !cx.host_queue.completes || mode == TsqLimit::Off || cx.config.tcp_limit_output_bytes == 0 {
        return false;
    }
    let sent = tcb.send_queue.sent_count();
    // A retransmission is itself one of the segments in flight.
    if mode.exempt_in_flight().is_some_and(|exempt| sent <= exempt) {
        return false;
    }
    let entry = tcb.send_queue.entry(index);
    let truesize = entry.packet.as_ref().map_or(0, Packet::truesize);
    let truesize = truesize.saturating_sub(entry.len.saturating_sub(len));
    // A connection without a pacing rate has only the fixed limit.
    let pace = tcb.pacing.rate().unwrap_or(u64::MAX) >> cx.config.pacing_shift;
    let sysctl = cx.config.tcp_limit_output_bytes;
    let limit = mode.bytes(sysctl, truesize, pace, pacing::is_needed(tcb) || cx.host_queue.paces);
    let limit = if kind == Kind::Retransmission { limit.saturating_mul(2) } else { limit };
    // 0 is reserved for a retransmission that waits for its earlier copy (`wait_for_completion`).
    let limit = mode.throttles_above(limit).max(1);
    throttle_above(tcb, cx, u32::try_from(limit).unwrap_or(u32::MAX))
}

/// Throttles the connection if more than `limit` bytes are below TCP.
fn throttle_above(tcb: &mut Tcb, cx: &Cx<'_>, limit: u32) -> bool {
    let stops = cx.host_queue.bytes > limit;
    if stops {
        tcb.flags |= TcbFlags::THROTTLED;
        tcb.pacing.throttle_limit = limit;
    }
    stops
}

/// Throttles the connection until all of its packets below TCP have completed, because a copy of a
/// segment that has to be retransmitted is among them.
pub(crate) fn wait_for_completion(tcb: &mut Tcb, cx: &Cx<'_>) {
    if cx.host_queue.completes {
        throttle_above(tcb, cx, 0);
    }
}

/// Returns the largest payload of a packet: in the mode of Linux 3.6 two packets must fit below the
/// limit.
pub(crate) const fn burst_max(cx: &Cx<'_>) -> u32 {
    match (cx.config.tsq_limit, cx.config.tcp_limit_output_bytes) {
        (TsqLimit::Static131072Ge, limit) if limit > 0 => limit / 2,
        _ => u32::MAX,
    }
}

/// Returns whether a partial segment waits for the completion of packets of this connection below
/// TCP (`tcp_autocorking`), so that small writes are sent together.
pub(crate) fn autocorks(tcb: &mut Tcb, cx: &Cx<'_>, index: usize, len: u32) -> bool {
    let queue = &tcb.send_queue;
    if !cx.config.tcp_autocorking
        || !cx.host_queue.completes
        // The first packet of an exchange is sent at once: there may be no completion that would
        // resume the connection.
        || queue.sent_count() == 0
        || !queue.is_tail(index)
        || len >= tcb.mss.transmit_max()
    {
        return false;
    }
    // Waits only if the packets below TCP hold more memory than this packet (Linux: `sk_wmem_alloc`
    // above `skb->truesize`).
    let truesize = queue.entry(index).packet.as_ref().map_or(0, Packet::truesize);
    let waits = throttle_above(tcb, cx, truesize);
    if waits {
        cx.count(Counter::TcpExtTCPAutoCorking);
    }
    waits
}

impl Tcb {
    /// Returns, if `output` was throttled since the last call, the number of bytes above which the
    /// connection stays throttled: 0 if it waits for the copy of a segment that has to be
    /// retransmitted, and more if it has reached a limit. The caller must publish it
    /// (`sync::SmallQueue::throttle`) or run `output` again.
    pub fn take_throttled(&mut self) -> Option<u32> {
        let throttled = self.flags.contains(TcbFlags::THROTTLED);
        self.flags -= TcbFlags::THROTTLED;
        throttled.then_some(self.pacing.throttle_limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cx::host_queue::HostQueue;
    use crate::tests::net::{Net, Side};

    /// 100 Mbit/s, 1 Gbit/s, 10 Gbit/s, 100 Gbit/s in bytes per second.
    const RATES: [u64; 4] = [12_500_000, 125_000_000, 1_250_000_000, 12_500_000_000];
    /// `truesize` of a packet of 1500 bytes, and of a superframe (a packet of several segments) of
    /// 64 KB.
    const SMALL: u32 = 2304;
    const LARGE: u32 = 66_560;

    fn limits(mode: TsqLimit, truesize: u32, paced: bool) -> [u64; 4] {
        RATES.map(|rate| mode.bytes(mode.default_limit_bytes(), truesize, rate >> 10, paced))
    }

    #[test]
    fn each_mode_has_the_limits_of_its_linux_version() {
        use TsqLimit as Mode;
        assert_eq!(limits(Mode::Static131072Ge, LARGE, false), [131_072; 4]);
        let expected = [131_072, 131_072, 1_220_703, 12_207_031];
        assert_eq!(limits(Mode::DynMax, SMALL, false), expected);
        assert_eq!(limits(Mode::DynMin2, SMALL, false), [12_207, 122_070, 262_144, 262_144]);
        assert_eq!(limits(Mode::DynMin2, LARGE, false), [133_120, 133_120, 262_144, 262_144]);
        let expected = [133_120, 133_120, 1_048_576, 1_048_576];
        assert_eq!(limits(Mode::PacedExempt, LARGE, false), expected);
        let expected = [133_120, 133_120, 1_220_703, 12_207_031];
        assert_eq!(limits(Mode::PacedExempt, LARGE, true), expected);
        let expected = [133_120, 133_120, 1_220_703, 4_194_304];
        assert_eq!(limits(Mode::V619, LARGE, true), expected);
        assert_eq!(limits(Mode::Off, LARGE, true), [u64::MAX; 4]);
    }

    /// Returns the fewest bytes below TCP that throttle a packet of a connection with two segments
    /// in flight.
    fn stops_at(mode: TsqLimit, kind: Kind) -> u32 {
        let mut net = Net::established(1);
        net.host(Side::A).config.tsq_limit = mode;
        net.host(Side::A).config.tcp_limit_output_bytes = 10_000;
        net.send(Side::A, &[1; 2 * 1448]);
        let stops = net.call(Side::A, |tcb, cx| {
            assert_eq!(tcb.send_queue.sent_count(), 2);
            let mut full = |bytes| {
                cx.host_queue = HostQueue { bytes, completes: true, ..HostQueue::NONE };
                is_full(tcb, cx, 0, 1448, kind)
            };
            let stops = (0..1 << 20).find(|bytes| full(*bytes)).expect("the limit is below 1 MB");
            assert_eq!(tcb.take_throttled(), Some(stops - 1), "{mode:?}");
            stops
        });
        net.lose_in_flight();
        net.finish_clean();
        stops
    }

    /// Linux's tcp_small_queue_check doubles the limit, and then counts the one byte of the socket
    /// itself.
    #[test]
    fn a_retransmission_has_twice_the_limit() {
        use Kind::{New, Retransmission};
        for mode in [TsqLimit::Static131072Ge, TsqLimit::DynMax] {
            // `DynMax` does not throttle a connection whose packets equal the limit.
            let more = u32::from(mode == TsqLimit::DynMax);
            assert_eq!(stops_at(mode, New), 10_000 + more);
            assert_eq!(stops_at(mode, Retransmission), 20_000 + more);
        }
        for mode in [TsqLimit::DynMin2, TsqLimit::PacedExempt, TsqLimit::V619] {
            let two_packets = stops_at(mode, New);
            assert!(
                two_packets.is_multiple_of(2) && two_packets < 10_000,
                "{mode:?}: the limit is {two_packets} bytes"
            );
            assert_eq!(
                stops_at(mode, Retransmission),
                2 * two_packets,
                "{mode:?}: the limit of a retransmission is not four packets"
            );
        }
    }

    /// Devices that aggregate many packets, such as wireless ones, need 8 ms of the pacing rate.
    #[test]
    fn the_limit_follows_the_pacing_shift() {
        let limits = |mode: TsqLimit| {
            RATES.map(|rate| mode.bytes(mode.default_limit_bytes(), SMALL, rate >> 7, false))
        };
        assert_eq!(limits(TsqLimit::DynMin2), [97_656, 262_144, 262_144, 262_144]);
        assert_eq!(limits(TsqLimit::V619), [97_656, 976_562, 4_194_304, 4_194_304]);
    }

    #[test]
    fn every_mode_has_its_own_name() {
        for (index, mode) in TsqLimit::ALL.iter().enumerate() {
            assert!(TsqLimit::ALL[..index].iter().all(|other| other.name() != mode.name()));
        }
        assert!(TsqLimit::ALL.contains(&TsqLimit::default()));
    }

    /// Returns whether a packet of `kind` waits for completions while 1 GB is below TCP and
    /// `in_flight` segments are unacknowledged.
    fn waits(mode: TsqLimit, in_flight: usize, kind: Kind) -> bool {
        let mut net = Net::established(1);
        net.host(Side::A).config.tsq_limit = mode;
        net.host(Side::A).config.tcp_limit_output_bytes = mode.default_limit_bytes();
        for _ in 0..in_flight {
            net.send(Side::A, &[1; 1448]);
        }
        let waits = net.call(Side::A, |tcb, cx| {
            assert_eq!(tcb.send_queue.sent_count(), in_flight);
            tcb.send(cx, &[&[1; 1448][..]], false).expect("the send buffer has space");
            cx.host_queue = HostQueue { bytes: 1 << 30, completes: true, ..HostQueue::NONE };
            let index = if kind == Kind::New { in_flight } else { 0 };
            is_full(tcb, cx, index, 1448, kind)
        });
        net.lose_in_flight();
        waits
    }

    /// Linux's tcp_small_queue_check makes no difference here between new data and retransmissions.
    #[test]
    fn the_exemption_for_few_segments_in_flight_depends_on_the_mode() {
        use Kind::{New, Retransmission};
        for kind in [New, Retransmission] {
            assert!(!waits(TsqLimit::V619, 1, kind), "{kind:?}");
            assert!(waits(TsqLimit::V619, 2, kind), "{kind:?}");
            assert!(waits(TsqLimit::DynMin2, 1, kind), "{kind:?}");
            assert!(waits(TsqLimit::Static131072Ge, 1, kind), "{kind:?}");
        }
        assert!(!waits(TsqLimit::V619, 0, New));
        assert!(!waits(TsqLimit::DynMin2, 0, New));
        assert!(waits(TsqLimit::Static131072Ge, 0, New));
    }
}
