//! The link itself: ping at both MTUs, a slow link, a link behind a router.
//!
//! The slow links are the kernel's `tbf` at 100 Mbit/s: on the tap it shapes the packets of the
//! kernel, on a router's far side those of the stack.
//!
//! Not here: loss and reordering, which the simulator and the wire device produce from a seed.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use netns_tests::{Content, Lab, Link, Namespace, Report, STACK, sha256};

/// Configuration of `tbf` on the slow links.
const TBF: &str = "tbf rate 100mbit burst 64kb latency 50ms";

/// Bytes over the slow link: 1.3 s at its rate.
const SHAPED_BYTES: usize = 16 << 20;

/// Makes a far namespace behind the lab's, which routes: far (10.78.0.2) ↔ lab (10.78.0.1,
/// 10.77.0.1) ↔ stack (10.77.0.2).
fn far_namespace(lab: &Lab) -> Result<Namespace> {
    let far = Namespace::create()?;
    lab.namespace.ip("link add near0 type veth peer name far0")?;
    lab.namespace.ip(&format!("link set far0 netns {}", far.name()))?;
    lab.namespace.ip("address add 10.78.0.1/24 dev near0")?;
    lab.namespace.ip("link set near0 up")?;
    far.ip("address add 10.78.0.2/24 dev far0")?;
    far.ip("link set far0 up")?;
    far.ip("route add default via 10.78.0.1")?;
    lab.shell("echo 1 >/proc/sys/net/ipv4/ip_forward")?;
    Ok(far)
}

/// Fails if the transfer was faster than its link. A slower rate is printed and not checked: a
/// machine that stalls is slow without a fault of TCP.
fn ensure_shaped(took: Duration) -> Result<()> {
    let bits = u32::try_from(SHAPED_BYTES * 8).context("the size fits")?;
    let megabits = f64::from(bits) / took.as_secs_f64() / 1e6;
    println!("{megabits:.1} Mbit/s through tbf at 100 Mbit/s");
    ensure!(megabits < 110.0, "faster than the link: {megabits:.1} Mbit/s");
    Ok(())
}

