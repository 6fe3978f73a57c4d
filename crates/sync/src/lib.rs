//! Concurrency primitives of quietline: who may run what, and when memory may die.
//!
//! Internal to crate `quietline`: it promises no stability, and any release may change or remove any item.
//!
//! Below: `core`, `alloc`, and `std` for sleeping. Above: `pkt` (return lists), `stack` (socket lock, core
//! ownership, read-copy-update tables), `quietline` (sleep and wake).
//!
//! The unsafe code that concurrency needs lives here and only here; every exported function is safe except
//! the contract of [`llist::Linked`]. Each primitive is checked by loom models in `<module>/tests.rs`; the
//! private `shim` module is the only place that knows whether loom or std is underneath.
//!
//! | module | answers | Linux |
//! |---|---|---|
//! | [`llist`] | how packets change core without a lock | `llist.h` |
//! | [`listed`] | how something with many owners hangs in such a list | `tsq_node` |
//! | [`ring`] | how frames pass through a device in memory | `ptr_ring` |
//! | [`lanes`] | how a flow changes core without a packet overtaking | `input_pkt_queue` |
//! | [`small_queue`] | how a sender that stops is woken by what completes | TCP Small Queues |
//! | [`socket_lock`] | who may touch a socket | `lock_sock`, backlog |
//! | [`core_lock`] | who runs a core | NAPI's SCHED and MISSED |
//! | [`descriptors`] | who watches its descriptors | NAPI's PREFER_BUSY_POLL |
//! | [`eventcount`] | how to sleep without losing a wake-up | wait queues |
//! | [`epoch`] | when unreachable memory may die | RCU grace periods |
//! | [`rcu`], [`rcu_map`] | reading without a shared write | `rcu_dereference`, rhashtable |
//! | [`refcount`] | taking a reference to what may be dead | `rcuref_t`, `atomic_inc_not_zero` |
//! | [`counted`] | entries found without a reference, and where their count lies | `struct dst_entry` |
//! | [`padded`], [`percore`] | what must not share a cache line | `____cacheline_aligned`, per-CPU data |
//! | [`prefetch`] | how a line is ours by the time that it is written | `prefetchw` |
//!
//! Not here: reference counts of packets' memory (`pkt`), clocks, threads, wake-up policy.

pub mod core_lock;
pub mod counted;
pub mod descriptors;
pub mod epoch;
pub mod eventcount;
pub mod lanes;
pub mod listed;
pub mod llist;
pub mod padded;
pub mod percore;
pub mod prefetch;
pub mod rcu;
pub mod rcu_map;
pub mod refcount;
pub mod ring;
pub mod small_queue;
pub mod socket_lock;

mod shim;
#[cfg(test)]
mod test_item;

pub use core_lock::{Claim, CoreGuard, CoreLock, QUEUES_MAX};
pub use counted::{AnyRef, Handle, Ref, Slot};
pub use descriptors::{Descriptors, Poller};
pub use epoch::{Reader, Section};
pub use eventcount::{EventCount, WaitResult, Wakes};
pub use lanes::Lanes;
pub use listed::{Hook, Listed};
pub use llist::{Chain, Link, Linked, Llist};
pub use padded::Padded;
pub use percore::PerCore;
pub use prefetch::fetch_for_writing;
pub use rcu::RcuCell;
pub use rcu_map::RcuMap;
pub use refcount::{Counting, RefCount};
pub use ring::Ring;
pub use small_queue::{SmallQueue, TsqProtocol};
pub use socket_lock::{Entry, Owned, SocketLock, Work};

/// Lets other threads run: for a caller that waits for one of them, off the data path.
pub fn yield_now() {
    shim::yield_now();
}
