//! quietline behind packetdrill's `--so_filename`: scripts of other projects against this stack.
//!
//! Above: packetdrill, which loads this library and fills a table of functions through
//! [`packetdrill_interface_init`]. Below: one sans-IO host with a device of its own (`device`),
//! whose threads and clock are packetdrill's, and the socket calls of crate `posix`.
//!
//! - [`interface`]: the C boundary, the only module with unsafe code. It turns pointers into slices
//!   and errors into `errno`.
//! - `runtime`: one lock around everything, sleeping calls, and time. **Virtual time** stands still
//!   while a thread runs. It advances when packetdrill sleeps or waits for a packet, from one timer
//!   of the stack to the next. In wall-clock time a thread of this library runs the timers.
//! - `descriptor`, `call`: the calls of a program on its descriptors.
//! - `control`, `namespace`: settings that a script changes with commands such as `sysctl`.
//!
//! `--so_flags` chooses between the two kinds of time, see `flags`.
//!
//! Not here: IPv6 and UDP, which the stack does not have.

mod call;
mod clock;
mod control;
mod descriptor;
mod device;
mod flags;
pub mod interface;
mod namespace;
mod runtime;

pub use interface::{Interface, packetdrill_interface_init};
