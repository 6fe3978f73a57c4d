//! UDP between the kernel and quietline, with programs of the kernel's side: echo over every kind
//! of device, a closed port, sizes up to the MTU, and a flood.
//!
//! socat sends the flood, because iperf3 talks to a server of its own over TCP before it sends a
//! datagram.
//!
//! Not here: TCP (`netcat.rs`), sockets of the stack as clients (`sockets.rs`).

use std::net::UdpSocket;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use netns_tests::{AnyLink, Kind, Lab, Link, Report, STACK, Version};

/// Time limit of an answer.
const LIMIT: Duration = Duration::from_secs(10);

/// Datagrams of the flood, and the bytes of each.
const FLOOD: u64 = 20_000;
const FLOOD_BYTES: u64 = 1000;

/// Sends datagrams of several sizes from the kernel to the echo service and compares the answers.
fn echo_over(test: &str, link: &Link) -> Result<()> {
    let Some(lab) = Lab::open(test, &[])? else { return Ok(()) };
    let server = lab.serve(link, &["udp-echo", "--port", "7", "--stats", "--json"])?;
    echo(&lab, link.mtu - 28)?;
    ensure_echoed(&Report::of(&server.interrupt()?)?)
}

/// The same over a device of any kind.
fn echo_over_any(test: &str, kind: Kind) -> Result<()> {
    let Some(link) = AnyLink::open(test, &[], kind)? else { return Ok(()) };
    let server = link.serve(Version::V4, &["udp-echo", "--port", "7", "--stats", "--json"])?;
    echo(&link.lab, Version::V4.payload_max())?;
    ensure_echoed(&Report::of(&server.interrupt()?)?)
}

/// Sends datagrams of five sizes from a socket of the kernel and compares the answers.
fn echo(lab: &Lab, largest: u32) -> Result<()> {
    lab.namespace.enter(|| {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect((STACK, 7))?;
        socket.set_read_timeout(Some(LIMIT))?;
        let mut answer = vec![0; largest as usize + 1];
        for len in [0, 1, 100, 1000, largest as usize] {
            let sent: Vec<u8> = (0..=255).cycle().take(len).collect();
            socket.send(&sent)?;
            let count = socket.recv(&mut answer).with_context(|| format!("{len} bytes"))?;
            ensure!(answer[..count] == sent, "{count} other bytes of {len} came back");
        }
        Ok(())
    })
}

fn ensure_echoed(report: &Report) -> Result<()> {
    for name in ["UdpInDatagrams", "UdpOutDatagrams"] {
        let count = report.counter(name)?;
        ensure!(count == 5, "{name}: {count}");
    }
    ensure!(report.counter("UdpInErrors")? == 0, "errors");
    Ok(())
}

/// Returns the number of packets that the kernel's end of the link has dropped.
fn dropped(link: &AnyLink) -> Result<u64> {
    let shown = link.lab.namespace.ip(&format!("-j -s link show dev {}", link.interface))?;
    let shown: serde_json::Value = serde_json::from_str(&shown)?;
    shown[0]["stats64"]["tx"]["dropped"].as_u64().with_context(|| format!("no statistics: {shown}"))
}

/// Sends datagrams as fast as the kernel can. Each is received, or counted where it was dropped: at
/// the kernel's end of the link, in the queue of the device, or at a full queue of the stack.
fn flood_over(test: &str, kind: Kind) -> Result<()> {
    let Some(link) = AnyLink::open(test, &["socat", "ping"], kind)? else { return Ok(()) };
    let server = link.serve(Version::V4, &["udp-discard", "--port", "9", "--stats", "--json"])?;
    // Resolves the neighbor, so that no datagram waits for it.
    link.lab.namespace.tool("ping", &format!("-n -q -c 1 -W 2 {STACK}"))?;
    let before = dropped(&link)?;
    let bytes = FLOOD * FLOOD_BYTES;
    link.lab.shell(&format!(
        "head -c {bytes} /dev/zero >flood && \
         socat -u -b{FLOOD_BYTES} OPEN:flood UDP-SENDTO:{STACK}:9 && sleep 0.3"
    ))?;
    let dropped = dropped(&link)? - before;
    let report = Report::of(&server.interrupt()?)?;
    let received = report.counter("UdpInDatagrams")?;
    let mut full = 0;
    for reason in ["SOCKET_RCVBUFF", "SOCKET_BACKLOG", "CPU_BACKLOG"] {
        full += report.counter(reason)?;
    }
    let missed = report.counter("DeviceRxMissed")?;
    println!(
        "{kind:?}: {received} received, {full} at a full queue, {missed} missed, {dropped} dropped"
    );
    ensure!(received > 0, "nothing was received");
    let sum = received + full + missed + dropped;
    ensure!(sum == FLOOD, "{sum} of {FLOOD} datagrams are accounted for");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_echoed_on_every_link() -> Result<()> {
        for (number, link) in netns_tests::LINKS.iter().enumerate() {
            echo_over(&format!("datagrams_are_echoed_{number}"), link)?;
        }
        for kind in [Kind::Tun, Kind::AfPacket, Kind::AfXdp] {
            echo_over_any(&format!("datagrams_are_echoed_{}", kind.name()), kind)
                .with_context(|| format!("{kind:?}"))?;
        }
        Ok(())
    }

    #[test]
    fn every_datagram_of_a_flood_is_received_or_counted() -> Result<()> {
        let name = "every_datagram_of_a_flood_is_received_or_counted";
        for kind in Kind::ALL {
            flood_over(name, kind).with_context(|| format!("{kind:?}"))?;
        }
        Ok(())
    }

    #[test]
    fn socat_gets_its_datagram_back() -> Result<()> {
        let Some(lab) = Lab::open("socat_gets_its_datagram_back", &["socat"])? else {
            return Ok(());
        };
        let server = lab.serve(&Link::default(), &["udp-echo", "--port", "7"])?;
        let answer = lab.shell(&format!("echo hello | socat -t0.5 - UDP:{STACK}:7"))?;
        ensure!(answer == "hello\n", "{answer}");
        server.interrupt()?;
        Ok(())
    }

    #[test]
    fn discard_receives_a_burst_and_answers_nothing() -> Result<()> {
        let name = "discard_receives_a_burst_and_answers_nothing";
        let Some(lab) = Lab::open(name, &["socat"])? else { return Ok(()) };
        let server = lab.serve(&Link::default(), &["udp-discard", "--port", "9", "--stats"])?;
        let line = format!("head -c 100000 /dev/zero | socat -t0.5 -b1000 - UDP:{STACK}:9 | wc -c");
        let printed = lab.shell(&line)?;
        ensure!(printed.trim() == "0", "discard answered {printed}");
        let report = server.interrupt()?;
        ensure!(report.stdout.contains("100000 bytes received"), "{}", report.stdout);
        Ok(())
    }

    #[test]
    fn a_closed_port_refuses_a_connected_socket_of_the_kernel() -> Result<()> {
        let name = "a_closed_port_refuses_a_connected_socket_of_the_kernel";
        let Some(lab) = Lab::open(name, &["socat"])? else { return Ok(()) };
        let server = lab.serve(&Link::default(), &["udp-echo", "--port", "7"])?;
        // The first datagram brings the error, which the second write reports.
        let line = format!(
            "(echo one; sleep 0.5; echo two; sleep 0.5) | socat -t0.5 - UDP:{STACK}:99 2>&1 || true"
        );
        let printed = lab.shell(&line)?;
        ensure!(printed.contains("refused"), "no error: {printed}");
        std::thread::sleep(Duration::from_millis(10));
        server.interrupt()?;
        Ok(())
    }
}
