//! Fragments of datagrams that are not complete: a table for each IP version, bounded in memory and
//! time.
//!
//! Above: `receive::reassembly`, which passes fragments and carries out the results. RFC 791 §3.2,
//! RFC 815, RFC 8200 §4.5, RFC 5722; Linux: net/ipv4/inet_fragment.c, net/ipv4/ip_fragment.c,
//! net/ipv6/reassembly.c.
//!
//! Both versions share one algorithm. The rules are those of Linux:
//!
//! - An IPv4 fragment whose bytes are all known is a duplicate and is dropped. One that overlaps in
//!   any other way ends the whole datagram (RFC 5722; for IPv4 as well, because two hosts may
//!   disagree on which copy counts). Differs from Linux: for IPv6, only a fragment with the offset
//!   and the length of a known one is a duplicate, as RFC 8200 says.
//! - A fragment that contradicts the known end of the datagram, or is empty, ends it, too
//!   (teardrop), and so does one that would make it longer than a packet can be (ping of death).
//! - A datagram that is not complete after `ipfrag_time` or `ip6frag_time` ends.
//! - IPv4 fragments that are separated by `ipfrag_max_dist` or more others of the same source
//!   belong to two datagrams with the same identification: the earlier ones are dropped. The 32
//!   bits of an IPv6 identification are not reused that soon.
//!
//! **Memory.** All fragments together have at most `ipfrag_high_thresh` or `ip6frag_high_thresh`
//! bytes, counted by their `truesize`, so that tiny fragments count their descriptors. Differs from
//! Linux, which then refuses new datagrams of all sources alike: here the source that holds most
//! loses its oldest datagram, so that a flood of one source ends its own datagrams, and other
//! sources are served.
//!
//! Not here: counters, ICMP errors, timers; joining the fragments of a complete datagram.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
    vec::Vec,
};

use pkt::{DropReason, Ecn, Instant, Packet, PacketList};

/// Largest value of the length field of a datagram, in bytes.
const DATAGRAM_BYTES_MAX: u32 = 65_535;

/// Settings of a table, by their Linux names.
#[derive(Clone, Copy, Debug)]
pub struct FragmentLimits {
    /// `ipfrag_high_thresh`, `ip6frag_high_thresh`: bytes of all fragments. 0: no fragment is
    /// accepted.
    pub high_thresh: u32,
    /// `ipfrag_time`, `ip6frag_time`.
    pub time: Duration,
    /// `ipfrag_max_dist`; 0: no limit.
    pub max_dist: u32,
}

/// Fields that all fragments of a datagram share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DatagramKey {
    /// Source. It comes first, so that the datagrams of a source are neighbors in the table.
    pub src: IpAddr,
    /// Destination.
    pub dst: IpAddr,
    /// Identification, of 16 or 32 bits.
    pub id: u32,
    /// Protocol; 0 for IPv6, whose identification does not depend on it.
    pub protocol: u8,
    /// Index of the receiving device if the addresses are valid on one link only; otherwise 0.
    pub device: u32,
}

/// Place of a fragment in its datagram.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Offset in bytes, a multiple of 8.
    pub offset: u16,
    /// Whether more fragments follow.
    pub more: bool,
    /// Bytes before the fragment's part of the datagram: the IP header with its options or
    /// extension headers.
    pub header_len: u16,
    /// Number of these bytes that the length field of the datagram counts: all for IPv4; for IPv6,
    /// those of the extension headers before the Fragment header.
    pub counted_len: u16,
    /// ECN field.
    pub ecn: Ecn,
    /// DF.
    pub dont: bool,
}

/// A fragment in the table.
#[derive(Debug)]
struct Piece {
    /// Offset of the first byte after it.
    end: u32,
    header_len: u16,
    counted_len: u16,
    packet: Packet,
}

