//! The header of a segment: its fields, parsing and writing.
//!
//! RFC 9293 §3.1; Linux: struct tcphdr, tcp_v4_fill_cb().
//!
//! ```text
//!  0                   1                   2                   3
//!  |        source port            |      destination port         |   0
//!  |                        sequence number                        |   4
//!  |                     acknowledgment number                     |   8
//!  | offset| rsvd  |C E U A P R S F|            window             |  12
//!  |           checksum            |        urgent pointer         |  16
//!  |                  options, 4 x (offset - 5) bytes              |  20
//! ```
//!
//! Only [`SegmentHeader`] reads these bytes. After [`SegmentHeader::parse`] the engine works with
//! the parsed values, and no index can be out of range. `parse` checks only the layout. The crate
//! `stack` verifies the checksum before, and `input` checks the values after it.
//!
//! Not here: the checksum's arithmetic (crate pkt), and AE, the ninth flag, of accurate ECN. AE is
//! one of the reserved bits, which are ignored when parsed and written as zero.

use core::fmt;

use bitflags::bitflags;
use pkt::DropReason;

use crate::wire::{
    option::{OPTIONS_BYTES_MAX, Options, TIMESTAMPS_BYTES, TIMESTAMPS_WORD},
    seq::SeqNum,
};

/// Bytes of a header without options.
pub const HEADER_BYTES_MIN: usize = 20;

/// Bytes of the longest header, whose data offset is 15.
pub const HEADER_BYTES_MAX: usize = HEADER_BYTES_MIN + OPTIONS_BYTES_MAX;

/// Offset of the checksum from the start of the header.
pub const CHECKSUM_OFFSET: usize = 16;

bitflags! {
    /// The control bits, in the order of byte 13.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Flags: u8 {
        /// The sender has no more data.
        const FIN = 0x01;
        /// Synchronize: the sequence number is an initial one.
        const SYN = 0x02;
        /// Reset the connection.
        const RST = 0x04;
        /// Push: deliver received data to the application.
        const PSH = 0x08;
        /// The acknowledgment number is valid.
        const ACK = 0x10;
        /// The urgent pointer is valid.
        const URG = 0x20;
        /// ECN echo (RFC 3168).
        const ECE = 0x40;
        /// Congestion window reduced (RFC 3168).
        const CWR = 0x80;
    }
}

/// The header of one segment, parsed or to be written.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SegmentHeader {
    /// Sender's port.
    pub src_port: u16,
    /// Receiver's port.
    pub dst_port: u16,
    /// SEG.SEQ: number of the first byte of data, or of the SYN.
    pub seq: SeqNum,
    /// SEG.ACK: number of the next byte that the sender expects; valid only with [`Flags::ACK`].
    pub ack: SeqNum,
    /// Control bits.
    pub flags: Flags,
    /// SEG.WND as in the header, before scaling.
    pub window: u16,
    /// SEG.UP, the urgent pointer: valid only with [`Flags::URG`].
    pub urgent: u16,
    /// Bytes of the parsed header. [`emit`](Self::emit) ignores this field and derives the length
    /// from the options.
    pub header_len: u8,
    /// Options.
    pub options: Options,
}

impl SegmentHeader {
    /// Parses a header at the front of `bytes`, which must hold the whole header.
    ///
    /// # Errors
    ///
    /// [`DropReason::TcpHeader`] when `bytes` is shorter than the header, or the data offset is
    /// below 5. Malformed options are no error (see [`Options`]).
    pub fn parse(bytes: &[u8]) -> Result<Self, DropReason> {
        let mut header = Self::default();
        header.read(bytes)?;
        Ok(header)
    }

