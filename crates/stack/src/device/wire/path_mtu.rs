//! A router on the path that passes no packet above a size, and reports the drop or stays silent.
//!
//! Above: `wire`. RFC 1191 §4: the report is ICMP "fragmentation needed" with the MTU of the next
//! hop; older routers leave that field zero, and black holes (RFC 2923 §2.1) send no report. Linux:
//! `ip_forward`, `icmp_send`.
//!
//! The router is at the far end of its direction, so a report arrives after the `delay` of both
//! directions. Their other impairments do not apply to it. The router never fragments: it treats
//! every packet as if DF were set.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pkt::{Gso, Packet, RxChecksum, Sum};

use crate::{
    cx::Cx,
    header::{
        self,
        ethernet::EthernetHeader,
        icmp::{CHECKSUM_OFFSET, IcmpMessage},
        ip::{ETHER_TYPE_IPV4, Fragment, IPV4_HEADER_LEN, IpHeader, protocol, set_segment},
    },
};

/// Source address of the reports, in TEST-NET-1 (RFC 5737), which no host uses.
const ROUTER: [u8; 4] = [192, 0, 2, 1];

/// Bytes of payload quoted in a report: the number that RFC 792 requires.
const QUOTED_PAYLOAD: usize = 8;

const ETHERNET: usize = 14;
const IPV4_HEADER_LEN_MAX: usize = 60;

/// Report sent for a packet that is too big.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooBigReport {
    /// "Fragmentation needed", with the MTU (RFC 1191 §4).
    Mtu,
    /// "Fragmentation needed" without the MTU, as routers older than RFC 1191 send it.
    NoMtu,
    /// No report: a black hole.
    Silent,
}

/// A router that forwards only packets up to a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMtu {
    /// Largest IP packet that passes, in bytes.
    pub bytes: u32,
    /// Report sent for a larger IPv4 packet; a larger IPv6 packet is dropped silently.
    pub report: TooBigReport,
}

/// Current [`PathMtu`] of a direction. It may change while packets are in flight, as routes do.
#[derive(Debug)]
pub(super) struct PathMtuCell {
    /// Bytes in the low half, report in the high half; 0, that is 0 bytes with the report `Mtu`,
    /// means no router. Written by `Wire::set_path_mtu`, read by senders. Relaxed: either value may
    /// apply to a packet sent concurrently.
    packed: AtomicU64,
    /// IP identification of the reports. Relaxed: a counter orders nothing.
    ip_id: AtomicU32,
}

impl PathMtuCell {
    pub(super) fn new(path_mtu: Option<PathMtu>) -> Self {
        let cell = Self { packed: AtomicU64::new(0), ip_id: AtomicU32::new(0) };
        cell.set(path_mtu);
        cell
    }

    pub(super) fn set(&self, path_mtu: Option<PathMtu>) {
        let packed = path_mtu.map_or(0, |PathMtu { bytes, report }| {
            let report: u64 = match report {
                TooBigReport::Mtu => 0,
                TooBigReport::NoMtu => 1,
                TooBigReport::Silent => 2,
            };
            report << 32 | u64::from(bytes)
        });
        self.packed.store(packed, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn load(&self) -> Option<PathMtu> {
        let packed = self.packed.load(Ordering::Relaxed);
        if packed == 0 {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "the low half")]
        let bytes = packed as u32;
        let report = match packed >> 32 {
            0 => TooBigReport::Mtu,
            1 => TooBigReport::NoMtu,
            _ => TooBigReport::Silent,
        };
        Some(PathMtu { bytes, report })
    }

    /// Builds the frame that reports the drop to the sender of `packet`; `None` if the router is
    /// silent, the packet is not IPv4, or no memory is left.
    pub(super) fn report(&self, cx: &mut Cx, packet: &Packet, path: PathMtu) -> Option<Packet> {
        let mtu = match path.report {
            TooBigReport::Mtu => path.bytes,
            TooBigReport::NoMtu => 0,
            TooBigReport::Silent => return None,
        };
        let mut frame = [0; ETHERNET + IPV4_HEADER_LEN_MAX + QUOTED_PAYLOAD];
        let copied = packet.copy_to(0, &mut frame);
        let (link, ip) = frame[..copied].split_at_checked(ETHERNET)?;
        let ethernet = EthernetHeader::parse(link).ok()?;
        let header_len = match ip.first() {
            Some(first) if first >> 4 == 4 => usize::from(first & 0x0f) * 4,
            _ => return None,
        };
        let mut quote = ip.get(..header_len + QUOTED_PAYLOAD)?.to_vec();
        let ip_payload = u16::try_from(segment_bytes(packet) - header_len).ok()?;
        set_segment::<true>(&mut quote[..header_len], ip_payload, 0);
        let to = quote[12..16].first_chunk::<4>().copied()?;
        let mut message = IcmpMessage::PacketTooBig { mtu }.header_bytes::<true>().to_vec();
        message.extend_from_slice(&quote);
        let mut sum = Sum::default();
        sum.add_bytes(&message);
        message[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 2].copy_from_slice(&sum.finish().to_be_bytes());
        let mut report = cx.pool.alloc_from(&message)?;
        #[expect(clippy::cast_possible_truncation, reason = "the identification wraps")]
        let id = self.ip_id.fetch_add(1, Ordering::Relaxed) as u16;
        let header = IpHeader {
            src: ROUTER.into(),
            dst: to.into(),
            protocol: protocol::ICMP,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            id,
            fragment: Fragment::default(),
            header_len: 0,
            payload_len: u32::try_from(message.len()).ok()?,
        };
        header.emit::<true>(report.push(IPV4_HEADER_LEN));
        let back = EthernetHeader::new(ethernet.src, ethernet.dst, ETHER_TYPE_IPV4);
        back.emit(report.push(ETHERNET));
        let meta = report.meta_mut();
        meta.protocol = ETHER_TYPE_IPV4;
        meta.rx_checksum = RxChecksum::None;
        meta.gso = Gso::default();
        Some(report)
    }
}

impl PathMtu {
    /// Whether the router forwards the packet. For a superframe (a packet of several segments), the
    /// size of a segment decides.
    pub(super) fn carries(&self, packet: &Packet) -> bool {
        segment_bytes(packet) <= self.bytes as usize
    }
}

/// Returns the bytes of the IP packet, or of the largest segment of a superframe.
fn segment_bytes(packet: &Packet) -> usize {
    let gso = packet.meta().gso;
    if gso.segs > 1 {
        header::header_bytes(packet, ETHERNET) + usize::from(gso.size)
    } else {
        packet.len() - ETHERNET
    }
}
