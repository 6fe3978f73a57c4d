//! Several contexts that run one host: each has read its clock at another moment, and any of them
//! may run a core.

#[cfg(test)]
mod tests {
    use std::{
        io::IoSlice,
        net::SocketAddr,
        sync::{
            Arc, Mutex, OnceLock, Weak,
            atomic::{AtomicBool, AtomicUsize, Ordering},
        },
        time::Duration,
    };

    use pkt::{Batch, Instant, PacketList};
    use stack::{
        Capabilities, Cx, Device, Memory, Readiness,
        base::{counters::Counter, ids::CoreId},
        core::{CoreRun, Kick},
        device::{Doorbell, Impairment, LinkType, QueueId, RxSignal, Wire, WireConfig},
        host::{
            Host,
            config::{DeviceConfig, HostConfig},
        },
        socket::{Connection, Listener},
    };

    const START: Instant = Instant::from_secs(1000);

    fn context(memory: &Memory) -> Cx {
        let mut cx = Cx::replay(memory, 1);
        cx.now = START;
        cx
    }

    fn host(memory: &Memory, device: Arc<dyn Device>, address: &str) -> Arc<Host> {
        let addresses = vec![address.parse().expect("an address with its prefix")];
        let devices = vec![DeviceConfig { device, addresses }];
        Host::new(memory, HostConfig { devices, cores: 1, ..HostConfig::replay(0) }).expect("valid")
    }

    fn connected(
        cx: &mut Cx,
        client: &Arc<Host>,
        server: &Arc<Host>,
    ) -> (Arc<Connection>, Arc<Connection>) {
        let to = SocketAddr::new([10, 0, 0, 2].into(), 80);
        let listener = Listener::listen(server, cx, to, 1).expect("a free port");
        let socket = Connection::connect(client, cx, None, to).expect("a route");
        assert!(socket.readiness().contains(Readiness::WRITE), "the wire works at once");
        (socket, listener.accept().expect("established"))
    }

    /// The polling thread accepts the connection itself, so a thread that sleeps in `accept` is not
    /// woken for it. The sleeper is woken for any further connection, and for every connection
    /// while no thread polls.
    #[test]
    fn a_thread_that_polls_to_accept_suppresses_the_wake_of_one_sleeper() {
        let memory = Memory::new(16 << 20);
        let mut cx = context(&memory);
        let (left, right) = Wire::pair(&WireConfig::default()).expect("valid");
        let client = host(&memory, left, "10.0.0.1/24");
        let server = host(&memory, right, "10.0.0.2/24");
        let to = SocketAddr::new([10, 0, 0, 2].into(), 80);
        let listener = Listener::listen(&server, &mut cx, to, 8).expect("a free port");
        let other = Listener::listen(&server, &mut cx, (to.ip(), 81).into(), 8).expect("a port");
        let wakes = |cx: &mut Cx, polls: Option<&Listener>, connections: usize| {
            let before = server.counters().stack(Counter::SocketWakes);
            let sleeper = listener.acceptors().prepare();
            cx.polls_to_accept(polls);
            for _ in 0..connections {
                // The wire delivers at once, in the polling context.
                let socket = Connection::connect(&client, cx, None, to).expect("a route");
                listener.accept().expect("established").close(&server, cx);
                socket.close(&client, cx);
            }
            cx.polls_to_accept(None);
            listener.acceptors().cancel(sleeper);
            server.counters().stack(Counter::SocketWakes) - before
        };
        assert_eq!(wakes(&mut cx, Some(&listener), 1), 0);
        assert_eq!(wakes(&mut cx, Some(&listener), 2), 1, "the polling thread takes the other one");
        assert_eq!(wakes(&mut cx, Some(&other), 1), 1, "it polls for another listener");
        assert_eq!(wakes(&mut cx, None, 1), 1);
    }

    /// A wire whose transmissions take time on the sender's clock.
    #[derive(Debug)]
    struct Slow {
        wire: Arc<Wire>,
        active: AtomicBool,
    }

    impl Device for Slow {
        fn caps(&self) -> &Capabilities {
            self.wire.caps()
        }

        fn receive(&self, queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
            self.wire.receive(queue, cx, budget, out)
        }

