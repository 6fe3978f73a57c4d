use pkt::{Domain, DomainConfig, Pool};
use proptest::prelude::*;

use super::*;

use crate::sysctl::modes::NeighborConfig;

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const REACHABLE: Duration = Duration::from_secs(30);

const GRATUITOUS_B: Advertisement =
    Advertisement { mac: B, solicited: false, change: LinkChange::AtOnce };

const fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

const fn reply(mac: MacAddr) -> Advertisement {
    Advertisement { mac, solicited: true, change: LinkChange::AfterLock }
}

const fn unsolicited(mac: MacAddr) -> Advertisement {
    Advertisement { mac, solicited: false, change: LinkChange::AfterLock }
}

/// Neighbor with its settings and packet memory.
struct Bench {
    config: NeighborConfig,
    neighbor: Neighbor,
    domain: Domain,
    pool: Pool,
}

impl Bench {
    fn new() -> Self {
        let domain = Domain::new(DomainConfig::default());
        let pool = domain.pool();
        let neighbor = Neighbor::new(Instant::ZERO, REACHABLE);
        Self { config: NeighborConfig::default(), neighbor, domain, pool }
    }

    fn packets(&mut self, count: u8) -> PacketList {
        let mut list = PacketList::new();
        for number in 0..count {
            let mut packet = self.pool.alloc().unwrap();
            packet.append(&mut self.pool, &[number]);
            list.push_back(packet);
        }
        list
    }

    fn send(&mut self, count: u8, now: Instant) -> Vec<String> {
        let mut packets = self.packets(count);
        let actions = self.neighbor.output(&mut packets, now, &self.config);
        assert!(packets.is_empty());
        described(actions)
    }

    fn receive(&mut self, advertisement: Advertisement, now: Instant) -> Vec<String> {
        described(self.neighbor.on_advertisement(advertisement, now, &self.config))
    }

    /// Fires the timer at its deadline, which must be `expected`.
    fn timer(&mut self, expected: Instant) -> Vec<String> {
        assert_eq!(self.neighbor.next_deadline(), Some(expected));
        let early = expected - Duration::from_nanos(1);
        assert_eq!(
            described(self.neighbor.on_timer(early, &self.config)),
            [""; 0],
            "a call before the deadline has no effect"
        );
        described(self.neighbor.on_timer(expected, &self.config))
    }
}

/// Describes actions in words. Packets are shown by their first byte.
fn described(actions: NeighborActions) -> Vec<String> {
    let numbers = |packets: PacketList| {
        packets.map(|packet| packet.linear()[0].to_string()).collect::<Vec<_>>().join(" ")
    };
    let describe = |action| match action {
        NeighborAction::SendProbe { unicast: None } => "request to all".to_owned(),
        NeighborAction::SendProbe { unicast: Some(mac) } => format!("request to {mac}"),
        NeighborAction::Flush { mac, packets } => format!("send {mac}: {}", numbers(packets)),
        NeighborAction::Fail { reason, packets } => format!("{reason}: {}", numbers(packets)),
    };
    actions.into_iter().map(describe).collect()
}

#[test]
fn packets_wait_for_the_reply() {
    let mut bench = Bench::new();
    assert_eq!(bench.send(2, at(0)), ["request to all"]);
    assert_eq!(bench.neighbor.state(), NudState::Incomplete);
    assert_eq!(bench.send(1, at(5)), [""; 0], "a request is pending");
    assert_eq!(bench.neighbor.queue_len(), 3);
    assert!(!bench.neighbor.may_collect(), "packets wait");
    assert_eq!(bench.receive(reply(A), at(10)), ["send 02:00:00:00:00:01: 0 1 0"]);
    assert_eq!(bench.neighbor.state(), NudState::Reachable);
    assert_eq!(bench.send(1, at(20)), ["send 02:00:00:00:00:01: 0"]);
    assert_eq!(bench.domain.balance(), 0);
}

