//! ARP: the requests answered, the addresses learned, and the packets that wait for an answer.

use std::{
    io::IoSlice,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use pkt::DropReason;
use sim::{
    Peer, Rig,
    frame::{self, Ipv4, Seen},
    rig::{HOST_IP, HOST_MAC, PEER_IP, PEER_MAC},
};
use stack::{
    Errno,
    base::{counters::Counter, ids::DeviceIndex},
    cx::event::{Event, EventSink},
    header::{
        arp::{ArpOperation, ArpPacket},
        ethernet::MacAddr,
        icmp::IcmpMessage,
        ip::protocol,
    },
    socket::Connection,
    socket::net::ClaimState,
};
use tcp::{Flags, Options};

use crate::stations::{OTHER_IP, OTHER_MAC, silent_rig};

/// The peer pings, so that the host has a packet to send.
fn ping(rig: &mut Rig, seq: u16) {
    let message = frame::icmp(&IcmpMessage::EchoRequest { id: 7, seq }, b"ping");
    rig.give(&Ipv4::new(PEER_IP, HOST_IP, protocol::ICMP).with(&message));
}

fn answered_pings(seen: &[Seen]) -> Vec<u16> {
    let seq = |seen: &Seen| match seen {
        Seen::Icmp(_, IcmpMessage::EchoReply { seq, .. }, _) => Some(*seq),
        _ => None,
    };
    seen.iter().filter_map(seq).collect()
}

fn requests_in(seen: &[Seen]) -> Vec<(MacAddr, Ipv4Addr)> {
    let asked = |seen: &Seen| match seen {
        Seen::Arp(to, arp) if arp.operation == ArpOperation::Request => Some((*to, arp.target_ip)),
        _ => None,
    };
    seen.iter().filter_map(asked).collect()
}

#[test]
fn a_request_for_our_address_is_answered_and_its_sender_learned() {
    let mut rig = silent_rig(&[]);
    let request = ArpPacket::request(PEER_MAC, PEER_IP, HOST_IP);
    rig.give_arp(MacAddr::BROADCAST, &request);
    assert_eq!(rig.take(), [Seen::Arp(PEER_MAC, request.reply(HOST_MAC))]);
    ping(&mut rig, 1);
    assert_eq!(answered_pings(&rig.take()), [1], "no request was needed");
    assert_eq!(rig.count(Counter::ArpInPackets), 1);
    assert_eq!(rig.count(Counter::ArpOutPackets), 1);
    rig.finish();
}

#[test]
fn a_request_for_another_address_is_ignored() {
    let mut rig = silent_rig(&[]);
    let request = ArpPacket::request(PEER_MAC, PEER_IP, OTHER_IP);
    rig.give_arp(MacAddr::BROADCAST, &request);
    // Loopback addresses belong to the host, but not on this wire.
    let mut frame = sim::rig::arp_frame(MacAddr::BROADCAST, &request);
    frame[14 + 24..14 + 28].copy_from_slice(&Ipv4Addr::LOCALHOST.octets());
    rig.give_frame(&frame);
    assert_eq!(rig.take(), []);
    rig.finish();
}

#[test]
fn a_probe_is_answered_and_its_sender_not_learned() {
    let mut rig = silent_rig(&[]);
    let probe = ArpPacket::request(PEER_MAC, Ipv4Addr::UNSPECIFIED, HOST_IP);
    rig.give_arp(MacAddr::BROADCAST, &probe);
    assert_eq!(rig.take(), [Seen::Arp(PEER_MAC, probe.reply(HOST_MAC))]);
    assert_eq!(rig.count(Counter::NeighAllocs), 0);
    rig.finish();
}

#[test]
fn a_sender_with_our_address_or_an_invalid_one_is_not_learned() {
    let mut rig = silent_rig(&[]);
    let claims = [HOST_IP, Ipv4Addr::new(10, 0, 0, 255)];
    for claim in claims {
        rig.give_arp(MacAddr::BROADCAST, &ArpPacket::request(OTHER_MAC, claim, HOST_IP));
        rig.give_arp(MacAddr::BROADCAST, &ArpPacket::announcement(OTHER_MAC, claim));
    }
    assert_eq!(rig.drops(DropReason::ArpSourceInvalid), 4);
    for claim in [Ipv4Addr::LOCALHOST, Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 1)] {
        rig.give_arp(MacAddr::BROADCAST, &ArpPacket::request(OTHER_MAC, claim, HOST_IP));
    }
    assert_eq!(rig.drops(DropReason::ArpMalformed), 3);
    assert_eq!(rig.take(), []);
    assert_eq!(rig.count(Counter::NeighAllocs), 0);
    rig.finish();
}

