//! A run: a range of the sequence space without a gap, and its packets.
//!
//! Above: `reassembly`, which keeps runs sorted and separated by gaps. Linux has no counterpart;
//! its queue is a tree of packets.

use pkt::{Packet, PacketList, Pool};

use crate::wire::seq::SeqNum;

/// Largest payload that is copied into another packet: a descriptor takes more memory than a
/// smaller payload.
const COLLAPSE_BYTES_MAX: usize = 512;

/// Largest payload of the resulting packet, so that repeated copies have a bounded cost.
const COLLAPSED_BYTES_MAX: usize = 4096;

/// A range without a gap.
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

    /// Appends the run that starts at the end of this one.
    pub(super) fn absorb(&mut self, next: &mut Self) {
        debug_assert_eq!(self.end, next.start);
        self.end = next.end;
        self.truesize += next.truesize;
        self.packets.append(&mut next.packets);
    }

    /// Drops the bytes before `seq`, which is inside the run: whole packets go to `stale`, and one
    /// packet may be trimmed.
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

    /// Keeps as many packets from the front as fit into `limit_bytes` of memory; the other packets
    /// go to `pruned`.
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

    /// Copies adjacent small packets together; returns the number of packets that this saves.
    /// Packets that cannot be copied for lack of memory stay as they are.
    pub(super) fn collapse(&mut self, pool: &mut Pool) -> usize {
        let before = self.packets.len();
        let (mut kept, mut memory) = (PacketList::default(), 0);
        let mut keep = |packet: Packet| {
            memory += truesize(&packet);
            kept.push_back(packet);
        };
        let mut tail: Option<Packet> = None;
        while let Some(packet) = self.packets.pop_front() {
            let small = is_small(&packet);
            if small
                && let Some(open) = tail.as_mut()
                && take_over(open, &packet, pool)
            {
                pool.free(packet);
                continue;
            }
            tail.replace(packet).into_iter().for_each(&mut keep);
        }
        tail.into_iter().for_each(&mut keep);
        (self.packets, self.truesize) = (kept, memory);
        before - self.packets.len()
    }
}

/// Returns whether the packet is worth copying, because a descriptor takes more memory than its
/// payload.
pub(super) fn is_small(packet: &Packet) -> bool {
    packet.len() <= COLLAPSE_BYTES_MAX
}

/// Copies the payload of `packet` to the end of `open`. Returns `false`, without a change, if it
/// does not fit.
fn take_over(open: &mut Packet, packet: &Packet, pool: &mut Pool) -> bool {
    let before = open.len();
    if before + packet.len() > COLLAPSED_BYTES_MAX {
        return false;
    }
    let fitted = packet.slices().all(|slice| open.append(pool, slice) == slice.len());
    if !fitted {
        open.truncate(before);
    }
    fitted
}

/// Reduces the packet to its `len` bytes from offset `skip` on.
pub(super) fn trim(packet: &mut Packet, skip: u32, len: u32) {
    packet.advance(skip as usize);
    packet.truncate(len as usize);
}

/// Returns a packet's length, which fits because no packet is longer than a superframe (a packet of
/// several segments: 64 KB and more, far below 2^32 bytes).
pub(super) fn payload_len(packet: &Packet) -> u32 {
    u32::try_from(packet.len()).unwrap_or(u32::MAX)
}

pub(super) fn truesize(packet: &Packet) -> usize {
    packet.truesize() as usize
}
