//! The packet: one owned pointer to a descriptor with its own head, and slices of shared pages.
//!
//! Above: everything. Below: pool.rs (memory), page.rs (payload). Linux: `struct sk_buff`.
//!
//! A packet's bytes are its linear bytes (in the head) followed by its frags (in pages). The linear bytes
//! are this packet's alone and may be written at any time. Frags are written before they exist and never
//! again. Therefore a clone, which has a head of its own and shares the frags, can get other headers than
//! its original without a copy, and no packet ever has to be made private before it is written.
//!
//! Differs from Linux: `skb_clone` shares the head too, so that whoever writes a header must first ask
//! `skb_cloned` and copy; here the question does not arise.
//!
//! Dropping a packet is correct everywhere; `Pool::free` is faster where a pool is at hand.
//!
//! Not here: payload operations (payload.rs), clones (share.rs), layout and death (descriptor.rs).

use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use std::sync::Arc;

use sync::{AnyRef, fetch_for_writing};

use crate::meta::PacketMeta;
use crate::page::Slice;
use crate::pool::{Elsewhere, HomeRef};

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

/// Bytes in front of the payload of a packet to be sent. The longest headers: TCP with all options (60),
/// IPv6 (40), Ethernet with a VLAN tag (18), which leaves 10. A device that has a header of its own keeps it
/// elsewhere and gathers.
pub const HEADROOM: u16 = 128;
const _: () = assert!(60 + 40 + 18 <= HEADROOM);
/// Payloads up to this length are copied into the head and need no page: what the headroom leaves of it.
pub const COPYBREAK: usize = HEAD_BYTES - HEADROOM as usize;

/// Is told when a packet it was charged for is gone: transmitted, dropped, or orphaned. Linux: the
/// destructor of an skb (`tcp_wfree`).
pub trait PacketOwner: Send + Sync {
    /// `truesize` is what the packet's `truesize()` was when the owner was set. Runs on any thread that
    /// happens to free the packet, and must not block.
    fn on_complete(&self, truesize: u32);
}

/// An owned packet. Eight bytes; moving it moves no data.
#[repr(transparent)]
pub struct Packet(NonNull<Descriptor>);

// SAFETY: a packet is the only owner of its body; what it shares (home, pair, slices) is synchronised by
// atomics, and its owner is `Send + Sync`.
unsafe impl Send for Packet {}

