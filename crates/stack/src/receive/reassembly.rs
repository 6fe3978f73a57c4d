//! Reassembly: joins the fragments of a datagram, and reports datagrams that stay incomplete.
//!
//! Above: `ip_input`, which passes fragments for this host. Below: the tables of fragments
//! (`socket::net::fragments`), which decide whether a fragment is kept and a datagram is complete.
//! RFC 791 §3.2, RFC 792, RFC 1122 §3.3.2, RFC 8200 §4.5; Linux: `ip_defrag`, `ip_frag_reasm`,
//! `ip_expire`, `ipv6_frag_rcv`.
//!
//! Both versions share one algorithm. An IPv6 fragment differs in its header, whose last part is
//! the Fragment header, and in faults that RFC 8200 wants reported.
//!
//! A datagram is joined by copying: the payload of the fragments is appended to the first one, so
//! that the result has few page slices, whatever the number of fragments.
//!
//! Not here: atomic fragments, which are whole datagrams with a Fragment header (`ip_input`).

use pkt::{DropReason, Ecn, Gso, Packet, RxChecksum};

use super::icmp_input;
use crate::{
    base::{counters::Counter, ids::CoreId},
    cx::Cx,
    header::{
        extension::{self, FRAGMENT_HEADER_LEN, Problem},
        icmp::IcmpMessage,
        ip::{self, IPV6_HEADER_LEN, IpHeader},
        strip,
    },
    route::fib::is_link_local,
    socket::{
        core_sockets::TimerEntry,
        net::{
            Net,
            fragments::{DatagramKey, Effect, Ended, FragmentLimits, Place, Whole},
        },
        rx::Rx,
    },
};

/// Takes a fragment, which still has its IP header. Returns the datagram that it completes.
///
/// # Errors
/// The fragment with the reason to drop it.
pub(super) fn input<const V4: bool>(
    rx: &mut Rx<'_, '_>,
    header: &IpHeader,
    mut packet: Packet,
) -> Result<Option<Packet>, (DropReason, Packet)> {
    rx.cx.count(Counter::IpReasmReqds.of::<V4>(), 1);
    if !V4 && let Err((reason, problem)) = check_v6(header, &packet) {
        rx.cx.count(Counter::Ip6InHdrErrors, 1);
        let Problem { code, pointer } = problem;
        let message = IcmpMessage::ParameterProblem { code, pointer };
        icmp_input::send_error::<V4>(rx, header, message, &packet);
        return Err((reason, packet));
    }
    let (net, cx) = (rx.net, &mut *rx.cx);
    let key = key::<V4>(header, &packet);
    let place = Place {
        offset: header.fragment.offset,
        more: header.fragment.more,
        header_len: header.header_len,
        counted_len: counted_len::<V4>(header.header_len),
        ecn: Ecn::from_traffic_class(header.traffic_class),
        dont: header.fragment.dont,
    };
    let limits = limits::<V4>(cx);
    // A small fragment that waits must not keep a whole receive page.
    packet.condense(&mut cx.pool);
    let effect = net.fragments::<V4>().insert(key, place, packet, &limits, cx.now);
    let Effect { whole, ended, refused, arm } = effect;
    if let Some(deadline) = arm {
        // The timer is armed on the first core, because fragments are not on the data path.
        let _ = net.core_sockets(CoreId(0)).arm(deadline, TimerEntry::Fragments(V4));
    }
    for datagram in ended {
        drop_datagram::<V4>(cx, datagram);
    }
    if let Some((reason, packet)) = refused {
        let is_failure = reason == DropReason::FragmentMemory;
        cx.count(Counter::IpReasmFails.of::<V4>(), is_failure.into());
        return Err((reason, packet));
    }
    Ok(whole.and_then(|whole| join::<V4>(cx, whole)))
}

/// Rejects an IPv6 fragment whose fault concerns no other fragment. The error has the content of
/// the Parameter Problem message that RFC 8200 §4.5 asks for.
fn check_v6(header: &IpHeader, packet: &Packet) -> Result<(), (DropReason, Problem)> {
    let header_len = usize::from(header.header_len);
    let offset = u32::from(header.fragment.offset);
    let counted_len = u32::from(counted_len::<false>(header.header_len));
    if header.fragment.more && !header.payload_len.is_multiple_of(8) {
        // The pointer leads to the field Payload Length.
        return Err((DropReason::FragmentMalformed, Problem { code: 0, pointer: 4 }));
    }
    if counted_len + offset + header.payload_len > 0xffff {
        // The pointer leads to the field Fragment Offset.
        let pointer = u32::from(header.header_len) - 6;
        return Err((DropReason::FragmentTooBig, Problem { code: 0, pointer }));
    }
    if offset == 0 {
        let mut start = [0; extension::HEADERS_BYTES_MAX];
        let len = packet.copy_to(header_len, &mut start);
        if !extension::has_all_headers(header.protocol, &start[..len]) {
            return Err((DropReason::FragmentMalformed, Problem { code: 3, pointer: 0 }));
        }
    }
    Ok(())
}

