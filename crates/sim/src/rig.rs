//! One host on a [`ByteLink`], with a peer made of bytes on the other end.
//!
//! The peer answers ARP unless told not to; everything else is sent by the test. Every frame of the
//! host is checked before the test sees it, so that a malformed one fails any test.
//!
//! With [`RigConfig::ipv6`] both ends also have IPv6 addresses, and the peer answers neighbor
//! solicitations like ARP requests.
//!
//! Not here: TCP as the peer speaks it (`peer`).

use std::{
    collections::VecDeque,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use pkt::{DropReason, EtherType, Instant};
use stack::{
    Capabilities,
    base::{counters::Counter, ids::DeviceIndex},
    device::LinkType,
    header::{
        arp::{ArpOperation, ArpPacket, ETHER_TYPE_ARP},
        ethernet::MacAddr,
        ip::protocol,
        ndp::{self, NdpMessage},
    },
    host::{
        Host,
        config::{DeviceConfig, HostConfig},
    },
    route::fib::RouteSpec,
    socket::{Listener, flows::Intercept},
    sysctl::Sysctls,
};

use crate::{
    World,
    byte_link::ByteLink,
    frame::{self, Ipv4, Seen},
};

/// Link address of the host.
pub const HOST_MAC: MacAddr = MacAddr([0x52, 0x51, 0, 0, 0, 1]);
/// Link address of the peer.
pub const PEER_MAC: MacAddr = MacAddr([0x52, 0x51, 0, 0, 0, 2]);
/// Address of the host, in 10.0.0.0/24.
pub const HOST_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Address of the peer, which is also the host's default gateway.
pub const PEER_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// IPv6 address of the host, in fd00::/64.
pub const HOST_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
/// Link-local address of the host, with [`RigConfig::link_local`].
pub const HOST_LINK: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
/// Link-local address of the peer.
pub const PEER_LINK: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
/// IPv6 address of the peer.
pub const PEER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

/// Configuration of a rig.
#[derive(Clone, Debug)]
pub struct RigConfig {
    /// Whether frames have an Ethernet header, or start with the IP header.
    pub ethernet: bool,
    /// MTU of the link.
    pub mtu: u32,
    /// Whether there is a second link, [`Rig::other`], of another subnet.
    pub second_link: bool,
    /// Whether a default route leads to the peer.
    pub default_route: bool,
    /// Whether the host has an IPv6 address, too.
    pub ipv6: bool,
    /// Whether the host has a link-local address, too.
    pub link_local: bool,
    /// Interception of flows by the link, and by the second link.
    pub intercept: Option<Intercept>,
    /// Settings of the host.
    pub sysctls: Sysctls,
    /// Cores of the host. The link has one queue, so the first core receives; flows and their
    /// timers are on all.
    pub cores: u16,
    /// Packet memory of the world.
    pub memory_bytes: usize,
    /// Seed of the host's secrets.
    pub seed: u64,
}

impl Default for RigConfig {
    fn default() -> Self {
        Self {
            ethernet: true,
            mtu: 1500,
            second_link: false,
            default_route: true,
            ipv6: false,
            link_local: false,
            intercept: None,
            sysctls: Sysctls::default(),
            cores: 1,
            memory_bytes: 64 << 20,
            seed: 1,
        }
    }
}

/// One host on a [`ByteLink`], with a peer made of bytes on the other end.
#[derive(Debug)]
pub struct Rig {
    /// Time, memory and the one host.
    pub world: World,
    /// The host's device.
    pub link: Arc<ByteLink>,
    /// The host's second device, if there is one.
    pub other: Option<Arc<ByteLink>>,
    /// Whether the peer answers ARP requests for its address.
    pub answers_arp: bool,
    seen: VecDeque<Seen>,
    ethernet: bool,
    mtu: u32,
    delivered: u64,
}

impl Rig {
    /// Makes a rig with an idle host.
    ///
    /// # Panics
    /// When the configuration is refused.
    #[must_use]
    pub fn new(config: RigConfig) -> Self {
        let RigConfig { ethernet, mtu, sysctls, cores, .. } = config;
        let layer = if ethernet { LinkType::Ethernet { mac: HOST_MAC } } else { LinkType::Ip };
        let capabilities = |name: &str| Capabilities::plain(name, mtu, layer);
        let link = Arc::new(ByteLink::new(capabilities("bytes")));
        let other = config.second_link.then(|| Arc::new(ByteLink::new(capabilities("other"))));
        let device = |link: &Arc<ByteLink>, address: String| DeviceConfig {
            device: Arc::clone(link) as _,
            addresses: vec![address.parse().expect("a prefix")],
        };
        let mut first = device(&link, format!("{HOST_IP}/24"));
        if config.ipv6 {
            first.addresses.push(format!("{HOST_V6}/64").parse().expect("a prefix"));
        }
        if config.link_local {
            first.addresses.push(format!("{HOST_LINK}/64").parse().expect("a prefix"));
        }
        let other_device = other.iter().map(|other| device(other, String::from("10.0.1.1/24")));
        let mut world = World::with_memory(config.seed, config.memory_bytes);
        let everywhere = "0.0.0.0/0".parse().expect("a prefix");
        let default = config.default_route.then(|| RouteSpec::via(everywhere, IpAddr::V4(PEER_IP)));
        let added = world.add_host(HostConfig {
            name: String::from("host"),
            devices: std::iter::once(first).chain(other_device).collect(),
            routes: default.into_iter().collect(),
            intercepts: (1..)
                .map(DeviceIndex)
                .take(1 + usize::from(config.second_link))
                .filter_map(|device| Some((device, config.intercept.clone()?)))
                .collect(),
            cores,
            sysctls,
            ..HostConfig::replay(0)
        });
        added.expect("a valid configuration");
        let seen = VecDeque::new();
        Self { world, link, other, answers_arp: true, seen, ethernet, mtu, delivered: 0 }
    }

    /// The host.
    #[must_use]
    pub fn host(&self) -> Arc<Host> {
        Arc::clone(&self.world.hosts[0])
    }

    /// Listens on the host's own address.
    ///
    /// # Panics
    /// When the port is taken.
    pub fn listen(&mut self, port: u16, backlog: u32) -> Arc<Listener> {
        let host = self.host();
        let local = SocketAddr::new(IpAddr::V4(HOST_IP), port);
        Listener::listen(&host, &mut self.world.cx, local, backlog).expect("a free port")
    }

    /// Delivers a frame, which the host processes when the rig settles. Without memory the frame is
    /// lost.
    pub fn queue(&mut self, bytes: &[u8]) {
        self.delivered += u64::from(self.link.deliver(&mut self.world.cx, bytes));
    }

    /// Delivers a frame, which the host processes.
    pub fn give_frame(&mut self, bytes: &[u8]) {
        self.queue(bytes);
        self.settle();
    }

    /// Delivers an IP packet from the peer to the host, which processes it.
    pub fn give(&mut self, packet: &[u8]) {
        let bytes = self.framed(packet);
        self.give_frame(&bytes);
    }

    /// Delivers an IP packet of `protocol` from `src` to the host, which processes it.
    pub fn give_from(&mut self, src: Ipv4Addr, protocol: u8, payload: &[u8]) {
        self.give(&Ipv4::new(src, HOST_IP, protocol).with(payload));
    }

    /// Delivers an ARP packet, which the host processes.
    pub fn give_arp(&mut self, dst: MacAddr, arp: &ArpPacket) {
        let bytes = arp_frame(dst, arp);
        self.give_frame(&bytes);
    }

    /// Whether frames begin with an Ethernet header, not with the IP header.
    #[must_use]
    pub const fn is_ethernet(&self) -> bool {
        self.ethernet
    }

    /// Returns the frame that carries an IP packet from the peer to the host.
    #[must_use]
    pub fn framed(&self, packet: &[u8]) -> Vec<u8> {
        if self.ethernet {
            let is_v6 = packet.first().is_some_and(|first| first >> 4 == 6);
            let kind = if is_v6 { EtherType::IPV6 } else { EtherType::IPV4 };
            frame::ethernet(HOST_MAC, PEER_MAC, kind, packet)
        } else {
            packet.to_vec()
        }
    }

    /// Runs the host until it has no work at this moment; returns the time of its next work.
    ///
    /// # Panics
    /// When the host has sent an invalid frame.
    pub fn settle(&mut self) -> Option<Instant> {
        loop {
            let next = self.world.settle();
            if !self.collect() {
                return next;
            }
        }
    }

    /// Checks the frames that the host has sent. Returns true if the peer has answered one.
    fn collect(&mut self) -> bool {
        let mut answered = false;
        while let Some(sent) = self.link.take() {
            let judged = if self.ethernet {
                frame::judge_ethernet(&sent.bytes, HOST_MAC, self.mtu)
            } else if sent.bytes.first().is_some_and(|first| first >> 4 == 6) {
                frame::judge_ipv6(&sent.bytes, self.mtu)
            } else {
                frame::judge_ipv4(&sent.bytes, self.mtu)
            };
            let seen = judged.unwrap_or_else(|fault| {
                let start = &sent.bytes[..sent.bytes.len().min(80)];
                panic!("sent: {fault}: {} bytes, {start:02x?}", sent.bytes.len())
            });
            answered |= self.answer_arp(&seen);
            self.seen.push_back(seen);
        }
        answered
    }

    fn answer_arp(&mut self, seen: &Seen) -> bool {
        if let Seen::Ndp(ip, NdpMessage::NeighborSolicitation { target, .. }) = seen {
            let IpAddr::V6(asker) = ip.src else { return false };
            let asked = matches!(*target, PEER_V6 | PEER_LINK) && !asker.is_unspecified();
            if self.answers_arp && asked {
                self.queue(&advertisement_frame(*target, asker));
            }
            return self.answers_arp && asked;
        }
        let Seen::Arp(_, request) = seen else { return false };
        let asked = request.operation == ArpOperation::Request && request.target_ip == PEER_IP;
        if self.answers_arp && asked {
            self.queue(&arp_frame(HOST_MAC, &request.reply(PEER_MAC)));
            return true;
        }
        false
    }

    /// Lets virtual time pass and runs the work that becomes due.
    pub fn pass(&mut self, time: Duration) {
        let end = self.world.cx.now + time;
        while let Some(next) = self.settle() {
            if next > end {
                break;
            }
            self.world.cx.now = self.world.cx.now.max(next);
        }
        self.world.cx.now = end;
        self.settle();
    }

    /// Returns the frames that the host has sent since the last call, after it has run out of work.
    pub fn take(&mut self) -> Vec<Seen> {
        self.settle();
        self.seen.drain(..).collect()
    }

    /// As [`take`](Self::take), but does not process queued frames.
    pub(crate) fn take_sent(&mut self) -> Vec<Seen> {
        self.collect();
        self.seen.drain(..).collect()
    }

    /// Returns the frames that the host has sent since the last call, without ARP and neighbor
    /// discovery.
    pub fn take_ip(&mut self) -> Vec<Seen> {
        self.settle();
        self.seen.drain(..).filter(|seen| !matches!(seen, Seen::Arp(..) | Seen::Ndp(..))).collect()
    }

    /// Returns the number of packets that the host has dropped for `reason`.
    #[must_use]
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.world.hosts[0].counters().drops(reason)
    }

    /// Returns a counter of the host.
    #[must_use]
    pub fn count(&self, counter: Counter) -> u64 {
        self.world.hosts[0].counters().stack(counter)
    }

    /// Returns a TCP counter of the host.
    #[must_use]
    pub fn count_tcp(&self, counter: tcp::Counter) -> u64 {
        self.world.hosts[0].counters().tcp(counter)
    }

    /// Returns the number of frames that have reached the host's device.
    #[must_use]
    pub const fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Returns the largest IP packet that a frame may hold, in bytes.
    #[must_use]
    pub const fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Shuts the host down and lets every timer expire. The test must have dropped its sockets.
    ///
    /// # Panics
    /// When a connection or a packet is left.
    pub fn finish(mut self) {
        let host = self.host();
        host.shut_down(&mut self.world.cx);
        self.pass(Duration::from_secs(1200));
        assert_eq!(host.established_len(), 0, "connections are left");
        assert_eq!(self.count_tcp(tcp::Counter::TcpCurrEstab), 0, "TcpCurrEstab is not zero");
        drop(host);
        self.world.hosts.clear();
        assert_eq!(self.world.packets_alive(), 0, "packets leaked");
        assert_eq!(Arc::strong_count(&self.link), 1, "the dropped host still holds its device");
    }
}

