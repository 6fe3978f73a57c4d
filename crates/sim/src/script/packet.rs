//! Packets as bytes: builds those of the peer from a script, and parses those of the host.
//!
//! Options keep the order of the wire, padding included: a script names the place of every NOP.
//!
//! Not here: relative numbers (`conn`), comparing (`compare`).

use std::{
    fmt::{self, Write as _},
    net::Ipv4Addr,
};

use stack::header::ip::protocol;

use super::ast::{Cookie, Opt, flag};
use crate::frame;

const IP_HEADER_LEN: usize = 20;
const TCP_HEADER_LEN: usize = 20;

/// Fast Open's number among the experiments (RFC 7413 §4.1.1).
const FAST_OPEN_NUMBER: [u8; 2] = [0xf9, 0x89];

mod kind {
    pub(super) const FAST_OPEN: u8 = 34;
    pub(super) const EXPERIMENT: u8 = 254;
}

/// A TCP segment with the fields of its IP header that scripts name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) src: Ipv4Addr,
    pub(super) dst: Ipv4Addr,
    pub(super) tos: u8,
    pub(super) ttl: u8,
    pub(super) src_port: u16,
    pub(super) dst_port: u16,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u16,
    pub(super) window: u16,
    pub(super) urgent: u16,
    pub(super) options: Vec<Opt>,
    pub(super) payload: Vec<u8>,
}

impl Segment {
    /// Builds the IP packet. `bad_checksum` makes the TCP checksum wrong.
    ///
    /// # Errors
    /// When the options do not fit a header.
    pub(super) fn bytes(&self, bad_checksum: bool) -> Result<Vec<u8>, String> {
        let mut options = Vec::new();
        for option in &self.options {
            write_option(&mut options, option)?;
        }
        options.resize(options.len().next_multiple_of(4), 0);
        if options.len() > 40 {
            return Err(format!("{} bytes of options do not fit a header", options.len()));
        }
        let offset = u8::try_from((TCP_HEADER_LEN + options.len()) / 4).expect("at most 15");
        let [ae, low] = self.flags.to_be_bytes();
        let mut tcp = Vec::with_capacity(TCP_HEADER_LEN + options.len() + self.payload.len());
        tcp.extend_from_slice(&self.src_port.to_be_bytes());
        tcp.extend_from_slice(&self.dst_port.to_be_bytes());
        tcp.extend_from_slice(&self.seq.to_be_bytes());
        tcp.extend_from_slice(&self.ack.to_be_bytes());
        tcp.extend_from_slice(&[offset << 4 | ae, low]);
        tcp.extend_from_slice(&self.window.to_be_bytes());
        tcp.extend_from_slice(&[0, 0]);
        tcp.extend_from_slice(&self.urgent.to_be_bytes());
        tcp.extend_from_slice(&options);
        tcp.extend_from_slice(&self.payload);
        frame::fix_tcp_checksum(self.src, self.dst, &mut tcp);
        if bad_checksum {
            tcp[16] ^= 0x55;
        }
        Ok(ip_packet(self.src, self.dst, protocol::TCP, self.tos, self.ttl, &tcp))
    }

    /// Parses and validates a packet of the host.
    ///
    /// # Errors
    /// The reason for which no host may send the packet.
    pub(super) fn read(packet: &[u8], mtu: u32) -> Result<Self, String> {
        let header_len = packet.first().map_or(0, |first| usize::from(first & 15) * 4);
        if packet.len() < IP_HEADER_LEN + TCP_HEADER_LEN || header_len != IP_HEADER_LEN {
            return Err(format!("{} bytes are no packet: {packet:02x?}", packet.len()));
        }
        let (ip, tcp) = packet.split_at(header_len);
        let total_len = usize::from(be16(&ip[2..]));
        if ip[0] >> 4 != 4 || total_len != packet.len() || packet.len() > mtu as usize {
            return Err(format!("an IP packet of {} bytes, MTU {mtu}: {ip:02x?}", packet.len()));
        }
        if frame::checksum(&[ip]) != 0 {
            return Err(format!("IP checksum: {ip:02x?}"));
        }
        if ip[9] != protocol::TCP {
            return Err(format!("protocol {}", ip[9]));
        }
        let (src, dst) = (address(&ip[12..]), address(&ip[16..]));
        let mut checked = tcp.to_vec();
        frame::fix_tcp_checksum(src, dst, &mut checked);
        if checked != tcp {
            return Err(format!("TCP checksum: {:02x?}", &tcp[..TCP_HEADER_LEN]));
        }
        let offset = usize::from(tcp[12] >> 4) * 4;
        let Some(options) = tcp.get(TCP_HEADER_LEN..offset) else {
            return Err(format!("data offset {offset}"));
        };
        Ok(Self {
            src,
            dst,
            tos: ip[1],
            ttl: ip[8],
            src_port: be16(tcp),
            dst_port: be16(&tcp[2..]),
            seq: be32(&tcp[4..]),
            ack: be32(&tcp[8..]),
            flags: be16(&tcp[12..]) & 0x1ff,
            window: be16(&tcp[14..]),
            urgent: be16(&tcp[18..]),
            options: read_options(options)?,
            payload: tcp[offset..].to_vec(),
        })
    }

