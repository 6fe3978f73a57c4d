//! A worker that wakes a polling reader leaves the remaining frames to that reader, and no frame is
//! stranded.

#[cfg(test)]
mod tests {
    use std::{io::IoSlice, net::SocketAddr, sync::Arc, time::Duration};

    use pkt::{Batch, Instant, PacketList};
    use stack::{
        Capabilities, Cx, Device, Memory, Readiness,
        base::{counters::Counter, ids::DeviceIndex},
        core::{Core, CoreRun, Kick},
        device::{QueueId, RxSignal, Wire, WireConfig},
        host::{
            Host,
            config::{DeviceConfig, HostConfig},
        },
        socket::{Connection, Listener, options::SocketOption},
    };
    use sync::WaitResult;

    /// A superframe of three segments.
    const SEGMENT: usize = 3 * 1448;

    /// One end of a wire with a configurable arrival signal. A poll returns up to `weight` frames,
    /// or half as many superframes.
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

    /// Runs the core of a host, with its queue marked as interrupted.
    fn run(host: &Host, cx: &mut Cx) {
        let core = &host.cores()[0];
        core.interrupt(core.napi_of(DeviceIndex(1), QueueId(0)).expect("a queue"));
        assert_eq!(core.try_run(host, cx), CoreRun::Idle);
        cx.do_softirq();
    }

    struct Bench {
        memory: Memory,
        cx: Cx,
        client: Arc<Host>,
        server: Arc<Host>,
        sender: Arc<Connection>,
        reader: Arc<Connection>,
    }

    impl Bench {
        /// Creates a bench with one frame per poll.
        fn new() -> Self {
            Self::with_weight(1)
        }

        fn with_weight(weight: usize) -> Self {
            let mut bench = Self::of(weight, RxSignal::Descriptor, true);
            // From here on the core expects superframes.
            bench.send(1);
            assert_eq!(bench.work(), CoreRun::Idle);
            assert_eq!(bench.read(), SEGMENT);
            assert!(bench.core().is_bulk());
            bench
        }

        /// Creates a bench whose server has this arrival signal and whose wire passes superframes
        /// or not. No data has been sent.
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
            let sender = Connection::connect(&client, &mut cx, None, to).expect("a route");
            for _ in 0..4 {
                run(&server, &mut cx);
            }
            let reader = listener.accept().expect("established");
            Self { memory, cx, client, server, sender, reader }
        }

        /// Sends `count` superframes, which stay in the device until the server's core runs.
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

        /// Three superframes arrive while a thread sleeps in `recv`; `polls` says whether that
        /// thread polled before.
        fn work_beside_reader(&mut self, polls: bool) -> CoreRun {
            self.core().note_sleeper(polls);
            self.send(3);
            let socket = Arc::clone(&self.reader);
            let _token = socket.waiters(Readiness::READ).prepare();
            self.work()
        }

        /// Returns how often a worker left frames to the reader.
        fn left(&self) -> u64 {
            self.server.counters().stack(Counter::CoreLeftToReader)
        }

