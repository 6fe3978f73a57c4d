//! Configuration of the kernel's side of a tap or tun over rtnetlink: MTU, link up, address, peer
//! and routes.
//!
//! Above: `tun::Tun::create`. Linux: net/core/rtnetlink.c, net/ipv4/devinet.c, RFC 3549.
//!
//! Every request is synchronous: it returns when the kernel has acknowledged or refused it. A
//! refusal contains the kernel's text (extended acknowledgment), if there is one. Settings that
//! have their value already are not requested, so that an unprivileged program can use a persistent
//! interface that was prepared before.
//!
//! Not here: creation and removal of the interface, by TUNSETIFF and by closing its last
//! descriptor. The removal also deletes all settings made here.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::address::{
    AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage};
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use super::setup_error::SetupError;

/// Bytes of `struct nlmsghdr`, which a refusal repeats before its attributes.
const NLMSG_HEADER_LEN: usize = 16;

/// Attribute of a refusal that holds the kernel's text.
const NLMSGERR_ATTR_MSG: u16 = 1;

/// Size of the buffer for one answer. A link with all its statistics needs about 2 kB; the kernel's
/// limit is 32 kB.
const ANSWER_LEN_MAX: usize = 32 << 10;

/// Properties of an interface as the kernel reports them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Index of the interface, constant during its life.
    pub index: u32,
    /// MTU: maximum size of an IP packet in bytes.
    pub mtu: u32,
    /// Whether the interface is administratively up (IFF_UP).
    pub up: bool,
    /// Ethernet address on the kernel's side, if there is one.
    pub mac: Option<[u8; 6]>,
    /// Length of the transmit queue, in packets.
    pub tx_queue_len: u32,
    /// Whether its frames begin with an Ethernet header and it is not loopback.
    pub ethernet: bool,
    /// Receive queues that it was created with.
    pub rx_queues: u32,
    /// Transmit queues that it was created with.
    pub tx_queues: u32,
    /// Largest superframe in bytes (`gso_max_size`).
    pub gso_max_bytes: u32,
}

/// Changes of a link. `None` and `false` change nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinkChange {
    /// New MTU.
    pub mtu: Option<u32>,
    /// New queue length.
    pub tx_queue_len: Option<u32>,
    /// Whether to bring the link up.
    pub up: bool,
}

impl LinkChange {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A synchronous rtnetlink socket in the network namespace of the calling thread.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    sequence: u32,
    answer: Vec<u8>,
}

impl Netlink {
    /// Opens the socket.
    ///
    /// # Errors
    /// If no netlink socket can be opened.
    pub fn open() -> Result<Self, SetupError> {
        let step = "open a netlink socket";
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(|e| system(step, &e))?;
        socket.bind_auto().map_err(|e| system(step, &e))?;
        socket.connect(&SocketAddr::new(0, 0)).map_err(|e| system(step, &e))?;
        // Only error texts depend on these two options, so an old kernel without them works.
        let _ = socket.set_ext_ack(true);
        let _ = socket.set_cap_ack(true);
        Ok(Self { socket, sequence: 0, answer: vec![0; ANSWER_LEN_MAX] })
    }

    /// Looks up the interface `name`.
    ///
    /// # Errors
    /// If there is no such interface (ENODEV), or the kernel's answer cannot be decoded.
    pub fn link(&mut self, name: &str) -> Result<Link, SetupError> {
        let step = format!("look up interface \"{name}\"");
        let mut request = LinkMessage::default();
        request.attributes.push(LinkAttribute::IfName(name.to_owned()));
        let answer = self.call(&step, 0, RouteNetlinkMessage::GetLink(request))?;
        match answer {
            Some(RouteNetlinkMessage::NewLink(message)) => Ok(describe_link(&message)),
            _ => Err(SetupError::system(step, libc::EPROTO)),
        }
    }

    /// Applies `change` to the link `index`; `name` is for the text of an error.
    ///
    /// # Errors
    /// If the kernel refuses; the text names the setting.
    pub fn change_link(
        &mut self,
        index: u32,
        name: &str,
        change: &LinkChange,
    ) -> Result<(), SetupError> {
        if change.is_empty() {
            return Ok(());
        }
        let mut request = LinkMessage::default();
        request.header.index = index;
        let mut settings = Vec::new();
        if let Some(mtu) = change.mtu {
            request.attributes.push(LinkAttribute::Mtu(mtu));
            settings.push(format!("MTU {mtu}"));
        }
        if let Some(len) = change.tx_queue_len {
            request.attributes.push(LinkAttribute::TxQueueLen(len));
            settings.push(format!("queue length {len}"));
        }
        if change.up {
            request.header.flags = LinkFlags::Up;
            request.header.change_mask = LinkFlags::Up;
            settings.push("link up".to_owned());
        }
        let step = format!("set {} on \"{name}\"", settings.join(", "));
        self.call(&step, 0, RouteNetlinkMessage::SetLink(request)).map(drop)
    }

