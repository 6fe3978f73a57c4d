//! A worker that wakes a reader who polls leaves to it what else has arrived, and nothing is stranded.

#[cfg(test)]
mod tests {
    use std::{io::IoSlice, net::SocketAddr, sync::Arc, time::Duration};

    use pkt::{Batch, Instant, PacketList};
    use stack::{
        Capabilities, Cx, Device, Memory, Readiness,
        base::counters::Counter,
        core::{Core, CoreRun, Kick},
        device::{QueueId, RxSignal, Wire, WireConfig},
        host::{
            Host,
            config::{DeviceConfig, HostConfig},
        },
        socket::{Listener, TcpSocket, options::SocketOption},
    };
    use sync::WaitResult;

    /// A superframe of three segments.
    const SEGMENT: usize = 3 * 1448;

    /// An end of a wire that tells of arrivals by a descriptor, or as it is told, and gives so many frames a poll, half of them if
    /// they are superframes.
    #[derive(Debug)]
    struct Watched(Arc<Wire>, usize, RxSignal);

    impl Device for Watched {
        fn caps(&self) -> &Capabilities {
            self.0.caps()
        }

        fn receive(&self, queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
            self.0.receive(queue, cx, budget, out)
        }

        fn transmit(&self, queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
            self.0.transmit(queue, cx, list);
        }

        fn weight(&self) -> usize {
            self.1
        }

        fn rx_signal(&self, _queue: QueueId) -> RxSignal {
            self.2
        }
    }

    fn host(memory: &Memory, device: Arc<dyn Device>, address: &str) -> Arc<Host> {
        let addresses = vec![address.parse().expect("an address with its prefix")];
        let devices = vec![DeviceConfig { device, addresses }];
        Host::new(memory, HostConfig { devices, cores: 1, ..HostConfig::replay(0) }).expect("valid")
    }

    /// Runs the core of a host, told of arrivals or not.
    fn run(host: &Host, cx: &mut Cx) {
        let core = &host.cores()[0];
        core.interrupt(core.napi_of(1, QueueId(0)).expect("a queue"));
        assert_eq!(core.try_run(host, cx), CoreRun::Idle);
        cx.do_softirq();
    }

    struct Bench {
        memory: Memory,
        cx: Cx,
        client: Arc<Host>,
        server: Arc<Host>,
        sender: Arc<TcpSocket>,
        reader: Arc<TcpSocket>,
    }

    impl Bench {
        /// A frame a poll.
        fn new() -> Self {
            Self::with_weight(1)
        }

        fn with_weight(weight: usize) -> Self {
            let mut bench = Self::of(weight, RxSignal::Descriptor, true);
            // From here on superframes are expected.
            bench.send(1);
            assert_eq!(bench.work(), CoreRun::Idle);
            assert_eq!(bench.read(), SEGMENT);
            assert!(bench.core().is_bulk());
            bench
        }

        /// Of a server that hears of arrivals so, and a wire that passes superframes or not. Nothing has been sent.
        fn of(weight: usize, signal: RxSignal, tso: bool) -> Self {
            let memory = Memory::new(16 << 20);
            let mut cx = Cx::replay(&memory, 1);
            cx.now = Instant::from_secs(1000);
            let wire = WireConfig { tso, ..WireConfig::default() };
            let (left, right) = Wire::pair(&wire).expect("valid");
            let client = host(&memory, left, "10.0.0.1/24");
            let server = host(&memory, Arc::new(Watched(right, weight, signal)), "10.0.0.2/24");
            let to = SocketAddr::new([10, 0, 0, 2].into(), 80);
            let listener = Listener::listen(&server, &mut cx, to, 1).expect("a free port");
            let sender = TcpSocket::connect(&client, &mut cx, None, to).expect("a route");
            for _ in 0..4 {
                run(&server, &mut cx);
            }
            let reader = listener.accept().expect("established");
            Self { memory, cx, client, server, sender, reader }
        }

        /// Sends `count` segments, which lie in the device until the server's core is run.
        fn send(&mut self, count: usize) {
            for _ in 0..count {
                let bytes = [7; SEGMENT];
                let sent = self.sender.send(&self.client, &mut self.cx, &[IoSlice::new(&bytes)]);
                assert_eq!(sent, Ok(SEGMENT));
            }
        }