/// A datagram that is not complete.
#[derive(Debug)]
struct Datagram {
    /// Fragments by offset. They do not overlap.
    pieces: BTreeMap<u32, Piece>,
    /// Largest end of a fragment.
    end: u32,
    /// Whether `end` is the end of the datagram.
    ends: bool,
    /// Bytes of all fragments without their headers.
    received: u32,
    /// Memory of all fragments.
    truesize: u64,
    /// ECN fields that have occurred, one bit for each.
    ecns: u8,
    /// Longest fragment, and longest one with DF, headers included.
    longest: u32,
    longest_df: u32,
    deadline: Instant,
    /// Number of fragments of the source when the last one of this datagram arrived.
    source_count: u32,
    /// Position in the order of creation.
    serial: u64,
}

/// Memory and fragments of one source. Linux: `struct inet_peer`.
#[derive(Debug, Default)]
struct Source {
    truesize: u64,
    /// Fragments that have arrived.
    count: u32,
    datagrams: usize,
}

/// A datagram all of whose fragments have arrived.
#[derive(Debug)]
pub struct Whole {
    /// Fragments in ascending order of offset, each with the length of its header.
    pub pieces: Vec<(u16, Packet)>,
    /// Bytes of the datagram without its header.
    pub payload_len: u32,
    /// ECN field (RFC 3168 §5.3).
    pub ecn: Ecn,
    /// Whether the longest fragment had DF. The sender then discovers the path MTU with fragments.
    pub dont: bool,
}

/// A datagram that ended without being complete.
#[derive(Debug)]
pub struct Ended {
    /// Reason of the end.
    pub reason: DropReason,
    /// Fragments in ascending order of offset.
    pub packets: PacketList,
    /// Whether the first packet is the datagram's first fragment.
    pub has_first: bool,
}

/// Effect of a fragment.
#[derive(Debug, Default)]
pub struct Effect {
    /// The datagram that the fragment completes.
    pub whole: Option<Whole>,
    /// Datagrams that ended; each is a failed reassembly.
    pub ended: Vec<Ended>,
    /// The fragment, if it was not accepted.
    pub refused: Option<(DropReason, Packet)>,
    /// Deadline for which the caller has to arm a timer.
    pub arm: Option<Instant>,
}

/// Incomplete datagrams of a host.
#[derive(Debug, Default)]
pub struct FragmentTable {
    datagrams: BTreeMap<DatagramKey, Datagram>,
    sources: BTreeMap<IpAddr, Source>,
    /// Sources by the memory of their fragments.
    by_memory: BTreeSet<(u64, IpAddr)>,
    /// Datagrams of each source by the order of creation.
    by_age: BTreeMap<(IpAddr, u64), DatagramKey>,
    /// Datagrams by deadline.
    by_deadline: BTreeSet<(Instant, DatagramKey)>,
    truesize: u64,
    serial: u64,
    /// Deadline of the armed timer.
    armed: Option<Instant>,
}

impl FragmentTable {
    /// Takes a fragment: a packet of one header and its part of the datagram, without padding.
    pub fn insert(
        &mut self,
        key: DatagramKey,
        place: Place,
        mut packet: Packet,
        limits: &FragmentLimits,
        now: Instant,
    ) -> Effect {
        let mut effect = Effect::default();
        if limits.high_thresh == 0 {
            effect.refused = Some((DropReason::FragmentMemory, packet));
            return effect;
        }
        trim(&place, &mut packet);
        self.find_or_make(key, limits, now, &mut effect);
        let offset = u32::from(place.offset);
        match self.check(&key, &place, &packet) {
            Check::Fits => {
                self.add(key, &place, packet);
                self.finish_if_complete(&key, offset, &mut effect);
            }
            Check::Duplicate => effect.refused = Some((DropReason::FragmentDuplicate, packet)),
            Check::Ends(reason) => {
                effect.ended.extend(self.end(&key, reason));
                effect.refused = Some((reason, packet));
            }
        }
        self.enforce(limits, &mut effect);
        effect.arm = self.next_to_arm();
        effect
    }