#[test]
fn an_announcement_updates_known_neighbors_only() {
    let mut rig = silent_rig(&[]);
    rig.give_arp(MacAddr::BROADCAST, &ArpPacket::announcement(PEER_MAC, PEER_IP));
    assert_eq!(rig.count(Counter::NeighAllocs), 0);
    rig.give_arp(MacAddr::BROADCAST, &ArpPacket::request(OTHER_MAC, PEER_IP, HOST_IP));
    rig.take();
    rig.give_arp(MacAddr::BROADCAST, &ArpPacket::announcement(PEER_MAC, PEER_IP));
    ping(&mut rig, 1);
    let sent = rig.take();
    assert_eq!(answered_pings(&sent), [1]);
    // Five seconds later the unconfirmed entry is probed, at the station that announced itself.
    rig.pass(Duration::from_secs(6));
    assert_eq!(requests_in(&rig.take())[0], (PEER_MAC, PEER_IP));
    rig.finish();
}

#[test]
fn packets_wait_for_an_answer_and_leave_in_order() {
    let mut rig = silent_rig(&[]);
    for seq in 1..=5 {
        ping(&mut rig, seq);
    }
    let sent = rig.take();
    assert_eq!(requests_in(&sent), [(MacAddr::BROADCAST, PEER_IP)], "asked once");
    assert_eq!(answered_pings(&sent), []);
    let question = ArpPacket::request(HOST_MAC, HOST_IP, PEER_IP);
    rig.give_arp(HOST_MAC, &question.reply(PEER_MAC));
    assert_eq!(answered_pings(&rig.take()), [1, 2, 3, 4, 5]);
    ping(&mut rig, 6);
    assert_eq!(answered_pings(&rig.take()), [6]);
    rig.finish();
}

#[test]
fn when_too_many_wait_the_oldest_are_dropped() {
    let mut rig = silent_rig(&[("net.ipv4.neigh.default.unres_qlen", "3")]);
    for seq in 1..=5 {
        ping(&mut rig, seq);
    }
    assert_eq!(rig.drops(DropReason::NeighborQueueFull), 2);
    assert_eq!(rig.count(Counter::NeighUnresolvedDiscards), 2);
    rig.take();
    let question = ArpPacket::request(HOST_MAC, HOST_IP, PEER_IP);
    rig.give_arp(HOST_MAC, &question.reply(PEER_MAC));
    assert_eq!(answered_pings(&rig.take()), [3, 4, 5]);
    rig.finish();
}

#[test]
fn a_failed_resolution_is_reported_to_the_connection() {
    let mut rig = silent_rig(&[]);
    let host = rig.host();
    let remote = SocketAddr::new(PEER_IP.into(), 80);
    let socket = Connection::connect(&host, &mut rig.world.cx, None, remote).expect("a route");
    ping(&mut rig, 1);
    rig.pass(Duration::from_millis(2900));
    assert_eq!(
        requests_in(&rig.take()).len(),
        3,
        "at once, after one second and after two seconds"
    );
    rig.pass(Duration::from_millis(200));
    assert_eq!(rig.count(Counter::NeighResFailed), 1, "one resolution for all packets");
    assert!(rig.drops(DropReason::NeighborFailed) >= 2);
    let error = socket.take_error(&host, &mut rig.world.cx);
    assert_eq!(error, Some(Errno::EHOSTUNREACH));
    socket.close(&host, &mut rig.world.cx);
    drop(socket);
    drop(host);
    rig.finish();
}

/// Counts the host's ARP requests during five minutes, in which `once` runs every second.
fn requests_during(rig: &mut Rig, mut once: impl FnMut(&mut Rig) -> Vec<Seen>) -> usize {
    let mut asked = 0;
    for _ in 0..300 {
        asked += requests_in(&once(rig)).len();
        rig.pass(Duration::from_secs(1));
    }
    asked
}

