//! The receive ring: frames that the kernel has written into shared memory, copied out one by one.
//!
//! Above: `device`. Beside: `recvmsg`, the receive path without a ring. Linux: `tpacket_rcv`,
//! Documentation/networking/packet_mmap.rst.
//!
//! ```text
//!   TPACKET_V2  block of 1 MB:    [slot 68 KB][slot 68 KB] ... 15 of them
//!               slot:             status | lengths | tag | sockaddr_ll | virtio | Ethernet | IP
//!   TPACKET_V3  block of 128 KB:  status | frames | first ... [frame][frame][frame] ...
//!               frame:            offset of the next frame | lengths | tag | ...
//! ```
//!
//! A status word gives the owner of a slot or block: the kernel while the word is 0, this process
//! while its lowest bit is set. The ring loads it with acquire before it reads the slot, and
//! returns the slot by storing 0 with release after its last read. The kernel fills slots in order,
//! so a slot that the kernel owns ends the search.
//!
//! The kernel's numbers are checked before they are used: a frame that exceeds its slot or block is
//! dropped, and its slot or the rest of its block is returned unread.
//!
//! Differs from a tap: the frame is copied twice, by the kernel into the ring and by the stack into
//! packet memory; in exchange there is no system call per frame.
//!
//! Not here: the meaning of the frame (`stack::receive::link_input`).

use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use pkt::{DropReason, Instant, Packet, Pool, RX_LEN_MAX, RxChecksum, RxSlot};

use super::super::mapping::Mapping;
use super::super::vnet_hdr::{VNET_HDR_LEN, VnetHdr};
use super::ETHERNET_HEADER_LEN;
use super::socket::{SHARED_BLOCK_BYTES, SLOTS_BLOCK_BYTES};

/// Bytes of a slot of a V2 ring: the largest IP packet, Ethernet header, offload header and the
/// kernel's headers, rounded up to the next page.
pub(super) const FRAME_BYTES: usize = 68 << 10;
const _: () = assert!(65_535 + 14 + 4 + PACKET_VNET_HDR_LEN + 80 <= FRAME_BYTES);

/// Bytes of the offload header in front of a frame: the 12 of a tap without its last field.
pub(super) const PACKET_VNET_HDR_LEN: usize = 10;

/// Bytes of `struct tpacket3_hdr`, which precedes each frame of a block.
const V3_HEADER_BYTES: usize = size_of::<libc::tpacket3_hdr>();

// A frame inside its slot fits a receive slot of packet memory; a frame in a block may not.
const _: () = assert!(FRAME_BYTES <= RX_LEN_MAX);

/// Pieces of a receive slot.
const PIECES_MAX: usize = 4;

/// Offsets of the fields of `struct tpacket2_hdr`, `tpacket3_hdr` and `tpacket_block_desc`.
mod at {
    use std::mem::offset_of;

    pub(super) const V2_STATUS: usize = offset_of!(libc::tpacket2_hdr, tp_status);
    pub(super) const V2_LEN: usize = offset_of!(libc::tpacket2_hdr, tp_len);
    pub(super) const V2_SNAPLEN: usize = offset_of!(libc::tpacket2_hdr, tp_snaplen);
    pub(super) const V2_MAC: usize = offset_of!(libc::tpacket2_hdr, tp_mac);
    pub(super) const V2_VLAN_TCI: usize = offset_of!(libc::tpacket2_hdr, tp_vlan_tci);
    pub(super) const V3_NEXT: usize = offset_of!(libc::tpacket3_hdr, tp_next_offset);
    pub(super) const V3_LEN: usize = offset_of!(libc::tpacket3_hdr, tp_len);
    pub(super) const V3_SNAPLEN: usize = offset_of!(libc::tpacket3_hdr, tp_snaplen);
    pub(super) const V3_STATUS: usize = offset_of!(libc::tpacket3_hdr, tp_status);
    pub(super) const V3_MAC: usize = offset_of!(libc::tpacket3_hdr, tp_mac);
    pub(super) const V3_VLAN_TCI: usize =
        offset_of!(libc::tpacket3_hdr, hv1) + offset_of!(libc::tpacket_hdr_variant1, tp_vlan_tci);
    const BLOCK: usize = offset_of!(libc::tpacket_block_desc, hdr);
    pub(super) const BLOCK_STATUS: usize = BLOCK + offset_of!(libc::tpacket_hdr_v1, block_status);
    pub(super) const BLOCK_FRAMES: usize = BLOCK + offset_of!(libc::tpacket_hdr_v1, num_pkts);
    pub(super) const BLOCK_FIRST: usize =
        BLOCK + offset_of!(libc::tpacket_hdr_v1, offset_to_first_pkt);
}