    /// Ends the datagrams whose time is over, and returns them with the deadline of the next timer.
    pub fn expire(&mut self, now: Instant) -> (Vec<Ended>, Option<Instant>) {
        self.armed = None;
        let mut ended = Vec::new();
        while let Some(&(deadline, key)) = self.by_deadline.first()
            && deadline <= now
        {
            ended.extend(self.end(&key, DropReason::FragmentTimeout));
        }
        (ended, self.next_to_arm())
    }

    /// Returns the memory of all fragments, in bytes (Linux: `FRAG: memory` of sockstat).
    #[must_use]
    pub const fn truesize(&self) -> u64 {
        self.truesize
    }

    /// Returns the number of datagrams (Linux: `FRAG: inuse` of sockstat).
    #[must_use]
    pub fn len(&self) -> usize {
        self.datagrams.len()
    }

    /// Whether no datagram is incomplete.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    /// Makes sure that the datagram exists, without fragments of an earlier one with its
    /// identification.
    fn find_or_make(
        &mut self,
        key: DatagramKey,
        limits: &FragmentLimits,
        now: Instant,
        effect: &mut Effect,
    ) {
        let source = self.sources.entry(key.src).or_default();
        source.count = source.count.wrapping_add(1);
        let count = source.count;
        if let Some(datagram) = self.datagrams.get_mut(&key) {
            let between = count.wrapping_sub(datagram.source_count);
            datagram.source_count = count;
            if limits.max_dist == 0 || between <= limits.max_dist {
                return;
            }
            effect.ended.extend(self.end(&key, DropReason::FragmentTooFar));
        }
        self.serial += 1;
        let (deadline, serial) = (now + limits.time, self.serial);
        let datagram = Datagram {
            pieces: BTreeMap::new(),
            end: 0,
            ends: false,
            received: 0,
            truesize: 0,
            ecns: 0,
            longest: 0,
            longest_df: 0,
            deadline,
            source_count: count,
            serial,
        };
        self.datagrams.insert(key, datagram);
        self.by_age.insert((key.src, serial), key);
        self.by_deadline.insert((deadline, key));
        let source =
            self.sources.entry(key.src).or_insert_with(|| Source { count, ..Source::default() });
        source.datagrams += 1;
    }

    /// Decides about a fragment of a datagram in the table.
    fn check(&self, key: &DatagramKey, place: &Place, packet: &Packet) -> Check {
        let datagram = &self.datagrams[key];
        let offset = u32::from(place.offset);
        let len = part_len(place, packet);
        let end = offset + len;
        if end + u32::from(place.counted_len) > DATAGRAM_BYTES_MAX {
            return Check::Ends(DropReason::FragmentTooBig);
        }
        let contradicts = if place.more {
            datagram.ends && end > datagram.end
        } else {
            end < datagram.end || (datagram.ends && end != datagram.end)
        };
        if contradicts || len == 0 {
            return Check::Ends(DropReason::FragmentMalformed);
        }
        if key.src.is_ipv6() && datagram.pieces.get(&offset).is_some_and(|piece| piece.end == end) {
            return Check::Duplicate;
        }
        let before = datagram.pieces.range(..=offset).next_back();
        // End of the bytes that are known from `offset` on without a gap.
        let mut known = before.map_or(offset, |(_, piece)| piece.end.max(offset));
        for (at, piece) in datagram.pieces.range(offset + 1..) {
            if *at != known || known >= end {
                break;
            }
            known = piece.end;
        }
        if key.src.is_ipv4() && end <= known {
            return Check::Duplicate;
        }
        let overlaps_before = before.is_some_and(|(_, piece)| offset < piece.end);
        let overlaps_after =
            datagram.pieces.range(offset..).next().is_some_and(|(at, _)| *at < end);
        if overlaps_before || overlaps_after {
            return Check::Ends(DropReason::FragmentOverlap);
        }
        Check::Fits
    }

