//! Transfers through a path with loss and delay, between the kernel and quietline, and between two
//! kernels: the bytes arrive unchanged, and both paths lost packets. Requests and answers by UDP in
//! fragments, which are sent again until they pass.
//!
//! Not here: throughput. `bin/grid` measures it, by hand.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket as KernelUdp};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use netns_tests::{NEAR, NEAR_V6, Namespace, Version, WirePath, host};
use quietline::{Stack, UdpSocket};

/// The relay program of this crate.
const RELAY: &str = env!("CARGO_BIN_EXE_relay");

fn relay() -> &'static Path {
    Path::new(RELAY)
}

/// Makes a path of some milliseconds with a queue of a few dozen packets.
fn path(rtt_ms: u64, loss: f64) -> WirePath {
    let rtt = Duration::from_millis(rtt_ms);
    WirePath { rtt, loss, rate_bps: 20_000_000, queue: 60, seed: 7 }
}

/// Port of the servers.
const PORT: u16 = 5001;

/// Bytes of a request and its answer: three fragments of either version.
const REQUEST_BYTES: usize = 4000;

/// Number of requests in each direction, and of the attempts of each: one in two gets its answer.
const REQUESTS: u32 = 12;
const ATTEMPTS: u32 = 60;

/// Time until a request is sent again: ten round trips.
const AGAIN: Duration = Duration::from_millis(20);

/// The calls of a datagram socket that a kernel socket and one of the stack have in common.
trait Datagrams: Sync {
    fn limit_reads(&self, limit: Duration) -> io::Result<()>;
    fn send(&self, to: SocketAddr, bytes: &[u8]) -> io::Result<usize>;
    fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)>;
}

impl Datagrams for KernelUdp {
    fn limit_reads(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))
    }

    fn send(&self, to: SocketAddr, bytes: &[u8]) -> io::Result<usize> {
        self.send_to(bytes, to)
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_from(buffer)
    }
}

impl Datagrams for UdpSocket {
    fn limit_reads(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))
    }

    fn send(&self, to: SocketAddr, bytes: &[u8]) -> io::Result<usize> {
        self.send_to(bytes, to)
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_from(buffer)
    }
}

/// Receives a datagram; `None` if none arrives in time.
fn receive(socket: &dyn Datagrams, buffer: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
    match socket.receive(buffer) {
        Ok(received) => Ok(Some(received)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Sends back what arrives, until `stop` is set.
fn echo(server: &dyn Datagrams, stop: &AtomicBool) -> Result<()> {
    let mut buffer = vec![0; REQUEST_BYTES + 1];
    while !stop.load(Ordering::Relaxed) {
        if let Some((len, peer)) = receive(server, &mut buffer)? {
            server.send(peer, &buffer[..len])?;
        }
    }
    Ok(())
}

/// Sends every request until its answer arrives. Late answers to earlier requests do not count.
fn ask(client: &dyn Datagrams, to: SocketAddr) -> Result<()> {
    let mut buffer = vec![0; REQUEST_BYTES + 1];
    for number in 0..REQUESTS {
        let (first, rest) = (number.to_be_bytes(), (0..=255).cycle());
        let request: Vec<u8> = first.into_iter().chain(rest).take(REQUEST_BYTES).collect();
        let mut is_answered = false;
        for _ in 0..ATTEMPTS {
            client.send(to, &request)?;
            while !is_answered && let Some((len, from)) = receive(client, &mut buffer)? {
                ensure!(from == to && len == REQUEST_BYTES, "{len} bytes of {from}");
                is_answered = buffer[..4] == first;
                ensure!(!is_answered || buffer[..len] == request, "the answer is changed");
            }
            if is_answered {
                break;
            }
        }
        ensure!(is_answered, "request {number}: no answer to {ATTEMPTS} attempts");
    }
    Ok(())
}

/// Exchanges requests and answers between a client and a server.
fn exchange(client: &dyn Datagrams, server: &dyn Datagrams, to: SocketAddr) -> Result<()> {
    client.limit_reads(AGAIN)?;
    server.limit_reads(AGAIN)?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let echo = scope.spawn(|| echo(server, &stop));
        let asked = ask(client, to);
        stop.store(true, Ordering::Relaxed);
        echo.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).context("server")?;
        asked.context("client")
    })
}

/// Exchanges requests and answers between the kernel in `near` and the stack, in both directions.
fn exchange_both_ways(near: &Namespace, stack: &Stack, version: Version) -> Result<()> {
    let at = |address: &str, port: u16| -> Result<SocketAddr> {
        format!("{}:{port}", host(address)).parse().with_context(|| address.to_owned())
    };
    let kernel = if version == Version::V4 { NEAR } else { NEAR_V6 };
    let sockets = || -> Result<_> {
        let (own, theirs) = (at(version.stack(), PORT)?, at(kernel, PORT)?);
        let socket = near.enter(|| Ok(KernelUdp::bind(theirs)?))?;
        Ok((UdpSocket::bind(stack, own)?, own, socket, theirs))
    };
    let (ours, own, socket, _) = sockets()?;
    exchange(&socket, &ours, own).context("the kernel asks")?;
    drop((ours, socket));
    // New sockets, so that no late answer arrives as a request.
    let (ours, _, socket, theirs) = sockets()?;
    exchange(&ours, &socket, theirs).context("the stack asks")
}

