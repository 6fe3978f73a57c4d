//! `virtio_net_hdr`: the 12 bytes that describe checksum and segmentation of a frame across a tap
//! or tun.
//!
//! Above: `tun::receive` and `tun::transmit`. Linux: include/uapi/linux/virtio_net.h,
//! include/linux/virtio_net.h. Virtio 1.2 §5.1.6.
//!
//! ```text
//!   0      1         2..4     4..6      6..8        8..10        10..12
//!   flags  gso_type  hdr_len  gso_size  csum_start  csum_offset  num_buffers
//! ```
//!
//! The fields have the byte order of the machine, the driver's default. Their offsets count from
//! the first byte of the frame; packet metadata counts from the network header, so that it is the
//! same in every layer above the link.
//!
//! Every field of the header is checked against the frame before it is used: a header that does not
//! fit the frame gives [`DropReason::VnetHeader`], never a panic and never metadata that points
//! outside of the packet.
//!
//! Not here: UDP fragmentation (not offered to the kernel, so it cannot arrive), the receive hash.

use pkt::{DropReason, Gso, GsoKind, Packet, PacketMeta, RxChecksum, TxChecksum};

/// Bytes of the header with its `num_buffers` field, the size set by TUNSETVNETHDRSZ.
pub const VNET_HDR_LEN: usize = 12;

/// The checksum is partial.
const F_NEEDS_CSUM: u8 = 1;
/// The checksum was verified before.
const F_DATA_VALID: u8 = 2;

const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// Datagrams of UDP over either IP version (`UDP_SEGMENT`).
const GSO_UDP_L4: u8 = 5;
/// Added to a type: the superframe begins with CWR, which only its first segment may keep
/// (RFC 3168 §6.1.2).
const GSO_ECN: u8 = 0x80;

/// Offset of the checksum in the TCP header.
const TCP_CSUM_OFFSET: u16 = 16;
/// Offset of the checksum in the UDP header, and the bytes of this header.
const UDP_CSUM_OFFSET: u16 = 6;
const UDP_HEADER_LEN: usize = 8;
/// Offset of the data offset in the TCP header.
const TCP_DATA_OFFSET: usize = 12;
/// Bytes of a TCP header without options.
const TCP_HEADER_LEN_MIN: usize = 20;

/// The header's fields, as numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VnetHdr {
    /// `VIRTIO_NET_HDR_F_*`.
    pub flags: u8,
    /// `VIRTIO_NET_HDR_GSO_*`.
    pub gso_type: u8,
    /// Bytes of link, network and transport header together. A hint.
    pub hdr_len: u16,
    /// Payload bytes of each segment.
    pub gso_size: u16,
    /// Offset of the first byte of the checksum's range.
    pub csum_start: u16,
    /// Offset of the checksum field from `csum_start`.
    pub csum_offset: u16,
    /// Used by merged receive buffers only; zero here.
    pub num_buffers: u16,
}

