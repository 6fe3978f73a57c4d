//! The data path: cores, IP, routes, neighbors, sockets.
//!
//! Internal to crate `quietline`: it promises no stability, and any release may change or remove any item.
//!
//! Two straight lines, walked by go-to-definition without a callback, a `dyn` per packet, or async:
//!
//! ```text
//! receive   device → gro → normal list → ip::input → early demux → tcp::input  → socket queue → app
//! transmit  app → tcp::output → tsq → ip::output(dst) → neighbor → qdisc → gso → device → completion → recycle
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
