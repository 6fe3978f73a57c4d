//! Neighbor discovery messages (RFC 4861 §4) as values.
//!
//! Above: `receive::ndp_input`, `transmit::ndp_output`. Linux: net/ipv6/ndisc.c. Each message is an
//! ICMPv6 message. Its checksum is verified by the caller before `parse`, and filled in by the
//! caller after `emit`.
//!
//! Options are read from a message of any length, but only the first few prefixes, DNS servers and
//! search domains are kept ([`PREFIXES_MAX`], [`SERVERS_MAX`]), so that a router cannot make a host
//! store any number of them.
//!
//! Not here: rules about addresses, hop limit and settings (`receive::ndp_input`).

use std::{net::Ipv6Addr, string::String, vec::Vec};

use arrayvec::ArrayVec;
use pkt::DropReason;

use super::ethernet::MacAddr;

/// Type of a router solicitation.
pub const ROUTER_SOLICITATION: u8 = 133;
/// Type of a router advertisement.
pub const ROUTER_ADVERTISEMENT: u8 = 134;
/// Type of a neighbor solicitation.
pub const NEIGHBOR_SOLICITATION: u8 = 135;
/// Type of a neighbor advertisement.
pub const NEIGHBOR_ADVERTISEMENT: u8 = 136;
/// Type of a redirect.
pub const REDIRECT: u8 = 137;

/// Hop limit of every message (RFC 4861 §7.1): no router forwards a packet without lowering the hop
/// limit, so the sender of a packet with this value is on the link.
pub const HOP_LIMIT: u8 = 255;

/// All hosts of a link, ff02::1.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// All routers of a link, ff02::2.
pub const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// Largest number of prefixes read from one router advertisement.
pub const PREFIXES_MAX: usize = 6;

/// Largest number of DNS servers and of search domains read from one router advertisement
/// (RFC 8106 §5.3.1 asks for at least three).
pub const SERVERS_MAX: usize = 4;
const DOMAINS_MAX: usize = 4;

/// Longest domain name in text (RFC 1035 §2.3.4).
const DOMAIN_LEN_MAX: usize = 253;

/// Length of the longest message that hosts write: a target, a link-layer address and a nonce.
pub const MESSAGE_LEN_MAX: usize = 40;

/// Random number of a solicitation, by which a host recognizes it (RFC 3971 §5.3.2): the shortest
/// one, as RFC 7527 §4.1 uses it.
pub type Nonce = [u8; 6];

const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;
const PREFIX_INFORMATION: u8 = 3;
const MTU: u8 = 5;
const NONCE: u8 = 14;
const RECURSIVE_DNS_SERVER: u8 = 25;
const DNS_SEARCH_LIST: u8 = 31;

/// Flags of a neighbor advertisement, in byte 4.
const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// Flags of a prefix, in byte 3 of its option.
const ON_LINK: u8 = 0x80;
const AUTONOMOUS: u8 = 0x40;

/// A neighbor discovery message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "a message is on the stack while it is processed")]
pub enum NdpMessage {
    /// Request to the routers of a link to advertise themselves.
    RouterSolicitation {
        /// Link address of the sender.
        source_mac: Option<MacAddr>,
    },
    /// Parameters of a link, from one of its routers.
    RouterAdvertisement(RouterAdvertisement),
    /// Request for the link address of a neighbor, or probe of a known one.
    NeighborSolicitation {
        /// Address whose link address is requested.
        target: Ipv6Addr,
        /// Link address of the sender; always `None` in a duplicate address probe.
        source_mac: Option<MacAddr>,
        /// Random number of a duplicate address probe (RFC 7527). A longer one is not read.
        nonce: Option<Nonce>,
    },
    /// Link address of a neighbor.
    NeighborAdvertisement {
        /// Address that the message is about.
        target: Ipv6Addr,
        /// Link address of `target`; `None` if the receiver knows it.
        target_mac: Option<MacAddr>,
        /// True if the sender is a router.
        router: bool,
        /// True if the message replies to a solicitation of the receiver.
        solicited: bool,
        /// True if the link address replaces a known one.
        replaces: bool,
    },
    /// Advice of a router to use another next hop for a destination.
    Redirect {
        /// Next hop: the address of a better router, or `destination` itself if it is on the link.
        target: Ipv6Addr,
        /// Destination that is redirected.
        destination: Ipv6Addr,
        /// Link address of `target`.
        target_mac: Option<MacAddr>,
    },
}

