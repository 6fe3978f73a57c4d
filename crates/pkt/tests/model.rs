//! Packets compared with byte vectors: any sequence of operations on any number of packets and
//! pools gives the bytes of a naive model, changes no other packet, and leaks no memory.
#![cfg(not(loom))]
#![expect(clippy::tests_outside_test_module, reason = "the lint does not see through `proptest!`")]

use arrayvec::ArrayVec;
use pkt::{Domain, DomainConfig, FRAGS_MAX, HEAD_BYTES, Packet, Pool, Sum};
use proptest::collection::vec;
use proptest::prelude::*;

/// One step. Positions and lengths are taken modulo the valid range; pool number two stands for a
/// plain drop without a pool.
#[derive(Clone, Debug)]
enum Step {
    Alloc { pool: usize, fclone: bool },
    Receive { pool: usize, finish: usize, max: usize, len: usize },
    Append { at: usize, pool: usize, len: usize, sum: bool },
    Put { at: usize, len: usize },
    Push { at: usize, len: usize },
    Pull { at: usize, len: usize },
    Write { at: usize },
    RequireLinear { at: usize, len: usize },
    Advance { at: usize, len: usize },
    Truncate { at: usize, len: usize },
    Clone { at: usize, pool: usize },
    CloneRange { at: usize, pool: usize, offset: usize, len: usize },
    SplitOff { at: usize, pool: usize, offset: usize },
    DeepCopy { at: usize, pool: usize },
    Merge { at: usize, other: usize, pool: usize, whole: bool },
    Free { at: usize, pool: usize },
    Adopt { pool: usize },
    Look { at: usize, offset: usize, len: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let at = 0..8_usize;
    let pool = 0..2_usize;
    let small = 0..300_usize;
    let large = prop_oneof![4 => 0..200_usize, 3 => 200..3_000_usize, 1 => 3_000..70_000_usize];
    let part = 0..70_000_usize;
    prop_oneof![
        2 => (pool.clone(), any::<bool>()).prop_map(|(pool, fclone)| Step::Alloc { pool, fclone }),
        2 => (pool.clone(), pool.clone(), large.clone(), large.clone())
            .prop_map(|(pool, finish, max, len)| Step::Receive { pool, finish, max, len }),
        6 => (at.clone(), pool.clone(), large, any::<bool>())
            .prop_map(|(at, pool, len, sum)| Step::Append { at, pool, len, sum }),
        1 => (at.clone(), small.clone()).prop_map(|(at, len)| Step::Put { at, len }),
        2 => (at.clone(), small.clone()).prop_map(|(at, len)| Step::Push { at, len }),
        2 => (at.clone(), small.clone()).prop_map(|(at, len)| Step::Pull { at, len }),
        1 => at.clone().prop_map(|at| Step::Write { at }),
        2 => (at.clone(), small).prop_map(|(at, len)| Step::RequireLinear { at, len }),
        2 => (at.clone(), part.clone()).prop_map(|(at, len)| Step::Advance { at, len }),
        2 => (at.clone(), part.clone()).prop_map(|(at, len)| Step::Truncate { at, len }),
        3 => (at.clone(), pool.clone()).prop_map(|(at, pool)| Step::Clone { at, pool }),
        3 => (at.clone(), pool.clone(), part.clone(), part.clone())
            .prop_map(|(at, pool, offset, len)| Step::CloneRange { at, pool, offset, len }),
        3 => (at.clone(), pool.clone(), part.clone())
            .prop_map(|(at, pool, offset)| Step::SplitOff { at, pool, offset }),
        1 => (at.clone(), pool.clone()).prop_map(|(at, pool)| Step::DeepCopy { at, pool }),
        4 => (at.clone(), at.clone(), pool.clone(), any::<bool>())
            .prop_map(|(at, other, pool, whole)| Step::Merge { at, other, pool, whole }),
        3 => (at.clone(), 0..3_usize).prop_map(|(at, pool)| Step::Free { at, pool }),
        1 => pool.prop_map(|pool| Step::Adopt { pool }),
        3 => (at, part.clone(), part).prop_map(|(at, offset, len)| Step::Look { at, offset, len }),
    ]
}

/// Packets and their expected contents.
struct World {
    domain: Domain,
    pools: Vec<Pool>,
    packets: Vec<(Packet, Vec<u8>)>,
    /// Generator of bytes, which differ so that misplaced ones are detected.
    next: u8,
}

impl World {
    fn new() -> Self {
        let domain = Domain::new(DomainConfig::default());
        let pools = vec![domain.pool(), domain.pool()];
        Self { domain, pools, packets: Vec::new(), next: 0 }
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut next = || {
            self.next = self.next.wrapping_mul(5).wrapping_add(77);
            self.next
        };
        std::iter::repeat_with(&mut next).take(len).collect()
    }