#[test]
fn a_connection_that_makes_progress_confirms_its_next_hop() {
    let mut rig = silent_rig(&[]);
    rig.answers_arp = true;
    let listener = rig.listen(80, 8);
    let mut peer = Peer::open(&mut rig, 80, 2000, Options::default());
    let socket = listener.accept().expect("a connection");
    let host = rig.host();
    rig.take();
    let asked = requests_during(&mut rig, |rig| {
        socket.send(&host, &mut rig.world.cx, &[IoSlice::new(b".")]).expect("room");
        let seen = rig.take();
        peer.hear(&seen);
        peer.send_next(rig, Flags::ACK, b"");
        seen
    });
    assert_eq!(asked, 0);
    socket.abort(&host, &mut rig.world.cx);
    listener.close(&host, &mut rig.world.cx);
    drop((socket, listener, host));
    rig.finish();
}

/// Returns the second in which the host first probes its next hop, which pings keep in use. After
/// ten seconds a connection sends `sent` bytes, of which the peer acknowledges the first `acked`,
/// and nothing more.
fn first_probe(sent: usize, acked: u32) -> usize {
    let mut rig = silent_rig(&[]);
    rig.answers_arp = true;
    let listener = rig.listen(80, 8);
    let mut peer = Peer::open(&mut rig, 80, 2000, Options::default());
    let socket = listener.accept().expect("a connection");
    let host = rig.host();
    rig.take();
    let first = (0..100).find(|second| {
        if *second == 10 && sent > 0 {
            let bytes = vec![7; sent];
            let taken = socket.send(&host, &mut rig.world.cx, &[IoSlice::new(&bytes)]);
            assert_eq!(taken, Ok(sent));
            let before = peer.rcv_nxt;
            peer.hear(&rig.take());
            peer.rcv_nxt = before + acked;
            peer.send_next(&mut rig, Flags::ACK, b"");
        }
        ping(&mut rig, 1);
        let asked = !requests_in(&rig.take()).is_empty();
        rig.pass(Duration::from_secs(1));
        asked
    });
    socket.abort(&host, &mut rig.world.cx);
    listener.close(&host, &mut rig.world.cx);
    drop((socket, listener, host));
    rig.finish();
    first.expect("a probe")
}

/// An acknowledgment confirms the next hop when it arrives, whether or not data is sent after it.
#[test]
fn an_acknowledgment_confirms_the_next_hop_when_it_comes() {
    let unconfirmed = first_probe(0, 0);
    assert_eq!(first_probe(5000, 0), unconfirmed);
    assert_eq!(first_probe(1, 1), unconfirmed + 10, "all");
    assert_eq!(first_probe(5000, 1000), unconfirmed + 10, "a part");
}

#[test]
fn an_unconfirmed_next_hop_is_probed_regularly() {
    let mut rig = silent_rig(&[]);
    rig.answers_arp = true;
    let asked = requests_during(&mut rig, |rig| {
        ping(rig, 1);
        rig.take()
    });
    assert!((4..20).contains(&asked), "{asked} times in five minutes");
    rig.finish();
}

#[test]
fn many_packets_to_a_neighbor_use_one_timer() {
    let mut rig = silent_rig(&[]);
    let question = ArpPacket::request(HOST_MAC, HOST_IP, PEER_IP);
    rig.give_arp(MacAddr::BROADCAST, &ArpPacket::request(PEER_MAC, PEER_IP, HOST_IP));
    for _ in 0..1000 {
        rig.give_arp(HOST_MAC, &question.reply(PEER_MAC));
    }
    rig.pass(Duration::from_secs(300));
    assert!(rig.count(Counter::TimerExpired) < 10, "{}", rig.count(Counter::TimerExpired));
    rig.finish();
}

