//! Threads against the whole stack: connections that are opened, used, half-closed, aborted and forgotten, all at once.
//!
//! What must hold: no call hangs, every byte of an orderly conversation arrives, and afterwards no connection is left in
//! a table and no packet alive. `STRESS_SECONDS` makes each scenario longer, `SEED` repeats one choice of conversations;
//! how threads meet is never repeated.

#[cfg(test)]
mod tests {
    use std::{
        fmt::Write as _,
        io::{self, ErrorKind, Read, Write},
        net::{Shutdown, SocketAddr},
        sync::{
            Arc, Mutex, PoisonError,
            atomic::{AtomicU64, Ordering},
            mpsc,
        },
        thread,
        time::{Duration, Instant},
    };

    use quietline::{Impairment, Stack, TcpListener, TcpStream, Wire, WireConfig};

    /// Threads that open connections, and threads that accept them.
    const THREADS: u64 = 4;
    /// How long a scenario opens connections.
    const SECONDS: f64 = 1.0;
    /// How long everything may take beyond that: far more than any retransmission of a test needs.
    const PATIENCE: Duration = Duration::from_secs(60);
    /// A reset can be lost, and then its victim waits for nothing.
    const ABORTED_TIMEOUT: Duration = Duration::from_secs(1);

    /// Packet memory belongs to the process, so one scenario at a time.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    #[derive(Clone, Copy, Debug)]
    struct Scenario {
        cores: u16,
        queues: u16,
        impairment: Impairment,
        /// Connections end in TIME-WAIT, which outlasts the test, instead of at once.
        time_wait: bool,
        /// `net.core.busy_read`: microseconds that a thread polls before it sleeps.
        busy_read: &'static str,
        /// One stack that talks to itself.
        loopback: bool,
        /// Without workers: the threads that wait run the stack.
        manual: bool,
    }

    /// Connections over a good wire that leave no remnant.
    fn on_cores(cores: u16) -> Scenario {
        Scenario {
            cores,
            queues: cores,
            impairment: Impairment::default(),
            time_wait: false,
            busy_read: "50",
            loopback: false,
            manual: false,
        }
    }

    fn lossy() -> Impairment {
        Impairment { loss: 0.01, ..Impairment::default() }
    }

    fn late() -> Impairment {
        Impairment {
            delay: Duration::from_micros(100),
            reorder: 0.02,
            reorder_delay: Duration::from_micros(200),
            loss: 0.005,
            duplicate: 0.01,
            ..Impairment::default()
        }
    }

    #[test]
    fn one_core_and_a_good_wire() {
        run(on_cores(1));
    }

    #[test]
    fn two_cores_and_a_good_wire() {
        run(on_cores(2));
    }

    #[test]
    fn two_cores_and_nobody_who_polls() {
        run(Scenario { busy_read: "0", ..on_cores(2) });
    }

    #[test]
    fn two_cores_over_loopback() {
        run(Scenario { loopback: true, ..on_cores(2) });
    }

    #[test]
    fn two_cores_without_workers() {
        run(Scenario { manual: true, impairment: late(), ..on_cores(2) });
    }

    #[test]
    fn two_cores_with_time_wait() {
        run(Scenario { time_wait: true, ..on_cores(2) });
    }

    #[test]
    fn one_core_and_a_wire_that_loses() {
        run(Scenario { impairment: lossy(), ..on_cores(1) });
    }

    #[test]
    fn two_cores_and_a_wire_that_delays_and_reorders() {
        run(Scenario { impairment: late(), ..on_cores(2) });
    }

    #[test]
    fn a_server_that_is_shut_down_in_the_middle() {
        for round in 0..8 {
            run_until_shutdown(round, |_, server| server.shutdown());
        }
    }

    #[test]
    fn a_client_that_is_shut_down_in_the_middle() {
        for round in 0..8 {
            run_until_shutdown(round, |client, _| client.shutdown());
        }
    }