impl Packet {
    /// Number of bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        let body = self.body();
        usize::from(body.linear_len) + body.frag_bytes as usize
    }

    /// True without bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes in the head.
    #[inline]
    #[must_use]
    pub fn linear(&self) -> &[u8] {
        let body = self.body();
        &body.head[usize::from(body.data)..][..usize::from(body.linear_len)]
    }

    /// The bytes in the head, to be written: they are never shared.
    #[inline]
    #[must_use]
    pub fn linear_mut(&mut self) -> &mut [u8] {
        let body = self.body_mut();
        &mut body.head[usize::from(body.data)..][..usize::from(body.linear_len)]
    }

    /// The head from `offset`, counted from its start, to the last linear byte. Reaches headers that were
    /// pulled: `head_from(meta.network_offset)` is the network header. Empty when the offset lies behind.
    #[inline]
    #[must_use]
    pub fn head_from(&self, offset: u16) -> &[u8] {
        let body = self.body();
        body.head[..usize::from(body.data + body.linear_len)]
            .get(usize::from(offset)..)
            .unwrap_or(&[])
    }

    /// Where the first byte lies in the head: what `meta().network_offset` and `transport_offset` are
    /// compared with. Equals `headroom()`.
    #[inline]
    #[must_use]
    pub fn head_offset(&self) -> u16 {
        self.body().data
    }

    /// Bytes that `push` can still add.
    #[inline]
    #[must_use]
    pub fn headroom(&self) -> usize {
        usize::from(self.body().data)
    }

    /// Bytes that fit into the head behind the linear ones.
    #[inline]
    #[must_use]
    pub fn tailroom(&self) -> usize {
        let body = self.body();
        HEAD_BYTES - usize::from(body.data) - usize::from(body.linear_len)
    }

    /// Adds `count` bytes in front and returns them, with whatever the head held there.
    ///
    /// # Panics
    ///
    /// Without the headroom: a layer that pushes more than [`HEADROOM`] allows for is wrong.
    #[inline]
    pub fn push(&mut self, count: usize) -> &mut [u8] {
        let body = self.body_mut();
        let data = usize::from(body.data);
        assert!(count <= data, "push of {count} bytes with a headroom of {data}");
        body.data -= in_head(count);
        body.linear_len += in_head(count);
        &mut body.head[data - count..data]
    }

    /// Adds `count` linear bytes behind the others and returns them, with whatever the head held there.
    /// `None` when the head is too full or the packet has frags, which come last.
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

    /// Drops `count` linear bytes at the front, which stay in the headroom. False, and nothing done, when
    /// fewer are linear.
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

    /// Makes the first `count` bytes linear. False, and nothing done, when the packet is shorter or the head
    /// has no room. Linux: `pskb_may_pull`.
    #[inline]
    #[must_use]
    pub fn require_linear(&mut self, count: usize) -> bool {
        count <= usize::from(self.body().linear_len) || self.pull_up(count)
    }

    /// Number of page slices.
    #[inline]
    #[must_use]
    pub fn frag_count(&self) -> usize {
        usize::from(self.body().frag_count)
    }

    /// Bytes of memory this packet stands for: its descriptor and all page bytes ever put into it. Grows
    /// when payload is appended and is divided by `split_off`; pulling, advancing and truncating leave it,
    /// so that a queue gets back what it was charged.
    #[inline]
    #[must_use]
    pub fn truesize(&self) -> u32 {
        self.body().truesize
    }

    /// What travels with the bytes.
    #[inline]
    #[must_use]
    pub fn meta(&self) -> &PacketMeta {
        &self.body().meta
    }

    /// What travels with the bytes.
    #[inline]
    #[must_use]
    pub fn meta_mut(&mut self) -> &mut PacketMeta {
        &mut self.body_mut().meta
    }

    /// Notes that the network header starts at the packet's first byte.
    #[inline]
    pub fn set_network_header(&mut self) {
        let body = self.body_mut();
        body.meta.network_offset = body.data;
    }

    /// Notes that the transport header starts at the packet's first byte.
    #[inline]
    pub fn set_transport_header(&mut self) {
        let body = self.body_mut();
        body.meta.transport_offset = body.data;
    }

    /// The head from the network header on, wherever the packet's data starts by now.
    #[inline]
    #[must_use]
    pub fn network_header(&self) -> &[u8] {
        self.head_from(self.meta().network_offset)
    }

    /// The head from the transport header on.
    #[inline]
    #[must_use]
    pub fn transport_header(&self) -> &[u8] {
        self.head_from(self.meta().transport_offset)
    }

    /// Charges the packet to `owner`, which is told of its end with today's `truesize`. An earlier owner is
    /// told first.
    pub fn set_owner(&mut self, owner: Arc<dyn PacketOwner>) {
        let truesize = self.truesize();
        self.inherit_owner(owner, truesize);
    }

    /// As [`set_owner`](Self::set_owner), for a part of a packet that `owner` was charged for: it is told of `charge`.
    pub fn inherit_owner(&mut self, owner: Arc<dyn PacketOwner>, charge: u32) {
        let body = self.body_mut();
        body.complete();
        body.charged = charge;
        body.owner = Some(owner);
    }

    /// The packet has left its sender: tells the owner, if any, that it is gone, and an original that its clone is.
    /// Linux: `skb_orphan`.
    pub fn orphan(&mut self) {
        self.body_mut().complete();
        drop(self.take_clone_mark());
    }

    /// Takes the owner and what it was charged, for a device that reports completions itself: whoever takes them must
    /// call `on_complete`.
    #[must_use = "the owner waits to be told"]
    pub fn take_owner(&mut self) -> Option<(Arc<dyn PacketOwner>, u32)> {
        let body = self.body_mut();
        let charged = body.charged;
        body.owner.take().map(|owner| (owner, charged))
    }

    /// True when somebody will be told of the packet's end.
    #[inline]
    #[must_use]
    pub fn has_owner(&self) -> bool {
        self.body().owner.is_some()
    }

    /// Lets the packet carry a reference to the path it came by; what it carried before is given back. Linux:
    /// `skb_dst_set`. A clone does not inherit it.
    pub fn set_dst(&mut self, dst: AnyRef) {
        self.body_mut().dst = Some(dst);
    }

    /// The path that the packet carries. Linux: `skb_dst_drop` when the result is dropped.
    #[inline]
    pub fn take_dst(&mut self) -> Option<AnyRef> {
        self.body_mut().dst.take()
    }

    /// True when the packet carries a path.
    #[inline]
    #[must_use]
    pub fn has_dst(&self) -> bool {
        self.body().dst.is_some()
    }

    /// The pool it belongs to.
    #[inline(always)]
    pub(crate) fn home(&self) -> HomeRef {
        // SAFETY: a packet owns its descriptor; `home` is written only while it is free.
        unsafe { (*self.0.as_ptr()).home }
    }

    /// Takes the page slices away; the linear bytes stay.
    pub(crate) fn drop_payload(&mut self, put: impl FnMut(Slice)) {
        self.body_mut().take_frags(0, put);
    }

    /// The same descriptor as if it had been free in between: nothing of this life is left. The caller has taken away
    /// payload, owner, path and companion.
    pub(crate) fn renew(self) -> Self {
        let kind = match self.body().kind {
            Kind::Original => Kind::Original,
            _ => Kind::Alone,
        };
        debug_assert!(!self.clone_busy() && self.body().frag_count == 0);
        FreeDescriptor::of(self).start(HEADROOM, kind, &PacketMeta::default())
    }

    /// Gives up the packet without ending it.
    #[inline]
    pub(crate) fn into_raw(self) -> NonNull<Descriptor> {
        ManuallyDrop::new(self).0
    }

    /// Takes up a packet.
    ///
    /// # Safety
    ///
    /// `descriptor` came from `into_raw`, or its body was made ready for a packet, and nobody else owns it.
    #[inline]
    pub(crate) unsafe fn from_raw(descriptor: NonNull<Descriptor>) -> Self {
        Self(descriptor)
    }

    /// For a packet that another CPU has made: begins to fetch what its receiver is about to look at, the head up to the first
    /// bytes of a small payload, all lines at once. Each would have to wait for the one before it otherwise, which says where it
    /// is. They are the receiver's from here on: it strips headers, notes what it finds, and uses the memory again.
    #[inline]
    pub fn prefetch(&self) {
        let descriptor = self.0.as_ptr().cast::<u8>();
        for line in 0..5 {
            fetch_for_writing(descriptor.wrapping_add(line * 64));
        }
    }

    /// For one of many packets whose payload lies in pages: begins to fetch what says where.
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
        // SAFETY: a packet owns its descriptor's body, which is initialised; other threads access only the
        // descriptor's other fields. The borrow of the packet is the borrow of the body.
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
        // SAFETY: this is the last use of the packet; its content moves into `end`.
        end(unsafe { Self::from_raw(self.0) }, &mut Elsewhere);
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

/// A length or position inside a head.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "at most HEAD_BYTES")]
fn in_head(count: usize) -> u16 {
    debug_assert!(count <= HEAD_BYTES);
    count as u16
}
