//! False sharing in the route entry (Linux 6.4): the place of the reference count, and the way to
//! count.
//!
//! **Claim.** memcached and memtier with one SET for 100 GETs over loopback became 20 to 120 %
//! faster, depending on the processor and the number of CPUs, when the reference count of the route
//! entry left the line of the fields that every packet reads.
//!
//! **Method.** One stack with connections to itself over loopback. A thread on the first CPU sends
//! a request on each of its connections and takes the responses, another one on the second CPU
//! answers; both spin, so that no wake-up hides what a packet costs. One request of 101 stores 100
//! bytes, the others fetch 100. With `cas_inc_not_zero` and `rcuref` a packet holds a reference
//! from the thread that sends it to the thread that receives it.
//!
//! **What is missing.** A packet of this stack compares a cached generation and does not read the
//! entry's fields while it holds the count: the field that shares the line with the count in
//! `packed` is read on no packet's way over loopback. So the layouts differ in nothing that a
//! packet does, and the experiment is a null by construction until a mode exists that reads the
//! entry as Linux does (the historic check). The comparison of ways to count does not depend on it.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Instant,
};

use quietline::{Snapshot, Stack, TcpListener, TcpStream};

use super::threads::{self, Pinned, STALL_MAX};
use crate::experiment::{
    Arm, Better, Clock, Comparison, Condition, Control, Error, Experiment, Metric, Observation,
    Setup,
};

/// Bytes of a GET, of the response to a SET, and of a value with its header.
const SHORT_BYTES: usize = 32;
const LONG_BYTES: usize = 132;
/// One SET comes with so many GETs.
const GETS_PER_SET: u32 = 100;

const SET: u8 = 1;
const GET: u8 = 2;

const COUNTERS: [&str; 4] = ["DstGet", "DstPut", "DstForce", "RxRouteLookups"];

const ARMS: [(&str, &str, &str); 9] = [
    ("packed cas", "packed", "cas_inc_not_zero"),
    ("padded cas", "padded", "cas_inc_not_zero"),
    ("filled cas", "filled", "cas_inc_not_zero"),
    ("packed rcuref", "packed", "rcuref"),
    ("padded rcuref", "padded", "rcuref"),
    ("filled rcuref", "filled", "rcuref"),
    ("packed noref", "packed", "noref"),
    ("padded noref", "padded", "noref"),
    ("filled noref", "filled", "noref"),
];

/// The declaration.
#[must_use]
pub fn experiment(quick: bool) -> Experiment {
    let chosen = |(name, ..): &&(&str, &str, &str)| {
        !quick || ["packed cas", "filled cas", "filled noref"].contains(name)
    };
    let arms: Vec<_> = ARMS
        .iter()
        .filter(chosen)
        .map(|&(name, layout, counting)| {
            let settings =
                [("net.quietline.dst_layout", layout), ("net.quietline.dst_ref", counting)];
            Arm::new(name, &settings)
        })
        .collect();
    let pairs: &[(&str, &str)] = if quick {
        &[("packed cas", "filled cas"), ("filled cas", "filled noref")]
    } else {
        &[
            ("packed cas", "padded cas"),
            ("packed cas", "filled cas"),
            ("packed rcuref", "filled rcuref"),
            ("packed noref", "filled noref"),
            ("filled cas", "filled rcuref"),
            ("filled cas", "filled noref"),
        ]
    };
    let connections: &[usize] = if quick { &[8] } else { &[1, 16] };
    let connections = connections.to_vec();
    let names = |counted: bool| {
        let own = |(name, ..): &(&'static str, &str, &str)| (*name, !name.ends_with("noref"));
        let all = ARMS.iter().filter(chosen).map(own);
        all.filter(|(_, counts)| *counts == counted).map(|(name, _)| name).collect::<Vec<_>>()
    };
    Experiment {
        name: "dst-layout",
        title: "False sharing in the route entry (Linux 6.4)",
        claim: "20 to 120 % more requests of memcached over loopback, depending on the processor and the number of CPUs.",
        workload: "One SET of 100 bytes for 100 GETs of 100 bytes over loopback, between two spinning threads on two CPUs.",
        limits: "No packet reads the fields of the entry while it holds the count: it compares a cached generation instead. So the layouts cannot differ until the check of Linux exists as a mode (the historic check); only the ways to count can. Two CPUs show two transfers of a line per packet, not the loops of a compare-and-swap among many.",
        clock: Clock::Wall,
        conditions: connections
            .iter()
            .map(|count| Condition {
                name: format!("{count} connections"),
                description: format!("{count} connections, one request under way on each"),
                ceilings: Vec::new(),
            })
            .collect(),
        arms,
        metrics: metrics(),
        controls: vec![Control {
            counter: "DstGet",
            conditions: Vec::new(),
            moves_in: names(true),
            at_least: 1.5,
            still_in: names(false),
            at_most: 0.01,
        }],
        comparisons: pairs
            .iter()
            .map(|&(baseline, arm)| Comparison { baseline, arm, metric: "request_time" })
            .collect(),
        trial: Box::new(move |setup| run(connections[setup.condition], setup)),
    }
}
/// What a run measures.
fn metrics() -> Vec<Metric> {
    vec![
        Metric::new(
            "request_time",
            "ns",
            "time of a request, all connections together",
            Better::Lower,
        ),
        Metric::new(
            "dst_operations",
            "",
            "reference counts of route entries taken and released per request",
            Better::Lower,
        ),
    ]
}

/// One end of a connection with the bytes that are missing of a message.
struct End {
    stream: TcpStream,
    kind: u8,
    missing: usize,
}

/// Makes one run.
fn run(connections: usize, setup: &Setup<'_>) -> Result<Observation, Error> {
    let _pinned = Pinned::to(0);
    // Without workers: whoever sends processes, as over loopback in Linux.
    let mut builder = Stack::builder().cores(2).manual();
    for (name, value) in &setup.arm.settings {
        builder = builder.sysctl(name, value);
    }
    let stack = builder.build()?;
    let listener = TcpListener::bind(&stack, "127.0.0.1:0")?;
    let to = listener.local_addr()?;
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    for _ in 0..connections {
        let client = TcpStream::connect(&stack, to)?;
        let (server, _) = listener.accept()?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
        }
        clients.push(End { stream: client, kind: 0, missing: 0 });
        servers.push(End { stream: server, kind: 0, missing: 0 });
    }
    let stop = AtomicBool::new(false);
    let (requests, seconds, change) = thread::scope(|scope| {
        let answering = scope.spawn(|| {
            let _pinned = Pinned::to(1);
            answer(&mut servers, &stop)
        });
        let asked = ask(&stack, &mut clients, setup);
        // Relaxed: the other thread looks again and again, and the join orders the rest.
        stop.store(true, Ordering::Relaxed);
        answering.join().map_err(|_| Error::from("the server panicked"))??;
        asked
    })?;
    let operations = threads::count(&change, "DstGet") + threads::count(&change, "DstPut");
    Ok(Observation {
        metrics: vec![seconds * 1e9 / requests, operations / requests],
        counters: threads::per_operation(&change, &COUNTERS, requests),
        series: Vec::new(),
    })
}

