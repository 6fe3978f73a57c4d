//! The receive queue of a datagram socket.
//!
//! Above: `softirq`, which adds, and `recv`, which takes. Linux: `__udp_enqueue_schedule_skb`,
//! `udp_gro_receive_segment`.
//!
//! A datagram in the queue is a packet without headers; the headers stay readable in front of it
//! (`Packet::network_header`). With `UDP_GRO`, a datagram is joined to the packet before it if both
//! have the same addresses and ports, device, TOS or traffic class and flow label, and TTL or hop
//! limit, the datagrams of that packet have one size, and the new datagram is not larger. A
//! superframe of a device that takes several datagrams as one packet is such a packet, too; a
//! receive without `UDP_GRO` takes one datagram of it after the other (`recv`). Differs from Linux:
//! datagrams are joined here and not in receive offload.
//!
//! A datagram holds the pages that it was received into, of which it is charged only its own bytes.
//! Small datagrams that stay in a queue could therefore hold much more memory than their charges.
//! Once a queue has [`BEHIND_BYTES`], or half of its limit, its reader is behind: further small
//! payloads are then copied together (Linux: `skb_condense` in `__udp_enqueue_schedule_skb`).

use pkt::{Gso, Packet, PacketList, Pool};

use crate::header::ip;

/// Largest number of datagrams that are joined (`UDP_GRO_CNT_MAX`).
const JOINED_MAX: u16 = 64;

/// Largest payload of joined datagrams: that of one datagram of the largest IPv4 packet.
const JOINED_BYTES_MAX: usize = 65_535 - 28;

/// Charged bytes of a queue above which small payloads are copied out of their receive pages: half
/// of the default limit, and a bound for sockets with a larger one.
pub(super) const BEHIND_BYTES: u32 = 104 << 10;

/// Datagrams that wait for the application, oldest first.
#[derive(Debug, Default)]
pub(super) struct ReceiveQueue {
    list: PacketList,
    /// Last datagram added with `UDP_GRO`, to which the next one may be joined. `None` if the queue
    /// is empty, if the last datagram was added without `UDP_GRO`, or if a peek has moved it to
    /// `list`.
    newest: Option<Packet>,
    /// Sum of the `truesize` of all datagrams (`sk_rmem_alloc`).
    rmem: u32,
}

impl ReceiveQueue {
    pub(super) const fn rmem(&self) -> u32 {
        self.rmem
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.list.is_empty() && self.newest.is_none()
    }

    /// Adds a datagram at the end. `limit` is that of the queue in charged bytes, and `joins` the
    /// option `UDP_GRO`.
    #[inline]
    pub(super) fn push(&mut self, pool: &mut Pool, mut packet: Packet, limit: u32, joins: bool) {
        if self.rmem > BEHIND_BYTES.min(limit / 2) {
            packet.condense(pool);
        }
        if !joins {
            self.rmem += packet.truesize();
            self.list.extend(self.newest.take());
            return self.list.push_back(packet);
        }
        self.push_joined(pool, packet);
    }

    fn push_joined(&mut self, pool: &mut Pool, packet: Packet) {
        let mut packet = packet;
        if let Some(newest) = &mut self.newest
            && may_join(newest, &packet)
        {
            let before = newest.truesize();
            match join(pool, newest, packet) {
                Ok(()) => return self.rmem += newest.truesize() - before,
                Err(refused) => packet = refused,
            }
        }
        self.rmem += packet.truesize();
        self.list.extend(self.newest.replace(packet));
    }

    /// Takes the oldest datagram.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Packet> {
        let packet = self.list.pop_front().or_else(|| self.newest.take())?;
        self.rmem -= packet.truesize();
        Some(packet)
    }

    /// Returns a datagram, which was taken from the queue, to the front.
    pub(super) fn put_back(&mut self, packet: Packet) {
        self.rmem += packet.truesize();
        self.list.push_front(packet);
    }
}

/// Returns the size of the joined datagrams of a packet, and their number.
#[inline]
pub(super) fn segments(packet: &Packet) -> (usize, u16) {
    match packet.meta().gso.segs {
        0 | 1 => (packet.len(), 1),
        segs => (usize::from(packet.meta().gso.size), segs),
    }
}

