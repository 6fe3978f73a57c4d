//! The devices of this workspace pass, and devices with one fault fail the check that is about it.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use stack::device::{Loopback, Wire, WireConfig};

use super::{Pair, Report, run};
use crate::{
    Attachment,
    device::{
        AfPacket, AfPacketConfig, Batch, Capabilities, Completed, Cx, Device, Doorbell, Instant,
        Packet, PacketList, QueueId, RxSignal, Tun, TunConfig,
        namespace::{self, in_namespace},
    },
};

fn wires(config: WireConfig) -> impl FnMut() -> Pair {
    move || {
        let (left, right) = Wire::pair(&config).expect("a wire");
        Pair::new(left, right)
    }
}

/// Asserts that no check failed, and that exactly these did not apply.
#[track_caller]
fn assert_all_but(report: &Report, not_applicable: &[&str]) {
    report.assert_passed();
    let passed: Vec<_> = report.passed().collect();
    let without: Vec<_> = super::direct::CHECKS
        .iter()
        .chain(&super::stacks::CHECKS)
        .map(|(name, _)| *name)
        .filter(|name| !passed.contains(name))
        .collect();
    assert_eq!(without, not_applicable, "\n{report}");
}

const GONE: &str = "a_device_that_is_gone_is_removed";

#[test]
fn a_wire_passes() {
    assert_all_but(&run(wires(WireConfig::default())), &[GONE]);
}

#[test]
fn a_wire_without_offloads_passes() {
    let config = WireConfig { checksums: true, queues: 2, ..WireConfig::default() };
    let not = ["partial_checksums_are_completed", "superframes_arrive_whole", GONE];
    assert_all_but(&run(wires(config)), &not);
}

#[test]
fn a_wire_that_takes_time_and_completes_later_passes() {
    let mut config = WireConfig::default();
    for impairment in [&mut config.forward, &mut config.backward] {
        impairment.delay = Duration::from_millis(1);
        impairment.rate_bps = Some(1_000_000_000);
        impairment.ring_packets = Some(64);
    }
    assert_all_but(&run(wires(config)), &[GONE]);
}

#[test]
fn loopback_passes() {
    let report = run(|| Pair::looped(Arc::new(Loopback::new(1)) as Arc<dyn Device>));
    let stacks: Vec<_> = super::stacks::CHECKS.iter().map(|(name, _)| *name).collect();
    assert_all_but(&report, &stacks);
}

/// Two taps as ports of a bridge of the kernel.
fn bridged_taps(vnet_hdr: bool, queues: u16) -> Pair {
    namespace::run("ip link add name bridge0 type bridge forward_delay 0 mcast_snooping 0");
    namespace::run("ip link set bridge0 up");
    let tap = |name: &str| {
        let config = TunConfig { vnet_hdr, queues, ..TunConfig::tap(name) };
        let tap = Tun::create(&config).expect("a tap");
        namespace::run(&format!("ip link set {name} master bridge0"));
        tap
    };
    let pair = Pair::new(tap("left0"), tap("right0"));
    pair.unplug(|| namespace::run("ip link del left0")).keep(Cleanup("ip link del bridge0"))
}

