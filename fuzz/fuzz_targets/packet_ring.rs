//! Receive rings of a packet socket (TPACKET_V2, TPACKET_V3) with contents that no real kernel need
//! write.
//!
//! A frame that lies inside its slot or block is received with its bytes, and is dropped only for
//! a reason in its metadata. Any other frame is broken: its slot, or its block, is returned. The
//! ring is read to its end, and by then every slot and block has been returned.

#![no_main]

use std::cell::RefCell;
use std::mem::offset_of;

use libfuzzer_sys::fuzz_target;
use pkt::{DropReason, Instant, Pool};
use quietline::device::af_packet::fuzzing::{
    BLOCK_BYTES, BLOCKS, Found, Ring, SLOT_BYTES, SLOTS,
};
use quietline_fuzz::{Input, holds, with_pool};

/// Bytes of the offload header in front of a frame.
const VNET_HDR_LEN: usize = 10;

/// Offset of the Ethernet header that the kernel uses, counted from the frame's own header.
const MAC: u16 = 96;

/// Maximum number of frames of a block in one run.
const FRAMES_MAX: u32 = 100;

const BLOCK: usize = offset_of!(libc::tpacket_block_desc, hdr);
const BLOCK_STATUS: usize = BLOCK + offset_of!(libc::tpacket_hdr_v1, block_status);
const BLOCK_FRAMES: usize = BLOCK + offset_of!(libc::tpacket_hdr_v1, num_pkts);
const BLOCK_FIRST: usize = BLOCK + offset_of!(libc::tpacket_hdr_v1, offset_to_first_pkt);
const V3_HEADER_BYTES: usize = size_of::<libc::tpacket3_hdr>();

/// Both rings of the thread, which are made once, because their memory is a mapping.
struct Rings {
    frames: Ring,
    blocks: Ring,
}

thread_local! {
    static RINGS: RefCell<Rings> =
        RefCell::new(Rings { frames: Ring::frames(), blocks: Ring::blocks() });
}

/// Metadata of a frame as the kernel writes it.
#[derive(Clone, Copy, Debug)]
struct Frame {
    mac: u16,
    len: u32,
    snaplen: u32,
    status: u32,
    vlan_tci: u16,
}

/// A frame as the ring must receive it.
#[derive(Debug)]
struct Expected {
    frame: Frame,
    /// Bytes of the frame; `None` if they do not lie inside the slot or block.
    bytes: Option<Vec<u8>>,
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let how = input.next_u8();
    RINGS.with_borrow_mut(|Rings { frames, blocks }| {
        let vnet_hdr = how & 2 != 0;
        with_pool(|pool| {
            if how & 1 == 0 {
                read_places(frames, pool, &mut input, vnet_hdr);
            } else {
                read_blocks(blocks, pool, &mut input, vnet_hdr);
            }
        });
    });
});

impl Frame {
    /// Reads values that a kernel would mostly write; one bit per field replaces the value by an
    /// arbitrary one.
    fn read(input: &mut Input<'_>) -> Self {
        let bends = input.next_u8();
        let bent = |bit: u8| bends & bit != 0;
        let mac = if bent(1) { input.next_u16() } else { MAC };
        let len = match bends & 0x22 {
            0 => u32::from(input.next_u16() & 0x7ff),
            2 => input.next_u32(),
            _ => u32::from(input.next_u16()),
        };
        let snaplen = if bent(4) { input.next_u32() } else { len };
        let status = if bent(8) { input.next_u32() } else { 0 };
        let vlan_tci = if bent(16) { input.next_u16() } else { 0 };
        Self { mac, len, snaplen, status: status | libc::TP_STATUS_USER, vlan_tci }
    }

    /// Returns the range of the frame's bytes in `room` bytes from its header on, if all of them
    /// lie inside.
    fn range(&self, room: usize, vnet_hdr: bool) -> Option<std::ops::Range<usize>> {
        let begin = usize::from(self.mac);
        let end = begin + self.snaplen as usize;
        let before = if vnet_hdr { VNET_HDR_LEN } else { 0 };
        let fits = begin >= before && end <= room && self.snaplen as usize <= pkt::RX_LEN_MAX;
        fits.then_some(begin..end)
    }

    /// Writes some bytes of the frame, and its offload header in front of them.
    fn fill(&self, memory: &mut [u8], input: &mut Input<'_>) {
        let bytes = input.next_u8();
        let begin = usize::from(self.mac).saturating_sub(VNET_HDR_LEN).min(memory.len());
        let room = &mut memory[begin..];
        let bytes = input.bytes(usize::from(bytes).min(room.len()));
        room[..bytes.len()].copy_from_slice(bytes);
    }
}

