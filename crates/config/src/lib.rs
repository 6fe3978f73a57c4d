//! Configuration of a host: a TOML file, addresses by DHCPv4, names by DNS.
//!
//! Above: the `quietline` command, and applications that want one of the three. Below: the public
//! interface of crate `quietline`, and libraries that parse formats. Formats are parsed here and
//! not in `quietline`, so that a program without DHCP and DNS does not depend on these libraries.
//!
//! [`Host::parse`] reads a file and [`Host::open`] opens its devices and returns a
//! [`StackBuilder`](quietline::StackBuilder). [`dhcp::Service`] keeps the leases of a running
//! stack. [`dns::Resolver`] finds the addresses of a name.
//!
//! Not here: command-line options, which crate `quietline-cli` turns into a [`Host`].

#![forbid(unsafe_code)]

pub mod dhcp;
pub mod dns;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod host;

pub use host::{FileError, Host, Link, LinkDevice, OpenError};

/// Returns a number that is unpredictable outside of this process.
fn unpredictable() -> u64 {
    let mut bytes = [0; 8];
    // getrandom(2) returns up to 256 bytes in one call and fails only for a bad pointer or flag.
    let read = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    debug_assert_eq!(read, Ok(bytes.len()));
    u64::from_ne_bytes(bytes)
}
