//! The NAPI contract, seen from devices that record how they are polled.

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        sync::{
            Arc, Mutex, OnceLock,
            atomic::{AtomicBool, AtomicUsize, Ordering},
        },
        time::Duration,
    };

    use pkt::{Batch, EtherType, Instant, Packet, PacketList, RxChecksum};
    use stack::{
        Capabilities, Cx, Device, Memory,
        base::{counters::Counter, ids::DeviceIndex},
        core::CoreRun,
        device::{Doorbell, LinkType, QueueId, RxSignal},
        host::{
            Host,
            config::{DeviceConfig, HostConfig},
        },
        sysctl::Sysctls,
    };

    /// Device index and frames taken, poll by poll.
    type Log = Arc<Mutex<Vec<(u32, usize)>>>;

    /// Payload of a frame.
    const PAYLOAD: u32 = 100;
    /// Flows of the frames.
    const FLOWS: usize = 5;

    /// Writes the IP packet with number `number`: a TCP segment for another host, which IP drops.
    /// Segments of a flow follow each other, so that receive offload holds and merges them; every
    /// eighth one carries PSH.
    fn segment(number: usize) -> [u8; 40 + PAYLOAD as usize] {
        let mut bytes = [0; 40 + PAYLOAD as usize];
        let len = u16::try_from(bytes.len()).unwrap();
        bytes[0] = 0x45;
        bytes[2..4].copy_from_slice(&len.to_be_bytes());
        // Don't fragment, time to live, TCP.
        (bytes[6], bytes[8], bytes[9]) = (0x40, 64, 6);
        bytes[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        let words = bytes[..20].chunks_exact(2);
        let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
        let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        let (flow, index) = (number % FLOWS, u32::try_from(number / FLOWS).unwrap());
        bytes[20..22].copy_from_slice(&u16::try_from(1000 + flow).unwrap().to_be_bytes());
        bytes[22..24].copy_from_slice(&80_u16.to_be_bytes());
        bytes[24..28].copy_from_slice(&(index * PAYLOAD).to_be_bytes());
        // Length of the header, ACK and PSH, window.
        let psh = if index % 8 == 7 { 0x08 } else { 0 };
        (bytes[32], bytes[33], bytes[34]) = (0x50, 0x10 | psh, 0x20);
        bytes
    }

    /// A device with one queue of frames that IP drops.
    #[derive(Debug)]
    struct Scripted {
        index: u32,
        caps: Capabilities,
        signal: RxSignal,
        waiting: AtomicUsize,
        /// Number of the next frame.
        next: AtomicUsize,
        /// Whether a thread is in `receive`, and whether two threads ever were at the same time.
        inside: AtomicBool,
        concurrent: AtomicBool,
        doorbell: OnceLock<Doorbell>,
        log: Log,
    }

    impl Device for Scripted {
        fn caps(&self) -> &Capabilities {
            &self.caps
        }

        fn receive(&self, _queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
            let alone = !self.inside.swap(true, Ordering::Relaxed);
            self.concurrent.fetch_or(!alone, Ordering::Relaxed);
            let taken = self.waiting.load(Ordering::Relaxed).min(budget);
            self.waiting.fetch_sub(taken, Ordering::Relaxed);
            for _ in 0..taken {
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                let mut frame: Packet = cx.pool.alloc_from(&segment(number)).expect("memory");
                let meta = frame.meta_mut();
                (meta.protocol, meta.rx_checksum) = (EtherType::IPV4, RxChecksum::Unnecessary);
                out.push(frame).expect("room for the weight");
            }
            self.log.lock().unwrap().push((self.index, taken));
            self.inside.store(false, Ordering::Relaxed);
            taken
        }

        fn transmit(&self, _queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
            while let Some(packet) = list.pop_front() {
                cx.pool.free(packet);
            }
        }

        fn rx_signal(&self, _queue: QueueId) -> RxSignal {
            self.signal
        }

        fn attach(&self, _queue: QueueId, doorbell: Doorbell) {
            let _ = self.doorbell.set(doorbell);
        }
    }

    struct Bench {
        host: Arc<Host>,
        devices: Vec<Arc<Scripted>>,
        log: Log,
        memory: Memory,
        cx: Cx,
    }

    impl Bench {
        /// A host of one core with a device for each of `signals`.
        fn new(signals: &[RxSignal], settings: &[(&str, &str)]) -> Self {
            let log = Log::default();
            let devices: Vec<_> = (1..)
                .zip(signals)
                .map(|(index, signal)| Arc::new(scripted(index, *signal, &log)))
                .collect();
            let mut sysctls = Sysctls::default();
            for (name, value) in settings {
                sysctls.set(name, value).expect("a setting");
            }
            let memory = Memory::new(8 << 20);
            let config = HostConfig {
                cores: 1,
                devices: devices
                    .iter()
                    .map(|device| DeviceConfig {
                        device: Arc::clone(device) as _,
                        addresses: Vec::new(),
                    })
                    .collect(),
                sysctls,
                ..HostConfig::replay(0)
            };
            let host = Host::new(&memory, config).expect("valid");
            let cx = Cx::replay(&memory, 1);
            Self { host, devices, log, memory, cx }
        }

        fn arrive(&self, device: usize, frames: usize) {
            self.devices[device].waiting.fetch_add(frames, Ordering::Relaxed);
        }

        fn run(&mut self) -> CoreRun {
            self.host.cores()[0].try_run(&self.host, &mut self.cx)
        }

        fn polls(&self) -> Vec<(u32, usize)> {
            std::mem::take(&mut *self.log.lock().unwrap())
        }

        fn count(&self, counter: Counter) -> u64 {
            self.host.counters().stack(counter)
        }
    }

    fn scripted(index: u32, signal: RxSignal, log: &Log) -> Scripted {
        let caps = Capabilities {
            tx_checksum: true,
            ..Capabilities::plain(format!("scripted{index}"), 1500, LinkType::Ip)
        };
        let (inside, concurrent) = (AtomicBool::new(false), AtomicBool::new(false));
        let (waiting, next) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (doorbell, log) = (OnceLock::new(), Arc::clone(log));
        Scripted { index, caps, signal, waiting, next, inside, concurrent, doorbell, log }
    }

    /// Frames that a host has received, those of them that receive offload holds, and those that IP
    /// has not been given.
    fn received_held_waiting(host: &Host) -> (u64, u64, u64) {
        use Counter::{
            GroFlushAge, GroFlushComplete, GroFlushFlags, GroFlushFullBucket, GroFlushHeader,
            GroFlushLen, GroFlushOptions, GroFlushPsh, GroFlushSeq, GroFlushSize,
        };
        let counters = host.counters();
        let sum = |list: &[Counter]| list.iter().map(|one| counters.stack(*one)).sum::<u64>();
        let received = sum(&[Counter::SoftnetProcessed]);
        // Segments of a superframe beside the first.
        let merged = sum(&[Counter::GroSuperframeSegments]) - sum(&[Counter::GroSuperframes]);
        let completed = [
            GroFlushPsh,
            GroFlushFlags,
            GroFlushSeq,
            GroFlushOptions,
            GroFlushHeader,
            GroFlushLen,
            GroFlushSize,
            GroFlushFullBucket,
            GroFlushAge,
            GroFlushComplete,
        ];
        let joined = [Counter::GroHeld, Counter::GroMerged, Counter::GroMergedFree];
        let held = sum(&joined) - sum(&completed) - merged;
        // IP drops every packet that is delivered to it. A superframe that waits in the list counts
        // as one packet, which is enough to be noticed.
        let delivered = counters.dropped() + merged;
        (received, held, received.saturating_sub(delivered))
    }

    /// A poll that returns exactly its weight has not found the queue empty, so the queue is polled
    /// again, after its frames were delivered to IP.
    #[test]
    fn a_poll_of_exactly_its_weight_does_not_end_the_queue() {
        let mut bench = Bench::new(&[RxSignal::None], &[]);
        bench.arrive(0, 64);
        assert_eq!(bench.run(), CoreRun::Idle);
        assert_eq!(bench.polls(), [(1, 64), (1, 0)]);
        bench.arrive(0, 63);
        assert_eq!(bench.run(), CoreRun::Idle);
        assert_eq!(bench.polls(), [(1, 63)]);
        assert_eq!(bench.count(Counter::SoftnetProcessed), 127);
        assert_eq!(bench.count(Counter::DeviceRxPackets), 127);
        assert_eq!(bench.count(Counter::SoftnetTimeSqueeze), 0);
        assert_eq!(bench.count(Counter::CoreTurns), 2);
    }

    /// A turn exceeds its budget of 300 frames by less than one poll; the queue polled last comes
    /// last in the next turn.
    #[test]
    fn queues_share_the_budget_in_round_robin() {
        let mut bench = Bench::new(&[RxSignal::None; 3], &[]);
        bench.arrive(0, 64 * 4);
        bench.arrive(1, 10);
        bench.arrive(2, 64 * 3);
        assert_eq!(bench.run(), CoreRun::Idle);
        let first_turn = [(1, 64), (2, 10), (3, 64), (1, 64), (3, 64), (1, 64)];
        let second_turn = [(2, 0), (3, 64), (1, 64), (3, 0), (1, 0)];
        assert_eq!(bench.polls(), [&first_turn[..], &second_turn[..]].concat());
        assert_eq!(bench.count(Counter::SoftnetTimeSqueeze), 1);
        assert_eq!(bench.count(Counter::CoreTurns), 2);
    }

    #[test]
    fn weight_and_budget_are_settings() {
        let settings = [("net.core.dev_weight", "8"), ("net.core.netdev_budget", "16")];
        let mut bench = Bench::new(&[RxSignal::None], &settings);
        bench.arrive(0, 20);
        assert_eq!(bench.run(), CoreRun::Idle);
        assert_eq!(bench.polls(), [(1, 8), (1, 8), (1, 4)]);
        assert_eq!(bench.count(Counter::SoftnetTimeSqueeze), 1);
        bench.host.set_sysctl("net.core.dev_weight", "64").unwrap();
        assert!(bench.host.set_sysctl("net.core.dev_weight", "65").is_err());
        bench.arrive(0, 20);
        assert_eq!(bench.run(), CoreRun::Idle);
        assert_eq!(bench.polls(), [(1, 20)]);
    }

    /// A turn that exceeds its time limit ends before its budget is used up. The clock is read only
    /// after full polls.
    #[test]
    fn a_turn_ends_at_its_time_limit() {
        thread_local! {
            static NOW: Cell<Instant> = const { Cell::new(Instant::ZERO) };
        }
        /// A clock so slow that each reading is a millisecond later.
        fn slow() -> Instant {
            NOW.set(NOW.get() + Duration::from_millis(1));
            NOW.get()
        }
        let mut bench = Bench::new(&[RxSignal::None], &[]);
        bench.cx = Cx::replay(&bench.memory, 2).with_clock(slow);
        bench.arrive(0, 64 * 3 + 5);
        assert_eq!(bench.run(), CoreRun::Idle);
        assert_eq!(bench.polls(), [(1, 64), (1, 64), (1, 64), (1, 5)]);
        assert_eq!(NOW.get(), Instant::from_millis(3));
        assert_eq!(bench.cx.now, NOW.get(), "the context keeps the latest time");
        assert_eq!(bench.count(Counter::SoftnetTimeSqueeze), 1);
        assert_eq!(bench.count(Counter::CoreTurns), 2);
    }

    /// Without a clock time stands still and only the budget counts; with a limit of zero a turn is
    /// one poll.
    #[test]
    fn a_time_limit_of_zero_is_one_full_poll() {
        let mut bench = Bench::new(&[RxSignal::None], &[("net.core.netdev_budget_usecs", "0")]);
        bench.arrive(0, 64 * 2);
        assert_eq!(bench.run(), CoreRun::Idle);
        assert_eq!(bench.count(Counter::SoftnetTimeSqueeze), 2);
        assert_eq!(bench.count(Counter::CoreTurns), 3);
    }

    #[test]
    fn a_flood_ends_a_run_and_leaves_the_core_pending() {
        let mut bench = Bench::new(&[RxSignal::None], &[]);
        bench.arrive(0, 64 * 5 * 10 + 1);
        assert_eq!(bench.run(), CoreRun::Pending);
        assert_eq!(bench.polls().len(), 5 * 10);
        assert_eq!(bench.run(), CoreRun::Idle);
        assert_eq!(bench.polls(), [(1, 1)]);
    }

    /// A queue with an arrival signal is polled only after a signal; the ringing context polls the
    /// queue that it rang.
    #[test]
    fn a_queue_with_a_doorbell_is_polled_only_after_a_ring() {
        let mut bench = Bench::new(&[RxSignal::Doorbell, RxSignal::Doorbell], &[]);
        bench.arrive(0, 1);
        bench.arrive(1, 70);
        assert_eq!(bench.run(), CoreRun::Idle);
        assert_eq!(bench.polls(), []);
        bench.devices[1].doorbell.get().unwrap().ring(&mut bench.cx);
        bench.cx.do_softirq();
        assert_eq!(bench.polls(), [(2, 64), (2, 6)]);
        bench.devices[0].doorbell.get().unwrap().ring(&mut bench.cx);
        // A ring of an idle core takes ownership: no other thread can run the core until the
        // ringing context has run it.
        assert_eq!(bench.run(), CoreRun::Elsewhere);
        assert_eq!(bench.polls(), []);
        bench.cx.do_softirq();
        assert_eq!(bench.polls(), [(1, 1)]);
    }

    /// A rung queue that still has frames at the end of the budget is polled in the next turn
    /// without another ring.
    #[test]
    fn a_rung_queue_stays_scheduled_while_it_has_more() {
        let signals = [RxSignal::Doorbell, RxSignal::Doorbell];
        let mut bench = Bench::new(&signals, &[("net.core.netdev_budget", "64")]);
        for (device, frames) in [(0, 100), (1, 1)] {
            bench.arrive(device, frames);
            bench.devices[device].doorbell.get().unwrap().ring(&mut bench.cx);
        }
        bench.cx.do_softirq();
        assert_eq!(bench.polls(), [(1, 64), (2, 1), (1, 36)]);
        assert_eq!(bench.count(Counter::SoftnetTimeSqueeze), 1);
    }

    /// A run by interrupt polls only the queues whose descriptor was readable; a run without a
    /// watcher polls all of them.
    #[test]
    fn an_interrupt_schedules_its_queue() {
        let mut bench = Bench::new(&[RxSignal::Descriptor, RxSignal::Descriptor], &[]);
        let core = Arc::clone(&bench.host.cores()[0]);
        let napi = core.napi_of(DeviceIndex(2), QueueId(0)).expect("the second device");
        assert!(core.napi_of(DeviceIndex(3), QueueId(0)).is_none());
        bench.arrive(1, 3);
        assert_eq!(core.run_interrupted(&bench.host, &mut bench.cx), CoreRun::Idle);
        assert_eq!(bench.polls(), []);
        core.interrupt(napi);
        assert_eq!(core.run_interrupted(&bench.host, &mut bench.cx), CoreRun::Idle);
        assert_eq!(bench.polls(), [(2, 3)]);
        assert_eq!(bench.run(), CoreRun::Idle);
        assert_eq!(bench.polls(), [(1, 0), (2, 0)]);
    }

    /// A waiting thread takes eight frames, checks whether its data has arrived, and takes eight
    /// more. The frames left when it stops are polled by an ordinary run before the core is
    /// released.
    #[test]
    fn busy_polling_checks_for_data_after_every_budget() {
        let mut bench = Bench::new(&[RxSignal::Descriptor], &[]);
        bench.arrive(0, 100);
        let core = Arc::clone(&bench.host.cores()[0]);
        let mut seen = Vec::new();
        let log = Arc::clone(&bench.log);
        assert!(core.busy_poll(&bench.host, &mut bench.cx, 8, |_| {
            seen.push(log.lock().unwrap().iter().map(|(_, taken)| taken).sum::<usize>());
            seen.len() == 3
        }));
        assert_eq!(seen, [8, 16, 24]);
        assert_eq!(bench.polls(), [(1, 8), (1, 8), (1, 8), (1, 64), (1, 12)]);
        let counters = bench.host.counters();
        assert_eq!(counters.tcp(tcp::Counter::TcpExtBusyPollRxPackets), 24);
        assert_eq!(counters.stack(Counter::SoftnetProcessed), 100);
        assert_eq!(counters.stack(Counter::SoftnetTimeSqueeze), 0);
        assert_eq!(bench.cx.received(), 100);
    }

    /// GRO4: no packet waits in a list when a poll returns to its caller, whether the poll ended by
    /// an empty queue, its weight, its budget, its time, or because a thread stops busy polling.
    /// Packets wait in the list only between cycles of busy polling. A packet that receive offload
    /// holds stays held only for `gro_flush_timeout`, or if the core has another run due at once.
    #[test]
    fn no_packet_waits_in_a_list_while_no_thread_polls() {
        let (mut waited, mut lingered, mut left, mut merged) = (0, 0, 0, 0);
        for seed in 0..300 {
            let mut rng = tcp::Rng::new(seed);
            let mut pick = |words: &[&'static str]| {
                words[rng.below(u32::try_from(words.len()).unwrap()) as usize]
            };
            let exits = ["normal_only_list", "unified_list_packets", "unified_list_segments"];
            let flushes = ["none", "rx_list_per_cycle", "rx_list_and_old_gro_per_cycle"];
            let settings = [
                ("net.quietline.gro_exit", pick(&exits)),
                ("net.quietline.busy_poll_flush", pick(&flushes)),
                ("net.core.gro_normal_batch", pick(&["2", "8", "1000"])),
                ("net.core.dev_weight", pick(&["1", "7", "64"])),
                ("net.core.netdev_budget", pick(&["1", "20", "300"])),
                ("net.core.netdev_budget_usecs", pick(&["0", "8000"])),
                ("net.quietline.dev.default.gro_flush_timeout", pick(&["0", "20000"])),
            ];
            let signals = [RxSignal::None, RxSignal::Descriptor];
            let mut bench = Bench::new(&signals, &settings);
            let core = Arc::clone(&bench.host.cores()[0]);
            for step in 0..40 {
                bench.arrive(rng.below(2) as usize, rng.below(150) as usize);
                let owed = if rng.below(2) == 0 {
                    bench.run() == CoreRun::Pending
                } else {
                    let (mut cycles, host) = (rng.below(5), Arc::clone(&bench.host));
                    assert!(core.busy_poll(&bench.host, &mut bench.cx, 8, |_| {
                        waited += received_held_waiting(&host).2;
                        cycles = cycles.saturating_sub(1);
                        cycles == 0
                    }));
                    core.next_deadline().is_some_and(|at| at <= bench.cx.now)
                };
                let (_, held, waiting) = received_held_waiting(&bench.host);
                assert_eq!(waiting, held, "seed {seed}, step {step}: {settings:?}");
                let lingers =
                    settings.contains(&("net.quietline.dev.default.gro_flush_timeout", "20000"));
                assert!(held == 0 || lingers || owed, "seed {seed}, step {step}: {settings:?}");
                if owed {
                    left += held;
                } else {
                    lingered += held;
                }
                bench.cx.now += Duration::from_micros(u64::from(rng.below(50)));
            }
            // A timer completes what lingers.
            for _ in 0..5 {
                bench.cx.now += Duration::from_secs(1);
                while bench.run() == CoreRun::Pending {}
            }
            let (received, held, waiting) = received_held_waiting(&bench.host);
            assert_eq!((held, waiting), (0, 0), "seed {seed}: {settings:?}");
            assert!(received > 1000, "{received}");
            merged += bench.count(Counter::GroMerged) + bench.count(Counter::GroMergedFree);
        }
        assert!(merged > 100_000 && lingered > 1000 && left > 100, "{merged} {lingered} {left}");
        assert!(waited > 1000, "{waited}: some packets waited between cycles");
    }

    /// GRO9: only the owner of the core accesses the GRO state of its queues. The compiler checks
    /// that the state is reached only through the owner's guard, and loom checks that
    /// `sync::core_lock` gives out one guard at a time. Here several threads contend for the core.
    #[test]
    fn threads_that_contend_for_a_core_never_poll_it_at_the_same_time() {
        let settings =
            [("net.core.gro_normal_batch", "1000"), ("net.quietline.busy_poll_flush", "none")];
        let bench = Bench::new(&[RxSignal::None], &settings);
        let Bench { host, devices, memory, .. } = &bench;
        let device = &devices[0];
        std::thread::scope(|scope| {
            for number in 0..3 {
                scope.spawn(move || {
                    let mut cx = Cx::replay(memory, number);
                    let core = &host.cores()[0];
                    for round in 0..2000 {
                        device.waiting.fetch_add(40, Ordering::Relaxed);
                        if (round + number) % 2 == 0 {
                            let _ = core.try_run(host, &mut cx);
                        } else {
                            let _ = core.busy_poll(host, &mut cx, 8, |_| true);
                        }
                    }
                    while device.waiting.load(Ordering::Relaxed) > 0 {
                        let _ = core.try_run(host, &mut cx);
                    }
                });
            }
        });
        assert!(!device.concurrent.load(Ordering::Relaxed), "two threads in one poll");
        let counters = host.counters();
        assert_eq!(counters.stack(Counter::SoftnetProcessed), 3 * 2000 * 40);
        // Each frame was delivered once: alone, or as a segment of a superframe that is whole.
        let merged = counters.stack(Counter::GroSuperframeSegments);
        assert!(merged > 1000, "{merged}: the threads share what is held");
        let alone = counters.dropped() - counters.stack(Counter::GroSuperframes);
        assert_eq!(alone + merged, 3 * 2000 * 40);
    }

    /// A thread that finds the core owned does not wait: the owner does the work. A doorbell that
    /// rings meanwhile is left to the owner.
    #[test]
    fn one_thread_polls_a_core() {
        let mut bench = Bench::new(&[RxSignal::Doorbell], &[]);
        let core = Arc::clone(&bench.host.cores()[0]);
        let host = Arc::clone(&bench.host);
        let device = Arc::clone(&bench.devices[0]);
        let mut other = Cx::replay(&Memory::new(1 << 20), 2);
        let mut cycles = 0;
        assert!(core.busy_poll(&bench.host, &mut bench.cx, 8, |_| {
            cycles += 1;
            if cycles == 1 {
                assert!(!core.busy_poll(&host, &mut other, 8, |_| true));
                device.waiting.fetch_add(1, Ordering::Relaxed);
                device.doorbell.get().unwrap().ring(&mut other);
                assert!(!other.softirq_pending());
            }
            cycles == 2
        }));
        assert_eq!(bench.polls(), [(1, 1)]);
        assert_eq!(bench.count(Counter::CoreTurns), 3, "the last turn because of MISSED");
    }

    /// `napi_defer_hard_irqs` and `gro_flush_timeout`: a queue that had frames is polled by timer
    /// until it was found empty often enough; only then is its descriptor watched again.
    #[test]
    fn a_descriptor_stays_masked_while_frames_arrive_often() {
        let settings = [
            ("net.quietline.dev.default.napi_defer_hard_irqs", "2"),
            ("net.quietline.dev.default.gro_flush_timeout", "20000"),
        ];
        let mut bench = Bench::new(&[RxSignal::Descriptor], &settings);
        let core = Arc::clone(&bench.host.cores()[0]);
        let napi = core.napi_of(DeviceIndex(1), QueueId(0)).unwrap();
        let interval = Duration::from_micros(20);
        bench.cx.now = Instant::from_secs(1);
        bench.arrive(0, 1);
        core.interrupt(napi);
        for (frames, round) in [(1, 0), (0, 1), (1, 2), (0, 3)] {
            assert_eq!(core.run_interrupted(&bench.host, &mut bench.cx), CoreRun::Idle);
            assert_eq!(bench.polls(), [(1, frames)], "round {round}");
            assert!(core.is_masked(napi), "round {round}");
            assert_eq!(core.next_deadline(), Some(bench.cx.now + interval), "round {round}");
            // No poll before the deadline, whichever thread runs the core; busy polling does not
            // end the deferral either.
            assert_eq!(core.run_interrupted(&bench.host, &mut bench.cx), CoreRun::Idle);
            assert_eq!(bench.polls(), []);
            bench.cx.now += interval;
            assert!(core.busy_poll(&bench.host, &mut bench.cx, 8, |_| true));
            assert_eq!(bench.polls(), [(1, 0)]);
            if round == 1 {
                bench.arrive(0, 1);
            }
        }
        assert_eq!(core.run_interrupted(&bench.host, &mut bench.cx), CoreRun::Idle);
        assert_eq!(bench.polls(), [(1, 0)]);
        assert!(!core.is_masked(napi), "the second empty poll after the frame");
        assert_eq!(core.next_deadline(), None);
    }

    /// Without a flush timeout no interrupt is deferred, for any `napi_defer_hard_irqs`.
    #[test]
    fn no_interrupt_is_deferred_by_default() {
        let settings = [("net.quietline.dev.scripted1.napi_defer_hard_irqs", "5")];
        let mut bench = Bench::new(&[RxSignal::Descriptor], &settings);
        bench.arrive(0, 3);
        assert_eq!(bench.run(), CoreRun::Idle);
        let core = &bench.host.cores()[0];
        assert!(!core.is_masked(core.napi_of(DeviceIndex(1), QueueId(0)).unwrap()));
        assert_eq!(core.next_deadline(), None);
    }

    /// `SO_PREFER_BUSY_POLL`: a thread that stops polling will return, so its descriptors stay
    /// masked until then, but no longer than `gro_flush_timeout`.
    #[test]
    fn a_thread_that_prefers_busy_polling_keeps_its_descriptors_masked() {
        let mut bench = Bench::new(&[RxSignal::Descriptor], &[]);
        let core = Arc::clone(&bench.host.cores()[0]);
        let start = Instant::from_secs(1);
        bench.cx.now = start;
        let poll_and_stop = |bench: &mut Bench, prefer| {
            assert!(core.busy_poll(&bench.host, &mut bench.cx, 8, |_| true));
            assert!(core.is_polled(start));
            core.stop_polling(&mut bench.cx, &bench.host, prefer);
        };
        for prefer in [false, true] {
            poll_and_stop(&mut bench, prefer);
            assert!(!core.is_polled(start), "there is no timeout");
        }
        let timeout = Duration::from_millis(3);
        let name = "net.quietline.dev.default.gro_flush_timeout";
        bench.host.set_sysctl(name, "3000000").unwrap();
        poll_and_stop(&mut bench, true);
        assert!(core.is_polled(start + timeout / 2) && !core.is_polled(start + timeout));
        assert_eq!(core.prepare_sleep(start, true), Some(start + timeout));
        core.finish_sleep();
        poll_and_stop(&mut bench, false);
        assert_eq!(core.prepare_sleep(start, true), Some(start), "poll at once");
        core.finish_sleep();
    }

    #[test]
    fn a_core_has_room_for_61_queues() {
        let log = Log::default();
        let mut device = scripted(1, RxSignal::None, &log);
        device.caps.queues = 61;
        let devices = vec![DeviceConfig { device: Arc::new(device) as _, addresses: Vec::new() }];
        let config = HostConfig { devices, cores: 1, ..HostConfig::replay(0) };
        let error = Host::new(&Memory::new(1 << 20), config).expect_err("one more with loopback");
        assert!(error.to_string().contains("61"), "{error}");
    }
}
