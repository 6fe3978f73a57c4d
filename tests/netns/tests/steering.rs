//! Queue, core and connection meet: what the kernel sends on a tap's queues goes up on the core where its connection lives.
//!
//! Linux's tap delivers a flow on the queue on which it last saw it sent, and we send on the queue of the connection's core.
//! With one queue, RPS spreads what comes in over the cores instead.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use netns_tests::{Lab, Link, STACK};
use serde_json::Value;

const CONNECTIONS: usize = 32;
const ROUNDS: u8 = 20;
const LIMIT: Duration = Duration::from_secs(20);

/// Talks on many connections in turn, so that their packets mix.
fn talk(address: SocketAddr) -> Result<()> {
    let mut connections = Vec::new();
    for number in 0..CONNECTIONS {
        let stream = TcpStream::connect_timeout(&address, LIMIT)
            .with_context(|| format!("connection {number}"))?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_nodelay(true)?;
        connections.push(stream);
    }
    for round in 0..ROUNDS {
        let message = |number: usize| format!("{number} {round} ").repeat(500).into_bytes();
        for (number, stream) in connections.iter_mut().enumerate() {
            stream.write_all(&message(number)).context("sending")?;
        }
        for (number, stream) in connections.iter_mut().enumerate() {
            let expected = message(number);
            let mut answer = vec![0; expected.len()];
            stream.read_exact(&mut answer).context("receiving")?;
            ensure!(answer == expected, "connection {number} got another's bytes");
        }
    }
    Ok(())
}

/// Serves echo on two cores with these words besides, is talked to, and says what it has counted.
fn counted(test: &str, words: &[&str]) -> Result<Option<Value>> {
    let Some(lab) = Lab::open(test, &[])? else { return Ok(None) };
    let link = Link { cores: 2, ..Link::default() };
    // Nobody steers unless the test says so.
    let off = [
        "--sysctl=net.quietline.dev.default.rps_cpus=0",
        "--sysctl=net.quietline.dev.default.rps_flow_cnt=0",
        "--sysctl=net.core.rps_sock_flow_entries=0",
    ];
    let words = [&["echo", "--port", "7", "--stats", "--json"], &off[..], words].concat();
    let server = lab.serve(&link, &words)?;
    let address: SocketAddr = format!("{STACK}:7").parse()?;
    lab.namespace.enter(|| talk(address))?;
    let printed = server.interrupt()?.stdout;
    Ok(Some(serde_json::from_str(&printed).with_context(|| format!("not JSON: {printed}"))?))
}

fn counter(report: &Value, name: &str) -> Result<u64> {
    report["counters"][name].as_u64().with_context(|| format!("no {name}"))
}

/// A column of softnet_stat for each core.
fn column(report: &Value, name: &str) -> Result<Vec<u64>> {
    let rows = report["softnet_stat"].as_array().context("no softnet_stat")?;
    rows.iter().map(|row| row[name].as_u64().with_context(|| format!("no {name}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_a_flow_arrive_on_the_core_of_its_connection() -> Result<()> {
        let test = "packets_of_a_flow_arrive_on_the_core_of_its_connection";
        let Some(report) = counted(test, &[])? else { return Ok(()) };
        let processed = column(&report, "processed")?;
        ensure!(processed.iter().all(|packets| *packets > 200), "one core only: {processed:?}");
        let (segments, foreign) =
            (counter(&report, "TcpInSegs")?, counter(&report, "ForeignCorePackets")?);
        // Linux may forget a flow that was quiet for three seconds.
        ensure!(foreign * 100 <= segments, "{foreign} of {segments} on the wrong core");
        ensure!(counter(&report, "RpsPackets")? == 0, "steered although it is off");
        Ok(())
    }

    #[test]
    fn rps_spreads_one_queue_over_the_cores() -> Result<()> {
        let words = ["--queues=1", "--sysctl=net.quietline.dev.ql0.rps_cpus=3"];
        let Some(report) = counted("rps_spreads_one_queue_over_the_cores", &words)? else {
            return Ok(());
        };
        let processed = column(&report, "processed")?;
        ensure!(processed.iter().all(|packets| *packets > 100), "one core only: {processed:?}");
        // The ends of the connections are still coming in while the two are read.
        let steered = counter(&report, "RpsPackets")?;
        let apart = steered.abs_diff(processed[1]);
        ensure!(apart < 3 * CONNECTIONS as u64, "{steered}, {processed:?}: core 1 has no queue");
        ensure!(column(&report, "received_rps")?[0] == 0, "core 0 polls the queue itself");
        ensure!(counter(&report, "ForeignCorePackets")? == 0, "connections live where they are");
        ensure!(counter(&report, "TcpExtTCPOFOQueue")? == 0, "out of order");
        ensure!(column(&report, "dropped")? == [0, 0]);
        Ok(())
    }

    #[test]
    fn rfs_takes_packets_to_the_reader_without_reordering() -> Result<()> {
        let words = [
            "--queues=1",
            "--sysctl=net.core.rps_sock_flow_entries=1024",
            "--sysctl=net.quietline.dev.ql0.rps_flow_cnt=256",
            "--sysctl=net.quietline.dev.default.rps_cpus=3",
        ];
        let Some(report) = counted("rfs_takes_packets_to_the_reader", &words)? else {
            return Ok(());
        };
        ensure!(counter(&report, "RpsPackets")? > 0, "nothing was steered");
        ensure!(counter(&report, "TcpExtTCPOFOQueue")? == 0, "out of order");
        Ok(())
    }
}