        fn transmit(&self, queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
            if self.active.load(Ordering::Relaxed) {
                cx.now += Duration::from_millis(10);
            }
            self.wire.transmit(queue, cx, list);
        }

        fn attach(&self, queue: QueueId, doorbell: Doorbell) {
            self.wire.attach(queue, doorbell);
        }
    }

    #[test]
    fn the_time_of_a_connection_does_not_run_backwards() {
        let memory = Memory::new(64 << 20);
        let (left, right) = Wire::pair(&WireConfig::default()).expect("valid");
        let slow = Arc::new(Slow { wire: left, active: AtomicBool::new(false) });
        let client = host(&memory, Arc::clone(&slow) as _, "10.0.0.1/24");
        let server = host(&memory, right, "10.0.0.2/24");
        let mut first = context(&memory);
        let (socket, accepted) = connected(&mut first, &client, &server);
        slow.active.store(true, Ordering::Relaxed);
        // Two transmissions: the second carries a later time than the first.
        let bytes = vec![1; 100_000];
        let sent = socket.send(&client, &mut first, &[IoSlice::new(&bytes)]).expect("connected");
        // A context whose clock was read before those transmissions.
        slow.active.store(false, Ordering::Relaxed);
        let mut second = context(&memory);
        let more = socket.send(&client, &mut second, &[IoSlice::new(&[2; 200])]);
        assert_eq!(
            server.counters().get("TcpExtPAWSEstab"),
            Some(0),
            "an older timestamp was sent"
        );
        let sent = sent + more.expect("room");
        let mut buf = vec![0; 200_000];
        assert_eq!(accepted.recv(&server, &mut second, &mut buf, false), Ok(sent));
    }

    /// A device that notes the time of each poll.
    #[derive(Debug)]
    struct Timed {
        caps: Capabilities,
        polls: Mutex<Vec<Instant>>,
    }

    impl Device for Timed {
        fn caps(&self) -> &Capabilities {
            &self.caps
        }

        fn receive(&self, _queue: QueueId, cx: &mut Cx, _budget: usize, _out: &mut Batch) -> usize {
            self.polls.lock().expect("no panic").push(cx.now);
            0
        }

        fn transmit(&self, _queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
            while let Some(packet) = list.pop_front() {
                cx.pool.free(packet);
            }
        }
    }

    /// A thread reads the clock, loses its CPU, and polls after another thread that has read the
    /// clock later.
    #[test]
    fn the_time_of_a_core_does_not_run_backwards() {
        let caps = Capabilities::plain("timed", 1500, LinkType::Ip);
        let timed = Arc::new(Timed { caps, polls: Mutex::default() });
        let devices = vec![DeviceConfig { device: Arc::clone(&timed) as _, addresses: Vec::new() }];
        let memory = Memory::new(1 << 20);
        let host = Host::new(&memory, HostConfig { devices, cores: 1, ..HostConfig::replay(0) });
        let host = host.expect("valid");
        let (mut early, mut late) = (context(&memory), context(&memory));
        late.now += Duration::from_millis(10);
        let end = late.now;
        let _ = host.poll(&mut late);
        let _ = host.poll(&mut early);
        let polls = timed.polls.lock().expect("no panic");
        assert!(polls.len() >= 2 && polls.iter().all(|&at| at == end), "{polls:?}");
    }

    #[test]
    fn a_frame_without_delay_is_received_at_any_time_of_the_receiver() {
        // An impairment that never applies makes the frames take the delayed path.
        let never = Impairment { loss: f64::MIN_POSITIVE, ..Impairment::default() };
        let config = WireConfig { forward: never, backward: never, ..WireConfig::default() };
        let (left, right) = Wire::pair(&config).expect("valid");
        let memory = Memory::new(1 << 20);
        let mut sender = context(&memory);
        let mut receiver = context(&memory);
        sender.now += Duration::from_micros(5);
        let mut list = PacketList::new();
        list.push_back(sender.pool.alloc_from(&[0; 64]).expect("memory"));
        left.transmit(QueueId(0), &mut sender, &mut list);
        let mut batch = Batch::default();
        // No second doorbell would announce the frame.
        assert_eq!(right.receive(QueueId(0), &mut receiver, 64, &mut batch), 1);
    }

    /// A device that always has frames, until `over` is set.
    #[derive(Debug)]
    struct Flood {
        caps: Capabilities,
        doorbell: OnceLock<Doorbell>,
        received: AtomicUsize,
        over: AtomicBool,
    }

