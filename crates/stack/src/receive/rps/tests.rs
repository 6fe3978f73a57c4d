//! Steering tests: packet order, choice of the core, drops, and settings that change while the host
//! runs.

#![expect(clippy::cast_possible_truncation, reason = "flows, cores and counts are small here")]

use std::{sync::Arc, vec::Vec};

use pkt::DropReason;

use super::*;
use crate::{
    base::ids::DeviceIndex,
    cx::Memory,
    device::{QueueId, Wire, WireConfig},
    host::{
        Host,
        config::{DeviceConfig, HostConfig},
    },
};

const CORES: u16 = 4;

/// Host whose core 0 polls a device queue, while the other cores process their backlogs.
struct Bench {
    host: Arc<Host>,
    cx: Cx,
    outbox: Outbox,
    steering: Steering,
    backlogs: Vec<BacklogPoll>,
    /// Number of the next packet to arrive, for each flow.
    arrived: Vec<u32>,
    /// Lowest number that may be delivered next, for each flow.
    expected: Vec<u32>,
    up: u64,
}

impl Bench {
    fn new(flows: usize) -> Self {
        let memory = Memory::new(64 << 20);
        let cx = Cx::replay(&memory, 1);
        let (device, _) = Wire::pair(&WireConfig::default()).unwrap();
        let addresses = vec!["10.0.0.1/24".parse().unwrap()];
        let devices = vec![DeviceConfig { device, addresses }];
        let config = HostConfig { devices, cores: CORES, ..HostConfig::replay(0) };
        let host = Host::new(&memory, config).unwrap();
        let backlogs = (0..CORES).map(|core| Arc::clone(host.core(CoreId(core)).shared_backlog()));
        let backlogs = backlogs.collect();
        Self {
            host,
            cx,
            outbox: Outbox::new(CoreId(0), backlogs),
            steering: Steering::default(),
            backlogs: (0..CORES).map(|_| BacklogPoll::default()).collect(),
            arrived: vec![0; flows],
            expected: vec![0; flows],
            up: 0,
        }
    }

    fn set(&mut self, name: &str, value: &str) {
        self.host.set_sysctl(name, value).unwrap();
        let entered = self.cx.enter(&self.host);
        // Entering applies the settings to `cx`. `leave` is not called, because every step of this
        // bench belongs to this host.
        drop(entered);
    }

    fn set_dev(&mut self, word: &str, value: &str) {
        self.set(&format!("net.quietline.dev.wire0.{word}"), value);
    }

    /// Returns the next IP packet of `flow`. The payload holds the number of the packet in its
    /// flow, and the number of the flow.
    fn packet(&mut self, flow: usize) -> Packet {
        let number = self.arrived[flow];
        self.arrived[flow] += 1;
        let mut bytes = [0u8; 48];
        bytes[..10].copy_from_slice(&[0x45, 0, 0, 48, 0, 0, 0x40, 0, 64, 6]);
        bytes[12..20].copy_from_slice(&[10, 0, 0, 2, 10, 0, 0, 1]);
        bytes[20..24].copy_from_slice(&[0x80, flow as u8, 0, 80]);
        bytes[40..44].copy_from_slice(&number.to_be_bytes());
        bytes[44..].copy_from_slice(&(flow as u32).to_be_bytes());
        let mut packet = self.cx.pool.alloc().unwrap();
        packet.append(&mut self.cx.pool, &bytes);
        packet
    }

    fn hash(&mut self, flow: usize) -> u32 {
        let mut packet = self.packet(flow);
        self.arrived[flow] -= 1;
        dissect::flow_hash(&self.host, LinkType::Ip, &mut packet).unwrap()
    }

    /// Runs one poll with a packet for each entry of `flows`. Returns the flows of the packets that
    /// stayed on core 0.
    fn poll(&mut self, flows: &[usize]) -> Vec<usize> {
        let packets: Vec<_> = flows.iter().map(|&flow| self.packet(flow)).collect();
        let host = Arc::clone(&self.host);
        let queue = DeviceQueue { device: DeviceIndex(1), queue: QueueId(0) };
        let steers = self.steering.begin(&host, &self.cx, &self.outbox, queue);
        let mut kept = Vec::new();
        for packet in packets {
            let link = LinkType::Ip;
            let Self { steering, cx, outbox, .. } = self;
            let stays = match steers {
                true => steering.keep(&host, cx, outbox, link, packet),
                false => Some(packet),
            };
            kept.extend(stays.map(|packet| self.goes_up(packet)));
        }
        self.outbox.push(&host, &mut self.cx);
        kept
    }

    /// Processes up to `weight` packets of a core's backlog. Returns their flows.
    fn run(&mut self, core: u16, weight: usize) -> Vec<usize> {
        let host = Arc::clone(&self.host);
        let backlog = host.core(CoreId(core)).backlog();
        let mut flows = Vec::new();
        while flows.len() < weight {
            let packets = self.backlogs[usize::from(core)].take(backlog, weight - flows.len());
            let count = packets.len() as u32;
            if count == 0 {
                break;
            }
            flows.extend(packets.map(|packet| self.goes_up(packet)));
            backlog.lanes().finish(0, count);
        }
        flows
    }