    /// Does the same as [`parse`](Self::parse), but fills `self`, which must equal `default()`.
    /// This is faster, because `parse` copies the header to return it, and the copy has to wait
    /// until the stores to the fields have completed.
    ///
    /// # Errors
    ///
    /// As [`parse`](Self::parse); `self` is then unchanged.
    #[inline]
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), DropReason> {
        let fixed: &[u8; HEADER_BYTES_MIN] = bytes.first_chunk().ok_or(DropReason::TcpHeader)?;
        let header_len = (fixed[12] >> 4) * 4;
        let options =
            bytes.get(HEADER_BYTES_MIN..usize::from(header_len)).ok_or(DropReason::TcpHeader)?;
        self.src_port = u16::from_be_bytes([fixed[0], fixed[1]]);
        self.dst_port = u16::from_be_bytes([fixed[2], fixed[3]]);
        self.seq = SeqNum(u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]));
        self.ack = SeqNum(u32::from_be_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]));
        self.flags = Flags::from_bits_retain(fixed[13]);
        self.window = u16::from_be_bytes([fixed[14], fixed[15]]);
        self.urgent = u16::from_be_bytes([fixed[18], fixed[19]]);
        self.header_len = header_len;
        self.options.read(options, self.flags.contains(Flags::SYN));
        Ok(())
    }

    /// Returns source and destination port, for a lookup before the header is parsed.
    #[must_use]
    pub fn ports(bytes: &[u8]) -> Option<(u16, u16)> {
        let &[a, b, c, d] = bytes.first_chunk()?;
        Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
    }

    /// Returns the number of bytes that [`SegmentHeader::emit`] writes.
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        HEADER_BYTES_MIN + self.options.encoded_len()
    }

    /// Writes the header at the front of `bytes`, with a checksum of zero, and returns its length.
    ///
    /// # Panics
    ///
    /// If `bytes` is shorter than [`SegmentHeader::header_bytes`].
    pub fn emit(&self, bytes: &mut [u8]) -> usize {
        let (fixed, rest) = bytes.split_at_mut(HEADER_BYTES_MIN);
        let header_len = HEADER_BYTES_MIN + self.options.emit(rest);
        let data_offset = nibble(header_len / 4);
        fixed[0..2].copy_from_slice(&self.src_port.to_be_bytes());
        fixed[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        fixed[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        fixed[8..12].copy_from_slice(&self.ack.0.to_be_bytes());
        fixed[12] = data_offset << 4;
        fixed[13] = self.flags.bits();
        fixed[14..16].copy_from_slice(&self.window.to_be_bytes());
        fixed[16..18].fill(0);
        fixed[18..20].copy_from_slice(&self.urgent.to_be_bytes());
        header_len
    }

    /// Returns SEG.LEN: the sequence numbers that the segment occupies with `payload_len` bytes of
    /// data, SYN and FIN included.
    #[must_use]
    pub const fn segment_len(&self, payload_len: u32) -> u32 {
        payload_len
            + self.flags.contains(Flags::SYN) as u32
            + self.flags.contains(Flags::FIN) as u32
    }

    /// Whether all control bits of `flag` are set.
    #[inline]
    #[must_use]
    pub const fn has(&self, flag: Flags) -> bool {
        self.flags.contains(flag)
    }
}

/// A header without an urgent pointer and with the timestamps as its only option, which is the
/// header of most segments of an established connection. Its bytes are those that
/// [`SegmentHeader::emit`] writes, with the checksum filled in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainHeader {
    /// Source and destination port.
    pub(crate) ports: (u16, u16),
    pub(crate) seq: SeqNum,
    pub(crate) ack: SeqNum,
    pub(crate) flags: Flags,
    pub(crate) window: u16,
    /// TSval and TSecr.
    pub(crate) timestamps: (u32, u32),
}

impl PlainHeader {
    /// Length of the header.
    pub(crate) const BYTES: usize = HEADER_BYTES_MIN + TIMESTAMPS_BYTES;

    /// Returns the bytes of the header.
    #[inline]
    pub(crate) fn bytes(&self, checksum: u16) -> [u8; Self::BYTES] {
        let Self { ports, seq, ack, flags, window, timestamps } = *self;
        let offset = nibble(Self::BYTES / 4) << 4;
        let words = [
            u32::from(ports.0) << 16 | u32::from(ports.1),
            seq.0,
            ack.0,
            u32::from(offset) << 24 | u32::from(flags.bits()) << 16 | u32::from(window),
            u32::from(checksum) << 16,
            u32::from_be_bytes(TIMESTAMPS_WORD),
            timestamps.0,
            timestamps.1,
        ];
        let mut bytes = [0; Self::BYTES];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }
}

/// Converts a number below 16 to `u8`.
#[expect(clippy::cast_possible_truncation, reason = "a data offset is at most 15")]
const fn nibble(number: usize) -> u8 {
    debug_assert!(number < 16);
    number as u8
}

/// Stores a finished or partial checksum in a written header.
///
/// # Panics
///
/// If `header` is shorter than 18 bytes.
pub fn write_checksum(header: &mut [u8], checksum: u16) {
    header[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 2].copy_from_slice(&checksum.to_be_bytes());
}

impl fmt::Display for Flags {
    /// Prints one letter per flag, as tcpdump does: `[S.]`, `[P.]`, `[R]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LETTERS: [(Flags, char); 8] = [
            (Flags::FIN, 'F'),
            (Flags::SYN, 'S'),
            (Flags::RST, 'R'),
            (Flags::PSH, 'P'),
            (Flags::URG, 'U'),
            (Flags::ECE, 'E'),
            (Flags::CWR, 'W'),
            (Flags::ACK, '.'),
        ];
        f.write_str("[")?;
        for (flag, letter) in LETTERS {
            if self.contains(flag) {
                fmt::Write::write_char(f, letter)?;
            }
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for SegmentHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { src_port, dst_port, seq, ack, flags, window, .. } = self;
        write!(f, "{src_port} > {dst_port} {flags} seq {seq} ack {ack} win {window}")
    }
}

#[cfg(test)]
mod tests;
