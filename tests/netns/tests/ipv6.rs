//! IPv6 between the kernel and the stack over a tap that quietline creates: neighbor discovery,
//! ping, TCP in both directions with and without offloads.
//!
//! Not here: other devices (`peers.rs`), listeners for both versions (`sockets.rs`), addresses from
//! router advertisements (`router.rs`).

use anyhow::{Context as _, Result, ensure};
use netns_tests::{Content, KERNEL_V6, Lab, Link, Quietline, Report, STACK_V6, sha256, talk};

/// Opens a lab whose kernel speaks IPv6.
fn open(test: &str, programs: &[&str]) -> Result<Option<Lab>> {
    let Some(lab) = Lab::open(test, programs)? else { return Ok(None) };
    if !lab.enable_ipv6()? {
        println!("skipped: {test}: the kernel has no IPv6");
        return Ok(None);
    }
    Ok(Some(lab))
}

/// Setting that saves the one or two seconds of duplicate address detection.
const NO_PROBES: &str = "--sysctl=net.ipv6.conf.all.dad_transmits=0";

/// Starts `quietline serve` on a tap with an IPv6 address.
fn serve(lab: &Lab, words: &[&str]) -> Result<Quietline> {
    let link = [
        format!("--link=tap:{}", Link::NAME),
        format!("--address={STACK_V6}/64"),
        format!("--peer={KERNEL_V6}/64"),
    ];
    let link = link.iter().map(String::as_str);
    Quietline::serve_with(&lab.namespace, &words.iter().copied().chain(link).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ping_is_answered_over_ipv6() -> Result<()> {
        let test = "every_ping_is_answered_over_ipv6";
        let Some(lab) = open(test, &["ping"])? else { return Ok(()) };
        let mut server = serve(&lab, &["echo", "--port", "7", "--stats", "--json"])?;
        // Full packets: MTU less 40 bytes of IPv6 and 8 of ICMPv6.
        for size in [0, 1, 56, 1452] {
            let words = format!("-6 -n -q -c 10 -i 0.002 -W 2 -M do -s {size} {STACK_V6}");
            let printed = lab.namespace.tool("ping", &words)?;
            ensure!(printed.contains("10 received"), "at {size} bytes: {printed}");
        }
        server.assert_alive()?;
        let report = Report::of(&server.interrupt()?)?;
        ensure!(report.counter("Icmp6OutEchoReplies")? == 40, "40 answers");
        ensure!(report.counter("Icmp6InNeighborSolicits")? > 0, "the kernel has asked");
        Ok(())
    }

    #[test]
    fn an_echo_server_answers_over_ipv6() -> Result<()> {
        let Some(lab) = open("an_echo_server_answers_over_ipv6", &[])? else { return Ok(()) };
        let mut server = serve(&lab, &["echo", "--port", "7", NO_PROBES])?;
        let to = format!("[{STACK_V6}]:7").parse().context("an address")?;
        lab.namespace.enter(|| talk(to, 8, 20))?;
        server.assert_alive()?;
        server.interrupt()?;
        Ok(())
    }

    /// The kernel sends and receives superframes (TSO6 by the vnet header), or single segments.
    #[test]
    fn files_pass_over_ipv6_with_and_without_offload() -> Result<()> {
        let test = "files_pass_over_ipv6_with_and_without_offload";
        let Some(lab) = open(test, &["curl"])? else { return Ok(()) };
        let content = Content::create(lab.directory(), "bulk", 16 << 20, 1)?;
        let directory = lab.directory().display().to_string();
        for offload in [None, Some("--no-vnet-hdr")] {
            let words = ["http", "--dir", &directory, "--upload", "--stats", "--json", NO_PROBES];
            let words: Vec<_> = words.into_iter().chain(offload).collect();
            let server = serve(&lab, &words)?;
            let down = lab.file("down").display().to_string();
            let url = format!("http://[{STACK_V6}]");
            lab.curl(&["-6", "--fail", "-o", &down, &format!("{url}/bulk")])?.success()?;
            ensure!(sha256(&lab.file("down"))? == content.sha256, "the download differs");
            let from = content.path.display().to_string();
            lab.curl(&["-6", "--fail", "-T", &from, &format!("{url}/up")])?.success()?;
            ensure!(sha256(&lab.file("up"))? == content.sha256, "the upload differs");
            let report = Report::of(&server.interrupt()?)?;
            ensure!(report.counter("Ip6InDelivers")? > 100, "packets over IPv6");
        }
        Ok(())
    }
}