/// VLAN number in a tag; 0 is a frame that only carries a priority.
const VLAN_ID_MASK: u32 = 0xfff;

/// Division of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Geometry {
    /// V2: number of slots.
    Frames(usize),
    /// V3: number of blocks.
    Blocks(usize),
}

impl Geometry {
    pub(super) const fn frames(blocks: usize) -> Self {
        Self::Frames(blocks * (SLOTS_BLOCK_BYTES / FRAME_BYTES))
    }

    pub(super) const fn blocks(blocks: usize) -> Self {
        Self::Blocks(blocks)
    }
}

/// Returns the offset of slot `index` of a V2 ring. No slot straddles two blocks.
const fn slot_offset(index: usize) -> usize {
    let per_block = SLOTS_BLOCK_BYTES / FRAME_BYTES;
    index / per_block * SLOTS_BLOCK_BYTES + index % per_block * FRAME_BYTES
}

/// A block of a V3 ring that this process owns and has not read to its end.
#[derive(Debug, Clone, Copy)]
struct OpenBlock {
    frames_left: u32,
    /// Offset of the next frame.
    frame: usize,
}

/// A receive ring and the position in it.
#[derive(Debug)]
pub(super) struct RxRing {
    mapping: Mapping,
    geometry: Geometry,
    vnet_hdr: bool,
    /// Index of the next slot or block.
    next: usize,
    open: Option<OpenBlock>,
    /// Set after the kernel has reported that it dropped frames.
    pub(super) losing: bool,
}

/// A frame that this process owns.
#[derive(Debug, Clone, Copy)]
struct RxFrame {
    /// Offset of its Ethernet header.
    mac: usize,
    /// Number of its bytes in the ring.
    here: usize,
    info: FrameInfo,
    /// V3: distance from its header to the header of the next frame.
    next_offset: usize,
}

/// Error: the kernel describes a frame that exceeds its slot or block.
#[derive(Debug, Clone, Copy)]
struct Outside;

impl RxFrame {
    /// Returns the frame, if it and the `before` bytes in front of it are in `room`.
    fn inside(self, room: Range<usize>, before: usize) -> Result<Self, Outside> {
        let end = self.mac.saturating_add(self.here);
        let fits = self.mac >= room.start + before && end <= room.end && self.here <= RX_LEN_MAX;
        if fits { Ok(self) } else { Err(Outside) }
    }
}

/// The kernel's metadata of a frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrameInfo {
    /// Length on the link; the packet may have fewer bytes.
    pub(super) len: usize,
    /// `TP_STATUS_*`.
    pub(super) status: u32,
    /// VLAN tag that the kernel removed, if the status says so.
    pub(super) vlan_tci: u32,
}

/// Result of one receive attempt.
pub(super) enum Received {
    /// A good frame.
    Good(Packet),
    /// A frame to be dropped.
    Bad(DropReason, Packet),
    /// A frame that exceeds its slot or block. Its slot was returned unread.
    Broken,
    /// No frame waits.
    Empty,
    /// No packet memory is left: waiting frames stay in the ring.
    NoMemory,
}

impl RxRing {
    pub(super) const fn new(mapping: Mapping, geometry: Geometry, vnet_hdr: bool) -> Self {
        Self { mapping, geometry, vnet_hdr, next: 0, open: None, losing: false }
    }

    /// Takes the oldest frame out of the ring.
    pub(super) fn receive(&mut self, pool: &mut Pool, now: Instant) -> Received {
        let frame = match self.oldest() {
            None => return Received::Empty,
            Some(Ok(frame)) => frame,
            Some(Err(Outside)) => {
                self.skip_broken();
                return Received::Broken;
            }
        };
        let Some(mut slot) = pool.rx_slot(frame.here) else { return Received::NoMemory };
        self.copy_out(&frame, &mut slot);
        let header = self.vnet_hdr.then(|| self.vnet_header(&frame));
        self.give_back(&frame);
        let mut packet = slot.finish(pool, frame.here);
        packet.meta_mut().timestamp = now;
        Received::of(&frame.info, header, packet)
    }