        fn read(&mut self) -> usize {
            let mut buf = [0; 8 * SEGMENT];
            self.reader.recv(&self.server, &mut self.cx, &mut buf, false).unwrap_or(0)
        }
    }

    #[test]
    fn arrived_frames_are_left_to_a_polling_reader() {
        let mut bench = Bench::new();
        bench.core().note_sleeper(true);
        bench.send(3);
        let socket = Arc::clone(&bench.reader);
        let waiters = socket.waiters(Readiness::READ);
        let token = waiters.prepare();
        assert_eq!(bench.work(), CoreRun::Left);
        assert_eq!(waiters.wait(token, None), WaitResult::Notified, "when the core is released");
        assert_eq!(bench.read(), SEGMENT);
        let core = bench.core();
        assert!(core.is_polled(bench.cx.now) && core.needs_no_worker(bench.cx.now));
        for _ in 0..2 {
            // One frame per cycle: the waiting thread has its data as soon as it arrives.
            assert!(core.busy_poll(&bench.server, &mut bench.cx, 8, |_| true));
            assert_eq!(bench.read(), SEGMENT);
        }
        core.stop_polling(&mut bench.cx, &bench.server, false);
        assert!(!core.needs_no_worker(bench.cx.now));
        assert_eq!(bench.work(), CoreRun::Idle);
        assert_eq!(bench.left(), 1);
    }

    /// The reader was woken but does other work first.
    #[test]
    fn frames_are_processed_by_the_worker_when_the_reader_does_not_poll() {
        let mut bench = Bench::new();
        assert_eq!(bench.work_beside_reader(true), CoreRun::Left);
        let (core, now) = (bench.core(), bench.cx.now);
        let until = core.prepare_sleep(now, true).expect("a limited time");
        core.finish_sleep();
        assert!(until > now && until <= now + Duration::from_millis(1));
        bench.cx.now = until;
        assert!(!core.needs_no_worker(until), "the worker polls");
        assert_eq!(bench.work(), CoreRun::Idle);
        assert_eq!(bench.read(), 3 * SEGMENT);
    }

    /// If the worker took this for activity by another thread, it would sleep for a millisecond,
    /// past any timer due earlier.
    #[test]
    fn a_worker_that_leaves_frames_does_not_assume_that_another_thread_runs_the_core() {
        let mut bench = Bench::new();
        assert_eq!(bench.work_beside_reader(true), CoreRun::Left);
        assert_eq!(bench.work(), CoreRun::Left, "still left to the reader");
        assert_eq!(bench.left(), 1, "counted once");
        assert_eq!(bench.read(), SEGMENT, "and no further frame was polled");
    }

    /// Neither the worker nor a polling thread leaves frames of a masked queue, because no
    /// descriptor would announce them.
    #[test]
    fn frames_that_no_descriptor_announces_are_not_left() {
        let mut bench = Bench::with_weight(4);
        let defer = [("napi_defer_hard_irqs", "100"), ("gro_flush_timeout", "1000000")];
        for (setting, value) in defer {
            let name = format!("net.quietline.dev.default.{setting}");
            bench.server.set_sysctl(&name, value).expect("a setting");
        }
        let (core, napi) =
            (bench.core(), bench.core().napi_of(DeviceIndex(1), QueueId(0)).expect("a queue"));
        bench.send(1);
        assert_eq!(bench.work(), CoreRun::Idle);
        assert_eq!(bench.read(), SEGMENT);
        assert!(core.is_masked(napi), "polled by timer");
        bench.cx.now += Duration::from_millis(10);
        assert_eq!(bench.work_beside_reader(true), CoreRun::Idle);
        assert_eq!(bench.read(), 3 * SEGMENT);
        assert!(core.is_masked(napi) && core.next_deadline().is_some());
        bench.send(3);
        assert!(core.busy_poll(&bench.server, &mut bench.cx, 8, |_| true));
        assert_eq!(bench.read(), 3 * SEGMENT);
    }

    #[test]
    fn no_frames_are_left_to_a_reader_that_does_not_poll() {
        let mut bench = Bench::new();
        assert_eq!(bench.work_beside_reader(false), CoreRun::Idle);
        assert_eq!((bench.read(), bench.left()), (3 * SEGMENT, 0));
    }

    /// A thread that never owned the core goes to sleep while another polls. If it ended that
    /// polling, the worker would be woken for each superframe.
    #[test]
    fn a_thread_that_never_owned_the_core_does_not_end_the_polling_of_another() {
        let mut bench = Bench::new();
        let (core, server, start) = (bench.core(), Arc::clone(&bench.server), bench.cx.now);
        let mut other = Cx::replay(&bench.memory, 2);
        other.now = start;
        let polled = core.busy_poll(&server, &mut bench.cx, 8, |_| {
            assert!(
                !core.busy_poll(&server, &mut other, 8, |_| true),
                "another thread owns the core"
            );
            core.stop_polling(&mut other, &server, false);
            true
        });
        assert!(polled);
        core.stop_polling(&mut other, &server, false);
        assert!(core.is_polled(start) && core.needs_no_worker(start) && !core.is_free());
        core.stop_polling(&mut bench.cx, &server, false);
        assert!(!core.is_polled(start) && core.is_free(), "the polling thread may release it");
        // Both threads have polled: the last one to poll decides.
        for cx in [&mut bench.cx, &mut other] {
            assert!(core.busy_poll(&server, cx, 8, |_| true));
            core.stop_polling(cx, &server, false);
            assert!(!core.is_polled(start));
        }
        assert!(core.busy_poll(&server, &mut bench.cx, 8, |_| true));
        assert!(core.busy_poll(&server, &mut other, 8, |_| true));
        core.stop_polling(&mut bench.cx, &server, false);
        assert!(core.is_polled(start));
        // The last poller did not return: its reservation has expired and no longer counts.
        other.now = start + Duration::from_millis(1);
        bench.cx.now = other.now;
        assert!(!core.is_free());
        core.stop_polling(&mut bench.cx, &server, false);
        assert!(core.is_free());
    }

    /// The worker does not know which thread will take the frames until that thread polls.
    #[test]
    fn a_reader_may_return_the_frames_that_were_left_to_it() {
        let mut bench = Bench::new();
        assert_eq!(bench.work_beside_reader(true), CoreRun::Left);
        let (core, server, now) = (bench.core(), Arc::clone(&bench.server), bench.cx.now);
        let mut reader = Cx::replay(&bench.memory, 2);
        reader.now = now;
        assert!(core.needs_no_worker(now));
        core.stop_polling(&mut reader, &server, false);
        assert!(!core.needs_no_worker(now));
        assert_eq!(bench.work(), CoreRun::Idle);
        assert_eq!(bench.read(), 3 * SEGMENT);
    }

    #[test]
    fn frames_count_as_bulk_by_their_length_weight_and_arrival_signal() {
        use RxSignal::{Descriptor, Doorbell};
        for (weight, signal, tso, bulk) in [
            (8, Descriptor, true, true),
            // Single segments, though together as long as a superframe.
            (8, Descriptor, false, false),
            // A device whose weight is the maximum does not prefer small polls.
            (64, Descriptor, true, false),
            // With a doorbell the sender runs the core.
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
    fn a_poll_takes_half_as_many_superframes_as_frames() {
        let mut bench = Bench::with_weight(4);
        assert_eq!(bench.work_beside_reader(true), CoreRun::Left);
        assert_eq!(bench.read(), 2 * SEGMENT);
    }

    /// A cycle ends after each superframe only for queues with a descriptor; with a doorbell it
    /// makes no difference where the frames wait.
    #[test]
    fn a_cycle_takes_all_superframes_that_a_doorbell_announced() {
        let mut bench = Bench::of(1, RxSignal::Doorbell, true);
        bench.send(1);
        run(&bench.server, &mut bench.cx);
        assert_eq!(bench.read(), SEGMENT);
        bench.send(3);
        let core = bench.core();
        core.interrupt(core.napi_of(DeviceIndex(1), QueueId(0)).expect("a queue"));
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

    /// Limit before the reader has polled: the time that frames are left to a reader. Afterwards:
    /// the sleep of a worker whose core is run by other threads.
    #[test]
    fn the_worker_yields_briefly_to_a_new_reader_and_longer_to_a_polling_one() {
        let mut bench = Bench::new();
        assert_eq!(bench.work_beside_reader(true), CoreRun::Left);
        let (core, now) = (bench.core(), bench.cx.now);
        for limit in [Duration::from_micros(300), Duration::from_millis(1)] {
            assert_eq!(core.prepare_sleep(now, true), Some(now + limit));
            core.finish_sleep();
            assert!(core.busy_poll(&bench.server, &mut bench.cx, 8, |_| true));
        }
    }

    /// A clock later than the context's time at the start of the run.
    fn later() -> Instant {
        Instant::from_secs(1000) + Duration::from_millis(5)
    }

    /// The reader's time starts when the worker releases the core, not at the start of the worker's
    /// run.
    #[test]
    fn the_readers_time_starts_when_the_core_is_released() {
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

    /// Small frames are not reserved for the polling thread.
    #[test]
    fn a_worker_polls_small_frames() {
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
            assert!(!core.needs_no_worker(bench.cx.now));
        }
    }

    /// A thread with `SO_PREFER_BUSY_POLL` may stay away for a second. Work that is due earlier is
    /// done by the worker.
    #[test]
    fn a_worker_does_the_work_that_is_due() {
        let mut bench = Bench::new();
        let (core, server, now) = (bench.core(), Arc::clone(&bench.server), bench.cx.now);
        let name = "net.quietline.dev.default.gro_flush_timeout";
        server.set_sysctl(name, "1000000000").expect("a second");
        core.stop_polling(&mut bench.cx, &server, true);
        assert!(core.needs_no_worker(now));
        core.interrupt(core.napi_of(DeviceIndex(1), QueueId(0)).expect("a queue"));
        assert!(!core.needs_no_worker(now), "a poll of a queue is due");
        assert_eq!(bench.work(), CoreRun::Idle);
        core.stop_polling(&mut bench.cx, &server, true);
        let sent = bench.reader.send(&server, &mut bench.cx, &[IoSlice::new(b"watched")]);
        assert_eq!(sent, Ok(7));
        let due = core.next_deadline().expect("a timer");
        assert!(due > now && core.needs_no_worker(now));
        assert!(core.is_polled(due) && !core.needs_no_worker(due));
    }

    /// As in Linux (`NAPI_STATE_PREFER_BUSY_POLL`), the preference counts whether or not the thread
    /// owned the core, and no other thread can cancel it.
    #[test]
    fn a_preference_for_busy_polling_is_canceled_only_by_its_own_thread() {
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
        assert!(core.is_polled(almost), "the other thread's preference remains");
        core.stop_polling(&mut other, &server, false);
        assert!(core.is_free());
    }

    struct Nobody;

    impl Kick for Nobody {
        fn kick(&self) {}
    }

    /// Otherwise every superframe would wake the worker, on the CPU of the reader or the sender, to
    /// find the frame already taken.
    #[test]
    fn a_worker_that_watches_descriptors_is_woken_once_by_a_polling_thread() {
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
        assert_eq!(poll(&mut bench.cx), kicks, "already kicked");
        core.finish_sleep();
        assert!(core.needs_no_worker(now), "and it sleeps without watching descriptors");
        let _ = core.prepare_sleep(now, true);
        assert_eq!(poll(&mut bench.cx), kicks);
        core.finish_sleep();
        assert_eq!(poll(&mut bench.cx), kicks, "the worker is awake");
        let _ = core.prepare_sleep(now, false);
        assert_eq!(poll(&mut bench.cx), kicks + 1);
        core.finish_sleep();
        // A thread that waits for a small frame polls only briefly.
        core.stop_polling(&mut bench.cx, &server, false);
        bench.send_small();
        assert_eq!(bench.work(), CoreRun::Idle);
        assert!(!core.is_bulk());
        let _ = core.prepare_sleep(now, false);
        assert_eq!(poll(&mut bench.cx), kicks + 1);
    }

    /// Such a thread does not poll again; frames would stay in the device until the worker's sleep
    /// timed out.
    #[test]
    fn a_thread_that_closes_exits_or_polls_another_core_releases_the_descriptors() {
        let mut bench = Bench::new();
        let (core, server, start) = (bench.core(), Arc::clone(&bench.server), bench.cx.now);
        core.set_kick(Arc::new(Nobody));
        // Counts the kicks of a worker that sleeps because a thread polls.
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
        assert_eq!(kicks(&mut |cx| kept = Some(cx)), 0, "the thread will return");
        drop(kept);
        assert_eq!(kicks(&mut drop), 1, "the thread has ended");
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
        assert_eq!(closes, 1, "no second kick when the context is dropped");
        let listener = Listener::listen(&server, &mut bench.cx, "10.0.0.2:81".parse().unwrap(), 1);
        let listener = listener.expect("a free port");
        let accepts = kicks(&mut |mut cx| {
            cx.polls_to_accept(Some(&listener));
            cx.polls_to_accept(None);
            reader.close(&server, &mut cx);
            assert!(core.is_polled(start), "the thread will poll for the next connection");
            core.stop_polling(&mut cx, &server, false);
        });
        assert_eq!(accepts, 1, "kicked when polling stops");
        bench.cx.do_softirq();
    }

    /// A run of one superframe per poll does not count as an exhausted budget.
    #[test]
    fn without_a_woken_reader_the_worker_continues() {
        let mut bench = Bench::new();
        bench.core().note_sleeper(true);
        bench.send(3);
        assert_eq!(bench.work(), CoreRun::Idle, "no thread waits");
        assert_eq!(bench.read(), 3 * SEGMENT);
        // A thread that waits for space to write does not take received frames.
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

    /// A worker's context belongs to a thread that also runs other cores, on whose behalf no wake
    /// is deferred here.
    #[test]
    fn a_thread_woken_by_another_run_of_the_same_context_is_woken_at_once() {
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

    /// No frames are left to that reader, because it has already been woken.
    #[test]
    fn a_reader_is_woken_at_once_before_superframes_arrive_and_between_two_turns() {
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
