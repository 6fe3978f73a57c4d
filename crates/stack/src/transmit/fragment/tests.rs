use std::{
    net::{IpAddr, Ipv6Addr},
    vec::Vec,
};

use pkt::{Ecn, EtherType};
use proptest::prelude::*;

use super::*;
use crate::{cx::Memory, header::ip::IPV6_HEADER_LEN};

fn context() -> Cx {
    Cx::replay(&Memory::new(8 << 20), 1)
}

/// Returns a UDP packet whose payload counts up.
fn packet(cx: &mut Cx, payload_len: usize, dont: bool) -> (Packet, Vec<u8>) {
    let payload: Vec<u8> = (0..payload_len).map(|at| (at % 251).to_le_bytes()[0]).collect();
    let mut packet = cx.pool.alloc().expect("the pool has memory");
    assert_eq!(packet.append(&mut cx.pool, &payload), payload_len);
    let header = IpHeader {
        src: IpAddr::V4([10, 0, 0, 1].into()),
        dst: IpAddr::V4([10, 0, 0, 2].into()),
        protocol: protocol::UDP,
        hop_limit: 9,
        traffic_class: 0x48 | Ecn::Ect0.bits(),
        flow_label: 0,
        id: 0x1234,
        fragment: Fragment { dont, ..Fragment::default() },
        header_len: 20,
        payload_len: u32::try_from(payload_len).expect("the length is small"),
    };
    header.emit::<true>(packet.push(IPV4_HEADER_LEN));
    packet.meta_mut().protocol = EtherType::IPV4;
    packet.meta_mut().priority = 5;
    (packet, payload)
}

proptest! {
    #[test]
    fn fragments_fit_the_mtu_and_hold_the_payload(len in 0_usize..20_000, mtu in 68_u32..9000) {
        let cx = &mut context();
        let (packet, payload) = packet(cx, len, false);
        prop_assume!(packet.len() > mtu as usize);
        let fragments = fragment(cx, packet, mtu).map_err(|(reason, _)| reason).expect("the packet may be fragmented");
        let count = fragments.len();
        let mut joined = Vec::new();
        for (index, part) in fragments.into_iter().enumerate() {
            prop_assert!(part.len() <= mtu as usize);
            let header = ip::parse::<true>(part.linear(), part.len()).expect("the stack wrote the header");
            prop_assert_eq!(header.total_len(), part.len());
            prop_assert_eq!(usize::from(header.fragment.offset), joined.len());
            prop_assert_eq!(header.fragment.more, index + 1 < count);
            prop_assert_eq!((header.id, header.hop_limit, header.traffic_class), (0x1234, 9, 0x4a));
            prop_assert_eq!(part.meta().priority, 5);
            joined.extend_from_slice(&part.to_vec()[IPV4_HEADER_LEN..]);
            cx.pool.free(part);
        }
        prop_assert_eq!(joined, payload);
        // No more fragments than necessary.
        let part_max = (mtu as usize - IPV4_HEADER_LEN) & !7;
        prop_assert!(count == len.div_ceil(part_max));
    }
}

#[test]
fn a_packet_with_df_is_returned() {
    let cx = &mut context();
    let (packet, _) = packet(cx, 3000, true);
    let (reason, packet) = fragment(cx, packet, 1500).expect_err("the packet has DF");
    assert_eq!((reason, packet.len()), (DropReason::PacketTooBig, 3020));
    cx.pool.free(packet);
}

#[test]
fn a_partial_checksum_is_completed_before_the_cut() {
    let cx = &mut context();
    let (mut packet, mut payload) = packet(cx, 3000, false);
    payload[6..8].fill(0);
    // The checksum field of UDP, here without the sum of a pseudo-header.
    let at = IPV4_HEADER_LEN + 6;
    assert!(packet.require_linear(at + 2));
    packet.linear_mut()[at..at + 2].fill(0);
    packet.meta_mut().tx_checksum = TxChecksum::Partial { start: 20, offset: 6 };
    let fragments = fragment(cx, packet, 1500)
        .map_err(|(reason, _)| reason)
        .expect("the packet may be fragmented");
    let first = fragments.into_iter().next().expect("there is a fragment").to_vec();
    let mut sum = pkt::Sum::default();
    sum.add_bytes(&payload);
    assert_eq!(first[at..at + 2], sum.finish().to_be_bytes());
}

proptest! {
    #[test]
    fn fragments_of_ipv6_fit_the_mtu_and_hold_the_payload(len in 0_usize..65_536, mtu in 1280_u32..9000) {
        let cx = &mut Cx::replay(&Memory::new(16 << 20), 1);
        let payload: Vec<u8> = (0..len).map(|at| (at % 251).to_le_bytes()[0]).collect();
        let mut packet = cx.pool.alloc().expect("the pool has memory");
        prop_assert_eq!(packet.append(&mut cx.pool, &payload), len);
        let ip = |tail| IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, tail));
        let header = IpHeader {
            src: ip(1),
            dst: ip(2),
            protocol: protocol::UDP,
            hop_limit: 9,
            traffic_class: 0x48,
            flow_label: 0x1_2345,
            id: 0,
            fragment: Fragment::default(),
            header_len: 40,
            payload_len: u32::try_from(len).expect("the length is small"),
        };
        header.emit::<false>(packet.push(IPV6_HEADER_LEN));
        packet.meta_mut().protocol = EtherType::IPV6;
        prop_assume!(packet.len() > mtu as usize);
        let fragments = fragment(cx, packet, mtu).map_err(|(reason, _)| reason).expect("the packet may be fragmented");
        let count = fragments.len();
        let mut joined = Vec::new();
        let mut ids = Vec::new();
        for (index, part) in fragments.into_iter().enumerate() {
            prop_assert!(part.len() <= mtu as usize);
            let bytes = part.to_vec();
            let header = ip::parse::<false>(&bytes, bytes.len()).expect("the stack wrote the header");
            prop_assert_eq!((header.total_len(), header.hop_limit), (part.len(), 9));
            prop_assert_eq!((header.traffic_class, header.flow_label), (0x48, 0x1_2345));
            let chain = extension::read(header.protocol, &bytes[IPV6_HEADER_LEN..]).expect("the stack wrote the chain");
            prop_assert_eq!((chain.protocol, chain.len), (protocol::UDP, 8));
            prop_assert_eq!(usize::from(chain.fragment.offset), joined.len());
            prop_assert_eq!(chain.fragment.more, index + 1 < count);
            ids.push(bytes[44..48].to_vec());
            joined.extend_from_slice(&bytes[48..]);
            cx.pool.free(part);
        }
        prop_assert_eq!(joined, payload);
        prop_assert!(ids.iter().all(|id| *id == ids[0] && *id != [0; 4]));
        let part_max = (mtu as usize - 48) & !7;
        prop_assert!(count == len.div_ceil(part_max));
    }
}
