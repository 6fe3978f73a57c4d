//! UDP between the kernel and quietline, with programs of the kernel's side: echo through a tap, a
//! closed port, and sizes up to the MTU.
//!
//! Not here: TCP (`netcat.rs`).

use std::time::Duration;

use anyhow::{Result, ensure};
use netns_tests::{Lab, Link, STACK};

/// Sends datagrams of several sizes from the kernel to the echo service and compares the answers.
fn echo_over(test: &str, link: &Link) -> Result<()> {
    let Some(lab) = Lab::open(test, &["socat"])? else { return Ok(()) };
    let server = lab.serve(link, &["udp-echo", "--port", "7", "--stats"])?;
    let largest = link.mtu - 28;
    let line = format!(
        "for n in 1 2 100 1000 {largest}; do \
             head -c $n /dev/urandom >in && \
             socat -t2 -b{largest} - UDP:{STACK}:7 <in >out && cmp in out || exit 1; \
         done"
    );
    lab.shell(&line)?;
    let report = server.interrupt()?;
    ensure!(report.stdout.contains("UdpInDatagrams"), "the counters: {}", report.stdout);
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
        echo_over("datagrams_are_echoed_tun", &Link { kind: "tun", ..Link::default() })
    }

    #[test]
    fn discard_receives_a_burst_and_answers_nothing() -> Result<()> {
        let name = "discard_receives_a_burst_and_answers_nothing";
        let Some(lab) = Lab::open(name, &["socat"])? else { return Ok(()) };
        let server = lab.serve(&Link::default(), &["udp-discard", "--port", "9", "--stats"])?;
        let line = format!("head -c 100000 /dev/zero | socat -t1 -b1000 - UDP:{STACK}:9 | wc -c");
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
            "(echo one; sleep 1; echo two; sleep 1) | socat -t2 - UDP:{STACK}:99 2>&1 || true"
        );
        let printed = lab.shell(&line)?;
        ensure!(printed.contains("refused"), "no error: {printed}");
        std::thread::sleep(Duration::from_millis(10));
        server.interrupt()?;
        Ok(())
    }
}