impl VnetHdr {
    /// Reads the fields.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; VNET_HDR_LEN]) -> Self {
        let [flags, gso_type, h0, h1, g0, g1, s0, s1, o0, o1, n0, n1] = bytes;
        Self {
            flags,
            gso_type,
            hdr_len: u16::from_ne_bytes([h0, h1]),
            gso_size: u16::from_ne_bytes([g0, g1]),
            csum_start: u16::from_ne_bytes([s0, s1]),
            csum_offset: u16::from_ne_bytes([o0, o1]),
            num_buffers: u16::from_ne_bytes([n0, n1]),
        }
    }

    /// Writes the fields.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; VNET_HDR_LEN] {
        let [h0, h1] = self.hdr_len.to_ne_bytes();
        let [g0, g1] = self.gso_size.to_ne_bytes();
        let [s0, s1] = self.csum_start.to_ne_bytes();
        let [o0, o1] = self.csum_offset.to_ne_bytes();
        let [n0, n1] = self.num_buffers.to_ne_bytes();
        [self.flags, self.gso_type, h0, h1, g0, g1, s0, s1, o0, o1, n0, n1]
    }

    /// Converts the header of a received frame into metadata. `frame` begins with `link_header_len`
    /// bytes of link header.
    ///
    /// # Errors
    /// [`DropReason::VnetHeader`] if a field does not fit the frame.
    pub fn apply_to(self, frame: &mut Packet, link_header_len: u16) -> Result<(), DropReason> {
        if self.flags == 0 && self.gso_type == GSO_NONE {
            return Ok(());
        }
        let rx_checksum = self.rx_checksum(frame.len(), link_header_len)?;
        let gso = self.gso(frame, link_header_len)?;
        let meta = frame.meta_mut();
        meta.rx_checksum = rx_checksum;
        meta.gso = gso;
        Ok(())
    }

    fn rx_checksum(self, frame_len: usize, link_header_len: u16) -> Result<RxChecksum, DropReason> {
        if self.flags & F_NEEDS_CSUM != 0 {
            let sum_end = usize::from(self.csum_start) + usize::from(self.csum_offset) + 2;
            if self.csum_start < link_header_len || sum_end > frame_len {
                return Err(DropReason::VnetHeader);
            }
            let start = self.csum_start - link_header_len;
            Ok(RxChecksum::Partial { start, offset: self.csum_offset })
        } else if self.flags & F_DATA_VALID != 0 {
            Ok(RxChecksum::Unnecessary)
        } else {
            Ok(RxChecksum::None)
        }
    }

    fn gso(self, frame: &Packet, link_header_len: u16) -> Result<Gso, DropReason> {
        if self.gso_type == GSO_NONE {
            return Ok(Gso::default());
        }
        let (kind, versions, csum_offset) = match self.gso_type & !GSO_ECN {
            GSO_TCPV4 => (GsoKind::TcpV4, [4, 4], TCP_CSUM_OFFSET),
            GSO_TCPV6 => (GsoKind::TcpV6, [6, 6], TCP_CSUM_OFFSET),
            GSO_UDP_L4 if self.gso_type == GSO_UDP_L4 => (GsoKind::Udp, [4, 6], UDP_CSUM_OFFSET),
            // Other types are not offered to the kernel, and ECN without a type of TCP is invalid.
            _ => return Err(DropReason::VnetHeader),
        };
        // The checksum of a superframe is always partial.
        let is_partial = self.flags & F_NEEDS_CSUM != 0 && self.csum_offset == csum_offset;
        let mut first = [0];
        let copied = frame.copy_to(usize::from(link_header_len), &mut first);
        let is_ip = copied == 1 && versions.contains(&(first[0] >> 4));
        if !is_partial || self.gso_size == 0 || !is_ip {
            return Err(DropReason::VnetHeader);
        }
        let header_len = header_end(kind, frame, usize::from(self.csum_start))?;
        let payload = frame.len() - header_len;
        let segs = payload.div_ceil(usize::from(self.gso_size)).max(1);
        let segs = u16::try_from(segs).map_err(|_| DropReason::VnetHeader)?;
        Ok(Gso {
            kind,
            ecn: self.gso_type & GSO_ECN != 0,
            fixed_id: false,
            size: self.gso_size,
            segs,
        })
    }

    /// Builds the header that describes the partial checksum and the segmentation of `frame`, which
    /// begins with `link_header_len` bytes of link header.
    ///
    /// # Errors
    /// [`DropReason::VnetHeader`] if the packet's metadata does not fit the packet; the kernel
    /// would refuse it with EINVAL.
    pub fn of(frame: &Packet, link_header_len: u16) -> Result<Self, DropReason> {
        let PacketMeta { tx_checksum, gso, .. } = *frame.meta();
        let TxChecksum::Partial { start, offset } = tx_checksum else {
            // A superframe without a partial checksum cannot be segmented.
            let plain = gso.kind == GsoKind::None || gso.size == 0;
            return if plain { Ok(Self::default()) } else { Err(DropReason::VnetHeader) };
        };
        let csum_start = start.checked_add(link_header_len).ok_or(DropReason::VnetHeader)?;
        if usize::from(csum_start) + usize::from(offset) + 2 > frame.len() {
            return Err(DropReason::VnetHeader);
        }
        let partial =
            Self { flags: F_NEEDS_CSUM, csum_start, csum_offset: offset, ..Self::default() };
        let gso_type = match gso.kind {
            GsoKind::None => return Ok(partial),
            GsoKind::TcpV4 => GSO_TCPV4,
            GsoKind::TcpV6 => GSO_TCPV6,
            GsoKind::Udp => GSO_UDP_L4,
        };
        let header_len = header_end(gso.kind, frame, usize::from(csum_start))?;
        if gso.size == 0 || frame.len() - header_len <= usize::from(gso.size) {
            // One segment is not a superframe.
            return Ok(partial);
        }
        let hdr_len = u16::try_from(header_len).map_err(|_| DropReason::VnetHeader)?;
        let gso_type =
            if gso.ecn && gso.kind != GsoKind::Udp { gso_type | GSO_ECN } else { gso_type };
        Ok(Self { gso_type, hdr_len, gso_size: gso.size, ..partial })
    }
}

/// Returns the end of the transport header that begins at `start`.
fn header_end(kind: GsoKind, frame: &Packet, start: usize) -> Result<usize, DropReason> {
    if kind != GsoKind::Udp {
        return tcp_header_end(frame, start);
    }
    let end = start + UDP_HEADER_LEN;
    if end > frame.len() { Err(DropReason::VnetHeader) } else { Ok(end) }
}

/// Returns the end of the TCP header that begins at `tcp_start`, read from the frame, because
/// `hdr_len` is only a hint.
fn tcp_header_end(frame: &Packet, tcp_start: usize) -> Result<usize, DropReason> {
    let mut data_offset = [0];
    let copied = frame.copy_to(tcp_start + TCP_DATA_OFFSET, &mut data_offset);
    let header_len = usize::from(data_offset[0] >> 4) * 4;
    let end = tcp_start + header_len;
    if copied != 1 || header_len < TCP_HEADER_LEN_MIN || end > frame.len() {
        return Err(DropReason::VnetHeader);
    }
    Ok(end)
}

#[cfg(test)]
mod tests;