        /// Sends five bytes.
        fn send_small(&mut self) {
            let sent = self.sender.send(&self.client, &mut self.cx, &[IoSlice::new(b"small")]);
            assert_eq!(sent, Ok(5));
        }

        fn core(&self) -> Arc<Core> {
            Arc::clone(&self.server.cores()[0])
        }

        fn work(&mut self) -> CoreRun {
            let run = self.core().run_as_worker(&self.server, &mut self.cx, false);
            self.cx.do_softirq();
            run
        }

        /// Three superframes come while a thread sleeps that wants to read, and has polled before or not.
        fn work_beside_reader(&mut self, polls: bool) -> CoreRun {
            self.core().note_sleeper(polls);
            self.send(3);
            let socket = Arc::clone(&self.reader);
            let _token = socket.waiters(Readiness::READ).prepare();
            self.work()
        }

        /// Times something was left to the reader.
        fn left(&self) -> u64 {
            self.server.counters().stack(Counter::CoreLeftToReader)
        }

        fn read(&mut self) -> usize {
            let mut buf = [0; 8 * SEGMENT];
            self.reader.recv(&self.server, &mut self.cx, &mut buf, false).unwrap_or(0)
        }
    }

    #[test]
    fn what_has_arrived_is_left_to_a_reader_who_polls() {
        let mut bench = Bench::new();
        bench.core().note_sleeper(true);
        bench.send(3);
        let socket = Arc::clone(&bench.reader);
        let waiters = socket.waiters(Readiness::READ);
        let token = waiters.prepare();
        assert_eq!(bench.work(), CoreRun::Left);
        assert_eq!(waiters.wait(token, None), WaitResult::Notified, "when the core is free");
        assert_eq!(bench.read(), SEGMENT);
        let core = bench.core();
        assert!(core.is_polled(bench.cx.now) && core.is_left_alone(bench.cx.now));
        for _ in 0..2 {
            // A frame a cycle: whoever waits has its data as soon as it is there.
            assert!(core.busy_poll(&bench.server, &mut bench.cx, 8, |_| true));
            assert_eq!(bench.read(), SEGMENT);
        }
        core.stop_polling(&mut bench.cx, &bench.server, false);
        assert!(!core.is_left_alone(bench.cx.now));
        assert_eq!(bench.work(), CoreRun::Idle);
        assert_eq!(bench.left(), 1);
    }

    /// It has been woken and has other things to do.
    #[test]
    fn a_reader_who_does_not_come_leaves_nothing_behind() {
        let mut bench = Bench::new();
        assert_eq!(bench.work_beside_reader(true), CoreRun::Left);
        let (core, now) = (bench.core(), bench.cx.now);
        let until = core.prepare_sleep(now, true).expect("not for ever");
        core.finish_sleep();
        assert!(until > now && until <= now + Duration::from_millis(1));
        bench.cx.now = until;
        assert!(!core.is_left_alone(until), "the worker looks itself");
        assert_eq!(bench.work(), CoreRun::Idle);
        assert_eq!(bench.read(), 3 * SEGMENT);
    }

    /// As long as somebody else ran the core it would sleep for a millisecond, whatever timer is due before.
    #[test]
    fn a_worker_that_looks_in_meanwhile_does_not_think_that_the_core_is_run() {
        let mut bench = Bench::new();
        assert_eq!(bench.work_beside_reader(true), CoreRun::Left);
        assert_eq!(bench.work(), CoreRun::Left, "still");
        assert_eq!(bench.left(), 1, "once and for all");
        assert_eq!(bench.read(), SEGMENT, "and untouched");
    }

    /// Neither by the worker nor by a thread that polls: nobody would ever look for it again.
    #[test]
    fn what_no_descriptor_tells_of_is_not_left() {
        let mut bench = Bench::with_weight(4);
        let defer = [("napi_defer_hard_irqs", "100"), ("gro_flush_timeout", "1000000")];
        for (setting, value) in defer {
            let name = format!("net.quietline.dev.default.{setting}");
            bench.server.set_sysctl(&name, value).expect("a setting");
        }
        let (core, napi) = (bench.core(), bench.core().napi_of(1, QueueId(0)).expect("a queue"));
        bench.send(1);
        assert_eq!(bench.work(), CoreRun::Idle);
        assert_eq!(bench.read(), SEGMENT);
        assert!(core.is_masked(napi), "polled by time");
        bench.cx.now += Duration::from_millis(10);
        assert_eq!(bench.work_beside_reader(true), CoreRun::Idle);
        assert_eq!(bench.read(), 3 * SEGMENT);
        assert!(core.is_masked(napi) && core.next_deadline().is_some());
        bench.send(3);
        assert!(core.busy_poll(&bench.server, &mut bench.cx, 8, |_| true));
        assert_eq!(bench.read(), 3 * SEGMENT);
    }

