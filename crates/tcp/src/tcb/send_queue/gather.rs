//! Collects unsent data into one entry of a given size: the payload of a path MTU probe.
//!
//! Above: `output::mtu_probe`. Linux: the copying half of tcp_mtu_probe.

use pkt::{Packet, Pool};

use super::{Entry, EntryFlags, SendQueue, free};

impl SendQueue {
    /// Makes the first unsent entry hold exactly `len` bytes: splits a longer entry, or copies a
    /// shorter entry and its successors into a new packet. Returns `false`, without any change, if
    /// fewer than `len` bytes are unsent, if there is no memory, or if the FIN would be part of the
    /// entry. A copy also requires that unsent bytes remain after the new entry.
    pub(crate) fn gather(&mut self, pool: &mut Pool, len: u32) -> bool {
        let index = self.sent;
        let Some(first) = self.entries.get(index) else { return false };
        if first.len > len {
            return self.split(pool, index, len);
        }
        if first.len == len {
            return !first.flags.contains(EntryFlags::FIN);
        }
        let Some(mut packet) = pool.alloc_fclone() else { return false };
        if !self.copy_unsent(pool, &mut packet, len as usize) {
            pool.free(packet);
            return false;
        }
        let seq = self.entries[index].seq;
        self.drop_unsent(pool, len);
        let charge = packet.truesize();
        self.wmem_queued += charge;
        let rest = &self.entries[index];
        let entry = Entry {
            packet: Some(packet),
            seq,
            len,
            charge,
            retransmits: 0,
            flags: EntryFlags::empty(),
            sent_at: rest.sent_at,
            snapshot: rest.snapshot,
        };
        self.entries.insert(index, entry);
        true
    }

    /// Copies the first `missing` unsent bytes into `packet`. Returns `false` if no more than
    /// `missing` bytes are unsent, or if there is no memory.
    fn copy_unsent(&self, pool: &mut Pool, packet: &mut Packet, mut missing: usize) -> bool {
        let unsent = self.entries.range(self.sent..);
        if unsent.clone().map(|entry| entry.len as usize).sum::<usize>() <= missing {
            return false;
        }
        for source in unsent.filter_map(|entry| entry.packet.as_ref()) {
            for slice in source.slices() {
                let wanted = &slice[..slice.len().min(missing)];
                if packet.append(pool, wanted) < wanted.len() {
                    return false;
                }
                missing -= wanted.len();
                if missing == 0 {
                    return true;
                }
            }
        }
        false
    }

    /// Removes the first `left` unsent bytes; more than `left` bytes must be unsent.
    fn drop_unsent(&mut self, pool: &mut Pool, mut left: u32) {
        while left > 0 {
            let entry = &mut self.entries[self.sent];
            if entry.len > left {
                entry.seq += left;
                entry.len -= left;
                if let Some(packet) = entry.packet.as_mut() {
                    packet.advance(left as usize);
                    let charge = packet.truesize();
                    self.wmem_queued = self.wmem_queued - entry.charge + charge;
                    entry.charge = charge;
                }
                return;
            }
            left -= entry.len;
            let Some(gone) = self.entries.remove(self.sent) else { return };
            self.wmem_queued -= gone.charge;
            free(pool, gone.packet);
        }
    }
}