/// Runs a command when it is dropped.
struct Cleanup(&'static str);

impl Drop for Cleanup {
    fn drop(&mut self) {
        namespace::run(self.0);
    }
}

#[test]
fn taps_pass() {
    in_namespace(|| assert_all_but(&run(|| bridged_taps(true, 1)), &[]));
}

#[test]
fn taps_without_offloads_and_with_two_queues_pass() {
    in_namespace(|| {
        let not = ["partial_checksums_are_completed", "superframes_arrive_whole"];
        assert_all_but(&run(|| bridged_taps(false, 2)), &not);
    });
}

/// Two tuns with the kernel as a router between them.
fn routed_tuns() -> Pair {
    let tun = |name: &str, net: u8| {
        let host_address = Some(format!("10.78.{net}.1/24").parse().expect("an address"));
        Tun::create(&TunConfig { host_address, ..TunConfig::tun(name) }).expect("a tun")
    };
    let pair = Pair::new(tun("left0", 1), tun("right0", 2));
    let addresses = ["10.78.1.2", "10.78.2.2"].map(|text| text.parse().expect("an address"));
    let pair = pair.addresses(addresses[0], addresses[1]);
    pair.unplug(|| namespace::run("ip link del left0"))
}

#[test]
fn tuns_pass() {
    in_namespace(|| {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("the kernel's setting");
        assert_all_but(&run(routed_tuns), &[]);
    });
}

#[test]
fn packet_sockets_on_the_ends_of_a_veth_pair_pass() {
    in_namespace(|| {
        let make = || {
            namespace::run("ip link add left0 type veth peer name right0");
            namespace::run("ip link set left0 up");
            namespace::run("ip link set right0 up");
            let open = |name| AfPacket::open(&AfPacketConfig::new(name)).expect("privileges");
            let pair = Pair::new(open("left0"), open("right0"));
            let pair = pair.unplug(|| namespace::run("ip link del right0"));
            pair.keep(Veth)
        };
        run(make).assert_passed();
    });
}

/// Deletes the veth pair, unless a check has done so.
struct Veth;

impl Drop for Veth {
    fn drop(&mut self) {
        let deleted = std::process::Command::new("ip").args(["link", "del", "left0"]).output();
        drop(deleted);
    }
}

/// What is wrong with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    LosesAFrame,
    DoublesAFrame,
    ChangesAByte,
    SwapsFrames,
    HasNoTimeOfArrival,
    ReturnsMoreThanItsBudget,
    LeavesTheListReversed,
    KeepsPacketsForEver,
    KeepsCharges,
    NeverCompletes,
    CompletesTwice,
    IgnoresPartialChecksums,
    ForgetsThatItIsASuperframe,
    DoesNotRing,
    DeniesItsHost,
    IsDeafAfterItWasDown,
    DoesNotSayThatItIsGone,
    ClaimsSuperframesWithoutChecksums,
}

/// One end of a cable inside the process, with a fault.
#[derive(Debug)]
struct Faulty {
    caps: Capabilities,
    fault: Fault,
    incoming: Arc<Lane>,
    outgoing: Arc<Lane>,
    /// Sent and not completed.
    sent: Mutex<Vec<Packet>>,
    received: AtomicUsize,
    down: AtomicBool,
}

#[derive(Debug, Default)]
struct Lane {
    packets: Mutex<VecDeque<Packet>>,
    doorbell: Mutex<Option<Doorbell>>,
}

/// Packets that a lane holds.
const ROOM: usize = 300;

impl Faulty {
    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }
}

impl Device for Faulty {
    fn caps(&self) -> &Capabilities {
        &self.caps
    }

    fn receive(&self, _: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
        if self.down.load(Ordering::Relaxed) {
            return 0;
        }
        let mut packets = self.incoming.packets.lock().expect("no panic");
        let before = out.len();
        if self.has(Fault::SwapsFrames) && packets.len() > 1 {
            packets.swap(0, 1);
        }
        let mut taken = out.take_from(&mut packets, budget);
        if !self.has(Fault::HasNoTimeOfArrival) {
            out.packets_mut()[before..].iter_mut().for_each(|p| p.meta_mut().timestamp = cx.now);
        }
        if taken == 0 || self.received.fetch_add(taken, Ordering::Relaxed) > 0 {
            return taken;
        }
        // The first frames that arrive.
        match self.fault {
            Fault::LosesAFrame => {
                let mut all: Vec<Packet> = out.drain().collect();
                cx.pool.free(all.pop().expect("one was taken"));
                all.into_iter().for_each(|packet| out.push(packet).expect("room"));
            }
            Fault::DoublesAFrame => {
                let copy = out.packets()[0].deep_copy(&mut cx.pool).expect("memory");
                packets.push_back(copy);
            }
            Fault::ChangesAByte => {
                let mut bytes = out.packets()[0].to_vec();
                *bytes.last_mut().expect("a frame") ^= 1;
                let mut changed = cx.pool.alloc_from(&bytes).expect("memory");
                changed.meta_mut().timestamp = cx.now;
                let mut all: Vec<Packet> = out.drain().collect();
                cx.pool.free(core::mem::replace(&mut all[0], changed));
                all.into_iter().for_each(|packet| out.push(packet).expect("room"));
            }
            Fault::ReturnsMoreThanItsBudget => taken = budget + 1,
            _ => {}
        }
        taken
    }

