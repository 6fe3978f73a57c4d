//! Configuration of a tap or tun device, and the checks that need no kernel.
//!
//! Above: `Tun::create`. Linux: the rules of `dev_valid_name`, the limits of the tun driver.
//!
//! Not here: addresses and routes of the stack's side (they belong to the stack).

use std::net::IpAddr;

use ipnet::IpNet;

use super::super::interface::check_mac;
use super::super::setup_error::SetupError;

/// Smallest MTU: 68 bytes (RFC 791), as Linux's `ETH_MIN_MTU`.
pub const MTU_MIN: u32 = 68;

/// Maximum number of queues of one interface (`MAX_TAP_QUEUES`).
pub const QUEUES_MAX: u16 = 256;

/// Longest interface name: `IFNAMSIZ` is 16 with the terminating zero.
const NAME_LEN_MAX: usize = 15;

/// Bytes of an Ethernet header, the link header of a tap.
pub(super) const ETHERNET_HEADER_LEN: u16 = 14;

/// Kind of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunKind {
    /// Ethernet frames.
    Tap,
    /// IP packets without a link header.
    Tun,
}

impl TunKind {
    /// Returns the word for the command line and for errors.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tap => "tap",
            Self::Tun => "tun",
        }
    }

    /// Returns the number of bytes before the IP header.
    #[must_use]
    pub const fn link_header_len(self) -> u16 {
        match self {
            Self::Tap => ETHERNET_HEADER_LEN,
            Self::Tun => 0,
        }
    }

    /// Returns the largest MTU that the driver accepts: 65535 bytes less the link header.
    #[must_use]
    pub const fn mtu_max(self) -> u32 {
        65_535 - self.link_header_len() as u32
    }
}

/// Configuration of a tap or tun device. Start from [`TunConfig::tap`] or [`TunConfig::tun`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunConfig {
    /// Tap or tun.
    pub kind: TunKind,
    /// Interface name, at most 15 bytes. An existing persistent interface of that name is opened,
    /// and stays when the device closes; any other interface exists exactly as long as the device.
    /// The kernel replaces `%d` by the first free number.
    pub name: String,
    /// Queue pairs, one per core of the stack.
    pub queues: u16,
    /// Checksum and TSO offload in both directions through `IFF_VNET_HDR`. If false, every read and
    /// write is one plain packet that contains every checksum.
    pub vnet_hdr: bool,
    /// Maximum size of an IP packet in bytes, on both sides.
    pub mtu: u32,
    /// Ethernet address of the stack; `None` generates a locally administered one from the name and
    /// random bytes. Unused by a tun.
    pub mac: Option<[u8; 6]>,
    /// Address and prefix of the kernel's side. `None` leaves its addresses unchanged.
    pub host_address: Option<IpNet>,
    /// Makes `host_address` point-to-point: the kernel reaches exactly this address through the
    /// device.
    pub host_peer: Option<IpAddr>,
    /// Destinations that the kernel reaches through the device.
    pub host_routes: Vec<IpNet>,
    /// Length of the kernel's transmit queue, in packets per queue. `None` keeps the driver's
    /// default.
    pub tx_queue_len: Option<u32>,
}

impl TunConfig {
    /// Returns a configuration of a tap called `name` with one queue, offloads on, MTU 1500 and no
    /// address.
    #[must_use]
    pub fn tap(name: &str) -> Self {
        Self::new(TunKind::Tap, name)
    }

    /// Returns a configuration of a tun called `name` with one queue, offloads on, MTU 1500 and no
    /// address.
    #[must_use]
    pub fn tun(name: &str) -> Self {
        Self::new(TunKind::Tun, name)
    }

    fn new(kind: TunKind, name: &str) -> Self {
        Self {
            kind,
            name: name.to_owned(),
            queues: 1,
            vnet_hdr: true,
            mtu: 1500,
            mac: None,
            host_address: None,
            host_peer: None,
            host_routes: Vec::new(),
            tx_queue_len: None,
        }
    }