    /// Adds an address to the link. With `peer` the link is point-to-point to exactly that address.
    /// An existing address is unchanged.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn add_address(
        &mut self,
        index: u32,
        name: &str,
        address: IpNet,
        peer: Option<IpAddr>,
    ) -> Result<(), SetupError> {
        let local = address.addr();
        let prefix_len = match peer {
            Some(peer) => host_prefix_len(peer),
            None => address.prefix_len(),
        };
        let mut request = AddressMessage::default();
        request.header.family = family_of(local);
        request.header.prefix_len = prefix_len;
        request.header.index = index;
        request.header.scope = AddressScope::Universe;
        if local.is_ipv6() {
            // The link has only two ends: duplicate address detection would only delay the address
            // by a second.
            request.header.flags = AddressHeaderFlags::Nodad;
        }
        request.attributes.push(AddressAttribute::Local(local));
        request.attributes.push(AddressAttribute::Address(peer.unwrap_or(local)));
        if let (IpNet::V4(net), None) = (address, peer)
            && net.prefix_len() < 31
        {
            request.attributes.push(AddressAttribute::Broadcast(net.broadcast()));
        }
        let step = format!("add address {address} to \"{name}\"");
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        self.call(&step, flags, RouteNetlinkMessage::NewAddress(request)).map(drop)
    }

    /// Routes `destination` to the link, in the main table. Replaces an existing route.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn add_route(
        &mut self,
        index: u32,
        name: &str,
        destination: IpNet,
    ) -> Result<(), SetupError> {
        let network = destination.network();
        let mut request = RouteMessage::default();
        request.header.address_family = family_of(network);
        request.header.destination_prefix_length = destination.prefix_len();
        request.header.table = RouteHeader::RT_TABLE_MAIN;
        request.header.protocol = RouteProtocol::Boot;
        request.header.scope =
            if network.is_ipv4() { RouteScope::Link } else { RouteScope::Universe };
        request.header.kind = RouteType::Unicast;
        request.attributes.push(RouteAttribute::Destination(network.into()));
        request.attributes.push(RouteAttribute::Oif(index));
        let step = format!("route {destination} to \"{name}\"");
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        self.call(&step, flags, RouteNetlinkMessage::NewRoute(request)).map(drop)
    }

    /// Returns the name of the interface on which the kernel has `address` itself, if there is one:
    /// `ip route get fibmatch ADDRESS` prints `local`.
    ///
    /// # Errors
    /// If the request fails.
    pub fn owner_of(&mut self, address: IpAddr) -> Result<Option<String>, SetupError> {
        let mut request = RouteMessage::default();
        request.header.address_family = family_of(address);
        request.header.destination_prefix_length = host_prefix_len(address);
        request.header.flags = RouteFlags::FibMatch;
        request.attributes.push(RouteAttribute::Destination(address.into()));
        let step = format!("look up address {address}");
        let request = RouteNetlinkMessage::GetRoute(request);
        let Ok(Some(RouteNetlinkMessage::NewRoute(answer))) = self.call(&step, 0, request) else {
            // A refusal (ENETUNREACH, EHOSTUNREACH) means that no route leads to the address, so it
            // is not local.
            return Ok(None);
        };
        if answer.header.kind != RouteType::Local {
            return Ok(None);
        }
        let device = answer.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => Some(*index),
            _ => None,
        });
        match device {
            Some(index) => self.name_of(index).map(Some),
            None => Err(SetupError::system(step, libc::EPROTO)),
        }
    }

    /// Returns the name of the interface with this index.
    fn name_of(&mut self, index: u32) -> Result<String, SetupError> {
        let step = format!("look up interface {index}");
        let mut request = LinkMessage::default();
        request.header.index = index;
        let answer = self.call(&step, 0, RouteNetlinkMessage::GetLink(request))?;
        let name = match answer {
            Some(RouteNetlinkMessage::NewLink(message)) => {
                message.attributes.into_iter().find_map(|attribute| match attribute {
                    LinkAttribute::IfName(name) => Some(name),
                    _ => None,
                })
            }
            _ => None,
        };
        name.ok_or_else(|| SetupError::system(step, libc::EPROTO))
    }

    /// Deletes a link, as another program might.
    #[cfg(test)]
    pub(super) fn delete_link(&mut self, index: u32) -> Result<(), SetupError> {
        let mut request = LinkMessage::default();
        request.header.index = index;
        self.call("delete a link", 0, RouteNetlinkMessage::DelLink(request)).map(drop)
    }

    /// Sends one request and waits for its acknowledgment. Returns the object that preceded it, if
    /// there was one.
    fn call(
        &mut self,
        step: &str,
        flags: u16,
        request: RouteNetlinkMessage,
    ) -> Result<Option<RouteNetlinkMessage>, SetupError> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map_err(|e| system(step, &e))?;

        let mut object = None;
        loop {
            let received = self.receive(step)?;
            let mut rest = &self.answer[..received];
            while rest.len() >= NLMSG_HEADER_LEN {
                let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .map_err(|e| undecodable(step, &e))?;
                let len = usize::try_from(message.header.length).unwrap_or(usize::MAX);
                if message.header.sequence_number == self.sequence {
                    match message.payload {
                        NetlinkPayload::Error(error) => {
                            return match error.code {
                                None => Ok(object),
                                Some(code) => {
                                    Err(SetupError::system(step, code.get().saturating_abs())
                                        .with_hint(kernel_text(&error.header)))
                                }
                            };
                        }
                        NetlinkPayload::InnerMessage(inner) => object = Some(inner),
                        _ => {}
                    }
                }
                // Messages are aligned to 4 bytes; the last one may lack its padding.
                let advance = len.max(NLMSG_HEADER_LEN).next_multiple_of(4).min(rest.len());
                rest = &rest[advance..];
            }
        }
    }

    /// Reads one datagram into `self.answer`.
    fn receive(&mut self, step: &str) -> Result<usize, SetupError> {
        loop {
            match self.socket.recv(&mut self.answer.as_mut_slice(), 0) {
                Ok(len) => return Ok(len.min(self.answer.len())),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(system(step, &e)),
            }
        }
    }
}