#[test]
fn unknown_senders_do_not_fill_the_table() {
    let mut rig = silent_rig(&[("net.ipv4.neigh.default.gc_thresh3", "16")]);
    rig.give_arp(MacAddr::BROADCAST, &ArpPacket::request(PEER_MAC, PEER_IP, HOST_IP));
    for tail in 3..250 {
        let stranger = Ipv4Addr::new(10, 0, 0, tail);
        rig.give_arp(MacAddr::BROADCAST, &ArpPacket::request(OTHER_MAC, stranger, HOST_IP));
    }
    let (allocs, destroys) = (rig.count(Counter::NeighAllocs), rig.count(Counter::NeighDestroys));
    assert_eq!(allocs, 248);
    assert!(allocs - destroys <= 18, "{allocs} entered, {destroys} removed");
    assert!(rig.count(Counter::NeighForcedGcRuns) > 0);
    assert_eq!(rig.count(Counter::NeighTableFulls), 0);
    rig.finish();
}

/// Returns the number of entries in the neighbor table.
fn entries(rig: &Rig) -> u64 {
    rig.count(Counter::NeighAllocs) - rig.count(Counter::NeighDestroys)
}

/// Stations of other addresses than the peer's ask for the host, one each.
fn strangers_ask(rig: &mut Rig, tails: std::ops::Range<u8>) {
    for tail in tails {
        let stranger = Ipv4Addr::new(10, 0, 0, tail);
        rig.give_arp(MacAddr::BROADCAST, &ArpPacket::request(OTHER_MAC, stranger, HOST_IP));
    }
}

#[test]
fn a_table_beyond_its_second_threshold_shrinks_to_it_every_five_seconds() {
    let mut rig = silent_rig(&[("net.ipv4.neigh.default.gc_thresh2", "16")]);
    strangers_ask(&mut rig, 3..43);
    assert_eq!(entries(&rig), 40, "they have changed just now");
    rig.pass(Duration::from_secs(6));
    strangers_ask(&mut rig, 43..44);
    assert_eq!(entries(&rig), 16);
    strangers_ask(&mut rig, 44..60);
    assert_eq!(entries(&rig), 32, "not again within five seconds");
    rig.finish();
}

#[test]
fn a_table_beyond_its_first_threshold_forgets_neighbors_out_of_use() {
    let mut rig = silent_rig(&[("net.ipv4.neigh.default.gc_thresh1", "16")]);
    strangers_ask(&mut rig, 3..43);
    rig.pass(Duration::from_secs(40));
    strangers_ask(&mut rig, 43..53);
    assert_eq!(entries(&rig), 50, "none is older than gc_stale_time");
    rig.pass(Duration::from_secs(40));
    strangers_ask(&mut rig, 53..54);
    assert_eq!(entries(&rig), 11, "those of the last minute stay");
    assert_eq!(rig.count(Counter::NeighForcedGcRuns), 0);
    assert!(rig.count(Counter::NeighPeriodicGcRuns) > 0);
    rig.finish();
}

#[test]
fn a_small_table_keeps_neighbors_out_of_use() {
    let mut rig = silent_rig(&[]);
    strangers_ask(&mut rig, 3..43);
    rig.pass(Duration::from_secs(400));
    strangers_ask(&mut rig, 43..44);
    assert_eq!(entries(&rig), 41);
    rig.finish();
}

/// The stations do not answer, and a packet of the host waits for each.
#[test]
fn unresolved_neighbors_fill_the_table_eight_times_at_most() {
    let mut rig = silent_rig(&[("net.ipv4.neigh.default.gc_thresh3", "16")]);
    for tail in 3..250 {
        let stranger = Ipv4Addr::new(10, 0, 0, tail);
        let message = frame::icmp(&IcmpMessage::EchoRequest { id: 7, seq: 1 }, b"ping");
        rig.give(&Ipv4::new(stranger, HOST_IP, protocol::ICMP).with(&message));
    }
    assert_eq!(rig.count(Counter::NeighAllocs), 8 * 16);
    assert_eq!(rig.count(Counter::NeighTableFulls), 247 - 8 * 16);
    assert_eq!(rig.drops(DropReason::IpNoRoute), 247 - 8 * 16);
    assert!(rig.count(Counter::NeighForcedGcRuns) < 100);
    // Three seconds later all resolutions have failed, and one more collection makes room.
    rig.pass(Duration::from_secs(4));
    rig.take();
    for seq in 1..=3 {
        ping(&mut rig, seq);
    }
    assert_eq!(requests_in(&rig.take()), [(MacAddr::BROADCAST, PEER_IP)]);
    rig.finish();
}