/// Content of a router advertisement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouterAdvertisement {
    /// Hop limit of the link; 0 if the router specifies none.
    pub hop_limit: u8,
    /// Time for which the sender is a default router, in seconds; 0 if the sender is no default
    /// router.
    pub lifetime_s: u16,
    /// Link address of the sender.
    pub source_mac: Option<MacAddr>,
    /// MTU of the link.
    pub mtu: Option<u32>,
    /// Prefixes of the link.
    pub prefixes: ArrayVec<PrefixInfo, PREFIXES_MAX>,
    /// DNS servers with their lifetimes in seconds; all ones is forever (RFC 8106 §5.1).
    pub servers: ArrayVec<(Ipv6Addr, u32), SERVERS_MAX>,
    /// Search domains with their lifetimes in seconds (RFC 8106 §5.2).
    pub domains: Vec<(String, u32)>,
}

/// Prefix of a link (RFC 4861 §4.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixInfo {
    /// Prefix; bits after its length are not meaningful.
    pub prefix: Ipv6Addr,
    /// Length in bits, at most 128.
    pub len: u8,
    /// True if addresses of the prefix are on the link.
    pub on_link: bool,
    /// True if hosts may form addresses of the prefix (RFC 4862).
    pub autonomous: bool,
    /// Time for which addresses are valid, in seconds; all ones is forever.
    pub valid_s: u32,
    /// Time for which addresses are preferred, in seconds.
    pub preferred_s: u32,
}

/// Returns the group to which solicitations for an address are sent (RFC 4291 §2.7.1).
#[must_use]
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}

/// Returns the link address of frames to a group (RFC 2464 §7).
#[must_use]
pub const fn multicast_mac(group: Ipv6Addr) -> MacAddr {
    let [.., a, b, c, d] = group.octets();
    MacAddr([0x33, 0x33, a, b, c, d])
}

impl NdpMessage {
    /// Parses a whole ICMPv6 message of one of the five types.
    ///
    /// # Errors
    /// `NdpCode` for a code other than 0, `NdpOptions` for a message that is too short, an option
    /// of length 0 or one beyond the message, `IcmpUnknownType` for any other type.
    pub fn parse(bytes: &[u8]) -> Result<Self, DropReason> {
        let &[kind, code, ..] = bytes else { return Err(DropReason::NdpOptions) };
        if code != 0 {
            return Err(DropReason::NdpCode);
        }
        match kind {
            ROUTER_SOLICITATION => {
                let options = Options::read(bytes, 8)?;
                Ok(Self::RouterSolicitation { source_mac: options.source_mac })
            }
            ROUTER_ADVERTISEMENT => parse_router(bytes),
            NEIGHBOR_SOLICITATION => {
                let options = Options::read(bytes, 24)?;
                let target = address(bytes, 8)?;
                let Options { source_mac, nonce, .. } = options;
                Ok(Self::NeighborSolicitation { target, source_mac, nonce })
            }
            NEIGHBOR_ADVERTISEMENT => {
                let options = Options::read(bytes, 24)?;
                let flags = bytes[4];
                Ok(Self::NeighborAdvertisement {
                    target: address(bytes, 8)?,
                    target_mac: options.target_mac,
                    router: flags & ROUTER != 0,
                    solicited: flags & SOLICITED != 0,
                    replaces: flags & OVERRIDE != 0,
                })
            }
            REDIRECT => {
                let options = Options::read(bytes, 40)?;
                let (target, destination) = (address(bytes, 8)?, address(bytes, 24)?);
                Ok(Self::Redirect { target, destination, target_mac: options.target_mac })
            }
            _ => Err(DropReason::IcmpUnknownType),
        }
    }