    /// Returns all slots or blocks unread.
    pub(super) fn discard(&mut self) {
        while let Some(oldest) = self.oldest() {
            match oldest {
                Ok(frame) => self.give_back(&frame),
                Err(Outside) => self.skip_broken(),
            }
        }
        self.losing = false;
    }

    fn oldest(&mut self) -> Option<Result<RxFrame, Outside>> {
        let before = if self.vnet_hdr { PACKET_VNET_HDR_LEN } else { 0 };
        match self.geometry {
            Geometry::Frames(_) => {
                let begin = slot_offset(self.next);
                let status = self.mapping.word(begin + at::V2_STATUS).load(Ordering::Acquire);
                if status & libc::TP_STATUS_USER == 0 {
                    return None;
                }
                self.losing |= status & libc::TP_STATUS_LOSING != 0;
                let frame = RxFrame {
                    mac: begin + usize::from(self.read_u16(begin + at::V2_MAC)),
                    here: self.read_usize(begin + at::V2_SNAPLEN),
                    info: FrameInfo {
                        len: self.read_usize(begin + at::V2_LEN),
                        status,
                        vlan_tci: u32::from(self.read_u16(begin + at::V2_VLAN_TCI)),
                    },
                    next_offset: 0,
                };
                Some(frame.inside(begin..begin + FRAME_BYTES, before))
            }
            Geometry::Blocks(_) => {
                let OpenBlock { frame: begin, frames_left } = self.open_block()?;
                let end = (self.next + 1) * SHARED_BLOCK_BYTES;
                if begin.saturating_add(V3_HEADER_BYTES) > end {
                    return Some(Err(Outside));
                }
                let frame = RxFrame {
                    mac: begin + usize::from(self.read_u16(begin + at::V3_MAC)),
                    here: self.read_usize(begin + at::V3_SNAPLEN),
                    info: FrameInfo {
                        len: self.read_usize(begin + at::V3_LEN),
                        status: self.read_u32(begin + at::V3_STATUS),
                        vlan_tci: self.read_u32(begin + at::V3_VLAN_TCI),
                    },
                    next_offset: self.read_usize(begin + at::V3_NEXT),
                };
                if frame.next_offset == 0 && frames_left > 1 {
                    // The same frame would be read again, as many times as the block claims to have
                    // frames.
                    return Some(Err(Outside));
                }
                Some(frame.inside(begin..end, before))
            }
        }
    }

    /// Returns the open block, or opens the next one if this process owns it.
    fn open_block(&mut self) -> Option<OpenBlock> {
        loop {
            if let Some(open) = self.open {
                if open.frames_left > 0 {
                    return Some(open);
                }
                self.close_block();
            }
            let begin = self.next * SHARED_BLOCK_BYTES;
            let status = self.mapping.word(begin + at::BLOCK_STATUS).load(Ordering::Acquire);
            if status & libc::TP_STATUS_USER == 0 {
                return None;
            }
            self.losing |= status & libc::TP_STATUS_LOSING != 0;
            self.open = Some(OpenBlock {
                frames_left: self.read_u32(begin + at::BLOCK_FRAMES),
                frame: begin.saturating_add(self.read_usize(begin + at::BLOCK_FIRST)),
            });
        }
    }

    fn close_block(&mut self) {
        let begin = self.next * SHARED_BLOCK_BYTES;
        self.open = None;
        self.mapping
            .word(begin + at::BLOCK_STATUS)
            .store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.advance();
    }

    fn advance(&mut self) {
        let (Geometry::Frames(count) | Geometry::Blocks(count)) = self.geometry;
        self.next = (self.next + 1) % count;
    }

    /// Returns a slot, or a block including the frames after the broken one, whose offsets are
    /// unknown.
    fn skip_broken(&mut self) {
        match self.geometry {
            Geometry::Frames(_) => self.give_back_slot(),
            Geometry::Blocks(_) => self.close_block(),
        }
    }