/// Fails unless the sender repaired the drops of `tbf` with few timeouts and few retransmissions.
fn ensure_recovered(timeouts: u64, retransmitted: u64, sent: u64) -> Result<()> {
    println!("{retransmitted} of {sent} segments sent again, {timeouts} timeouts");
    ensure!(timeouts <= 10, "{timeouts} retransmission timeouts");
    ensure!(retransmitted <= sent / 5, "{retransmitted} of {sent} segments sent again");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ping(test: &str, mtu: u32) -> Result<()> {
        let Some(lab) = Lab::open(test, &["ping"])? else { return Ok(()) };
        let link = Link { mtu, ..Link::default() };
        let mut server = lab.serve(&link, &["echo", "--port", "7", "--stats", "--json"])?;
        // Full packets that must not be fragmented: MTU less 20 bytes of IP and 8 of ICMP.
        for size in [0, 1, 56, mtu - 28] {
            let words = format!("-n -q -c 10 -i 0.01 -W 2 -M do -s {size} {STACK}");
            let printed = lab.namespace.tool("ping", &words)?;
            ensure!(printed.contains("10 received"), "at {size} bytes: {printed}");
        }
        // Without a deadline ping waits for the last answer twice as long as for the slowest one
        // before, which is too short on a busy machine. With a deadline it may send one more
        // request than it receives answers for, so the stack's answers are compared with the
        // requests sent. The following ping ensures that all of them have been processed.
        let flood = lab.namespace.tool("ping", &format!("-n -q -f -c 2000 -w 40 {STACK}"))?;
        ensure!(flood.contains("2000 received"), "flood: {flood}");
        let asked = flood.lines().find_map(|line| line.split_once(" packets transmitted"));
        let asked: u64 = asked.context("no number of packets")?.0.parse()?;
        lab.namespace.tool("ping", &format!("-n -q -c 1 -W 10 {STACK}"))?;
        server.assert_alive()?;
        let report = Report::of(&server.interrupt()?)?;
        let answered = report.counter("IcmpOutEchoReps")?;
        ensure!(answered == asked + 4 * 10 + 1, "{answered} answers to {asked}: {flood}");
        Ok(())
    }

    #[test]
    fn every_ping_is_answered_at_mtu_1500() -> Result<()> {
        ping("every_ping_is_answered_at_mtu_1500", 1500)
    }

    #[test]
    fn every_ping_is_answered_at_mtu_9000() -> Result<()> {
        ping("every_ping_is_answered_at_mtu_9000", 9000)
    }

    #[test]
    fn an_upload_passes_a_slow_link() -> Result<()> {
        let test = "an_upload_passes_a_slow_link";
        let Some(lab) = Lab::open(test, &["tc", "curl"])? else { return Ok(()) };
        let content = Content::create(lab.directory(), "in", SHAPED_BYTES, 1)?;
        let root = lab.file("root");
        std::fs::create_dir(&root)?;
        let root_text = root.display().to_string();
        let link = Link::default();
        let server = lab.serve(&link, &["http", "--dir", &root_text, "--upload"])?;
        lab.namespace.tool("tc", &format!("qdisc add dev {} root {TBF}", Link::NAME))?;
        let start = Instant::now();
        let from = content.path.display().to_string();
        lab.curl(&["--fail", "-T", &from, &format!("http://{STACK}/up")])?.success()?;
        ensure_shaped(start.elapsed())?;
        let counter = |name| lab.kernel_counter(name);
        let (again, sent) = (counter("TcpRetransSegs")?, counter("TcpOutSegs")?);
        ensure_recovered(counter("TcpExtTCPTimeouts")?, again, sent)?;
        ensure!(sha256(&root.join("up"))? == content.sha256, "the upload differs");
        server.interrupt()?;
        Ok(())
    }

    #[test]
    fn a_download_passes_a_slow_router() -> Result<()> {
        let test = "a_download_passes_a_slow_router";
        let Some(lab) = Lab::open(test, &["tc", "curl"])? else { return Ok(()) };
        let far = far_namespace(&lab)?;
        let content = Content::create(lab.directory(), "bulk", SHAPED_BYTES, 2)?;
        let directory = lab.directory().display().to_string();
        let words = ["http", "--dir", &directory, "--gateway=10.77.0.1", "--stats", "--json"];
        let server = lab.serve(&Link::default(), &words)?;
        lab.namespace.tool("tc", &format!("qdisc add dev near0 root {TBF}"))?;
        let start = Instant::now();
        let down = lab.file("down").display().to_string();
        let words = format!("-sSf --max-time 50 -o {down} http://{STACK}/bulk");
        far.tool("curl", &words)?;
        ensure_shaped(start.elapsed())?;
        ensure!(sha256(&lab.file("down"))? == content.sha256, "the download differs");
        let report = Report::of(&server.interrupt()?)?;
        let (again, sent) = (report.counter("TcpRetransSegs")?, report.counter("TcpOutSegs")?);
        ensure!(sent > 10_000, "only {sent} segments");
        ensure_recovered(report.counter("TcpExtTCPTimeouts")?, again, sent)?;
        Ok(())
    }

    #[test]
    fn a_download_survives_a_link_that_goes_down() -> Result<()> {
        let test = "a_download_survives_a_link_that_goes_down";
        let Some(lab) = Lab::open(test, &["curl"])? else { return Ok(()) };
        let content = Content::create(lab.directory(), "bulk", 64 << 20, 3)?;
        let directory = lab.directory().display().to_string();
        let mut server = lab.serve(&Link::default(), &["http", "--dir", &directory])?;
        // 2 s at this rate, so that the interruption is in the middle of the transfer on any
        // machine.
        let line = format!(
            "curl -sSf --max-time 50 --limit-rate 32M -o down http://{STACK}/bulk & sleep 0.7; \
             ip link set {0} down; sleep 1; ip link set {0} up; wait $!; sha256sum down",
            Link::NAME
        );
        ensure!(lab.shell(&line)?.starts_with(&content.sha256), "the download differs");
        server.assert_alive()?;
        server.interrupt()?;
        Ok(())
    }
}
