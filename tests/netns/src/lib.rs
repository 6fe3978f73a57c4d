//! A laboratory of network namespaces: the kernel on one end of a tap, quietline on the other, real programs above.
//!
//! Place: tests only. Every test takes a [`Lab`], which is one namespace, one scratch directory and the machine for
//! itself; whatever a test started is gone when the lab is dropped, also when the test panicked.
//!
//! A test that cannot run here (not root, no /dev/net/tun, a program missing) says so and passes; with `CI=true` it fails
//! instead, so that nothing is left out silently where it counts.
//!
//! Not here: the simulator. These tests run in real time and may only assert what holds on a loaded machine.
#![forbid(unsafe_code)]

pub mod bottleneck;
mod content;
mod echo;
mod impaired;
mod lab;
mod namespace;
mod process;
mod quietline;
mod report;
mod veth;

pub use content::{Content, sha256};
pub use echo::talk;
pub use impaired::{FAR, Impaired, Passed, WirePath};
pub use lab::{KERNEL, Lab, STACK};
pub use namespace::Namespace;
pub use process::{Finished, Running};
pub use quietline::{LINKS, Link, Quietline, SUPERFRAMES, binary, modes};
pub use report::Report;
pub use veth::Veth;
