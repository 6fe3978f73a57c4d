//! Syntax of `--link`, `--address` and `--sysctl`.

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;
use quietline_config::LinkDevice;

/// Value of `--link`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkSpec {
    /// A device of the stack.
    Device(LinkDevice),
    /// No link: the kernel's sockets, for comparison.
    Kernel,
}

/// Value of `--address`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressSpec {
    /// An address with its prefix length.
    Static(IpNet),
    /// The address of a lease.
    Dhcp,
}

/// Value of `--sysctl`: a name and a value. `settings` and the stack check that the name exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sysctl {
    /// Linux name of the setting.
    pub(crate) name: String,
    /// Value as written on the command line.
    pub(crate) value: String,
}

impl fmt::Display for Sysctl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

impl FromStr for LinkSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "kernel" {
            return Ok(Self::Kernel);
        }
        text.parse().map(Self::Device).map_err(|reason: String| {
            reason.replace(" or af_xdp:IF[,OPTION...]", ", af_xdp:IF[,OPTION...] or kernel")
        })
    }
}

impl FromStr for AddressSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "dhcp" {
            return Ok(Self::Dhcp);
        }
        if let Ok(network) = text.parse() {
            return Ok(Self::Static(network));
        }
        if text.parse::<IpAddr>().is_ok() {
            return Err(format!("the prefix length is missing; did you mean {text}/24?"));
        }
        let expected = "expected an address and a prefix length, such as 10.7.0.2/24, or dhcp";
        Err(expected.to_owned())
    }
}

impl FromStr for Sysctl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() && !value.trim().is_empty() => {
                Ok(Self { name: name.trim().to_owned(), value: value.trim().to_owned() })
            }
            _ => Err("expected NAME=VALUE, such as net.ipv4.tcp_timestamps=0".to_owned()),
        }
    }
}
