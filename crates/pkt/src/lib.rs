//! Packet memory of quietline: owned packets, per-core pools, checksums.
//!
//! Internal to crate `quietline`: it promises no stability, and any release may change or remove
//! any item.
//!
//! Below: `sync` (the lock-free return list). Above: every other crate. Linux: `sk_buff`, the slab
//! and page allocators under it, `csum_partial`.
//!
//! ```text
//!  Packet (8 bytes)
//!    │   descriptor, 704 bytes                            page, 32 KiB, shared
//!    ▼  ┌──────────────────────────────────────────┐     ┌──────────────────────┐
//!  line │ 0     link home pair │ data lens truesize │     │ refs (kept apart)    │
//!       ├──────────────────────┴───────────────────┤     ├──────────────────────┤
//!       │ 1     owner │ meta: checksums gso hash …  │  ┌─►│ payload bytes,       │
//!       ├──────────────────────────────────────────┤  │  │ written once         │
//!       │ 2..5  head, 256 bytes                    │  │  ├──────────────────────┤
//!       │  ┌──────────┬─────────────┬────────────┐ │  │  │ slices of other      │
//!       │  │ headroom │ linear bytes│  tailroom  │ │  │  │ packets              │
//!       │  └──────────┴─────────────┴────────────┘ │  │  ├──────────────────────┤
//!       ├──────────────────────────────────────────┤  │  │ not yet carved       │
//!       │ 6..10 frags[17]: (address, length) ──────┼──┘  └──────────────────────┘
//!       └──────────────────────────────────────────┘
//!           bytes of the packet = linear, then frags
//! ```
//!
//! - Headers and payloads up to 128 bytes lie in the packet's own head, which is never shared.
//! - Bulk payload lies in page slices, which are immutable and may be shared by any number of
//!   packets.
//! - A clone therefore gets other headers without copying payload, and shared memory is never
//!   written.
//!
//! Transmit: `Pool::alloc_fclone`, then `append` copies and sums the payload, and the packet is
//! queued in TCP's write queue. `clone_in` makes a clone and the layers `push` its headers. The
//! device sends and frees the clone, which notifies the clone's owner. The ACK frees the original.
//! Receive: `Pool::rx_slot`, the device reads into it, `RxSlot::finish`, `require_linear` and
//! `pull` per layer, `copy_to` the application, `Pool::free`.
//!
//! ```
//! use pkt::{Domain, DomainConfig, Sum};
//!
//! let domain = Domain::new(DomainConfig::default());
//! let mut pool = domain.pool();
//!
//! let mut queued = pool.alloc_fclone().expect("memory");
//! assert_eq!(queued.append(&mut pool, &[7; 4000]), 4000);
//!
//! let mut sent = queued.clone_in(&mut pool).expect("memory");
//! sent.push(20).fill(0);
//! assert_eq!((queued.len(), sent.len()), (4000, 4020));
//! assert_eq!(sent.checksum(20, 4000), Sum::of(&[7; 4000]));
//! assert!(queued.clone_busy());
//!
//! pool.free(sent);
//! assert!(!queued.clone_busy());
//! pool.free(queued);
//! assert_eq!(domain.balance(), 0);
//! ```
//!
//! Unsafe code for packet memory lives in this crate and in no crate above it. The loom models in
//! tests/loom check the data that two threads share: page counts, return lists, the fclone pair.
//!
//! Not here: queues with policy, devices, headers.

pub mod checksum;
pub mod list;
pub mod meta;
pub mod packet;
pub mod pool;
pub mod time;

mod drop_reason;
mod page;
mod pages;
mod shim;

pub use checksum::Sum;
pub use drop_reason::{DropReason, Verdict};
pub use list::{BATCH_MAX, Batch, PacketList};
pub use meta::{Ecn, EtherType, Gso, GsoKind, PacketMeta, PacketType, RxChecksum, TxChecksum};
pub use packet::{
    COPYBREAK, CloneMark, Cutter, DENSE_BYTES_MAX, DESCRIPTOR_BYTES, FRAGS_MAX, HEAD_BYTES,
    HEADROOM, HeadTemplate, Packet, PacketOwner, SUMS_MAX, Slices,
};
pub use pages::{Pages, PagesRange, Payload};
pub use pool::{
    Domain, DomainConfig, DomainStats, FreeMode, Heap, Pool, PoolKick, PoolStats, RX_HEADROOM,
    RX_LEN_MAX, RxSlot, SlabSource,
};
pub use time::Instant;
