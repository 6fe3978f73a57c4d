//! Route reference counts of packets that the kernel sends over a tap to threads that sleep in
//! `recv`.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use netns_tests::{Lab, Link, Report, STACK};

/// Requests of one packet, each answered before the next: the server's thread sleeps by then.
const REQUESTS: u64 = 500;
const LIMIT: Duration = Duration::from_secs(20);

fn ask(address: SocketAddr, pause: Duration) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_nodelay(true)?;
    for number in 0..REQUESTS {
        let request = [number.to_le_bytes()[0]; 64];
        let mut answer = [0; 64];
        stream.write_all(&request).context("sending")?;
        stream.read_exact(&mut answer).context("receiving")?;
        ensure!(answer == request, "answer {number} is another's");
        std::thread::sleep(pause);
    }
    Ok(())
}

/// Times for the server's thread to go to sleep before the next request. A few microseconds are
/// enough on an idle CPU.
const PAUSES: [Duration; 3] =
    [Duration::from_micros(100), Duration::from_millis(2), Duration::from_millis(20)];

/// Returns reference counts and packets queued for a reader, in a context where nearly all of them
/// must be queued. Starts with the shortest pause.
fn waited(context: &str) -> Result<Option<(u64, u64)>> {
    let mut most = 0;
    for pause in PAUSES {
        let Some((operations, queued)) = counted(context, pause)? else { return Ok(None) };
        if queued * 10 >= REQUESTS * 9 {
            return Ok(Some((operations, queued)));
        }
        most = most.max(queued);
    }
    bail!("{most} of {REQUESTS} packets waited for a reader")
}

/// Returns reference counts and packets queued for a reader in this context.
fn counted(context: &str, pause: Duration) -> Result<Option<(u64, u64)>> {
    let test = format!("paths_of_packets_that_wait_{context}");
    let Some(lab) = Lab::open(&test, &[])? else { return Ok(None) };
    let setting = format!("--sysctl=net.quietline.rx_context={context}");
    // A polling thread processes packets as softirq does; here it must sleep.
    let words = [
        "echo",
        "--port",
        "7",
        "--stats",
        "--json",
        "--sysctl=net.core.busy_read=0",
        "--sysctl=net.core.busy_poll=0",
        "--sysctl=net.ipv4.tcp_low_latency=0",
        "--sysctl=net.quietline.rx_dst_mode=rcu_clear_then_release",
        &setting,
    ];
    let server = lab.serve(&Link::default(), &words)?;
    let address: SocketAddr = format!("{STACK}:7").parse()?;
    lab.namespace.enter(|| ask(address, pause))?;
    let report = Report::of(&server.interrupt()?)?;
    let counter = |name: &str| report.counter(name);
    Ok(Some((counter("DstGet")? + counter("DstPut")?, counter("PrequeueQueued")?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference counts of opening and closing a connection.
    const OTHERS_MAX: u64 = 20;

    #[test]
    fn a_queued_packet_with_a_route_costs_two_reference_counts() -> Result<()> {
        let Some((operations, queued)) = waited("prequeue_ref")? else { return Ok(()) };
        let exact = operations >= 2 * queued && operations <= 2 * queued + OTHERS_MAX;
        ensure!(exact, "{operations} operations for {queued} packets");
        Ok(())
    }

    #[test]
    fn a_queued_packet_without_a_route_costs_no_reference_count() -> Result<()> {
        for context in ["prequeue_drop", "prequeue_drop_limited"] {
            let Some((operations, _)) = waited(context)? else { return Ok(()) };
            ensure!(operations <= OTHERS_MAX, "{context}: {operations} operations");
        }
        Ok(())
    }

    #[test]
    fn softirq_needs_no_reference_count() -> Result<()> {
        let Some((operations, queued)) = counted("bh", PAUSES[0])? else { return Ok(()) };
        ensure!(queued == 0, "{queued} packets waited for a reader");
        ensure!(operations <= OTHERS_MAX, "{operations} operations");
        Ok(())
    }
}
