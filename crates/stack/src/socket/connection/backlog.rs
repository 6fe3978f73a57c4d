//! The owner's side of the backlog: packets that softirq context queued while an application thread
//! owned the socket.
//!
//! Below: `sync::SocketLock`, which limits the memory of the queued packets and returns them in
//! order of arrival. Linux: `tcp_add_backlog`, `__release_sock`, `tcp_release_cb`.
//!
//! The owner takes many segments at once, and does some work once for all of them:
//!
//! - **Coalescing.** A segment that continues the previous one is joined to it ([`Segment::join`]),
//!   and TCP processes one superframe (packet of several segments). Differs from Linux, where
//!   softirq context joins a segment when it adds it to the backlog: here many threads add to the
//!   list without a lock, so the owner joins consecutive segments after it has taken them.
//! - **One ACK** (`net.ipv4.tcp_backlog_ack_defer`). An acknowledgment that is due is sent once,
//!   after all segments of the backlog.
//!
//! Order: packets in the receive queue are older than those in the prequeue, and these are older
//! than those in the backlog. So the prequeue is emptied before the first packet of the backlog is
//! processed.

use pkt::{Gso, GsoKind, Packet, Pool};
use sync::Work;
use tcp::{Flags, SegmentHeader};

use super::{Connection, DEFERRED_FLUSH, DEFERRED_TIMER, StreamState, call::Holder, parse};
use crate::{
    base::{counters::Counter, ids::DeviceIndex},
    cx::Cx,
    socket::net::Net,
    transmit::packet_dst::PacketDst,
};

/// Maximum payload bytes of joined segments: the maximum length of an IPv4 packet.
const JOINED_BYTES_MAX: usize = 65_535;

/// Maximum payload bytes that are copied to join a segment whose payload is not in pages. The limit
/// is that of the receive queue.
const COPY_BYTES_MAX: usize = 512;

/// Processes the backlog and deferred work. Returns false if there was none.
pub(super) fn drain_backlog(
    socket: &Connection,
    state: &mut Holder<'_>,
    net: &Net,
    cx: &mut Cx,
) -> bool {
    drain_backlog_to(socket, state, net, cx, &mut []).is_some()
}

/// Does the same as `drain_backlog`, for a reader: the next bytes of the stream are copied directly
/// to `user`. Returns the number of these bytes, or `None` if there was nothing to process.
pub(crate) fn drain_backlog_to(
    socket: &Connection,
    state: &mut Holder<'_>,
    net: &Net,
    cx: &mut Cx,
    user: &mut [u8],
) -> Option<usize> {
    let mut drain = Drain { socket, net, tail: None, user, copied: 0 };
    let mut worked = false;
    state.run_backlog(|state, work| {
        worked = true;
        drain.take(state, cx, work);
    });
    if !worked {
        return None;
    }
    drain.process_tail(state, cx);
    let copied = drain.copied;
    if copied > 0 {
        state.tcb.on_direct_read(&mut cx.tcp(), copied);
        let counters = &cx.counters().tcp;
        counters.add(tcp::Counter::TcpExtTCPDirectCopyFromBacklog, copied as u64);
    }
    state.settle(socket, net, cx);
    cx.do_softirq();
    Some(copied)
}

/// Releases the socket and wakes the threads whose conditions have become true.
#[inline]
pub(super) fn release(socket: &Connection, mut state: Holder<'_>, net: &Net, cx: &mut Cx) {
    if !state.is_undisturbed() {
        drain_backlog(socket, &mut state, net, cx);
    }
    let mut newly_ready = state.newly_ready.take();
    state.release(|state, work| {
        process_late(socket, state, net, cx, work);
        newly_ready |= state.newly_ready.take();
    });
    socket.wake(cx, newly_ready);
}

/// Processes a packet or deferred work that arrives during the release. Such a packet is not joined
/// to others, but its ACK is deferred in the same way.
#[cold]
fn process_late(
    socket: &Connection,
    state: &mut StreamState,
    net: &Net,
    cx: &mut Cx,
    work: Work<Packet>,
) {
    if let Work::Deferred(bits) = work {
        count_locked_timer(state, cx, bits);
        return state.work(socket, net, cx, work);
    }
    state.drain_prequeue(socket, net, cx);
    state.work(socket, net, cx, work);
    if cx.sysctls().tcp_backlog_ack_defer {
        count_deferred(state, cx);
        socket.lock.defer_to_holder(DEFERRED_FLUSH);
    } else {
        state.settle(socket, net, cx);
    }
}

/// Counts an immediate ACK that is deferred to the end of the backlog.
fn count_deferred(state: &StreamState, cx: &Cx) {
    if state.tcb.owes_ack_now() {
        cx.count(Counter::SocketBacklogAckDeferred, 1);
    }
}

/// Counts a delayed-ACK timer that fired while the socket was owned. Must be called before the
/// owner sends a segment, because the acknowledgment in that segment cancels the timer.
#[inline]
pub(super) fn note_locked_timer(state: &Holder<'_>, cx: &Cx) {
    if state.tcb.is_delack_due(cx.now) {
        count_locked_timer(state, cx, state.deferred());
    }
}

/// Counts a delayed-ACK timer that fired while the socket was owned. `bits` is the deferred work.
fn count_locked_timer(state: &StreamState, cx: &Cx, bits: u8) {
    if bits & DEFERRED_TIMER != 0 && state.tcb.is_delack_due(cx.now) {
        cx.counters().tcp.add(tcp::Counter::TcpExtDelayedACKLocked, 1);
    }
}