/// Returns whether the datagram `next` may be joined to `newest` (module head).
fn may_join(newest: &Packet, next: &Packet) -> bool {
    let (size, segs) = segments(newest);
    let (ip, next_ip) = (newest.network_header(), next.network_header());
    let (udp, next_udp) = (newest.transport_header(), next.transport_header());
    size > 0
        && !next.is_empty()
        && next.len() <= size
        && newest.len() == size * usize::from(segs)
        && segs < JOINED_MAX
        && newest.len() + next.len() <= JOINED_BYTES_MAX
        && newest.meta().rx_device == next.meta().rx_device
        && same_path(ip, next_ip)
        && udp.get(..4) == next_udp.get(..4)
}

/// Whether two IP headers have the same version, addresses, TOS and TTL; for IPv6, traffic class,
/// flow label and hop limit.
fn same_path(ip: &[u8], next: &[u8]) -> bool {
    let same = |ranges: [std::ops::Range<usize>; 3]| {
        ranges.into_iter().all(|range| ip.get(range.clone()) == next.get(range))
    };
    if ip::is_v4(ip) { same([0..2, 8..9, 12..20]) } else { same([0..4, 7..8, 8..40]) }
}

/// Removes the first `count` datagrams of a packet that has more.
pub(super) fn remove_first(packet: &mut Packet, count: usize) {
    let (size, segs) = segments(packet);
    packet.advance(size * count);
    let left = segs - u16::try_from(count).expect("the packet has more datagrams");
    let gso = &mut packet.meta_mut().gso;
    gso.segs = left;
    if left == 1 {
        *gso = Gso::default();
    }
}

fn join(pool: &mut Pool, newest: &mut Packet, next: Packet) -> Result<(), Packet> {
    let (size, segs) = segments(newest);
    newest.append_packet(pool, next)?;
    let gso = &mut newest.meta_mut().gso;
    gso.size = u16::try_from(size).expect("a datagram has a 16-bit length");
    gso.segs = segs + 1;
    Ok(())
}

#[cfg(test)]
mod tests {
    use pkt::{DENSE_BYTES_MAX, DESCRIPTOR_BYTES, Domain, DomainConfig};

    use super::*;

    /// Limit of the queues, that of a socket by default.
    const LIMIT: u32 = 212_992;

    /// Returns a received datagram from `port`, with its headers in front of the payload.
    fn datagram(pool: &mut Pool, port: u8, payload: &[u8]) -> Packet {
        let mut packet = pool.alloc().expect("the pool has memory");
        let mut headers = [0; 28];
        (headers[12], headers[21]) = (10, port);
        assert_eq!(packet.append(pool, &headers), 28);
        assert_eq!(packet.append(pool, payload), payload.len());
        strip(packet)
    }

    /// Moves the headers of a received packet in front of its payload.
    fn strip(mut packet: Packet) -> Packet {
        packet.set_network_header();
        assert!(packet.pull(20));
        packet.set_transport_header();
        assert!(packet.pull(8));
        packet
    }

    fn take_all(queue: &mut ReceiveQueue, pool: &mut Pool) -> Vec<(Vec<u8>, u16)> {
        let mut taken = Vec::new();
        while let Some(packet) = queue.pop() {
            taken.push((packet.to_vec(), segments(&packet).1));
            pool.free(packet);
        }
        taken
    }

    #[test]
    fn datagrams_of_one_size_and_a_shorter_one_are_joined() {
        let domain = Domain::new(DomainConfig::default());
        let mut pool = domain.pool();
        for len in [3, 700] {
            let mut queue = ReceiveQueue::default();
            let payload = |byte, len| vec![byte; len];
            let sent = [(1, len), (1, len), (1, len - 1), (1, len), (2, len), (2, len + 1)];
            for (number, (port, len)) in (0..).zip(sent) {
                let packet = datagram(&mut pool, port, &payload(number, len));
                queue.push(&mut pool, packet, LIMIT, true);
            }
            let first = [payload(0, len), payload(1, len), payload(2, len - 1)].concat();
            let expected =
                [(first, 3), (payload(3, len), 1), (payload(4, len), 1), (payload(5, len + 1), 1)];
            assert_eq!(take_all(&mut queue, &mut pool), expected);
            assert_eq!(queue.rmem(), 0);
        }
        drop(pool);
        assert_eq!(domain.balance(), 0);
    }

