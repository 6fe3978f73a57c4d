//! The held packets of one NAPI instance: buckets by flow, and what one more frame does to them.
//!
//! Linux: `struct gro_node`, `dev_gro_receive`, `napi_gro_flush`. Only the owner of the poll touches it.
//!
//! Each bucket is ordered by arrival, and whatever leaves it leaves oldest first, so that two packets of one flow can never
//! overtake each other here: of a flow at most one is held, and it leaves before its successor goes anywhere.

use std::net::IpAddr;

use arrayvec::ArrayVec;
use pkt::Packet;

use super::{
    Exit, FlushReason, GroMode,
    held::{Held, Next},
    read::{self, Candidate},
};
use crate::{base::counters::Counter, cx::Cx};

/// Buckets, as in Linux (`GRO_HASH_BUCKETS`).
const BUCKETS: usize = 1 << BUCKET_BITS;
const BUCKET_BITS: u32 = 3;

/// Packets held in one bucket, as in Linux (`MAX_GRO_SKBS`): the search is linear.
const HELD_MAX: usize = 8;

/// What became of one frame. Linux: `gro_result_t`, of which `GRO_CONSUMED` is missing, because nobody here takes a frame to give it
/// back later.
#[derive(Debug)]
#[must_use]
pub(super) enum Outcome {
    /// Its payload was copied into a held packet.
    Merged,
    /// Its payload moved to a held packet, and its descriptor is free.
    MergedFree,
    /// It is held itself.
    Held,
    /// It goes up as it came.
    Normal(Packet),
    /// It goes up as it came, behind all that is held between these addresses.
    Fragment(Packet, (IpAddr, IpAddr)),
}

/// Whether one frame continued the packet that grew or was held last.
#[derive(Debug)]
#[must_use]
pub(super) enum Continued {
    /// It did: its payload moved there, and its descriptor is free.
    Merged,
    /// As `Merged`, and that packet must not grow any more.
    Ended(FlushReason),
    /// It would have, but for its checksum.
    Damaged(Packet),
    /// No, or that is not known.
    Not(Packet),
}

/// What became of one frame, and what had to leave because of it: before it, if it goes up itself.
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

/// A packet that is not held any more.
#[derive(Debug)]
pub(super) struct Completed {
    held: Held,
    reason: FlushReason,
}

impl Completed {
    /// Counts it and makes it what goes up.
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

/// See the module head.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Oldest first.
    buckets: [ArrayVec<Held, HELD_MAX>; BUCKETS],
    /// Bit i is set exactly while bucket i holds a packet.
    mask: u8,
    /// Bucket and place of the packet that grew or was held last: the next frame most likely continues it.
    last: Option<(u8, u8)>,
}

const _: () = assert!(BUCKETS <= u8::BITS as usize, "a bit for every bucket");

