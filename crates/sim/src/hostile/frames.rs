//! Frames below TCP: random bytes, IP packets, ICMP, ARP.

use std::net::Ipv4Addr;

use pkt::EtherType;
use stack::header::{
    arp::{ArpOperation, ArpPacket},
    ethernet::MacAddr,
    icmp::IcmpMessage,
    ip::{Fragment, protocol},
};

use super::Play;
use crate::{
    frame::{self, Ipv4},
    rig::{self, HOST_IP, HOST_MAC, PEER_IP, PEER_MAC},
};

const SOURCES: [Ipv4Addr; 8] = [
    PEER_IP,
    HOST_IP,
    Ipv4Addr::LOCALHOST,
    Ipv4Addr::BROADCAST,
    Ipv4Addr::new(10, 0, 0, 255),
    Ipv4Addr::new(224, 0, 0, 1),
    Ipv4Addr::new(192, 0, 2, 1),
    Ipv4Addr::UNSPECIFIED,
];

const DESTINATIONS: [Ipv4Addr; 8] = [
    HOST_IP,
    Ipv4Addr::new(10, 0, 0, 255),
    Ipv4Addr::BROADCAST,
    Ipv4Addr::new(224, 0, 0, 1),
    Ipv4Addr::LOCALHOST,
    Ipv4Addr::new(192, 0, 2, 9),
    Ipv4Addr::new(10, 0, 0, 7),
    Ipv4Addr::UNSPECIFIED,
];

const STATIONS: [MacAddr; 4] =
    [HOST_MAC, MacAddr::BROADCAST, MacAddr([1, 0, 0x5e, 0, 0, 1]), MacAddr([2, 9, 9, 9, 9, 9])];

const ETHER_TYPES: [EtherType; 4] =
    [EtherType::IPV4, EtherType::ARP, EtherType::IPV6, EtherType(0x8100)];