    /// Every writer has a byte of its own; the readers together must find each as often as it was written.
    #[test]
    fn many_threads_share_one_stream() {
        const BYTES_PER_WRITER: usize = 30_000_000;
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let (client_stack, server_stack) = build(on_cores(2));
        let listener = TcpListener::bind(&server_stack, "10.0.0.2:80".parse().unwrap()).unwrap();
        let to = listener.local_addr().unwrap();
        let outward = Arc::new(TcpStream::connect(&client_stack, to).unwrap());
        let inward = Arc::new(listener.accept().unwrap().0);
        let log = Log::default();
        let (sender, receiver) = mpsc::channel();
        for writer in 0..4u8 {
            let (outward, done) = (Arc::clone(&outward), sender.clone());
            thread::spawn(move || {
                let mut chance = Chance(u64::from(writer));
                let bytes = vec![writer; 100_000];
                let mut left = BYTES_PER_WRITER;
                while left > 0 {
                    let piece = left.min(1 + chance.below_usize(100_000));
                    left -= (&*outward).write(&bytes[..piece]).unwrap();
                }
                let _ = done.send([0; 4]);
            });
        }
        for reader in 0..4 {
            let (inward, done) = (Arc::clone(&inward), sender.clone());
            thread::spawn(move || {
                let mut chance = Chance(100 + reader);
                let (mut found, mut buf) = ([0; 4], vec![0; 100_000]);
                loop {
                    let piece = 1 + chance.below_usize(100_000);
                    match (&*inward).read(&mut buf[..piece]).unwrap() {
                        0 => break,
                        read => buf[..read].iter().for_each(|&byte| found[usize::from(byte)] += 1),
                    }
                }
                let _ = done.send(found);
            });
        }
        let mut found = [0; 4];
        for finished in 1..=8 {
            let counts = receiver.recv_timeout(PATIENCE);
            let stacks = [&client_stack, &server_stack];
            let counts: [usize; 4] =
                counts.unwrap_or_else(|_| panic!("hangs:\n{}", describe(&log, stacks)));
            found.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            if finished == 4 {
                outward.shutdown(Shutdown::Write).unwrap();
            }
        }
        assert_eq!(found, [BYTES_PER_WRITER; 4]);
    }

    /// Deterministic chance: SplitMix64.
    #[derive(Clone)]
    struct Chance(u64);

    impl Chance {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^ (word >> 31)
        }

        fn below(&mut self, bound: u64) -> u64 {
            self.next() % bound
        }

