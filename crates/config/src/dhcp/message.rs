//! Messages of DHCPv4 (RFC 2131 §2, RFC 2132): those of a client are written, those of a server
//! read.
//!
//! Below: crate `dhcproto`. Its owned `Message` stops at the first option that it cannot read, and
//! ignores option overload, so answers are read option by option from its borrowed view, which also
//! joins the parts of a long option (RFC 3396).
//!
//! Invariant: only the values of options that the client uses ([`is_used`]) are decoded. In a debug
//! build the library asserts the lengths of some others (option 94), and a server could end the
//! process.
//!
//! Not here: the judgement about values (`lease`).

use std::net::Ipv4Addr;

use dhcproto::{
    Encodable as _,
    v4::{
        self, DhcpOption, MessageType, Opcode, OptionCode,
        borrowed::{self, DhcpOptionIterator},
    },
};
use ipnet::Ipv4Net;

/// Offsets of the fields `sname` and `file`, which may hold options (RFC 2132 §9.3).
const SERVER_NAME: std::ops::Range<usize> = 44..108;
const FILE: std::ops::Range<usize> = 108..236;

/// Offset of the magic cookie (RFC 2131 §3).
const COOKIE: std::ops::Range<usize> = 236..240;

/// Smallest message: relay agents and servers may drop shorter ones (RFC 1542 §2.1).
const LEN_MIN: usize = 300;

/// Largest answer that the client receives, in bytes of the UDP payload: an Ethernet frame less the
/// headers of IP and UDP.
const LEN_MAX: u16 = 1472;

/// Options that the client asks for. RFC 3442: option 121 comes before option 3.
const WANTED: [OptionCode; 10] = [
    OptionCode::SubnetMask,
    OptionCode::ClasslessStaticRoute,
    OptionCode::Router,
    OptionCode::DomainNameServer,
    OptionCode::Hostname,
    OptionCode::DomainName,
    OptionCode::InterfaceMtu,
    OptionCode::Renewal,
    OptionCode::Rebinding,
    OptionCode::DomainSearch,
];

/// Message of a client.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) kind: MessageType,
    pub(super) xid: u32,
    pub(super) secs: u16,
    /// True if the client cannot receive unicast packets yet.
    pub(super) broadcast: bool,
    /// Address that the client uses already.
    pub(super) ciaddr: Ipv4Addr,
    pub(super) mac: [u8; 6],
    pub(super) client_id: Vec<u8>,
    pub(super) hostname: Option<String>,
    pub(super) requested: Option<Ipv4Addr>,
    pub(super) server: Option<Ipv4Addr>,
}

impl Request {
    /// Returns the bytes of the message.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let none = Ipv4Addr::UNSPECIFIED;
        let mut message =
            v4::Message::new_with_id(self.xid, self.ciaddr, none, none, none, &self.mac);
        message.set_secs(self.secs);
        if self.broadcast {
            message.set_flags(v4::Flags::default().set_broadcast());
        }
        let options = message.opts_mut();
        options.insert(DhcpOption::MessageType(self.kind));
        options.insert(DhcpOption::ClientIdentifier(self.client_id.clone()));
        // RFC 2131 §4.4.1, table 5: DECLINE and RELEASE carry neither a list nor a size.
        if matches!(self.kind, MessageType::Discover | MessageType::Request) {
            options.insert(DhcpOption::ParameterRequestList(WANTED.to_vec()));
            options.insert(DhcpOption::MaxMessageSize(LEN_MAX));
            if let Some(hostname) = &self.hostname {
                options.insert(DhcpOption::Hostname(hostname.clone()));
            }
        }
        if let Some(requested) = self.requested {
            options.insert(DhcpOption::RequestedIpAddress(requested));
        }
        if let Some(server) = self.server {
            options.insert(DhcpOption::ServerIdentifier(server));
        }
        // Fails only for an option above 255 bytes that cannot be split, which a configuration
        // with a long hostname could contain; such a hostname is refused before (`ClientConfig`).
        let mut bytes = message.to_vec().unwrap_or_default();
        bytes.resize(bytes.len().max(LEN_MIN), 0);
        bytes
    }
}

