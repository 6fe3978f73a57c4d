//! The prequeue without a reference to the route entry (Linux 3.18), and no prequeue at all.
//!
//! **Claim.** 144 streams of 64-byte writes between two hosts with 48 hardware threads each: from
//! 6 million packets per second at 95 % of the CPU time to 9 million at 35 %, when a packet that
//! waits for a blocked reader no longer counts a reference to the route entry that all flows share.
//!
//! **Model check.** Two atomic operations per packet on one line, one by the CPU that receives and
//! one by the CPU that reads, are 12 million transfers per second: 83 ns each, the cost of a
//! modified line between CPUs. Two CPUs cannot show the saturation, but the operations per packet
//! (2 before, 0 after) and what a pair of them costs.
//!
//! **Method.** One thread on the first CPU writes 64 bytes to each flow in turn; with an in-process
//! wire it is also the softirq of the receiver. A reader for each flow is blocked in `read` on the
//! second CPU. The MTU lets no segment carry more than 64 bytes, the writes are pushed and receive
//! offload is off, so that every write stays a packet of its own. Either all flows share one input
//! route entry (one server address), or each has its own (one address for each).

use std::{
    io::{self, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown},
    sync::Arc,
    thread,
    time::Instant,
};

use quietline::{Snapshot, Stack, TcpListener, TcpStream, Wire, WireConfig};

use super::threads::{self, Pinned, STALL_MAX};
use crate::experiment::{
    Arm, Better, Clock, Comparison, Condition, Control, Error, Experiment, Metric, Observation,
    Setup,
};

/// Bytes of a write.
const WRITE_BYTES: usize = 64;
/// IP header, TCP header with timestamps, one write.
const MTU: u32 = 20 + 32 + 64;

/// Counters per packet that are reported.
const COUNTERS: [&str; 9] = [
    "PrequeueQueued",
    "PrequeueWakes",
    "TcpExtTCPPrequeued",
    "SocketBacklogQueued",
    "SocketWakes",
    "DstGet",
    "DstPut",
    "DstForce",
    "DstDropNoref",
];

/// The declaration.
#[must_use]
pub fn experiment(quick: bool) -> Experiment {
    let flows = if quick { 4 } else { 16 };
    let context = |name, mode| {
        let settings = [("net.quietline.rx_context", name), ("net.quietline.rx_dst_mode", mode)];
        Arm::new(name, &settings)
    };
    let compared = ["packet_rate", "cpu"];
    let against = |baseline, arm| compared.map(|metric| Comparison { baseline, arm, metric });
    Experiment {
        name: "prequeue",
        title: "The prequeue without route references (Linux 3.18)",
        claim: "144 streams of 64-byte writes on 48 hardware threads: 6 to 9 million packets per second, 95 to 35 % CPU, because a waiting packet no longer counts a reference to the shared route entry.",
        workload: "One thread writes 64 bytes to each flow in turn and is the softirq of the receiver; blocked readers on the other CPU. No segment is longer than a write, and receive offload is off.",
        limits: "Two CPUs: the line of the reference count changes hands between two of them, and cannot saturate. The sender's own work is on the CPU of the softirq, the same in all arms. The rate for 48 threads is a matter of the coherence model.",
        clock: Clock::Wall,
        conditions: [
            ("shared entry", "one server address"),
            ("entry per flow", "one server address per flow"),
        ]
        .map(|(name, what)| Condition {
            name: name.to_owned(),
            description: format!("{flows} flows to {what}"),
            ceilings: Vec::new(),
        })
        .into(),
        arms: vec![
            context("prequeue_ref", "force"),
            context("prequeue_drop", "optimistic_drop"),
            context("bh", "rcu_clear_then_release"),
        ],
        metrics: metrics(),
        controls: controls(),
        comparisons: [
            ("prequeue_ref", "prequeue_drop"),
            ("prequeue_ref", "bh"),
            ("prequeue_drop", "bh"),
        ]
        .into_iter()
        .flat_map(|(baseline, arm)| against(baseline, arm))
        .collect(),
        trial: Box::new(move |setup| run(flows, setup)),
    }
}
/// What a run measures.
fn metrics() -> Vec<Metric> {
    let metric = Metric::new;
    vec![
        metric(
            "packet_rate",
            "/s",
            "packets with data that the receiver got per second",
            Better::Higher,
        ),
        metric("cpu", "ns", "CPU time of both contexts per packet", Better::Lower),
        metric(
            "softirq_cpu",
            "ns",
            "CPU time of the sending thread per packet, which is also the softirq",
            Better::Lower,
        ),
        metric("reader_cpu", "ns", "CPU time of the readers per packet", Better::Lower),
        metric(
            "dst_operations",
            "",
            "reference counts of route entries taken and released per packet",
            Better::Lower,
        ),
    ]
}
/// Proofs that the mechanisms ran.
fn controls() -> Vec<Control> {
    vec![
        Control {
            counter: "PrequeueQueued",
            conditions: Vec::new(),
            moves_in: vec!["prequeue_ref", "prequeue_drop"],
            at_least: 0.05,
            still_in: vec!["bh"],
            at_most: 0.0,
        },
        Control {
            counter: "DstForce",
            conditions: Vec::new(),
            moves_in: vec!["prequeue_ref"],
            at_least: 0.05,
            still_in: vec!["prequeue_drop", "bh"],
            at_most: 0.01,
        },
    ]
}

/// Two hosts and their connections: the writing ends, and the reading ones.
struct Flows {
    _client: Stack,
    server: Stack,
    near: Vec<TcpStream>,
    far: Vec<TcpStream>,
}