#[test]
fn resolution_fails_after_three_requests() {
    let mut bench = Bench::new();
    assert_eq!(bench.send(2, at(0)), ["request to all"]);
    assert_eq!(bench.timer(at(1_000)), ["request to all"]);
    assert_eq!(bench.timer(at(2_000)), ["request to all"]);
    assert_eq!(bench.timer(at(3_000)), ["NEIGH_FAILED: 0 1"]);
    assert_eq!(bench.neighbor.state(), NudState::Failed);
    assert_eq!(bench.neighbor.next_deadline(), None);
    assert!(bench.neighbor.may_collect());
    assert_eq!(
        bench.send(1, at(3_001)),
        ["request to all"],
        "the next packet starts another resolution"
    );
    assert_eq!(bench.receive(reply(B), at(3_002)), ["send 02:00:00:00:00:02: 0"]);
}

#[test]
fn the_oldest_packets_are_dropped_when_the_queue_is_full() {
    let mut bench = Bench::new();
    bench.config.unres_qlen = 3;
    assert_eq!(bench.send(5, at(0)), ["request to all", "NEIGH_QUEUEFULL: 0 1"]);
    assert_eq!(bench.neighbor.queue_len(), 3);
    assert_eq!(bench.send(1, at(1)), ["NEIGH_QUEUEFULL: 2"]);
    assert_eq!(bench.receive(reply(A), at(2)), ["send 02:00:00:00:00:01: 3 4 0"]);
}

#[test]
fn the_memory_of_waiting_packets_is_bounded_but_one_packet_fits() {
    let mut bench = Bench::new();
    bench.config.unres_qlen_bytes = 0;
    assert_eq!(bench.send(1, at(0)), ["request to all"]);
    assert_eq!(bench.neighbor.queue_len(), 1);
    assert_eq!(bench.send(1, at(1)), ["NEIGH_QUEUEFULL: 0"]);
    let truesize = bench.packets(1).pop_front().unwrap().truesize();
    bench.config.unres_qlen_bytes = truesize * 2;
    assert_eq!(bench.send(1, at(2)), [""; 0]);
    assert_eq!(bench.send(1, at(3)), ["NEIGH_QUEUEFULL: 0"]);
    assert_eq!(bench.neighbor.queue_len(), 2);
}

#[test]
fn a_reachable_neighbor_becomes_stale_when_unused() {
    let mut bench = Bench::new();
    bench.send(1, at(0));
    bench.receive(reply(A), at(10));
    assert_eq!(bench.timer(at(30_010)), [""; 0]);
    assert_eq!(bench.neighbor.state(), NudState::Stale);
    assert_eq!(bench.neighbor.next_deadline(), None, "no timer is needed until the next use");
    assert_eq!(bench.neighbor.published(), None, "the next use must be noticed");
}

#[test]
fn a_confirmation_extends_the_reachable_time_without_a_probe() {
    let mut bench = Bench::new();
    bench.send(1, at(0));
    bench.receive(reply(A), at(0));
    bench.neighbor.on_confirmed(at(20_000));
    bench.neighbor.on_confirmed(at(19_000));
    assert_eq!(bench.timer(at(30_000)), [""; 0]);
    assert_eq!(bench.neighbor.state(), NudState::Reachable);
    assert_eq!(bench.neighbor.next_deadline(), Some(at(50_000)));
}

#[test]
fn a_stale_neighbor_is_used_at_once_and_probed_after_a_delay() {
    let mut bench = Bench::new();
    assert_eq!(bench.receive(unsolicited(A), at(0)), [""; 0]);
    assert_eq!(bench.neighbor.state(), NudState::Stale);
    assert_eq!(bench.send(1, at(100)), ["send 02:00:00:00:00:01: 0"]);
    assert_eq!(bench.neighbor.state(), NudState::Delay);
    assert_eq!(bench.timer(at(5_100)), ["request to 02:00:00:00:00:01"]);
    assert_eq!(bench.neighbor.state(), NudState::Probe);
    assert_eq!(
        bench.send(1, at(5_200)),
        ["send 02:00:00:00:00:01: 0"],
        "the old address is still used"
    );
    assert_eq!(bench.timer(at(6_100)), ["request to 02:00:00:00:00:01"]);
    assert_eq!(bench.receive(reply(A), at(6_200)), [""; 0]);
    assert_eq!(bench.neighbor.state(), NudState::Reachable);
    assert_eq!(bench.neighbor.next_deadline(), Some(at(36_200)));
}