/// Kind of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Offer,
    Ack,
    Nak,
}

/// Message of a server, with the values that a client uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) kind: Kind,
    pub(super) xid: u32,
    /// Link address of the client.
    pub(super) mac: [u8; 6],
    /// Assigned address (`yiaddr`).
    pub(super) address: Ipv4Addr,
    pub(super) server: Option<Ipv4Addr>,
    pub(super) mask: Option<Ipv4Addr>,
    pub(super) lifetime_s: Option<u32>,
    pub(super) renewal_s: Option<u32>,
    pub(super) rebinding_s: Option<u32>,
    pub(super) routers: Vec<Ipv4Addr>,
    pub(super) classless: Option<Vec<(Ipv4Net, Ipv4Addr)>>,
    pub(super) dns: Vec<Ipv4Addr>,
    pub(super) domain: Option<String>,
    pub(super) search: Vec<String>,
    pub(super) hostname: Option<String>,
    pub(super) mtu: Option<u16>,
    /// Text for the administrator of the client.
    pub(super) text: Option<String>,
}

impl Answer {
    pub(super) const fn new(kind: Kind, xid: u32) -> Self {
        Self {
            kind,
            xid,
            mac: [0; 6],
            address: Ipv4Addr::UNSPECIFIED,
            server: None,
            mask: None,
            lifetime_s: None,
            renewal_s: None,
            rebinding_s: None,
            routers: Vec::new(),
            classless: None,
            dns: Vec::new(),
            domain: None,
            search: Vec::new(),
            hostname: None,
            mtu: None,
            text: None,
        }
    }

    /// Reads a message. `None` for bytes that are no DHCP message of a server to an Ethernet
    /// client. An option that cannot be read is left out.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let message = borrowed::Message::new(bytes).ok()?;
        // Differs from a plain use of `Message::chaddr`: its length comes from the message, and
        // more than 16 bytes would reach into the next field.
        if message.opcode() != Opcode::BootReply
            || message.htype() != v4::HType::Eth
            || message.hlen() != 6
            || bytes[COOKIE] != v4::MAGIC
        {
            return None;
        }
        let mut options = Vec::new();
        let overload = collect(&mut options, message.opts());
        if overload & 1 != 0 {
            collect(&mut options, DhcpOptionIterator::new(&bytes[FILE]));
        }
        if overload & 2 != 0 {
            collect(&mut options, DhcpOptionIterator::new(&bytes[SERVER_NAME]));
        }
        let kind = options.iter().find_map(|option| match option {
            DhcpOption::MessageType(MessageType::Offer) => Some(Kind::Offer),
            DhcpOption::MessageType(MessageType::Ack) => Some(Kind::Ack),
            DhcpOption::MessageType(MessageType::Nak) => Some(Kind::Nak),
            _ => None,
        })?;
        let mut answer = Self {
            mac: message.chaddr().try_into().ok()?,
            address: message.yiaddr(),
            ..Self::new(kind, message.xid())
        };
        options.into_iter().for_each(|option| answer.take(option));
        Some(answer)
    }

    /// Takes over one option. The first of two options with one code counts.
    fn take(&mut self, option: DhcpOption) {
        fn first<T>(field: &mut Option<T>, value: T) {
            field.get_or_insert(value);
        }
        match option {
            DhcpOption::SubnetMask(mask) => first(&mut self.mask, mask),
            DhcpOption::Router(routers) => self.routers.extend(routers),
            DhcpOption::DomainNameServer(servers) => self.dns.extend(servers),
            DhcpOption::Hostname(name) => first(&mut self.hostname, name),
            DhcpOption::DomainName(name) => first(&mut self.domain, name),
            DhcpOption::InterfaceMtu(mtu) => first(&mut self.mtu, mtu),
            DhcpOption::AddressLeaseTime(seconds) => first(&mut self.lifetime_s, seconds),
            DhcpOption::ServerIdentifier(server) => first(&mut self.server, server),
            DhcpOption::Message(text) => first(&mut self.text, text),
            DhcpOption::Renewal(seconds) => first(&mut self.renewal_s, seconds),
            DhcpOption::Rebinding(seconds) => first(&mut self.rebinding_s, seconds),
            DhcpOption::ClasslessStaticRoute(routes) => first(&mut self.classless, routes),
            DhcpOption::DomainSearch(names) => {
                self.search.extend(names.iter().map(ToString::to_string));
            }
            _ => {}
        }
    }
}