    #[test]
    fn nothing_is_left_to_a_reader_who_does_not_poll() {
        let mut bench = Bench::new();
        assert_eq!(bench.work_beside_reader(false), CoreRun::Idle);
        assert_eq!((bench.read(), bench.left()), (3 * SEGMENT, 0));
    }

    /// It goes to sleep, and whoever polls does not: the worker would be woken for each superframe.
    #[test]
    fn a_thread_that_never_had_the_core_ends_nobody_elses_polling() {
        let mut bench = Bench::new();
        let (core, server, start) = (bench.core(), Arc::clone(&bench.server), bench.cx.now);
        let mut other = Cx::replay(&bench.memory, 2);
        other.now = start;
        let polled = core.busy_poll(&server, &mut bench.cx, 8, |_| {
            assert!(!core.busy_poll(&server, &mut other, 8, |_| true), "it is another's");
            core.stop_polling(&mut other, &server, false);
            true
        });
        assert!(polled);
        core.stop_polling(&mut other, &server, false);
        assert!(core.is_polled(start) && core.is_left_alone(start) && !core.is_free());
        core.stop_polling(&mut bench.cx, &server, false);
        assert!(!core.is_polled(start) && core.is_free(), "whoever has polled may");
        // Both have: the one who came last speaks.
        for cx in [&mut bench.cx, &mut other] {
            assert!(core.busy_poll(&server, cx, 8, |_| true));
            core.stop_polling(cx, &server, false);
            assert!(!core.is_polled(start));
        }
        assert!(core.busy_poll(&server, &mut bench.cx, 8, |_| true));
        assert!(core.busy_poll(&server, &mut other, 8, |_| true));
        core.stop_polling(&mut bench.cx, &server, false);
        assert!(core.is_polled(start));
        // It has not come back: what it said has run out, and counts for nobody.
        other.now = start + Duration::from_millis(1);
        bench.cx.now = other.now;
        assert!(!core.is_free());
        core.stop_polling(&mut bench.cx, &server, false);
        assert!(core.is_free());
    }

    /// Whom the worker has left something to is not known before it comes.
    #[test]
    fn a_reader_whom_the_worker_has_left_something_to_may_send_the_worker_back() {
        let mut bench = Bench::new();
        assert_eq!(bench.work_beside_reader(true), CoreRun::Left);
        let (core, server, now) = (bench.core(), Arc::clone(&bench.server), bench.cx.now);
        let mut reader = Cx::replay(&bench.memory, 2);
        reader.now = now;
        assert!(core.is_left_alone(now));
        core.stop_polling(&mut reader, &server, false);
        assert!(!core.is_left_alone(now));
        assert_eq!(bench.work(), CoreRun::Idle);
        assert_eq!(bench.read(), 3 * SEGMENT);
    }

    #[test]
    fn what_makes_superframes_of_the_last_frames_is_their_length_and_how_they_come() {
        use RxSignal::{Descriptor, Doorbell};
        for (weight, signal, tso, bulk) in [
            (8, Descriptor, true, true),
            // Together they are as long as one.
            (8, Descriptor, false, false),
            // A device that gives as many as any has none.
            (64, Descriptor, true, false),
            // Its sender runs the core.
            (8, Doorbell, true, false),
        ] {
            let mut bench = Bench::of(weight, signal, tso);
            bench.send(2);
            run(&bench.server, &mut bench.cx);
            assert_eq!(bench.read(), 2 * SEGMENT);
            assert_eq!(bench.core().is_bulk(), bulk, "{weight}, {signal:?}, {tso}");
        }
    }