    impl Flood {
        fn new() -> Arc<Self> {
            Arc::new(Self {
                caps: Capabilities {
                    tx_checksum: true,
                    ..Capabilities::plain("flood", 1500, LinkType::Ip)
                },
                doorbell: OnceLock::new(),
                received: AtomicUsize::new(0),
                over: AtomicBool::new(false),
            })
        }
    }

    impl Device for Flood {
        fn caps(&self) -> &Capabilities {
            &self.caps
        }

        fn receive(&self, _queue: QueueId, cx: &mut Cx, budget: usize, out: &mut Batch) -> usize {
            if self.over.load(Ordering::Relaxed) {
                return 0;
            }
            let already = self.received.fetch_add(budget, Ordering::Relaxed);
            assert!(already < 1_000_000, "the sending thread runs the core forever");
            for _ in 0..budget {
                let frame = cx.pool.alloc_from(&[0; 64]).expect("memory");
                out.push(frame).expect("room for the budget");
            }
            budget
        }

        fn transmit(&self, _queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
            while let Some(packet) = list.pop_front() {
                cx.pool.free(packet);
            }
            self.doorbell.get().expect("attached").ring(cx);
        }

        fn rx_signal(&self, _queue: QueueId) -> RxSignal {
            RxSignal::Doorbell
        }

        fn attach(&self, _queue: QueueId, doorbell: Doorbell) {
            let _ = self.doorbell.set(doorbell);
        }
    }

    /// Two queues without frames that signal no arrivals.
    #[derive(Debug)]
    struct Silent {
        caps: Capabilities,
        polls: [AtomicUsize; 2],
    }

    impl Device for Silent {
        fn caps(&self) -> &Capabilities {
            &self.caps
        }

        fn receive(&self, queue: QueueId, _cx: &mut Cx, _budget: usize, _out: &mut Batch) -> usize {
            self.polls[usize::from(queue.0)].fetch_add(1, Ordering::Relaxed);
            0
        }

        fn transmit(&self, _queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
            while let Some(packet) = list.pop_front() {
                cx.pool.free(packet);
            }
        }
    }

    /// Polling one core does not poll another: threads with a core each would otherwise contend for
    /// both.
    #[test]
    fn polling_one_core_does_not_poll_another() {
        let caps = Capabilities { queues: 2, ..Capabilities::plain("silent", 1500, LinkType::Ip) };
        let silent = Arc::new(Silent { caps, polls: Default::default() });
        let device = Arc::clone(&silent) as _;
        let devices = vec![DeviceConfig { device, addresses: Vec::new() }];
        let memory = Memory::new(1 << 20);
        let config = HostConfig { devices, cores: 2, ..HostConfig::replay(0) };
        let host = Host::new(&memory, config).expect("valid");
        let mut cx = context(&memory);
        let polls = || [0, 1].map(|queue| silent.polls[queue].swap(0, Ordering::Relaxed) > 0);
        assert_eq!(host.poll_core(&mut cx, CoreId(1)), None);
        assert_eq!(polls(), [false, true]);
        assert_eq!(host.poll_core(&mut cx, CoreId(0)), None);
        assert_eq!(polls(), [true, false]);
        assert_eq!(host.poll(&mut cx), None);
        assert_eq!(polls(), [true, true]);
    }

    #[derive(Debug, Default)]
    struct Kicks(AtomicUsize);

