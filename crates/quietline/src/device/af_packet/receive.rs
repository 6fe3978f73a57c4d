//! The receive ring: frames that the kernel has written into shared memory, copied out one by one.
//!
//! Above: `device`. Beside: `recvmsg`, the way in without a ring. Linux: `tpacket_rcv`, Documentation/networking/packet_mmap.rst.
//!
//! ```text
//!   TPACKET_V2   block of 1 MB:  [place 68 KB][place 68 KB] ... 15 of them
//!                place:          status | lengths | tag | sockaddr_ll | virtio header | Ethernet header | IP packet
//!   TPACKET_V3   block of 128 KB:  status | frames | first ... [frame][frame][frame] ...   each says where the next one is
//! ```
//!
//! A status word says whose a place, or a block, is: the kernel's while it is 0, ours while its lowest bit is set. We read it
//! with acquire before we read what it stands for, and give it back by writing 0 with release after our last read. The kernel
//! fills places in their order, so a place that is the kernel's ends the search.
//!
//! The kernel's numbers are checked before they are used: a frame that is not inside of its place or block is dropped, and its
//! place or the rest of its block is given back unread.
//!
//! Differs from a tap: the frame is copied twice, by the kernel into the ring and by us into packet memory; what is saved
//! is the system call per frame.
//!
//! Not here: the meaning of the frame (`link::input`).

use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use pkt::{DropReason, Instant, Packet, Pool, RX_LEN_MAX, RxChecksum, RxSlot};

use super::super::mapping::Mapping;
use super::super::vnet_hdr::{VNET_HDR_LEN, VnetHdr};
use super::ETHERNET_HEADER_LEN;
use super::socket::{PLACES_BLOCK_BYTES, SHARED_BLOCK_BYTES};

/// Bytes of a place of a V2 ring: the largest IP packet, Ethernet header, offload header and what the kernel puts in front, up to
/// the next page.
pub(super) const FRAME_BYTES: usize = 68 << 10;
const _: () = assert!(65_535 + 14 + 4 + PACKET_VNET_HDR_LEN + 80 <= FRAME_BYTES);

/// Bytes of the offload header in front of a frame: the 12 of a tap without its last field.
pub(super) const PACKET_VNET_HDR_LEN: usize = 10;

/// Bytes of `struct tpacket3_hdr`, which stands in front of each frame of a block.
const V3_HEADER_BYTES: usize = size_of::<libc::tpacket3_hdr>();

// A frame that is inside of its place fits a slot; one in a block may not.
const _: () = assert!(FRAME_BYTES <= RX_LEN_MAX);

/// Pieces of a receive slot.
const PIECES_MAX: usize = 4;

/// Where the fields of `struct tpacket2_hdr`, `tpacket3_hdr` and `tpacket_block_desc` are.
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

/// The VLAN number in a tag; 0 is a frame that only carries a priority.
const VLAN_ID_MASK: u32 = 0xfff;

/// How a ring is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Geometry {
    /// V2: this many places.
    Frames(usize),
    /// V3: this many blocks.
    Blocks(usize),
}

impl Geometry {
    pub(super) const fn frames(blocks: usize) -> Self {
        Self::Frames(blocks * (PLACES_BLOCK_BYTES / FRAME_BYTES))
    }

    pub(super) const fn blocks(blocks: usize) -> Self {
        Self::Blocks(blocks)
    }
}

/// Where place `index` of a V2 ring begins: no place straddles two blocks.
const fn place(index: usize) -> usize {
    let per_block = PLACES_BLOCK_BYTES / FRAME_BYTES;
    index / per_block * PLACES_BLOCK_BYTES + index % per_block * FRAME_BYTES
}

/// A block of a V3 ring that is ours and not read to its end.
#[derive(Debug, Clone, Copy)]
struct OpenBlock {
    frames_left: u32,
    /// Where the next one begins.
    frame: usize,
}

/// The ring and how far we are.
#[derive(Debug)]
pub(super) struct RxRing {
    mapping: Mapping,
    geometry: Geometry,
    vnet_hdr: bool,
    /// Which place or block is next.
    next: usize,
    open: Option<OpenBlock>,
    /// The kernel has said that it had to drop frames.
    pub(super) losing: bool,
}

/// A frame that is ours.
#[derive(Debug, Clone, Copy)]
struct RxFrame {
    /// Where its Ethernet header begins.
    mac: usize,
    /// How much of it is there.
    here: usize,
    beside: Beside,
    /// V3: from its header to the next one's.
    next_offset: usize,
}

/// The kernel describes a frame that is not inside of its place or block.
#[derive(Debug, Clone, Copy)]
struct Outside;

impl RxFrame {
    /// The frame, if it and the `before` bytes in front of it are in `room`.
    fn inside(self, room: Range<usize>, before: usize) -> Result<Self, Outside> {
        let end = self.mac.saturating_add(self.here);
        let fits = self.mac >= room.start + before && end <= room.end && self.here <= RX_LEN_MAX;
        if fits { Ok(self) } else { Err(Outside) }
    }
}