    /// Adds a fragment that fits.
    fn add(&mut self, key: DatagramKey, place: &Place, packet: Packet) {
        let datagram = self.datagrams.get_mut(&key).expect("the datagram was made above");
        let (offset, len) = (u32::from(place.offset), part_len(place, &packet));
        let truesize = u64::from(packet.truesize());
        let whole_len = len + u32::from(place.header_len);
        datagram.end = datagram.end.max(offset + len);
        datagram.ends |= !place.more;
        datagram.received += len;
        datagram.truesize += truesize;
        datagram.ecns |= 1 << place.ecn.bits();
        datagram.longest = datagram.longest.max(whole_len);
        if place.dont {
            datagram.longest_df = datagram.longest_df.max(whole_len);
        }
        let Place { header_len, counted_len, .. } = *place;
        let piece = Piece { end: offset + len, header_len, counted_len, packet };
        datagram.pieces.insert(offset, piece);
        self.charge(key.src, truesize);
    }

    /// Removes the datagram if the fragment at `offset` was the last one missing.
    fn finish_if_complete(&mut self, key: &DatagramKey, offset: u32, effect: &mut Effect) {
        let datagram = &self.datagrams[key];
        debug_assert!(datagram.pieces.contains_key(&offset));
        if !datagram.ends || datagram.received != datagram.end {
            return;
        }
        // The result has the header of the first fragment, which may be longer than the others.
        let counted_len = datagram.pieces.get(&0).map_or(0, |first| u32::from(first.counted_len));
        let ecn = if datagram.end + counted_len > DATAGRAM_BYTES_MAX {
            Err(DropReason::FragmentTooBig)
        } else {
            joint_ecn(datagram.ecns).ok_or(DropReason::FragmentEcn)
        };
        match ecn {
            Err(reason) => effect.ended.extend(self.end(key, reason)),
            Ok(ecn) => {
                let Some(datagram) = self.take(key) else { return };
                effect.whole = Some(Whole {
                    payload_len: datagram.end,
                    ecn,
                    dont: datagram.longest_df == datagram.longest,
                    pieces: datagram
                        .pieces
                        .into_values()
                        .map(|piece| (piece.header_len, piece.packet))
                        .collect(),
                });
            }
        }
    }

    /// Ends datagrams until the fragments fit into the memory: the oldest one of the source that
    /// holds most, each time.
    fn enforce(&mut self, limits: &FragmentLimits, effect: &mut Effect) {
        while self.truesize > u64::from(limits.high_thresh) {
            let Some(&(_, src)) = self.by_memory.last() else { return };
            let range = (src, 0)..=(src, u64::MAX);
            let Some((_, &key)) = self.by_age.range(range).next() else { return };
            effect.ended.extend(self.end(&key, DropReason::FragmentMemory));
        }
    }

    /// Removes a datagram that will not be complete.
    fn end(&mut self, key: &DatagramKey, reason: DropReason) -> Option<Ended> {
        let datagram = self.take(key)?;
        let has_first = datagram.pieces.contains_key(&0);
        let packets = datagram.pieces.into_values().map(|piece| piece.packet).collect();
        Some(Ended { reason, packets, has_first })
    }

    fn take(&mut self, key: &DatagramKey) -> Option<Datagram> {
        let datagram = self.datagrams.remove(key)?;
        self.by_age.remove(&(key.src, datagram.serial));
        self.by_deadline.remove(&(datagram.deadline, *key));
        self.truesize -= datagram.truesize;
        let source = self.sources.get_mut(&key.src).expect("a datagram has a source");
        self.by_memory.remove(&(source.truesize, key.src));
        source.truesize -= datagram.truesize;
        source.datagrams -= 1;
        if source.datagrams == 0 {
            // Its count of fragments goes, too: no datagram is left that it could separate.
            self.sources.remove(&key.src);
        } else {
            self.by_memory.insert((source.truesize, key.src));
        }
        Some(datagram)
    }

    fn charge(&mut self, src: IpAddr, truesize: u64) {
        let source = self.sources.get_mut(&src).expect("a datagram has a source");
        self.by_memory.remove(&(source.truesize, src));
        source.truesize += truesize;
        self.by_memory.insert((source.truesize, src));
        self.truesize += truesize;
    }

