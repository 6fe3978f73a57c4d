//! IP versions of the hosts of a suite, and the part of all combinations that a run takes: with
//! `CI=true` the hash of the commit selects it, so that every commit runs another part and CI takes
//! no longer.
//!
//! Not here: the part of the tests against the kernel (`xtask/src/matrix.rs`).

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    process::Command,
    sync::OnceLock,
};

/// Environment variable with the IP version of the suites of two hosts: 4 or 6.
pub const VERSION: &str = "QUIETLINE_IP_VERSION";

/// IP version of the hosts of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// 10.0.0.1 and so on.
    V4,
    /// fd00::1 and so on.
    V6,
}

impl Version {
    /// Returns the address of the host at port `index`.
    ///
    /// # Panics
    /// Above 200 hosts.
    #[must_use]
    pub fn address(self, index: usize) -> IpAddr {
        let v4 = address(index);
        match self {
            Self::V4 => v4.into(),
            Self::V6 => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(v4.octets()[3])).into(),
        }
    }

    /// Returns this address with the length of its network.
    ///
    /// # Panics
    /// Above 200 hosts.
    #[must_use]
    pub fn prefix(self, index: usize) -> String {
        let bits = if self == Self::V4 { 24 } else { 64 };
        format!("{}/{bits}", self.address(index))
    }
}

/// Returns the address of the host at port `index`.
///
/// # Panics
/// Above 200 hosts.
#[must_use]
pub fn address(index: usize) -> Ipv4Addr {
    assert!(index < 200, "a small network");
    Ipv4Addr::new(10, 0, 0, u8::try_from(index + 1).expect("below 200"))
}

/// Returns a number of 20 bits that the commit selects with `CI=true`; otherwise `None`.
///
/// # Panics
/// With `CI=true` outside of a git repository.
#[must_use]
pub fn number_of_commit() -> Option<u64> {
    if !std::env::var("CI").is_ok_and(|value| value == "true") {
        return None;
    }
    let git = Command::new("git").args(["rev-parse", "HEAD"]).output().expect("git runs");
    let hash = String::from_utf8(git.stdout).expect("a hash in hexadecimal");
    let digits = hash.get(..5).expect("CI=true runs in a git repository");
    Some(u64::from_str_radix(digits, 16).expect("a hash in hexadecimal"))
}

/// Returns the IP version of the hosts of [`World::pair`](crate::World::pair): that of the variable
/// [`VERSION`], else with `CI=true` the one that the commit selects, else IPv4.
///
/// # Panics
/// For another value of the variable.
#[must_use]
pub fn version() -> Version {
    static CHOSEN: OnceLock<Version> = OnceLock::new();
    *CHOSEN.get_or_init(|| match std::env::var(VERSION).ok().as_deref() {
        Some("4") => Version::V4,
        Some("6") => Version::V6,
        Some(other) => panic!("{VERSION}={other}: 4 or 6"),
        None if number_of_commit().is_some_and(|number| number % 2 == 1) => Version::V6,
        None => Version::V4,
    })
}
