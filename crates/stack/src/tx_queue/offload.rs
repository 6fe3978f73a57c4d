//! What a device does not do itself is done last, in front of it: superframes are cut up, checksums completed.
//!
//! Above: `tx_queue`. Linux: `validate_xmit_skb`, `skb_checksum_help`, `tbf_segment`.
//!
//! Behind the discipline, so that what waits there is one packet for many segments.

use pkt::{Packet, PacketList, TxChecksum};

use crate::{
    counters::Counter,
    cx::Cx,
    device::{BIG_TCP_BYTES_MAX, Capabilities},
    gso::{self, Checksums},
    ip::header::ETHER_TYPE_IPV4,
    route::Dst,
};

/// What of it a device does.
#[derive(Debug)]
pub(super) struct Offload {
    /// Bytes in front of the IP header.
    pub(super) link_header: usize,
    tx_checksum: bool,
    /// Largest superframe in bytes of IP packet, of either family; 0 when it takes none.
    tso_v4: usize,
    tso_v6: usize,
    /// Everything: no packet need be looked at.
    all: bool,
}

impl Offload {
    pub(super) fn new(caps: &Capabilities) -> Self {
        let tso = |v4| Dst::tso_limit(caps, v4) as usize;
        let (tso_v4, tso_v6) = (tso(true), tso(false));
        Self {
            link_header: caps.link.header_bytes(),
            tx_checksum: caps.tx_checksum,
            tso_v4,
            tso_v6,
            all: caps.tx_checksum && tso_v4.min(tso_v6) >= BIG_TCP_BYTES_MAX as usize,
        }
    }

    /// Makes every packet of `list` one that the device takes.
    #[inline]
    pub(super) fn fit_list(&self, cx: &mut Cx, list: &mut PacketList) {
        if self.all {
            return;
        }
        let mut packets = core::mem::take(list);
        while let Some(packet) = packets.pop_front() {
            self.fit(cx, packet, list);
        }
    }

    /// Appends `packet` to `list` as the device takes it.
    pub(super) fn fit(&self, cx: &mut Cx, packet: Packet, list: &mut PacketList) {
        if packet.meta().gso.segs <= 1 || self.takes(&packet) {
            return self.push(cx, packet, list);
        }
        gso::segment(cx, packet, self.link_header, self.checksums(), list);
    }

    /// Who completes the checksums of what is cut.
    pub(super) const fn checksums(&self) -> Checksums {
        if self.tx_checksum { Checksums::Owed } else { Checksums::Completed }
    }

    /// Whether the device cuts a superframe itself.
    fn takes(&self, packet: &Packet) -> bool {
        let max = match packet.meta().protocol {
            ETHER_TYPE_IPV4 => self.tso_v4,
            _ => self.tso_v6,
        };
        packet.len() - self.link_header <= max
    }

    fn push(&self, cx: &Cx, mut packet: Packet, list: &mut PacketList) {
        if !self.tx_checksum {
            complete_checksum(cx, &mut packet, self.link_header);
        }
        list.push_back(packet);
    }
}

/// Fills in a partial checksum: `skb_checksum_help`.
fn complete_checksum(cx: &Cx, packet: &mut Packet, link_header: usize) {
    let TxChecksum::Partial { start, offset } = packet.meta().tx_checksum else { return };
    let start = link_header + usize::from(start);
    let field = start + usize::from(offset);
    let sum = match packet.sum_of_pieces() {
        Some(payload) => {
            cx.count(Counter::TxChecksumCopied, 1);
            let headers = packet.linear().len() - start;
            let mut sum = packet.checksum(start, headers);
            sum.combine(payload, headers);
            sum
        }
        None => packet.checksum(start, packet.len() - start),
    };
    packet.linear_mut()[field..field + 2].copy_from_slice(&sum.finish().to_be_bytes());
    packet.meta_mut().tx_checksum = TxChecksum::Done;
    cx.count(Counter::TxChecksumSoftware, 1);
}
