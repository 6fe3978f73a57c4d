//! Concurrency primitives of quietline: ownership of cores and sockets, and the time at which
//! shared memory may be freed.
//!
//! Internal to crate `quietline`: it promises no stability, and any release may change or remove
//! any item.
//!
//! Below: `core`, `alloc`, and `std` for sleeping. Above: `pkt` (return lists), `stack` (socket
//! lock, core ownership, read-copy-update tables), `quietline` (sleep and wake).
//!
//! The unsafe code that concurrency needs lives in this crate only. Every exported function is
//! safe, except for the contract of [`llist::Linked`]. Each primitive is checked by loom models in
//! `<module>/tests.rs`; only the private `shim` module depends on whether the crate is built for
//! loom or for std.
//!
//! | module | purpose | Linux |
//! |---|---|---|
//! | [`llist`] | packets change core without a lock | `llist.h` |
//! | [`listed`] | objects with several owners enter such a list | `tsq_node` |
//! | [`ring`] | frames pass through a device in memory | `ptr_ring` |
//! | [`lanes`] | a flow changes core without reordering | `input_pkt_queue` |
//! | [`small_queue`] | a completion wakes a sender that has stopped | TCP Small Queues |
//! | [`socket_lock`] | exclusive access to a socket | `lock_sock`, backlog |
//! | [`conditions`] | the owner of a socket wakes the threads whose condition has become true | `sk_data_ready` |
//! | [`core_lock`] | exclusive right to run a core | NAPI's SCHED and MISSED |
//! | [`attendance`] | which thread polls a core's queues, and how its worker sleeps | ksoftirqd, NAPI's PREFER_BUSY_POLL |
//! | [`shutdown`] | the end of a host finds what is registered meanwhile | `check_net` |
//! | [`eventcount`] | sleeping without losing a wake-up | wait queues |
//! | [`watchers`] | tasks and event loops that a socket notifies | entries of a wait queue with a function |
//! | [`ready_list`] | the sockets of an event loop that have news | epoll's ready list |
//! | [`epoch`] | when unreachable memory may be freed | RCU grace periods |
//! | [`rcu`], [`rcu_map`] | reading without a shared write | `rcu_dereference`, rhashtable |
//! | [`refcount`] | a reference to an object that may have none left | `rcuref_t`, `atomic_inc_not_zero` |
//! | [`counted`] | entries found without a reference, and the place of their count | `struct dst_entry` |
//! | [`padded`], [`percore`] | values that must not share a cache line | `____cacheline_aligned`, per-CPU data |
//! | [`prefetch`] | fetching a line for writing ahead of the write | `prefetchw` |
//!
//! Not here: reference counts of packets' memory (`pkt`), clocks, threads, wake-up policy.

pub mod attendance;
pub mod conditions;
pub mod core_lock;
pub mod counted;
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
pub mod ready_list;
pub mod refcount;
pub mod ring;
pub mod shutdown;
pub mod small_queue;
pub mod socket_lock;
pub mod watchers;

mod shim;
#[cfg(test)]
mod test_item;

pub use attendance::{Attendance, Kick, Poller, Sleep};
pub use conditions::{Conditions, NewlyReady};
pub use core_lock::{Claim, CoreGuard, CoreLock, QUEUES_MAX};
pub use counted::{AnyRef, Handle, Owner, Ref, Slot};
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
pub use ready_list::{Bell, Item, Listing, ReadyList};
pub use refcount::{Counting, RefCount};
pub use ring::Ring;
pub use shutdown::Shutdown;
pub use small_queue::{SmallQueue, TsqProtocol};
pub use socket_lock::{Admitted, Entry, Owned, Queued, SocketLock, Softirq, Work};
pub use watchers::{Watch, WatchKey, Watchers};

/// Lets other threads run: for a caller that waits for another thread, off the data path.
pub fn yield_now() {
    shim::yield_now();
}