fn key<const V4: bool>(header: &IpHeader, packet: &Packet) -> DatagramKey {
    let IpHeader { src, dst, protocol, .. } = *header;
    if V4 {
        return DatagramKey { src, dst, id: header.id.into(), protocol, device: 0 };
    }
    // The Fragment header is the last one; its last four bytes are the identification.
    let id = packet.linear()[..usize::from(header.header_len)].last_chunk().copied();
    let is_on_link = is_link_local(src) || is_link_local(dst) || dst.is_multicast();
    let device = if is_on_link { packet.meta().rx_device } else { 0 };
    let id = u32::from_be_bytes(id.unwrap_or_default());
    DatagramKey { src, dst, id, protocol: 0, device }
}

/// Returns the number of header bytes of a fragment that the length field of the datagram counts.
const fn counted_len<const V4: bool>(header_len: u16) -> u16 {
    const V6_UNCOUNTED: u16 = 48;
    const { assert!(V6_UNCOUNTED as usize == IPV6_HEADER_LEN + FRAGMENT_HEADER_LEN) };
    if V4 { header_len } else { header_len - V6_UNCOUNTED }
}

/// Ends the datagrams whose time is over. The sender of a datagram whose first fragment has arrived
/// gets an error (RFC 792, RFC 8200 §4.5; Linux: `ip_expire`).
pub(crate) fn on_timer<const V4: bool>(net: &Net, cx: &mut Cx) {
    let (ended, next) = net.fragments::<V4>().expire(cx.now);
    if let Some(deadline) = next {
        let _ = net.core_sockets(CoreId(0)).arm(deadline, TimerEntry::Fragments(V4));
    }
    let reader = cx.reader();
    let rcu = reader.pin();
    for mut datagram in ended {
        cx.count(Counter::IpReasmTimeout.of::<V4>(), 1);
        if datagram.has_first
            && let Some(first) = datagram.packets.pop_front()
        {
            if let Some(header) = header_of_first::<V4>(&first) {
                let message = IcmpMessage::TimeExceeded { reassembly: true };
                let _sent =
                    icmp_input::report_to_sender::<V4>(net, cx, &rcu, &header, message, &first);
            }
            datagram.packets.push_front(first);
        }
        drop_datagram::<V4>(cx, datagram);
    }
}

/// Reads the headers of a fragment again.
fn header_of_first<const V4: bool>(first: &Packet) -> Option<IpHeader> {
    let mut header = ip::parse::<V4>(first.linear(), first.len()).ok()?;
    if !V4 {
        let chain = extension::read(header.protocol, &first.linear()[IPV6_HEADER_LEN..]).ok()?;
        header.protocol = chain.protocol;
        header.header_len += chain.len;
    }
    Some(header)
}

fn limits<const V4: bool>(cx: &Cx) -> FragmentLimits {
    let sysctls = cx.sysctls();
    if V4 {
        FragmentLimits {
            high_thresh: sysctls.ipfrag_high_thresh,
            time: sysctls.ipfrag_time,
            max_dist: sysctls.ipfrag_max_dist,
        }
    } else {
        FragmentLimits {
            high_thresh: sysctls.ip6frag_high_thresh,
            time: sysctls.ip6frag_time,
            max_dist: 0,
        }
    }
}

/// Drops the fragments of a datagram and counts the failure.
fn drop_datagram<const V4: bool>(cx: &mut Cx, datagram: Ended) {
    cx.count(Counter::IpReasmFails.of::<V4>(), 1);
    // Linux has no such counter for IPv6.
    if V4 && datagram.reason == DropReason::FragmentOverlap {
        cx.count(Counter::IpExtReasmOverlaps, 1);
    }
    for packet in datagram.packets {
        cx.drop_packet(datagram.reason, packet);
    }
}

/// Joins the fragments of a complete datagram. Without memory, drops all of them and returns
/// `None`.
fn join<const V4: bool>(cx: &mut Cx, whole: Whole) -> Option<Packet> {
    let Whole { pieces, payload_len, ecn, dont } = whole;
    let mut pieces = pieces.into_iter();
    let (header_len, mut packet) = pieces.next()?;
    let header_bytes = usize::from(header_len);
    let mut has_room = packet.require_linear(header_bytes);
    for (skip, piece) in pieces {
        let skip = usize::from(skip);
        for bytes in piece.range(skip, piece.len().saturating_sub(skip)) {
            has_room = has_room && packet.append(&mut cx.pool, bytes) == bytes.len();
        }
        cx.pool.free(piece);
    }
    if !has_room || packet.len() != header_bytes + payload_len as usize {
        cx.count(Counter::IpReasmFails.of::<V4>(), 1);
        cx.drop_packet(DropReason::NoMemory, packet);
        return None;
    }
    let mut len = payload_len;
    if !V4 {
        extension::remove_fragment(&mut packet.linear_mut()[..header_bytes]);
        strip(&mut packet, FRAGMENT_HEADER_LEN);
        len += u32::from(counted_len::<V4>(header_len));
    }
    // The table has checked that the length field can express the length.
    let len = u16::try_from(len).unwrap_or(u16::MAX);
    ip::set_whole::<V4>(packet.linear_mut(), len, ecn, dont);
    let meta = packet.meta_mut();
    meta.rx_checksum = RxChecksum::None;
    meta.gso = Gso::default();
    meta.ecn = ecn;
    cx.count(Counter::IpReasmOKs.of::<V4>(), 1);
    Some(packet)
}