        /// For lengths and indices, which are small.
        fn below_usize(&mut self, bound: u64) -> usize {
            usize::try_from(self.below(bound)).expect("a small number")
        }
    }

    /// How a conversation ends.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum End {
        /// The client half-closes, the server answers to the end.
        Orderly,
        /// The same, and the client's last drop waits for the acknowledgement.
        OrderlyWithLinger,
        /// Both directions at the same time, from two threads of the client.
        Duplex,
        /// The server sends and closes; the client only listens.
        ServerFirst,
        /// The client resets in the middle of its sending.
        ClientAborts,
        /// The server goes with data unread.
        ServerAborts,
        /// The client goes with data unread.
        ClientLeaves,
        /// The client shuts both directions while the server still sends.
        ShutdownBoth,
        /// The client goes without a word.
        Silent,
    }

    /// What a conversation consists of: all of it follows from a number, which is the first thing the client sends.
    #[derive(Clone, Copy, Debug)]
    struct Plan {
        seed: u64,
        end: End,
        up: usize,
        down: usize,
    }

    impl Plan {
        fn new(seed: u64) -> Self {
            let mut chance = Chance(seed);
            let end = match chance.below(16) {
                0..=4 => End::Orderly,
                5 => End::OrderlyWithLinger,
                6..=7 => End::Duplex,
                8..=9 => End::ServerFirst,
                10 => End::ClientAborts,
                11 => End::ServerAborts,
                12 => End::ClientLeaves,
                13 => End::ShutdownBoth,
                _ => End::Silent,
            };
            let mut length = || {
                let most = [1, 100, 2_000, 60_000, 300_000][chance.below_usize(5)];
                chance.below_usize(most) + 1
            };
            Self { seed, end, up: length(), down: length() }
        }

        fn is_orderly(&self) -> bool {
            matches!(
                self.end,
                End::Orderly | End::OrderlyWithLinger | End::Duplex | End::ServerFirst
            )
        }
    }

    fn byte(seed: u64, at: usize) -> u8 {
        (seed.wrapping_add(at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
    }

    /// Writes `length` bytes of the stream of `seed` in pieces of any size.
    fn write_stream(mut stream: &TcpStream, seed: u64, length: usize) -> io::Result<()> {
        let bytes: Vec<u8> = (0..length).map(|at| byte(seed, at)).collect();
        let mut chance = Chance(seed ^ 1);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let piece = rest.len().min(1 + chance.below_usize(70_000));
            let written = stream.write(&rest[..piece])?;
            assert!(written > 0 && written <= piece);
            rest = &rest[written..];
        }
        Ok(())
    }

    /// Reads and checks at most `length` bytes of the stream of `seed`; fewer at its end.
    fn read_stream(mut stream: &TcpStream, seed: u64, length: usize) -> io::Result<usize> {
        let mut chance = Chance(seed ^ 2);
        let mut buf = vec![0; 70_000];
        let mut got = 0;
        while got < length {
            let piece = (length - got).min(1 + chance.below_usize(70_000));
            let read = stream.read(&mut buf[..piece])?;
            if read == 0 {
                break;
            }
            for (at, &found) in (got..).zip(&buf[..read]) {
                assert_eq!(found, byte(seed, at), "byte {at} of stream {seed:#x}");
            }
            got += read;
        }
        Ok(got)
    }

    /// The stream ends here.
    fn expect_end(mut stream: &TcpStream) -> io::Result<()> {
        assert_eq!(stream.read(&mut [0; 16])?, 0, "more than was sent");
        Ok(())
    }

    fn down_seed(plan: &Plan) -> u64 {
        !plan.seed
    }

    fn client(stack: &Stack, to: SocketAddr, plan: &Plan) -> io::Result<()> {
        let stream = TcpStream::connect(stack, to)?;
        if !plan.is_orderly() {
            stream.set_read_timeout(Some(ABORTED_TIMEOUT))?;
            stream.set_write_timeout(Some(ABORTED_TIMEOUT))?;
        }
        if plan.end == End::Silent {
            return Ok(());
        }
        (&stream).write_all(&plan.seed.to_be_bytes())?;
        let Plan { seed, end, up, down } = *plan;
        let answer = down_seed(plan);
        match end {
            End::Orderly | End::OrderlyWithLinger => {
                write_stream(&stream, seed, up)?;
                stream.shutdown(Shutdown::Write)?;
                assert_eq!(read_stream(&stream, answer, down)?, down, "{plan:?}");
                expect_end(&stream)?;
                if end == End::OrderlyWithLinger {
                    stream.set_linger(Some(Duration::from_secs(5)))?;
                }
            }
            End::Duplex => {
                let writer = stream.try_clone()?;
                let writing = thread::spawn(move || {
                    write_stream(&writer, seed, up)?;
                    writer.shutdown(Shutdown::Write)
                });
                assert_eq!(read_stream(&stream, answer, down)?, down, "{plan:?}");
                expect_end(&stream)?;
                writing.join().expect("the writer does not panic")?;
            }
            End::ServerFirst => {
                assert_eq!(read_stream(&stream, answer, down)?, down, "{plan:?}");
                expect_end(&stream)?;
            }
            End::ClientAborts => {
                write_stream(&stream, seed, up / 2)?;
                stream.set_linger(Some(Duration::ZERO))?;
            }
            End::ServerAborts => {
                write_stream(&stream, seed, up)?;
                read_stream(&stream, answer, down)?;
            }
            End::ClientLeaves => {
                write_stream(&stream, seed, up)?;
                read_stream(&stream, answer, down / 2)?;
            }
            End::ShutdownBoth => {
                write_stream(&stream, seed, up)?;
                stream.shutdown(Shutdown::Both)?;
                read_stream(&stream, answer, down)?;
            }
            End::Silent => {}
        }
        Ok(())
    }

    /// The server's side; answers the plan with the outcome once it knows it.
    fn server(stream: &TcpStream) -> (Option<Plan>, io::Result<()>) {
        stream.set_read_timeout(Some(PATIENCE)).expect("a valid timeout");
        let mut seed = [0; 8];
        let mut reader = stream;
        if let Err(error) = reader.read_exact(&mut seed) {
            return (None, Err(error));
        }
        let plan = Plan::new(u64::from_be_bytes(seed));
        (Some(plan), answer(stream, &plan))
    }

    fn answer(stream: &TcpStream, plan: &Plan) -> io::Result<()> {
        if !plan.is_orderly() {
            stream.set_read_timeout(Some(ABORTED_TIMEOUT))?;
            stream.set_write_timeout(Some(ABORTED_TIMEOUT))?;
        }
        let Plan { seed, end, up, down } = *plan;
        match end {
            End::ServerFirst => write_stream(stream, down_seed(plan), down),
            End::ServerAborts => {
                read_stream(stream, seed, up / 2)?;
                Ok(())
            }
            End::Duplex => {
                let reader = stream.try_clone()?;
                let reading = thread::spawn(move || {
                    let read = read_stream(&reader, seed, up)?;
                    expect_end(&reader)?;
                    Ok::<_, io::Error>(read)
                });
                write_stream(stream, down_seed(plan), down)?;
                stream.shutdown(Shutdown::Write)?;
                assert_eq!(reading.join().expect("the reader does not panic")?, up, "{plan:?}");
                Ok(())
            }
            _ => {
                let read = read_stream(stream, seed, up)?;
                if plan.is_orderly() {
                    assert_eq!(read, up, "{plan:?}");
                    expect_end(stream)?;
                }
                write_stream(stream, down_seed(plan), down)
            }
        }
    }

    fn build(scenario: Scenario) -> (Stack, Stack) {
        let (left, right) = Wire::pair(&WireConfig {
            queues: scenario.queues,
            forward: scenario.impairment,
            backward: scenario.impairment,
            ..WireConfig::default()
        })
        .unwrap();
        let host = |name: &str, device: Arc<Wire>, address: &str| {
            let builder = Stack::builder()
                .name(name)
                .device(device)
                .address(address.parse().unwrap())
                .cores(scenario.cores)
                .sysctl("net.core.busy_read", scenario.busy_read)
                .sysctl("net.ipv4.tcp_fin_timeout", "1")
                .sysctl(
                    "net.ipv4.tcp_max_tw_buckets",
                    if scenario.time_wait { "100000" } else { "0" },
                );
            let builder = if scenario.manual { builder.manual() } else { builder };
            builder.build().unwrap()
        };
        let server = host("server", right, "10.0.0.2/24");
        // An address of one's own is reached over loopback.
        let client =
            if scenario.loopback { server.clone() } else { host("client", left, "10.0.0.1/24") };
        (client, server)
    }

    fn from_environment<T: std::str::FromStr>(name: &str, default: T) -> T {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    }

    /// What the threads have to say when a scenario hangs.
    #[derive(Default)]
    struct Log {
        conversations: AtomicU64,
        doing: Mutex<Vec<String>>,
    }

    impl Log {
        fn begin(&self, thread: u64, what: String) {
            let mut doing = self.doing.lock().unwrap_or_else(PoisonError::into_inner);
            let place = usize::try_from(thread).expect("a handful of threads");
            if doing.len() <= place {
                doing.resize(place + 1, String::new());
            }
            doing[place] = what;
        }
    }

    fn run(scenario: Scenario) {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let (client_stack, server_stack) = build(scenario);
        let log = Arc::new(Log::default());
        let (sender, receiver) = mpsc::channel();
        thread::spawn({
            let (client_stack, server_stack) = (client_stack.clone(), server_stack.clone());
            let log = Arc::clone(&log);
            move || {
                converse(&client_stack, &server_stack, &log);
                // Nobody listens any more when the scenario was given up.
                let _ = sender.send(());
            }
        });
        let duration = Duration::from_secs_f64(from_environment("STRESS_SECONDS", SECONDS));
        let stacks = [&client_stack, &server_stack];
        // Somebody must run a stack without workers when nobody waits for it: its orphans have timers.
        let tend = || {
            for stack in stacks.iter().filter(|_| scenario.manual) {
                let _ = stack.poll();
            }
        };
        let begin = Instant::now();
        while receiver.recv_timeout(Duration::from_millis(5)).is_err() {
            let patient = begin.elapsed() < duration + PATIENCE;
            assert!(patient, "{scenario:?} hangs:\n{}", describe(&log, stacks));
            tend();
        }
        let at_rest = || {
            tend();
            let tables = stacks.iter().all(|stack| scenario.time_wait || stack.connections() == 0);
            tables && client_stack.memory_stats().packets_live == 0
        };
        let begin = Instant::now();
        while !at_rest() {
            let patient = begin.elapsed() < PATIENCE;
            assert!(patient, "{scenario:?} leaves something:\n{}", describe(&log, stacks));
            thread::sleep(Duration::from_millis(5));
        }
        println!(
            "{} conversations, at rest after {:?}",
            log.conversations.load(Ordering::Relaxed),
            begin.elapsed()
        );
    }

    /// Every thread comes back from whatever it was doing, with whatever error.
    fn run_until_shutdown(round: u64, shut_down: impl Fn(&Stack, &Stack)) {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let cores = 1 + u16::try_from(round % 2).unwrap();
        let scenario = Scenario { time_wait: true, ..on_cores(cores) };
        let (client_stack, server_stack) = build(scenario);
        let log = Arc::new(Log::default());
        let listener = TcpListener::bind(&server_stack, "10.0.0.2:80".parse().unwrap()).unwrap();
        let to = listener.local_addr().unwrap();
        let (sender, receiver) = mpsc::channel();
        for thread in 0..THREADS {
            let stack = client_stack.clone();
            let (done, doing) = (sender.clone(), Arc::clone(&log));
            thread::spawn(move || {
                let mut seeds = Chance(round * 1000 + thread);
                loop {
                    let plan = Plan::new(seeds.next());
                    // Of two threads that use a connection one is told the error, the other sees the stream end.
                    if plan.end == End::Duplex {
                        continue;
                    }
                    doing.begin(thread, format!("client {plan:?}"));
                    // An orderly conversation fails only because of the shutdown.
                    if client(&stack, to, &plan).is_err() && plan.is_orderly() {
                        break;
                    }
                }
                doing.begin(thread, String::from("client done"));
                let _ = done.send(());
            });
            let listener = listener.try_clone().unwrap();
            let (done, log) = (sender.clone(), Arc::clone(&log));
            thread::spawn(move || {
                let thread = thread + THREADS;
                log.begin(thread, String::from("server accepts"));
                while let Ok((stream, peer)) = listener.accept() {
                    log.begin(thread, format!("server of {peer}"));
                    let _ = server(&stream);
                    log.begin(thread, String::from("server accepts"));
                }
                log.begin(thread, String::from("server done"));
                let _ = done.send(());
            });
        }
        thread::sleep(Duration::from_millis(20 + 10 * round));
        shut_down(&client_stack, &server_stack);
        let stacks = [&client_stack, &server_stack];
        let wait = |count| {
            for _ in 0..count {
                let result = receiver.recv_timeout(PATIENCE);
                assert!(result.is_ok(), "round {round} hangs:\n{}", describe(&log, stacks));
            }
        };
        wait(THREADS);
        // The servers of a client that is gone have nobody to accept.
        listener.close();
        wait(THREADS);
    }

    fn describe(log: &Log, stacks: [&Stack; 2]) -> String {
        let mut text = String::new();
        for what in log.doing.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = writeln!(text, "  {what}");
        }
        for stack in stacks {
            let _ = writeln!(text, "{}: {} connections", stack.name(), stack.connections());
            for (name, value) in stack.counters().iter().filter(|(_, value)| *value != 0) {
                let _ = writeln!(text, "  {name} {value}");
            }
        }
        let _ = writeln!(text, "{:?}", stacks[0].memory_stats());
        text
    }

    fn converse(client_stack: &Stack, server_stack: &Stack, log: &Arc<Log>) {
        let listener = TcpListener::bind(server_stack, "10.0.0.2:80".parse().unwrap()).unwrap();
        let to = listener.local_addr().unwrap();
        let seconds = from_environment("STRESS_SECONDS", SECONDS);
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let first_seed = from_environment("SEED", 1u64);
        let servers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (listener, log) = (listener.try_clone().unwrap(), Arc::clone(log));
                thread::spawn(move || serve(&listener, thread + THREADS, &log))
            })
            .collect();
        let clients: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (stack, log) = (client_stack.clone(), Arc::clone(log));
                thread::spawn(move || {
                    let mut seeds = Chance(first_seed.wrapping_mul(1000) + thread);
                    while Instant::now() < end {
                        let plan = Plan::new(seeds.next());
                        log.begin(thread, format!("client {plan:?}"));
                        let result = client(&stack, to, &plan);
                        judge(&plan, result, "client");
                        log.conversations.fetch_add(1, Ordering::Relaxed);
                    }
                    log.begin(thread, String::from("client done"));
                })
            })
            .collect();
        for client in clients {
            client.join().expect("no client panics");
        }
        listener.close();
        for server in servers {
            server.join().expect("no server panics");
        }
    }

    fn serve(listener: &TcpListener, thread: u64, log: &Log) {
        loop {
            log.begin(thread, String::from("server accepts"));
            match listener.accept() {
                Ok((stream, peer)) => {
                    log.begin(thread, format!("server of {peer}"));
                    let (plan, result) = server(&stream);
                    if let Some(plan) = plan {
                        judge(&plan, result, "server");
                    }
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::InvalidInput, "accept fails: {error}");
                    return log.begin(thread, String::from("server done"));
                }
            }
        }
    }

    /// An orderly conversation succeeds on both sides; any other may fail, but only in the ways of a reset.
    fn judge(plan: &Plan, result: io::Result<()>, side: &str) {
        let Err(error) = result else { return };
        let reset = matches!(
            error.kind(),
            ErrorKind::ConnectionReset
                | ErrorKind::BrokenPipe
                | ErrorKind::ConnectionAborted
                | ErrorKind::WouldBlock
                | ErrorKind::NotConnected
        );
        assert!(!plan.is_orderly() && reset, "{side}: {error} in {plan:?}");
    }
}
