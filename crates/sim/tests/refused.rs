//! A device without memory for superframes above 64 KB, although its capabilities allow them: a tap
//! of a kernel whose memory is fragmented. No data is lost or sent twice.

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
        },
        time::Duration,
    };

    use pkt::{Batch, DropReason, Instant, Packet, PacketList};
    use sim::{
        World,
        apps::{Pattern, Receiver, Sender, connect, listen},
    };
    use stack::{
        Capabilities, Cx, Device,
        base::{
            counters::Counter,
            limits::{BIG_TCP_BYTES_MAX, GSO_BYTES_MAX},
        },
        device::{Completed, Doorbell, Impairment, QueueId, RxSignal, Wire, WireConfig},
        host::config::{DeviceConfig, HostConfig},
    };
    use sync::ring;

    /// One end of a wire behind a device that can run short of memory.
    #[derive(Debug)]
    struct Fragmented {
        wire: Arc<Wire>,
        /// Whether memory is short.
        short: AtomicBool,
        superframe_max: AtomicU32,
        /// Number of superframes refused, and the largest packet passed on.
        refused: AtomicU64,
        largest: AtomicU32,
    }

    impl Fragmented {
        fn refuses(&self, packet: &Packet) -> bool {
            let bytes = u32::try_from(packet.len() - 14).expect("a packet");
            let refuses = self.short.load(Ordering::Relaxed) && bytes > GSO_BYTES_MAX;
            if refuses {
                self.superframe_max.store(GSO_BYTES_MAX, Ordering::Relaxed);
                self.refused.fetch_add(1, Ordering::Relaxed);
            } else {
                self.largest.fetch_max(bytes, Ordering::Relaxed);
            }
            refuses
        }
    }

    impl Device for Fragmented {
        fn caps(&self) -> &Capabilities {
            self.wire.caps()
        }

        fn receive(&self, queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
            self.wire.receive(queue, cx, budget, out)
        }

        fn take_receiver(&self, queue: QueueId) -> Option<ring::Receiver<Packet>> {
            self.wire.take_receiver(queue)
        }

        fn superframe_max(&self) -> u32 {
            self.superframe_max.load(Ordering::Relaxed)
        }

        fn transmit(&self, queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
            let mut taken = PacketList::new();
            while let Some(packet) = list.pop_front() {
                if self.refuses(&packet) {
                    list.push_front(packet);
                    break;
                }
                taken.push_back(packet);
            }
            self.wire.transmit(queue, cx, &mut taken);
            assert!(taken.is_empty(), "the wire takes everything");
        }

        fn complete(&self, queue: QueueId, cx: &mut Cx) -> Completed {
            self.wire.complete(queue, cx)
        }

        fn next_deadline(&self, queue: QueueId) -> Option<Instant> {
            self.wire.next_deadline(queue)
        }

        fn rx_signal(&self, queue: QueueId) -> RxSignal {
            self.wire.rx_signal(queue)
        }

        fn attach(&self, queue: QueueId, doorbell: Doorbell) {
            self.wire.attach(queue, doorbell);
        }
    }

    /// Makes two hosts, the first behind such a device.
    fn world(qdisc: &str) -> (World, Arc<Fragmented>) {
        let clean = Impairment { delay: Duration::from_micros(300), ..Impairment::default() };
        let wire = WireConfig { forward: clean, backward: clean, ..WireConfig::default() };
        let (near, far) = Wire::pair(&wire).expect("a valid wire");
        let near = Arc::new(Fragmented {
            wire: near,
            short: AtomicBool::new(false),
            superframe_max: AtomicU32::new(BIG_TCP_BYTES_MAX),
            refused: AtomicU64::new(0),
            largest: AtomicU32::new(0),
        });
        let mut world = World::new(1);
        let ends: [Arc<dyn Device>; 2] = [Arc::clone(&near) as _, far];
        for (index, device) in ends.into_iter().enumerate() {
            let addresses = vec![format!("10.0.0.{}/24", index + 1).parse().expect("an address")];
            let devices = vec![DeviceConfig { device, addresses }];
            world
                .add_host(HostConfig { devices, cores: 1, ..HostConfig::replay(0) })
                .expect("valid");
            world.set(
                index,
                &[
                    ("net.quietline.dev.default.gso_ipv4_max_size", "196608"),
                    ("net.quietline.dev.default.qdisc", qdisc),
                    ("net.ipv4.tcp_rmem", "4096 8000000 16000000"),
                    ("net.ipv4.tcp_wmem", "4096 4000000 16000000"),
                    // Otherwise the pacing rate bounds them.
                    ("net.ipv4.tcp_tso_rtt_log", "31"),
                ],
            );
        }
        (world, near)
    }

    #[test]
    fn a_stream_goes_on_in_smaller_superframes_when_memory_becomes_short() {
        const LENGTH: u64 = 20_000_000;
        for qdisc in ["noqueue", "pfifo_fast", "fq"] {
            let (mut world, device) = world(qdisc);
            let listener = listen(&mut world, 80);
            let (client, server) = connect(&mut world, &listener);
            let mut sender = Sender::new(0, client, Pattern(1), LENGTH);
            let mut receiver = Receiver::new(1, server, Pattern(1), 1 << 20);
            let mut packets_before = 0;
            let result = world.run(Duration::from_secs(60), |world| {
                if receiver.received() > LENGTH / 2 && !device.short.load(Ordering::Relaxed) {
                    assert!(device.largest.swap(0, Ordering::Relaxed) > 190_000, "{qdisc}");
                    device.short.store(true, Ordering::Relaxed);
                    packets_before = world.hosts[0].counters().stack(Counter::IpOutRequests);
                }
                let sent = sender.step(world);
                receiver.step(world) && sent
            });
            result.unwrap_or_else(|stalled| panic!("{qdisc}: {stalled:?}"));
            assert_eq!(receiver.received(), LENGTH, "{qdisc}");
            let counters = world.hosts[0].counters();
            // Only packets that were queued at that time are refused, and none that was made later.
            let refused = counters.stack(Counter::DeviceTxRefused);
            assert_eq!(refused, device.refused.load(Ordering::Relaxed), "{qdisc}");
            assert_eq!(refused, 1, "{qdisc}: packets queued behind it are cut without another try");
            let cut = counters.stack(Counter::GsoSegments);
            assert!(
                (130..4000).contains(&cut),
                "{qdisc}: {cut} segments of superframes made before"
            );
            let largest = device.largest.load(Ordering::Relaxed);
            assert!((60_000..=GSO_BYTES_MAX).contains(&largest), "{qdisc}: {largest}");
            let packets = counters.stack(Counter::IpOutRequests) - packets_before;
            assert!(packets < LENGTH / 2 / 40_000, "{qdisc}: {packets} packets for half of it");
            assert_eq!(counters.tcp(tcp::Counter::TcpRetransSegs), 0, "{qdisc}");
            for reason in [DropReason::NoMemory, DropReason::DeviceTxError] {
                assert_eq!(counters.get(reason.name()), Some(0), "{qdisc}: {reason}");
            }
        }
    }
}
