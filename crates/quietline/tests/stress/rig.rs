//! Two stacks, the threads that open and accept connections between them, and the checks at the
//! end.

use std::{
    fmt::Write as _,
    io::{self, ErrorKind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use quietline::{Impairment, Stack, TcpListener, Wire, WireConfig};

use crate::conversation::{End, Plan, Random, TIMEOUT, client, server};

/// Number of threads that open connections, and of threads that accept them.
const THREADS: u64 = 4;

/// Default duration of a scenario, in seconds.
const SECONDS: f64 = 1.0;

/// Packet memory belongs to the process, so scenarios run one at a time.
pub(crate) static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) cores: u16,
    pub(crate) queues: u16,
    pub(crate) impairment: Impairment,
    /// Whether connections end in TIME-WAIT, which outlasts the test, or disappear at once.
    pub(crate) time_wait: bool,
    /// `net.core.busy_read`: time that a thread polls before it sleeps, in microseconds.
    pub(crate) busy_read: &'static str,
    /// Whether one stack connects to itself.
    pub(crate) loopback: bool,
    /// Whether the stacks have no workers, so that waiting threads run them.
    pub(crate) manual: bool,
}

/// Returns a scenario with an ideal wire and without TIME-WAIT.
pub(crate) fn on_cores(cores: u16) -> Scenario {
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

pub(crate) fn lossy() -> Impairment {
    Impairment { loss: 0.01, ..Impairment::default() }
}

pub(crate) fn late() -> Impairment {
    Impairment {
        delay: Duration::from_micros(100),
        reorder: 0.02,
        reorder_delay: Duration::from_micros(200),
        loss: 0.005,
        duplicate: 0.01,
        ..Impairment::default()
    }
}

pub(crate) fn build(scenario: Scenario) -> (Stack, Stack) {
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
            .sysctl("net.ipv4.tcp_max_tw_buckets", if scenario.time_wait { "100000" } else { "0" });
        let builder = if scenario.manual { builder.manual() } else { builder };
        builder.build().unwrap()
    };
    let server = host("server", right, "10.0.0.2/24");
    // The stack's own address is reached over loopback.
    let client =
        if scenario.loopback { server.clone() } else { host("client", left, "10.0.0.1/24") };
    (client, server)
}

fn from_environment<T: std::str::FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Present action of each thread, printed when a scenario hangs.
#[derive(Default)]
pub(crate) struct Log {
    conversations: AtomicU64,
    doing: Mutex<Vec<String>>,
}

impl Log {
    fn begin(&self, thread: u64, what: String) {
        let mut doing = self.doing.lock().unwrap_or_else(PoisonError::into_inner);
        let index = usize::try_from(thread).expect("a handful of threads");
        if doing.len() <= index {
            doing.resize(index + 1, String::new());
        }
        doing[index] = what;
    }
}

pub(crate) fn run(scenario: Scenario) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (client_stack, server_stack) = build(scenario);
    let log = Arc::new(Log::default());
    let (sender, receiver) = mpsc::channel();
    thread::spawn({
        let (client_stack, server_stack) = (client_stack.clone(), server_stack.clone());
        let log = Arc::clone(&log);
        move || {
            run_conversations(&client_stack, &server_stack, &log);
            // The receiver is gone if the scenario was given up.
            let _ = sender.send(());
        }
    });
    let duration = Duration::from_secs_f64(from_environment("STRESS_SECONDS", SECONDS));
    let stacks = [&client_stack, &server_stack];
    // Poll stacks without workers while no thread waits: orphaned connections have timers.
    let poll_manual = || {
        for stack in stacks.iter().filter(|_| scenario.manual) {
            let _ = stack.poll();
        }
    };
    let begin = Instant::now();
    while receiver.recv_timeout(Duration::from_millis(5)).is_err() {
        let in_time = begin.elapsed() < duration + TIMEOUT;
        assert!(in_time, "{scenario:?} hangs:\n{}", describe(&log, stacks));
        poll_manual();
    }
    let is_idle = || {
        poll_manual();
        let tables = stacks.iter().all(|stack| scenario.time_wait || stack.connections() == 0);
        tables && client_stack.memory_stats().packets_live == 0
    };
    let begin = Instant::now();
    while !is_idle() {
        let in_time = begin.elapsed() < TIMEOUT;
        assert!(in_time, "{scenario:?} leaves connections or packets:\n{}", describe(&log, stacks));
        thread::sleep(Duration::from_millis(5));
    }
    println!(
        "{} conversations, idle after {:?}",
        log.conversations.load(Ordering::Relaxed),
        begin.elapsed()
    );
}

/// Checks that every thread returns from its call after a shutdown, with any result.
pub(crate) fn run_until_shutdown(round: u64, shut_down: impl Fn(&Stack, &Stack)) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let cores = 1 + u16::try_from(round % 2).unwrap();
    let scenario = Scenario { time_wait: true, ..on_cores(cores) };
    let (client_stack, server_stack) = build(scenario);
    let log = Arc::new(Log::default());
    let listener = TcpListener::bind(&server_stack, "10.0.0.2:80").unwrap();
    let to = listener.local_addr().unwrap();
    let (sender, receiver) = mpsc::channel();
    for thread in 0..THREADS {
        let stack = client_stack.clone();
        let (done, doing) = (sender.clone(), Arc::clone(&log));
        thread::spawn(move || {
            let mut seeds = Random(round * 1000 + thread);
            loop {
                let plan = Plan::new(seeds.next());
                // Of two threads that use a connection, one gets the error and the other the end of
                // the stream.
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
            let result = receiver.recv_timeout(TIMEOUT);
            assert!(result.is_ok(), "round {round} hangs:\n{}", describe(&log, stacks));
        }
    };
    wait(THREADS);
    // The servers of a stopped client receive no more connections.
    listener.close();
    wait(THREADS);
}

pub(crate) fn describe(log: &Log, stacks: [&Stack; 2]) -> String {
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

fn run_conversations(client_stack: &Stack, server_stack: &Stack, log: &Arc<Log>) {
    let listener = TcpListener::bind(server_stack, "10.0.0.2:80").unwrap();
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
                let mut seeds = Random(first_seed.wrapping_mul(1000) + thread);
                while Instant::now() < end {
                    let plan = Plan::new(seeds.next());
                    log.begin(thread, format!("client {plan:?}"));
                    let result = client(&stack, to, &plan);
                    check_result(&plan, result, "client");
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
                    check_result(&plan, result, "server");
                }
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::InvalidInput, "accept fails: {error}");
                return log.begin(thread, String::from("server done"));
            }
        }
    }
}

/// Checks the result of a conversation: an orderly one succeeds on both sides, any other may fail
/// with the errors of a reset.
fn check_result(plan: &Plan, result: io::Result<()>, side: &str) {
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