/// A full table, and packets of a known neighbor between those of unknown ones. Regression: each of
/// these made the next unknown neighbor scan all entries.
#[test]
fn unknown_neighbors_at_a_full_table_do_not_scan_all_entries() {
    let mut rig = silent_rig(&[("net.ipv4.neigh.default.gc_thresh3", "24")]);
    let message = frame::icmp(&IcmpMessage::EchoRequest { id: 7, seq: 1 }, b"ping");
    let give = |rig: &mut Rig, tail: u8| {
        let from = Ipv4Addr::new(10, 0, 0, tail);
        rig.give(&Ipv4::new(from, HOST_IP, protocol::ICMP).with(&message));
    };
    for tail in 3..=194 {
        give(&mut rig, tail);
    }
    assert_eq!(rig.count(Counter::NeighTableFulls), 0);
    let before = rig.count(Counter::NeighForcedGcRuns);
    for round in 0..10 {
        for tail in 195..250 {
            give(&mut rig, tail);
            give(&mut rig, 3 + round);
        }
    }
    assert_eq!(rig.count(Counter::NeighTableFulls), 550);
    // 550 unknown neighbors that scan 16 of 192 entries each, and one complete scan: 46 runs and a
    // few.
    let runs = rig.count(Counter::NeighForcedGcRuns) - before;
    assert!(runs < 55, "{runs} rounds");
    rig.pass(Duration::from_secs(10));
    let _ = rig.take();
    rig.finish();
}

/// Stores events.
#[derive(Debug, Default)]
struct Kept(Mutex<Vec<Event>>);

impl EventSink for Kept {
    fn on_event(&self, event: Event) {
        self.0.lock().expect("no panic").push(event);
    }
}

impl Kept {
    fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.lock().expect("no panic"))
    }
}

const CLAIM: ArpPacket = ArpPacket::request(HOST_MAC, Ipv4Addr::UNSPECIFIED, HOST_IP);
const ANNOUNCEMENT: ArpPacket = ArpPacket::announcement(HOST_MAC, HOST_IP);

/// Returns a host that has just begun to claim its address, with the numbers of RFC 5227.
fn claiming_rig() -> (Rig, Arc<Kept>) {
    let mut rig = silent_rig(&[("net.quietline.acd_probes", "3")]);
    let (host, kept) = (rig.host(), Arc::new(Kept::default()));
    host.set_event_sink(Arc::clone(&kept) as _);
    host.claim_addresses(&mut rig.world.cx);
    (rig, kept)
}

/// Returns the host's broadcast ARP packets in this time, with the milliseconds since its start.
fn broadcasts(rig: &mut Rig, time: Duration) -> Vec<(u64, ArpPacket)> {
    const STEP: Duration = Duration::from_millis(10);
    let mut broadcasts = Vec::new();
    for step in 1..=u64::try_from(time.as_millis() / STEP.as_millis()).expect("short") {
        rig.pass(STEP);
        for seen in rig.take() {
            match seen {
                Seen::Arp(MacAddr::BROADCAST, arp) => broadcasts.push((step * 10, arp)),
                other => panic!("{other:?}"),
            }
        }
    }
    broadcasts
}

/// RFC 5227 §1.1: PROBE_WAIT 1 s, PROBE_MIN 1 s, PROBE_MAX 2 s, ANNOUNCE_WAIT 2 s,
/// ANNOUNCE_INTERVAL 2 s.
#[test]
fn an_address_is_probed_and_then_announced() {
    let (mut rig, kept) = claiming_rig();
    assert_eq!(rig.host().claim_state(), ClaimState::Probing);
    let broadcasts = broadcasts(&mut rig, Duration::from_secs(12));
    let packets: Vec<_> = broadcasts.iter().map(|(_, arp)| *arp).collect();
    assert_eq!(packets, [CLAIM, CLAIM, CLAIM, ANNOUNCEMENT, ANNOUNCEMENT]);
    let times: Vec<_> = broadcasts.iter().map(|(at, _)| *at).collect();
    let pauses: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(times[0] <= 1010, "{times:?}");
    for pause in &pauses[..2] {
        assert!((990..=2010).contains(pause), "{times:?}");
    }
    for pause in &pauses[2..] {
        assert!((1990..=2010).contains(pause), "{times:?}");
    }
    assert_eq!(rig.host().claim_state(), ClaimState::Ready);
    let device = rig.host().device_name(DeviceIndex(1)).to_owned();
    assert_eq!(kept.take(), [Event::AddressReady { device, address: HOST_IP.into() }]);
    rig.finish();
}

