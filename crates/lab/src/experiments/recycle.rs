//! One-packet caches of a socket (Linux 5.2) and what replaced them: where the memory of a packet
//! is freed that another CPU has allocated.
//!
//! **Claim.** A socket that keeps one acknowledged packet for its next write, and hands one read
//! packet back to the CPU that receives, makes small RPCs about 10 % faster on a host with 112
//! hardware threads. The size of the messages and the number of connections were not published.
//!
//! **Method.** A host answers requests of 64 bytes over many connections, one request under way on
//! each. Its softirq runs on the first CPU and its application on the second, so that each frees
//! what the other has allocated. The device copies every frame, as one with receive rings does. The
//! client shares the first CPU, has memory of its own, and does the same in all arms.

use std::{
    io::IoSlice,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Instant,
};

use quietline::{
    Snapshot,
    sans_io::{Cx, Device, DeviceConfig, Errno, Host, HostConfig, Listener, Memory, TcpSocket},
};

use super::{
    copy_link::CopyLink,
    threads::{self, Pinned, STALL_MAX},
};
use crate::experiment::{
    Arm, Better, Clock, Comparison, Condition, Control, Error, Experiment, Metric, Observation,
    Setup,
};

/// Bytes of a request and of its response.
const MESSAGE_BYTES: usize = 64;
/// Packet memory of each host.
const MEMORY_BYTES: usize = 256 << 20;

const ARMS: [&str; 5] =
    ["none", "socket_one", "list_after_unlock", "per_core_defer", "unified_pool"];

/// Counters per request that are reported.
const COUNTERS: [&str; 11] = [
    "SkbAllocs",
    "SkbFreesLocal",
    "SkbFreesAdopted",
    "SkbFreesRemote",
    "SkbTxCacheHit",
    "SkbRxCacheHandoff",
    "SkbReadAfterUnlock",
    "SkbDeferPushed",
    "SkbMagazineRefills",
    "SkbLocks",
    "SkbLocksContended",
];

/// The declaration.
#[must_use]
pub fn experiment(quick: bool) -> Experiment {
    let connections: &[usize] = if quick { &[16] } else { &[1, 16, 256] };
    let connections = connections.to_vec();
    let control = |counter, arm: &'static str, still: &[&'static str]| Control {
        counter,
        conditions: Vec::new(),
        moves_in: vec![arm],
        at_least: 0.5,
        still_in: still.to_vec(),
        at_most: 0.0,
    };
    let metric = |name, unit, meaning, better| Metric { name, unit, meaning, better };
    let against_none = |arm| {
        ["request_time", "application_cpu"].map(|metric| Comparison {
            baseline: "none",
            arm,
            metric,
        })
    };
    Experiment {
        name: "skb-cache",
        title: "Recycled packets: one-packet caches of a socket (Linux 5.2) and later ways",
        claim: "About 10 % more small RPCs per second on a host with 112 hardware threads, because frees on another CPU than the allocating one go.",
        workload: "Requests and responses of 64 bytes, one under way on each connection; softirq and client on the first CPU, the server's application on the second; a device that copies frames.",
        limits: "Two CPUs: locks of packet memory are hardly contended, and the gain on 112 threads is a matter of the model. What this machine shows is the number of remote frees per request (2 without, 0 with), and what they cost between two CPUs.",
        clock: Clock::Wall,
        conditions: connections
            .iter()
            .map(|count| Condition {
                name: format!("{count} connections"),
                description: format!("{count} connections, one request under way on each"),
                ceilings: Vec::new(),
            })
            .collect(),
        arms: ARMS
            .iter()
            .map(|&mode| Arm::new(mode, &[("net.quietline.skb_recycle", mode)]))
            .collect(),
        metrics: vec![
            metric(
                "request_time",
                "ns",
                "time of a request, all connections together",
                Better::Lower,
            ),
            metric("request_rate", "/s", "requests per second", Better::Higher),
            metric(
                "application_cpu",
                "ns",
                "CPU time of the server's application per request, its polling included",
                Better::Lower,
            ),
        ],
        controls: vec![
            control("SkbFreesRemote", "none", &["socket_one", "per_core_defer", "unified_pool"])
                .at_most(0.1),
            control("SkbTxCacheHit", "socket_one", &["none", "per_core_defer", "unified_pool"]),
            control("SkbReadAfterUnlock", "list_after_unlock", &["none", "socket_one"]),
            control("SkbDeferPushed", "per_core_defer", &["none", "socket_one", "unified_pool"]),
            control("SkbFreesAdopted", "unified_pool", &["none", "socket_one", "per_core_defer"]),
        ],
        comparisons: ARMS[1..].iter().copied().flat_map(against_none).collect(),
        trial: Box::new(move |setup| run(connections[setup.condition], setup)),
    }
}

