//! Every kernel is compared with the definition of RFC 1071 for every length, offset and carry.

use super::*;
use core::net::{Ipv4Addr, Ipv6Addr};
use proptest::prelude::*;

/// The sum exactly as RFC 1071 §1 defines it.
fn naive(bytes: &[u8]) -> u16 {
    let words =
        bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("folded")
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    core::iter::repeat_with(next).take(len).collect()
}

#[test]
fn every_kernel_sums_every_length_and_offset() {
    let memory = noise(1200, 7);
    let mut copy = vec![0; 1200];
    for kernel in Kernel::available() {
        for offset in 0..9 {
            for len in 0..1100 {
                let bytes = &memory[offset..offset + len];
                let expected = naive(bytes);
                assert_eq!(kernel.sum(bytes).fold(), expected, "{kernel:?} {offset} {len}");
                copy.fill(0xaa);
                let to = (offset * 5) % 7;
                let sum = kernel.copy_and_sum(&mut copy[to..to + len], bytes);
                assert_eq!(sum.fold(), expected, "{kernel:?} {offset} {len}");
                assert_eq!(&copy[to..to + len], bytes);
                assert!(copy[..to].iter().chain(&copy[to + len..]).all(|&byte| byte == 0xaa));
            }
        }
    }
}

/// The position of a slice in its cache line decides how many bytes are summed before the first
/// whole line.
#[test]
fn every_kernel_sums_from_every_position_in_a_cache_line() {
    let memory = noise(900, 11);
    let line = memory.as_ptr().align_offset(64);
    for kernel in Kernel::available() {
        for place in 0..64 {
            for len in [510, 511, 512, 513, 575, 576, 577, 639, 640, 767, 768] {
                let bytes = &memory[line + place..line + place + len];
                assert_eq!(kernel.sum(bytes).fold(), naive(bytes), "{kernel:?} {place} {len}");
            }
        }
    }
}

/// Copies align their destination to a cache line and touch no byte outside it.
#[test]
fn a_copy_writes_all_of_its_destination_and_nothing_else() {
    let memory = noise(1600, 13);
    let mut room = vec![0; 1700];
    let line = room.as_ptr().align_offset(64);
    for kernel in Kernel::available() {
        for place in 0..64 {
            for len in
                [0, 1, 63, 64, 65, 511, 512, 513, 575, 576, 768, 1023, 1024, 1087, 1448, 1500]
            {
                let (from, to) = (place * 7 % 67, line + place);
                room.fill(0xaa);
                kernel.copy(&mut room[to..to + len], &memory[from..from + len]);
                assert_eq!(
                    room[to..to + len],
                    memory[from..from + len],
                    "{kernel:?} {place} {len}"
                );
                assert!(room[..to].iter().chain(&room[to + len..]).all(|&byte| byte == 0xaa));
            }
        }
    }
}

#[test]
fn each_piece_is_copied_and_summed_separately() {
    let memory = noise(9000, 17);
    for kernel in Kernel::available() {
        for (size, count) in
            [(1, 3), (63, 5), (64, 5), (159, 2), (536, 1), (1448, 6), (1447, 6), (7, 0), (0, 0)]
        {
            let (mut to, mut sums) = (vec![0; size * count], vec![0; count]);
            let from = &memory[3..3 + size * count];
            kernel.copy_and_sum_pieces(&mut to, from, size, &mut sums);
            assert_eq!(to, from, "{kernel:?} {size}");
            for (index, sum) in sums.into_iter().enumerate() {
                let piece = &from[index * size..][..size];
                assert_eq!(sum, naive(piece), "{kernel:?} {size} {index}");
            }
        }
    }
}

#[test]
fn sums_of_all_zeroes_and_all_ones_are_right() {
    for kernel in Kernel::available() {
        for len in [0, 1, 2, 7, 8, 31, 32, 63, 64, 127, 128, 255, 256, 1460, 65_536, 1 << 20] {
            assert_eq!(kernel.sum(&vec![0; len]).fold(), 0);
            assert_eq!(
                kernel.sum(&vec![0xff; len]).fold(),
                naive(&vec![0xff; len]),
                "{kernel:?} {len}"
            );
        }
    }
}

#[test]
fn the_chosen_kernel_is_the_widest() {
    let widest = Kernel::available().last().expect("scalar at least");
    assert_eq!(Kernel::best(), widest);
    assert_eq!(Kernel::best(), widest, "the second call reads the stored choice");
}

#[test]
fn a_known_header_has_its_checksum() {
    // An IPv4 header that is widely used as an example of RFC 1071.
    let header = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00,
        0x01, 0xc0, 0xa8, 0x00, 0xc7,
    ];
    assert!(Sum::of(&header).is_valid());
    let mut blank = header;
    blank[10..12].fill(0);
    assert_eq!(Sum::of(&blank).finish(), 0xb861);
}

#[test]
fn pseudo_headers_are_summed_as_bytes() {
    let (a, b) = (Ipv4Addr::new(192, 168, 0, 1), Ipv4Addr::new(10, 1, 2, 255));
    let mut bytes = [a.octets(), b.octets()].concat();
    bytes.extend([0, 6, 0x12, 0x34]);
    assert_eq!(pseudo_header(a.into(), b.into(), 6, 0x1234).fold(), naive(&bytes));

    let (a, b) = (Ipv6Addr::LOCALHOST, Ipv6Addr::new(0xfe80, 1, 2, 3, 4, 5, 0xffff, 0xfffe));
    let mut bytes = [a.octets(), b.octets()].concat();
    bytes.extend([0, 1, 0x12, 0x34, 0, 0, 0, 17]);
    assert_eq!(pseudo_header(a.into(), b.into(), 17, 0x1_1234).fold(), naive(&bytes));
}

proptest! {
    #[test]
    fn sums_of_parts_combine_to_the_sum_of_the_whole(bytes in proptest::collection::vec(any::<u8>(), 0..600), cuts in proptest::collection::vec(0usize..600, 0..6)) {
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.push(bytes.len());
        cuts.sort_unstable();
        let mut sum = Sum::ZERO;
        let mut start = 0;
        for cut in cuts {
            sum.combine(Sum::of(&bytes[start..cut]), start);
            start = cut;
        }
        prop_assert_eq!(sum.fold(), naive(&bytes));
    }

    #[test]
    fn an_updated_checksum_equals_a_recomputed_one(mut bytes in proptest::collection::vec(any::<u8>(), 4..80), at in 0usize..40, new: u16) {
        let at = (2 * at).min((bytes.len() - 2) & !1);
        // An all-zero header has two representations; a real one is never all zero.
        bytes.extend([0x45, 0x06]);
        let before = Sum::of(&bytes).finish();
        let old = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        bytes[at..at + 2].copy_from_slice(&new.to_be_bytes());
        if bytes.len().is_multiple_of(2) {
            let mut whole = Sum::of(&bytes);
            whole.add_u16(update(before, old, new));
            prop_assert!(whole.is_valid());
        }
    }
}