impl Table {
    /// True with nothing held.
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.mask == 0
    }

    /// Takes one frame, whose IP header begins `network` bytes in, if it is recognised as the next segment of the packet that grew
    /// or was held last. Nearly every frame of a stream is; what is returned is small, and no held packet has to move.
    #[inline]
    pub(super) fn receive_next(
        &mut self,
        cx: &mut Cx,
        network: usize,
        mode: &GroMode,
        mut packet: Packet,
    ) -> Continued {
        let Some((index, at)) = self.last() else { return Continued::Not(packet) };
        let held = &mut self.buckets[index][at];
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
            // Its frags are too many: what that means is found out by `receive`.
            Err(packet) => Continued::Not(packet),
        }
    }

    /// The packet that the last frame continued is complete, for this reason.
    pub(super) fn complete_last(&mut self, reason: FlushReason) -> Option<Completed> {
        self.last().map(|(index, at)| self.remove(index, at, reason))
    }

    /// Takes one frame, whose IP header begins `network` bytes in.
    pub(super) fn receive(
        &mut self,
        cx: &mut Cx,
        network: usize,
        mode: &GroMode,
        mut packet: Packet,
    ) -> Received {
        if self.mask == 0 && read::goes_alone(&packet, network) {
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
            // Whatever its header says may be wrong: it is nobody's, and dies where it is counted.
            return Received::normal(packet);
        }
        let Some(at) = found else { return self.begin(cx, index, new, packet) };
        match refused {
            Some(reason) => self.replace(cx, (index, at), reason, new, packet),
            None => self.join(cx, (index, at), new, packet),
        }
    }

    /// Merges a segment into the packet of its flow.
    fn join(
        &mut self,
        cx: &mut Cx,
        (index, at): (usize, usize),
        new: &Candidate,
        packet: Packet,
    ) -> Received {
        let copies = packet.linear().len() > usize::from(new.headers);
        let next = new.next();
        if let Err(packet) = self.buckets[index][at].merge(&mut cx.pool, packet, &next) {
            return self.replace(cx, (index, at), FlushReason::Size, new, packet);
        }
        let outcome = if copies { Outcome::Merged } else { Outcome::MergedFree };
        self.joined((index, at), &next, outcome)
    }

    /// A segment was merged into a packet: that may have been its last.
    #[inline]
    fn joined(&mut self, (index, at): (usize, usize), next: &Next, outcome: Outcome) -> Received {
        let ended = self.buckets[index][at].ends_with(next);
        self.set_last(index, at);
        let completed = ended.map(|reason| self.remove(index, at, reason));
        Received { completed, outcome }
    }

    /// The packet of this flow does not go on with `new`: it leaves, and `new` may take its place.
    fn replace(
        &mut self,
        cx: &Cx,
        (index, at): (usize, usize),
        reason: FlushReason,
        new: &Candidate,
        packet: Packet,
    ) -> Received {
        let completed = Some(self.remove(index, at, reason));
        let rest = self.begin(cx, index, new, packet);
        debug_assert!(rest.completed.is_none(), "one has just left the bucket");
        Received { completed, outcome: rest.outcome }
    }

    /// The first segment of its flow.
    fn begin(&mut self, cx: &Cx, index: usize, new: &Candidate, packet: Packet) -> Received {
        if !new.may_be_held() {
            return Received::normal(packet);
        }
        let is_full = self.buckets[index].is_full();
        let completed = is_full.then(|| self.remove(index, 0, FlushReason::FullBucket));
        self.buckets[index].push(Held::new(packet, new, cx.now));
        self.mask |= 1 << index;
        self.set_last(index, self.buckets[index].len() - 1);
        Received { completed, outcome: Outcome::Held }
    }

    fn remove(&mut self, index: usize, at: usize, reason: FlushReason) -> Completed {
        let held = self.buckets[index].remove(at);
        // Whatever stands behind it moves.
        self.last = None;
        if self.buckets[index].is_empty() {
            self.mask &= !(1 << index);
        }
        Completed { held, reason }
    }

    #[inline]
    fn last(&self) -> Option<(usize, usize)> {
        self.last.map(|(index, at)| (usize::from(index), usize::from(at)))
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "8 buckets of 8")]
    const fn set_last(&mut self, index: usize, at: usize) {
        self.last = Some((index as u8, at as u8));
    }

    /// Completes everything held, or with `old_only` what was held before the present millisecond (Linux: jiffy).
    pub(super) fn flush(&mut self, cx: &Cx, mode: &GroMode, exit: &mut Exit, old_only: bool) {
        let reason = if old_only { FlushReason::Age } else { FlushReason::Complete };
        let mut left = self.mask;
        while left != 0 {
            let index = left.trailing_zeros() as usize;
            left &= left - 1;
            while let Some(oldest) = self.buckets[index].first() {
                if old_only && oldest.since.as_millis() == cx.now.as_millis() {
                    break;
                }
                let completed = self.remove(index, 0, reason);
                exit.completed(cx, mode, completed);
            }
        }
    }

    /// Completes what is held from the one address to the other: a piece of one of its segments goes up.
    #[cold]
    pub(super) fn flush_between(
        &mut self,
        cx: &Cx,
        mode: &GroMode,
        exit: &mut Exit,
        addresses: (IpAddr, IpAddr),
    ) {
        for index in 0..BUCKETS {
            while let Some(at) =
                self.buckets[index].iter().position(|held| held.is_between(addresses))
            {
                let completed = self.remove(index, at, FlushReason::Header);
                exit.completed(cx, mode, completed);
            }
        }
    }

    /// Packets held.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.buckets.iter().map(ArrayVec::len).sum()
    }

    /// Panics unless the bits say which buckets hold something, and a flow is held once.
    #[cfg(test)]
    pub(super) fn check(&self) {
        for (index, bucket) in self.buckets.iter().enumerate() {
            assert_eq!(self.mask & (1 << index) != 0, !bucket.is_empty(), "bucket {index}");
            assert!(bucket.iter().is_sorted_by_key(|held| held.since), "oldest first");
        }
    }
}