fn system(step: &str, error: &std::io::Error) -> SetupError {
    SetupError::system(step, error.raw_os_error().unwrap_or(libc::EIO))
}

fn undecodable(step: &str, error: &netlink_packet_core::DecodeError) -> SetupError {
    SetupError::system(step, libc::EPROTO).with_hint(format!("unreadable answer: {error}"))
}

fn family_of(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

const fn host_prefix_len(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn describe_link(message: &LinkMessage) -> Link {
    let mut link = Link {
        index: message.header.index,
        mtu: 0,
        up: message.header.flags.contains(LinkFlags::Up),
        mac: None,
        tx_queue_len: 0,
        ethernet: message.header.link_layer_type == LinkLayerType::Ether,
        rx_queues: 1,
        tx_queues: 1,
        gso_max_bytes: 0,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::TxQueueLen(len) => link.tx_queue_len = *len,
            LinkAttribute::NumRxQueues(count) => link.rx_queues = *count,
            LinkAttribute::NumTxQueues(count) => link.tx_queues = *count,
            LinkAttribute::GsoMaxSize(bytes) => link.gso_max_bytes = *bytes,
            LinkAttribute::Address(bytes) => link.mac = bytes.as_slice().try_into().ok(),
            _ => {}
        }
    }
    link
}

/// Returns the kernel's text in a refusal, empty if there is none: the capped copy of the request's
/// header is followed by attributes {length, type, value}, padded to 4 bytes.
fn kernel_text(refused: &[u8]) -> String {
    let mut rest = refused.get(NLMSG_HEADER_LEN..).unwrap_or_default();
    while let [l0, l1, t0, t1, value @ ..] = rest {
        let len = usize::from(u16::from_ne_bytes([*l0, *l1]));
        let kind = u16::from_ne_bytes([*t0, *t1]);
        let Some(value) = len.checked_sub(4).and_then(|len| value.get(..len)) else { break };
        if kind == NLMSGERR_ATTR_MSG {
            let text = value.split(|&byte| byte == 0).next().unwrap_or_default();
            return String::from_utf8_lossy(text).trim_end_matches('.').to_owned();
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_text_is_found_among_attributes() {
        let mut refused = vec![0; NLMSG_HEADER_LEN];
        refused.extend(8u16.to_ne_bytes());
        refused.extend(2u16.to_ne_bytes());
        refused.extend(44u32.to_ne_bytes());
        let text = b"mtu greater than device maximum\0";
        refused.extend(u16::try_from(4 + text.len()).expect("short").to_ne_bytes());
        refused.extend(NLMSGERR_ATTR_MSG.to_ne_bytes());
        refused.extend(text);
        assert_eq!(kernel_text(&refused), "mtu greater than device maximum");
        for cut in 0..refused.len() {
            // A truncated answer gives a shorter text or none, never a panic.
            let _ = kernel_text(&refused[..cut]);
        }
    }

    #[test]
    fn the_owner_of_an_address_is_named() {
        let mut netlink = Netlink::open().expect("netlink needs no privilege");
        let owner = netlink.owner_of(IpAddr::from([127, 0, 0, 1])).expect("an answer");
        assert_eq!(owner.as_deref(), Some("lo"));
        // No host has an address of TEST-NET-3 (RFC 5737).
        assert_eq!(netlink.owner_of(IpAddr::from([203, 0, 113, 77])).expect("an answer"), None);
    }

    #[test]
    fn loopback_is_described_and_a_missing_interface_is_named() {
        let mut netlink = Netlink::open().expect("netlink needs no privilege");
        let lo = netlink.link("lo").expect("every namespace has lo");
        assert!(lo.index >= 1);
        assert!(lo.mtu >= 1500);
        let error = netlink.link("no-such-if").expect_err("no such interface");
        assert_eq!(error.errno(), libc::ENODEV);
        assert!(error.to_string().contains("no-such-if"), "{error}");
    }
}