    fn transmit(&self, _: QueueId, cx: &mut Cx, list: &mut PacketList) {
        let mut packets = self.outgoing.packets.lock().expect("no panic");
        while packets.len() < ROOM
            && let Some(mut packet) = list.pop_front()
        {
            let mut copy = packet.deep_copy(&mut cx.pool).expect("memory");
            let (meta, from) = (copy.meta_mut(), *packet.meta());
            meta.gso = from.gso;
            meta.rx_checksum = pkt::RxChecksum::Unnecessary;
            if self.has(Fault::IgnoresPartialChecksums) {
                meta.rx_checksum = pkt::RxChecksum::None;
            }
            if self.has(Fault::ForgetsThatItIsASuperframe) {
                meta.gso = pkt::Gso::default();
            }
            packets.push_back(copy);
            if self.caps.async_completion {
                self.sent.lock().expect("no panic").push(packet);
            } else if self.has(Fault::KeepsPacketsForEver) {
                packet.orphan();
                core::mem::forget(packet);
            } else if self.has(Fault::KeepsCharges) {
                packets.push_back(packet);
            } else {
                cx.pool.free(packet);
            }
        }
        if self.has(Fault::LeavesTheListReversed) {
            let mut rest: Vec<Packet> = list.collect();
            rest.reverse();
            list.extend(rest);
        }
        drop(packets);
        let doorbell = self.outgoing.doorbell.lock().expect("no panic").clone();
        if let Some(doorbell) = doorbell.filter(|_| !self.has(Fault::DoesNotRing)) {
            doorbell.ring(cx);
        }
    }

    fn complete(&self, _: QueueId, cx: &mut Cx) -> Completed {
        let mut completed = Completed::NONE;
        if self.has(Fault::NeverCompletes) {
            return completed;
        }
        for packet in self.sent.lock().expect("no panic").drain(..) {
            completed.add(packet.len());
            if self.has(Fault::CompletesTwice) {
                completed.add(packet.len());
            }
            cx.pool.free(packet);
        }
        completed
    }

    fn next_deadline(&self, _: QueueId) -> Option<Instant> {
        (!self.sent.lock().expect("no panic").is_empty()).then_some(Instant::ZERO)
    }

    fn rx_signal(&self, _: QueueId) -> RxSignal {
        RxSignal::Doorbell
    }

    fn attach(&self, _: QueueId, doorbell: Doorbell) {
        *self.incoming.doorbell.lock().expect("no panic") = Some(doorbell);
    }

    fn is_attached(&self) -> bool {
        !self.has(Fault::DeniesItsHost)
            && self.incoming.doorbell.lock().expect("no panic").is_some()
    }

    fn stop(&self, _: QueueId, cx: &mut Cx) {
        self.down.store(true, Ordering::Relaxed);
        for packet in self.incoming.packets.lock().expect("no panic").drain(..) {
            cx.pool.free(packet);
        }
        self.sent.lock().expect("no panic").drain(..).for_each(|packet| cx.pool.free(packet));
    }

    fn start(&self, _: QueueId) {
        self.down.store(self.has(Fault::IsDeafAfterItWasDown), Ordering::Relaxed);
    }
}

