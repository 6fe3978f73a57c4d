//! Data path of the stack: cores, IP, routes, neighbors, sockets.
//!
//! Internal to crate `quietline`: it promises no stability, and any release may change or remove
//! any item.
//!
//! The receive path and the transmit path consist of direct calls. They use no callback and no
//! async function. A `dyn` call is made to a device once per batch, to a core once per run, and to
//! the owner of a packet when its transmission completes. For TCP:
//!
//! ```text
//! receive   device → gro → normal list → ip::input → early demux → tcp::input
//!                  → socket queue → app
//! transmit  app → tcp::output → tsq → ip::output(dst) → neighbor → qdisc → gso
//!               → device → completion → recycle
//! ```
//!
//! Code runs in two contexts, as in Linux. **Softirq** context is a turn of a [`core::Core`]: one
//! pass of its softirq work (receive polls, timers, transmit completions) on the thread that owns
//! the core. That thread is a worker, an application thread that waits, the caller of
//! [`host::Host::poll`], or the simulator. **Process** context is an application thread inside a
//! socket call ([`socket::Connection`]): it owns the socket and runs TCP down to the device. [`Cx`]
//! holds the state of the running thread.
//!
//! Below: `tcp` (the engine), `pkt` (packet memory), `sync` (locks and RCU). Above: `quietline`,
//! which owns threads, clocks and file descriptors.
//!
//! Not here: access to the operating system. This crate reads no clock of its own and starts no
//! thread.

#![forbid(unsafe_code)]

pub mod base;
pub mod core;
pub mod cx;
pub mod device;
pub mod header;
pub mod host;
pub mod receive;
pub mod route;
pub mod socket;
pub mod sysctl;
pub mod transmit;

pub use base::errno::Errno;
pub use base::secrets::Secrets;
pub use cx::{Cx, Memory};
pub use device::{Capabilities, Device};
pub use tcp::Readiness;
