//! Neighbor discovery input (RFC 4861): replies to solicitations for our addresses, updates the
//! neighbor table, and passes router advertisements to the host.
//!
//! Above: `icmp_input`, which has verified the checksum. Linux: net/ipv6/ndisc.c (`ndisc_rcv`).
//!
//! Every message must have a hop limit of 255, which proves that its sender is on the link, and
//! must not be fragmented (RFC 6980). Neighbor entries have the same states as those of ARP
//! (`transmit::neighbor`). A conflict with our addresses is detected first. A solicitation for one
//! of our addresses updates or creates the entry of its sender, and is answered; one for another
//! address is ignored. An advertisement updates an existing entry.
//!
//! Not here: address probes (`socket::net::claims`).

use std::net::{IpAddr, Ipv6Addr};

use pkt::{DropReason, Packet, Verdict};

use crate::{
    base::ids::DeviceIndex,
    header::{
        ethernet::MacAddr,
        ip::IpHeader,
        ndp::{self, HOP_LIMIT, NdpMessage, Nonce, RouterAdvertisement},
    },
    route::fib::is_link_local,
    socket::{net::claims::AddressUse, rx::Rx},
    transmit::{
        dst::RouteKind,
        ndp_output::{self, NdpEnds},
        neighbor::{Advertisement, LinkChange},
    },
};

/// Largest message that is read. A router advertisement with link address, MTU and six prefixes has
/// 224 bytes.
const MESSAGE_BYTES_MAX: usize = 1232;

/// Receiving device and IP addresses of a message.
struct Envelope {
    device: DeviceIndex,
    src: Ipv6Addr,
    dst: Ipv6Addr,
}

/// Handles one message, without its IP header.
pub(super) fn input(rx: &mut Rx<'_, '_>, header: &IpHeader, packet: Packet) -> Verdict {
    match read(header, &packet).and_then(|message| {
        let (IpAddr::V6(src), IpAddr::V6(dst)) = (header.src, header.dst) else {
            return Err(DropReason::NdpInvalid);
        };
        let device = DeviceIndex(packet.meta().rx_device);
        handle(rx, &Envelope { device, src, dst }, &message)
    }) {
        Ok(()) => {
            rx.cx.pool.free(packet);
            Verdict::Consumed
        }
        Err(reason) => Verdict::Drop(reason, packet),
    }
}

fn read(header: &IpHeader, packet: &Packet) -> Result<NdpMessage, DropReason> {
    if header.hop_limit != HOP_LIMIT {
        return Err(DropReason::NdpHopLimit);
    }
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    if packet.len() > bytes.len() {
        return Err(DropReason::NdpOptions);
    }
    let len = packet.copy_to(0, &mut bytes);
    NdpMessage::parse(&bytes[..len])
}

fn handle(
    rx: &mut Rx<'_, '_>,
    envelope: &Envelope,
    message: &NdpMessage,
) -> Result<(), DropReason> {
    match *message {
        NdpMessage::NeighborSolicitation { target, source_mac, nonce } => {
            solicitation(rx, envelope, target, source_mac, nonce)
        }
        NdpMessage::NeighborAdvertisement { target, target_mac, solicited, replaces, .. } => {
            let change = if replaces { LinkChange::AtOnce } else { LinkChange::Never };
            advertisement(rx, envelope, target, target_mac, (solicited, change))
        }
        NdpMessage::RouterAdvertisement(ref ra) => router(rx, envelope, ra),
        NdpMessage::Redirect { target, destination, target_mac } => {
            redirect(rx, envelope, target, destination, target_mac)
        }
        // A host ignores solicitations of routers (RFC 4861 §6.2.6).
        NdpMessage::RouterSolicitation { .. } => Err(DropReason::NdpIgnored),
    }
}

/// Handles a neighbor solicitation: RFC 4861 §7.2.3 and §7.2.4, RFC 4862 §5.4.3, RFC 7527 §4.2.
fn solicitation(
    rx: &mut Rx<'_, '_>,
    envelope: &Envelope,
    target: Ipv6Addr,
    source_mac: Option<MacAddr>,
    nonce: Option<Nonce>,
) -> Result<(), DropReason> {
    let Envelope { device, src, dst } = *envelope;
    let is_probe = src.is_unspecified();
    if target.is_multicast()
        || (is_probe && (source_mac.is_some() || dst != ndp::solicited_node(target)))
    {
        return Err(DropReason::NdpInvalid);
    }
    let net = rx.net;
    if is_probe {
        if nonce.is_some_and(|nonce| net.claims().has_sent(device, target, nonce)) {
            return Err(DropReason::NdpReflected);
        }
        // An address probe does not contain the link address of its sender.
        let mac = MacAddr::UNSPECIFIED;
        let seen = AddressUse { address: IpAddr::V6(target), mac, probes: true };
        net.check_conflict(rx.cx, device, seen);
    }
    let fib = net.fib(rx.rcu);
    let is_ours = fib
        .lookup(IpAddr::V6(target))
        .is_some_and(|route| route.kind == RouteKind::Local && route.device == device);
    if !is_ours || net.claims().is_tentative(device, IpAddr::V6(target)) {
        return Err(DropReason::NdpOtherHost);
    }
    if let Some(mac) = source_mac {
        check_sender(rx, src)?;
        let update = Advertisement { mac, solicited: false, change: LinkChange::AtOnce };
        let source = Some(IpAddr::V6(target));
        net.neighbor_table(IpAddr::V6(src)).learn(rx.cx, device, IpAddr::V6(src), update, source);
    }
    let message = NdpMessage::NeighborAdvertisement {
        target,
        target_mac: net.mac_of(device),
        router: false,
        solicited: !is_probe,
        replaces: true,
    };
    let ends = match is_probe {
        true => NdpEnds { src: target, dst: ndp::ALL_NODES, mac: None },
        // Differs from RFC 4861 §7.2.4: if the solicitation has no source link address, the reply
        // goes to the address in the neighbor table, or is not sent. Only a sender that already
        // knows our link address may leave its own out, so that sender is normally in the table.
        false => {
            let known = net.neighbor_table(IpAddr::V6(src)).link_address(device, IpAddr::V6(src));
            let Some(mac) = source_mac.or(known) else { return Err(DropReason::NdpInvalid) };
            NdpEnds { src: target, dst: src, mac: Some(mac) }
        }
    };
    ndp_output::send(net.tx(device), rx.cx, ends, &message);
    Ok(())
}