impl Control {
    fn at_most(self, at_most: f64) -> Self {
        Self { at_most, ..self }
    }
}

/// A host and its memory.
fn host(
    device: Arc<dyn Device>,
    address: &str,
    seed: u64,
    settings: &[(&str, &str)],
) -> Result<(Memory, Arc<Host>), Error> {
    let memory = Memory::new(MEMORY_BYTES);
    let devices = vec![DeviceConfig { device, addresses: vec![address.parse()?] }];
    let host = Host::new(&memory, HostConfig { devices, ..HostConfig::replay(seed) })?;
    for (name, value) in settings {
        host.set_sysctl(name, value)?;
    }
    Ok((memory, host))
}

/// A context of a thread of this process.
fn context(memory: &Memory, seed: u64) -> Cx {
    let mut cx = Cx::replay(memory, seed).with_clock(threads::now);
    cx.set_now(threads::now());
    cx.linger();
    cx
}

/// The client and the softirq of the server, on one thread.
struct Front {
    client: Arc<Host>,
    server: Arc<Host>,
    client_cx: Cx,
    softirq_cx: Cx,
}

impl Front {
    /// Both hosts do what there is.
    fn turn(&mut self) {
        let now = threads::now();
        self.client_cx.set_now(now);
        self.softirq_cx.set_now(now);
        let _ = self.client.poll(&mut self.client_cx);
        let _ = self.server.poll(&mut self.softirq_cx);
        self.client_cx.rest();
        self.softirq_cx.rest();
    }

    /// Opens a connection; returns the client's and the server's end.
    fn connect(&mut self, listener: &Listener) -> Result<(Arc<TcpSocket>, Arc<TcpSocket>), Error> {
        let client = TcpSocket::connect(&self.client, &mut self.client_cx, None, listener.local())?;
        let start = Instant::now();
        while start.elapsed() < STALL_MAX {
            self.turn();
            if let Ok(server) = listener.accept() {
                client.with_tcb(&self.client, &mut self.client_cx, |tcb, _| tcb.set_nodelay(true));
                server.with_tcb(&self.server, &mut self.softirq_cx, |tcb, _| tcb.set_nodelay(true));
                return Ok((client, server));
            }
        }
        Err("no connection".into())
    }
}

/// Makes one run.
fn run(connections: usize, setup: &Setup<'_>) -> Result<Observation, Error> {
    let _pinned = Pinned::to(0);
    let (left, right) = CopyLink::pair();
    let (client_memory, client) = host(left, "10.0.0.1/24", setup.seed, &[])?;
    let (server_memory, server) =
        host(right, "10.0.0.2/24", setup.seed.wrapping_add(1), &setup.arm.settings)?;
    let mut front = Front {
        client_cx: context(&client_memory, setup.seed),
        softirq_cx: context(&server_memory, setup.seed),
        client,
        server: Arc::clone(&server),
    };
    let local = SocketAddr::from(([10, 0, 0, 2], 80));
    let listener = Listener::listen(&server, &mut front.softirq_cx, local, 1024)?;
    let mut ends = Vec::new();
    for _ in 0..connections {
        ends.push(front.connect(&listener)?);
    }
    let (clients, servers): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
    let stop = AtomicBool::new(false);
    let (measured, cpu_s) = thread::scope(|scope| {
        let application = scope.spawn(|| {
            let _pinned = Pinned::to(1);
            let mut cx = context(&server_memory, setup.seed.wrapping_add(2));
            answer(&server, &mut cx, &servers, &stop)
        });
        let measured = ask(&mut front, &clients, setup);
        // Relaxed: the other thread looks again and again, and the join orders the rest.
        stop.store(true, Ordering::Relaxed);
        let answered = application.join().map_err(|_| Error::from("the application panicked"));
        Ok::<_, Error>((measured?, answered??))
    })?;
    // CPU time of the whole run, warm-up included, in proportion.
    let part = measured.requests / measured.all_requests.max(1.0);
    let request_ns = measured.seconds * 1e9 / measured.requests;
    Ok(Observation {
        metrics: vec![request_ns, 1e9 / request_ns, cpu_s * 1e9 * part / measured.requests],
        counters: threads::per_operation(&measured.change, &COUNTERS, measured.requests),
        series: Vec::new(),
    })
}

