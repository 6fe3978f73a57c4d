//! The transmit side: a list of packets out to the kernel, one writev each.
//!
//! Above: `glue`. Linux: `tun_chr_write_iter`, which runs the kernel's receive path before it returns.
//!
//! The payload goes to the kernel straight from the packet's pieces. A packet that the kernel does not take is given
//! back with a reason; none is held here or lost.
//!
//! The kernel copies a frame into at most 17 pieces of memory. Up to 64 KB each of them may be a single page. A larger superframe (BIG
//! TCP) needs pages in a row, which there may be none of when the kernel's memory is fragmented, and then the write fails (ENOBUFS;
//! `tun_alloc_skb`, `alloc_skb_with_frags`). Sent again at that size it would fail again. So the first that fails, for whatever reason,
//! is the last of that size: the device takes 64 KB from there on ([`Device::superframe_max`](stack::device::Device::superframe_max)), and
//! the stack cuts up what is larger. It does not grow back by itself, as memory that is fragmented mostly stays so, and 64 KB do nearly as
//! well (docs/benchmarks.md); whoever knows better takes the device down and up.
//!
//! Not here: the choice of a queue, segmentation in software (our capabilities tell the stack what to cut beforehand).

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
    /// Writes one frame. `Err` says why the kernel or we refused it; `DeviceTxFull` is no refusal for good.
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
                // Only a stack that ignores our capabilities gets here.
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

    /// The kernel has refused `frame` for `reason`: may it take the same bytes in smaller ones? Then it is asked for none so large any
    /// more.
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

/// Whether every later frame of the list would meet the same fate, so that trying is a waste of calls.
pub(super) const fn ends_the_list(reason: DropReason) -> bool {
    matches!(reason, DropReason::DeviceDown)
}
