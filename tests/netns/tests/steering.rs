//! Steering of packets to the core of their connection: packets that the kernel sends on a tap's
//! queues are processed on that core.
//!
//! Linux's tap delivers a flow on the queue on which it last saw that flow sent, and quietline
//! sends on the queue of the connection's core. With one queue, RPS spreads the received packets
//! over the cores instead.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use netns_tests::{Lab, Link, Report, STACK, talk};

const CONNECTIONS: usize = 32;
const ROUNDS: usize = 20;

/// Serves echo on two cores with these arguments, exchanges messages, and returns the report.
fn counted(test: &str, words: &[&str]) -> Result<Option<Report>> {
    let Some(lab) = Lab::open(test, &[])? else { return Ok(None) };
    let link = Link { cores: 2, ..Link::default() };
    // Steering is off unless the test enables it.
    let off = [
        "--sysctl=net.quietline.dev.default.rps_cpus=0",
        "--sysctl=net.quietline.dev.default.rps_flow_cnt=0",
        "--sysctl=net.core.rps_sock_flow_entries=0",
    ];
    let words = [&["echo", "--port", "7", "--stats", "--json"], &off[..], words].concat();
    let server = lab.serve(&link, &words)?;
    let address: SocketAddr = format!("{STACK}:7").parse()?;
    lab.namespace.enter(|| talk(address, CONNECTIONS, ROUNDS))?;
    Report::of(&server.interrupt()?).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_a_flow_arrive_on_the_core_of_its_connection() -> Result<()> {
        let test = "packets_of_a_flow_arrive_on_the_core_of_its_connection";
        let Some(report) = counted(test, &[])? else { return Ok(()) };
        let processed = report.softnet("processed")?;
        ensure!(processed.iter().all(|packets| *packets > 200), "one core only: {processed:?}");
        let (segments, foreign) =
            (report.counter("TcpInSegs")?, report.counter("ForeignCorePackets")?);
        // Linux may drop a flow that was idle for three seconds.
        ensure!(foreign * 100 <= segments, "{foreign} of {segments} on the wrong core");
        ensure!(report.counter("RpsPackets")? == 0, "steered although it is off");
        Ok(())
    }

    #[test]
    fn rps_spreads_one_queue_over_the_cores() -> Result<()> {
        let words = ["--queues=1", "--sysctl=net.quietline.dev.ql0.rps_cpus=3"];
        let Some(report) = counted("rps_spreads_one_queue_over_the_cores", &words)? else {
            return Ok(());
        };
        let processed = report.softnet("processed")?;
        ensure!(processed.iter().all(|packets| *packets > 100), "one core only: {processed:?}");
        // The ends of the connections may still arrive while both numbers are read.
        let steered = report.counter("RpsPackets")?;
        let apart = steered.abs_diff(processed[1]);
        ensure!(apart < 3 * CONNECTIONS as u64, "{steered}, {processed:?}: core 1 has no queue");
        ensure!(report.softnet("received_rps")?[0] == 0, "core 0 received steered packets");
        ensure!(
            report.counter("ForeignCorePackets")? == 0,
            "connections are not on the core of their packets"
        );
        ensure!(report.counter("TcpExtTCPOFOQueue")? == 0, "out of order");
        ensure!(report.softnet("dropped")? == [0, 0]);
        Ok(())
    }

    #[test]
    fn rfs_steers_packets_to_the_reader_without_reordering() -> Result<()> {
        let words = [
            "--queues=1",
            "--sysctl=net.core.rps_sock_flow_entries=1024",
            "--sysctl=net.quietline.dev.ql0.rps_flow_cnt=256",
            "--sysctl=net.quietline.dev.default.rps_cpus=3",
        ];
        let Some(report) = counted("rfs_takes_packets_to_the_reader", &words)? else {
            return Ok(());
        };
        ensure!(report.counter("RpsPackets")? > 0, "nothing was steered");
        ensure!(report.counter("TcpExtTCPOFOQueue")? == 0, "out of order");
        Ok(())
    }
}