/// What the kernel says of a frame beside it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Beside {
    /// Its length, of which `packet` may have less.
    pub(super) len: usize,
    /// `TP_STATUS_*`.
    pub(super) status: u32,
    /// The tag that was taken off, if the status says so.
    pub(super) vlan_tci: u32,
}

/// What one look gave.
pub(super) enum Received {
    /// A good frame.
    Good(Packet),
    /// A frame that goes no further.
    Bad(DropReason, Packet),
    /// A frame that is not inside of its place or block. It was given back unread.
    Broken,
    /// Nothing waits.
    Empty,
    /// No packet memory is left: what waits stays in the ring.
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
        Received::of(&frame.beside, header, packet)
    }

    /// Gives everything back unread.
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
                let begin = place(self.next);
                let status = self.mapping.word(begin + at::V2_STATUS).load(Ordering::Acquire);
                if status & libc::TP_STATUS_USER == 0 {
                    return None;
                }
                self.losing |= status & libc::TP_STATUS_LOSING != 0;
                let frame = RxFrame {
                    mac: begin + usize::from(self.read_u16(begin + at::V2_MAC)),
                    here: self.read_usize(begin + at::V2_SNAPLEN),
                    beside: Beside {
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
                    beside: Beside {
                        len: self.read_usize(begin + at::V3_LEN),
                        status: self.read_u32(begin + at::V3_STATUS),
                        vlan_tci: self.read_u32(begin + at::V3_VLAN_TCI),
                    },
                    next_offset: self.read_usize(begin + at::V3_NEXT),
                };
                if frame.next_offset == 0 && frames_left > 1 {
                    // The frame would be read again, as often as the block claims to have frames.
                    return Some(Err(Outside));
                }
                Some(frame.inside(begin..end, before))
            }
        }
    }

    /// The block that is read, or the next one if it is ours.
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

    /// Gives a place back, or a block with the frames behind the broken one: nothing says where they are.
    fn skip_broken(&mut self) {
        match self.geometry {
            Geometry::Frames(_) => self.give_back_place(),
            Geometry::Blocks(_) => self.close_block(),
        }
    }

    fn give_back_place(&mut self) {
        let status = self.mapping.word(place(self.next) + at::V2_STATUS);
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.advance();
    }

    fn give_back(&mut self, frame: &RxFrame) {
        match self.geometry {
            Geometry::Frames(_) => self.give_back_place(),
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
        // SAFETY: inside the mapping (checked by `at`), and ours until `give_back`: see the module head.
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
        // SAFETY: inside the mapping (checked by `at`), of alignment 1, and ours: only read after the status word of its place
        // or block has said so, and before `give_back`.
        unsafe { from.read() }
    }

    fn read_u16(&self, offset: usize) -> u16 {
        u16::from_ne_bytes(self.read(offset))
    }

    fn read_u32(&self, offset: usize) -> u32 {
        u32::from_ne_bytes(self.read(offset))
    }

    /// A length. One that no machine can have is outside of every place and block.
    fn read_usize(&self, offset: usize) -> usize {
        usize::try_from(self.read_u32(offset)).unwrap_or(usize::MAX)
    }
}

/// The header as packet sockets have it.
pub(super) fn vnet_header(bytes: [u8; PACKET_VNET_HDR_LEN]) -> VnetHdr {
    let mut whole = [0; VNET_HDR_LEN];
    whole[..PACKET_VNET_HDR_LEN].copy_from_slice(&bytes);
    VnetHdr::from_bytes(whole)
}

impl Received {
    /// A frame, good or bad by what stands beside it.
    pub(super) fn of(beside: &Beside, header: Option<VnetHdr>, mut packet: Packet) -> Self {
        match inspect(beside, header, &mut packet) {
            Ok(()) => Self::Good(packet),
            Err(reason) => Self::Bad(reason, packet),
        }
    }
}

/// Turns what stands beside the frame into metadata.
fn inspect(
    beside: &Beside,
    header: Option<VnetHdr>,
    packet: &mut Packet,
) -> Result<(), DropReason> {
    if packet.len() < beside.len {
        return Err(DropReason::DeviceRxTruncated);
    }
    if beside.len < usize::from(ETHERNET_HEADER_LEN) {
        return Err(DropReason::PacketTooShort);
    }
    if beside.status & libc::TP_STATUS_VLAN_VALID != 0 && beside.vlan_tci & VLAN_ID_MASK != 0 {
        // The kernel has taken the tag off; with it the frame would be of a type that nobody takes.
        return Err(DropReason::EthernetType);
    }
    if let Some(header) = header {
        return header.apply_to(packet, ETHERNET_HEADER_LEN);
    }
    if beside.status & (libc::TP_STATUS_CSUM_VALID | libc::TP_STATUS_CSUMNOTREADY) != 0 {
        packet.meta_mut().rx_checksum = RxChecksum::Unnecessary;
    }
    Ok(())
}

#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;

#[cfg(test)]
mod tests;
