//! IPv6 between the kernel and the stack over a tap: neighbor discovery, ping, TCP in both
//! directions of the offloads, and one listener for both families.
//!
//! Not here: addresses that the kernel assigns by router advertisements.

use anyhow::{Context as _, Result, ensure};
use netns_tests::{Content, Lab, Link, Quietline, Report, sha256, talk};

/// The stack's address on the link.
const STACK_V6: &str = "fd77::2";

/// Opens a lab whose kernel speaks IPv6.
fn open(test: &str, programs: &[&str]) -> Result<Option<Lab>> {
    let Some(lab) = Lab::open(test, programs)? else { return Ok(None) };
    if !std::path::Path::new("/proc/sys/net/ipv6").exists() {
        println!("skipped: {test}: the kernel has no IPv6");
        return Ok(None);
    }
    lab.shell(
        "for conf in all default; do echo 0 >/proc/sys/net/ipv6/conf/$conf/disable_ipv6; done",
    )?;
    Ok(Some(lab))
}

/// Starts `quietline serve` on a tap with an IPv6 address.
fn serve(lab: &Lab, words: &[&str]) -> Result<Quietline> {
    let link = [
        format!("--link=tap:{}", Link::NAME),
        format!("--address={STACK_V6}/64"),
        "--peer=fd77::1/64".to_owned(),
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
            let words = format!("-6 -n -q -c 10 -i 0.01 -W 2 -M do -s {size} {STACK_V6}");
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
        let mut server = serve(&lab, &["echo", "--port", "7"])?;
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
        let content = Content::create(lab.directory(), "bulk", 32 << 20, 1)?;
        let directory = lab.directory().display().to_string();
        for offload in [None, Some("--no-vnet-hdr")] {
            let words = ["http", "--dir", &directory, "--upload", "--stats", "--json"];
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