    #[test]
    fn a_poll_takes_half_as_many_superframes() {
        let mut bench = Bench::with_weight(4);
        assert_eq!(bench.work_beside_reader(true), CoreRun::Left);
        assert_eq!(bench.read(), 2 * SEGMENT);
    }

    /// A cycle that ends with every superframe is for what a descriptor tells of: the others cost the same wherever they lie.
    #[test]
    fn a_cycle_takes_all_superframes_that_a_doorbell_has_told_of() {
        let mut bench = Bench::of(1, RxSignal::Doorbell, true);
        bench.send(1);
        run(&bench.server, &mut bench.cx);
        assert_eq!(bench.read(), SEGMENT);
        bench.send(3);
        let core = bench.core();
        core.interrupt(core.napi_of(1, QueueId(0)).expect("a queue"));
        let Bench { cx, server, reader, .. } = &mut bench;
        let mut read = None;
        let polled = core.busy_poll(server, cx, 8, |cx| {
            let buf = &mut [0; 8 * SEGMENT];
            read = Some(reader.recv(server, cx, buf, false));
            true
        });
        assert!(polled);
        assert_eq!(read, Some(Ok(3 * SEGMENT)), "in the first cycle");
    }

    /// Until it has polled as long as such a reader stays away; then as long as one sleeps whose core is run by others.
    #[test]
    fn how_long_a_worker_yields() {
        let mut bench = Bench::new();
        assert_eq!(bench.work_beside_reader(true), CoreRun::Left);
        let (core, now) = (bench.core(), bench.cx.now);
        for limit in [Duration::from_micros(300), Duration::from_millis(1)] {
            assert_eq!(core.prepare_sleep(now, true), Some(now + limit));
            core.finish_sleep();
            assert!(core.busy_poll(&bench.server, &mut bench.cx, 8, |_| true));
        }
    }

    /// What a clock says, later than the context when it came.
    fn later() -> Instant {
        Instant::from_secs(1000) + Duration::from_millis(5)
    }

    /// It stays away for a moment from when the worker lets go, not from when that began.
    #[test]
    fn the_reader_s_time_begins_when_it_is_woken() {
        let mut bench = Bench::new();
        bench.core().note_sleeper(true);
        bench.send(3);
        let mut cx = Cx::replay(&bench.memory, 2).with_clock(later);
        cx.now = bench.cx.now;
        let socket = Arc::clone(&bench.reader);
        let _token = socket.waiters(Readiness::READ).prepare();
        let core = bench.core();
        assert_eq!(core.run_as_worker(&bench.server, &mut cx, false), CoreRun::Left);
        assert!(core.is_polled(later()));
    }

    /// Small frames are nobody's in particular.
    #[test]
    fn a_worker_is_not_kept_from_small_frames() {
        let mut bench = Bench::new();
        let (core, socket) = (bench.core(), Arc::clone(&bench.reader));
        core.note_sleeper(true);
        for number in 0..3 {
            bench.send_small();
            let token = socket.waiters(Readiness::READ).prepare();
            assert_eq!(bench.work(), CoreRun::Idle);
            drop(token);
            assert_eq!(bench.read(), 5, "number {number}");
            assert!(core.busy_poll(&bench.server, &mut bench.cx, 8, |_| true));
            assert!(core.is_polled(bench.cx.now) && !core.is_bulk());
            assert!(!core.is_left_alone(bench.cx.now));
        }
    }

    /// A thread that prefers to poll may stay away for a second. What is due before is the worker's.
    #[test]
    fn a_worker_is_not_kept_from_what_is_due() {
        let mut bench = Bench::new();
        let (core, server, now) = (bench.core(), Arc::clone(&bench.server), bench.cx.now);
        let name = "net.quietline.dev.default.gro_flush_timeout";
        server.set_sysctl(name, "1000000000").expect("a second");
        core.stop_polling(&mut bench.cx, &server, true);
        assert!(core.is_left_alone(now));
        core.interrupt(core.napi_of(1, QueueId(0)).expect("a queue"));
        assert!(!core.is_left_alone(now), "a queue is owed");
        assert_eq!(bench.work(), CoreRun::Idle);
        core.stop_polling(&mut bench.cx, &server, true);
        let sent = bench.reader.send(&server, &mut bench.cx, &[IoSlice::new(b"watched")]);
        assert_eq!(sent, Ok(7));
        let due = core.next_deadline().expect("a timer");
        assert!(due > now && core.is_left_alone(now));
        assert!(core.is_polled(due) && !core.is_left_alone(due));
    }