fn faulty(fault: Fault, async_completion: bool) -> Pair {
    let lanes = [Arc::new(Lane::default()), Arc::new(Lane::default())];
    let gone = Arc::new(AtomicBool::new(false));
    let end = |number: usize| {
        let (wire, _) = Wire::pair(&WireConfig::default()).expect("a wire");
        let mut caps = Capabilities { async_completion, ..wire.caps().clone() };
        if let crate::device::LinkType::Ethernet { mac } = &mut caps.link {
            mac.0[5] += u8::try_from(number).expect("0 or 1");
        }
        caps.tx_checksum = fault != Fault::ClaimsSuperframesWithoutChecksums;
        let [incoming, outgoing] = [number, 1 - number].map(|lane| Arc::clone(&lanes[lane]));
        let (sent, received, down) = Default::default();
        let device = Faulty { caps, fault, incoming, outgoing, sent, received, down };
        let gone = Arc::clone(&gone);
        Attachment::new(Arc::new(device)).gone_when(move || gone.load(Ordering::Relaxed))
    };
    let (pair, lane) = (Pair::new(end(0), end(1)), Arc::clone(&lanes[0]));
    pair.unplug(move || {
        gone.store(fault != Fault::DoesNotSayThatItIsGone, Ordering::Relaxed);
        let doorbell = lane.doorbell.lock().expect("no panic").clone();
        doorbell.expect("it is attached").wake_gone();
    })
}

#[test]
fn a_device_in_memory_passes() {
    assert_all_but(&run(|| faulty(Fault::None, false)), &[]);
    assert_all_but(&run(|| faulty(Fault::None, true)), &[]);
}

/// The check that is about a fault, run alone, has to fail.
#[track_caller]
fn fails(fault: Fault, async_completion: bool, name: &str) {
    let mut checks = super::direct::CHECKS.iter().chain(&super::stacks::CHECKS);
    let (_, check) = checks.find(|(own, _)| *own == name).expect("a check of this name");
    let outcome = check(faulty(fault, async_completion));
    assert!(matches!(outcome, Err(super::Unmet::Failed(_))), "{fault:?} {name}: {outcome:?}");
}

#[test]
fn a_device_with_a_fault_fails_the_check_that_is_about_it() {
    fails(Fault::DoublesAFrame, false, "frames_arrive_whole_and_in_order");
    fails(Fault::ChangesAByte, false, "frames_arrive_whole_and_in_order");
    fails(Fault::SwapsFrames, false, "frames_arrive_whole_and_in_order");
    fails(Fault::HasNoTimeOfArrival, false, "frames_arrive_whole_and_in_order");
    fails(Fault::ReturnsMoreThanItsBudget, false, "a_poll_keeps_to_its_budget");
    fails(Fault::LeavesTheListReversed, false, "a_full_device_leaves_packets_in_the_list");
    fails(Fault::KeepsCharges, false, "every_packet_is_completed_once");
    fails(Fault::CompletesTwice, true, "every_packet_is_completed_once");
    fails(Fault::IgnoresPartialChecksums, false, "partial_checksums_are_completed");
    fails(Fault::ForgetsThatItIsASuperframe, false, "superframes_arrive_whole");
    fails(Fault::ClaimsSuperframesWithoutChecksums, false, "capabilities_are_valid");
    fails(Fault::DeniesItsHost, false, "a_stack_has_its_device_alone");
}

/// Apart from the others, because each check waits ten seconds for what never comes.
#[test]
fn a_device_that_loses_something_fails_the_check_that_is_about_it() {
    let faults = [
        (Fault::LosesAFrame, false, "frames_arrive_whole_and_in_order"),
        (Fault::NeverCompletes, true, "every_packet_is_completed_once"),
        (Fault::KeepsPacketsForEver, false, "a_dropped_device_frees_its_packets"),
        (Fault::IsDeafAfterItWasDown, false, "a_device_that_was_down_carries_frames_again"),
        (Fault::DoesNotRing, false, "an_arrival_wakes_a_sleeping_worker"),
        (Fault::DoesNotSayThatItIsGone, false, "a_device_that_is_gone_is_removed"),
    ];
    std::thread::scope(|scope| {
        for (fault, async_completion, name) in faults {
            scope.spawn(move || fails(fault, async_completion, name));
        }
    });
}
