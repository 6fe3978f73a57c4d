//! Generic receive offload: merges TCP segments that arrive in a row before IP sees them, and passes packets up in lists.
//!
//! Above: `napi`, which polls. Below: `link_input::input_list`, which takes what is ready. Linux: net/core/gro.c, net/ipv4/tcp_offload.c.
//!
//! ```text
//!             ┌─ merged ──► a held packet grows          ┌──────────┐ batch full, flush
//!   frame ────┼─ held ────► table: 8 buckets of 8        │   list   ├────────────────► ready ─► link_input::input_list
//!             └─ normal ───────────────────────────────► └──────────┘
//!                           completed: PSH, differs, full ──► ▲
//! ```
//!
//! One `Gro` belongs to one NAPI instance, and only the owner of its poll touches it. A superframe comes apart into the very
//! segments it was made of (the tests let `gso` do it), so that merging changes nothing but the number of packets that IP, TCP
//! and the socket see.
//!
//! **Order.** What was held leaves before the list does, at every point where the poll may be given up (`Gro::flush`), and by
//! the same list. Any segment of a flow completes what is held of it, even one that could never be merged, such as a packet
//! with IP options; a fragment completes all that is held between its addresses. Differs from Linux, where such packets
//! overtake.
//!
//! **Cost.** With nothing held, a frame that can neither be merged nor begin anything (a pure ACK, a single segment with PSH, a
//! superframe that the device has made) is passed on after a look at a few bytes.
//!
//! Not here: UDP, tunnels (a packet has one IP and one TCP header, so there is no nesting to limit), the timer that bounds how
//! long a held packet waits for the next poll (`receive::napi`).

use pkt::{Packet, PacketList};

use crate::{
    base::counters::Counter,
    cx::Cx,
    sysctl::modes::{BusyPollFlush, GroExit},
};

pub(crate) use exit::GroMode;

use exit::Exit;
use table::{Continued, Outcome, Table};

mod exit;
mod held;
mod read;
mod table;
#[cfg(test)]
mod tests;

/// Why a held packet was completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlushReason {
    /// The last segment merged carried PSH, FIN, URG, SYN or RST.
    Psh,
    /// The next differs in control bits, acknowledgment, window or urgent pointer.
    Flags,
    /// The next does not continue it.
    Seq,
    /// The next has other TCP options.
    Options,
    /// The next differs in its link or IP header.
    Header,
    /// The last segment merged was shorter, or the next is longer, or has no payload.
    Len,
    /// With the next it would be too large, or have too many fragments.
    Size,
    /// Its bucket was full.
    FullBucket,
    /// It was held long enough.
    Age,
    /// The poll is over.
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

/// What a NAPI instance keeps for receive offload. See the module head.
#[derive(Debug, Default)]
pub(crate) struct Gro {
    table: Table,
    exit: Exit,
}

impl Gro {
    /// Takes one frame of the device, whose IP header begins `network` bytes in. The caller then takes up what is
    /// [`ready`](Self::ready).
    #[inline]
    pub(crate) fn receive(&mut self, cx: &mut Cx, mode: &GroMode, network: usize, packet: Packet) {
        if !mode.merges {
            // It may have been switched off with something held.
            self.complete(cx, mode, false);
            return self.exit.normal(cx, mode, packet);
        }
        match self.table.receive_next(cx, network, mode, packet) {
            Continued::Merged => cx.count(Counter::GroMergedFree, 1),
            Continued::Ended(reason) => {
                cx.count(Counter::GroMergedFree, 1);
                if let Some(completed) = self.table.complete_last(reason) {
                    self.exit.completed(cx, mode, completed);
                }
            }
            Continued::Damaged(packet) => self.exit.normal(cx, mode, packet),
            Continued::Not(packet) => self.receive_any(cx, mode, network, packet),
        }
    }