    /// Whether or not it has had the core, as in Linux (`NAPI_STATE_PREFER_BUSY_POLL`): and then nobody else takes that back.
    #[test]
    fn a_thread_that_prefers_to_poll_says_so_for_itself() {
        let mut bench = Bench::new();
        let (core, server, now) = (bench.core(), Arc::clone(&bench.server), bench.cx.now);
        let name = "net.quietline.dev.default.gro_flush_timeout";
        server.set_sysctl(name, "1000000000").expect("a second");
        let mut other = Cx::replay(&bench.memory, 2);
        other.now = now;
        assert!(core.busy_poll(&server, &mut bench.cx, 8, |_| true));
        let almost = now + Duration::from_millis(999);
        core.stop_polling(&mut other, &server, true);
        assert!(core.is_polled(almost));
        core.stop_polling(&mut bench.cx, &server, false);
        assert!(core.is_polled(almost), "not for whoever has polled");
        core.stop_polling(&mut other, &server, false);
        assert!(core.is_free());
    }

    struct Nobody;

    impl Kick for Nobody {
        fn kick(&self) {}
    }

    /// Or it would be woken by every superframe, on the CPU of whoever takes it or of its sender, and find it gone.
    #[test]
    fn a_worker_that_sleeps_on_the_descriptors_is_woken_once_by_a_thread_that_polls() {
        let mut bench = Bench::new();
        let (core, server, now) = (bench.core(), Arc::clone(&bench.server), bench.cx.now);
        core.set_kick(Arc::new(Nobody));
        let poll = |cx: &mut Cx| {
            let polled = core.busy_poll(&server, cx, 8, |_| true);
            assert!(polled && core.is_polled(now));
            server.counters().stack(Counter::CoreKicks)
        };
        let _ = core.prepare_sleep(now, false);
        let kicks = poll(&mut bench.cx);
        assert_eq!(kicks, 1);
        assert_eq!(poll(&mut bench.cx), kicks, "it has been told");
        core.finish_sleep();
        assert!(core.is_left_alone(now), "and sleeps without them");
        let _ = core.prepare_sleep(now, true);
        assert_eq!(poll(&mut bench.cx), kicks);
        core.finish_sleep();
        assert_eq!(poll(&mut bench.cx), kicks, "it is awake");
        let _ = core.prepare_sleep(now, false);
        assert_eq!(poll(&mut bench.cx), kicks + 1);
        core.finish_sleep();
        // Whoever waits for a small frame polls for a moment only.
        core.stop_polling(&mut bench.cx, &server, false);
        bench.send_small();
        assert_eq!(bench.work(), CoreRun::Idle);
        assert!(!core.is_bulk());
        let _ = core.prepare_sleep(now, false);
        assert_eq!(poll(&mut bench.cx), kicks + 1);
    }

    /// Such a thread has no reason to poll again, and frames would lie in the device until the worker came back by time.
    #[test]
    fn a_thread_that_closes_or_ends_or_polls_another_core_gives_the_descriptors_back() {
        let mut bench = Bench::new();
        let (core, server, start) = (bench.core(), Arc::clone(&bench.server), bench.cx.now);
        core.set_kick(Arc::new(Nobody));
        // What the worker is told while it sleeps because somebody polls.
        let kicks = |end: &mut dyn FnMut(Cx)| {
            let mut cx = Cx::replay(&bench.memory, 2);
            cx.now = start;
            assert!(core.busy_poll(&server, &mut cx, 8, |_| true));
            assert!(core.is_polled(start) && !core.is_free());
            let before = server.counters().stack(Counter::CoreKicks);
            let _ = core.prepare_sleep(start, true);
            end(cx);
            core.finish_sleep();
            server.counters().stack(Counter::CoreKicks) - before
        };
        let mut kept = None;
        assert_eq!(kicks(&mut |cx| kept = Some(cx)), 0, "it will be back");
        drop(kept);
        assert_eq!(kicks(&mut drop), 1, "it has ended");
        assert!(core.is_free());
        let other = Bench::new();
        let elsewhere = kicks(&mut |mut cx| {
            assert!(other.core().busy_poll(&other.server, &mut cx, 8, |_| true));
            assert!(core.is_free() && other.core().is_polled(start));
        });
        assert_eq!(elsewhere, 1);
        let reader = Arc::clone(&bench.reader);
        let closes = kicks(&mut |mut cx| {
            reader.close(&server, &mut cx);
            assert!(core.is_free() && !core.is_polled(start));
            drop(cx);
        });
        assert_eq!(closes, 1, "and not once more at its end");
        let listener = Listener::listen(&server, &mut bench.cx, "10.0.0.2:81".parse().unwrap(), 1);
        let listener = listener.expect("a free port");
        let accepts = kicks(&mut |mut cx| {
            cx.polls_to_accept(Some(&listener));
            cx.polls_to_accept(None);
            reader.close(&server, &mut cx);
            assert!(core.is_polled(start), "it will poll for the next connection");
            core.stop_polling(&mut cx, &server, false);
        });
        assert_eq!(accepts, 1, "and says when that was in vain");
        bench.cx.do_softirq();
    }