    impl Kick for Kicks {
        fn kick(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_flood_is_handed_to_the_worker() {
        let flood = Flood::new();
        let memory = Memory::new(1 << 20);
        let host = host(&memory, Arc::clone(&flood) as _, "10.0.0.1/24");
        let kicks = Arc::new(Kicks::default());
        host.cores()[0].set_kick(Arc::clone(&kicks) as _);
        let mut cx = context(&memory);
        let to = SocketAddr::new([10, 0, 0, 2].into(), 80);
        let socket = Connection::connect(&host, &mut cx, None, to).expect("a route");
        assert!(kicks.0.load(Ordering::Relaxed) > 0, "the worker must continue");
        assert!(!cx.softirq_pending());
        // A run by the worker ends, too: the worker must read the clock and check whether it has to
        // stop.
        assert_eq!(host.cores()[0].try_run(&host, &mut cx), CoreRun::Pending);
        assert_eq!(host.poll(&mut cx), Some(cx.now));
        assert_eq!(host.poll_core(&mut cx, CoreId(0)), Some(cx.now));
        drop(socket);
    }

    /// No worker continues the work. The caller returns nevertheless, and the next thread that
    /// polls the host, or the next doorbell, continues it.
    #[test]
    fn a_flood_without_a_worker_is_left_to_the_next_thread() {
        let flood = Flood::new();
        let memory = Memory::new(1 << 20);
        let host = host(&memory, Arc::clone(&flood) as _, "10.0.0.1/24");
        let mut cx = context(&memory);
        let to = SocketAddr::new([10, 0, 0, 2].into(), 80);
        let socket = Connection::connect(&host, &mut cx, None, to).expect("a route");
        assert!(!cx.softirq_pending());
        assert_eq!(host.counters().stack(Counter::CoreLeft), 1);
        assert_eq!(host.counters().stack(Counter::CoreHandoffs), 0);
        assert_eq!(host.next_deadline(), Some(Instant::ZERO), "the core must run at once");
        assert_eq!(host.poll(&mut cx), Some(cx.now));
        // Continued by a doorbell.
        let mut other = context(&memory);
        flood.doorbell.get().expect("attached").ring(&mut other);
        assert!(other.softirq_pending(), "the ringing context takes over the core");
        flood.over.store(true, Ordering::Relaxed);
        other.do_softirq();
        let retransmission = host.next_deadline().expect("of the SYN");
        assert!(retransmission > cx.now, "{retransmission:?}");
        // Continued by a poll.
        flood.over.store(false, Ordering::Relaxed);
        flood.doorbell.get().expect("attached").ring(&mut other);
        other.do_softirq();
        assert_eq!(host.next_deadline(), Some(Instant::ZERO));
        flood.over.store(true, Ordering::Relaxed);
        assert_eq!(host.poll(&mut cx), Some(retransmission));
        drop(socket);
    }

    /// A device whose poll makes the core of another host run.
    #[derive(Debug)]
    struct Bouncing {
        caps: Capabilities,
        doorbell: OnceLock<Doorbell>,
        peer: OnceLock<Weak<Self>>,
        has_ball: AtomicBool,
        bounces: Arc<AtomicUsize>,
    }

    impl Bouncing {
        fn hit(&self, cx: &mut Cx) {
            self.has_ball.store(true, Ordering::Relaxed);
            self.doorbell.get().expect("attached").ring(cx);
        }
    }

    impl Device for Bouncing {
        fn caps(&self) -> &Capabilities {
            &self.caps
        }

        fn receive(&self, _queue: QueueId, cx: &mut Cx, _budget: usize, _out: &mut Batch) -> usize {
            if self.has_ball.swap(false, Ordering::Relaxed) {
                let already = self.bounces.fetch_add(1, Ordering::Relaxed);
                assert!(already < 10_000, "two cores make each other run forever");
                self.peer.get().and_then(Weak::upgrade).expect("two").hit(cx);
            }
            0
        }

        fn transmit(&self, _queue: QueueId, cx: &mut Cx, list: &mut PacketList) {
            list.free_all(&mut cx.pool);
        }

        fn rx_signal(&self, _queue: QueueId) -> RxSignal {
            RxSignal::Doorbell
        }

        fn attach(&self, _queue: QueueId, doorbell: Doorbell) {
            let _ = self.doorbell.set(doorbell);
        }
    }

    /// Returns a time one millisecond later with each call.
    fn hasty_clock() -> Instant {
        static LOOKS: AtomicUsize = AtomicUsize::new(0);
        START + Duration::from_millis(LOOKS.fetch_add(1, Ordering::Relaxed) as u64)
    }

    /// Linux: `MAX_SOFTIRQ_RESTART`, `MAX_SOFTIRQ_TIME`.
    #[test]
    fn cores_that_make_each_other_run_stop_at_the_limit() {
        let memory = Memory::new(1 << 20);
        let bounces = Arc::new(AtomicUsize::new(0));
        let ends = ["left", "right"].map(|name| {
            Arc::new(Bouncing {
                caps: Capabilities::plain(name, 1500, LinkType::Ip),
                doorbell: OnceLock::new(),
                peer: OnceLock::new(),
                has_ball: AtomicBool::new(false),
                bounces: Arc::clone(&bounces),
            })
        });
        for (end, peer) in [(0, 1), (1, 0)] {
            ends[end].peer.set(Arc::downgrade(&ends[peer])).expect("once");
        }
        let addresses = ["10.0.0.1/24", "10.0.1.1/24"];
        let hosts = [0, 1].map(|at| host(&memory, Arc::clone(&ends[at]) as _, addresses[at]));
        let play = |mut cx: Cx| {
            let before = bounces.load(Ordering::Relaxed);
            ends[0].hit(&mut cx);
            cx.do_softirq();
            assert!(!cx.softirq_pending());
            let wanted = hosts.iter().filter(|host| host.next_deadline() == Some(Instant::ZERO));
            assert_eq!(wanted.count(), 1, "the host whose device has the ball");
            let played = bounces.load(Ordering::Relaxed) - before;
            // The next poll continues.
            let _ = hosts.each_ref().map(|host| host.poll(&mut cx));
            assert!(bounces.load(Ordering::Relaxed) - before > played);
            for end in &ends {
                end.has_ball.store(false, Ordering::Relaxed);
            }
            let _ = hosts.each_ref().map(|host| host.poll(&mut cx));
            assert!(hosts.iter().all(|host| host.next_deadline().is_none()));
            played
        };
        assert_eq!(play(context(&memory)), 64);
        let by_time = play(Cx::replay(&memory, 1).with_clock(hasty_clock));
        assert_eq!(by_time, 24, "the third clock reading exceeds the limit");
    }

    /// Sends one frame by `wire` to the host at its other end, without running that host.
    fn ring(wire: &Wire, cx: &mut Cx) {
        let mut frame = cx.pool.alloc().expect("memory");
        assert_eq!(frame.append(&mut cx.pool, &[0; 60]), 60);
        let mut list = PacketList::new();
        list.push_back(frame);
        wire.transmit(QueueId(0), cx, &mut list);
        assert!(cx.softirq_pending());
    }

    /// A context owns a core from the doorbell on, before it runs the core.
    #[test]
    fn a_host_can_be_dropped_while_a_rung_core_has_not_run() {
        let memory = Memory::new(1 << 20);
        let (here, there) = Wire::pair(&WireConfig::default()).expect("valid");
        let device = Arc::downgrade(&there);
        let host = host(&memory, there, "10.0.0.2/24");
        let kicks = Arc::new(Kicks::default());
        host.cores()[0].set_kick(Arc::clone(&kicks) as _);
        let mut cx = context(&memory);
        ring(&here, &mut cx);
        drop(host);
        assert!(
            device.upgrade().is_some(),
            "the owner of the core holds its devices until it has run"
        );
        cx.do_softirq();
        assert!(device.upgrade().is_none());
        assert_eq!(Arc::strong_count(&kicks), 1, "the worker's kick is released as well");
        // A doorbell of a dropped host has no effect.
        ring(&here, &mut cx);
        cx.do_softirq();
    }

    /// The context is dropped early: its thread panics, or the application drops it.
    #[test]
    fn a_rung_core_survives_the_drop_of_the_context() {
        let memory = Memory::new(1 << 20);
        let (here, there) = Wire::pair(&WireConfig::default()).expect("valid");
        let host = host(&memory, there, "10.0.0.2/24");
        let processed = |host: &Host| host.counters().stack(Counter::SoftnetProcessed);
        let mut first = context(&memory);
        ring(&here, &mut first);
        drop(first);
        let mut next = context(&memory);
        ring(&here, &mut next);
        next.do_softirq();
        assert_eq!(processed(&host), 2, "the next doorbell runs the core for both frames");

        let kicks = Arc::new(Kicks::default());
        host.cores()[0].set_kick(Arc::clone(&kicks) as _);
        ring(&here, &mut next);
        drop(next);
        assert_eq!(
            kicks.0.load(Ordering::Relaxed),
            1,
            "the worker is kicked without another doorbell"
        );
        let mut worker = context(&memory);
        assert_eq!(host.cores()[0].run_interrupted(&host, &mut worker), CoreRun::Idle);
        assert_eq!(processed(&host), 3);
    }
}
