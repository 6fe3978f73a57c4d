//! The data path: cores, IP, routes, neighbours, sockets.
//!
//! Internal to crate `quietline`: it promises no stability, and any release may change or remove any item.
//!
//! Two straight lines, walked by go-to-definition without a callback, a `dyn` per packet, or async:
//!
//! ```text
//! receive   device → gro → normal list → ip::input → early demux → tcp::input  → socket queue → app
//! transmit  app → tcp::output → tsq → ip::output(dst) → neighbour → qdisc → gso → device → completion → recycle
//! ```
//!
//! Two contexts, as in Linux. **Softirq** runs a [`core::Core`] in turns: whoever owns the core runs it, a worker, an
//! application thread that waits, the caller of [`host::Host::poll`], the simulator. **Process** context is an
//! application thread inside a socket call ([`socket::TcpSocket`]): it owns the socket and runs TCP down to the device.
//! The running thread's own state is a [`Cx`].
//!
//! Below: `tcp` (the engine), `pkt` (packet memory), `sync` (locks and RCU). Above: `quietline`, which owns threads,
//! clocks and file descriptors.
//!
//! Not here: anything that touches the operating system. This crate reads no clock and starts no thread.

#![forbid(unsafe_code)]

mod armed;
pub mod bql;
pub mod config;
pub mod core;
pub mod counters;
pub mod cx;
mod demux;
pub mod device;
pub mod errno;
mod fast_open;
pub mod gro;
mod gso;
pub mod host;
pub mod icmp;
pub mod ip;
pub mod link;
pub mod neighbour;
mod neighbour_table;
pub mod qdisc;
pub mod route;
pub mod rps;
pub mod secrets;
pub mod socket;
pub mod sysctl;
pub mod tcp_memory;
pub mod timer;
pub mod tx_queue;

pub use cx::{Cx, Memory};
pub use device::{Capabilities, Device};
pub use errno::Errno;
pub use secrets::Secrets;
pub use tcp::Readiness;