/// Reads as much as is there, up to what is missing; true if nothing is missing any more.
fn take(end: &mut End, buffer: &mut [u8; LONG_BYTES]) -> Result<bool, Error> {
    match end.stream.read(&mut buffer[..end.missing]) {
        Ok(0) => Err("the connection ended".into()),
        Ok(count) => {
            end.missing -= count;
            Ok(end.missing == 0)
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The client: requests per connection in turn, for as long as the run takes.
fn ask(
    stack: &Stack,
    clients: &mut [End],
    setup: &Setup<'_>,
) -> Result<(f64, f64, Snapshot), Error> {
    let mut buffer = [0; LONG_BYTES];
    let (mut requests, mut number) = (0.0, 0_u32);
    let start = Instant::now();
    let mut begin: Option<(Instant, f64, Snapshot)> = None;
    loop {
        for client in &mut *clients {
            number = number.wrapping_add(1);
            let is_set = number.is_multiple_of(GETS_PER_SET + 1);
            let (kind, length, response) = if is_set {
                (SET, LONG_BYTES, SHORT_BYTES)
            } else {
                (GET, SHORT_BYTES, LONG_BYTES)
            };
            buffer[0] = kind;
            client.stream.write_all(&buffer[..length])?;
            (client.kind, client.missing) = (kind, response);
        }
        for client in &mut *clients {
            let asked = Instant::now();
            while !take(client, &mut buffer)? {
                std::hint::spin_loop();
                if asked.elapsed() > STALL_MAX {
                    return Err("no response for 10 s".into());
                }
            }
            requests += 1.0;
        }
        let now = Instant::now();
        match &begin {
            None if now - start >= setup.warm_up => {
                begin = Some((now, requests, stack.counters()));
            }
            Some((at, before, counters)) if now - *at >= setup.measure => {
                let change = stack.counters().since(counters);
                return Ok((requests - before, (now - *at).as_secs_f64(), change));
            }
            _ => {}
        }
    }
}

/// The server: the first byte of a request says how much follows.
fn answer(servers: &mut [End], stop: &AtomicBool) -> Result<(), Error> {
    let mut buffer = [0; LONG_BYTES];
    while !stop.load(Ordering::Relaxed) {
        for server in &mut *servers {
            if server.missing == 0 {
                server.missing = 1;
                if !take(server, &mut buffer)? {
                    server.missing = 0;
                    continue;
                }
                server.kind = buffer[0];
                let length = if server.kind == SET { LONG_BYTES } else { SHORT_BYTES };
                server.missing = length - 1;
            }
            if take(server, &mut buffer)? {
                let response = if server.kind == SET { SHORT_BYTES } else { LONG_BYTES };
                server.stream.write_all(&buffer[..response])?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_request_counts_references_where_packets_hold_them() {
        let experiment = experiment(false);
        for arm in &experiment.arms {
            let (warm_up, measure) = (Duration::from_millis(5), Duration::from_millis(15));
            let setup = Setup { condition: 0, arm, seed: 5, warm_up, measure };
            let observed = (experiment.trial)(&setup).expect("a run");
            let operations = observed.metrics[1];
            if arm.name.ends_with("noref") {
                assert!(operations < 0.01, "{}: {observed:?}", arm.name);
            } else {
                // A request and its response, each taken and released.
                assert!(operations > 3.5, "{}: {observed:?}", arm.name);
            }
        }
    }
}