#[test]
fn a_confirmation_during_the_delay_saves_the_probe() {
    let mut bench = Bench::new();
    bench.receive(unsolicited(A), at(0));
    bench.send(1, at(100));
    bench.neighbor.on_confirmed(at(150));
    assert_eq!(bench.timer(at(5_100)), [""; 0]);
    assert_eq!(bench.neighbor.state(), NudState::Reachable);
    assert_eq!(bench.neighbor.next_deadline(), Some(at(30_150)));
}

#[test]
fn an_unreachable_neighbor_fails_after_unicast_probes() {
    let mut bench = Bench::new();
    bench.receive(unsolicited(A), at(0));
    bench.send(1, at(0));
    for second in [5, 6, 7] {
        assert_eq!(bench.timer(at(second * 1_000)), ["request to 02:00:00:00:00:01"]);
    }
    assert_eq!(bench.timer(at(8_000)), [""; 0], "no packet waits");
    assert_eq!(bench.neighbor.state(), NudState::Failed);
    assert_eq!(bench.neighbor.link_address(), None);
    assert_eq!(bench.send(1, at(8_001)), ["request to all"]);
}

#[test]
fn the_first_of_two_different_replies_is_kept_for_a_second() {
    let mut bench = Bench::new();
    bench.send(1, at(0));
    bench.receive(reply(A), at(10));
    bench.receive(reply(B), at(11));
    bench.receive(unsolicited(B), at(1_010));
    assert_eq!(bench.neighbor.link_address(), Some(A));
    bench.receive(unsolicited(B), at(1_011));
    assert_eq!(bench.neighbor.link_address(), Some(B));
    assert_eq!(
        bench.neighbor.state(),
        NudState::Stale,
        "an unsolicited packet proves no reachability"
    );
}

#[test]
fn a_reply_is_awaited_while_incomplete_and_in_probe_from_the_known_link_address() {
    let mut bench = Bench::new();
    assert!(!bench.neighbor.awaits(reply(A)), "no request was sent");
    bench.send(1, at(0));
    assert!(bench.neighbor.awaits(reply(A)) && bench.neighbor.awaits(reply(B)));
    assert!(!bench.neighbor.awaits(unsolicited(A)));
    bench.receive(reply(A), at(10));
    assert!(!bench.neighbor.awaits(reply(A)), "the reply has arrived");
    bench.send(1, at(30_000));
    bench.timer(at(30_010));
    assert_eq!(bench.neighbor.state(), NudState::Delay);
    bench.timer(at(35_010));
    assert_eq!(bench.neighbor.state(), NudState::Probe);
    assert!(bench.neighbor.awaits(reply(A)) && !bench.neighbor.awaits(reply(B)));
}

#[test]
fn an_announcement_replaces_the_link_address_at_once() {
    let mut bench = Bench::new();
    bench.send(1, at(0));
    bench.receive(reply(A), at(10));
    assert_eq!(bench.receive(GRATUITOUS_B, at(11)), [""; 0]);
    assert_eq!(bench.neighbor.link_address(), Some(B));
    bench.send(1, at(12));
    assert_eq!(
        bench.timer(at(5_012)),
        ["request to 02:00:00:00:00:02"],
        "the old confirmation does not count"
    );
}