    /// Writes a message that hosts send, with a checksum of zero; returns its length.
    ///
    /// # Panics
    /// For a router advertisement or redirect, which hosts do not send.
    pub fn emit(&self, bytes: &mut [u8; MESSAGE_LEN_MAX]) -> usize {
        bytes.fill(0);
        let mut random = None;
        let (fixed, option) = match self {
            Self::RouterSolicitation { source_mac } => {
                bytes[0] = ROUTER_SOLICITATION;
                (8, source_mac.map(|mac| (SOURCE_LINK_ADDRESS, mac)))
            }
            Self::NeighborSolicitation { target, source_mac, nonce } => {
                bytes[0] = NEIGHBOR_SOLICITATION;
                bytes[8..24].copy_from_slice(&target.octets());
                random = nonce.map(|nonce| (NONCE, nonce));
                (24, source_mac.map(|mac| (SOURCE_LINK_ADDRESS, mac)))
            }
            Self::NeighborAdvertisement { target, target_mac, router, solicited, replaces } => {
                bytes[0] = NEIGHBOR_ADVERTISEMENT;
                let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
                bytes[4] =
                    flag(*router, ROUTER) | flag(*solicited, SOLICITED) | flag(*replaces, OVERRIDE);
                bytes[8..24].copy_from_slice(&target.octets());
                (24, target_mac.map(|mac| (TARGET_LINK_ADDRESS, mac)))
            }
            Self::RouterAdvertisement(_) | Self::Redirect { .. } => {
                panic!("a host sends no {self:?}")
            }
        };
        let mut len = fixed;
        for (kind, value) in option.map(|(kind, mac)| (kind, mac.0)).into_iter().chain(random) {
            bytes[len] = kind;
            bytes[len + 1] = 1;
            bytes[len + 2..len + 8].copy_from_slice(&value);
            len += 8;
        }
        len
    }

    /// Returns the type on the wire.
    #[must_use]
    pub const fn kind(&self) -> u8 {
        match self {
            Self::RouterSolicitation { .. } => ROUTER_SOLICITATION,
            Self::RouterAdvertisement(_) => ROUTER_ADVERTISEMENT,
            Self::NeighborSolicitation { .. } => NEIGHBOR_SOLICITATION,
            Self::NeighborAdvertisement { .. } => NEIGHBOR_ADVERTISEMENT,
            Self::Redirect { .. } => REDIRECT,
        }
    }
}

fn parse_router(bytes: &[u8]) -> Result<NdpMessage, DropReason> {
    let options = Options::read(bytes, 16)?;
    Ok(NdpMessage::RouterAdvertisement(RouterAdvertisement {
        hop_limit: bytes[4],
        lifetime_s: u16::from_be_bytes([bytes[6], bytes[7]]),
        source_mac: options.source_mac,
        mtu: options.mtu,
        prefixes: options.prefixes,
        servers: options.servers,
        domains: options.domains,
    }))
}

/// Options of one message. Unknown options are skipped (RFC 4861 §4.6).
#[derive(Default)]
struct Options {
    source_mac: Option<MacAddr>,
    target_mac: Option<MacAddr>,
    nonce: Option<Nonce>,
    mtu: Option<u32>,
    prefixes: ArrayVec<PrefixInfo, PREFIXES_MAX>,
    servers: ArrayVec<(Ipv6Addr, u32), SERVERS_MAX>,
    domains: Vec<(String, u32)>,
}