    /// Checks everything that needs no kernel.
    ///
    /// # Errors
    /// For the first field that is out of range.
    pub fn validate(&self) -> Result<(), SetupError> {
        validate_name(&self.name)?;
        if self.queues == 0 || self.queues > QUEUES_MAX {
            return Err(SetupError::field("queues", self.queues, "1 to 256"));
        }
        if self.mtu < MTU_MIN || self.mtu > self.kind.mtu_max() {
            let allowed = match self.kind {
                TunKind::Tap => "68 to 65521 for a tap",
                TunKind::Tun => "68 to 65535 for a tun",
            };
            return Err(SetupError::field("mtu", self.mtu, allowed));
        }
        self.mac.map_or(Ok(()), check_mac)?;
        for address in self.host_address.map(|net| net.addr()).into_iter().chain(self.host_peer) {
            if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
                return Err(SetupError::field("address", address, "a unicast address"));
            }
        }
        if let Some(peer) = self.host_peer {
            let same_family =
                self.host_address.is_some_and(|host| host.addr().is_ipv4() == peer.is_ipv4());
            if !same_family {
                return Err(SetupError::field(
                    "host_peer",
                    peer,
                    "an address of the family of host_address, which must be given",
                ));
            }
        }
        Ok(())
    }
}

/// Returns a text such as "02:00:00:00:00:01".
pub(in crate::device) fn format_mac(mac: [u8; 6]) -> String {
    let [a, b, c, d, e, f] = mac;
    format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
}

/// Checks the kernel's rules for an interface name, because the ioctl would only return EINVAL.
pub(in crate::device) fn validate_name(name: &str) -> Result<(), SetupError> {
    let forbidden =
        |byte: u8| byte == b'/' || byte == b':' || byte.is_ascii_whitespace() || byte < 0x20;
    let pattern_ok = match name.matches('%').count() {
        0 => true,
        1 => name.contains("%d"),
        _ => false,
    };
    let valid = !name.is_empty()
        && name.len() <= NAME_LEN_MAX
        && name != "."
        && name != ".."
        && !name.bytes().any(forbidden)
        && pattern_ok;
    if valid {
        Ok(())
    } else {
        Err(SetupError::field(
            "interface name",
            name.escape_debug(),
            "1 to 15 bytes without '/', ':' or spaces",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_kernel() {
        for good in ["tap0", "a", "fifteen-bytes-x", "tap%d", "quiet.line"] {
            assert!(TunConfig::tap(good).validate().is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "sixteen-bytes-xx", "a/b", "a b", "a:1", "t%s", "%d%d", "a\n"] {
            let error = TunConfig::tap(bad).validate().expect_err(bad);
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }

    #[test]
    fn ranges_are_checked_before_the_kernel_is_asked() {
        let base = || TunConfig::tap("tap0");
        assert!(TunConfig { queues: 0, ..base() }.validate().is_err());
        assert!(TunConfig { queues: 257, ..base() }.validate().is_err());
        assert!(TunConfig { mtu: 67, ..base() }.validate().is_err());
        assert!(TunConfig { mtu: 65_521, ..base() }.validate().is_ok());
        assert!(TunConfig { mtu: 65_522, ..base() }.validate().is_err());
        assert!(TunConfig { mtu: 65_535, ..TunConfig::tun("tun0") }.validate().is_ok());
        assert!(TunConfig { mac: Some([1, 0, 0, 0, 0, 1]), ..base() }.validate().is_err());
        assert!(TunConfig { mac: Some([0; 6]), ..base() }.validate().is_err());
    }

    #[test]
    fn a_peer_needs_an_address_of_its_family() {
        let peer = Some("10.0.0.2".parse().expect("address"));
        let mut config = TunConfig { host_peer: peer, ..TunConfig::tun("tun0") };
        assert!(config.validate().is_err());
        config.host_address = Some("fd00::1/64".parse().expect("network"));
        assert!(config.validate().is_err());
        config.host_address = Some("10.0.0.1/32".parse().expect("network"));
        assert!(config.validate().is_ok());
        for bad in ["0.0.0.0/0", "224.0.0.1/24", "127.0.0.1/8"] {
            config.host_address = Some(bad.parse().expect("network"));
            assert!(config.validate().is_err(), "{bad}");
        }
    }
}
