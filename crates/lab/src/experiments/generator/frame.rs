//! Headers of the generator's frames, and of the frames that it reads.

use quietline::device::{Cx, Packet};

use super::HEADER_BYTES;

pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const PSH: u8 = 8;
pub(super) const ACK: u8 = 16;

/// Port of the first connection; connections are told apart by their port.
const FIRST_PORT: u16 = 10_000;
/// Port of the host.
const HOST_PORT: u16 = 80;
/// Window of the generator, and its shift.
const WINDOW: u16 = 65_535;
const SHIFT: u8 = 8;

/// A segment to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) flow: u8,
    /// Whether the host has an address for each connection.
    pub(super) separate: bool,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    pub(super) payload: u32,
    pub(super) timestamp: u32,
    pub(super) echo: u32,
}

impl Segment {
    /// Length in sequence space.
    pub(super) fn length(&self) -> u32 {
        self.payload + u32::from(self.flags & FIN != 0) + u32::from(self.flags & SYN != 0)
    }

    /// Makes the packet; `None` without memory. Its payload is what the memory held before.
    pub(super) fn packet(&self, cx: &mut Cx) -> Option<Packet> {
        let mut header = [0; 60];
        let bytes = self.write(&mut header);
        let len = bytes + self.payload as usize;
        let mut slot = cx.pool.rx_slot(len)?;
        slot.write(&header[..bytes]);
        Some(slot.finish(&mut cx.pool, len))
    }

    /// Writes the headers and returns their length.
    fn write(&self, to: &mut [u8; 60]) -> usize {
        let is_syn = self.flags & SYN != 0;
        let bytes = if is_syn { 60 } else { HEADER_BYTES as usize };
        #[expect(clippy::cast_possible_truncation, reason = "a frame has 1,500 bytes")]
        let total = (bytes as u32 + self.payload) as u16;
        to[0] = 0x45;
        to[2..4].copy_from_slice(&total.to_be_bytes());
        // Don't fragment.
        to[6] = 0x40;
        to[8] = 64;
        to[9] = 6;
        to[12..16].copy_from_slice(&[10, 0, 0, 1]);
        to[16..20].copy_from_slice(&[10, 0, 0, if self.separate { 2 + self.flow } else { 2 }]);
        let sum: u32 = to[..20]
            .chunks_exact(2)
            .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        #[expect(clippy::cast_possible_truncation, reason = "folded to 16 bits")]
        let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
        to[10..12].copy_from_slice(&sum.to_be_bytes());
        to[20..22].copy_from_slice(&(FIRST_PORT + u16::from(self.flow)).to_be_bytes());
        to[22..24].copy_from_slice(&HOST_PORT.to_be_bytes());
        to[24..28].copy_from_slice(&self.seq.to_be_bytes());
        to[28..32].copy_from_slice(&(if is_syn { 0 } else { self.ack }).to_be_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "at most 10 words")]
        let offset = ((bytes - 20) / 4) as u8;
        to[32] = offset << 4;
        to[33] = self.flags;
        to[34..36].copy_from_slice(&WINDOW.to_be_bytes());
        let at = if is_syn {
            // Largest segment of 1,460 bytes, window scale.
            to[40..48].copy_from_slice(&[2, 4, 0x05, 0xb4, 1, 3, 3, SHIFT]);
            48
        } else {
            40
        };
        to[at..at + 4].copy_from_slice(&[1, 1, 8, 10]);
        to[at + 4..at + 8].copy_from_slice(&self.timestamp.to_be_bytes());
        to[at + 8..at + 12].copy_from_slice(&(if is_syn { 0 } else { self.echo }).to_be_bytes());
        bytes
    }
}

/// A segment of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) flow: usize,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    /// As in the header.
    pub(super) window: u32,
    pub(super) payload: u32,
    /// Shift of the window, of a SYN.
    pub(super) scale: u32,
    pub(super) has_timestamp: bool,
    pub(super) timestamp: u32,
}

