//! Memory a device receives into before the length of the frame is known.
//!
//! Above: devices (tap, tun, af_packet). Linux: an RX descriptor with its page_pool pages, and
//! `rx_copybreak`.
//!
//! A slot owns whole pages or the unused rest of one. After the read only the received bytes become
//! a slice; the rest goes back to the pool. Frames that fit into a head are copied there and use no
//! page memory. Larger frames stay in pages entirely: `Packet::require_linear` then makes exactly
//! the headers linear, so that payload is never split between head and pages and GRO can merge it.
//!
//! Not here: the read itself.

use core::fmt;
use std::io::IoSliceMut;

use arrayvec::ArrayVec;

use crate::packet::{HEAD_BYTES, Kind, Packet};
use crate::page::{Cursor, HEADERS_BYTES, PAGE_BYTES};
use crate::pool::Pool;

/// Headroom of received packets: enough to put a link header back in front of a packet that is
/// forwarded.
pub const RX_HEADROOM: u16 = 32;
/// Largest frame a slot can be made for: a 64 KiB superframe with a margin.
pub const RX_LEN_MAX: usize = 96 * 1024;
/// Frames up to this length are copied into the head, which they may fill. Copying 224 bytes that
/// the read has just brought into the cache costs less than the reference count of a page.
const RX_COPYBREAK: usize = HEAD_BYTES - RX_HEADROOM as usize;
/// Smallest rest of a page that is used for a slot, in bytes.
const RX_REST_MIN: usize = 2048;
/// Pages a slot may span.
const RX_PAGES: usize = 4;

const _: () = assert!(
    RX_REST_MIN + (RX_PAGES - 1) * (PAGE_BYTES - HEADERS_BYTES) >= RX_LEN_MAX || cfg!(loom)
);
const _: () = assert!(RX_COPYBREAK <= RX_REST_MIN);

/// A packet that has not been received yet. It can be kept while no frame arrives (`EAGAIN`).
#[derive(Debug)]
pub struct RxSlot {
    packet: Packet,
    pages: RxPages,
    len_max: usize,
}

impl RxSlot {
    pub(crate) fn new(pool: &mut Pool, len_max: usize) -> Option<Self> {
        assert!(len_max <= RX_LEN_MAX, "a receive slot of {len_max} bytes");
        let packet = pool.alloc_at(RX_HEADROOM, Kind::Alone)?;
        let mut pages = RxPages(ArrayVec::new());
        let mut room = 0;
        if let Some(rest) = pool.local.rx_cursors.pop() {
            if rest.room() >= len_max.min(RX_REST_MIN) {
                room = rest.room();
                pages.0.push(rest);
            } else if let Some(page) = rest.retire() {
                pool.local.put_page(page);
            }
        }
        while room < len_max {
            let Some(cursor) = pool.open_page() else {
                pages.0.drain(..).for_each(|cursor| pool.local.put_rx_cursor(cursor));
                pool.free(packet);
                return None;
            };
            room += cursor.room();
            pages.0.push(cursor);
        }
        Some(Self { packet, pages, len_max })
    }

    /// Adds the memory to read into, `len_max` bytes in order, to the end of `out` (a device may
    /// put the buffer for its own header first).
    ///
    /// # Panics
    ///
    /// If `out` has fewer than four free places.
    pub fn io_slices<'a, const N: usize>(&'a mut self, out: &mut ArrayVec<IoSliceMut<'a>, N>) {
        let mut left = self.len_max;
        for cursor in &mut self.pages.0 {
            let unused = cursor.unused();
            let len = unused.len().min(left);
            if len > 0 {
                out.push(IoSliceMut::new(&mut unused[..len]));
            }
            left -= len;
        }
    }

    /// Writes `bytes` into the memory, for a device that has received them elsewhere.
    ///
    /// # Panics
    ///
    /// If they exceed the length the slot was made for.
    pub fn write(&mut self, bytes: &[u8]) {
        assert!(
            bytes.len() <= self.len_max,
            "{} bytes for a slot of {}",
            bytes.len(),
            self.len_max
        );
        let mut rest = bytes;
        for cursor in &mut self.pages.0 {
            let room = cursor.unused();
            let (now, later) = rest.split_at(rest.len().min(room.len()));
            room[..now.len()].copy_from_slice(now);
            rest = later;
        }
    }

    /// Makes the packet, after the device has written `len` bytes into the memory of
    /// [`RxSlot::io_slices`]. Unused memory goes back to `pool`.
    ///
    /// A packet longer than 224 bytes has no linear bytes: use [`Packet::require_linear`].
    ///
    /// # Panics
    ///
    /// If `len` exceeds the length the slot was made for.
    #[must_use]
    pub fn finish(self, pool: &mut Pool, len: usize) -> Packet {
        let Self { mut packet, mut pages, len_max } = self;
        assert!(len <= len_max, "received {len} bytes into a slot of {len_max}");
        if len <= RX_COPYBREAK {
            if let (Some(first), Some(linear)) = (pages.0.first_mut(), packet.put(len)) {
                linear.copy_from_slice(&first.unused()[..len]);
            }
        } else {
            let mut left = len;
            for cursor in &mut pages.0 {
                let len = cursor.room().min(left);
                if len > 0 {
                    packet.charge_frag(cursor.carve(len));
                }
                left -= len;
            }
        }
        pages.0.drain(..).for_each(|cursor| pool.local.put_rx_cursor(cursor));
        packet
    }

    /// Returns all memory unused.
    pub fn cancel(self, pool: &mut Pool) {
        let packet = self.finish(pool, 0);
        pool.free(packet);
    }
}

/// Pages of a slot, which return to their home if the slot is dropped.
struct RxPages(ArrayVec<Cursor, RX_PAGES>);

impl Drop for RxPages {
    fn drop(&mut self) {
        for page in self.0.drain(..).filter_map(Cursor::retire) {
            page.home().return_page(page);
        }
    }
}

impl fmt::Debug for RxPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