    fn index(&self, at: usize) -> Option<usize> {
        at.checked_rem(self.packets.len())
    }

    fn add(&mut self, packet: Packet, bytes: Vec<u8>) {
        if self.packets.len() < 8 {
            self.packets.push((packet, bytes));
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Alloc { pool, fclone } => {
                let pool = &mut self.pools[pool];
                let packet = if fclone { pool.alloc_fclone() } else { pool.alloc() };
                self.add(packet.expect("memory"), Vec::new());
            }
            Step::Receive { pool, finish, max, len } => self.receive(pool, finish, max, len),
            Step::Adopt { pool } => {
                // The replacement may be a pool that was dropped before.
                let fresh = self.domain.pool();
                drop(std::mem::replace(&mut self.pools[pool], fresh));
            }
            Step::Free { at, pool } => {
                let Some(index) = self.index(at) else { return };
                let (packet, _) = self.packets.swap_remove(index);
                match self.pools.get_mut(pool) {
                    Some(pool) => pool.free(packet),
                    None => drop(packet),
                }
            }
            Step::Look { at, offset, len } => self.look(at, offset, len),
            Step::Clone { .. }
            | Step::CloneRange { .. }
            | Step::SplitOff { .. }
            | Step::DeepCopy { .. } => {
                self.share(step);
            }
            _ => self.edit(step),
        }
    }

    fn receive(&mut self, pool: usize, finish: usize, max: usize, len: usize) {
        let len = len.min(max);
        let bytes = self.bytes(len);
        let mut slot = self.pools[pool].rx_slot(max).expect("memory");
        let mut io = ArrayVec::<_, 4>::new();
        slot.io_slices(&mut io);
        let places = io.iter_mut().flat_map(|part| part.iter_mut());
        places.zip(&bytes).for_each(|(place, byte)| *place = *byte);
        drop(io);
        let packet = slot.finish(&mut self.pools[finish], len);
        self.add(packet, bytes);
    }