impl Reply {
    /// Reads the headers; `None` if it is no TCP segment of a connection.
    pub(super) fn read(packet: &Packet) -> Option<Self> {
        let mut bytes = [0; 80];
        let copied = packet.copy_to(0, &mut bytes);
        Self::parse(&bytes[..copied], packet.len())
    }

    fn parse(bytes: &[u8], len: usize) -> Option<Self> {
        let (version, header) = (bytes.first()? >> 4, usize::from(bytes[0] & 15) * 4);
        if version != 4 || *bytes.get(9)? != 6 {
            return None;
        }
        let tcp = bytes.get(header..)?;
        let word = |at: usize| Some(u32::from_be_bytes(tcp.get(at..at + 4)?.try_into().ok()?));
        let half = |at: usize| Some(u16::from_be_bytes(tcp.get(at..at + 2)?.try_into().ok()?));
        let offset = usize::from(tcp.get(12)? >> 4) * 4;
        let mut reply = Self {
            flow: usize::from(half(2)?.checked_sub(FIRST_PORT)?),
            seq: word(4)?,
            ack: word(8)?,
            flags: *tcp.get(13)?,
            window: u32::from(half(14)?),
            payload: u32::try_from(len.checked_sub(header + offset)?).ok()?,
            scale: 0,
            has_timestamp: false,
            timestamp: 0,
        };
        let mut options = tcp.get(20..offset)?;
        while let Some((&kind, rest)) = options.split_first() {
            if kind == 0 {
                break;
            }
            if kind == 1 {
                options = rest;
                continue;
            }
            let length = usize::from(*rest.first()?);
            let option = options.get(2..length)?;
            match kind {
                3 => reply.scale = u32::from(*option.first()?),
                8 => {
                    reply.has_timestamp = true;
                    reply.timestamp = u32::from_be_bytes(option.get(..4)?.try_into().ok()?);
                }
                _ => {}
            }
            options = options.get(length.max(2)..)?;
        }
        Some(reply)
    }

    /// The byte after the segment, in sequence space.
    pub(super) fn end(&self) -> u32 {
        let flags = u32::from(self.flags & FIN != 0) + u32::from(self.flags & SYN != 0);
        self.seq.wrapping_add(self.payload).wrapping_add(flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_read_as_it_was_written() {
        let segment = Segment {
            flow: 3,
            separate: true,
            seq: 7,
            ack: 9,
            flags: FIN | ACK,
            payload: 0,
            timestamp: 11,
            echo: 13,
        };
        let mut bytes = [0; 60];
        let length = segment.write(&mut bytes);
        assert_eq!((length, bytes[19]), (52, 5));
        // As if the host had sent it: source and destination change places.
        let ports: Vec<u8> = [&bytes[22..24], &bytes[20..22]].concat();
        bytes[20..24].copy_from_slice(&ports);
        let reply = Reply::parse(&bytes[..length], length + 100).expect("a segment");
        assert_eq!((reply.flow, reply.seq, reply.ack, reply.payload), (3, 7, 9, 100));
        assert_eq!((reply.window, reply.has_timestamp, reply.timestamp), (65_535, true, 11));
        assert_eq!(reply.end(), 108);
    }

    #[test]
    fn what_is_no_segment_is_not_read() {
        assert_eq!(Reply::parse(&[], 0), None);
        assert_eq!(Reply::parse(&[0x60; 60], 60), None);
        for length in 0..52 {
            let mut bytes = [0; 60];
            let segment = Segment {
                flow: 0,
                separate: false,
                seq: 0,
                ack: 0,
                flags: ACK,
                payload: 0,
                timestamp: 0,
                echo: 0,
            };
            segment.write(&mut bytes);
            assert_eq!(Reply::parse(&bytes[..length], length), None, "{length}");
        }
    }
}
