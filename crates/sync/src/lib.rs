//! Concurrency primitives of quietline: who may run what, and when memory may die.
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
//! | [`socket_lock`] | who may touch a socket | `lock_sock`, backlog |
//! | [`core_lock`] | who runs a core | NAPI's SCHED and MISSED |
//! | [`eventcount`] | how to sleep without losing a wake-up | wait queues |
//! | [`padded`], [`percore`] | what must not share a cache line | `____cacheline_aligned`, per-CPU data |
//!
//! Not here: reference counts of packets (`pkt`), clocks, threads, wake-up policy.

pub mod core_lock;
pub mod eventcount;
pub mod llist;
pub mod padded;
pub mod percore;
pub mod socket_lock;

mod shim;
#[cfg(test)]
mod test_item;

pub use core_lock::{CoreGuard, CoreLock};
pub use eventcount::{EventCount, WaitResult};
pub use llist::{Chain, Link, Linked, Llist};
pub use padded::Padded;
pub use percore::PerCore;
pub use socket_lock::{Entry, Owned, SocketLock, Work};