#[test]
fn an_unsolicited_packet_with_the_same_address_changes_nothing() {
    let mut bench = Bench::new();
    bench.send(1, at(0));
    bench.receive(reply(A), at(10));
    bench.receive(unsolicited(A), at(5_000));
    assert_eq!(bench.neighbor.state(), NudState::Reachable);
    assert_eq!(bench.neighbor.next_deadline(), Some(at(30_010)));
}

#[test]
fn an_unsolicited_link_address_sends_waiting_packets_and_starts_the_delay() {
    let mut bench = Bench::new();
    bench.send(1, at(0));
    assert_eq!(bench.receive(unsolicited(A), at(10)), ["send 02:00:00:00:00:01: 0"]);
    assert_eq!(bench.neighbor.state(), NudState::Delay);
}

#[test]
fn advertisements_and_use_do_not_change_a_permanent_entry() {
    let mut bench = Bench::new();
    assert_eq!(described(bench.neighbor.set_permanent(A, at(0))), [""; 0]);
    for advertisement in [reply(B), unsolicited(B), GRATUITOUS_B] {
        bench.receive(advertisement, at(10));
    }
    assert_eq!(bench.send(1, at(100_000)), ["send 02:00:00:00:00:01: 0"]);
    assert_eq!(bench.neighbor.published(), Some(A));
    assert_eq!(bench.neighbor.next_deadline(), None);
    assert!(!bench.neighbor.may_collect());
}

#[test]
fn setting_a_permanent_link_address_sends_waiting_packets() {
    let mut bench = Bench::new();
    bench.send(2, at(0));
    assert_eq!(described(bench.neighbor.set_permanent(A, at(1))), ["send 02:00:00:00:00:01: 0 1"]);
    assert_eq!(
        (bench.neighbor.state(), bench.neighbor.next_deadline()),
        (NudState::Permanent, None)
    );
    assert_eq!(
        described(bench.neighbor.set_permanent(B, at(2))),
        [""; 0],
        "no packet waits for the second address"
    );
    assert_eq!(bench.send(1, at(3)), ["send 02:00:00:00:00:02: 0"]);
    assert_eq!(described(bench.neighbor.forget(at(4))), [""; 0]);
    assert_eq!((bench.neighbor.state(), bench.neighbor.published()), (NudState::None, None));
    assert!(bench.neighbor.may_collect());
    assert_eq!(bench.send(1, at(5)), ["request to all"], "a forgotten address is requested again");
    assert_eq!(described(bench.neighbor.forget(at(6))), ["NEIGH_FAILED: 0"]);
    assert_eq!(bench.domain.balance(), 0);
}

#[test]
fn shutting_down_drops_the_waiting_packets() {
    let mut bench = Bench::new();
    bench.send(2, at(0));
    assert_eq!(described(bench.neighbor.shut_down(at(1))), ["NEIGH_FAILED: 0 1"]);
    assert_eq!(bench.domain.balance(), 0);
}

#[test]
fn reachable_times_are_spread_around_the_base() {
    let config = NeighborConfig::default();
    assert_eq!(config.reachable_time(0), Duration::from_secs(15));
    assert_eq!(config.reachable_time(1 << 31), Duration::from_secs(30));
    assert!(config.reachable_time(u32::MAX) < Duration::from_secs(45));
}

/// RFC 4861 §7.2.5: advertisements without and with the Override flag.
#[test]
fn an_advertisement_without_override_never_replaces_a_link_address() {
    let mut bench = Bench::new();
    let ndp = |mac, solicited, replaces| {
        let change = if replaces { LinkChange::AtOnce } else { LinkChange::Never };
        Advertisement { mac, solicited, change }
    };
    let _ = bench.send(1, at(0));
    assert_eq!(bench.receive(ndp(A, true, false), at(1)), [format!("send {A}: 0")]);
    assert_eq!(bench.neighbor.state(), NudState::Reachable);
    // Another link address only ends the state REACHABLE.
    let _ = bench.receive(ndp(B, true, false), at(5000));
    assert_eq!(bench.neighbor.state(), NudState::Stale);
    assert_eq!(bench.neighbor.link_address(), Some(A));
    let _ = bench.receive(ndp(B, true, false), at(6000));
    assert_eq!(bench.neighbor.link_address(), Some(A));
    // With Override, another link address applies at once, whether the advertisement is solicited
    // or not.
    let _ = bench.receive(ndp(B, false, true), at(6001));
    assert_eq!(bench.neighbor.state(), NudState::Stale);
    assert_eq!(bench.neighbor.link_address(), Some(B));
    let _ = bench.receive(ndp(A, true, true), at(6002));
    assert_eq!(bench.neighbor.state(), NudState::Reachable);
    assert_eq!(bench.neighbor.link_address(), Some(A));
}

