//! Sums of counters that must balance: at each layer every packet received is passed on or counted
//! as dropped.

use pkt::DropReason;
use stack::base::counters::{Counter, Snapshot};

use super::Play;

pub(super) fn check(play: &Play<'_>) {
    let counters = play.rig.host().counters();
    link(play, &counters);
    check_layers(&counters);
}

/// Checks the layers above the link, of any host.
pub(crate) fn check_layers(counters: &Snapshot) {
    internet(counters);
    transport(counters);
}

/// Checks that every frame is ARP, IP, merged by GRO, or dropped by the link layer.
fn link(play: &Play<'_>, counters: &Snapshot) {
    let processed = counters.stack(Counter::SoftnetProcessed);
    assert_eq!(processed, play.rig.delivered(), "frames taken from the device");
    let mut accounted = counters.stack(Counter::ArpInPackets)
        + counters.stack(Counter::IpInReceives)
        + counters.stack(Counter::Ip6InReceives)
        + counters.stack(Counter::GroMerged)
        + counters.stack(Counter::GroMergedFree)
        + counters.drops(DropReason::EthernetType)
        + counters.drops(DropReason::OtherHost)
        + play.short_frames;
    if !play.is_ethernet() {
        accounted += counters.drops(DropReason::IpVersion);
    }
    assert_eq!(accounted, processed, "frames: {counters:?}");
}

/// Checks that every IP packet is delivered, or counted with one reason why not.
fn internet(counters: &Snapshot) {
    let ends = [
        Counter::IpInHdrErrors,
        Counter::IpInAddrErrors,
        Counter::IpExtInNoRoutes,
        Counter::IpInDiscards,
        Counter::IpReasmReqds,
        Counter::IpInUnknownProtos,
        Counter::IpInDelivers,
    ];
    for v4 in [true, false] {
        let of = |counter: Counter| counters.stack(counter.of_version(v4));
        let accounted: u64 = ends.iter().map(|&counter| of(counter)).sum();
        // A reassembled packet ends a second time, after its fragments.
        let received = of(Counter::IpInReceives) + of(Counter::IpReasmOKs);
        assert_eq!(accounted, received, "IP packets: {counters:?}");
    }
}

/// Checks that every delivered packet is a segment, a datagram, or a message of ICMP or IGMP. A
/// segment sent to a broadcast or multicast address is dropped. No datagram waits to be received.
fn transport(counters: &Snapshot) {
    let both = |counter: Counter| counters.stack(counter) + counters.stack(counter.of::<false>());
    let delivered = both(Counter::IpInDelivers);
    let datagrams = [
        Counter::UdpInDatagrams,
        Counter::UdpNoPorts,
        Counter::UdpInErrors,
        Counter::UdpIgnoredMulti,
    ];
    let ignored = [DropReason::IgmpMalformed, DropReason::IgmpIgnored];
    let taken = counters.tcp(tcp::Counter::TcpInSegs)
        + both(Counter::IcmpInMsgs)
        + counters.stack(Counter::IgmpInQueries)
        + datagrams.iter().map(|&counter| both(counter)).sum::<u64>()
        + ignored.iter().map(|&reason| counters.drops(reason)).sum::<u64>();
    let to_many = counters.drops(DropReason::TcpNoSocket);
    assert!(taken <= delivered && delivered <= taken + to_many, "deliveries: {counters:?}");
    let replies = counters.stack(Counter::IcmpOutEchoReps);
    assert!(replies <= counters.stack(Counter::IcmpInEchos), "echo replies: {counters:?}");
    let replies = counters.stack(Counter::Icmp6OutEchoReplies);
    assert!(replies <= counters.stack(Counter::Icmp6InEchos), "echo replies: {counters:?}");
}
