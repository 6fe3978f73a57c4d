//! The names of the congestion control algorithms.
//!
//! Above: `net.ipv4.tcp_congestion_control` and `TCP_CONGESTION` parse their values here. Linux:
//! tcp_cong.c.

use core::{fmt, str::FromStr};

/// A congestion control algorithm.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Algorithm {
    /// RFC 9438, with the slow start of RFC 9406 and HyStart's ACK train.
    #[default]
    Cubic,
    /// RFC 5681 growth with RFC 6582 recovery.
    Reno,
    /// draft-ietf-ccwg-bbr, third version: follows a model of the path instead of losses.
    Bbr,
    /// RFC 8257, for networks whose routers set ECN marks as soon as a short queue builds up.
    Dctcp,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Self; 4] = [Self::Cubic, Self::Reno, Self::Bbr, Self::Dctcp];

    /// Names of all algorithms, as `net.ipv4.tcp_available_congestion_control` lists them.
    pub const NAMES: &str = "cubic reno bbr dctcp";

    /// Returns Linux's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Reno => "reno",
            Self::Bbr => "bbr",
            Self::Dctcp => "dctcp",
        }
    }

    /// Returns the algorithm with this name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// Whether the algorithm depends on ECN marks: ECN is offered and accepted regardless of
    /// `net.ipv4.tcp_ecn`, and not only new data is sent ECN-capable (RFC 8257 §3.5; Linux:
    /// `TCP_CONG_NEEDS_ECN`).
    #[must_use]
    pub const fn needs_ecn(self) -> bool {
        matches!(self, Self::Dctcp)
    }

    /// Whether the algorithm sets a pacing rate, which the engine enforces.
    #[must_use]
    pub const fn needs_pacing(self) -> bool {
        matches!(self, Self::Bbr)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error for a name that no algorithm has: `ENOENT` in Linux.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownAlgorithm;

impl fmt::Display for UnknownAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no such congestion control: expected one of {}", Algorithm::NAMES)
    }
}

impl core::error::Error for UnknownAlgorithm {}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        Self::from_name(name).ok_or(UnknownAlgorithm)
    }
}
