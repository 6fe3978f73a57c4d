//! Generic receive offload (GRO): merges consecutive TCP segments before IP sees them, and delivers
//! packets in lists.
//!
//! Above: `napi`, which polls the device. Below: `link_input::input_list`, which takes the ready
//! packets. Linux: net/core/gro.c, net/ipv4/tcp_offload.c.
//!
//! | frame | effect |
//! |---|---|
//! | *merged*: the next segment of a held packet (a packet that waits for further segments) | It is appended to the held packet. |
//! | *held*: a segment that continues no held packet, but may be merged with later segments | It becomes a held packet in the table: 8 buckets of 8 packets. |
//! | *normal*: any other | It goes unchanged into the list. |
//!
//! A held packet is completed, and enters the list, when its last segment had PSH or FIN or was
//! shorter than the first, when the next frame of its flow does not continue it or would make it
//! too large, when another flow needs its place in a full bucket, or at a flush. The list is
//! delivered (`ready`) when the batch is full or at a flush. With some values of
//! `net.quietline.gro_exit`, packets bypass the list.
//!
//! A `Gro` belongs to one NAPI instance (one device queue), and only the thread that polls this
//! queue accesses the `Gro`. Merged segments form a superframe: one packet of several segments. A
//! superframe can be segmented into exactly the segments it was merged from (the tests verify this
//! with `gso`). Merging therefore changes only the number of packets that IP, TCP and the socket
//! see.
//!
//! **Order.** At every point where the poll may end (`Gro::flush`), held packets are completed
//! first and leave with the list. A segment that is not merged completes the held packet of its
//! flow (ends its merging), even a segment that can never be merged, such as one with IP options. A
//! segment that is dropped later, because its headers are malformed or its TCP checksum was
//! verified here and is wrong, completes none. An IPv4 fragment of a TCP segment completes all held
//! packets between its addresses. Differs from Linux, where fragments and segments with IP options
//! overtake the held packets of their flow; here only IPv6 packets with extension headers do.
//!
//! **Cost.** While no packet is held, a frame that can be neither merged nor held (a pure ACK, a
//! single segment with PSH, a superframe made by the device) is passed on after a check of a few
//! bytes.
//!
//! Not implemented: UDP and tunnels. Not here: the timer that bounds how long a held packet waits
//! for the next poll (`receive::napi`).

use pkt::{Packet, PacketList};

use crate::{
    base::counters::Counter,
    cx::Cx,
    sysctl::modes::{BusyPollFlush, GroExit},
};

pub(crate) use normal_list::GroMode;

use normal_list::NormalList;
use table::{Continued, Outcome, Table};

mod held;
mod normal_list;
mod read;
mod table;
#[cfg(test)]
mod tests;

/// Reason why a held packet was completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlushReason {
    /// The last merged segment carried PSH or FIN.
    Psh,
    /// The next segment carries CWR, or differs in the acknowledgment, the header length, the
    /// window, the urgent pointer, or a control bit other than FIN and PSH.
    Flags,
    /// The next segment does not continue the sequence.
    Seq,
    /// The next segment has other TCP options of the same length.
    Options,
    /// The next segment differs in its link or IP header, can never be merged (`Candidate::alone`),
    /// or is a fragment.
    Header,
    /// The last merged segment was shorter than the first, or the next one is longer or has no
    /// payload.
    Len,
    /// With the next segment, the packet would exceed its maximum size, or its maximum number of
    /// frags (pieces of page memory), or the packet memory is used up.
    Size,
    /// The bucket of the table was full, and another flow needed the space.
    FullBucket,
    /// The packet has been held since an earlier millisecond.
    Age,
    /// The poll has emptied the queue, a busy-poll cycle received no frame, or merging is off.
    Complete,
}

impl FlushReason {
    const fn counter(self) -> Counter {
        match self {
            Self::Psh => Counter::GroFlushPsh,
            Self::Flags => Counter::GroFlushFlags,
            Self::Seq => Counter::GroFlushSeq,
            Self::Options => Counter::GroFlushOptions,
            Self::Header => Counter::GroFlushHeader,
            Self::Len => Counter::GroFlushLen,
            Self::Size => Counter::GroFlushSize,
            Self::FullBucket => Counter::GroFlushFullBucket,
            Self::Age => Counter::GroFlushAge,
            Self::Complete => Counter::GroFlushComplete,
        }
    }
}

/// Receive offload state of one NAPI instance.
#[derive(Debug, Default)]
pub(crate) struct Gro {
    table: Table,
    normal_list: NormalList,
}

impl Gro {
    /// Takes one frame of the device, whose IP header begins at offset `network`. The caller then
    /// delivers the [`ready`](Self::ready) packets.
    #[inline]
    pub(crate) fn receive(&mut self, cx: &mut Cx, mode: &GroMode, network: usize, packet: Packet) {
        if !mode.merges {
            // The setting may have been disabled while packets were held.
            self.complete(cx, mode, false);
            return self.normal_list.normal(cx, mode, packet);
        }
        match self.table.receive_next(cx, network, mode, packet) {
            Continued::Merged => cx.count(Counter::GroMergedFree, 1),
            Continued::Ended(reason) => {
                cx.count(Counter::GroMergedFree, 1);
                if let Some(completed) = self.table.complete_last(reason) {
                    self.normal_list.completed(cx, mode, completed);
                }
            }
            Continued::Damaged(packet) => self.normal_list.normal(cx, mode, packet),
            Continued::Not(packet) => self.receive_any(cx, mode, network, packet),
        }
    }

