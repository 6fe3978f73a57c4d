//! Programs of the kernel's side over every kind of device and both IP versions: ping, traceroute
//! by UDP and by ICMP echo, curl in both directions. tshark checks every packet of both ends.
//!
//! Not here: options of one device, offloads (`af_packet.rs`, `af_xdp.rs`, `capture.rs`), sockets
//! of the stack as clients (`sockets.rs`).

use anyhow::{Context as _, Result, bail, ensure};
use netns_tests::{AnyLink, Content, Kind, Report, Version, host, sha256};

const PROGRAMS: &[&str] = &["ping", "traceroute", "curl", "tshark"];

/// Bytes of a file in each direction.
const BULK_BYTES: usize = 2 << 20;

/// Echo requests of each size.
const PINGS: u32 = 5;

/// Packets that are wrong. An ICMP error may quote a packet of the kernel whose checksum a device
/// would have completed, so the checksums of quotes do not count.
const WRONG: &str = "_ws.malformed || ip.checksum.status==0 || icmp.checksum.status==0 || \
     icmpv6.checksum.status==0 || (tcp.checksum.status==0 && tcp.checksum != 0xffff) || \
     (udp.checksum.status==0 && !icmp && !icmpv6)";

/// tshark verifies checksums only with these options.
const VERIFY: &str =
    "-o tcp.check_checksum:TRUE -o ip.check_checksum:TRUE -o udp.check_checksum:TRUE";

/// Sends echo requests without payload, with a few bytes, and of the size of the link.
fn ping(link: &AnyLink, version: Version) -> Result<()> {
    for size in [0, 56, version.payload_max()] {
        let (option, to) = (version.option(), version.stack());
        let words = format!("{option} -n -q -c {PINGS} -i 0.002 -W 2 -M do -s {size} {to}");
        let printed = link.lab.namespace.tool("ping", &words)?;
        ensure!(printed.contains(&format!("{PINGS} received")), "at {size} bytes: {printed}");
    }
    Ok(())
}

/// Traces the route by datagrams to closed ports, or with `--icmp` by echo requests: the stack is
/// the only hop and answers the first probe. To datagrams it answers that the port is unreachable:
/// traceroute marks any other reason with a `!`.
fn traceroute(link: &AnyLink, version: Version, method: &str) -> Result<()> {
    let (option, to) = (version.option(), version.stack());
    let words = format!("{option} {method} -n -q 1 -m 3 -w 5 {to}");
    let printed = link.lab.namespace.tool("traceroute", &words)?;
    let mut hops = printed.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    let first = hops.next().with_context(|| format!("no hop: {printed}"))?;
    ensure!(first.starts_with(&["1", to]) && hops.next().is_none(), "{printed}");
    ensure!(!first.iter().any(|word| word.starts_with('!')), "another reason: {printed}");
    Ok(())
}

/// Transfers a file in both directions.
fn transfer(link: &AnyLink, version: Version, content: &Content) -> Result<()> {
    let url = format!("http://{}", host(version.stack()));
    let (option, directory) = (version.option(), link.lab.directory());
    let down = directory.join("down").display().to_string();
    link.lab.curl(&[option, "--fail", "-o", &down, &format!("{url}/bulk")])?.success()?;
    ensure!(sha256(&directory.join("down"))? == content.sha256, "the download differs");
    let from = content.path.display().to_string();
    link.lab.curl(&[option, "--fail", "-T", &from, &format!("{url}/up")])?.success()?;
    ensure!(sha256(&directory.join("root/up"))? == content.sha256, "the upload differs");
    Ok(())
}

/// Fails if tshark finds a wrong packet in the captures of both versions, or no packet at all.
fn ensure_clean(link: &AnyLink) -> Result<()> {
    let filter = format!("{WRONG} || icmp.type==0 || icmpv6.type==129");
    let fields = "-T fields -e frame.number -e icmp.type -e icmpv6.type -e _ws.col.Info";
    let printed = link.lab.shell(&format!(
        "cat V4.pcapng V6.pcapng >both.pcapng
         tshark -n -r both.pcapng {VERIFY} -Y '{filter}' {fields} 2>tshark.err || (cat tshark.err >&2; exit 1)"
    ))?;
    // Echo replies are selected, too: a filter that selects nothing would prove nothing.
    let reply = |line: &str| {
        let mut fields = line.split('\t').skip(1);
        fields.next() == Some("0") || fields.next() == Some("129")
    };
    let (replies, wrong): (Vec<_>, Vec<_>) = printed.lines().partition(|line| reply(line));
    if !wrong.is_empty() {
        bail!("{} packets are wrong:\n{}", wrong.len(), wrong.join("\n"));
    }
    ensure!(replies.len() >= 2 * 3 * PINGS as usize, "{} echo replies: {printed}", replies.len());
    Ok(())
}

/// Runs every program against a server of one version.
fn visit(link: &AnyLink, version: Version, content: &Content) -> Result<()> {
    let root = content.path.parent().context("a directory")?.display().to_string();
    let pcap = link.lab.file(&format!("{version:?}.pcapng"));
    let pcap = format!("--pcap={}", pcap.display());
    let words = ["http", "--dir", &root, "--upload", &pcap, "--stats", "--json"];
    let server = link.serve(version, &words)?;
    ping(link, version)?;
    traceroute(link, version, "")?;
    traceroute(link, version, "--icmp")?;
    transfer(link, version, content)?;
    let report = Report::of(&server.interrupt()?)?;
    let (replies, unreachable) = match version {
        Version::V4 => ("IcmpOutEchoReps", "IcmpOutDestUnreachs"),
        Version::V6 => ("Icmp6OutEchoReplies", "Icmp6OutDestUnreachs"),
    };
    ensure!(report.counter(unreachable)? > 0, "traceroute got no unreachable port");
    // Those of ping, and those of traceroute, which sends more probes than it needs.
    let replies = report.counter(replies)?;
    ensure!(replies > u64::from(3 * PINGS), "{replies} echo replies");
    Ok(())
}

fn visit_over(test: &str, kind: Kind) -> Result<()> {
    let Some(link) = AnyLink::open(test, PROGRAMS, kind)? else { return Ok(()) };
    let root = link.lab.file("root");
    std::fs::create_dir(&root)?;
    let content = Content::create(&root, "bulk", BULK_BYTES, 6)?;
    for version in Version::ALL {
        visit(&link, version, &content).with_context(|| format!("{version:?}"))?;
    }
    ensure_clean(&link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_reach_the_stack_over_a_tap() -> Result<()> {
        visit_over("programs_reach_the_stack_over_a_tap", Kind::Tap)
    }

    #[test]
    fn programs_reach_the_stack_over_a_tun() -> Result<()> {
        visit_over("programs_reach_the_stack_over_a_tun", Kind::Tun)
    }

    #[test]
    fn programs_reach_the_stack_over_af_packet() -> Result<()> {
        visit_over("programs_reach_the_stack_over_af_packet", Kind::AfPacket)
    }

    #[test]
    fn programs_reach_the_stack_over_af_xdp() -> Result<()> {
        visit_over("programs_reach_the_stack_over_af_xdp", Kind::AfXdp)
    }
}