impl Options {
    /// Reads the options after the first `fixed` bytes of a message.
    fn read(bytes: &[u8], fixed: usize) -> Result<Self, DropReason> {
        let mut rest = bytes.get(fixed..).ok_or(DropReason::NdpOptions)?;
        let mut options = Self::default();
        while let [kind, eighths, ..] = *rest {
            let len = usize::from(eighths) * 8;
            if len == 0 {
                return Err(DropReason::NdpOptions);
            }
            let (option, after) = rest.split_at_checked(len).ok_or(DropReason::NdpOptions)?;
            options.take(kind, option);
            rest = after;
        }
        if rest.is_empty() { Ok(options) } else { Err(DropReason::NdpOptions) }
    }

    /// Takes one option, of at least eight bytes. If a link address occurs twice, the first one
    /// counts.
    fn take(&mut self, kind: u8, option: &[u8]) {
        match kind {
            SOURCE_LINK_ADDRESS => self.source_mac = self.source_mac.or_else(|| link(option)),
            TARGET_LINK_ADDRESS => self.target_mac = self.target_mac.or_else(|| link(option)),
            NONCE if option.len() == 8 => self.nonce = option[2..].first_chunk().copied(),
            MTU => self.mtu = word(option, 4),
            PREFIX_INFORMATION => {
                if let Some(prefix) = prefix(option) {
                    // Prefixes beyond the maximum are dropped.
                    let _ = self.prefixes.try_push(prefix);
                }
            }
            RECURSIVE_DNS_SERVER => {
                let lifetime_s = word(option, 4).unwrap_or_default();
                for ip in option.get(8..).unwrap_or_default().as_chunks::<16>().0 {
                    let _ = self.servers.try_push((Ipv6Addr::from(*ip), lifetime_s));
                }
            }
            DNS_SEARCH_LIST => {
                let lifetime_s = word(option, 4).unwrap_or_default();
                let mut names = option.get(8..).unwrap_or_default();
                while let Some(domain) = take_domain(&mut names)
                    && self.domains.len() < DOMAINS_MAX
                {
                    self.domains.push((domain, lifetime_s));
                }
            }
            _ => {}
        }
    }
}

/// Takes a domain name in the format of DNS without compression (RFC 1035 §3.1) from the start of
/// `bytes`. `None` at the zeros that fill the end of the option, and for a name that is no host
/// name.
fn take_domain(bytes: &mut &[u8]) -> Option<String> {
    let mut name = String::new();
    loop {
        let (&len, rest) = bytes.split_first()?;
        if len == 0 {
            *bytes = rest;
            return (!name.is_empty()).then_some(name);
        }
        // A longer label would be a compressed name.
        let (label, rest) = rest.split_at_checked(len.into()).filter(|_| len <= 63)?;
        let is_host = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if !label.iter().all(is_host) || name.len() + label.len() >= DOMAIN_LEN_MAX {
            return None;
        }
        if !name.is_empty() {
            name.push('.');
        }
        name.extend(label.iter().map(|&byte| char::from(byte).to_ascii_lowercase()));
        *bytes = rest;
    }
}

/// Returns the link address of an option, or `None` for zeros and for a group address: a neighbor
/// entry with a group address would send packets of this host to many stations.
fn link(option: &[u8]) -> Option<MacAddr> {
    let mac = MacAddr(*option.get(2..)?.first_chunk()?);
    mac.is_unicast().then_some(mac)
}

