//! `--link` and `--sysctl`, as they are written.

use std::str::FromStr;

use quietline::device::{AfPacketConfig, AfXdpConfig, SetupError};

/// Longest interface name Linux takes: IFNAMSIZ without its terminating zero.
const NAME_BYTES_MAX: usize = 15;

/// `--link`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkSpec {
    /// An Ethernet link to the kernel.
    Tap(String),
    /// An IP link to the kernel.
    Tun(String),
    /// An interface of the machine's, by packet sockets.
    AfPacket(AfPacketConfig),
    /// An interface of the machine's, whose queues are taken from the kernel.
    AfXdp(AfXdpConfig),
    /// No link: the machine's own sockets, to compare with.
    Kernel,
}

/// `--sysctl`: a name and its value. The stack knows which names exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sysctl {
    /// The Linux name.
    pub(crate) name: String,
    /// The value as written.
    pub(crate) value: String,
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

/// The names Linux accepts, without the ones that mean something else to it: `%` asks the kernel to number
/// the interface.
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