    fn give_back_slot(&mut self) {
        let status = self.mapping.word(slot_offset(self.next) + at::V2_STATUS);
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.advance();
    }

    fn give_back(&mut self, frame: &RxFrame) {
        match self.geometry {
            Geometry::Frames(_) => self.give_back_slot(),
            Geometry::Blocks(_) => {
                let Some(open) = &mut self.open else { return };
                open.frames_left -= 1;
                open.frame = open.frame.saturating_add(frame.next_offset);
                if open.frames_left == 0 {
                    self.close_block();
                }
            }
        }
    }

    fn copy_out(&self, frame: &RxFrame, slot: &mut RxSlot) {
        let from = self.mapping.at(frame.mac, frame.here);
        // SAFETY: the range is inside the mapping (checked by `at`), and this process owns it until
        // `give_back`: see the module head.
        let mut from = unsafe { std::slice::from_raw_parts(from.as_ptr(), frame.here) };
        let mut pieces = ArrayVec::<IoSliceMut<'_>, PIECES_MAX>::new();
        slot.io_slices(&mut pieces);
        for piece in &mut pieces {
            let (now, later) = from.split_at(piece.len().min(from.len()));
            piece[..now.len()].copy_from_slice(now);
            from = later;
        }
    }

    fn vnet_header(&self, frame: &RxFrame) -> VnetHdr {
        let bytes: [u8; PACKET_VNET_HDR_LEN] = self.read(frame.mac - PACKET_VNET_HDR_LEN);
        vnet_header(bytes)
    }

    fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        let from = self.mapping.at(offset, N).cast::<[u8; N]>();
        // SAFETY: the range is inside the mapping (checked by `at`) and has alignment 1. This
        // process owns it: it is only read after the status word of its slot or block was loaded,
        // and before `give_back`.
        unsafe { from.read() }
    }

    fn read_u16(&self, offset: usize) -> u16 {
        u16::from_ne_bytes(self.read(offset))
    }

    fn read_u32(&self, offset: usize) -> u32 {
        u32::from_ne_bytes(self.read(offset))
    }

    /// Reads a length. A length that exceeds `usize` is outside of every slot and block.
    fn read_usize(&self, offset: usize) -> usize {
        usize::try_from(self.read_u32(offset)).unwrap_or(usize::MAX)
    }
}

/// Extends the offload header of packet sockets to that of a tap.
pub(super) fn vnet_header(bytes: [u8; PACKET_VNET_HDR_LEN]) -> VnetHdr {
    let mut whole = [0; VNET_HDR_LEN];
    whole[..PACKET_VNET_HDR_LEN].copy_from_slice(&bytes);
    VnetHdr::from_bytes(whole)
}

impl Received {
    /// Builds a good or bad frame according to its metadata.
    pub(super) fn of(info: &FrameInfo, header: Option<VnetHdr>, mut packet: Packet) -> Self {
        match inspect(info, header, &mut packet) {
            Ok(()) => Self::Good(packet),
            Err(reason) => Self::Bad(reason, packet),
        }
    }
}

/// Converts the kernel's metadata into packet metadata.
fn inspect(
    info: &FrameInfo,
    header: Option<VnetHdr>,
    packet: &mut Packet,
) -> Result<(), DropReason> {
    if packet.len() < info.len {
        return Err(DropReason::DeviceRxTruncated);
    }
    if info.len < usize::from(ETHERNET_HEADER_LEN) {
        return Err(DropReason::PacketTooShort);
    }
    if info.status & libc::TP_STATUS_VLAN_VALID != 0 && info.vlan_tci & VLAN_ID_MASK != 0 {
        // The kernel has removed the tag; with the tag, the frame's type would be unknown.
        return Err(DropReason::EthernetType);
    }
    if let Some(header) = header {
        return header.apply_to(packet, ETHERNET_HEADER_LEN);
    }
    if info.status & (libc::TP_STATUS_CSUM_VALID | libc::TP_STATUS_CSUMNOTREADY) != 0 {
        packet.meta_mut().rx_checksum = RxChecksum::Unnecessary;
    }
    Ok(())
}

#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;

#[cfg(test)]
mod tests;