/// Handles a neighbor advertisement: RFC 4861 §7.2.5, RFC 4862 §5.4.4.
fn advertisement(
    rx: &mut Rx<'_, '_>,
    envelope: &Envelope,
    target: Ipv6Addr,
    target_mac: Option<MacAddr>,
    (solicited, change): (bool, LinkChange),
) -> Result<(), DropReason> {
    let Envelope { device, dst, .. } = *envelope;
    if target.is_multicast() || (dst.is_multicast() && solicited) {
        return Err(DropReason::NdpInvalid);
    }
    let (net, address) = (rx.net, IpAddr::V6(target));
    let mac = target_mac.unwrap_or(MacAddr::UNSPECIFIED);
    net.check_conflict(rx.cx, device, AddressUse { address, mac, probes: false });
    check_sender(rx, target)?;
    let known = || net.neighbor_table(address).link_address(device, address);
    // If the message has no target link address, the link address in the neighbor table is
    // confirmed.
    if let Some(mac) = target_mac.or_else(known) {
        let update = Advertisement { mac, solicited, change };
        net.neighbor_table(address).learn(rx.cx, device, address, update, None);
    }
    Ok(())
}

/// Handles a router advertisement: RFC 4861 §6.1.2 and §6.3.4.
fn router(
    rx: &mut Rx<'_, '_>,
    envelope: &Envelope,
    ra: &RouterAdvertisement,
) -> Result<(), DropReason> {
    let Envelope { device, src, .. } = *envelope;
    if !src.is_unicast_link_local() {
        return Err(DropReason::NdpInvalid);
    }
    check_sender(rx, src)?;
    let net = rx.net;
    let own = net.fib(rx.rcu).addresses_on(device).find(|address| is_link_local(*address));
    let (true, Some(own)) = (rx.cx.sysctls().accept_ra, own) else {
        return Err(DropReason::NdpIgnored);
    };
    if let Some(mac) = ra.source_mac {
        let update = Advertisement { mac, solicited: false, change: LinkChange::AtOnce };
        net.neighbor_table(IpAddr::V6(src)).learn(
            rx.cx,
            device,
            IpAddr::V6(src),
            update,
            Some(own),
        );
    }
    net.on_router(rx.cx, device, src, ra);
    Ok(())
}

/// Handles a redirect: RFC 4861 §8.1 and §8.3. `target` is another router, or the destination
/// itself, which is on the link then.
fn redirect(
    rx: &mut Rx<'_, '_>,
    envelope: &Envelope,
    target: Ipv6Addr,
    destination: Ipv6Addr,
    target_mac: Option<MacAddr>,
) -> Result<(), DropReason> {
    let Envelope { device, src, dst } = *envelope;
    let is_next_hop = target == destination || target.is_unicast_link_local();
    if !src.is_unicast_link_local()
        || dst.is_multicast()
        || destination.is_multicast()
        || !is_next_hop
    {
        return Err(DropReason::NdpInvalid);
    }
    check_sender(rx, src)?;
    check_sender(rx, target)?;
    if !rx.cx.sysctls().ip6_accept_redirects {
        return Err(DropReason::NdpIgnored);
    }
    let [router, remote, to] = [src, destination, target].map(IpAddr::V6);
    if !rx.net.redirect(rx.cx, device, (router, remote, to)) {
        return Err(DropReason::NdpInvalid);
    }
    if let Some(mac) = target_mac {
        let told = Advertisement { mac, solicited: false, change: LinkChange::AtOnce };
        let source = rx.net.fib(rx.rcu).addresses_on(device).find(|ip| is_link_local(*ip));
        rx.net.neighbor_table(to).learn(rx.cx, device, to, told, source.or(Some(IpAddr::V6(dst))));
    }
    Ok(())
}

/// Refuses a message that names `claimed` as the address of another station, if `claimed` is an
/// address of this host or a multicast address. A neighbor entry for such an address would cut this
/// host off.
fn check_sender(rx: &Rx<'_, '_>, claimed: Ipv6Addr) -> Result<(), DropReason> {
    match rx.net.fib(rx.rcu).local_kind(IpAddr::V6(claimed)) {
        None => Ok(()),
        Some(_) => Err(DropReason::NdpInvalid),
    }
}