/// State of one pass through the backlog.
struct Drain<'a> {
    socket: &'a Connection,
    net: &'a Net,
    /// Last segment taken, which is not processed yet: the next one may be joined to it.
    tail: Option<Segment>,
    user: &'a mut [u8],
    /// Number of bytes filled in `user`.
    copied: usize,
}

impl Drain<'_> {
    fn take(&mut self, state: &mut StreamState, cx: &mut Cx, work: Work<Packet>) {
        let mut packet = match work {
            Work::Item(packet) => packet,
            Work::Deferred(bits) => {
                self.process_tail(state, cx);
                count_locked_timer(state, cx, bits);
                return state.work(self.socket, self.net, cx, work);
            }
        };
        state.drain_prequeue(self.socket, self.net, cx);
        let dst = PacketDst::taken_from(&mut packet);
        state.cache_rx_dst(self.socket, self.net, cx, DeviceIndex(packet.meta().rx_device), dst);
        let mut header = SegmentHeader::default();
        let Some(packet) = parse(cx, packet, &mut header) else { return };
        let next = Segment { header, packet };
        let joined = match self.tail.as_mut() {
            Some(tail) => tail.join(&mut cx.pool, next),
            None => Err(next),
        };
        match joined {
            Ok(()) => cx.counters().tcp.add(tcp::Counter::TcpExtTCPBacklogCoalesce, 1),
            Err(next) => {
                self.process_tail(state, cx);
                self.tail = Some(next);
            }
        }
    }

    fn process_tail(&mut self, state: &mut StreamState, cx: &mut Cx) {
        let Some(Segment { header, packet }) = self.tail.take() else { return };
        state.sync_clock(cx);
        self.copied +=
            state.input_to_user(cx, &header, packet, self.user.split_at_mut(self.copied).1);
        if cx.sysctls().tcp_backlog_ack_defer {
            count_deferred(state, cx);
            // Segments that TCP has already queued are transmitted now, because a duplicate ACK or
            // a reset must not be merged with a later one.
            state.transmit(self.socket, self.net, cx);
        } else {
            state.settle(self.socket, self.net, cx);
        }
    }
}

/// A segment whose header is parsed. Its packet contains only the payload.
struct Segment {
    header: SegmentHeader,
    packet: Packet,
}

impl Segment {
    /// Appends `next` to this segment if `next` continues it, or returns `next` unchanged. Both
    /// segments must carry ACK and may carry PSH; ECE and CWR, options and ECN marks must be equal;
    /// only `next` may carry FIN; and no acknowledgment may get lost by joining. The checksums of
    /// both segments have been verified.
    ///
    /// Differs from Linux: a duplicate ACK is not joined, because TCP counts duplicate ACKs
    /// (RFC 5681 §3.2).
    fn join(&mut self, pool: &mut Pool, next: Self) -> Result<(), Self> {
        if !self.may_join(&next) {
            return Err(next);
        }
        let Self { header, packet } = next;
        let gso = joined_gso(&self.packet, &packet);
        if let Err(packet) = append(pool, &mut self.packet, packet) {
            return Err(Self { header, packet });
        }
        self.packet.meta_mut().gso = gso;
        self.header.flags |= header.flags;
        if header.ack.ge(self.header.ack) {
            self.header.ack = header.ack;
            self.header.window = header.window;
        }
        Ok(())
    }

    fn may_join(&self, next: &Self) -> bool {
        let (a, b) = (&self.header, &next.header);
        let (len, next_len) = (self.packet.len(), next.packet.len());
        let odd = Flags::SYN | Flags::RST | Flags::URG;
        let congestion = Flags::ECE | Flags::CWR;
        let is_duplicate_ack = a.ack == b.ack && (len == 0 || next_len == 0);
        u32::try_from(len).is_ok_and(|len| a.seq + len == b.seq)
            && !a.flags.contains(Flags::FIN)
            && !(a.flags | b.flags).intersects(odd)
            && (a.flags & b.flags).contains(Flags::ACK)
            && (a.flags ^ b.flags).intersection(congestion).is_empty()
            && !is_duplicate_ack
            && a.options == b.options
            && self.packet.meta().ecn == next.packet.meta().ecn
            && len + next_len <= JOINED_BYTES_MAX
    }
}

/// Appends the payload of `next` to that of `tail`. If that fails, returns `next` and leaves `tail`
/// unchanged.
fn append(pool: &mut Pool, tail: &mut Packet, next: Packet) -> Result<(), Packet> {
    if next.linear().is_empty() {
        return tail.append_frags_of(pool, next);
    }
    if next.len() > COPY_BYTES_MAX {
        return Err(next);
    }
    let before = tail.len();
    if next.slices().all(|slice| tail.append(pool, slice) == slice.len()) {
        pool.free(next);
        return Ok(());
    }
    tail.truncate(before);
    Err(next)
}

/// Returns the superframe metadata of the joined payload, whose segment size is the larger one of
/// both.
fn joined_gso(tail: &Packet, next: &Packet) -> Gso {
    let (a, b) = (cut(tail), cut(next));
    let kind = match tail.meta().protocol {
        pkt::EtherType::IPV6 => GsoKind::TcpV6,
        _ => GsoKind::TcpV4,
    };
    Gso {
        kind,
        ecn: a.ecn || b.ecn,
        fixed_id: false,
        size: a.size.max(b.size),
        segs: a.segs.saturating_add(b.segs),
    }
}

/// Returns the superframe metadata of a packet, which for a single segment describes a superframe
/// of one segment.
fn cut(packet: &Packet) -> Gso {
    let gso = packet.meta().gso;
    if gso.kind != GsoKind::None {
        return gso;
    }
    let size = u16::try_from(packet.len()).unwrap_or(u16::MAX);
    Gso { size, segs: u16::from(size > 0), ..gso }
}

#[cfg(test)]
mod tests;
