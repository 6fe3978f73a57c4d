use super::fuzzing::{BLOCK_BYTES, Ring, SLOT_BYTES};
use super::*;
use crate::device::{af_packet::fuzzing::Found, with_pool};

/// Offset of a frame's Ethernet header from its slot or header.
const MAC: usize = 96;

fn write(ring: &mut Ring, at: usize, bytes: &[u8]) {
    ring.bytes()[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Writes a V2 frame of length `len`, `mac` bytes after the beginning of its slot.
fn write_slot(ring: &mut Ring, index: usize, mac: u16, len: u32) {
    let begin = index * SLOT_BYTES;
    write(ring, begin + at::V2_LEN, &len.to_ne_bytes());
    write(ring, begin + at::V2_SNAPLEN, &len.to_ne_bytes());
    write(ring, begin + at::V2_MAC, &mac.to_ne_bytes());
    write(ring, begin + at::V2_STATUS, &libc::TP_STATUS_USER.to_ne_bytes());
}

/// Writes the header of a V3 block: its number of frames, and the offset of the first.
fn write_block(ring: &mut Ring, index: usize, frames: u32, first: u32) {
    let begin = index * BLOCK_BYTES;
    write(ring, begin + at::BLOCK_FRAMES, &frames.to_ne_bytes());
    write(ring, begin + at::BLOCK_FIRST, &first.to_ne_bytes());
    write(ring, begin + at::BLOCK_STATUS, &libc::TP_STATUS_USER.to_ne_bytes());
}

/// Writes a V3 frame whose header is at `begin`.
fn write_frame(ring: &mut Ring, begin: usize, len: u32, next: u32) {
    write(ring, begin + at::V3_LEN, &len.to_ne_bytes());
    write(ring, begin + at::V3_SNAPLEN, &len.to_ne_bytes());
    write(ring, begin + at::V3_MAC, &u16::try_from(MAC).unwrap().to_ne_bytes());
    write(ring, begin + at::V3_NEXT, &next.to_ne_bytes());
}

fn status(ring: &mut Ring, at: usize) -> u8 {
    ring.bytes()[at..at + 4].iter().fold(0, |all, byte| all | byte)
}

/// Returns the length of the next frame, which must be good.
fn taken(ring: &mut Ring, pool: &mut Pool) -> usize {
    let Found::Good(packet) = ring.receive(pool, Instant::ZERO) else { panic!("a good frame") };
    let len = packet.len();
    pool.free(packet);
    len
}

fn expect_broken(ring: &mut Ring, pool: &mut Pool) {
    let found = ring.receive(pool, Instant::ZERO);
    assert!(matches!(found, Found::Broken), "{found:?}");
}

#[test]
fn a_frame_beyond_its_slot_is_dropped_and_the_next_slot_is_read() {
    with_pool(|pool| {
        let mut ring = Ring::frames();
        let last = u32::try_from(SLOT_BYTES - MAC).unwrap();
        let broken = [(MAC, last + 1), (MAC, u32::MAX), (usize::from(u16::MAX), last)];
        for (index, (mac, len)) in broken.into_iter().enumerate() {
            write_slot(&mut ring, index, u16::try_from(mac).unwrap(), len);
        }
        write_slot(&mut ring, broken.len(), u16::try_from(MAC).unwrap(), last);
        for index in 0..broken.len() {
            expect_broken(&mut ring, pool);
            assert_eq!(status(&mut ring, index * SLOT_BYTES + at::V2_STATUS), 0);
        }
        assert_eq!(taken(&mut ring, pool), last as usize);
        assert!(matches!(ring.receive(pool, Instant::ZERO), Found::Empty));
    });
}

#[test]
fn an_offload_header_before_its_slot_is_not_read() {
    with_pool(|pool| {
        let mut ring = Ring::frames();
        ring.rewind(true);
        write_slot(&mut ring, 0, 9, 60);
        expect_broken(&mut ring, pool);
    });
}

#[test]
fn a_block_is_returned_at_its_first_broken_frame() {
    with_pool(|pool| {
        for (len, next) in [(u32::MAX, 0), (60, u32::MAX), (60, 0)] {
            let mut ring = Ring::blocks();
            write_block(&mut ring, 0, 3, 48);
            write_frame(&mut ring, 48, 60, 256);
            write_frame(&mut ring, 48 + 256, len, next);
            write_block(&mut ring, 1, 1, 48);
            write_frame(&mut ring, BLOCK_BYTES + 48, 61, 0);
            assert_eq!(taken(&mut ring, pool), 60);
            if next == u32::MAX {
                // The frame itself is good; the offset of the next one is invalid.
                assert_eq!(taken(&mut ring, pool), 60);
            }
            expect_broken(&mut ring, pool);
            assert_eq!(status(&mut ring, at::BLOCK_STATUS), 0);
            assert_eq!(taken(&mut ring, pool), 61);
            assert!(matches!(ring.receive(pool, Instant::ZERO), Found::Empty));
        }
    });
}

#[test]
fn a_block_without_a_first_frame_inside_is_returned() {
    with_pool(|pool| {
        let header = size_of::<libc::tpacket3_hdr>();
        for first in [u32::MAX, u32::try_from(BLOCK_BYTES - header + 1).unwrap()] {
            let mut ring = Ring::blocks();
            write_block(&mut ring, 0, 1, first);
            expect_broken(&mut ring, pool);
            assert_eq!(status(&mut ring, at::BLOCK_STATUS), 0);
        }
    });
}

#[test]
fn a_ring_with_broken_frames_can_be_emptied() {
    let mut ring = Ring::blocks();
    write_block(&mut ring, 0, u32::MAX, 48);
    write_frame(&mut ring, 48, 60, 0);
    ring.discard();
    assert_eq!(status(&mut ring, at::BLOCK_STATUS), 0);
}
