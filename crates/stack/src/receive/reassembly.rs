//! Reassembly: joins the fragments of a datagram, and reports datagrams that stay incomplete.
//!
//! Above: `ip_input`, which passes fragments for this host. Below: the table of fragments
//! (`socket::net::fragments`), which decides. RFC 791 §3.2, RFC 792, RFC 1122 §3.3.2; Linux:
//! `ip_defrag`, `ip_frag_reasm`, `ip_expire`.
//!
//! A datagram is joined by copying: the payload of the fragments is appended to the first one, so
//! that the result has few page slices whatever the number of fragments.
//!
//! Not here: IPv6's fragment header.

use pkt::{DropReason, Ecn, Gso, Packet, RxChecksum};

use super::icmp_input;
use crate::{
    base::{counters::Counter, ids::CoreId},
    cx::Cx,
    header::{
        icmp::IcmpMessage,
        ip::{self, IpHeader},
    },
    socket::{
        core_sockets::TimerEntry,
        net::{
            Net,
            fragments::{DatagramKey, Effect, Ended, FragmentLimits, Place, Whole},
        },
        rx::Rx,
    },
};

/// Takes a fragment, still with its IP header. Returns the datagram that it completes.
///
/// # Errors
/// The fragment with the reason to drop it.
pub(super) fn input<const V4: bool>(
    rx: &mut Rx<'_, '_>,
    header: &IpHeader,
    packet: Packet,
) -> Result<Option<(IpHeader, Packet)>, (DropReason, Packet)> {
    let (net, cx) = (rx.net, &mut *rx.cx);
    cx.count(Counter::IpReasmReqds, 1);
    let key = DatagramKey {
        src: header.src,
        dst: header.dst,
        id: header.id.into(),
        protocol: if V4 { header.protocol } else { 0 },
    };
    let place = Place {
        offset: header.fragment.offset,
        more: header.fragment.more,
        header_len: header.header_len,
        ecn: Ecn::from_traffic_class(header.traffic_class),
        dont: header.fragment.dont,
    };
    let limits = limits(cx);
    let effect = net.fragments().insert(key, place, packet, &limits, cx.now);
    let Effect { whole, ended, refused, arm } = effect;
    if let Some(deadline) = arm {
        // Armed on the first core, because fragments are not a data path.
        let _ = net.core_sockets(CoreId(0)).arm(deadline, TimerEntry::Fragments);
    }
    for datagram in ended {
        drop_datagram(cx, datagram);
    }
    if let Some((reason, packet)) = refused {
        let is_failure = reason == DropReason::FragmentMemory;
        cx.count(Counter::IpReasmFails, is_failure.into());
        return Err((reason, packet));
    }
    Ok(whole.and_then(|whole| join::<V4>(cx, whole)))
}

/// Ends the datagrams whose time is over. The sender of one whose first fragment has arrived is
/// told (RFC 792; Linux: `ip_expire`).
pub(crate) fn on_timer(net: &Net, cx: &mut Cx) {
    let (ended, next) = net.fragments().expire(cx.now);
    if let Some(deadline) = next {
        let _ = net.core_sockets(CoreId(0)).arm(deadline, TimerEntry::Fragments);
    }
    let reader = cx.reader();
    let rcu = reader.pin();
    for mut datagram in ended {
        cx.count(Counter::IpReasmTimeout, 1);
        if datagram.has_first
            && let Some(first) = datagram.packets.pop_front()
        {
            if let Ok(header) = ip::parse::<true>(first.linear(), first.len()) {
                let message = IcmpMessage::TimeExceeded { reassembly: true };
                icmp_input::send_error(net, cx, &rcu, message, &header, &first);
            }
            datagram.packets.push_front(first);
        }
        drop_datagram(cx, datagram);
    }
}

fn limits(cx: &Cx) -> FragmentLimits {
    let sysctls = cx.sysctls();
    FragmentLimits {
        high_thresh: sysctls.ipfrag_high_thresh,
        time: sysctls.ipfrag_time,
        max_dist: sysctls.ipfrag_max_dist,
    }
}

/// Drops the fragments of a datagram and counts the failure.
fn drop_datagram(cx: &mut Cx, datagram: Ended) {
    cx.count(Counter::IpReasmFails, 1);
    if datagram.reason == DropReason::FragmentOverlap {
        cx.count(Counter::IpExtReasmOverlaps, 1);
    }
    for packet in datagram.packets {
        cx.drop_packet(datagram.reason, packet);
    }
}

/// Joins the fragments of a complete datagram. `None` without memory: all of them are dropped.
fn join<const V4: bool>(cx: &mut Cx, whole: Whole) -> Option<(IpHeader, Packet)> {
    let Whole { pieces, payload_len, ecn, dont } = whole;
    let mut pieces = pieces.into_iter();
    let (header_len, mut packet) = pieces.next()?;
    let header_len = usize::from(header_len);
    let mut has_room = packet.require_linear(header_len);
    for (skip, piece) in pieces {
        let skip = usize::from(skip);
        for bytes in piece.range(skip, piece.len().saturating_sub(skip)) {
            has_room = has_room && packet.append(&mut cx.pool, bytes) == bytes.len();
        }
        cx.pool.free(piece);
    }
    let len = u16::try_from(payload_len).unwrap_or(u16::MAX);
    if !has_room || packet.len() != header_len + usize::from(len) {
        cx.count(Counter::IpReasmFails, 1);
        cx.drop_packet(DropReason::NoMemory, packet);
        return None;
    }
    ip::set_whole::<V4>(packet.linear_mut(), len, ecn, dont);
    let meta = packet.meta_mut();
    meta.rx_checksum = RxChecksum::None;
    meta.gso = Gso::default();
    meta.ecn = ecn;
    match ip::parse_packet::<V4>(&packet, 0) {
        Ok(header) => {
            cx.count(Counter::IpReasmOKs, 1);
            Some((header, packet))
        }
        Err(reason) => {
            cx.count(Counter::IpReasmFails, 1);
            cx.drop_packet(reason, packet);
            None
        }
    }
}
