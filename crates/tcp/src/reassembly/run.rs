//! A stretch of the sequence space without a gap, and the packets that fill it.
//!
//! Above: `reassembly`, which keeps runs sorted and apart. Linux: none; its queue is a tree of packets.

use pkt::{Packet, PacketList};

use crate::seq::SeqNum;

/// A stretch without a gap.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) start: SeqNum,
    pub(super) end: SeqNum,
    pub(super) packets: PacketList,
    pub(super) truesize: usize,
}

impl Run {
    pub(super) fn new(start: SeqNum, end: SeqNum, packet: Packet) -> Self {
        let truesize = truesize(&packet);
        let mut packets = PacketList::default();
        packets.push_back(packet);
        Self { start, end, packets, truesize }
    }

    /// Takes over the run that starts at this one's end.
    pub(super) fn absorb(&mut self, next: &mut Self) {
        debug_assert_eq!(self.end, next.start);
        self.end = next.end;
        self.truesize += next.truesize;
        self.packets.append(&mut next.packets);
    }

    /// Drops the bytes before `seq`, which is inside: whole packets go to `stale`, one may lose its
    /// front.
    pub(super) fn skip_to(&mut self, seq: SeqNum, stale: &mut PacketList) {
        let mut skip = seq.since(self.start);
        self.start = seq;
        while skip != 0 {
            let Some(mut packet) = self.packets.pop_front() else { break };
            let len = payload_len(&packet);
            if len <= skip {
                skip -= len;
                self.truesize -= truesize(&packet);
                stale.push_back(packet);
            } else {
                trim(&mut packet, skip, len - skip);
                skip = 0;
                self.packets.push_front(packet);
            }
        }
    }

    /// Keeps as many packets from the front as `limit_bytes` of memory holds; the rest goes to
    /// `pruned`.
    pub(super) fn keep_front(&mut self, limit_bytes: usize, pruned: &mut PacketList) {
        let mut kept = PacketList::default();
        let (mut end, mut memory) = (self.start, 0);
        while let Some(packet) = self.packets.pop_front() {
            if memory + truesize(&packet) > limit_bytes {
                pruned.push_back(packet);
                break;
            }
            memory += truesize(&packet);
            end += payload_len(&packet);
            kept.push_back(packet);
        }
        pruned.append(&mut self.packets);
        (self.packets, self.end, self.truesize) = (kept, end, memory);
    }
}

/// Keeps `len` bytes from `skip` on.
pub(super) fn trim(packet: &mut Packet, skip: u32, len: u32) {
    packet.advance(skip as usize);
    packet.truncate(len as usize);
}

/// A packet's length. No packet is longer than a superframe, so it fits.
pub(super) fn payload_len(packet: &Packet) -> u32 {
    u32::try_from(packet.len()).unwrap_or(u32::MAX)
}

pub(super) fn truesize(packet: &Packet) -> usize {
    packet.truesize() as usize
}
