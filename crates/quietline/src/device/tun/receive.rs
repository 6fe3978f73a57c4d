//! The receive path: frames from the kernel, one readv each, directly into packet memory.
//!
//! Above: `device`. Linux: `tun_chr_read_iter`, which takes one packet from the queue's ring per
//! call.
//!
//! The kernel silently truncates a frame that is larger than the offered memory. One byte more than
//! the largest possible frame is therefore offered, and a frame that uses this byte is dropped with
//! a reason.
//!
//! Not here: the meaning of the frame (`stack::receive::link_input`), the flow hash.

use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use pkt::{DropReason, Instant, Packet, Pool, RxSlot};
use rustix::io::{Errno, readv};

use super::super::vnet_hdr::{VNET_HDR_LEN, VnetHdr};
use super::Tun;
use super::config::ETHERNET_HEADER_LEN;
use super::ioctl;

/// Largest IP packet of a superframe in either direction.
const IP_LEN_MAX: usize = 65_535;

/// An 802.1Q tag, which the kernel may add to a frame of one MTU.
const VLAN_TAG_LEN: usize = 4;

/// Pieces of the memory offered to one read: virtio header, and at most four of a slot.
const PIECES_MAX: usize = 1 + 4;

/// Result of one read.
pub(super) enum Frame {
    /// A good frame.
    Good(Packet),
    /// A frame to be dropped.
    Bad(DropReason, Packet),
    /// No frame waits.
    Empty,
    /// The kernel removed a frame from its queue and failed to deliver it.
    Lost,
    /// No packet memory is left. Waiting frames stay in the kernel.
    NoMemory,
    /// The interface is gone: no more frames arrive.
    Gone,
}

impl Tun {
    /// Returns the number of bytes to offer to one read: the largest frame plus one.
    pub(super) fn read_len(&self) -> usize {
        let ip_len = if self.vnet_hdr {
            IP_LEN_MAX
        } else {
            usize::try_from(self.caps.mtu).unwrap_or(IP_LEN_MAX)
        };
        usize::from(ETHERNET_HEADER_LEN) + VLAN_TAG_LEN + ip_len + 1
    }

    /// Reads one frame into memory of `pool`.
    pub(super) fn read_frame(&self, fd: BorrowedFd<'_>, pool: &mut Pool, now: Instant) -> Frame {
        let Some(mut slot) = pool.rx_slot(self.read_len()) else {
            return Frame::NoMemory;
        };
        let mut header = [0; VNET_HDR_LEN];
        let len = match self.read_into(fd, &mut header, &mut slot) {
            Ok(len) => len,
            Err(error) => {
                slot.cancel(pool);
                return match error {
                    Errno::AGAIN => Frame::Empty,
                    // EBADFD: the queue is detached or the interface deleted. Other errors (EFAULT,
                    // EINVAL, ENOMEM) concern one frame, so check whether the queue still has an
                    // interface.
                    Errno::BADFD => Frame::Gone,
                    _ if ioctl::is_attached(fd) => Frame::Lost,
                    _ => Frame::Gone,
                };
            }
        };
        let header_len = if self.vnet_hdr { VNET_HDR_LEN } else { 0 };
        let frame_len = len.saturating_sub(header_len);
        let mut packet = slot.finish(pool, frame_len);
        packet.meta_mut().timestamp = now;
        if len < header_len || frame_len == 0 {
            return Frame::Bad(DropReason::PacketTooShort, packet);
        }
        if frame_len >= self.read_len() {
            return Frame::Bad(DropReason::DeviceRxTruncated, packet);
        }
        if self.vnet_hdr {
            let parsed = VnetHdr::from_bytes(header);
            if let Err(reason) = parsed.apply_to(&mut packet, self.kind.link_header_len()) {
                return Frame::Bad(reason, packet);
            }
        }
        Frame::Good(packet)
    }

    /// Reads virtio header and frame with one readv. Returns the bytes of both.
    fn read_into(
        &self,
        fd: BorrowedFd<'_>,
        header: &mut [u8; VNET_HDR_LEN],
        slot: &mut RxSlot,
    ) -> Result<usize, Errno> {
        let mut pieces = ArrayVec::<IoSliceMut<'_>, PIECES_MAX>::new();
        if self.vnet_hdr {
            pieces.push(IoSliceMut::new(header));
        }
        slot.io_slices(&mut pieces);
        loop {
            match readv(fd, &mut pieces) {
                Err(Errno::INTR) => {}
                result => return result,
            }
        }
    }
}