fn put<const N: usize>(memory: &mut [u8], at: usize, bytes: [u8; N]) {
    memory[at..at + N].copy_from_slice(&bytes);
}

fn read_places(ring: &mut Ring, pool: &mut Pool, input: &mut Input<'_>, vnet_hdr: bool) {
    ring.rewind(vnet_hdr);
    let mut expected = Vec::new();
    while expected.len() < SLOTS && !input.0.is_empty() {
        let frame = Frame::read(input);
        let begin = expected.len() * SLOT_BYTES;
        let slot = &mut ring.bytes()[begin..begin + SLOT_BYTES];
        frame.fill(slot, input);
        put(slot, offset_of!(libc::tpacket2_hdr, tp_len), frame.len.to_ne_bytes());
        put(slot, offset_of!(libc::tpacket2_hdr, tp_snaplen), frame.snaplen.to_ne_bytes());
        put(slot, offset_of!(libc::tpacket2_hdr, tp_mac), frame.mac.to_ne_bytes());
        put(slot, offset_of!(libc::tpacket2_hdr, tp_vlan_tci), frame.vlan_tci.to_ne_bytes());
        put(slot, offset_of!(libc::tpacket2_hdr, tp_status), frame.status.to_ne_bytes());
        let bytes = frame.range(SLOT_BYTES, vnet_hdr).map(|range| slot[range].to_vec());
        expected.push(Expected { frame, bytes });
    }
    for expected in &expected {
        compare(ring.receive(pool, Instant::ZERO), expected, vnet_hdr, pool);
    }
    assert!(matches!(ring.receive(pool, Instant::ZERO), Found::Empty));
    let losing = |it: &Expected| it.frame.status & libc::TP_STATUS_LOSING != 0;
    assert_eq!(ring.is_losing(), expected.iter().any(losing));
    for (index, expected) in expected.iter().enumerate() {
        let slot = &mut ring.bytes()[index * SLOT_BYTES..(index + 1) * SLOT_BYTES];
        assert_eq!(slot[..4], [0; 4], "slot {index} was given back");
        // Clears the headers, and as many bytes as `Frame::fill` writes.
        let mac = usize::from(expected.frame.mac);
        slot[..64].fill(0);
        let end = (mac + 256).min(slot.len());
        slot[mac.saturating_sub(VNET_HDR_LEN).min(end)..end].fill(0);
    }
}

/// Blocks of frames, where the number of frames and the offset of the next one may be arbitrary
/// too.
fn read_blocks(ring: &mut Ring, pool: &mut Pool, input: &mut Input<'_>, vnet_hdr: bool) {
    ring.rewind(vnet_hdr);
    let mut all = Vec::new();
    for index in 0..BLOCKS {
        let block = &mut ring.bytes()[index * BLOCK_BYTES..(index + 1) * BLOCK_BYTES];
        all.push(write_block(block, input, vnet_hdr));
    }
    for expected in &all {
        for expected in expected {
            compare(ring.receive(pool, Instant::ZERO), expected, vnet_hdr, pool);
        }
    }
    assert!(matches!(ring.receive(pool, Instant::ZERO), Found::Empty));
    for index in 0..BLOCKS {
        let status = index * BLOCK_BYTES + BLOCK_STATUS;
        assert_eq!(ring.bytes()[status..status + 4], [0; 4], "block {index} was given back");
    }
    ring.bytes().fill(0);
}