/// Whether the client uses an option of this code.
fn is_used(code: OptionCode) -> bool {
    matches!(
        code,
        OptionCode::SubnetMask
            | OptionCode::Router
            | OptionCode::DomainNameServer
            | OptionCode::Hostname
            | OptionCode::DomainName
            | OptionCode::InterfaceMtu
            | OptionCode::AddressLeaseTime
            | OptionCode::OptionOverload
            | OptionCode::MessageType
            | OptionCode::ServerIdentifier
            | OptionCode::Message
            | OptionCode::Renewal
            | OptionCode::Rebinding
            | OptionCode::DomainSearch
            | OptionCode::ClasslessStaticRoute
    )
}

/// Appends the used options that can be read, and returns the value of option overload.
fn collect(options: &mut Vec<DhcpOption>, found: DhcpOptionIterator<'_>) -> u8 {
    let mut overload = 0;
    let used = found.filter(|option| is_used(option.code()));
    for option in used.filter_map(|option| option.into_option().ok()) {
        match option {
            DhcpOption::OptionOverload(fields) => overload = fields,
            option => options.push(option),
        }
    }
    overload
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dhcp::lease::Lease;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];

    /// Returns the fixed part of a server's message, with its cookie and its type.
    fn head(kind: u8) -> Vec<u8> {
        let mut bytes = vec![0; 240];
        bytes[..3].copy_from_slice(&[2, 1, 6]);
        bytes[4..8].copy_from_slice(&7_u32.to_be_bytes());
        bytes[16..20].copy_from_slice(&[10, 0, 0, 50]);
        bytes[28..34].copy_from_slice(&MAC);
        bytes[COOKIE].copy_from_slice(&[99, 130, 83, 99]);
        bytes.extend([53, 1, kind]);
        bytes
    }

    #[test]
    fn options_behind_a_bad_one_are_read() {
        let mut bytes = head(2);
        // An MTU of one byte, a mask of three, then a server and a lease time.
        bytes.extend([26, 1, 5, 1, 3, 255, 255, 255, 54, 4, 10, 0, 0, 1, 51, 4, 0, 0, 0, 60, 255]);
        let answer = Answer::read(&bytes).expect("an offer");
        assert_eq!((answer.kind, answer.xid, answer.mac), (Kind::Offer, 7, MAC));
        assert_eq!((answer.mtu, answer.mask), (None, None));
        assert_eq!(answer.server, Some(Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(answer.lifetime_s, Some(60));
    }

    /// RFC 2132 §9.3.
    #[test]
    fn overloaded_fields_are_read() {
        let mut bytes = head(5);
        bytes.extend([52, 1, 3, 255]);
        bytes[FILE][..6].copy_from_slice(&[51, 4, 0, 0, 0, 60]);
        bytes[FILE][6] = 255;
        bytes[SERVER_NAME][..7].copy_from_slice(&[54, 4, 10, 0, 0, 1, 255]);
        let answer = Answer::read(&bytes).expect("an acknowledgment");
        assert_eq!(answer.lifetime_s, Some(60));
        assert_eq!(answer.server, Some(Ipv4Addr::new(10, 0, 0, 1)));
    }

    /// RFC 3396: an option above 255 bytes has several parts.
    #[test]
    fn the_parts_of_a_long_option_are_joined() {
        let mut bytes = head(5);
        let routes: Vec<u8> = (0..60).flat_map(|n| [24, 192, 0, n, 10, 0, 0, 1]).collect();
        for part in routes.chunks(255) {
            bytes.push(121);
            bytes.push(u8::try_from(part.len()).expect("at most 255"));
            bytes.extend(part);
        }
        bytes.push(255);
        let answer = Answer::read(&bytes).expect("an acknowledgment");
        assert_eq!(answer.classless.map(|routes| routes.len()), Some(60));
    }

    #[test]
    fn messages_of_clients_and_of_other_links_are_no_answers() {
        let whole = head(2);
        assert!(Answer::read(&whole).is_some());
        for (at, value) in [(0, 1), (1, 6), (2, 0), (2, 255), (236, 0), (242, 1), (242, 99)] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            assert!(Answer::read(&bytes).is_none(), "{at} {value}");
        }
        assert!(Answer::read(&whole[..239]).is_none());
    }

    #[test]
    fn a_request_names_its_client_and_is_not_too_short() {
        let request = Request {
            kind: MessageType::Discover,
            xid: 0x0102_0304,
            secs: 3,
            broadcast: true,
            ciaddr: Ipv4Addr::UNSPECIFIED,
            mac: MAC,
            client_id: vec![1, 2, 3],
            hostname: Some("front".to_owned()),
            requested: None,
            server: None,
        };
        let bytes = request.bytes();
        assert_eq!(bytes.len(), LEN_MIN);
        assert_eq!(bytes[..12], [1, 1, 6, 0, 1, 2, 3, 4, 0, 3, 0x80, 0]);
        let message = borrowed::Message::new(&bytes).expect("a message");
        let codes: Vec<u8> = message.opts().map(|option| option.code().into()).collect();
        assert_eq!(codes, [12, 53, 55, 57, 61]);
    }

    /// In a debug build, crate `dhcproto` asserts the length of option 94.
    #[test]
    fn an_unused_option_of_any_length_is_left_out() {
        for code in (2..=254).filter(|code| !is_used(OptionCode::from(*code))) {
            for len in [0, 1, 2, 3, 4, 5, 16, 255] {
                let mut bytes = head(2);
                bytes.extend([code, len]);
                bytes.extend(vec![0xff; len.into()]);
                bytes.extend([51, 4, 0, 0, 0, 60, 255]);
                let answer = Answer::read(&bytes).expect("an offer");
                assert_eq!(answer.lifetime_s, Some(60), "option {code} of {len} bytes");
            }
        }
    }

    proptest! {
        /// Options that the client uses, with any contents, in any of the three fields.
        #[test]
        fn used_options_of_any_length_are_read_without_a_panic(
            options in prop::collection::vec(
                (any::<u8>(), prop::collection::vec(any::<u8>(), 0..40)), 0..12),
            overload in 0_u8..4,
        ) {
            let codes = [1, 3, 6, 12, 15, 26, 51, 52, 54, 56, 58, 59, 119, 121];
            let mut bytes = head(5);
            bytes.extend([52, 1, overload]);
            for (number, (code, data)) in options.iter().enumerate() {
                let code = codes[usize::from(*code) % codes.len()];
                let option = [&[code, u8::try_from(data.len())?], &data[..]].concat();
                let field = match number % 3 {
                    0 => FILE,
                    1 => SERVER_NAME,
                    _ => {
                        bytes.extend(option);
                        continue;
                    }
                };
                bytes[field][..option.len()].copy_from_slice(&option);
            }
            if let Some(answer) = Answer::read(&bytes) {
                let _ = Lease::of(&answer);
            }
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(
            tail in prop::collection::vec(any::<u8>(), 0..400),
            at in 0_usize..240,
            value: u8,
        ) {
            let mut bytes = head(5);
            bytes[at] = value;
            bytes.extend(&tail);
            if let Some(answer) = Answer::read(&bytes)
                && let Ok(lease) = Lease::of(&answer)
            {
                prop_assert!(lease.renewal <= lease.rebinding);
                prop_assert!(lease.routes.len() <= 64 && lease.dns.len() <= 8);
                prop_assert!(!lease.address.addr().is_unspecified());
            }
            let _ = Answer::read(&tail);
        }
    }
}