/// What the client measured.
struct Measured {
    requests: f64,
    /// Those of the warm-up included.
    all_requests: f64,
    seconds: f64,
    change: Snapshot,
}

/// The client: sends a request on each connection that has none, for as long as the run takes.
fn ask(
    front: &mut Front,
    clients: &[Arc<TcpSocket>],
    setup: &Setup<'_>,
) -> Result<Measured, Error> {
    let message = [7; MESSAGE_BYTES];
    let mut buffer = [0; MESSAGE_BYTES];
    let mut missing = vec![0; clients.len()];
    let start = Instant::now();
    let (mut begin, mut last) = (None, start);
    let mut requests = 0.0;
    loop {
        for (socket, missing) in clients.iter().zip(&mut missing) {
            if *missing == 0 {
                let sent =
                    socket.send(&front.client, &mut front.client_cx, &[IoSlice::new(&message)]);
                if sent != Ok(MESSAGE_BYTES) {
                    return Err(format!("request: {sent:?}").into());
                }
                *missing = MESSAGE_BYTES;
            }
        }
        front.turn();
        for (socket, missing) in clients.iter().zip(&mut missing) {
            match socket.recv(&front.client, &mut front.client_cx, &mut buffer, false) {
                Ok(0) => return Err("the connection ended".into()),
                Ok(count) => *missing -= count,
                Err(Errno::EAGAIN) => continue,
                Err(error) => return Err(format!("response: {error}").into()),
            }
            if *missing == 0 {
                requests += 1.0;
                last = Instant::now();
            }
        }
        let now = Instant::now();
        if now - last > STALL_MAX {
            return Err("no response for 10 s".into());
        }
        match &begin {
            None if now - start >= setup.warm_up => {
                begin = Some((now, requests, front.server.counters()));
            }
            Some((at, before, counters)) if now - *at >= setup.measure && requests > *before => {
                return Ok(Measured {
                    requests: requests - before,
                    all_requests: requests,
                    seconds: (now - *at).as_secs_f64(),
                    change: front.server.counters().since(counters),
                });
            }
            _ => {}
        }
    }
}

/// The server's application: answers every request, and returns its CPU time.
fn answer(
    server: &Host,
    cx: &mut Cx,
    sockets: &[Arc<TcpSocket>],
    stop: &AtomicBool,
) -> Result<f64, Error> {
    let mut buffer = [0; MESSAGE_BYTES];
    let mut missing = vec![MESSAGE_BYTES; sockets.len()];
    while !stop.load(Ordering::Relaxed) {
        cx.set_now(threads::now());
        for (socket, missing) in sockets.iter().zip(&mut missing) {
            match socket.recv(server, cx, &mut buffer[..*missing], false) {
                Ok(0) => return Err("the connection ended".into()),
                Ok(count) => *missing -= count,
                Err(Errno::EAGAIN) => continue,
                Err(error) => return Err(format!("request: {error}").into()),
            }
            if *missing == 0 {
                *missing = MESSAGE_BYTES;
                let sent = socket.send(server, cx, &[IoSlice::new(&buffer)]);
                if sent != Ok(MESSAGE_BYTES) {
                    return Err(format!("response: {sent:?}").into());
                }
            }
        }
        cx.rest();
    }
    Ok(threads::thread_cpu_s())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The counts do not depend on the machine's speed: two remote frees per request without
    /// recycling, none with it.
    #[test]
    fn every_mode_frees_where_it_says() {
        let experiment = experiment(true);
        for arm in &experiment.arms {
            let (warm_up, measure) = (Duration::from_millis(20), Duration::from_millis(40));
            let setup = Setup { condition: 0, arm, seed: 3, warm_up, measure };
            let observed = (experiment.trial)(&setup).expect("a run");
            let count = |name: &str| {
                let own = observed.counters.iter().find(|(own, _)| *own == name);
                own.expect("a counter").1
            };
            let remote = count("SkbFreesRemote");
            match arm.name.as_str() {
                "none" => assert!(remote > 1.5, "{observed:?}"),
                "socket_one" | "per_core_defer" | "unified_pool" => {
                    assert!(remote < 0.1, "{}: {observed:?}", arm.name);
                }
                _ => {}
            }
            assert!(observed.metrics.iter().all(|value| *value > 0.0), "{observed:?}");
        }
    }
}