    #[test]
    fn datagrams_are_not_joined_if_empty_or_without_the_option() {
        let domain = Domain::new(DomainConfig::default());
        let mut pool = domain.pool();
        let mut queue = ReceiveQueue::default();
        for joins in [true, false, false] {
            let packet = datagram(&mut pool, 1, b"abc");
            queue.push(&mut pool, packet, LIMIT, joins);
        }
        for _ in 0..2 {
            let packet = datagram(&mut pool, 1, b"");
            queue.push(&mut pool, packet, LIMIT, true);
        }
        let first = queue.pop().expect("the queue has a datagram");
        queue.put_back(first);
        let lengths: Vec<_> = take_all(&mut queue, &mut pool)
            .iter()
            .map(|(bytes, segs)| (bytes.len(), *segs))
            .collect();
        assert_eq!(lengths, [(3, 1), (3, 1), (3, 1), (0, 1), (0, 1)]);
        assert_eq!(queue.rmem(), 0);
    }

    #[test]
    fn at_most_64_datagrams_are_joined() {
        let domain = Domain::new(DomainConfig::default());
        let mut pool = domain.pool();
        let mut queue = ReceiveQueue::default();
        for _ in 0..65 {
            let packet = datagram(&mut pool, 1, &[7; 1000]);
            queue.push(&mut pool, packet, LIMIT, true);
        }
        let joined: Vec<_> = take_all(&mut queue, &mut pool).iter().map(|taken| taken.1).collect();
        assert_eq!(joined, [64, 1]);
    }

    /// Each datagram is received into a page of its own, whose rest other frames use up.
    #[test]
    fn small_datagrams_that_wait_hold_little_more_memory_than_they_are_charged() {
        const PAYLOAD_BYTES: usize = 300;
        const PAGE_BYTES: usize = 8 * DENSE_BYTES_MAX;
        let domain = Domain::new(DomainConfig::default());
        let mut pool = domain.pool();
        for (limit, joins) in [(LIMIT, false), (8 << 20, false), (8 << 20, true)] {
            let mut queue = ReceiveQueue::default();
            let mut charged_by_hand = 0;
            let mut number = 0_u8;
            while queue.rmem() < 20 * BEHIND_BYTES.min(limit) / 10 && queue.rmem() < limit {
                number = number.wrapping_add(1);
                let mut frame = [number; 28 + PAYLOAD_BYTES];
                frame[..28].fill(0);
                let mut slot = pool.rx_slot(1500).expect("memory");
                slot.write(&frame);
                let mut packet = slot.finish(&mut pool, frame.len());
                assert!(packet.require_linear(28));
                let packet = strip(packet);
                charged_by_hand += packet.truesize();
                queue.push(&mut pool, packet, limit, joins);
                for _ in 0..22 {
                    let mut slot = pool.rx_slot(1500).expect("memory");
                    slot.write(&[0; 1500]);
                    let passing = slot.finish(&mut pool, 1500);
                    pool.free(passing);
                }
            }
            assert!(joins || queue.rmem() == charged_by_hand, "a copy changes no charge");
            // Before the reader was behind, each datagram held its page.
            let each = if joins { PAYLOAD_BYTES } else { DESCRIPTOR_BYTES + PAYLOAD_BYTES };
            let pages = BEHIND_BYTES.min(limit / 2) as usize / each + 2;
            let most = queue.rmem() as usize + (pages + 4) * PAGE_BYTES;
            let used = domain.used_bytes();
            assert!(used <= most, "{used} bytes are held, {} are charged", queue.rmem());
            for (bytes, _) in take_all(&mut queue, &mut pool) {
                assert!(bytes.chunks(PAYLOAD_BYTES).all(|part| part.iter().all(|b| *b == part[0])));
            }
            assert_eq!(queue.rmem(), 0);
        }
        drop(pool);
        assert_eq!(domain.balance(), 0);
    }
}