    fn goes_up(&mut self, mut packet: Packet) -> usize {
        assert!(packet.require_linear(48));
        let word = |at| u32::from_be_bytes(packet.linear()[at..at + 4].try_into().unwrap());
        let (number, flow) = (word(40), word(44) as usize);
        assert!(number >= self.expected[flow], "{number} of flow {flow} was overtaken");
        self.expected[flow] = number + 1;
        self.up += 1;
        self.cx.pool.free(packet);
        flow
    }

    fn drain(&mut self) {
        for core in 1..CORES {
            while !self.run(core, 64).is_empty() {}
        }
    }

    fn drops(&self) -> u64 {
        self.host.counters().drops(DropReason::CpuBacklog)
    }
}

/// Property: for any order of changed settings, recorded reads, polls and backlog polls, no packet
/// overtakes another of its flow, and every lost packet is counted.
#[test]
fn no_packet_overtakes_one_of_its_flow_under_any_schedule() {
    const FLOWS: usize = 12;
    for seed in 0..300 {
        let mut bench = Bench::new(FLOWS);
        let mut rng = tcp::Rng::new(seed);
        let mut steered = 0;
        for _ in 0..400 {
            let mut pick =
                |values: &[&str]| values[rng.below(values.len() as u32) as usize].to_owned();
            match pick(&[
                "poll", "poll", "poll", "run", "run", "map", "table", "sockets", "record", "max",
            ])
            .as_str()
            {
                "poll" => {
                    let count = rng.below(20) as usize;
                    let flows: Vec<_> =
                        (0..count).map(|_| rng.below(FLOWS as u32) as usize).collect();
                    steered += count - bench.poll(&flows).len();
                }
                "run" => {
                    let core = 1 + rng.below(3) as u16;
                    bench.run(core, rng.below(30) as usize);
                }
                "map" => bench.set_dev("rps_cpus", &pick(&["0", "1", "2", "e", "f", "ff"])),
                "table" => bench.set_dev("rps_flow_cnt", &pick(&["0", "1", "64", "1024"])),
                "sockets" => {
                    bench.set("net.core.rps_sock_flow_entries", &pick(&["0", "32", "256"]))
                }
                "record" => {
                    let hash = bench.hash(rng.below(FLOWS as u32) as usize);
                    if let Some(flows) = bench.cx.sock_flows() {
                        // Some of the recorded cores do not exist in this host.
                        flows.record(hash, CoreId(rng.below(6) as u16));
                    }
                }
                _ => bench.set("net.core.netdev_max_backlog", &pick(&["5", "1000"])),
            }
        }
        bench.drain();
        let arrived: u32 = bench.arrived.iter().sum();
        assert_eq!(u64::from(arrived), bench.up + bench.drops(), "seed {seed}");
        assert!(steered > 0, "seed {seed} steered no packet");
    }
}

#[test]
fn disabled_steering_has_no_slots_and_keeps_all_packets() {
    let mut bench = Bench::new(1);
    bench.set("net.core.rps_sock_flow_entries", "64");
    assert_eq!(bench.poll(&[0, 0]), [0, 0]);
    assert!(bench.steering.slots.is_empty());
    assert_eq!(bench.steering.poll, 0, "a poll without steering was counted");
}

#[test]
fn a_map_of_all_cores_agrees_with_the_flow_distribution_of_the_host() {
    let mut bench = Bench::new(64);
    bench.set_dev("rps_cpus", "f");
    let all: Vec<_> = (0..64).collect();
    let mut seen = vec![bench.poll(&all)];
    seen.extend((1..CORES).map(|core| bench.run(core, 64)));
    assert!(seen.iter().all(|flows| (8..=24).contains(&flows.len())), "{seen:?}");
    for (core, flows) in (0u16..).zip(seen) {
        for flow in flows {
            let hash = bench.hash(flow);
            assert_eq!(bench.host.core_of_flow(hash), CoreId(core));
        }
    }
}

#[test]
fn cores_that_do_not_exist_are_ignored_in_a_map() {
    let mut bench = Bench::new(8);
    let all: Vec<_> = (0..8).collect();
    bench.set_dev("rps_cpus", "f0");
    assert_eq!(bench.poll(&all), all, "packets were steered by a map without an existing core");
    bench.set_dev("rps_cpus", "f4");
    assert_eq!((bench.poll(&all).len(), bench.run(2, 64).len()), (0, 8));
}