    /// [`receive`](Self::receive) of a frame that was not recognised. Apart, so that the common way keeps its registers.
    #[inline(never)]
    fn receive_any(&mut self, cx: &mut Cx, mode: &GroMode, network: usize, packet: Packet) {
        let received = self.table.receive(cx, network, mode, packet);
        if let Some(completed) = received.completed {
            self.exit.completed(cx, mode, completed);
        }
        match received.outcome {
            Outcome::Merged => cx.count(Counter::GroMerged, 1),
            Outcome::MergedFree => cx.count(Counter::GroMergedFree, 1),
            Outcome::Held => cx.count(Counter::GroHeld, 1),
            Outcome::Normal(packet) => self.exit.normal(cx, mode, packet),
            Outcome::Fragment(packet, addresses) => {
                self.table.flush_between(cx, mode, &mut self.exit, addresses);
                self.exit.normal(cx, mode, packet);
            }
        }
    }

    /// Whether a frame goes up as it came in every mode, if nothing is held.
    #[inline]
    pub(crate) fn goes_alone(packet: &Packet, network: usize) -> bool {
        read::goes_alone(packet, network)
    }

    /// Counts a frame that goes up as it came, alone, without passing through here.
    #[inline]
    pub(crate) fn count_alone(cx: &Cx) {
        cx.count(Counter::GroNormal, 1);
        exit::count_list(cx, 1);
    }

    /// Completes what is held and lets the list go up behind it, in this order at every flush point. With `old_only` what
    /// was held in the present millisecond stays.
    pub(crate) fn flush(&mut self, cx: &Cx, mode: &GroMode, old_only: bool) {
        self.complete(cx, mode, old_only);
        self.exit.flush(cx);
    }

    fn complete(&mut self, cx: &Cx, mode: &GroMode, old_only: bool) {
        if !self.table.is_empty() {
            self.table.flush(cx, mode, &mut self.exit, old_only);
        }
    }

    /// The end of a busy-poll cycle that goes on and has taken `received` frames. Linux: `__busy_poll_stop` and
    /// `napi_busy_loop`, whose cycles complete nothing that is held.
    pub(crate) fn end_cycle(
        &mut self,
        cx: &Cx,
        mode: &GroMode,
        flush: BusyPollFlush,
        received: usize,
    ) {
        match flush {
            BusyPollFlush::None => {}
            BusyPollFlush::RxListPerCycle => self.exit.flush(cx),
            BusyPollFlush::RxListAndOldGroPerCycle => self.flush(cx, mode, received > 0),
        }
    }

    /// What is to go up now, oldest first. The caller takes all of it before the next frame.
    #[inline]
    pub(crate) const fn ready(&mut self) -> &mut PacketList {
        self.exit.ready()
    }

    /// True with nothing held and nothing in the list.
    pub(crate) const fn is_empty(&self) -> bool {
        self.table.is_empty() && self.exit.is_empty()
    }
}

/// One NAPI instance's receive offload with settings of its own. Dropping it frees what it holds.
#[derive(Debug)]
pub struct Offline {
    gro: Gro,
    mode: GroMode,
    network: usize,
}

impl Offline {
    /// Nothing held. `batch` as `net.core.gro_normal_batch`; a superframe has fewer than `max_bytes` bytes of IP packet, and 0
    /// merges nothing; the IP header of a frame begins `network` bytes in.
    #[must_use]
    pub fn new(exit: GroExit, batch: u32, max_bytes: u32, network: usize) -> Self {
        let merges = max_bytes > 0;
        let batch = batch.max(1);
        let mode = GroMode { exit, batch, merges, max_bytes, ipv4_max_bytes: max_bytes };
        Self { gro: Gro::default(), mode, network }
    }

    /// Takes a frame; answers what goes up now, oldest first.
    pub fn receive(&mut self, cx: &mut Cx, frame: Packet) -> PacketList {
        self.gro.receive(cx, &self.mode, self.network, frame);
        core::mem::take(self.gro.ready())
    }

    /// The end of a poll: answers everything that was held and waited. With `old_only` what was held in the present millisecond
    /// stays.
    pub fn end_poll(&mut self, cx: &Cx, old_only: bool) -> PacketList {
        self.gro.flush(cx, &self.mode, old_only);
        core::mem::take(self.gro.ready())
    }

    /// Nothing is held and nothing waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.gro.is_empty()
    }
}