    /// Steps that change one packet.
    fn edit(&mut self, step: &Step) {
        let (Step::Append { at, .. }
        | Step::Put { at, .. }
        | Step::Push { at, .. }
        | Step::Pull { at, .. }
        | Step::Write { at }
        | Step::RequireLinear { at, .. }
        | Step::Advance { at, .. }
        | Step::Truncate { at, .. }
        | Step::Merge { at, .. }) = *step
        else {
            unreachable!("{step:?}")
        };
        let Some(index) = self.index(at) else { return };
        let fresh = self.bytes(match *step {
            Step::Append { len, .. } | Step::Put { len, .. } | Step::Push { len, .. } => len,
            _ => 0,
        });
        let (mut packet, mut bytes) = self.packets.swap_remove(index);
        match *step {
            Step::Append { pool, sum, .. } => {
                bytes.extend(append(&mut packet, &mut self.pools[pool], &fresh, sum));
            }
            Step::Put { len, .. } => match packet.put(len) {
                Some(tail) => {
                    tail.copy_from_slice(&fresh);
                    bytes.extend(&fresh);
                }
                None => assert!(packet.frag_count() > 0 || packet.tailroom() < len),
            },
            Step::Push { len, .. } => {
                let len = len.min(packet.headroom());
                packet.push(len).copy_from_slice(&fresh[..len]);
                bytes.splice(..0, fresh[..len].iter().copied());
            }
            Step::Pull { len, .. } => {
                let linear = packet.linear().len();
                assert_eq!(packet.pull(len), len <= linear);
                if len <= linear {
                    bytes.drain(..len);
                }
            }
            Step::Write { .. } => {
                let linear = packet.linear_mut();
                linear.iter_mut().for_each(|byte| *byte ^= 0xff);
                bytes[..linear.len()].iter_mut().for_each(|byte| *byte ^= 0xff);
            }
            Step::RequireLinear { len, .. } => {
                let possible = packet.headroom() + len <= HEAD_BYTES && len <= bytes.len();
                assert_eq!(packet.require_linear(len), possible || len <= packet.linear().len());
                assert!(!possible || packet.linear().len() >= len);
            }
            Step::Advance { len, .. } => {
                let len = len % (bytes.len() + 1);
                packet.advance(len);
                bytes.drain(..len);
            }
            Step::Truncate { len, .. } => {
                let len = len % (bytes.len() + 2);
                packet.truncate(len);
                bytes.truncate(len);
            }
            Step::Merge { other, pool, whole, .. } => {
                let merge = if whole { Self::merge_whole } else { Self::merge };
                merge(self, &mut packet, &mut bytes, other, pool);
            }
            _ => unreachable!("{step:?}"),
        }
        self.packets.push((packet, bytes));
    }

    fn merge(&mut self, packet: &mut Packet, bytes: &mut Vec<u8>, other: usize, pool: usize) {
        let Some(other) = self.index(other) else { return };
        let (other, other_bytes) = self.packets.swap_remove(other);
        let movable = other.linear().is_empty();
        let frags = packet.frag_count() + other.frag_count();
        match packet.append_frags_of(&mut self.pools[pool], other) {
            Ok(()) => {
                // A frag that continues the last one becomes part of it.
                assert!(movable && frags <= FRAGS_MAX + 1);
                bytes.extend(other_bytes);
            }
            Err(other) => {
                assert!(!movable || frags > FRAGS_MAX);
                self.packets.push((other, other_bytes));
            }
        }
    }

    fn merge_whole(&mut self, packet: &mut Packet, bytes: &mut Vec<u8>, other: usize, pool: usize) {
        let Some(other) = self.index(other) else { return };
        let (other, other_bytes) = self.packets.swap_remove(other);
        let frags = packet.frag_count() + other.frag_count();
        match packet.append_packet(&mut self.pools[pool], other) {
            Ok(()) => bytes.extend(other_bytes),
            Err(other) => {
                // The copied bytes need two frags at most, if they cross the end of a page.
                assert!(frags + 2 > FRAGS_MAX);
                self.packets.push((other, other_bytes));
            }
        }
    }

