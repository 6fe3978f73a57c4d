//! quietline behind packetdrill's `--so_filename`: scripts of other projects against this stack.
//!
//! Above: packetdrill, which loads this library and fills a table of functions through
//! [`packetdrill_interface_init`]. Below: one sans-IO host with a device of its own (`device`), no thread and no clock but
//! what packetdrill gives.
//!
//! - [`interface`]: the C boundary, the only room with unsafe code. Pointers become slices, errors `errno`.
//! - `runtime`: one lock around everything, who waits for what, and time. In **virtual time** the clock stands still
//!   while anybody runs; it moves when packetdrill sleeps or waits for a packet, from one timer of the stack to the
//!   next. In wall-clock time a thread of this library serves the timers.
//! - `descriptor`, `socket`, `sockopt`, `readiness`: the calls of a program on its descriptors.
//! - `control`, `namespace`: settings that a script changes with commands such as `sysctl`.
//!
//! The choice is made by `--so_flags`, see `flags`.
//!
//! Not here: IPv6 and UDP, which the stack does not speak.

mod call;
mod clock;
mod control;
mod descriptor;
mod device;
mod epoll;
mod flags;
pub mod interface;
mod namespace;
mod readiness;
mod runtime;
mod socket;
mod sockopt;
mod transfer;

pub use interface::{Interface, packetdrill_interface_init};
