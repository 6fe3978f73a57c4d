//! Table of the held packets (packets that wait for the next segment of their flow) of one NAPI
//! instance: buckets by flow, and the handling of one frame.
//!
//! Linux: `struct gro_node`, `dev_gro_receive`, `napi_gro_flush`. Only the owner of the poll
//! accesses the table.
//!
//! Each bucket is ordered by arrival; a flush and a full bucket complete the oldest packet first.
//! At most one packet of a flow is held, and it leaves before the next segment of the flow is held
//! or passed on. Only frames whose flow is not recognized can overtake it (see `gro`).

use arrayvec::ArrayVec;
use pkt::Packet;

use super::{
    FlushReason, GroMode, NormalList,
    held::{Held, Next},
    read::{self, Between, Candidate},
};
use crate::{base::counters::Counter, cx::Cx};

/// Number of buckets, as in Linux (`GRO_HASH_BUCKETS`).
const BUCKETS: usize = 1 << BUCKET_BITS;
const BUCKET_BITS: u32 = 3;

/// Maximum number of packets in one bucket, as in Linux (`MAX_GRO_SKBS`): the search is linear.
const HELD_MAX: usize = 8;

/// Result for one frame. Linux: `gro_result_t`. Its `GRO_CONSUMED` has no counterpart here, because
/// no layer keeps a frame and delivers it later.
#[derive(Debug)]
#[must_use]
pub(super) enum Outcome {
    /// The payload, or a part of it, was copied into a held packet.
    Merged,
    /// The payload moved to a held packet, and the frame's descriptor is free.
    MergedFree,
    /// The frame is held.
    Held,
    /// The frame passes unchanged.
    Normal(Packet),
    /// The frame is a fragment and passes unchanged, after all packets held between these
    /// addresses.
    Fragment(Packet, Between),
}

/// Result of comparing one frame with the last packet: the held packet that last grew or was last
/// added.
#[derive(Debug)]
#[must_use]
pub(super) enum Continued {
    /// The frame continued the last packet: the payload moved to it, and the frame's descriptor is
    /// free.
    Merged,
    /// As `Merged`, and the last packet must not grow further, for this reason.
    Ended(FlushReason),
    /// The frame would continue the last packet, but the frame's checksum is wrong.
    Damaged(Packet),
    /// There is no last packet, the comparison did not recognize the frame, or the last packet
    /// cannot take the payload.
    Not(Packet),
}

/// Result for one frame, with the packet it completed, if any. The completed packet leaves before
/// the frame.
#[derive(Debug)]
#[must_use]
pub(super) struct Received {
    pub(super) completed: Option<Completed>,
    pub(super) outcome: Outcome,
}

impl Received {
    const fn normal(packet: Packet) -> Self {
        Self { completed: None, outcome: Outcome::Normal(packet) }
    }
}

/// Packet that is no longer held.
#[derive(Debug)]
pub(super) struct Completed {
    held: Held,
    reason: FlushReason,
}

impl Completed {
    /// Counts the packet, and returns it with the headers of a superframe (a packet of several
    /// segments) if it has several segments.
    pub(super) fn into_packet(self, cx: &Cx) -> Packet {
        cx.count(self.reason.counter(), 1);
        let held_for = cx.now - self.held.since;
        cx.count(Counter::GroHeldMicros, u64::try_from(held_for.as_micros()).unwrap_or(u64::MAX));
        let packet = self.held.complete();
        let segs = packet.meta().gso.segs;
        if segs > 1 {
            cx.count(Counter::GroSuperframes, 1);
            cx.count(Counter::GroSuperframeSegments, u64::from(segs));
        }
        packet
    }
}

/// Bucket of a held packet, and the position of the packet in the bucket.
#[derive(Clone, Copy, Debug)]
struct Place {
    bucket: usize,
    at: usize,
}

/// Held packets of one NAPI instance.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Buckets, each ordered oldest first.
    buckets: [ArrayVec<Held, HELD_MAX>; BUCKETS],
    /// Bit set of nonempty buckets.
    mask: u8,
    /// Bucket and position of the packet that last grew or was last added: the next frame most
    /// likely continues it.
    last: Option<(u8, u8)>,
}