#[derive(Clone, Debug)]
enum Event {
    Send(u8),
    Receive(Advertisement),
    Set(bool),
    Forget,
    Confirm,
    Timer,
    Wait(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let advertisement =
        (any::<bool>(), any::<bool>(), 0..3_usize).prop_map(|(first, solicited, change)| {
            let change = [LinkChange::AfterLock, LinkChange::AtOnce, LinkChange::Never][change];
            Event::Receive(Advertisement { mac: if first { A } else { B }, solicited, change })
        });
    let event = prop_oneof![
        3 => (1_u8..8).prop_map(Event::Send),
        2 => advertisement,
        1 => any::<bool>().prop_map(Event::Set),
        1 => Just(Event::Forget),
        1 => Just(Event::Confirm),
        3 => Just(Event::Timer),
        2 => (0_u64..40_000).prop_map(Event::Wait),
    ];
    proptest::collection::vec(event, 1..60)
}

proptest! {
    /// For any sequence of events, every packet either waits or has left by exactly one action, and
    /// the invariants of each state hold.
    #[test]
    fn every_packet_waits_or_leaves_by_one_action(events in events()) {
        let mut bench = Bench::new();
        bench.config.unres_qlen = 5;
        let (mut now, mut sent, mut left) = (at(0), 0, 0);
        for event in events {
            let actions = match event {
                Event::Send(count) => {
                    sent += usize::from(count);
                    let mut packets = bench.packets(count);
                    bench.neighbor.output(&mut packets, now, &bench.config)
                }
                Event::Receive(advertisement) => {
                    bench.neighbor.on_advertisement(advertisement, now, &bench.config)
                }
                Event::Set(first) => {
                    bench.neighbor.set_permanent(if first { A } else { B }, now)
                }
                Event::Forget => bench.neighbor.forget(now),
                Event::Confirm => {
                    bench.neighbor.on_confirmed(now);
                    NeighborActions::new()
                }
                Event::Timer => {
                    now = now.max(bench.neighbor.next_deadline().unwrap_or(now));
                    bench.neighbor.on_timer(now, &bench.config)
                }
                Event::Wait(millis) => {
                    now += Duration::from_millis(millis);
                    NeighborActions::new()
                }
            };
            for action in actions {
                if let NeighborAction::Flush { packets, .. } | NeighborAction::Fail { packets, .. } = action {
                    prop_assert!(!packets.is_empty());
                    left += packets.len();
                }
            }
            let neighbor = &bench.neighbor;
            prop_assert_eq!(neighbor.queue_len(), sent - left);
            prop_assert!(neighbor.queue_len() <= 5);
            prop_assert_eq!(neighbor.link_address().is_some(), neighbor.state().is_valid());
            let waits = matches!(
                neighbor.state(),
                NudState::Incomplete | NudState::Reachable | NudState::Delay | NudState::Probe
            );
            prop_assert_eq!(neighbor.next_deadline().is_some(), waits, "{:?}", neighbor.state());
            prop_assert!(neighbor.queue_len() == 0 || neighbor.state() == NudState::Incomplete);
        }
        prop_assert_eq!(usize::try_from(bench.domain.balance()).unwrap(), sent - left);
    }
}