    /// Handles a frame that the header comparison of [`receive`](Self::receive) did not recognize.
    /// This is a separate function, so that the common case needs fewer registers.
    #[inline(never)]
    fn receive_any(&mut self, cx: &mut Cx, mode: &GroMode, network: usize, packet: Packet) {
        let received = self.table.receive(cx, network, mode, packet);
        if let Some(completed) = received.completed {
            self.normal_list.completed(cx, mode, completed);
        }
        match received.outcome {
            Outcome::Merged => cx.count(Counter::GroMerged, 1),
            Outcome::MergedFree => cx.count(Counter::GroMergedFree, 1),
            Outcome::Held => cx.count(Counter::GroHeld, 1),
            Outcome::Normal(packet) => self.normal_list.normal(cx, mode, packet),
            Outcome::Fragment(packet, addresses) => {
                self.table.flush_between(cx, mode, &mut self.normal_list, addresses);
                self.normal_list.normal(cx, mode, packet);
            }
        }
    }

    /// Whether receive offload passes a frame on unchanged, in every mode, while it holds no
    /// packet.
    #[inline]
    pub(crate) fn cannot_merge(packet: &Packet, network: usize) -> bool {
        read::cannot_merge(packet, network)
    }

    /// Counts a frame that is delivered alone and unchanged, without passing through receive
    /// offload.
    #[inline]
    pub(crate) fn count_bypassed(cx: &Cx) {
        cx.count(Counter::GroNormal, 1);
        normal_list::count_list(cx, 1);
    }

    /// Completes the held packets, then flushes the list. The order is the same at every flush
    /// point. With `old_only`, packets that arrived in the present millisecond stay held.
    pub(crate) fn flush(&mut self, cx: &Cx, mode: &GroMode, old_only: bool) {
        self.complete(cx, mode, old_only);
        self.normal_list.flush(cx);
    }

    fn complete(&mut self, cx: &Cx, mode: &GroMode, old_only: bool) {
        if !self.table.is_empty() {
            self.table.flush(cx, mode, &mut self.normal_list, old_only);
        }
    }

    /// Ends a busy-poll cycle that received `received` frames and is followed by another cycle.
    /// Linux: `__busy_poll_stop`, `napi_busy_loop`, whose cycles complete no held packets, as with
    /// `RxListPerCycle`.
    pub(crate) fn end_cycle(
        &mut self,
        cx: &Cx,
        mode: &GroMode,
        flush: BusyPollFlush,
        received: usize,
    ) {
        match flush {
            BusyPollFlush::None => {}
            BusyPollFlush::RxListPerCycle => self.normal_list.flush(cx),
            BusyPollFlush::RxListAndOldGroPerCycle => self.flush(cx, mode, received > 0),
        }
    }

    /// Returns the packets to deliver now, oldest first. The caller takes all of them before it
    /// passes the next frame.
    #[inline]
    pub(crate) const fn ready(&mut self) -> &mut PacketList {
        self.normal_list.ready()
    }

    /// Whether no packet is held and the list is empty.
    pub(crate) const fn is_empty(&self) -> bool {
        self.table.is_empty() && self.normal_list.is_empty()
    }
}

/// Receive offload of one NAPI instance without a host, with separate settings. A dropped instance
/// frees its held packets.
#[derive(Debug)]
pub struct StandaloneGro {
    gro: Gro,
    mode: GroMode,
    network: usize,
}

impl StandaloneGro {
    /// Creates an instance without packets. `batch` has the meaning of `net.core.gro_normal_batch`.
    /// The IP packet of a superframe is shorter than `max_bytes` bytes; 0 disables merging. The IP
    /// header of a frame begins at offset `network`.
    #[must_use]
    pub fn new(exit: GroExit, batch: u32, max_bytes: u32, network: usize) -> Self {
        let merges = max_bytes > 0;
        let batch = batch.max(1);
        let mode = GroMode { exit, batch, merges, max_bytes, ipv4_max_bytes: max_bytes };
        Self { gro: Gro::default(), mode, network }
    }

    /// Takes a frame and returns the packets to deliver now, oldest first.
    pub fn receive(&mut self, cx: &mut Cx, frame: Packet) -> PacketList {
        self.gro.receive(cx, &self.mode, self.network, frame);
        core::mem::take(self.gro.ready())
    }

    /// Ends a poll and returns all held and waiting packets. With `old_only`, packets that arrived
    /// in the present millisecond stay held.
    pub fn end_poll(&mut self, cx: &Cx, old_only: bool) -> PacketList {
        self.gro.flush(cx, &self.mode, old_only);
        core::mem::take(self.gro.ready())
    }

    /// Whether no packet is held or waiting.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.gro.is_empty()
    }
}
