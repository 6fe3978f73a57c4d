//! The peer of a [`Rig`]: a TCP that sends only the segments a test asks for.
//!
//! It tracks both streams from the segments of the host, so that a test can send "the next segment"
//! without numbers, and change any number on purpose.
//!
//! Not here: retransmission, windows, any rule of TCP.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use stack::header::ip::protocol;
use tcp::{Flags, FourTuple, Options, SegmentHeader, SeqNum};

use crate::{
    frame::{self, Ipv4, Seen},
    rig::{HOST_IP, HOST_V6, PEER_IP, PEER_V6, Rig},
};

/// One connection, as the peer sees it.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The connection's four-tuple, local address first, as the host sees it.
    pub tuple: FourTuple,
    /// Sequence number of the peer's next byte.
    pub snd_nxt: SeqNum,
    /// Sequence number of the host's next byte.
    pub rcv_nxt: SeqNum,
    /// Last number that the host has acknowledged.
    pub snd_una: SeqNum,
    /// The host's last timestamp, if it sends any.
    pub ts_recent: Option<u32>,
    /// The peer's timestamp clock.
    pub ts_value: u32,
    /// The window that the peer announces, as in the header.
    pub window: u16,
}

impl Peer {
    /// Makes a connection from `peer_port` of the peer to `host_port`; nothing is sent yet.
    #[must_use]
    pub const fn new(host_port: u16, peer_port: u16) -> Self {
        Self::at(PEER_IP, host_port, peer_port)
    }

    /// As [`new`](Self::new), with another address of the peer: one beyond the link, which the
    /// default route reaches.
    #[must_use]
    pub const fn at(peer_ip: Ipv4Addr, host_port: u16, peer_port: u16) -> Self {
        let iss = SeqNum(1_000_000);
        Self {
            tuple: FourTuple::new(
                SocketAddr::new(IpAddr::V4(HOST_IP), host_port),
                SocketAddr::new(IpAddr::V4(peer_ip), peer_port),
            ),
            snd_nxt: iss,
            rcv_nxt: SeqNum(0),
            snd_una: iss,
            ts_recent: None,
            ts_value: 1,
            window: 65_535,
        }
    }

    /// As [`new`](Self::new), over IPv6.
    #[must_use]
    pub const fn new_v6(host_port: u16, peer_port: u16) -> Self {
        let mut peer = Self::new(host_port, peer_port);
        peer.tuple = FourTuple::new(
            SocketAddr::new(IpAddr::V6(HOST_V6), host_port),
            SocketAddr::new(IpAddr::V6(PEER_V6), peer_port),
        );
        peer
    }

    /// Connects to a listener of the host by a handshake with these SYN options.
    ///
    /// # Panics
    /// When the host does not answer with a SYN-ACK.
    pub fn open(rig: &mut Rig, host_port: u16, peer_port: u16, options: Options) -> Self {
        Self::new(host_port, peer_port).opened(rig, options)
    }

    /// Connects to a listener of the host by a handshake with these SYN options.
    ///
    /// # Panics
    /// When the host does not answer with a SYN-ACK.
    #[must_use]
    pub fn opened(self, rig: &mut Rig, options: Options) -> Self {
        let mut peer = self;
        rig.take();
        let syn = SegmentHeader { options, ..peer.header(Flags::SYN) };
        peer.send(rig, &syn, b"");
        let flags = peer.hear(&rig.take());
        assert_eq!(flags, [Flags::SYN | Flags::ACK], "the answer to a SYN");
        peer.send_next(rig, Flags::ACK, b"");
        peer
    }

    /// Returns the header of the next segment.
    #[must_use]
    pub fn header(&self, flags: Flags) -> SegmentHeader {
        let timestamps = self.ts_recent.map(|echo| (self.ts_value, echo));
        SegmentHeader {
            src_port: self.tuple.remote.port(),
            dst_port: self.tuple.local.port(),
            seq: self.snd_nxt,
            ack: if flags.contains(Flags::ACK) { self.rcv_nxt } else { SeqNum(0) },
            flags,
            window: self.window,
            options: Options { timestamps, ..Options::default() },
            ..SegmentHeader::default()
        }
    }

    /// Returns the IP packet of a segment.
    #[must_use]
    pub fn packet(&self, header: &SegmentHeader, payload: &[u8]) -> Vec<u8> {
        let (host, source) = (self.tuple.local.ip(), self.tuple.remote.ip());
        let segment = frame::tcp(source, host, header, payload);
        match (host, source) {
            (IpAddr::V4(host), IpAddr::V4(source)) => {
                Ipv4::new(source, host, protocol::TCP).with(&segment)
            }
            (IpAddr::V6(host), IpAddr::V6(source)) => {
                frame::ipv6(source, host, protocol::TCP, &segment)
            }
            _ => unreachable!("a connection has one family"),
        }
    }

    /// Sends a segment. The stream advances if it is the next one.
    pub fn send(&mut self, rig: &mut Rig, header: &SegmentHeader, payload: &[u8]) {
        rig.give(&self.packet(header, payload));
        if header.seq == self.snd_nxt && !header.has(Flags::RST) {
            let len = u32::try_from(payload.len()).expect("a segment");
            self.snd_nxt += header.segment_len(len);
        }
    }

    /// Sends the next segment.
    pub fn send_next(&mut self, rig: &mut Rig, flags: Flags, payload: &[u8]) {
        let header = self.header(flags);
        self.send(rig, &header, payload);
    }

    /// Reads the segments that the host has sent on this connection, and returns the flags of each.
    pub fn hear(&mut self, seen: &[Seen]) -> Vec<Flags> {
        let mut flags = Vec::new();
        for seen in seen {
            let Seen::Tcp(ip, header, payload) = seen else { continue };
            if ip.dst == self.tuple.remote.ip() && self.note(header, payload.len()) {
                flags.push(header.flags);
            }
        }
        flags
    }

    /// Reads one segment of the host; returns false if it belongs to another connection.
    pub fn note(&mut self, header: &SegmentHeader, payload_len: usize) -> bool {
        let ports = (self.tuple.local.port(), self.tuple.remote.port());
        if (header.src_port, header.dst_port) != ports {
            return false;
        }
        let end = header.seq + header.segment_len(u32::try_from(payload_len).expect("a segment"));
        if header.has(Flags::SYN) || end.gt(self.rcv_nxt) {
            self.rcv_nxt = end;
        }
        if header.has(Flags::ACK) {
            self.snd_una = header.ack;
        }
        if let Some((value, _)) = header.options.timestamps {
            self.ts_recent = Some(value);
        }
        true
    }
}