    /// Returns the earliest deadline, if it needs a timer, and counts the timer as armed. A timer
    /// fires early if the datagram that it was armed for has ended.
    fn next_to_arm(&mut self) -> Option<Instant> {
        let &(next, _) = self.by_deadline.first()?;
        if self.armed.is_some_and(|armed| armed <= next) {
            return None;
        }
        self.armed = Some(next);
        self.armed
    }

    /// Verifies that the sums and orders agree with the datagrams.
    ///
    /// # Panics
    /// If they do not.
    pub fn check_all(&self) {
        let mut sources: BTreeMap<IpAddr, (u64, usize)> = BTreeMap::new();
        for (key, datagram) in &self.datagrams {
            let sum: u64 =
                datagram.pieces.values().map(|piece| u64::from(piece.packet.truesize())).sum();
            assert_eq!(sum, datagram.truesize);
            let received: u32 = datagram.pieces.iter().map(|(at, piece)| piece.end - at).sum();
            assert_eq!(received, datagram.received);
            let mut ends = datagram.pieces.iter().map(|(at, piece)| (*at, piece.end));
            let mut before = 0;
            assert!(ends.all(|(at, end)| at >= std::mem::replace(&mut before, end) && end > at));
            assert!(before <= datagram.end && datagram.end <= DATAGRAM_BYTES_MAX);
            assert!(self.by_deadline.contains(&(datagram.deadline, *key)));
            assert_eq!(self.by_age.get(&(key.src, datagram.serial)), Some(key));
            let source = sources.entry(key.src).or_default();
            *source = (source.0 + sum, source.1 + 1);
        }
        assert_eq!(self.by_deadline.len(), self.datagrams.len());
        assert_eq!(self.by_age.len(), self.datagrams.len());
        assert_eq!(self.truesize, sources.values().map(|(sum, _)| sum).sum::<u64>());
        let kept = |(ip, source): (&IpAddr, &Source)| (*ip, (source.truesize, source.datagrams));
        assert!(self.sources.iter().map(kept).eq(sources));
        let by_memory: BTreeSet<_> = self.by_memory.iter().map(|(sum, ip)| (*ip, *sum)).collect();
        assert!(by_memory.iter().all(|(ip, sum)| self.sources[ip].truesize == *sum));
    }
}

/// Decision about a fragment.
enum Check {
    Fits,
    /// All its bytes are known; for IPv6, it is an exact copy of a known fragment.
    Duplicate,
    /// The datagram ends.
    Ends(DropReason),
}

/// Cuts a fragment that others follow to a multiple of 8 bytes, because the rest has no place
/// (Linux: `ip_frag_queue`).
fn trim(place: &Place, packet: &mut Packet) {
    if place.more {
        let len = part_len(place, packet) & !7;
        packet.truncate(usize::from(place.header_len) + len as usize);
    }
}

/// Returns the bytes of a fragment behind its header.
fn part_len(place: &Place, packet: &Packet) -> u32 {
    let len = packet.len().saturating_sub(place.header_len.into());
    u32::try_from(len).unwrap_or(u32::MAX / 2)
}

/// Returns the ECN field of a datagram whose fragments had these fields: CE if one of them had it,
/// otherwise ECT(0) if one had it, otherwise ECT(1) or Not-ECT. `None` if some fragments were
/// capable of ECN and others were not (RFC 3168 §5.3; Linux: `ip_frag_ecn_table`).
fn joint_ecn(ecns: u8) -> Option<Ecn> {
    let has = |ecn: Ecn| ecns & (1 << ecn.bits()) != 0;
    let capable = [Ecn::Ect0, Ecn::Ect1, Ecn::Ce].into_iter().any(has);
    match (has(Ecn::NotEct), capable) {
        (true, true) => None,
        (_, false) => Some(Ecn::NotEct),
        _ if has(Ecn::Ce) => Some(Ecn::Ce),
        _ if has(Ecn::Ect0) => Some(Ecn::Ect0),
        _ => Some(Ecn::Ect1),
    }
}

#[cfg(test)]
mod tests;
