//! Packets of the peer: valid ones, and edits of them.

use std::net::{Ipv4Addr, Ipv6Addr};

use stack::header::{
    icmp::{IcmpMessage, Unreachable},
    ip::protocol,
    ndp,
};

use super::{GROUP_V4, GROUP_V6, PORTS, Play};
use crate::{
    frame::{self, Ipv4},
    rig::{HOST_IP, HOST_LINK, HOST_V6, PEER_IP, PEER_LINK, PEER_V6},
};

/// Addresses of one packet.
#[derive(Clone, Copy, Debug)]
enum Ends {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

impl Play<'_> {
    /// Delivers bytes of the input as an IP packet.
    pub(super) fn raw_packet(&mut self) {
        let bytes = self.input.counted();
        self.edited = true;
        self.rig.give(bytes);
    }

    fn pick_ends(&mut self) -> Ends {
        let byte = self.input.next();
        if byte & 1 == 0 {
            let dst =
                [HOST_IP, GROUP_V4, Ipv4Addr::new(10, 0, 0, 255), Ipv4Addr::new(224, 0, 0, 1)];
            let src = if byte & 8 == 0 { PEER_IP } else { HOST_IP };
            return Ends::V4(src, dst[usize::from(byte >> 1 & 3)]);
        }
        let dst = [HOST_V6, GROUP_V6, HOST_LINK, ndp::ALL_NODES];
        let src = if byte & 8 == 0 { PEER_V6 } else { PEER_LINK };
        Ends::V6(src, dst[usize::from(byte >> 1 & 3)])
    }

    fn pick_ports(&mut self) -> (u16, u16) {
        (self.input.pick(&PORTS), self.input.pick(&PORTS))
    }

    /// Delivers a transport message in an IP packet, after an edit of one byte if the input asks
    /// for it.
    fn deliver(&mut self, ends: Ends, protocol: u8, message: &[u8], hops: u8) {
        let mut packet = match ends {
            Ends::V4(src, dst) => Ipv4 { ttl: hops, ..Ipv4::new(src, dst, protocol) }.with(message),
            Ends::V6(src, dst) => {
                let mut packet = frame::ipv6(src, dst, protocol, message);
                packet[7] = hops;
                packet
            }
        };
        let edit = self.input.next();
        if edit & 7 == 7 {
            let at = usize::from(self.input.next_u16()) % packet.len();
            packet[at] ^= self.input.next() | 1;
            if edit & 8 == 0 && matches!(ends, Ends::V4(..)) {
                frame::fix_ipv4_checksum(&mut packet);
            }
            self.edited = true;
        }
        self.rig.give(&packet);
    }

    /// Delivers a datagram; over IPv6 perhaps behind a header with options.
    pub(super) fn datagram(&mut self) {
        let (ends, ports) = (self.pick_ends(), self.pick_ports());
        let payload = vec![self.input.next(); usize::from(self.input.next()) * 4];
        let mut datagram = match ends {
            Ends::V4(src, dst) => frame::udp(src, dst, ports, &payload),
            Ends::V6(src, dst) => frame::udp(src, dst, ports, &payload),
        };
        self.payloads.insert(payload);
        match self.input.next() & 7 {
            0 => datagram[6..8].fill(0),
            1 => datagram[5] = datagram[5].wrapping_sub(self.input.next()),
            2 if matches!(ends, Ends::V6(..)) => {
                let header = [protocol::UDP, 0, 1, 4, 0, 0, 0, 0];
                let behind = [&header[..], &datagram].concat();
                return self.deliver(ends, protocol::DESTINATION_OPTIONS, &behind, 64);
            }
            _ => {}
        }
        // A shorter length hides the end of the payload.
        self.edited |=
            usize::from(u16::from_be_bytes([datagram[4], datagram[5]])) != datagram.len();
        self.deliver(ends, protocol::UDP, &datagram, 64);
    }

