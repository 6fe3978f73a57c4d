//! The backlog at its owner's: what softirq context has left on a socket while an application thread held it.
//!
//! Below: `sync::SocketLock`, which admits packets by their memory and hands them out in order of arrival. Linux:
//! `tcp_add_backlog`, `__release_sock`, `tcp_release_cb`.
//!
//! A thread that comes late finds many segments at once, and what it does once for all of them it need not do for each:
//!
//! - **Coalescing.** A segment that continues the one before it joins it ([`Segment::join`]), and TCP sees one superframe.
//!   Differs from Linux, which does so when softirq context appends: there the tail belongs to nobody, here the list has
//!   many writers and no lock, and the owner, who has taken it, joins neighbors before it processes them.
//! - **One ACK** (`net.ipv4.tcp_backlog_ack_defer`). Nothing is output before the end of the backlog.
//!
//! Order: receive queue, prequeue, backlog, each older than the next. So a prequeue is emptied before the first packet of
//! the backlog.

use pkt::{Gso, GsoKind, Packet, Pool};
use sync::Work;
use tcp::{Flags, SegmentHeader};

use super::{DEFERRED_FLUSH, DEFERRED_TIMER, StreamState, TcpSocket, call::Holder, parse};
use crate::{base::counters::Counter, cx::Cx, host::Host, transmit::packet_dst::PacketDst};

/// Payload of joined segments, at most: as much as an IPv4 packet has.
const JOINED_BYTES_MAX: usize = 65_535;

/// Payloads that do not lie in pages are joined by a copy up to this size, as in the receive queue.
const COPY_BYTES_MAX: usize = 512;

/// Processes what softirq context has left meanwhile; true if there was anything.
pub(super) fn work_off(
    socket: &TcpSocket,
    state: &mut Holder<'_>,
    host: &Host,
    cx: &mut Cx,
) -> bool {
    work_off_to(socket, state, host, cx, &mut []).is_some()
}

/// As `work_off`, by a reader that takes what is next in the stream into `user`. Answers how many bytes went there,
/// `None` when there was nothing to process.
pub(crate) fn work_off_to(
    socket: &TcpSocket,
    state: &mut Holder<'_>,
    host: &Host,
    cx: &mut Cx,
    user: &mut [u8],
) -> Option<usize> {
    let mut drain = Drain { socket, host, tail: None, user, copied: 0 };
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
    state.settle(socket, host, cx);
    cx.do_softirq();
    Some(copied)
}

/// Lets the socket go, and wakes those for whom something has come true meanwhile.
#[inline]
pub(super) fn release(socket: &TcpSocket, mut state: Holder<'_>, host: &Host, cx: &mut Cx) {
    if !state.is_undisturbed() {
        work_off(socket, &mut state, host, cx);
    }
    let mut news = state.news.take();
    state.release(|state, work| {
        work_late(socket, state, host, cx, work);
        news |= state.news.take();
    });
    socket.wake(cx, news);
}

/// What slips in at the last moment is not joined, but shares one ACK as well.
#[cold]
fn work_late(
    socket: &TcpSocket,
    state: &mut StreamState,
    host: &Host,
    cx: &mut Cx,
    work: Work<Packet>,
) {
    if let Work::Deferred(bits) = work {
        count_locked_timer(state, cx, bits);
        return state.work(socket, host, cx, work);
    }
    state.drain_prequeue(socket, host, cx);
    state.work(socket, host, cx, work);
    if cx.sysctls().tcp_backlog_ack_defer {
        count_deferred(state, cx);
        socket.lock.defer_to_holder(DEFERRED_FLUSH);
    } else {
        state.settle(socket, host, cx);
    }
}

/// An ACK that would have left at once waits for the end of the backlog.
fn count_deferred(state: &StreamState, cx: &Cx) {
    if state.tcb.owes_ack_now() {
        cx.count(Counter::SocketBacklogAckDeferred, 1);
    }
}

/// Before the owner sends, and so does what the delayed-ACK timer would have done: whether that has come in the meantime.
#[inline]
pub(super) fn note_locked_timer(state: &Holder<'_>, cx: &Cx) {
    if state.tcb.is_delack_due(cx.now) {
        count_locked_timer(state, cx, state.deferred());
    }
}

/// The delayed-ACK timer has fired while the socket was owned.
fn count_locked_timer(state: &StreamState, cx: &Cx, bits: u8) {
    if bits & DEFERRED_TIMER != 0 && state.tcb.is_delack_due(cx.now) {
        cx.counters().tcp.add(tcp::Counter::TcpExtDelayedACKLocked, 1);
    }
}

/// One owner's way through the backlog.
struct Drain<'a> {
    socket: &'a TcpSocket,
    host: &'a Host,
    /// The youngest segment: the next one may join it.
    tail: Option<Segment>,
    user: &'a mut [u8],
    /// Bytes of `user` that are filled.
    copied: usize,
}

impl Drain<'_> {
    fn take(&mut self, state: &mut StreamState, cx: &mut Cx, work: Work<Packet>) {
        let mut packet = match work {
            Work::Item(packet) | Work::Direct(packet) => packet,
            Work::Deferred(bits) => {
                self.process_tail(state, cx);
                count_locked_timer(state, cx, bits);
                return state.work(self.socket, self.host, cx, work);
            }
        };
        state.drain_prequeue(self.socket, self.host, cx);
        let dst = PacketDst::taken_from(&mut packet);
        state.remember(self.socket, self.host, cx, packet.meta().rx_device, dst);
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
        state.synchronise(cx);
        self.copied +=
            state.input_to_user(cx, &header, packet, self.user.split_at_mut(self.copied).1);
        if cx.sysctls().tcp_backlog_ack_defer {
            count_deferred(state, cx);
            // A duplicate ACK or a reset does not wait: it must not be merged with the next.
            state.transmit(self.socket, self.host, cx);
        } else {
            state.settle(self.socket, self.host, cx);
        }
    }
}

/// A segment with its header as values; the packet is the payload alone.
struct Segment {
    header: SegmentHeader,
    packet: Packet,
}

impl Segment {
    /// Makes one segment of this and the `next` that continues it, which is given back if they may not be one: nothing
    /// but ACK, PSH and a FIN at the end, the same options and marks, and an acknowledgment that does not get lost by
    /// it. Both checksums have been verified.
    ///
    /// Differs from Linux: a duplicate ACK stays what it is, because it counts (RFC 5681 §3.2).
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

/// Puts the payload of `next` behind that of `tail`; gives it back, and leaves `tail` as it was, when that does not go.
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

/// How the joined payload was cut: in segments of the larger of both sizes.
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

/// The superframe's own words, or those for one segment.
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