    pub(super) const fn has(&self, bit: u16) -> bool {
        self.flags & bit != 0
    }

    /// Payload bytes, as a difference of sequence numbers.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.payload.len()).expect("a packet")
    }
}

/// An IP packet without options.
pub(super) fn ip_packet(
    src: Ipv4Addr,
    dst: Ipv4Addr,
    protocol: u8,
    tos: u8,
    ttl: u8,
    payload: &[u8],
) -> Vec<u8> {
    let len = u16::try_from(IP_HEADER_LEN + payload.len()).expect("at most 65,535 bytes");
    let mut bytes = vec![0x45, tos];
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes.extend_from_slice(&[0, 0, 0x40, 0, ttl, protocol, 0, 0]);
    bytes.extend_from_slice(&src.octets());
    bytes.extend_from_slice(&dst.octets());
    bytes.extend_from_slice(payload);
    frame::fix_ipv4_checksum(&mut bytes);
    bytes
}

/// Builds an ICMP error about a segment of the host. It quotes the IP header and the eight bytes
/// after it.
pub(super) fn icmp_packet(
    (src, quoted_src, quoted_dst): (Ipv4Addr, Ipv4Addr, Ipv4Addr),
    (kind, code, mtu): (u8, u8, u16),
    (src_port, dst_port, seq): (u16, u16, u32),
) -> Vec<u8> {
    let mut start = Vec::new();
    start.extend_from_slice(&src_port.to_be_bytes());
    start.extend_from_slice(&dst_port.to_be_bytes());
    start.extend_from_slice(&seq.to_be_bytes());
    let [high, low] = mtu.to_be_bytes();
    let mut message = vec![kind, code, 0, 0, 0, 0, high, low];
    message.extend_from_slice(&ip_packet(quoted_src, quoted_dst, protocol::TCP, 0, 63, &start));
    let sum = frame::checksum(&[&message]);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    ip_packet(src, quoted_src, protocol::ICMP, 0, 64, &message)
}

fn write_option(bytes: &mut Vec<u8>, option: &Opt) -> Result<(), String> {
    let (kind, value) = match option {
        Opt::Nop | Opt::Eol => {
            bytes.push(u8::from(*option == Opt::Nop));
            return Ok(());
        }
        Opt::Raw(raw) => {
            bytes.extend_from_slice(raw);
            return Ok(());
        }
        Opt::Mss(mss) => (2, mss.to_be_bytes().to_vec()),
        Opt::WindowScale(shift) => (3, vec![*shift]),
        Opt::SackOk => (4, Vec::new()),
        Opt::Sack(blocks) => {
            let words = blocks.iter().flat_map(|&(left, right)| [left, right]);
            (5, words.flat_map(u32::to_be_bytes).collect())
        }
        Opt::Timestamps(value, echo) => (8, [value.to_be_bytes(), echo.to_be_bytes()].concat()),
        Opt::Cookie { experimental: false, cookie: Cookie::Bytes(cookie) } => {
            (kind::FAST_OPEN, cookie.clone())
        }
        Opt::Cookie { experimental: true, cookie: Cookie::Bytes(cookie) } => {
            (kind::EXPERIMENT, [&FAST_OPEN_NUMBER[..], cookie].concat())
        }
        Opt::Cookie { cookie: Cookie::Named(name), .. } => {
            return Err(format!("${name} has not been seen"));
        }
        Opt::Other(kind, value) => (*kind, value.clone()),
    };
    bytes.push(kind);
    bytes.push(u8::try_from(value.len() + 2).map_err(|_| String::from("a long option"))?);
    bytes.extend_from_slice(&value);
    Ok(())
}

fn read_options(mut rest: &[u8]) -> Result<Vec<Opt>, String> {
    let mut options = Vec::new();
    while let Some((&kind, after)) = rest.split_first() {
        if kind < 2 {
            options.push(if kind == 0 { Opt::Eol } else { Opt::Nop });
            rest = after;
            continue;
        }
        let len = after.first().map_or(0, |&len| usize::from(len));
        if len < 2 || len > rest.len() {
            return Err(format!("malformed options: {rest:02x?}"));
        }
        options.push(read_option(kind, &rest[2..len])?);
        rest = &rest[len..];
    }
    Ok(options)
}