const _: () =
    assert!(BUCKETS <= u8::BITS as usize, "the mask has fewer bits than the table has buckets");

impl Table {
    /// Whether no packet is held.
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.mask == 0
    }

    /// Merges one frame, whose IP header begins at offset `network`, if the header comparison
    /// recognizes it as the next segment of the packet that last grew or was last added. It
    /// recognizes nearly every frame of a bulk transfer. The result is small, and no held packet
    /// moves in memory.
    #[inline]
    pub(super) fn receive_next(
        &mut self,
        cx: &mut Cx,
        network: usize,
        mode: &GroMode,
        mut packet: Packet,
    ) -> Continued {
        let Some(place) = self.last() else { return Continued::Not(packet) };
        let held = self.held(place);
        let Some(next) = held.next_of(&packet, network, mode) else {
            return Continued::Not(packet);
        };
        debug_assert_eq!(held.read_next(&mut packet, network, mode), Some(next));
        if !held.checksum_holds(cx, &next, &mut packet) {
            return Continued::Damaged(packet);
        }
        match held.merge(&mut cx.pool, packet, &next) {
            Ok(()) => match held.ends_with(&next) {
                None => Continued::Merged,
                Some(reason) => Continued::Ended(reason),
            },
            // The held packet cannot take the payload; `receive` handles this case.
            Err(packet) => Continued::Not(packet),
        }
    }

    /// Completes the packet that the last frame continued; `reason` is counted.
    pub(super) fn complete_last(&mut self, reason: FlushReason) -> Option<Completed> {
        self.last().map(|place| self.remove(place, reason))
    }

    /// Takes one frame, whose IP header begins at offset `network`.
    pub(super) fn receive(
        &mut self,
        cx: &mut Cx,
        network: usize,
        mode: &GroMode,
        mut packet: Packet,
    ) -> Received {
        if self.mask == 0 && read::cannot_merge(&packet, network) {
            return Received::normal(packet);
        }
        match read::read(&mut packet, network) {
            Some(new) => self.receive_segment(cx, &new, mode, packet),
            None => match read::fragment(&mut packet, network) {
                Some(between) => {
                    Received { completed: None, outcome: Outcome::Fragment(packet, between) }
                }
                None => Received::normal(packet),
            },
        }
    }

    fn receive_segment(
        &mut self,
        cx: &mut Cx,
        new: &Candidate,
        mode: &GroMode,
        mut packet: Packet,
    ) -> Received {
        let index = new.key.bucket(BUCKET_BITS);
        let found = self.buckets[index].iter().position(|held| held.is_of(&new.key));
        let max_bytes = mode.bytes_max(new.v4);
        let refused =
            found.and_then(|at| self.buckets[index][at].accepts(new, &packet, max_bytes).err());
        let joins = found.is_some() && refused.is_none();
        if (joins || new.may_be_held())
            && !read::checksum_holds(cx, new.layout(), &mut packet, || read::pseudo_header(new))
        {
            // With a wrong checksum, no header field can be trusted. The packet passes unchanged,
            // completes no held packet, and is counted by the layer that drops it.
            return Received::normal(packet);
        }
        let Some(at) = found else { return self.begin(cx, index, new, packet) };
        match refused {
            Some(reason) => self.replace(cx, Place { bucket: index, at }, reason, new, packet),
            None => self.join(cx, Place { bucket: index, at }, new, packet),
        }
    }

    /// Merges a segment into the packet of its flow.
    fn join(&mut self, cx: &mut Cx, place: Place, new: &Candidate, packet: Packet) -> Received {
        let copies = packet.linear().len() > usize::from(new.headers);
        let next = new.next();
        if let Err(packet) = self.held(place).merge(&mut cx.pool, packet, &next) {
            return self.replace(cx, place, FlushReason::Size, new, packet);
        }
        let outcome = if copies { Outcome::Merged } else { Outcome::MergedFree };
        self.joined(place, &next, outcome)
    }

    /// Completes the packet at `place` if the segment just merged was its last one.
    #[inline]
    fn joined(&mut self, place: Place, next: &Next, outcome: Outcome) -> Received {
        let ended = self.held(place).ends_with(next);
        self.set_last(place);
        let completed = ended.map(|reason| self.remove(place, reason));
        Received { completed, outcome }
    }

    /// Completes the held packet of this flow, which `new` does not continue. `new` is then held if
    /// it may be.
    fn replace(
        &mut self,
        cx: &Cx,
        place: Place,
        reason: FlushReason,
        new: &Candidate,
        packet: Packet,
    ) -> Received {
        let completed = Some(self.remove(place, reason));
        let rest = self.begin(cx, place.bucket, new, packet);
        debug_assert!(
            rest.completed.is_none(),
            "the bucket is full, although a packet has just left it"
        );
        Received { completed, outcome: rest.outcome }
    }

    /// Holds a segment of a flow that has no held packet, if the segment may be held.
    fn begin(&mut self, cx: &Cx, index: usize, new: &Candidate, packet: Packet) -> Received {
        if !new.may_be_held() {
            return Received::normal(packet);
        }
        let is_full = self.buckets[index].is_full();
        let oldest = Place { bucket: index, at: 0 };
        let completed = is_full.then(|| self.remove(oldest, FlushReason::FullBucket));
        self.buckets[index].push(Held::new(packet, new, cx.now));
        self.mask |= 1 << index;
        self.set_last(Place { bucket: index, at: self.buckets[index].len() - 1 });
        Received { completed, outcome: Outcome::Held }
    }

    fn remove(&mut self, place: Place, reason: FlushReason) -> Completed {
        let held = self.buckets[place.bucket].remove(place.at);
        // The removal changes the positions of the packets after it.
        self.last = None;
        if self.buckets[place.bucket].is_empty() {
            self.mask &= !(1 << place.bucket);
        }
        Completed { held, reason }
    }

    fn held(&mut self, place: Place) -> &mut Held {
        &mut self.buckets[place.bucket][place.at]
    }

    #[inline]
    fn last(&self) -> Option<Place> {
        self.last.map(|(bucket, at)| Place { bucket: usize::from(bucket), at: usize::from(at) })
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "there are 8 buckets of 8 packets")]
    const fn set_last(&mut self, place: Place) {
        self.last = Some((place.bucket as u8, place.at as u8));
    }

    /// Completes all held packets or, with `old_only`, those that arrived before the present
    /// millisecond (Linux: jiffy).
    pub(super) fn flush(
        &mut self,
        cx: &Cx,
        mode: &GroMode,
        normal_list: &mut NormalList,
        old_only: bool,
    ) {
        let reason = if old_only { FlushReason::Age } else { FlushReason::Complete };
        let mut left = self.mask;
        while left != 0 {
            let index = left.trailing_zeros() as usize;
            left &= left - 1;
            while let Some(oldest) = self.buckets[index].first() {
                if old_only && oldest.since.as_millis() == cx.now.as_millis() {
                    break;
                }
                let completed = self.remove(Place { bucket: index, at: 0 }, reason);
                normal_list.completed(cx, mode, completed);
            }
        }
    }

    /// Completes the packets held between these addresses, because a fragment between them is
    /// passed on, and its flow is unknown.
    #[cold]
    pub(super) fn flush_between(
        &mut self,
        cx: &Cx,
        mode: &GroMode,
        normal_list: &mut NormalList,
        between: Between,
    ) {
        for index in 0..BUCKETS {
            while let Some(at) =
                self.buckets[index].iter().position(|held| held.is_between(between))
            {
                let completed = self.remove(Place { bucket: index, at }, FlushReason::Header);
                normal_list.completed(cx, mode, completed);
            }
        }
    }

    /// Returns the number of held packets.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.buckets.iter().map(ArrayVec::len).sum()
    }

    /// Panics unless the mask matches the buckets and each bucket is sorted by age.
    #[cfg(test)]
    pub(super) fn check(&self) {
        for (index, bucket) in self.buckets.iter().enumerate() {
            assert_eq!(self.mask & (1 << index) != 0, !bucket.is_empty(), "bucket {index}");
            assert!(
                bucket.iter().is_sorted_by_key(|held| held.since),
                "a bucket is not sorted by age"
            );
        }
    }
}