    /// And a run of one superframe a poll is none that has used up its budget.
    #[test]
    fn without_a_reader_who_is_woken_the_worker_goes_on() {
        let mut bench = Bench::new();
        bench.core().note_sleeper(true);
        bench.send(3);
        assert_eq!(bench.work(), CoreRun::Idle, "nobody waits");
        assert_eq!(bench.read(), 3 * SEGMENT);
        // Who waits for room to write has no use for what arrives.
        let (server, socket) = (Arc::clone(&bench.server), Arc::clone(&bench.reader));
        let small = 2304.into();
        socket.set_option(&server, &mut bench.cx, SocketOption::SendBuffer, &small).expect("set");
        while socket.send(&server, &mut bench.cx, &[IoSlice::new(&[7; 1448])]).is_ok() {}
        bench.cx.do_softirq();
        bench.send(3);
        let writers = socket.waiters(Readiness::WRITE);
        let token = writers.prepare();
        assert_eq!(bench.work(), CoreRun::Idle);
        assert_eq!(writers.wait(token, None), WaitResult::Notified);
        assert_eq!(bench.read(), 3 * SEGMENT);
        let counters = server.counters();
        assert_eq!((bench.left(), counters.stack(Counter::SoftnetTimeSqueeze)), (0, 0));
    }

    /// A worker's context is that of a thread that also runs other cores, and this one for others.
    #[test]
    fn whoever_is_woken_by_another_run_of_the_same_thread_is_woken_at_once() {
        let mut bench = Bench::new();
        let (core, socket) = (bench.core(), Arc::clone(&bench.reader));
        let waiters = socket.waiters(Readiness::READ);
        core.note_sleeper(true);
        bench.send(2);
        let token = waiters.prepare();
        assert_eq!(bench.work(), CoreRun::Left);
        assert_eq!(waiters.wait(token, None), WaitResult::Notified);
        assert_eq!(bench.read(), SEGMENT);
        let token = waiters.prepare();
        assert_eq!(core.try_run(&bench.server, &mut bench.cx), CoreRun::Idle);
        assert_eq!(waiters.wait(token, None), WaitResult::Notified);
    }

    /// Nothing is left to it then: it has been woken long since.
    #[test]
    fn a_reader_is_woken_at_once_before_superframes_come_and_between_two_turns() {
        for (bulk, budget) in [(false, "300"), (true, "1")] {
            let mut bench = Bench::new();
            let (core, socket) = (bench.core(), Arc::clone(&bench.reader));
            bench.server.set_sysctl("net.core.netdev_budget", budget).expect("a number");
            if !bulk {
                bench.send_small();
                assert_eq!(bench.work(), CoreRun::Idle);
                assert_eq!(bench.read(), 5);
            }
            assert_eq!(core.is_bulk(), bulk);
            core.note_sleeper(true);
            bench.send_small();
            bench.send(3);
            let waiters = socket.waiters(Readiness::READ);
            let token = waiters.prepare();
            assert_eq!(bench.work(), CoreRun::Idle, "{budget} frames a turn");
            assert_eq!(waiters.wait(token, None), WaitResult::Notified);
            assert_eq!((bench.read(), bench.left()), (5 + 3 * SEGMENT, 0));
        }
    }
}
