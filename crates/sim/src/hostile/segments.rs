//! TCP segments of the peer, each modified from the one that would come next.

use arrayvec::ArrayVec;
use stack::header::ip::protocol;
use tcp::{Flags, Options, SegmentHeader, SeqNum};

use super::{Attempt, PEER_PATTERN, PORT, Play};
use crate::{
    Peer,
    frame::{self, Ipv4},
    rig::{HOST_IP, PEER_IP},
};

impl Play<'_> {
    /// Returns a connection that the input selects, if there is one.
    pub(super) fn connection(&mut self, at: u8) -> Option<&mut Attempt> {
        let count = self.connections.len();
        self.connections.get_mut(usize::from(at) % count.max(1))
    }

    /// Connects the peer to the listener, and finishes the handshake if the host answers.
    pub(super) fn open(&mut self) {
        let (port, options) = (2000 + u16::from(self.input.next() & 7), self.input.next());
        let mut peer = Peer::new(PORT, port);
        self.connections.retain(|connection| connection.peer.tuple != peer.tuple);
        // A later incarnation of the same port uses higher sequence numbers.
        peer.snd_nxt += u32::try_from(self.rig.delivered()).unwrap_or(0) << 17;
        let options = Options {
            mss: (options & 1 != 0).then(|| u16::from(options) << 3),
            window_scale: (options & 2 != 0).then_some(options >> 4),
            sack_permitted: options & 4 != 0,
            timestamps: (options & 8 != 0).then_some((peer.ts_value, 0)),
            ..Options::default()
        };
        let syn = SegmentHeader { options, ..peer.header(Flags::SYN) };
        let packet = peer.packet(&syn, b"");
        peer.snd_nxt += 1;
        self.connections.push(Attempt::new(peer));
        self.hold = 0;
        self.give_packet(&packet);
        self.look();
        let Some(connection) = self.connections.last() else { return };
        if connection.irs.is_some() {
            let ack = connection.peer.header(Flags::ACK);
            let packet = connection.peer.packet(&ack, b"");
            self.give_packet(&packet);
        }
    }

    pub(super) fn segment(&mut self) {
        let at = self.input.next();
        let flags = Flags::from_bits_retain(self.input.next());
        let (seq, ack) = (self.input.next(), self.input.next());
        let (len, window, options) = (self.input.next(), self.input.next(), self.input.next());
        let (seq, ack) = (distance(&mut self.input, seq), distance(&mut self.input, ack));
        let options_bytes = if options & 7 == 5 { self.input.counted() } else { &[] };
        let oob_inline = self.oob_inline;
        let Some(connection) = self.connection(at) else { return };
        let base = if len & 0x80 == 0 { connection.peer.snd_nxt } else { connection.peer.snd_una };
        let synchronizing = flags.contains(Flags::SYN) && connection.irs.is_none();
        let mut header = SegmentHeader {
            seq: if synchronizing { connection.peer.snd_nxt } else { base + seq },
            ack: connection.peer.rcv_nxt + ack,
            flags: if synchronizing { flags - Flags::FIN } else { flags },
            window: u16::from(window) << 8 | u16::from(window),
            urgent: u16::from(ack.to_be_bytes()[3]),
            ..connection.peer.header(flags)
        };
        bend_options(&mut header, options, &connection.peer);
        let len = if synchronizing { 0 } else { payload_len(len) };
        // A SYN occupies the number before the first byte.
        let payload = connection.payload(header.seq + u32::from(header.has(Flags::SYN)), len);
        // The position of this data in the stream is not known yet, or some of its bytes are not
        // read in line.
        let unplaced = connection.irs.is_none() && len > 0;
        let skipped = flags.contains(Flags::URG) && !oob_inline;
        let proves_nothing = (unplaced || skipped).then_some(connection.peer.tuple.remote);
        let mut segment = frame::tcp(PEER_IP, HOST_IP, &header, &payload);
        insert_options(&mut segment, options_bytes);
        frame::fix_tcp_checksum(PEER_IP, HOST_IP, &mut segment);
        connection.count_sent(&header, len);
        self.tainted.extend(proves_nothing);
        self.give_packet(&Ipv4::new(PEER_IP, HOST_IP, protocol::TCP).with(&segment));
    }
}

