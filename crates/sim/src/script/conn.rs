//! One connection of a script: converts the script's relative numbers to those on the wire, and
//! back.
//!
//! The peer's sequence numbers and timestamps are on the wire as written. The host chooses its own:
//! its first SYN defines relative number 0. A timestamp of the host is a label, which the first
//! segment that carries it binds to a value.
//!
//! A payload byte is a function of its place in the stream, so that every byte is compared and no
//! script has to name it.

use std::{collections::BTreeMap, net::Ipv4Addr};

use super::{
    ast::{Cookie, IpSpec, Opt, TcpSpec, flag},
    packet::Segment,
};
use crate::apps::Pattern;

/// Content of both streams.
const STREAM: Pattern = Pattern(0x5eed);

/// Returns bytes of a stream from `offset` on. Offsets are modulo 2^32, as sequence numbers are.
pub(super) fn stream_bytes(offset: u32, len: usize) -> Vec<u8> {
    let mut at = offset;
    let mut bytes = Vec::with_capacity(len);
    for _ in 0..len {
        bytes.push(STREAM.byte(u64::from(at)));
        at = at.wrapping_add(1);
    }
    bytes
}

/// See the module head.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) host_ip: Ipv4Addr,
    pub(super) host_port: u16,
    pub(super) peer_ip: Ipv4Addr,
    pub(super) peer_port: u16,
    /// Difference between the host's numbers on the wire and its relative numbers.
    shift: Option<u32>,
    /// The next SYN of the host begins a new connection.
    fresh: bool,
    /// Relative number of the first byte of each stream.
    host_start: u32,
    peer_start: u32,
    /// Timestamps of the host: from the label to the value on the wire.
    labels: BTreeMap<u32, u32>,
    first_label: Option<(u32, u32)>,
}

impl Conn {
    pub(super) const fn new(host: (Ipv4Addr, u16), peer: (Ipv4Addr, u16)) -> Self {
        Self {
            host_ip: host.0,
            host_port: host.1,
            peer_ip: peer.0,
            peer_port: peer.1,
            shift: None,
            fresh: true,
            host_start: 1,
            peer_start: 1,
            labels: BTreeMap::new(),
            first_label: None,
        }
    }

    /// Converts a number of the host to the one on the wire.
    pub(super) fn to_wire(&self, seq: u32) -> u32 {
        seq.wrapping_add(self.shift.unwrap_or(0))
    }

    fn to_script(&self, seq: u32) -> u32 {
        seq.wrapping_sub(self.shift.unwrap_or(0))
    }

    fn label_to_wire(&self, label: u32) -> u32 {
        let linear = || {
            let (first, wire) = self.first_label.unwrap_or((label, label));
            wire.wrapping_add(label.wrapping_sub(first))
        };
        self.labels.get(&label).copied().unwrap_or_else(linear)
    }

    fn wire_to_label(&self, wire: u32) -> u32 {
        let known = self.labels.iter().find(|(_, known)| **known == wire);
        let (first, first_wire) = self.first_label.unwrap_or((wire, wire));
        known.map_or_else(|| first.wrapping_add(wire.wrapping_sub(first_wire)), |(label, _)| *label)
    }

    /// Builds the segment that the peer sends for `spec`.
    pub(super) fn inbound(
        &mut self,
        ip: &IpSpec,
        spec: &TcpSpec,
        cookies: &BTreeMap<String, Vec<u8>>,
    ) -> Segment {
        if spec.flags & (flag::SYN | flag::ACK) == flag::SYN {
            self.fresh = true;
        }
        if spec.flags & flag::SYN != 0 {
            self.peer_start = spec.seq.wrapping_add(1);
        }
        let first = spec.seq.wrapping_add(u32::from(spec.flags & flag::SYN != 0));
        let options = spec.options.clone().unwrap_or_default().into_iter();
        Segment {
            src: ip.src.unwrap_or(self.peer_ip),
            dst: self.host_ip,
            tos: ip.tos.unwrap_or(0),
            ttl: ip.ttl.unwrap_or(64),
            src_port: self.peer_port,
            dst_port: self.host_port,
            seq: spec.seq,
            ack: spec.ack.map_or(0, |ack| self.to_wire(ack)),
            flags: spec.flags,
            window: spec.window.unwrap_or(0),
            urgent: spec.urgent,
            options: options.map(|option| self.inbound_option(option, cookies)).collect(),
            payload: stream_bytes(first.wrapping_sub(self.peer_start), spec.len as usize),
        }
    }