#[test]
fn addresses_are_not_probed_by_default() {
    let mut rig = silent_rig(&[]);
    rig.host().claim_addresses(&mut rig.world.cx);
    assert_eq!(rig.host().claim_state(), ClaimState::Ready);
    assert_eq!(broadcasts(&mut rig, Duration::from_secs(12)), []);
    rig.finish();
}

#[test]
fn requests_for_a_tentative_address_are_not_answered() {
    let (mut rig, _) = claiming_rig();
    let question = ArpPacket::request(PEER_MAC, PEER_IP, HOST_IP);
    rig.give_arp(MacAddr::BROADCAST, &question);
    assert_eq!(rig.take(), []);
    let _ = broadcasts(&mut rig, Duration::from_secs(12));
    rig.give_arp(MacAddr::BROADCAST, &question);
    assert_eq!(rig.take(), [Seen::Arp(PEER_MAC, question.reply(HOST_MAC))]);
    rig.finish();
}

#[test]
fn an_address_that_another_station_has_or_probes_is_refused() {
    let answer = CLAIM.reply(OTHER_MAC);
    let announcement = ArpPacket::announcement(OTHER_MAC, HOST_IP);
    let rival = ArpPacket::request(OTHER_MAC, Ipv4Addr::UNSPECIFIED, HOST_IP);
    for told in [answer, announcement, rival] {
        let (mut rig, kept) = claiming_rig();
        assert_eq!(broadcasts(&mut rig, Duration::from_secs(1)).len(), 1, "the first probe");
        rig.give_arp(MacAddr::BROADCAST, &told);
        let refused = ClaimState::Refused { address: HOST_IP.into(), mac: OTHER_MAC };
        assert_eq!(rig.host().claim_state(), refused, "{told:?}");
        assert_eq!(broadcasts(&mut rig, Duration::from_secs(12)), [], "no further probe");
        let device = rig.host().device_name(DeviceIndex(1)).to_owned();
        let event = Event::AddressConflict { device, address: HOST_IP.into(), mac: OTHER_MAC };
        assert_eq!(kept.take(), [event]);
        assert_eq!(rig.count(Counter::ArpConflicts), 1);
        rig.finish();
    }
}

#[test]
fn a_looped_back_probe_is_no_conflict() {
    let (mut rig, kept) = claiming_rig();
    let _ = broadcasts(&mut rig, Duration::from_secs(1));
    rig.give_arp(MacAddr::BROADCAST, &CLAIM);
    let _ = broadcasts(&mut rig, Duration::from_secs(12));
    rig.give_arp(MacAddr::BROADCAST, &ANNOUNCEMENT);
    assert_eq!(rig.host().claim_state(), ClaimState::Ready);
    assert_eq!((rig.count(Counter::ArpConflicts), kept.take().len()), (0, 1));
    rig.finish();
}

/// RFC 5227 §2.4 (c) and DEFEND_INTERVAL.
#[test]
fn an_address_in_use_is_defended_once_in_ten_seconds() {
    let (mut rig, kept) = claiming_rig();
    let _ = broadcasts(&mut rig, Duration::from_secs(12));
    let _ = kept.take();
    let theft = ArpPacket::announcement(OTHER_MAC, HOST_IP);
    for expected in [1, 0, 0] {
        rig.give_arp(MacAddr::BROADCAST, &theft);
        let defense = vec![Seen::Arp(MacAddr::BROADCAST, ANNOUNCEMENT); expected];
        assert_eq!(rig.take(), defense);
    }
    rig.pass(Duration::from_secs(10));
    rig.give_arp(MacAddr::BROADCAST, &theft);
    assert_eq!(rig.take(), [Seen::Arp(MacAddr::BROADCAST, ANNOUNCEMENT)]);
    assert_eq!((rig.count(Counter::ArpConflicts), kept.take().len()), (4, 2));
    assert_eq!(rig.host().claim_state(), ClaimState::Ready);
    rig.finish();
}
