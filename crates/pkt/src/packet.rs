//! The packet: one owned pointer to a descriptor with its own head, and slices of shared pages.
//!
//! Above: every other crate. Below: pool.rs (memory), page.rs (payload). Linux: `struct sk_buff`.
//!
//! A packet's bytes are its linear bytes (in the head) followed by its frags (in pages). The linear
//! bytes belong to this packet alone and may be written at any time. The bytes of a frag are
//! written before the frag exists and never again. A clone has a head of its own and shares the
//! frags, so it can get other headers than its original without a copy, and no packet has to be
//! made private before it is written.
//!
//! Differs from Linux: `skb_clone` shares the head too, so the writer of a header must first check
//! `skb_cloned` and copy. Here every packet has its own head, because a head of 256 bytes is cheap
//! to copy.
//!
//! Dropping a packet is correct everywhere; `Pool::free` is faster where a pool is at hand.
//!
//! Not here: payload operations (payload.rs), clones (share.rs), layout, allocation and freeing of
//! descriptors (descriptor.rs).

use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use std::sync::Arc;

use sync::{AnyRef, fetch_for_writing};

use crate::meta::PacketMeta;
use crate::page::Slice;
use crate::pool::{HomeRef, NoPool};

mod cut;
mod descriptor;
mod pair;
mod parcel;
mod payload;
mod share;
mod sums;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

pub use cut::{Cutter, HeadTemplate};
use descriptor::Body;
pub use descriptor::{DESCRIPTOR_BYTES, FRAGS_MAX, HEAD_BYTES};
pub(crate) use descriptor::{Descriptor, FreeDescriptor, end};
pub use pair::CloneMark;
pub(crate) use pair::Kind;
pub(crate) use parcel::{PARCEL_LEN, Parcel};
pub use payload::{DENSE_BYTES_MAX, Slices};
pub use sums::SUMS_MAX;

/// Bytes in front of the payload of a packet to be sent. The longest headers are TCP with all
/// options (60), IPv6 (40), and Ethernet with a VLAN tag (18), which leaves 10. A device with a
/// header of its own keeps that header elsewhere and gathers.
pub const HEADROOM: u16 = 128;
const _: () = assert!(60 + 40 + 18 <= HEADROOM);
/// Payloads up to this length are copied into the head and need no page: the head without its
/// headroom.
pub const COPYBREAK: usize = HEAD_BYTES - HEADROOM as usize;

/// Receives a notification when a packet charged to it has left: transmitted, dropped, or orphaned.
/// Linux: the destructor of an skb (`tcp_wfree`).
pub trait PacketOwner: Send + Sync {
    /// `truesize` is the packet's `truesize()` at the time the owner was set. Runs on any thread
    /// that frees the packet, and must not block.
    fn on_complete(&self, truesize: u32);
}

/// An owned packet. Eight bytes; moving it moves no data.
#[repr(transparent)]
pub struct Packet(NonNull<Descriptor>);

// SAFETY: a packet is the only owner of its body. The memory it shares (home, pair, slices) is
// synchronized by atomics, and its owner is `Send + Sync`.
unsafe impl Send for Packet {}

