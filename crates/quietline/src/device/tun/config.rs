//! What a tap or tun device should be, and the checks that make it valid before the kernel is asked.
//!
//! Above: `Tun::create`. Linux: the rules of `dev_valid_name`, the limits of the tun driver.
//!
//! Not here: addresses and routes of our own side (they belong to the stack that uses the device).

use std::net::IpAddr;

use ipnet::IpNet;

use super::super::interface::check_mac;
use super::super::setup_error::SetupError;

/// Smallest MTU: RFC 791's 68 bytes, as Linux's `ETH_MIN_MTU`.
pub const MTU_MIN: u32 = 68;

/// Queues the kernel's driver gives one interface (`MAX_TAP_QUEUES`).
pub const QUEUES_MAX: u16 = 256;

/// Longest interface name: `IFNAMSIZ` is 16 with the closing zero.
const NAME_LEN_MAX: usize = 15;

/// Bytes of an Ethernet header, the link header of a tap.
pub(super) const ETHERNET_HEADER_LEN: u16 = 14;

/// Which of the driver's two shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunKind {
    /// Ethernet frames.
    Tap,
    /// IP packets without a link header.
    Tun,
}

impl TunKind {
    /// The word used on the command line and in errors.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tap => "tap",
            Self::Tun => "tun",
        }
    }

    /// Bytes before the IP header.
    #[must_use]
    pub const fn link_header_len(self) -> u16 {
        match self {
            Self::Tap => ETHERNET_HEADER_LEN,
            Self::Tun => 0,
        }
    }

    /// Largest MTU the kernel's driver accepts: 65535 bytes less the link header.
    #[must_use]
    pub const fn mtu_max(self) -> u32 {
        65_535 - self.link_header_len() as u32
    }
}

/// How to make a tap or tun device. Start from [`TunConfig::tap`] or [`TunConfig::tun`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunConfig {
    /// Tap or tun.
    pub kind: TunKind,
    /// Interface name, at most 15 bytes. An existing persistent interface of that name is taken over, and then stays
    /// when the device closes; otherwise the interface lives exactly as long as the device. `%d` is replaced by the
    /// kernel with the first free number.
    pub name: String,
    /// Queue pairs, one per core of the stack.
    pub queues: u16,
    /// Checksum and TSO offload in both directions through `IFF_VNET_HDR`. Off means one plain packet per read and
    /// write, with every checksum in it.
    pub vnet_hdr: bool,
    /// IP packet bytes the link carries, on both sides.
    pub mtu: u32,
    /// Our Ethernet address; `None` makes a locally administered one from the name and chance. Unused by a tun.
    pub mac: Option<[u8; 6]>,
    /// Address and prefix of the kernel's side. `None` leaves its addresses alone.
    pub host_address: Option<IpNet>,
    /// Makes `host_address` point-to-point: the kernel reaches exactly this address through the device.
    pub host_peer: Option<IpAddr>,
    /// Destinations the kernel shall reach through the device.
    pub host_routes: Vec<IpNet>,
    /// Packets the kernel queues for us per queue. `None` keeps the driver's own length.
    pub tx_queue_len: Option<u32>,
}

impl TunConfig {
    /// A tap called `name` with one queue, offloads on, MTU 1500 and no address.
    #[must_use]
    pub fn tap(name: &str) -> Self {
        Self::new(TunKind::Tap, name)
    }

    /// A tun called `name` with one queue, offloads on, MTU 1500 and no address.
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
    /// The first field that is out of range.
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

/// "02:00:00:00:00:01".
pub(in crate::device) fn format_mac(mac: [u8; 6]) -> String {
    let [a, b, c, d, e, f] = mac;
    format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
}

/// The kernel's rules for an interface name, so that the user hears them before the ioctl's bare EINVAL.
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
