//! The books of a host must balance: what came in is either passed on or counted as dropped, step by step.

use pkt::DropReason;
use stack::base::counters::{Counter, Snapshot};

use super::Play;

pub(super) fn check(play: &Play<'_>) {
    let counters = play.rig.host().counters();
    link(play, &counters);
    check_layers(&counters);
}

/// The layers above the link, of any host.
pub(crate) fn check_layers(counters: &Snapshot) {
    internet(counters);
    transport(counters);
}

/// Every frame is ARP, IP, merged with another (GRO), or dropped by the link layer.
fn link(play: &Play<'_>, counters: &Snapshot) {
    let processed = counters.stack(Counter::SoftnetProcessed);
    assert_eq!(processed, play.rig.delivered(), "frames taken from the device");
    let mut accounted = counters.stack(Counter::ArpInPackets)
        + counters.stack(Counter::IpInReceives)
        + counters.stack(Counter::GroMerged)
        + counters.stack(Counter::GroMergedFree)
        + counters.drops(DropReason::EthernetType)
        + counters.drops(DropReason::OtherHost)
        + play.stumps;
    if !play.is_ethernet() {
        accounted += counters.drops(DropReason::IpVersion);
    }
    assert_eq!(accounted, processed, "frames: {counters:?}");
}

/// Every IP packet is delivered, or counted as one kind of undeliverable.
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
    let accounted: u64 = ends.iter().map(|&counter| counters.stack(counter)).sum();
    assert_eq!(accounted, counters.stack(Counter::IpInReceives), "IP packets: {counters:?}");
}

/// Every delivered packet is a segment or an ICMP message; a segment to more than one host is none.
fn transport(counters: &Snapshot) {
    let delivered = counters.stack(Counter::IpInDelivers);
    let taken = counters.tcp(tcp::Counter::TcpInSegs) + counters.stack(Counter::IcmpInMsgs);
    let to_many = counters.drops(DropReason::TcpNoSocket);
    assert!(taken <= delivered && delivered <= taken + to_many, "deliveries: {counters:?}");
    let replies = counters.stack(Counter::IcmpOutEchoReps);
    assert!(replies <= counters.stack(Counter::IcmpInEchos), "echo replies: {counters:?}");
}