fn read_option(kind: u8, value: &[u8]) -> Result<Opt, String> {
    Ok(match (kind, value.len()) {
        (2, 2) => Opt::Mss(be16(value)),
        (3, 1) => Opt::WindowScale(value[0]),
        (4, 0) => Opt::SackOk,
        (5, len) if len > 0 && len.is_multiple_of(8) => {
            Opt::Sack(value.chunks(8).map(|block| (be32(block), be32(&block[4..]))).collect())
        }
        (8, 8) => Opt::Timestamps(be32(value), be32(&value[4..])),
        (2..=5 | 8, len) => return Err(format!("option {kind} with {len} bytes")),
        (kind::FAST_OPEN, _) => {
            Opt::Cookie { experimental: false, cookie: Cookie::Bytes(value.to_vec()) }
        }
        (kind::EXPERIMENT, 2..) if value[..2] == FAST_OPEN_NUMBER => {
            Opt::Cookie { experimental: true, cookie: Cookie::Bytes(value[2..].to_vec()) }
        }
        _ => Opt::Other(kind, value.to_vec()),
    })
}

fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn address(bytes: &[u8]) -> Ipv4Addr {
    Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3])
}

/// The flags as letters of a script.
pub(super) fn show_flags(bits: u16) -> String {
    let letters: String =
        flag::LETTERS.iter().filter(|(_, bit)| bits & bit != 0).map(|(letter, _)| letter).collect();
    if letters.is_empty() { String::from("-") } else { letters }
}

impl fmt::Display for Segment {
    /// Writes the segment as a line of a script, with its numbers unchanged.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.seq.wrapping_add(self.len());
        write!(f, "{} {}:{end}({})", show_flags(self.flags), self.seq, self.len())?;
        if self.has(flag::ACK) {
            write!(f, " ack {}", self.ack)?;
        }
        write!(f, " win {}", self.window)?;
        if self.has(flag::URG) {
            write!(f, " urg {}", self.urgent)?;
        }
        if !self.options.is_empty() {
            write!(f, " <{}>", show_options(&self.options))?;
        }
        Ok(())
    }
}

/// The options as between the angle brackets of a script.
pub(super) fn show_options(options: &[Opt]) -> String {
    options.iter().map(show_option).collect::<Vec<_>>().join(",")
}

fn show_option(option: &Opt) -> String {
    match option {
        Opt::Nop => String::from("nop"),
        Opt::Eol => String::from("eol"),
        Opt::Mss(mss) => format!("mss {mss}"),
        Opt::WindowScale(shift) => format!("wscale {shift}"),
        Opt::SackOk => String::from("sackOK"),
        Opt::Sack(blocks) => blocks.iter().fold(String::from("sack"), |mut text, (left, right)| {
            let _ = write!(text, " {left}:{right}");
            text
        }),
        Opt::Timestamps(value, echo) => format!("TS val {value} ecr {echo}"),
        Opt::Cookie { experimental, cookie } => {
            let name = if *experimental { "FOEXP" } else { "FO" };
            match cookie {
                Cookie::Bytes(bytes) if bytes.is_empty() => name.to_owned(),
                Cookie::Bytes(bytes) => format!("{name} {}", show_hex(bytes)),
                Cookie::Named(cookie) => format!("{name} ${cookie}"),
            }
        }
        Opt::Other(kind, value) => format!("opt {kind} 0x{}", show_hex(value)),
        Opt::Raw(bytes) => format!("bytes 0x{}", show_hex(bytes)),
    }
}

fn show_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_is_read_again() {
        let segment = Segment {
            src: Ipv4Addr::new(192, 168, 0, 1),
            dst: Ipv4Addr::new(192, 0, 2, 1),
            tos: 2,
            ttl: 64,
            src_port: 8080,
            dst_port: 5001,
            seq: 1000,
            ack: 77,
            flags: flag::PSH | flag::ACK | flag::AE,
            window: 500,
            urgent: 0,
            options: vec![
                Opt::Nop,
                Opt::Nop,
                Opt::Timestamps(1, 2),
                Opt::Sack(vec![(5, 9)]),
                Opt::Nop,
                Opt::Nop,
            ],
            payload: b"hello".to_vec(),
        };
        let bytes = segment.bytes(false).expect("a packet");
        assert_eq!(Segment::read(&bytes, 1500), Ok(segment.clone()));
        assert!(Segment::read(&bytes, 50).is_err());
        assert!(Segment::read(&segment.bytes(true).expect("a packet"), 1500).is_err());
        let text = "PA. 1000:1005(5) ack 77 win 500 <nop,nop,TS val 1 ecr 2,sack 5:9,nop,nop>";
        assert_eq!(segment.to_string(), text);
    }
}
