//! A stack on one end of a veth pair by `af_packet`, the kernel on the other.
//!
//! Not here: rings and frames (the device's own tests), the length of the queue (`queue.rs`).

use std::fs;
use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use netns_tests::bottleneck::qdisc_statistic;
use netns_tests::{
    Content, Finished, Lab, Report, Running, STACK, SUPERFRAMES, Veth, binary, talk,
};

const BULK_BYTES: usize = 48 << 20;
const CONNECTIONS: usize = 64;
const LIMIT: Duration = Duration::from_secs(20);

/// A file downloaded from the stack and uploaded to it stays the same. Returns the stack's report.
fn both_ways(test: &str, options: &str, words: &[&str]) -> Result<Option<Report>> {
    let Some(lab) = Lab::open(test, &["curl"])? else { return Ok(None) };
    let veth = Veth::open(&lab.namespace)?;
    let root = lab.file("root");
    fs::create_dir(&root)?;
    let content = Content::create(&root, "bulk", BULK_BYTES, 1)?;
    let root_text = root.display().to_string();
    let all = ["http", "--dir", &root_text, "--upload", "--stats", "--json"];
    let server = veth.serve(options, &[&all, words].concat())?;
    let down = lab.file("down").display().to_string();
    lab.curl(&["--fail", "-o", &down, &format!("http://{STACK}/bulk")])?.success()?;
    ensure!(netns_tests::sha256(&lab.file("down"))? == content.sha256, "the download differs");
    let from = content.path.display().to_string();
    lab.curl(&["--fail", "-T", &from, &format!("http://{STACK}/up")])?.success()?;
    ensure!(netns_tests::sha256(&root.join("up"))? == content.sha256, "the upload differs");
    Report::of(&server.interrupt()?).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn superframes_cross_both_ways() -> Result<()> {
        // Room for a window of frames, for as long as a busy machine may keep quietline from
        // running.
        let room = ",rx-ring=64";
        let Some(report) = both_ways("superframes_cross_both_ways", room, &SUPERFRAMES)? else {
            return Ok(());
        };
        let bytes = u64::try_from(BULK_BYTES)?;
        for (count, octets) in
            [("DeviceTxPackets", "DeviceTxBytes"), ("DeviceRxPackets", "DeviceRxBytes")]
        {
            let (count, octets) = (report.counter(count)?, report.counter(octets)?);
            ensure!(octets > bytes, "{octets} bytes");
            // Half of the frames are acknowledgments of the other direction.
            ensure!(octets / count > 3_000, "{octets} bytes in {count} frames");
        }
        ensure!(report.counter("DeviceTxSuperframes")? > 100);
        ensure!(report.counter("DeviceRxMissed")? == 0);
        Ok(())
    }

    #[test]
    fn bulk_transfer_in_blocks_bypasses_the_qdisc() -> Result<()> {
        both_ways("bulk_transfer_in_blocks_bypasses_the_qdisc", ",rx=v3,qdisc=bypass", &[])
            .map(drop)
    }

    #[test]
    fn bulk_transfer_without_offloads() -> Result<()> {
        both_ways("bulk_transfer_without_offloads", "", &["--no-vnet-hdr"]).map(drop)
    }

    #[test]
    fn bulk_transfer_at_an_address_of_its_own() -> Result<()> {
        both_ways("bulk_transfer_at_an_address_of_its_own", ",mac=02:00:00:00:00:07", &[]).map(drop)
    }

    fn many_connections(test: &str, options: &str) -> Result<()> {
        let Some(lab) = Lab::open(test, &[])? else { return Ok(()) };
        let veth = Veth::open(&lab.namespace)?;
        let server = veth.serve(options, &["echo", "--cores=2", "--stats", "--json"])?;
        let address: SocketAddr = format!("{STACK}:7").parse()?;
        lab.namespace.enter(|| talk(address, CONNECTIONS, 10))?;
        let report = Report::of(&server.interrupt()?)?;
        let processed = report.softnet("processed")?;
        ensure!(processed.len() == 2, "two cores: {processed:?}");
        if !options.contains("cpu") {
            // In a mode that steers packets to one core, the other core has handed over those of
            // its queue.
            let both = processed.iter().all(|&count| count > 0);
            let handed_over = report.softnet("received_rps")?.iter().any(|&count| count > 0);
            ensure!(both || handed_over, "one core only: {processed:?}");
        }
        let missed = report.counter("DeviceRxMissed")?;
        ensure!(missed == 0, "{missed} missed");
        Ok(())
    }

    #[test]
    fn many_connections_are_spread_over_two_cores_by_their_hash() -> Result<()> {
        many_connections("many_connections_are_spread_over_two_cores_by_their_hash", "")
    }

    #[test]
    fn many_connections_are_spread_over_two_cores_by_cpu() -> Result<()> {
        many_connections("many_connections_are_spread_over_two_cores_by_cpu", ",fanout=cpu,rx=v3")
    }

    /// The kernel's queue is shorter than the limit of TCP Small Queues: it refuses frames, and
    /// none of them is lost.
    #[test]
    fn a_queue_that_refuses_frames_loses_none() -> Result<()> {
        let test = "a_queue_that_refuses_frames_loses_none";
        let Some(lab) = Lab::open(test, &["tc", "curl"])? else { return Ok(()) };
        let veth = Veth::open(&lab.namespace)?;
        let line = "qdisc add dev ql0 root tbf rate 200mbit burst 80kb limit 100kb";
        veth.ours.tool("tc", line)?;
        let content = Content::create(lab.directory(), "bulk", 8 << 20, 1)?;
        let directory = lab.directory().display().to_string();
        // A local discipline that drops old packets would do so here.
        let queue = "--sysctl=net.quietline.dev.default.qdisc=pfifo_fast";
        let words = ["http", "--dir", &directory, "--stats", "--json", queue];
        let server = veth.serve("", &[&words[..], &SUPERFRAMES].concat())?;
        let down = lab.file("down").display().to_string();
        lab.curl(&["--fail", "-o", &down, &format!("http://{STACK}/bulk")])?.success()?;
        ensure!(netns_tests::sha256(&lab.file("down"))? == content.sha256, "the download differs");
        ensure!(qdisc_statistic(&veth, "drops")? > 0, "the queue refused no frame");
        // The receiver sees a gap for each lost frame. Retransmissions alone prove no loss: timers
        // expire on a machine that stalls.
        let gaps = lab.kernel_counter("TcpExtTCPOFOQueue")?;
        // The receiver's own drops, to find the cause of a gap.
        let mut dropped = 0;
        for name in ["TcpExtTCPRcvQDrop", "TcpExtTCPBacklogDrop", "TcpExtRcvPruned"] {
            dropped += lab.kernel_counter(name)?;
        }
        let report = Report::of(&server.interrupt()?)?;
        ensure!(
            gaps == 0,
            "{gaps} segments arrived out of order, the receiver dropped {dropped}: {report:?}"
        );
        Ok(())
    }

    #[test]
    fn a_transfer_survives_an_interface_that_goes_down() -> Result<()> {
        let test = "a_transfer_survives_an_interface_that_goes_down";
        let Some(lab) = Lab::open(test, &["curl"])? else { return Ok(()) };
        let veth = Veth::open(&lab.namespace)?;
        let content = Content::create(lab.directory(), "bulk", 48 << 20, 3)?;
        let directory = lab.directory().display().to_string();
        let mut server = veth.serve("", &["http", "--dir", &directory])?;
        let down = lab.file("down").display().to_string();
        let mut curl = lab.namespace.command("curl");
        curl.args(["-sSf", "--max-time", "50", "--limit-rate", "24M", "-o", &down]);
        let curl = Running::start(curl.arg(format!("http://{STACK}/bulk")))?;
        sleep(Duration::from_millis(700));
        veth.ours.ip("link set ql0 down")?;
        let before = server.cpu_time()?;
        sleep(Duration::from_secs(1));
        let used = server.cpu_time()?.saturating_sub(before);
        ensure!(used < Duration::from_millis(500), "{used:?} of a second without an interface");
        veth.ours.ip("link set ql0 up")?;
        curl.wait(Duration::from_secs(50))?.success()?;
        ensure!(netns_tests::sha256(&lab.file("down"))? == content.sha256, "the download differs");
        server.assert_alive()?;
        server.interrupt()?;
        Ok(())
    }

    #[test]
    fn an_interface_that_is_deleted_under_traffic_ends_the_server() -> Result<()> {
        let test = "an_interface_that_is_deleted_under_traffic_ends_the_server";
        let Some(lab) = Lab::open(test, &[])? else { return Ok(()) };
        let veth = Veth::open(&lab.namespace)?;
        let server = veth.serve("", &["chargen", "--stats", "--json"])?;
        let address: SocketAddr = format!("{STACK}:19").parse()?;
        let mut stream =
            lab.namespace.enter(|| Ok(TcpStream::connect_timeout(&address, LIMIT)?))?;
        stream.read_exact(&mut vec![0; 4 << 20]).context("bulk before")?;
        lab.namespace.ip(&format!("link del {}", Veth::PEER))?;
        let ended = server.wait(LIMIT)?;
        ensure!(ended.status.code() == Some(1), "{}: {}", ended.status, ended.stderr);
        let told = ended.stderr.matches("its interface was deleted").count();
        ensure!(told == 1, "{}", ended.stderr);
        let report = Report::of(&ended)?;
        ensure!(report.counter("TcpPassiveOpens")? == 1, "{report:?}");
        Ok(())
    }

    #[test]
    fn refusals_are_one_line_with_the_reason() -> Result<()> {
        let test = "refusals_are_one_line_with_the_reason";
        let Some(lab) = Lab::open(test, &["setpriv"])? else { return Ok(()) };
        let veth = Veth::open(&lab.namespace)?;
        let refusal = |prefix: &[&str], link: &str| -> Result<String> {
            let mut command = veth.ours.command(prefix[0]);
            command.args(&prefix[1..]).arg(binary()?).args(["serve", "echo"]);
            let link = format!("--link=af_packet:{link}");
            let ended = Finished::of(command.args([&link, &format!("--address={STACK}/24")]))?;
            ensure!(!ended.status.success(), "it serves: {}", ended.stderr);
            ensure!(
                ended.stderr.trim().lines().count() == 1,
                "more than one line: {}",
                ended.stderr
            );
            Ok(ended.stderr)
        };
        let text = refusal(&["env"], "nothing0")?;
        ensure!(text.contains("nothing0") && text.contains("No such device"), "{text}");
        let text = refusal(&["env"], "lo")?;
        ensure!(text.contains("not an Ethernet interface"), "{text}");
        let text = refusal(&["env"], "ql0,rx=v1")?;
        ensure!(text.contains("v2, v3 or calls"), "{text}");
        let text = refusal(&["setpriv", "--bounding-set", "-net_raw"], "ql0")?;
        ensure!(text.contains("CAP_NET_RAW"), "{text}");
        veth.ours.ip("link set ql0 down")?;
        let text = refusal(&["env"], "ql0")?;
        ensure!(text.contains("ip link set ql0 up"), "{text}");
        Ok(())
    }
}
