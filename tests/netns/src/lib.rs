//! Tests in network namespaces: the kernel on one end of a link, quietline on the other, with real
//! programs.
//!
//! Place: tests only. Every test uses a [`Lab`]: one namespace, one scratch directory and exclusive
//! use of the machine. Everything that a test started ends when the lab is dropped, even if the
//! test panicked.
//!
//! A test that cannot run here (not root, no /dev/net/tun, a program missing) prints the reason and
//! passes. With `CI=true` it fails instead, so that no test is skipped silently.
//!
//! Not here: the simulator. These tests run in real time and may only assert properties that hold
//! on a loaded machine.
#![forbid(unsafe_code)]

mod any_link;
pub mod bottleneck;
mod content;
mod dnsmasq;
mod echo;
mod impaired;
mod lab;
mod namespace;
mod process;
mod quietline;
mod report;
mod veth;

pub use any_link::{AnyLink, KERNEL_V6, Kind, STACK_V6, Version, host};
pub use content::{Content, sha256};
pub use dnsmasq::Dnsmasq;
pub use echo::talk;
pub use impaired::{FAR, Impaired, NEAR, NEAR_V6, Passed, WirePath};
pub use lab::{KERNEL, Lab, STACK};
pub use namespace::Namespace;
pub use process::{Finished, Running};
pub use quietline::{LINKS, Link, Quietline, SUPERFRAMES, binary, modes};
pub use report::Report;
pub use veth::Veth;
