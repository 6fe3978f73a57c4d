//! NAPI's contract, seen from devices that write down how they are polled.

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

    use pkt::{Batch, Instant, PacketList};
    use stack::{
        Capabilities, Cx, Device, Memory,
        base::counters::Counter,
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

    /// A device with one queue of frames that nobody wants.
    #[derive(Debug)]
    struct Scripted {
        index: u32,
        caps: Capabilities,
        signal: RxSignal,
        waiting: AtomicUsize,
        /// Somebody is receiving, and whether two ever were at once.
        inside: AtomicBool,
        together: AtomicBool,
        doorbell: OnceLock<Doorbell>,
        log: Log,
    }

    impl Device for Scripted {
        fn caps(&self) -> &Capabilities {
            &self.caps
        }

        fn receive(&self, _queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
            let alone = !self.inside.swap(true, Ordering::Relaxed);
            self.together.fetch_or(!alone, Ordering::Relaxed);
            let taken = self.waiting.load(Ordering::Relaxed).min(budget);
            self.waiting.fetch_sub(taken, Ordering::Relaxed);
            for _ in 0..taken {
                let frame = cx.pool.alloc_from(&[0; 64]).expect("memory");
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
            let memory = Memory::new(1 << 20);
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
            Self { host, devices, log, cx: Cx::replay(&memory, 1) }
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
        let (inside, together) = (AtomicBool::new(false), AtomicBool::new(false));
        let (waiting, doorbell, log) = (AtomicUsize::new(0), OnceLock::new(), Arc::clone(log));
        Scripted { index, caps, signal, waiting, inside, together, doorbell, log }
    }

    /// A poll that takes exactly its weight has not found its queue empty, even if it is: the queue
    /// is polled again. What it took is all with IP before that.
    #[test]
    fn exactly_a_weight_of_frames_is_not_the_end_of_a_queue() {
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

    /// The budget is 300 frames to within a poll, and who was polled last is the last to be polled again.
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

    /// A turn that takes too long ends, whatever its budget is. The time is asked for after full polls only.
    #[test]
    fn a_turn_ends_when_its_time_is_over() {
        thread_local! {
            static NOW: Cell<Instant> = const { Cell::new(Instant::ZERO) };
        }
        /// A machine so slow that a millisecond has passed at every look.
        fn slow() -> Instant {
            NOW.set(NOW.get() + Duration::from_millis(1));
            NOW.get()
        }
        let mut bench = Bench::new(&[RxSignal::None], &[]);
        bench.cx = Cx::replay(&Memory::new(1 << 20), 2).with_clock(slow);
        bench.arrive(0, 64 * 3 + 5);
        assert_eq!(bench.run(), CoreRun::Idle);
        assert_eq!(bench.polls(), [(1, 64), (1, 64), (1, 64), (1, 5)]);
        assert_eq!(NOW.get(), Instant::from_millis(3));
        assert_eq!(bench.cx.now, NOW.get(), "what comes next knows how late it is");
        assert_eq!(bench.count(Counter::SoftnetTimeSqueeze), 1);
        assert_eq!(bench.count(Counter::CoreTurns), 2);
    }

    /// Without a clock time stands still and only the budget counts; a limit of none at all is one poll a turn.
    #[test]
    fn a_time_limit_of_zero_is_one_full_poll() {
        let mut bench = Bench::new(&[RxSignal::None], &[("net.core.netdev_budget_usecs", "0")]);
        bench.arrive(0, 64 * 2);
        assert_eq!(bench.run(), CoreRun::Idle);
        assert_eq!(bench.count(Counter::SoftnetTimeSqueeze), 2);
        assert_eq!(bench.count(Counter::CoreTurns), 3);
    }

    #[test]
    fn a_flood_ends_a_run_and_not_the_work() {
        let mut bench = Bench::new(&[RxSignal::None], &[]);
        bench.arrive(0, 64 * 5 * 10 + 1);
        assert_eq!(bench.run(), CoreRun::Pending);
        assert_eq!(bench.polls().len(), 5 * 10);
        assert_eq!(bench.run(), CoreRun::Idle);
        assert_eq!(bench.polls(), [(1, 1)]);
    }

    /// A queue that says when it has something is left alone otherwise. The one that was rung is polled by the ringer.
    #[test]
    fn a_queue_with_a_doorbell_is_polled_when_it_was_rung() {
        let mut bench = Bench::new(&[RxSignal::Doorbell, RxSignal::Doorbell], &[]);
        bench.arrive(0, 1);
        bench.arrive(1, 70);
        assert_eq!(bench.run(), CoreRun::Idle);
        assert_eq!(bench.polls(), []);
        bench.devices[1].doorbell.get().unwrap().ring(&mut bench.cx);
        bench.cx.do_softirq();
        assert_eq!(bench.polls(), [(2, 64), (2, 6)]);
        bench.devices[0].doorbell.get().unwrap().ring(&mut bench.cx);
        // A ring that finds the core idle owns it: until the ringer has run it nobody else does.
        assert_eq!(bench.run(), CoreRun::Elsewhere);
        assert_eq!(bench.polls(), []);
        bench.cx.do_softirq();
        assert_eq!(bench.polls(), [(1, 1)]);
    }

    /// A rung queue that the budget left over is polled in the next turn, though nobody rings again.
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

    /// Of the queues with a descriptor those are polled that were readable; whoever does not watch polls all of them.
    #[test]
    fn an_interrupt_schedules_its_queue() {
        let mut bench = Bench::new(&[RxSignal::Descriptor, RxSignal::Descriptor], &[]);
        let core = Arc::clone(&bench.host.cores()[0]);
        let napi = core.napi_of(2, QueueId(0)).expect("its second device");
        assert!(core.napi_of(3, QueueId(0)).is_none());
        bench.arrive(1, 3);
        assert_eq!(core.run_interrupted(&bench.host, &mut bench.cx), CoreRun::Idle);
        assert_eq!(bench.polls(), []);
        core.interrupt(napi);
        assert_eq!(core.run_interrupted(&bench.host, &mut bench.cx), CoreRun::Idle);
        assert_eq!(bench.polls(), [(2, 3)]);
        assert_eq!(bench.run(), CoreRun::Idle);
        assert_eq!(bench.polls(), [(1, 0), (2, 0)]);
    }

    /// A waiting thread takes eight frames, looks whether it has what it waits for, and takes eight more. What is left when
    /// it is content is polled before the core is given up, as any other run would.
    #[test]
    fn busy_polling_looks_up_after_every_budget() {
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

    /// GRO4: no packet waits in a list when a poll has returned to whoever called, however it ended: by an empty queue, by its
    /// weight, its budget, its time, or because a thread stops busy polling. Only between cycles of busy polling may one wait.
    #[test]
    fn no_packet_waits_in_a_list_while_nobody_polls() {
        let mut waited = 0;
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
            // Nobody wants the frames: IP drops each as it goes up.
            let waiting = |host: &Host| {
                let counters = host.counters();
                counters.stack(Counter::SoftnetProcessed) - counters.dropped()
            };
            for step in 0..40 {
                bench.arrive(rng.below(2) as usize, rng.below(150) as usize);
                if rng.below(2) == 0 {
                    let _ = bench.run();
                } else {
                    let (mut cycles, host) = (rng.below(5), Arc::clone(&bench.host));
                    assert!(core.busy_poll(&bench.host, &mut bench.cx, 8, |_| {
                        waited += waiting(&host);
                        cycles = cycles.saturating_sub(1);
                        cycles == 0
                    }));
                }
                assert_eq!(waiting(&bench.host), 0, "seed {seed}, step {step}: {settings:?}");
                bench.cx.now += Duration::from_micros(u64::from(rng.below(50)));
            }
        }
        assert!(waited > 1000, "{waited}: between cycles some did");
    }

    /// GRO9: what a queue holds is touched by the owner of its core alone. Its state is reached through the owner's guard only,
    /// which the compiler sees to, and `sync::core_lock` gives one guard at a time, which loom sees to; here threads fight for it.
    #[test]
    fn threads_that_fight_for_a_core_never_poll_it_together() {
        let bench = Bench::new(&[RxSignal::None], &[("net.core.gro_normal_batch", "1000")]);
        let Bench { host, devices, .. } = &bench;
        let device = &devices[0];
        let memory = Memory::new(8 << 20);
        std::thread::scope(|scope| {
            for number in 0..3 {
                let memory = &memory;
                scope.spawn(move || {
                    let mut cx = Cx::replay(memory, number);
                    let core = &host.cores()[0];
                    for round in 0..2000 {
                        device.waiting.fetch_add(5, Ordering::Relaxed);
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
        assert!(!device.together.load(Ordering::Relaxed), "two in one poll");
        let counters = host.counters();
        assert_eq!(counters.stack(Counter::SoftnetProcessed), 3 * 2000 * 5);
        assert_eq!(counters.dropped(), 3 * 2000 * 5, "each went up, once");
    }

    /// Who finds the core owned does not wait for it: the owner does the work. A doorbell meanwhile is the owner's.
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
        assert_eq!(bench.count(Counter::CoreTurns), 3, "the last because of MISSED");
    }

    /// `napi_defer_hard_irqs` and `gro_flush_timeout`: a queue that had frames is polled by time before its descriptor is
    /// watched again, until it was found empty often enough.
    #[test]
    fn a_descriptor_is_put_off_while_frames_come_often() {
        let settings = [
            ("net.quietline.dev.default.napi_defer_hard_irqs", "2"),
            ("net.quietline.dev.default.gro_flush_timeout", "20000"),
        ];
        let mut bench = Bench::new(&[RxSignal::Descriptor], &settings);
        let core = Arc::clone(&bench.host.cores()[0]);
        let napi = core.napi_of(1, QueueId(0)).unwrap();
        let interval = Duration::from_micros(20);
        bench.cx.now = Instant::from_secs(1);
        bench.arrive(0, 1);
        core.interrupt(napi);
        for (frames, round) in [(1, 0), (0, 1), (1, 2), (0, 3)] {
            assert_eq!(core.run_interrupted(&bench.host, &mut bench.cx), CoreRun::Idle);
            assert_eq!(bench.polls(), [(1, frames)], "round {round}");
            assert!(core.is_masked(napi), "round {round}");
            assert_eq!(core.next_deadline(), Some(bench.cx.now + interval), "round {round}");
            // Not before its time, whoever runs the core meanwhile; a thread that polls without end is no end either.
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

    /// Without a timeout there is nothing to wait for, whatever else is set.
    #[test]
    fn nothing_is_put_off_by_default() {
        let settings = [("net.quietline.dev.scripted1.napi_defer_hard_irqs", "5")];
        let mut bench = Bench::new(&[RxSignal::Descriptor], &settings);
        bench.arrive(0, 3);
        assert_eq!(bench.run(), CoreRun::Idle);
        let core = &bench.host.cores()[0];
        assert!(!core.is_masked(core.napi_of(1, QueueId(0)).unwrap()));
        assert_eq!(core.next_deadline(), None);
    }

    /// `SO_PREFER_BUSY_POLL`: the thread that stops polling will be back, and its descriptors are left alone until then, but
    /// no longer than `gro_flush_timeout`.
    #[test]
    fn a_thread_that_will_be_back_keeps_its_descriptors() {
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
        assert_eq!(core.prepare_sleep(start, true), Some(start), "look at once");
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