#[test]
fn a_full_backlog_drops_packets_and_counts_them() {
    let mut bench = Bench::new(1);
    bench.set_dev("rps_cpus", "2");
    bench.set("net.core.netdev_max_backlog", "10");
    bench.poll(&[0; 7]);
    bench.poll(&[0; 5]);
    let stat = bench.host.softnet_stat()[1];
    assert_eq!((stat.dropped, stat.input_qlen, bench.drops()), (2, 10, 2));
    assert_eq!(bench.run(1, 64).len(), 10);
    bench.poll(&[0]);
    assert_eq!(
        bench.host.softnet_stat()[1].input_qlen,
        1,
        "the backlog did not accept a packet, although it has room again"
    );
    bench.set("net.core.netdev_max_backlog", "0");
    bench.poll(&[0]);
    assert_eq!(bench.drops(), 3);
}

#[test]
fn the_flow_limit_drops_a_flooding_flow_and_spares_a_small_one() {
    let mut bench = Bench::new(2);
    bench.set_dev("rps_cpus", "2");
    bench.set("net.core.flow_limit_cpu_bitmap", "1");
    for _ in 0..100 {
        bench.poll(&[0; 10]);
    }
    // 500 packets pass until the backlog is half full, then 128, which are half of the history.
    assert_eq!(bench.drops(), 1000 - 500 - 128);
    bench.poll(&[1; 5]);
    assert_eq!(bench.drops(), 372, "packets of the small flow were dropped");
    let stats = bench.host.softnet_stat();
    assert_eq!((stats[0].flow_limit, stats[1].dropped, stats[1].input_qlen), (372, 372, 633));
    bench.set("net.core.flow_limit_cpu_bitmap", "2");
    bench.poll(&[0; 10]);
    assert_eq!(
        bench.drops(),
        372,
        "the flow limit of core 1 was applied to packets that core 0 steers"
    );
}

#[test]
fn a_flow_moves_only_after_its_packets_are_processed() {
    let mut bench = Bench::new(1);
    bench.set_dev("rps_cpus", "2");
    bench.poll(&[0, 0, 0]);
    bench.set_dev("rps_cpus", "4");
    bench.poll(&[0]);
    assert_eq!(
        (bench.run(1, 3).len(), bench.run(2, 64).len()),
        (3, 0),
        "the flow left the core of its earlier packets"
    );
    bench.poll(&[0]);
    assert_eq!((bench.run(1, 64).len(), bench.run(2, 64).len()), (2, 0));
    bench.poll(&[0]);
    assert_eq!((bench.run(1, 64).len(), bench.run(2, 64).len()), (0, 1), "the flow did not move");
}

/// Until the steered packets are processed, the old slots preserve the order.
#[test]
fn disabled_steering_stays_in_effect_until_steered_packets_are_processed() {
    let mut bench = Bench::new(2);
    bench.set_dev("rps_cpus", "2");
    bench.poll(&[0, 0]);
    bench.set_dev("rps_cpus", "0");
    assert_eq!(bench.poll(&[0, 1]), [1], "not only flow 0 was steered");
    assert!(!bench.steering.slots.is_empty());
    bench.drain();
    assert_eq!(bench.poll(&[0, 1]), [0, 1]);
    assert!(bench.steering.slots.is_empty(), "the slots were not freed");
    bench.set_dev("rps_cpus", "2");
    assert_eq!(bench.poll(&[0, 1]), []);
}

#[test]
fn rfs_moves_a_flow_to_the_core_where_its_application_reads() {
    let mut bench = Bench::new(2);
    bench.set("net.core.rps_sock_flow_entries", "1024");
    bench.set_dev("rps_flow_cnt", "64");
    let hash = bench.hash(0);
    assert_eq!(
        bench.poll(&[0]),
        [0],
        "a packet was steered without a recorded read and without a map"
    );
    bench.cx.set_home(&bench.host, CoreId(3));
    bench.cx.record_flow(hash);
    assert_eq!(bench.poll(&[0, 1]), [1]);
    bench.cx.set_home(&bench.host, CoreId(2));
    bench.cx.record_flow(hash);
    bench.poll(&[0]);
    assert_eq!(
        bench.run(3, 64),
        [0, 0],
        "the flow left core 3 before its packet there was processed"
    );
    bench.poll(&[0]);
    assert_eq!((bench.run(2, 64), bench.run(3, 64)), (vec![0], vec![]));
    bench.set_dev("rps_flow_cnt", "0");
    assert_eq!(bench.poll(&[0]), [0], "RFS steered a packet of a queue without a table");
}

#[test]
fn a_packet_without_a_flow_hash_stays_on_the_polling_core() {
    let mut bench = Bench::new(1);
    bench.set_dev("rps_cpus", "2");
    bench.poll(&[]);
    let frames: [&[u8]; 5] = [&[], &[0x45], &[0x45; 19], &[0x60; 39], &[0; 64]];
    for bytes in frames {
        let mut packet = bench.cx.pool.alloc().unwrap();
        packet.append(&mut bench.cx.pool, bytes);
        let Bench { host, cx, outbox, steering, .. } = &mut bench;
        assert!(steering.keep(host, cx, outbox, LinkType::Ip, packet).is_some(), "{bytes:?}");
    }
}