impl Attempt {
    /// Advances the peer's stream, and records segments that contradict it.
    fn count_sent(&mut self, header: &SegmentHeader, len: u32) {
        // These segments are no part of the stream: none of them moves RCV.NXT in a synchronized
        // state. In SYN-RECEIVED the SYN-ACK of a simultaneous open does, with data that an honest
        // peer sends behind it.
        let odd = header.has(Flags::SYN) || !header.has(Flags::ACK);
        self.contradicts |= header.has(Flags::SYN) && self.irs.is_some() && len > 0;
        if header.has(Flags::RST) || odd && self.irs.is_some() {
            return;
        }
        let end = header.seq + header.segment_len(len);
        if header.seq == self.peer.snd_nxt && !self.ended {
            self.peer.snd_nxt = end;
            self.ended = header.has(Flags::FIN);
        } else {
            let other_end = header.has(Flags::FIN) && !(self.ended && end == self.peer.snd_nxt);
            self.contradicts |= other_end || end.gt(self.peer.snd_nxt);
        }
    }

    /// Returns the peer's stream from `seq` on. Bytes before the first byte of the stream are never
    /// read.
    pub(super) fn payload(&self, seq: SeqNum, len: u32) -> Vec<u8> {
        let first = self.irs.unwrap_or(seq) + 1;
        let offsets = (0..len).map(|at| (seq + at - first).cast_unsigned());
        offsets.map(|offset| PEER_PATTERN.byte(u64::from(offset))).collect()
    }
}

/// Decodes a distance in sequence numbers: most codes are small distances.
fn distance(input: &mut super::Input<'_>, code: u8) -> u32 {
    let small = u32::from(code & 31);
    match code >> 5 {
        0 => 0,
        1 => small + 1,
        2 => (small + 1).wrapping_neg(),
        3 => small * 536,
        4 => (small * 536).wrapping_neg(),
        5 => 65_535 - 16 + small,
        6 => (1 << 31) - 16 + small,
        _ => input.next_u32(),
    }
}

fn payload_len(code: u8) -> u32 {
    match code & 0x7f {
        0..64 => 0,
        code @ 64..96 => u32::from(code - 63),
        code => u32::from(code - 95) * 45,
    }
}

fn bend_options(header: &mut SegmentHeader, code: u8, peer: &Peer) {
    let amount = u32::from(code >> 3);
    let options = &mut header.options;
    match code & 7 {
        1 => options.timestamps = Some((peer.ts_value.wrapping_sub(amount), amount)),
        2 => options.timestamps = Some((peer.ts_value + amount, peer.ts_recent.unwrap_or(0))),
        3 => options.mss = Some(u16::from(code)),
        4 => {
            // From the newest data backwards, each block about half as long as the gap behind it.
            options.sack_blocks = ArrayVec::new();
            let mut left = peer.rcv_nxt - amount * 300;
            for _ in 0..=amount % 3 {
                options.sack_blocks.push((left, left + amount * 100));
                left -= amount * 300;
            }
        }
        6 => options.timestamps = None,
        7 => {
            options.mss = Some(1460);
            options.window_scale = u8::try_from(amount).ok();
            options.timestamps = Some((peer.ts_value, 0));
        }
        _ => {}
    }
}

/// Inserts raw option bytes behind those of the header, as many as fit.
fn insert_options(segment: &mut Vec<u8>, bytes: &[u8]) {
    let header_len = usize::from(segment[12] >> 4) * 4;
    let mut added = bytes[..bytes.len().min(60 - header_len)].to_vec();
    added.resize(added.len().next_multiple_of(4), 1);
    let longer = header_len + added.len();
    segment.splice(header_len..header_len, added);
    segment[12] = u8::try_from(longer / 4).expect("at most 15") << 4;
}