    fn inbound_option(&self, option: Opt, cookies: &BTreeMap<String, Vec<u8>>) -> Opt {
        match option {
            Opt::Sack(blocks) => {
                let wire = |(left, right)| (self.to_wire(left), self.to_wire(right));
                Opt::Sack(blocks.into_iter().map(wire).collect())
            }
            Opt::Timestamps(value, echo) if echo != 0 => {
                Opt::Timestamps(value, self.label_to_wire(echo))
            }
            Opt::Cookie { experimental, cookie: Cookie::Named(name) } => {
                let cookie = cookies.get(&name).cloned().map_or(Cookie::Named(name), Cookie::Bytes);
                Opt::Cookie { experimental, cookie }
            }
            other => other,
        }
    }

    /// Takes from a segment of the host the values that `spec` leaves open: relative number 0, and
    /// the values of labels.
    pub(super) fn learn(&mut self, spec: &TcpSpec, segment: &Segment) {
        if segment.has(flag::SYN) && spec.flags & flag::SYN != 0 && self.fresh {
            self.fresh = false;
            self.shift = Some(segment.seq.wrapping_sub(spec.seq));
            self.host_start = spec.seq.wrapping_add(1);
        }
        for option in spec.options.iter().flatten() {
            if let Opt::Timestamps(label, _) = option
                && let Some(wire) = timestamp_of(segment)
            {
                self.labels.entry(*label).or_insert(wire);
                self.first_label.get_or_insert((*label, wire));
            }
        }
    }

    /// Returns the number of steps between a timestamp and the value of its label.
    pub(super) fn clock_error(&self, label: u32, wire: u32) -> u32 {
        let Some((first, first_wire)) = self.first_label else { return 0 };
        wire.wrapping_sub(first_wire).abs_diff(label.wrapping_sub(first))
    }

    /// Converts a segment to the script's numbers.
    pub(super) fn relative(&self, segment: &Segment) -> Segment {
        let options = segment.options.iter().map(|option| match option {
            Opt::Timestamps(wire, echo) => Opt::Timestamps(self.wire_to_label(*wire), *echo),
            other => other.clone(),
        });
        Segment {
            seq: self.to_script(segment.seq),
            options: options.collect(),
            payload: segment.payload.clone(),
            ..*segment
        }
    }

    /// Converts an inbound segment to the script's numbers, for the trace.
    pub(super) fn relative_inbound(&self, segment: &Segment) -> Segment {
        let mut shown = segment.clone();
        shown.ack = self.to_script(segment.ack);
        for option in &mut shown.options {
            match option {
                Opt::Sack(blocks) => {
                    for (left, right) in blocks {
                        (*left, *right) = (self.to_script(*left), self.to_script(*right));
                    }
                }
                Opt::Timestamps(_, echo) => *echo = self.wire_to_label(*echo),
                _ => {}
            }
        }
        shown
    }

    /// Whether the payload of a segment with relative numbers has the bytes of its place in the
    /// stream.
    pub(super) fn is_payload_right(&self, relative: &Segment) -> bool {
        let first = relative.seq.wrapping_add(u32::from(relative.has(flag::SYN)));
        let offset = first.wrapping_sub(self.host_start);
        relative.payload == stream_bytes(offset, relative.payload.len())
    }

    /// Whether a segment of the host has the ports of this connection.
    pub(super) fn is_of(&self, segment: &Segment) -> bool {
        (segment.src_port, segment.dst_port) == (self.host_port, self.peer_port)
    }
}

/// TSval of a segment.
pub(super) fn timestamp_of(segment: &Segment) -> Option<u32> {
    segment.options.iter().find_map(|option| match option {
        Opt::Timestamps(value, _) => Some(*value),
        _ => None,
    })
}