impl Packet {
    /// Returns the number of bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        let body = self.body();
        usize::from(body.linear_len) + body.frag_bytes as usize
    }

    /// Returns true if the packet has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes in the head.
    #[inline]
    #[must_use]
    pub fn linear(&self) -> &[u8] {
        let body = self.body();
        &body.head[usize::from(body.data)..][..usize::from(body.linear_len)]
    }

    /// Returns the bytes in the head for writing; they are never shared.
    #[inline]
    #[must_use]
    pub fn linear_mut(&mut self) -> &mut [u8] {
        let body = self.body_mut();
        &mut body.head[usize::from(body.data)..][..usize::from(body.linear_len)]
    }

    /// Returns the head from `offset`, counted from its start, to the last linear byte. This
    /// includes headers that were pulled: `head_from(meta.network_offset)` is the network header.
    /// Empty if the offset lies behind the last linear byte.
    #[inline]
    #[must_use]
    pub fn head_from(&self, offset: u16) -> &[u8] {
        let body = self.body();
        body.head[..usize::from(body.data + body.linear_len)]
            .get(usize::from(offset)..)
            .unwrap_or(&[])
    }

    /// Returns the position of the first linear byte in the head, the same unit as
    /// `meta().network_offset` and `transport_offset`. Equals `headroom()`.
    #[inline]
    #[must_use]
    pub fn head_offset(&self) -> u16 {
        self.body().data
    }

    /// Returns the number of bytes that `push` can still add.
    #[inline]
    #[must_use]
    pub fn headroom(&self) -> usize {
        usize::from(self.body().data)
    }

    /// Returns the number of bytes that fit into the head behind the linear bytes.
    #[inline]
    #[must_use]
    pub fn tailroom(&self) -> usize {
        let body = self.body();
        HEAD_BYTES - usize::from(body.data) - usize::from(body.linear_len)
    }

    /// Adds `count` bytes in front and returns them. Their contents are unspecified.
    ///
    /// # Panics
    ///
    /// If the headroom is too small: a layer that pushes more than [`HEADROOM`] allows is wrong.
    #[inline]
    pub fn push(&mut self, count: usize) -> &mut [u8] {
        let body = self.body_mut();
        let data = usize::from(body.data);
        assert!(count <= data, "push of {count} bytes with a headroom of {data}");
        body.data -= in_head(count);
        body.linear_len += in_head(count);
        &mut body.head[data - count..data]
    }

    /// Adds `count` linear bytes behind the others and returns them. Their contents are
    /// unspecified. `None` if the head has no room or the packet has frags, which come last.
    #[inline]
    pub fn put(&mut self, count: usize) -> Option<&mut [u8]> {
        if count > self.tailroom() || self.frag_count() > 0 {
            return None;
        }
        let body = self.body_mut();
        let end = usize::from(body.data + body.linear_len);
        body.linear_len += in_head(count);
        Some(&mut body.head[end..end + count])
    }

    /// Drops `count` linear bytes at the front; they stay in the headroom. Returns false, and does
    /// nothing, if fewer bytes are linear.
    #[inline]
    #[must_use]
    pub fn pull(&mut self, count: usize) -> bool {
        let body = self.body_mut();
        if count > usize::from(body.linear_len) {
            return false;
        }
        body.data += in_head(count);
        body.linear_len -= in_head(count);
        true
    }

    /// Makes the first `count` bytes linear. Returns false, and does nothing, if the packet is
    /// shorter or the head has no room. Linux: `pskb_may_pull`.
    #[inline]
    #[must_use]
    pub fn require_linear(&mut self, count: usize) -> bool {
        count <= usize::from(self.body().linear_len) || self.pull_up(count)
    }

    /// Returns the number of page slices.
    #[inline]
    #[must_use]
    pub fn frag_count(&self) -> usize {
        usize::from(self.body().frag_count)
    }

    /// Returns the bytes of memory charged for this packet: its descriptor and all page bytes ever
    /// appended. It grows when payload is appended and is divided by `split_off`. Pulling,
    /// advancing and truncating do not change it, so that a queue gets back exactly the amount it
    /// was charged.
    #[inline]
    #[must_use]
    pub fn truesize(&self) -> u32 {
        self.body().truesize
    }

    /// Returns the metadata.
    #[inline]
    #[must_use]
    pub fn meta(&self) -> &PacketMeta {
        &self.body().meta
    }

    /// Returns the metadata for writing.
    #[inline]
    #[must_use]
    pub fn meta_mut(&mut self) -> &mut PacketMeta {
        &mut self.body_mut().meta
    }

    /// Records that the network header starts at the packet's first byte.
    #[inline]
    pub fn set_network_header(&mut self) {
        let body = self.body_mut();
        body.meta.network_offset = body.data;
    }

    /// Records that the transport header starts at the packet's first byte.
    #[inline]
    pub fn set_transport_header(&mut self) {
        let body = self.body_mut();
        body.meta.transport_offset = body.data;
    }

    /// Returns the head from the network header on, also if the header has been pulled.
    #[inline]
    #[must_use]
    pub fn network_header(&self) -> &[u8] {
        self.head_from(self.meta().network_offset)
    }

    /// Returns the head from the transport header on, also if the header has been pulled.
    #[inline]
    #[must_use]
    pub fn transport_header(&self) -> &[u8] {
        self.head_from(self.meta().transport_offset)
    }

    /// Charges the packet to `owner`, which is notified of its end with the current `truesize`. An
    /// earlier owner is notified first.
    pub fn set_owner(&mut self, owner: Arc<dyn PacketOwner>) {
        let truesize = self.truesize();
        self.inherit_owner(owner, truesize);
    }

    /// As [`set_owner`](Self::set_owner), for a part of a packet charged to `owner`, which is
    /// notified with `charge`.
    pub fn inherit_owner(&mut self, owner: Arc<dyn PacketOwner>, charge: u32) {
        let body = self.body_mut();
        body.complete();
        body.charged = charge;
        body.owner = Some(owner);
    }

    /// Marks the packet as sent: notifies its owner, if it has one, and its original that the clone
    /// has left. Linux: `skb_orphan`.
    pub fn orphan(&mut self) {
        self.body_mut().complete();
        drop(self.take_clone_mark());
    }

    /// Takes the owner and its charge, for a device that reports completions itself. The caller
    /// must call `on_complete`.
    #[must_use = "the owner must be notified"]
    pub fn take_owner(&mut self) -> Option<(Arc<dyn PacketOwner>, u32)> {
        let body = self.body_mut();
        let charged = body.charged;
        body.owner.take().map(|owner| (owner, charged))
    }

    /// Returns true if the packet has an owner to notify.
    #[inline]
    #[must_use]
    pub fn has_owner(&self) -> bool {
        self.body().owner.is_some()
    }

    /// Attaches a reference to the path (dst entry) the packet arrived by, and drops an earlier
    /// one. A clone does not inherit it. Linux: `skb_dst_set`.
    pub fn set_dst(&mut self, dst: AnyRef) {
        self.body_mut().dst = Some(dst);
    }

    /// Takes the path the packet carries. Dropping the result is Linux's `skb_dst_drop`.
    #[inline]
    pub fn take_dst(&mut self) -> Option<AnyRef> {
        self.body_mut().dst.take()
    }

    /// Returns true if the packet carries a path.
    #[inline]
    #[must_use]
    pub fn has_dst(&self) -> bool {
        self.body().dst.is_some()
    }

    /// Returns the pool the packet belongs to.
    #[inline(always)]
    pub(crate) fn home(&self) -> HomeRef {
        // SAFETY: a packet owns its descriptor; `home` is written only while the descriptor is
        // free.
        unsafe { (*self.0.as_ptr()).home }
    }

    /// Removes the page slices and passes them to `put`; the linear bytes stay.
    pub(crate) fn drop_payload(&mut self, put: impl FnMut(Slice)) {
        self.body_mut().take_frags(0, put);
    }

    /// Reinitializes the descriptor as if it had been freed and allocated again. The caller has
    /// removed payload, owner, path and companion.
    pub(crate) fn renew(self) -> Self {
        let kind = match self.body().kind {
            Kind::Original => Kind::Original,
            _ => Kind::Alone,
        };
        debug_assert!(!self.clone_busy() && self.body().frag_count == 0);
        FreeDescriptor::of(self).start(HEADROOM, kind, &PacketMeta::default())
    }

    /// Gives up the packet without freeing it.
    #[inline]
    pub(crate) fn into_raw(self) -> NonNull<Descriptor> {
        ManuallyDrop::new(self).0
    }

    /// Makes a packet of a descriptor.
    ///
    /// # Safety
    ///
    /// `descriptor` came from `into_raw`, or its body was initialized for a packet, and it has no
    /// other owner.
    #[inline]
    pub(crate) unsafe fn from_raw(descriptor: NonNull<Descriptor>) -> Self {
        Self(descriptor)
    }

    /// Prefetches a packet that another CPU has written: the head up to the first bytes of a small
    /// payload, all cache lines at once. Without this, each line would be fetched only after the
    /// one before it, which holds its address. The lines are fetched for writing, because the
    /// receiver strips headers, updates fields and reuses the memory.
    #[inline]
    pub fn prefetch(&self) {
        let descriptor = self.0.as_ptr().cast::<u8>();
        for line in 0..5 {
            fetch_for_writing(descriptor.wrapping_add(line * 64));
        }
    }

    /// Prefetches the addresses of the frags, for one of many packets whose payload lies in pages.
    #[inline]
    pub fn prefetch_frags(&self) {
        fetch_for_writing(Descriptor::frags_of(self.0));
    }

    #[inline]
    fn raw(&self) -> NonNull<Descriptor> {
        self.0
    }

    #[inline(always)]
    fn body(&self) -> &Body {
        // SAFETY: a packet owns its descriptor's body, which is initialized; other threads access
        // only the descriptor's other fields. The borrow of the packet is the borrow of the body.
        unsafe {
            (*self.0.as_ptr()).track.read();
            &(*self.0.as_ptr()).body
        }
    }

    #[inline(always)]
    fn body_mut(&mut self) -> &mut Body {
        // SAFETY: as in `body`.
        unsafe {
            (*self.0.as_ptr()).track.write();
            &mut (*self.0.as_ptr()).body
        }
    }

    /// Adds a slice of memory that was not charged to any packet before.
    #[inline]
    pub(crate) fn charge_frag(&mut self, slice: Slice) {
        let body = self.body_mut();
        body.truesize += body.push_frag(slice);
    }
}

impl Drop for Packet {
    fn drop(&mut self) {
        // SAFETY: this is the last use of the packet; `end` takes its content.
        end(unsafe { Self::from_raw(self.0) }, &mut NoPool);
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = self.body();
        write!(
            f,
            "Packet({} bytes, {} linear at {}, {} frags, truesize {}{})",
            self.len(),
            body.linear_len,
            body.data,
            body.frag_count,
            body.truesize,
            if self.has_owner() { ", owned" } else { "" },
        )
    }
}

/// Converts a length or position inside a head.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "at most HEAD_BYTES")]
fn in_head(count: usize) -> u16 {
    debug_assert!(count <= HEAD_BYTES);
    count as u16
}
