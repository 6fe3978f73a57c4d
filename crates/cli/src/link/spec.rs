//! Syntax of `--link` and `--sysctl`.

use std::{fmt, str::FromStr};

use quietline::device::{AfPacketConfig, AfXdpConfig, SetupError};

/// Longest interface name in Linux: IFNAMSIZ without its terminating zero.
const NAME_BYTES_MAX: usize = 15;

/// Value of `--link`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkSpec {
    /// A tap interface: an Ethernet link to the kernel.
    Tap(String),
    /// A tun interface: an IP link to the kernel.
    Tun(String),
    /// An existing interface, by packet sockets.
    AfPacket(AfPacketConfig),
    /// An existing interface, by AF_XDP sockets on its queues.
    AfXdp(AfXdpConfig),
    /// No link: the kernel's sockets, for comparison.
    Kernel,
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
        match text.split_once(':') {
            Some(("tap", name)) => check_name(name).map(Self::Tap),
            Some(("tun", name)) => check_name(name).map(Self::Tun),
            Some(("af_packet", text)) => {
                text.parse().map(Self::AfPacket).map_err(|error: SetupError| error.to_string())
            }
            Some(("af_xdp", text)) => {
                text.parse().map(Self::AfXdp).map_err(|error: SetupError| error.to_string())
            }
            _ => {
                let kinds =
                    "tap:NAME, tun:NAME, af_packet:IF[,OPTION...], af_xdp:IF[,OPTION...] or kernel";
                Err(format!("expected {kinds}"))
            }
        }
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

/// Checks an interface name by the rules of Linux. `%` is refused too, because the kernel would
/// replace it by a number.
fn check_name(name: &str) -> Result<String, String> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(format!("an interface name has 1 to {NAME_BYTES_MAX} bytes"));
    }
    if name == "."
        || name == ".."
        || !name.bytes().all(|b| b.is_ascii_graphic() && !b"/:%".contains(&b))
    {
        return Err("an interface name has no spaces and none of / : %".to_owned());
    }
    Ok(name.to_owned())
}