fn prefix(option: &[u8]) -> Option<PrefixInfo> {
    let (&len, &flags) = (option.get(2)?, option.get(3)?);
    let prefix = address(option, 16).ok()?;
    (len <= 128).then_some(PrefixInfo {
        prefix,
        len,
        on_link: flags & ON_LINK != 0,
        autonomous: flags & AUTONOMOUS != 0,
        valid_s: word(option, 4)?,
        preferred_s: word(option, 8)?,
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn address(bytes: &[u8], at: usize) -> Result<Ipv6Addr, DropReason> {
    let octets = bytes.get(at..).and_then(|bytes| bytes.first_chunk::<16>());
    octets.map(|octets| Ipv6Addr::from(*octets)).ok_or(DropReason::NdpOptions)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    fn ip(text: &str) -> Ipv6Addr {
        text.parse().expect("the text is an address")
    }

    #[test]
    fn messages_of_hosts_survive_emit_and_parse() {
        let target = ip("2001:db8::1");
        let advertisement = |router, solicited, replaces| NdpMessage::NeighborAdvertisement {
            target,
            target_mac: Some(MAC),
            router,
            solicited,
            replaces,
        };
        let messages = [
            NdpMessage::RouterSolicitation { source_mac: None },
            NdpMessage::RouterSolicitation { source_mac: Some(MAC) },
            NdpMessage::NeighborSolicitation { target, source_mac: None, nonce: None },
            NdpMessage::NeighborSolicitation { target, source_mac: None, nonce: Some([9; 6]) },
            NdpMessage::NeighborSolicitation { target, source_mac: Some(MAC), nonce: None },
            NdpMessage::NeighborSolicitation { target, source_mac: Some(MAC), nonce: Some([9; 6]) },
            advertisement(true, false, false),
            advertisement(false, true, false),
            advertisement(false, false, true),
        ];
        for message in messages {
            let mut bytes = [0xaa; MESSAGE_LEN_MAX];
            let len = message.emit(&mut bytes);
            assert_eq!(bytes[0], message.kind());
            assert_eq!(NdpMessage::parse(&bytes[..len]).as_ref(), Ok(&message));
            for cut in 0..len {
                let read = NdpMessage::parse(&bytes[..cut]);
                // Without some of its options, a message is another valid one.
                let fixed = if message.kind() == ROUTER_SOLICITATION { 8 } else { 24 };
                let is_without_options = cut >= fixed && cut % 8 == 0;
                assert!(
                    read.is_err() || is_without_options,
                    "{message:?} cut to {cut} bytes is read as {read:?}"
                );
            }
        }
    }

    #[test]
    fn a_router_advertisement_is_read_with_its_options() {
        let mut bytes = vec![ROUTER_ADVERTISEMENT, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend([SOURCE_LINK_ADDRESS, 1, 2, 0, 0, 0, 0, 1]);
        bytes.extend([MTU, 1, 0, 0, 0, 0, 5, 0xdc]);
        bytes.extend([99, 1, 0, 0, 0, 0, 0, 0]);
        let mut option = vec![PREFIX_INFORMATION, 4, 64, ON_LINK | AUTONOMOUS];
        option.extend([0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0]);
        option.extend(ip("2001:db8::").octets());
        for _ in 0..PREFIXES_MAX + 2 {
            bytes.extend(&option);
        }
        let Ok(NdpMessage::RouterAdvertisement(read)) = NdpMessage::parse(&bytes) else {
            panic!("the bytes were not parsed as a router advertisement")
        };
        assert_eq!((read.hop_limit, read.lifetime_s), (64, 0x0708));
        assert_eq!((read.source_mac, read.mtu), (Some(MAC), Some(1500)));
        let prefix = PrefixInfo {
            prefix: ip("2001:db8::"),
            len: 64,
            on_link: true,
            autonomous: true,
            valid_s: 2,
            preferred_s: 1,
        };
        assert_eq!(read.prefixes.as_slice(), [prefix; PREFIXES_MAX]);
    }

    /// RFC 8106 §5.
    #[test]
    fn dns_servers_and_search_domains_are_read() {
        let head = [ROUTER_ADVERTISEMENT, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let read = |options: &[u8]| match NdpMessage::parse(&[&head, options].concat()) {
            Ok(NdpMessage::RouterAdvertisement(told)) => (told.servers, told.domains),
            other => panic!("{other:?}"),
        };
        let mut option = vec![RECURSIVE_DNS_SERVER, 5, 0, 0, 0, 0, 1, 0];
        option.extend(ip("2001:db8::53").octets());
        option.extend(ip("fe80::53").octets());
        let (servers, _) = read(&option);
        assert_eq!(servers.as_slice(), [(ip("2001:db8::53"), 256), (ip("fe80::53"), 256)]);
        let (servers, _) = read(&option.repeat(3));
        assert_eq!(servers.len(), SERVERS_MAX, "the number of servers is not bounded");
        let domains = |names: &[u8]| {
            let mut option = [&[DNS_SEARCH_LIST, 0, 0, 0, 0, 0, 0, 9], names].concat();
            option.resize(option.len().next_multiple_of(8), 0);
            option[1] = u8::try_from(option.len() / 8).unwrap();
            read(&option).1.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(domains(b"\x07Example\x03net\x00\x01a\x00"), ["example.net", "a"]);
        for bad in [&b"\x01.\x00"[..], b"\xc0\x00\x00", b"\x3fshort", b"\x02a\n\x00"] {
            assert_eq!(domains(bad), [""; 0], "{bad:02x?}");
        }
        let long = [b"\x3f".as_slice(), &[b'a'; 63]].concat().repeat(4);
        assert_eq!(domains(&[&long[..], b"\x00"].concat()), [""; 0]);
        assert_eq!(domains(&b"\x01a\x00".repeat(9)).len(), DOMAINS_MAX);
    }

    #[test]
    fn malformed_options_are_refused() {
        let mut bytes = [0; 24 + 8];
        bytes[0] = NEIGHBOR_SOLICITATION;
        assert_eq!(
            NdpMessage::parse(&bytes),
            Err(DropReason::NdpOptions),
            "an option of length 0 was accepted"
        );
        bytes[25] = 2;
        assert_eq!(
            NdpMessage::parse(&bytes),
            Err(DropReason::NdpOptions),
            "an option that ends beyond the message was accepted"
        );
        bytes[25] = 1;
        assert!(NdpMessage::parse(&bytes).is_ok());
        bytes[1] = 1;
        assert_eq!(NdpMessage::parse(&bytes), Err(DropReason::NdpCode));
    }

    #[test]
    fn groups_and_their_link_addresses_are_computed_from_addresses() {
        let group = solicited_node(ip("2001:db8::1:2345:6789"));
        assert_eq!(group, ip("ff02::1:ff45:6789"));
        assert_eq!(multicast_mac(group), MacAddr([0x33, 0x33, 0xff, 0x45, 0x67, 0x89]));
        assert_eq!(multicast_mac(ALL_NODES), MacAddr([0x33, 0x33, 0, 0, 0, 1]));
    }

    #[test]
    fn a_group_address_in_a_link_address_option_is_ignored() {
        let mut bytes = [0; MESSAGE_LEN_MAX];
        let target = ip("fe80::1");
        let solicit =
            NdpMessage::NeighborSolicitation { target, source_mac: Some(MAC), nonce: None };
        let len = solicit.emit(&mut bytes);
        bytes[26] = 3;
        let expected = NdpMessage::NeighborSolicitation { target, source_mac: None, nonce: None };
        assert_eq!(NdpMessage::parse(&bytes[..len]), Ok(expected));
    }

    /// RFC 3971 §5.3.2 allows longer numbers, which duplicate address detection does not use.
    #[test]
    fn a_longer_nonce_is_not_read() {
        let target = ip("fe80::1");
        let message =
            NdpMessage::NeighborSolicitation { target, source_mac: None, nonce: Some([9; 6]) };
        let mut bytes = [0; MESSAGE_LEN_MAX];
        let len = message.emit(&mut bytes);
        bytes[25] = 2;
        let expected = NdpMessage::NeighborSolicitation { target, source_mac: None, nonce: None };
        assert_eq!(NdpMessage::parse(&bytes[..len + 8]), Ok(expected));
    }
}