    /// Delivers an error about a datagram or an echo request that the host may have sent.
    pub(super) fn icmp_error(&mut self) {
        let (byte, ports) = (self.input.next(), self.pick_ports());
        let message = match byte >> 1 & 7 {
            0 => IcmpMessage::Unreachable(Unreachable::Port),
            1 => IcmpMessage::Unreachable(Unreachable::Host),
            2 => IcmpMessage::Unreachable(Unreachable::Other(self.input.next())),
            3 => IcmpMessage::PacketTooBig { mtu: self.input.next_u16().into() },
            4 => IcmpMessage::TimeExceeded { reassembly: false },
            5 => IcmpMessage::ParameterProblem { code: 0, pointer: 6 },
            6 => IcmpMessage::PacketTooBig { mtu: 1280 },
            _ => IcmpMessage::Unreachable(Unreachable::Prohibited),
        };
        let sent = vec![0; usize::from(self.input.next()) * 8];
        let request = IcmpMessage::EchoRequest { id: ports.0, seq: 1 };
        let is_ping = byte & 0x80 != 0;
        if byte & 1 == 0 {
            let (protocol, quoted) = match is_ping {
                true => (protocol::ICMP, frame::icmp(&request, &sent)),
                false => (protocol::UDP, frame::udp(HOST_IP, PEER_IP, ports, &sent)),
            };
            let quoted = Ipv4::new(HOST_IP, PEER_IP, protocol).with(&quoted);
            let message = frame::icmp(&message, &quoted[..28]);
            return self.deliver(Ends::V4(PEER_IP, HOST_IP), protocol::ICMP, &message, 64);
        }
        let (protocol, quoted) = match is_ping {
            true => (protocol::ICMPV6, frame::icmpv6(HOST_V6, PEER_V6, &request, &sent)),
            false => (protocol::UDP, frame::udp(HOST_V6, PEER_V6, ports, &sent)),
        };
        let quoted = frame::ipv6(HOST_V6, PEER_V6, protocol, &quoted);
        let message = frame::icmpv6(PEER_V6, HOST_V6, &message, &quoted[..48]);
        self.deliver(Ends::V6(PEER_V6, HOST_V6), protocol::ICMPV6, &message, 64);
    }

    pub(super) fn echo_reply(&mut self) {
        let ends = self.pick_ends();
        let message = IcmpMessage::EchoReply { id: self.input.pick(&PORTS), seq: 1 };
        let data = self.input.counted();
        let (protocol, message) = match ends {
            Ends::V4(..) => (protocol::ICMP, frame::icmp(&message, data)),
            Ends::V6(src, dst) => (protocol::ICMPV6, frame::icmpv6(src, dst, &message, data)),
        };
        self.deliver(ends, protocol, &message, 64);
    }

    /// Delivers a query of IGMP or MLD about all groups or one of them.
    pub(super) fn membership_query(&mut self) {
        let byte = self.input.next();
        let (code, is_general) = (self.input.next(), byte & 2 == 0);
        let len = usize::from(self.input.next() % 40);
        if byte & 1 == 0 {
            let group = if is_general { Ipv4Addr::UNSPECIFIED } else { GROUP_V4 };
            let dst = if is_general { Ipv4Addr::new(224, 0, 0, 1) } else { GROUP_V4 };
            let mut message = vec![0x11, code, 0, 0];
            message.extend(group.octets());
            message.resize(len.max(4), 0);
            let sum = frame::checksum(&[&message]);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            return self.deliver(Ends::V4(PEER_IP, dst), protocol::IGMP, &message, 1);
        }
        let group = if is_general { Ipv6Addr::UNSPECIFIED } else { GROUP_V6 };
        let dst = if is_general { ndp::ALL_NODES } else { GROUP_V6 };
        let mut message = vec![130, 0, 0, 0, code, 0, 0, 0];
        message.extend(group.octets());
        message.resize(len.max(4), 0);
        let message = frame::with_icmpv6_checksum(PEER_LINK, dst, message);
        let alert = [protocol::ICMPV6, 0, 5, 2, 0, 0, 1, 0];
        let payload = [&alert[..], &message].concat();
        self.deliver(Ends::V6(PEER_LINK, dst), protocol::HOP_BY_HOP, &payload, 1);
    }
}