/// Returns the frame in which the peer tells its link address for `target` to the host at `to`.
#[must_use]
pub fn advertisement_frame(target: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
    let message = NdpMessage::NeighborAdvertisement {
        target,
        target_mac: Some(PEER_MAC),
        router: false,
        solicited: true,
        replaces: true,
    };
    frame::ethernet(HOST_MAC, PEER_MAC, EtherType::IPV6, &ndp_packet(target, to, &message))
}

/// Returns the IPv6 packet of a neighbor discovery message.
#[must_use]
pub fn ndp_packet(src: Ipv6Addr, dst: Ipv6Addr, message: &NdpMessage) -> Vec<u8> {
    let mut bytes = [0; ndp::MESSAGE_LEN_MAX];
    let len = message.emit(&mut bytes);
    let message = frame::with_icmpv6_checksum(src, dst, bytes[..len].to_vec());
    let mut packet = frame::ipv6(src, dst, protocol::ICMPV6, &message);
    packet[7] = ndp::HOP_LIMIT;
    packet
}

/// Returns the frame of an ARP packet.
#[must_use]
pub fn arp_frame(dst: MacAddr, arp: &ArpPacket) -> Vec<u8> {
    let mut bytes = [0; stack::header::arp::ARP_LEN];
    arp.emit(&mut bytes);
    frame::ethernet(dst, arp.sender_mac, ETHER_TYPE_ARP, &bytes)
}