    /// Steps that make a packet from another.
    fn share(&mut self, step: &Step) {
        let (Step::Clone { at, pool }
        | Step::CloneRange { at, pool, .. }
        | Step::SplitOff { at, pool, .. }
        | Step::DeepCopy { at, pool }) = *step
        else {
            unreachable!("{step:?}")
        };
        let Some(index) = self.index(at) else { return };
        let (packet, bytes) = &mut self.packets[index];
        let pool = &mut self.pools[pool];
        let made = match *step {
            Step::Clone { .. } => packet.clone_in(pool).map(|clone| (clone, bytes.clone())),
            Step::DeepCopy { .. } => packet.deep_copy(pool).map(|copy| (copy, bytes.clone())),
            Step::CloneRange { offset, len, .. } => {
                let offset = offset % (bytes.len() + 1);
                let len = len % (bytes.len() - offset + 1);
                let clone = packet.clone_range(pool, offset, len);
                assert!(clone.is_some() || packet.frag_count() == FRAGS_MAX);
                clone.map(|clone| (clone, bytes[offset..offset + len].to_vec()))
            }
            Step::SplitOff { offset, .. } => {
                let offset = offset % (bytes.len() + 1);
                let before = packet.truesize();
                let linear = packet.linear().len().saturating_sub(offset);
                let tail = packet.split_off(pool, offset);
                assert!(tail.is_some() || packet.frag_count() == FRAGS_MAX);
                tail.map(|tail| {
                    let empty = pool.alloc().expect("memory").truesize();
                    let both = packet.truesize() + tail.truesize() - empty;
                    assert!(both == before || both as usize == before as usize + linear);
                    (tail, bytes.split_off(offset))
                })
            }
            _ => unreachable!("{step:?}"),
        };
        if let Some((packet, bytes)) = made {
            assert!(!packet.has_owner());
            self.add(packet, bytes);
        }
    }

    fn look(&self, at: usize, offset: usize, len: usize) {
        let Some(index) = self.index(at) else { return };
        let (packet, bytes) = &self.packets[index];
        let offset = offset % (bytes.len() + 1);
        let expected = &bytes[offset..(offset + len).min(bytes.len())];
        assert_eq!(packet.checksum(offset, len).fold(), naive(expected));
        let mut copy = vec![0; len];
        assert_eq!(packet.copy_to(offset, &mut copy), expected.len());
        assert_eq!(&copy[..expected.len()], expected);
        copy.fill(0);
        let (copied, sum) = packet.copy_to_and_sum(offset, &mut copy);
        assert_eq!((copied, sum.fold()), (expected.len(), naive(expected)));
        assert_eq!(&copy[..copied], expected);
        assert!(copy[copied..].iter().all(|&byte| byte == 0));
    }

    /// Checks the properties that hold between any two steps.
    fn check(&self) {
        for (packet, bytes) in &self.packets {
            assert_eq!(packet.len(), bytes.len());
            assert!(packet.slices().all(|part| !part.is_empty()));
            assert!(packet.slices().flatten().eq(bytes), "{packet:?}");
            assert_eq!(packet.headroom() + packet.linear().len() + packet.tailroom(), HEAD_BYTES);
            assert!(packet.frag_count() <= FRAGS_MAX);
            assert!(packet.truesize() as usize >= packet.len() - packet.linear().len());
        }
        assert_eq!(usize::try_from(self.domain.balance()), Ok(self.packets.len()));
    }
}

/// Appends `fresh` and returns the part of it that was appended.
fn append<'a>(packet: &mut Packet, pool: &mut Pool, fresh: &'a [u8], sum: bool) -> &'a [u8] {
    let taken = if sum {
        let (taken, sum) = packet.append_and_sum(pool, fresh);
        assert_eq!(sum.fold(), naive(&fresh[..taken]));
        taken
    } else {
        packet.append(pool, fresh)
    };
    assert!(taken == fresh.len() || packet.frag_count() == FRAGS_MAX);
    &fresh[..taken]
}

/// The sum exactly as RFC 1071 defines it.
fn naive(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |&low| u64::from(low));
    let mut sum: u64 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("folded")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn packets_behave_as_byte_vectors(steps in vec(step(), 1..120)) {
        let mut world = World::new();
        for step in &steps {
            world.run(step);
            world.check();
        }
        let World { domain, pools, packets, .. } = world;
        drop(packets);
        prop_assert_eq!(domain.balance(), 0);
        drop(pools);
        prop_assert_eq!(domain.stats().pages_live, 0);
    }

    #[test]
    fn sums_equal_the_definition(bytes in vec(any::<u8>(), 0..5000), skip in 0..70_usize) {
        let bytes = &bytes[skip.min(bytes.len())..];
        prop_assert_eq!(Sum::of(bytes).fold(), naive(bytes));
    }
}
