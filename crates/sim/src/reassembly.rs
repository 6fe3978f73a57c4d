//! Reassembly against any sequence of fragments: a string of bytes as fragments of a few datagrams
//! of a few sources, and pauses between them.
//!
//! Below: the fuzz target `reassembly`. Any string is a valid input.
//!
//! Requirements: no panic; the sums and orders of the table agree with its datagrams after every
//! step; the memory stays within the limit; every byte of a complete datagram is the byte that its
//! fragments had at this place; every packet is returned exactly once; after the last deadline the
//! table is empty.
//!
//! Not here: headers and counters (`hostile`).

use std::{
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use pkt::{Domain, DomainConfig, Ecn, Instant, Pool};
use stack::socket::net::fragments::{
    DatagramKey, Effect, FragmentLimits, FragmentTable, Place, Whole,
};

/// Steps of one run.
const STEPS_MAX: usize = 400;

/// Bytes of one step in the input.
const STEP_BYTES: usize = 6;

/// Plays an input.
///
/// # Panics
/// If a requirement does not hold.
pub fn run(data: &[u8]) {
    let domain = Domain::new(DomainConfig { max_bytes: 8 << 20 });
    let mut pool = domain.pool();
    let mut table = FragmentTable::default();
    let mut now = Instant::from_secs(1);
    let [limit, dist, data @ ..] = data else { return };
    let limits = FragmentLimits {
        high_thresh: u32::from(*limit) << 12,
        time: Duration::from_secs(30),
        max_dist: u32::from(*dist),
    };
    let (mut given, mut returned) = (0, 0);
    for step in data.chunks_exact(STEP_BYTES).take(STEPS_MAX) {
        let &[who, offset, len, flags, rest, wait] = step else { break };
        now += Duration::from_millis(u64::from(wait) * u64::from(wait));
        let (ended, _) = table.expire(now);
        returned += ended.iter().map(|ended| ended.packets.len()).sum::<usize>();
        let (key, place, len) = fragment(who, offset, len, flags, rest);
        given += 1;
        let packet = build(&mut pool, &key, &place, len);
        let Effect { whole, ended, refused, .. } = table.insert(key, place, packet, &limits, now);
        returned += ended.iter().map(|ended| ended.packets.len()).sum::<usize>();
        returned += usize::from(refused.is_some());
        if let Some(whole) = whole {
            returned += whole.pieces.len();
            check_whole(&key, &whole);
        }
        table.check_all();
        assert!(table.truesize() <= u64::from(limits.high_thresh));
    }
    let (ended, next) = table.expire(now + limits.time);
    returned += ended.iter().map(|ended| ended.packets.len()).sum::<usize>();
    assert!(next.is_none() && table.is_empty());
    assert_eq!(given, returned);
}

/// Returns the fragment that a step describes. Most offsets and lengths are small multiples of 8,
/// so that fragments meet; a flag moves the fragment to the end of the largest datagram.
fn fragment(who: u8, offset: u8, len: u8, flags: u8, rest: u8) -> (DatagramKey, Place, usize) {
    // The highest protocol number selects IPv6.
    let v4 = who >> 6 != 3;
    let ip = |tail: u8| match v4 {
        true => IpAddr::V4([10, 0, 0, tail].into()),
        false => IpAddr::V6(Ipv6Addr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, tail])),
    };
    let header_len = 20 + u16::from(flags >> 2 & 1) * 40;
    let key = DatagramKey {
        src: ip(who & 3),
        dst: ip(200 + (who >> 2 & 1)),
        id: u32::from(who >> 3 & 7),
        protocol: who >> 6,
        device: 0,
    };
    let far = if flags & 2 == 0 { 0 } else { 65_528 - 255 * 8 };
    let place = Place {
        offset: far + u16::from(offset) * 8,
        more: flags & 1 == 0,
        header_len,
        counted_len: if v4 { header_len } else { 0 },
        ecn: Ecn::from_traffic_class(if flags & 8 == 0 { 0 } else { flags >> 4 }),
        dont: flags & 0x40 != 0,
    };
    let odd = if flags & 0x80 == 0 { 0 } else { usize::from(rest & 7) };
    (key, place, usize::from(len) * 8 + odd)
}

/// Byte of a datagram at an offset.
fn pattern(key: &DatagramKey, at: usize) -> u8 {
    (at.wrapping_mul(31) ^ (at >> 8) ^ key.id as usize).to_le_bytes()[0]
}

fn build(pool: &mut Pool, key: &DatagramKey, place: &Place, len: usize) -> pkt::Packet {
    let start = usize::from(place.offset);
    let mut bytes = vec![0; usize::from(place.header_len)];
    bytes.extend((start..start + len).map(|at| pattern(key, at)));
    let mut packet = pool.alloc().expect("memory");
    assert_eq!(packet.append(pool, &bytes), bytes.len());
    packet
}

fn check_whole(key: &DatagramKey, whole: &Whole) {
    let mut at = 0;
    for (header_len, packet) in &whole.pieces {
        for byte in &packet.to_vec()[usize::from(*header_len)..] {
            assert_eq!(*byte, pattern(key, at), "at {at} of {key:?}");
            at += 1;
        }
    }
    assert_eq!(at, whole.payload_len as usize);
}

#[cfg(test)]
mod tests {
    use super::run;

    #[test]
    fn random_inputs_keep_the_requirements() {
        let mut rng = tcp::Rng::new(1);
        for _ in 0..2000 {
            let len = 2 + 6 * rng.below(200) as usize;
            let mut data: Vec<u8> = (0..len).map(|_| rng.next_u32().to_le_bytes()[0]).collect();
            // Half of the runs have few datagrams and small fragments, which meet.
            if rng.below(2) == 0 {
                for step in data[2..].chunks_exact_mut(6) {
                    step[0] &= 0x09;
                    step[1] &= 0x0f;
                    step[2] &= 0x07;
                    step[3] &= 0x81;
                }
            }
            run(&data);
        }
    }
}
