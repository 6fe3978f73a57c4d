//! The transmit path: a list of packets to the kernel, one writev each.
//!
//! Above: `device`. Linux: `tun_chr_write_iter`, which runs the kernel's receive path before it
//! returns.
//!
//! The kernel reads the payload directly from the packet's fragments. A packet that the kernel
//! refuses is returned with a reason; none is kept here or lost.
//!
//! The kernel copies a frame into at most 17 pieces of memory. Up to 64 KB, each piece may be a
//! single page. A larger superframe (BIG TCP) needs contiguous pages, which may not exist when the
//! kernel's memory is fragmented; the write then fails (ENOBUFS; `tun_alloc_skb`,
//! `alloc_skb_with_frags`), and would fail again at that size. After the first failure of such a
//! superframe, for any reason, the device therefore accepts at most 64 KB
//! ([`Device::superframe_max`](stack::device::Device::superframe_max)), and the stack segments
//! larger packets. The limit is not raised automatically, because fragmented memory mostly stays
//! fragmented, and 64 KB perform nearly as well (docs/benchmarks.md). Taking the device down and up
//! raises it again.
//!
//! Not here: the choice of a queue, segmentation in software (the capabilities tell the stack what
//! it must segment).

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use pkt::{DropReason, Packet};
use rustix::io::{Errno, writev};
use stack::base::limits::GSO_BYTES_MAX;

use super::super::checksum::complete_tx_checksum;
use super::super::vnet_hdr::VnetHdr;
use super::Tun;

/// Pieces of one frame: virtio header, head and 17 fragments.
const PIECES_MAX: usize = 1 + 1 + 17;

impl Tun {
    /// Writes one frame. The error is the reason of the refusal; `DeviceTxFull` is temporary.
    pub(super) fn write_frame(
        &self,
        fd: BorrowedFd<'_>,
        frame: &mut Packet,
    ) -> Result<(), DropReason> {
        let link_header_len = self.kind.link_header_len();
        let header;
        let mut pieces = ArrayVec::<IoSlice<'_>, PIECES_MAX>::new();
        if self.vnet_hdr {
            header = VnetHdr::of(frame, link_header_len)?.to_bytes();
            pieces.push(IoSlice::new(&header));
        } else {
            if frame.meta().gso.segs > 1 {
                // Only a stack that ignores the capabilities of the device gets here.
                return Err(DropReason::PacketTooBig);
            }
            complete_tx_checksum(frame, link_header_len)?;
        }
        for slice in frame.slices() {
            if pieces.try_push(IoSlice::new(slice)).is_err() {
                return Err(DropReason::PacketTooBig);
            }
        }
        write_pieces(fd, &pieces)
    }

    /// Lowers the limit of superframes if the kernel has refused `frame` for `reason` and may
    /// accept the same bytes in smaller frames. Returns true if it did.
    pub(super) fn shrink(&self, frame: &Packet, reason: DropReason) -> bool {
        let limit = usize::from(self.kind.link_header_len()) + GSO_BYTES_MAX as usize;
        if ends_the_list(reason) || frame.meta().gso.segs <= 1 || frame.len() <= limit {
            return false;
        }
        self.superframe_max.store(GSO_BYTES_MAX, Ordering::Relaxed);
        true
    }
}

fn write_pieces(fd: BorrowedFd<'_>, pieces: &[IoSlice<'_>]) -> Result<(), DropReason> {
    loop {
        return match writev(fd, pieces) {
            // The driver takes a frame whole or not at all.
            Ok(_) => Ok(()),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => Err(DropReason::DeviceTxFull),
            Err(Errno::NOBUFS | Errno::NOMEM) => Err(DropReason::NoMemory),
            // EIO: the interface is down. EBADFD: the queue is detached or the interface deleted.
            Err(Errno::IO | Errno::BADFD | Errno::NODEV) => Err(DropReason::DeviceDown),
            Err(_) => Err(DropReason::DeviceTxError),
        };
    }
}

/// Returns whether every later frame of the list would be refused, too.
pub(super) const fn ends_the_list(reason: DropReason) -> bool {
    matches!(reason, DropReason::DeviceDown)
}
