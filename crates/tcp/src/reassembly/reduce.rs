//! Memory given back: small packets copied together, and the far end of the queue dropped.
//!
//! Above: `input::prune`, when the receive buffer overran. RFC 2018 §8; Linux: tcp_collapse_ofo_queue,
//! tcp_prune_ofo_queue.
//!
//! Both walk packets. The caller makes room for many segments at once, so that a peer which fills the queue with tiny
//! ones pays for each walk with as many of them (CVE-2018-5390, SegmentSmack).

use pkt::{PacketList, Pool};

use super::Reassembly;

impl Reassembly {
    /// Frees memory down to `limit_bytes` by giving back the packets furthest from their turn, to
    /// be dropped with `DropReason::TcpOfoPrune`. The peer must keep what it has not been
    /// acknowledged for, even when SACK reported it (RFC 2018 §8).
    #[must_use]
    pub fn prune(&mut self, limit_bytes: usize) -> PacketList {
        let mut pruned = PacketList::default();
        while self.truesize > limit_bytes {
            let Some(last) = self.runs.back_mut() else { break };
            let others = self.truesize - last.truesize;
            let packets = last.packets.len();
            last.keep_front(limit_bytes.saturating_sub(others), &mut pruned);
            self.truesize = others + last.truesize;
            if last.start == last.end {
                self.runs.pop_back();
            }
            self.note_steps(packets);
        }
        self.shrink();
        pruned
    }

    /// Copies small neighbours within a run together, if small packets of at least `worth_bytes` of memory came since that
    /// was last done; answers how many packets that saved.
    pub fn collapse(&mut self, pool: &mut Pool, worth_bytes: usize) -> usize {
        if self.small_truesize < worth_bytes.max(1) {
            return 0;
        }
        self.small_truesize = 0;
        let (mut saved, mut packets, mut memory) = (0, 0, 0);
        for run in &mut self.runs {
            packets += run.packets.len();
            saved += run.collapse(pool);
            memory += run.truesize;
        }
        self.truesize = memory;
        self.note_steps(packets);
        saved
    }
}