/// Writes a block and returns the frames that the ring must receive from it.
fn write_block(block: &mut [u8], input: &mut Input<'_>, vnet_hdr: bool) -> Vec<Expected> {
    let bends = input.next_u8();
    let count = u32::from(input.next_u8()) % FRAMES_MAX;
    let claimed = if bends & 1 != 0 { input.next_u32() } else { count };
    let first = if bends & 2 != 0 { input.next_u32() } else { 48 };
    put(block, BLOCK_FRAMES, claimed.to_ne_bytes());
    put(block, BLOCK_FIRST, first.to_ne_bytes());
    put(block, BLOCK_STATUS, libc::TP_STATUS_USER.to_ne_bytes());
    let mut begin = first as usize;
    for _ in 0..count {
        if begin < 48 || begin + V3_HEADER_BYTES > BLOCK_BYTES || input.0.is_empty() {
            break;
        }
        let frame = Frame::read(input);
        let room = &mut block[begin..];
        frame.fill(room, input);
        let next = match input.next_u8() {
            255 => input.next_u32(),
            254 => 0,
            _ => (u32::from(frame.mac) + (frame.snaplen & 0xffff)).next_multiple_of(16),
        };
        put(room, offset_of!(libc::tpacket3_hdr, tp_next_offset), next.to_ne_bytes());
        put(room, offset_of!(libc::tpacket3_hdr, tp_len), frame.len.to_ne_bytes());
        put(room, offset_of!(libc::tpacket3_hdr, tp_snaplen), frame.snaplen.to_ne_bytes());
        put(room, offset_of!(libc::tpacket3_hdr, tp_status), frame.status.to_ne_bytes());
        put(room, offset_of!(libc::tpacket3_hdr, tp_mac), frame.mac.to_ne_bytes());
        let tag = offset_of!(libc::tpacket3_hdr, hv1)
            + offset_of!(libc::tpacket_hdr_variant1, tp_vlan_tci);
        put(room, tag, u32::from(frame.vlan_tci).to_ne_bytes());
        begin += next as usize;
    }
    expect_block(block, vnet_hdr).unwrap_or_else(|| {
        // Frames a few bytes apart: fewer of them show as much.
        put(block, BLOCK_FRAMES, FRAMES_MAX.to_ne_bytes());
        expect_block(block, vnet_hdr).expect("no more frames than the block says")
    })
}

/// Returns the frames in a block, read as `struct tpacket3_hdr` describes it: a later frame may
/// have been written over an earlier one. `None` if there are more than [`FRAMES_MAX`] frames.
fn expect_block(block: &[u8], vnet_hdr: bool) -> Option<Vec<Expected>> {
    let word = |at: usize| {
        u32::from_ne_bytes(*block[at..].first_chunk().expect("inside, as the callers checked"))
    };
    let mut expected = Vec::new();
    let (mut left, mut begin) = (word(BLOCK_FRAMES), word(BLOCK_FIRST) as usize);
    while left > 0 {
        if expected.len() == FRAMES_MAX as usize {
            return None;
        }
        let broken = Frame { mac: 0, len: 0, snaplen: 0, status: 0, vlan_tci: 0 };
        if begin + V3_HEADER_BYTES > block.len() {
            expected.push(Expected { frame: broken, bytes: None });
            break;
        }
        let tag = offset_of!(libc::tpacket3_hdr, hv1)
            + offset_of!(libc::tpacket_hdr_variant1, tp_vlan_tci);
        let frame = Frame {
            mac: (word(begin + offset_of!(libc::tpacket3_hdr, tp_mac)) & 0xffff) as u16,
            len: word(begin + offset_of!(libc::tpacket3_hdr, tp_len)),
            snaplen: word(begin + offset_of!(libc::tpacket3_hdr, tp_snaplen)),
            status: word(begin + offset_of!(libc::tpacket3_hdr, tp_status)),
            vlan_tci: (word(begin + tag) & 0xffff) as u16,
        };
        let next = word(begin + offset_of!(libc::tpacket3_hdr, tp_next_offset)) as usize;
        let range = frame.range(block.len() - begin, vnet_hdr);
        let bytes = range.filter(|_| next != 0 || left == 1);
        let bytes = bytes.map(|range| block[begin..][range].to_vec());
        let ends = bytes.is_none();
        expected.push(Expected { frame, bytes });
        if ends {
            break;
        }
        left -= 1;
        begin += next;
    }
    Some(expected)
}

fn compare(found: Found, expected: &Expected, vnet_hdr: bool, pool: &mut Pool) {
    let Expected { frame, bytes } = expected;
    let (reason, packet) = match found {
        Found::Good(packet) => (None, packet),
        Found::Bad(reason, packet) => (Some(reason), packet),
        Found::Broken => return assert!(bytes.is_none(), "a frame inside is broken: {frame:?}"),
        Found::Empty => panic!("a frame is missing: {frame:?}"),
        Found::NoMemory => panic!("no memory for {frame:?}"),
    };
    let bytes = bytes.as_ref().expect("a frame outside is broken");
    assert!(holds(&packet, bytes), "other bytes: {frame:?}");
    let tagged = frame.status & libc::TP_STATUS_VLAN_VALID != 0 && frame.vlan_tci & 0xfff != 0;
    let beside = if frame.snaplen < frame.len {
        Some(DropReason::DeviceRxTruncated)
    } else if frame.len < 14 {
        Some(DropReason::PacketTooShort)
    } else {
        tagged.then_some(DropReason::EthernetType)
    };
    match reason {
        // The contents of the offload header are checked by the target `vnet_hdr`.
        Some(DropReason::VnetHeader) => assert!(vnet_hdr && beside.is_none()),
        reason => assert_eq!(reason, beside),
    }
    pool.free(packet);
}