impl Flows {
    /// With `separate`, each flow has a server address of its own, and with it a route entry.
    fn new(count: u8, separate: bool, setup: &Setup<'_>) -> Result<Self, Error> {
        let config = WireConfig { mtu: MTU, tso: false, seed: setup.seed, ..WireConfig::default() };
        let (left, right) = Wire::pair(&config)?;
        let common = |device: Arc<Wire>| {
            Stack::builder()
                .device(device)
                .sysctl("net.core.busy_read", "0")
                .sysctl("net.ipv4.tcp_autocorking", "0")
                .sysctl("net.quietline.dev.default.gso", "0")
                .sysctl("net.quietline.dev.default.gro", "0")
        };
        let client = common(left).address("10.0.0.1/24".parse()?).build()?;
        let address = |flow: u8| Ipv4Addr::new(10, 0, 0, if separate { 2 + flow } else { 2 });
        let mut server = common(right).address("10.0.0.2/24".parse()?);
        for flow in 1..if separate { count } else { 1 } {
            server = server.address(format!("{}/32", address(flow)).parse()?);
        }
        for (name, value) in &setup.arm.settings {
            server = server.sysctl(name, value);
        }
        let server = server.build()?;
        let listener = TcpListener::bind(&server, (Ipv4Addr::UNSPECIFIED, 80))?;
        let (mut near, mut far) = (Vec::new(), Vec::new());
        for flow in 0..count {
            let stream = TcpStream::connect(&client, (address(flow), 80))?;
            let (accepted, _) = listener.accept()?;
            for stream in [&stream, &accepted] {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(STALL_MAX))?;
                stream.set_write_timeout(Some(STALL_MAX))?;
            }
            near.push(stream);
            far.push(accepted);
        }
        Ok(Self { _client: client, server, near, far })
    }
}

/// What the sender measured.
struct Measured {
    packets: f64,
    seconds: f64,
    change: Snapshot,
    /// CPU time of the sender over the whole run.
    cpu_s: f64,
    /// Packets over the whole run.
    all_packets: f64,
}

/// Makes one run.
fn run(flows: u8, setup: &Setup<'_>) -> Result<Observation, Error> {
    // The workers of both stacks inherit the first CPU.
    let _pinned = Pinned::to(0);
    let Flows { _client, server, mut near, far } = Flows::new(flows, setup.condition == 1, setup)?;
    let (measured, reader_cpu_s) = thread::scope(|scope| {
        let readers: Vec<_> = far.into_iter().map(|stream| scope.spawn(|| read(stream))).collect();
        let measured = write(&server, &mut near, setup);
        for stream in &near {
            // Otherwise a reader would wait for an end that never arrives.
            let how = if measured.is_ok() { Shutdown::Write } else { Shutdown::Both };
            let _ = stream.shutdown(how);
        }
        let mut cpu_s = 0.0;
        for reader in readers {
            cpu_s += reader.join().map_err(|_| Error::from("a reader panicked"))??;
        }
        Ok::<_, Error>((measured?, cpu_s))
    })?;
    let Measured { packets, seconds, change, cpu_s, all_packets } = measured;
    let count = |name| threads::count(&change, name) / packets;
    let (softirq_ns, reader_ns) = (cpu_s * 1e9 / all_packets, reader_cpu_s * 1e9 / all_packets);
    Ok(Observation {
        metrics: vec![
            packets / seconds,
            softirq_ns + reader_ns,
            softirq_ns,
            reader_ns,
            count("DstGet") + count("DstPut"),
        ],
        counters: threads::per_operation(&change, &COUNTERS, packets),
        series: Vec::new(),
    })
}

/// The sender and softirq.
fn write(server: &Stack, near: &mut [TcpStream], setup: &Setup<'_>) -> Result<Measured, Error> {
    let received =
        |now: &Snapshot, before: &Snapshot| threads::count(&now.since(before), "DeviceRxPackets");
    let bytes = [7; WRITE_BYTES];
    let mut until = |end: Instant| -> io::Result<Instant> {
        while Instant::now() < end {
            for stream in &mut *near {
                stream.write_all(&bytes)?;
            }
        }
        Ok(Instant::now())
    };
    let (start, cpu_s) = (server.counters(), threads::thread_cpu_s());
    let begin = until(Instant::now() + setup.warm_up)?;
    let before = server.counters();
    let end = until(begin + setup.measure)?;
    let after = server.counters();
    let packets = received(&after, &before);
    if packets < 1.0 {
        return Err("no packet arrived".into());
    }
    Ok(Measured {
        packets,
        seconds: (end - begin).as_secs_f64(),
        change: after.since(&before),
        cpu_s: threads::thread_cpu_s() - cpu_s,
        all_packets: received(&after, &start),
    })
}

/// A reader: blocked until data arrive; returns its CPU time.
fn read(mut stream: TcpStream) -> Result<f64, Error> {
    let _pinned = Pinned::to(1);
    let mut buffer = [0; 16 * 1024];
    while stream.read(&mut buffer)? > 0 {}
    Ok(threads::thread_cpu_s())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Every arm runs in both conditions; how many packets find a blocked reader depends on the
    /// machine, the operations of a context without a prequeue do not.
    #[test]
    fn every_arm_runs_and_counts_references_where_it_says() {
        let experiment = experiment(true);
        for condition in 0..2 {
            for arm in &experiment.arms {
                let (warm_up, measure) = (Duration::from_millis(10), Duration::from_millis(30));
                let setup = Setup { condition, arm, seed: 5, warm_up, measure };
                let observed = (experiment.trial)(&setup).expect("a run");
                let operations = observed.metrics[4];
                match arm.name.as_str() {
                    "prequeue_ref" => assert!(operations > 0.0, "{observed:?}"),
                    name => assert!(operations < 0.01, "{name}: {observed:?}"),
                }
            }
        }
    }
}