impl Play<'_> {
    pub(super) fn raw_frame(&mut self) {
        let bytes = self.input.counted().to_vec();
        self.taint();
        if self.is_ethernet() && self.input.next() & 1 == 0 {
            let dst = self.input.pick(&STATIONS);
            let ether_type = self.input.pick(&ETHER_TYPES);
            let mut payload = bytes;
            frame::fix_ipv4_checksum(&mut payload);
            self.give(frame::ethernet(dst, PEER_MAC, ether_type, &payload));
        } else {
            self.give(bytes);
        }
    }

    /// Delivers an IP packet with a valid header, whose addresses, fragment fields and payload may
    /// make no sense here.
    pub(super) fn packet(&mut self) {
        let mut ip = Ipv4::new(PEER_IP, HOST_IP, self.input.next());
        let shape = self.input.next();
        ip.src = SOURCES[usize::from(shape & 7)];
        ip.dst = DESTINATIONS[usize::from(shape >> 3 & 7)];
        match shape >> 6 {
            1 => ip.fragment = Fragment { dont: false, more: true, offset: 0 },
            2 => ip.fragment.offset = u16::from(self.input.next()) << 3,
            3 => {
                ip.options = self.input.counted().to_vec();
                ip.options.truncate(40);
                ip.options.resize(ip.options.len().next_multiple_of(4), 0);
            }
            _ => {}
        }
        let mut payload = self.input.counted().to_vec();
        if ip.protocol == protocol::TCP {
            self.taint();
            frame::fix_tcp_checksum(ip.src, ip.dst, &mut payload);
        }
        let packet = ip.with(&payload);
        if self.is_ethernet() {
            let dst = self.input.pick(&STATIONS);
            self.give(frame::ethernet(dst, PEER_MAC, EtherType::IPV4, &packet));
        } else {
            self.give(packet);
        }
    }

    /// Delivers an ICMP error about a segment of the host.
    pub(super) fn icmp_error(&mut self) {
        let at = self.input.next();
        let (kind, code, word) = (self.input.next(), self.input.next(), self.input.next_u16());
        let behind = i32::from(self.input.next().cast_signed());
        let Some(connection) = self.connection(at) else { return };
        let peer = connection.peer.clone();
        let header = tcp::SegmentHeader {
            src_port: peer.tuple.local.port(),
            dst_port: peer.tuple.remote.port(),
            seq: peer.rcv_nxt + behind.cast_unsigned(),
            ..tcp::SegmentHeader::default()
        };
        let segment = frame::tcp(HOST_IP, PEER_IP, &header, b"");
        let quoted = Ipv4::new(HOST_IP, PEER_IP, protocol::TCP).with(&segment);
        let length = quoted.len().min(26 + usize::from(kind >> 4));
        let mut message = frame::icmp(&IcmpMessage::Other { kind: kind & 15 }, &quoted[..length]);
        message[1] = code;
        message[6..8].copy_from_slice(&word.to_be_bytes());
        message[2..4].fill(0);
        let sum = frame::checksum(&[&message]);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        self.give_packet(&Ipv4::new(PEER_IP, HOST_IP, protocol::ICMP).with(&message));
    }

    pub(super) fn echo_request(&mut self) {
        let len = usize::from(self.input.next_u16()) % (self.rig.mtu() as usize - 27);
        let mut ip = Ipv4::new(PEER_IP, HOST_IP, protocol::ICMP);
        let shape = self.input.next();
        ip.src = SOURCES[usize::from(shape & 7)];
        ip.dst = DESTINATIONS[usize::from(shape >> 3 & 7)];
        let message = frame::icmp(&IcmpMessage::EchoRequest { id: 1, seq: 2 }, &vec![shape; len]);
        self.give_packet(&ip.with(&message));
    }

    pub(super) fn arp(&mut self) {
        let shape = self.input.next();
        let arp = ArpPacket {
            operation: if shape & 1 == 0 { ArpOperation::Request } else { ArpOperation::Reply },
            sender_mac: self.input.pick(&[PEER_MAC, HOST_MAC, STATIONS[3], STATIONS[1]]),
            sender_ip: self.input.pick(&SOURCES),
            target_mac: HOST_MAC,
            target_ip: self.input.pick(&DESTINATIONS),
        };
        let dst = STATIONS[usize::from(shape >> 1 & 3)];
        self.give(rig::arp_frame(dst, &arp));
    }

    /// Delivers the last frame again, unchanged or with bits changed, with its checksums corrected
    /// or not.
    pub(super) fn again(&mut self) {
        let mut frame = std::mem::take(&mut self.last);
        let (at, change) = (self.input.next_u16(), self.input.next());
        if frame.is_empty() {
            return;
        }
        let at = usize::from(at) % frame.len();
        if change & 64 != 0 {
            frame.truncate(at);
        } else {
            frame[at] ^= change & 63;
        }
        let ip = self.link_header_bytes() / 14 * 14;
        if change & 128 != 0 && frame.len() > ip {
            self.taint();
            fix_checksums(&mut frame[ip..]);
        }
        self.give(frame);
    }

    fn taint(&mut self) {
        self.tainted.extend(self.connections.iter().map(|connection| connection.peer.tuple.remote));
    }
}

/// Corrects the checksums of an IP packet, as far as it still is one.
fn fix_checksums(packet: &mut [u8]) {
    frame::fix_ipv4_checksum(packet);
    let header_len = packet.first().map_or(0, |first| usize::from(first & 15) * 4);
    if header_len < 20 || packet.len() < header_len || packet[9] != protocol::TCP {
        return;
    }
    let address =
        |at: usize| Ipv4Addr::new(packet[at], packet[at + 1], packet[at + 2], packet[at + 3]);
    let (src, dst) = (address(12), address(16));
    let total_len = usize::from(u16::from_be_bytes([packet[2], packet[3]])).min(packet.len());
    if let Some(segment) = packet.get_mut(header_len..total_len) {
        frame::fix_tcp_checksum(src, dst, segment);
    }
}
