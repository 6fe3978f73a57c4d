//! Packets that the stack sends and records, checked by tshark: none malformed, no bad checksum, a
//! handshake like that of Linux.
//!
//! Not here: the capture format itself (unit tests of the capture device).

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use netns_tests::{Content, LINKS, Lab, Link, STACK};

const PROGRAMS: &[&str] = &["tshark", "curl", "ping"];

/// tshark verifies checksums only with these options.
const VERIFY: &str =
    "-o tcp.check_checksum:TRUE -o ip.check_checksum:TRUE -o tcp.desegment_tcp_streams:FALSE";

/// Runs traffic of several kinds over the link and records it.
fn record(lab: &Lab, link: &Link) -> Result<()> {
    Content::create(lab.directory(), "bulk", 4 << 20, 1)?;
    let directory = lab.directory().display().to_string();
    let pcap = format!("--pcap={}", lab.file("run.pcapng").display());
    let words = ["http", "--dir", &directory, "--upload", &pcap];
    let server = lab.serve(link, &words)?;
    lab.namespace.tool("ping", &format!("-n -q -c 3 -i 0.01 -W 2 {STACK}"))?;
    lab.shell(&format!("curl -sSf -o /dev/null http://{STACK}/bulk"))?;
    lab.shell(&format!("curl -sSf -T bulk http://{STACK}/up"))?;
    // A refused port, so that the capture has a reset.
    lab.shell(&format!("! curl -sS http://{STACK}:81/ 2>/dev/null"))?;
    server.interrupt()?;
    Ok(())
}

/// Returns the frames of the capture that a display filter selects.
fn frames(lab: &Lab, filter: &str) -> Result<Vec<u32>> {
    let line = format!("tshark -n -r run.pcapng {VERIFY} -Y '{filter}' -T fields -e frame.number");
    let printed = lab.shell(&format!("{line} 2>tshark.err || (cat tshark.err >&2; exit 1)"))?;
    printed.lines().map(|line| line.trim().parse().context("a frame number")).collect()
}

/// Returns tshark's description of the first selected frames, for the message of a failure.
fn describe(lab: &Lab, filter: &str) -> Result<String> {
    lab.shell(&format!("tshark -n -r run.pcapng {VERIFY} -Y '{filter}' -V >tshark.out 2>/dev/null; head -80 tshark.out"))
}

fn ensure_none(lab: &Lab, filter: &str) -> Result<()> {
    let found = frames(lab, filter)?;
    if !found.is_empty() {
        let count = found.len();
        anyhow::bail!("{count} frames are `{filter}`:\n{}", describe(lab, filter)?);
    }
    Ok(())
}

fn ensure_some(lab: &Lab, filter: &str, least: usize) -> Result<()> {
    let count = frames(lab, filter)?.len();
    ensure!(count >= least, "only {count} frames are `{filter}`, expected {least}");
    Ok(())
}

fn ensure_valid(lab: &Lab) -> Result<()> {
    ensure!(Path::new(&lab.file("run.pcapng")).exists(), "no capture was written");
    // Positive checks first: an empty capture has no bad frame either.
    ensure_some(lab, "tcp.checksum.status==1", 50)?;
    ensure_some(lab, "ip.checksum.status==1", 50)?;
    ensure_some(lab, "icmp.checksum.status==1", 6)?;
    ensure_some(lab, "tcp.flags.syn==1 && tcp.flags.ack==1", 2)?;
    ensure_some(lab, "tcp.flags.reset==1", 1)?;
    for bad in [
        "_ws.malformed",
        // The kernel writes 0xffff if the sum is zero, as UDP must (RFC 768). The value is
        // equivalent, but tshark expects the other form. One segment in 65,536 has it.
        "tcp.checksum.status==0 && tcp.checksum != 0xffff",
        "ip.checksum.status==0",
        "icmp.checksum.status==0",
    ] {
        ensure_none(lab, bad)?;
    }
    // The stack's own packets must not be unusual either: no expert note above "chat" except about
    // lost segments, and there was no loss.
    let odd = format!("ip.src=={STACK} && _ws.expert.severity == 8388608");
    ensure_none(lab, &odd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_with_offload_are_valid() -> Result<()> {
        let test = "captures_with_offload_are_valid";
        let Some(lab) = Lab::open(test, PROGRAMS)? else { return Ok(()) };
        record(&lab, &LINKS[0])?;
        ensure_valid(&lab)
    }

    #[test]
    fn captures_without_offload_are_valid() -> Result<()> {
        let test = "captures_without_offload_are_valid";
        let Some(lab) = Lab::open(test, PROGRAMS)? else { return Ok(()) };
        record(&lab, &LINKS[1])?;
        ensure_valid(&lab)?;
        // Without offload no frame is longer than the link allows.
        ensure_none(&lab, "frame.len > 1514")
    }

    #[test]
    fn the_handshake_has_the_options_of_linux() -> Result<()> {
        let test = "the_handshake_has_the_options_of_linux";
        let Some(lab) = Lab::open(test, PROGRAMS)? else { return Ok(()) };
        record(&lab, &Link::default())?;
        let filter = format!("ip.src=={STACK} && tcp.flags.syn==1");
        ensure_some(&lab, &filter, 2)?;
        // The kernel offered all of these, so the SYN-ACK contains all of them.
        for option in
            ["tcp.options.mss_val==1460", "tcp.options.wscale.shift", "tcp.options.timestamp.tsval"]
        {
            let with = frames(&lab, &format!("{filter} && {option}"))?.len();
            ensure!(with == frames(&lab, &filter)?.len(), "a SYN-ACK without {option}");
        }
        Ok(())
    }
}