#[cfg(test)]
mod tests {
    use netns_tests::{AnyLink, Content, FAR, Impaired, Kind, Lab, Link, STACK, sha256};

    use super::*;

    const BYTES: usize = 1 << 20;

    /// Transfers from quietline and to it.
    fn both_ways(test: &str, path: &WirePath) -> Result<()> {
        let Some(lab) = Lab::open(test, &["curl"])? else { return Ok(()) };
        let impaired = Impaired::open(relay(), &lab.namespace, path)?;
        let content = Content::create(lab.directory(), "bulk", BYTES, 1)?;
        let directory = lab.directory().display().to_string();
        let words = ["http", "--dir", &directory, "--upload", "--gateway=10.77.0.1"];
        let server = lab.serve(&Link::default(), &words)?;
        let curl = |words: &str| impaired.near.tool("curl", &format!("-sSf --max-time 55 {words}"));
        curl(&format!("-o {directory}/down http://{STACK}/bulk"))?;
        ensure!(sha256(&lab.file("down"))? == content.sha256, "the download differs");
        curl(&format!("-T {directory}/bulk http://{STACK}/up"))?;
        ensure!(sha256(&lab.file("up"))? == content.sha256, "the upload differs");
        server.interrupt()?;
        for direction in impaired.close()? {
            ensure!(direction.lost > 0, "nothing was lost: {direction:?}");
        }
        Ok(())
    }

    #[test]
    fn transfers_pass_one_percent_loss_at_20_ms() -> Result<()> {
        both_ways("transfers_pass_one_percent_loss_at_20_ms", &path(20, 0.01))
    }

    #[test]
    fn transfers_pass_five_percent_loss_at_10_ms() -> Result<()> {
        both_ways("transfers_pass_five_percent_loss_at_10_ms", &path(10, 0.05))
    }

    #[test]
    fn transfers_pass_half_a_percent_loss_at_100_ms() -> Result<()> {
        both_ways("transfers_pass_half_a_percent_loss_at_100_ms", &path(100, 0.005))
    }

    /// A lost fragment costs its datagram, so half of the attempts fail.
    #[test]
    fn requests_in_fragments_pass_ten_percent_loss() -> Result<()> {
        let test = "requests_in_fragments_pass_ten_percent_loss";
        let Some(link) = AnyLink::open(test, &[], Kind::Tap)? else { return Ok(()) };
        let path = WirePath { rate_bps: 200_000_000, ..path(2, 0.1) };
        let impaired = Impaired::open(relay(), &link.lab.namespace, &path)?;
        impaired.add_ipv6(&link.lab.namespace)?;
        let stack = link.build(|mut builder| {
            for version in Version::ALL {
                builder = builder.address(version.stack_network().parse()?);
            }
            for version in Version::ALL {
                let to = if version == Version::V4 { "0.0.0.0/0" } else { "::/0" };
                builder = builder.add_route(format!("{to} via {}", version.kernel()).parse()?);
            }
            Ok(builder.sysctl("net.ipv6.conf.all.dad_transmits", "0"))
        })?;
        for version in Version::ALL {
            exchange_both_ways(&impaired.near, &stack, version)
                .with_context(|| format!("{version:?}"))?;
            let counters = stack.counters();
            for name in ["FragOKs", "ReasmOKs"].map(|name| version.counter(name)) {
                let count = counters.get(&name).with_context(|| format!("no counter {name}"))?;
                ensure!(count >= 2 * u64::from(REQUESTS), "{name}: {count}");
            }
        }
        stack.shutdown();
        for direction in impaired.close()? {
            ensure!(direction.lost > 0, "nothing was lost: {direction:?}");
        }
        Ok(())
    }

    /// The kernels of the comparison use the same path.
    #[test]
    fn transfers_between_two_kernels_pass() -> Result<()> {
        let Some(lab) = Lab::open("transfers_between_two_kernels_pass", &["socat"])? else {
            return Ok(());
        };
        let impaired = Impaired::open(relay(), &lab.namespace, &path(10, 0.02))?;
        let content = Content::create(lab.directory(), "bulk", BYTES, 2)?;
        let directory = lab.directory().display().to_string();
        let mut listener = lab.namespace.command("socat");
        listener.args(["-u", &format!("FILE:{directory}/bulk"), "TCP-LISTEN:5000,reuseaddr"]);
        let listener = netns_tests::Running::start(&mut listener)?;
        lab.wait_for_listener(5000)?;
        let words = format!("-u TCP:{FAR}:5000 CREATE:{directory}/down");
        impaired.near.tool("socat", &words)?;
        listener.wait(Duration::from_secs(10))?.success()?;
        ensure!(sha256(&lab.file("down"))? == content.sha256, "the download differs");
        let [_, back] = impaired.close()?;
        ensure!(back.lost > 0 && back.delivered > BYTES as u64 / 1460, "{back:?}");
        Ok(())
    }
}
