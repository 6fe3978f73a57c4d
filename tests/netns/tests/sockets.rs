//! Sockets of a stack in this process and sockets of the kernel, as clients and servers of each
//! other: TCP with one listener for both IP versions on either side, UDP up to the largest
//! datagram, and ping sockets of the stack.
//!
//! Not here: programs (`peers.rs`, `udp.rs`), loss (`impaired.rs`).

use std::io::{self, ErrorKind, Read, Write};
use std::net::{
    SocketAddr, TcpListener as KernelListener, TcpStream as KernelStream, UdpSocket as KernelUdp,
};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use netns_tests::{AnyLink, Kind, Version, host};
use quietline::{PingSocket, Stack, TcpListener, TcpStream, UdpSocket};

/// Port of every server.
const PORT: u16 = 5000;

/// Port on which no server is.
const CLOSED: u16 = 5999;

/// Time limit of one call.
const LIMIT: Duration = Duration::from_secs(10);

/// Bytes of one exchange over TCP: a few segments of each version.
const MESSAGE: [u8; 5000] = [0x71; 5000];

fn end(address: &str, port: u16) -> Result<SocketAddr> {
    format!("{}:{port}", host(address)).parse().with_context(|| format!("{address}:{port}"))
}

/// Returns an IPv4 address as sockets of both versions show it.
fn mapped(address: &str) -> String {
    format!("::ffff:{address}")
}

/// Repeats a nonblocking call until it has a result, at most for the time limit.
fn within_limit<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let deadline = Instant::now() + LIMIT;
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(2));
            }
            result => return result,
        }
    }
}

/// Sends the message and reads it back.
fn exchange(mut stream: impl Read + Write) -> Result<()> {
    stream.write_all(&MESSAGE).context("sending")?;
    let mut answer = [0; MESSAGE.len()];
    stream.read_exact(&mut answer).context("receiving")?;
    ensure!(answer == MESSAGE, "other bytes came back");
    Ok(())
}

/// Reads the message and sends it back.
fn echo(mut stream: impl Read + Write) -> Result<()> {
    let mut message = [0; MESSAGE.len()];
    stream.read_exact(&mut message).context("receiving")?;
    stream.write_all(&message).context("echoing")?;
    Ok(())
}

/// Kernel clients of both versions reach one listener of the stack, which sees the IPv4 client by
/// its v4-mapped address.
fn kernel_clients(link: &AnyLink, stack: &Stack) -> Result<()> {
    let listener = TcpListener::bind(stack, ("::", PORT))?;
    listener.set_nonblocking(true)?;
    for version in Version::ALL {
        let to = end(version.stack(), PORT)?;
        let peer = thread::scope(|scope| {
            let client = scope.spawn(|| {
                link.lab.namespace.enter(|| {
                    let stream = KernelStream::connect_timeout(&to, LIMIT).context("connecting")?;
                    stream.set_read_timeout(Some(LIMIT))?;
                    exchange(stream)
                })
            });
            let (stream, peer) = within_limit(|| listener.accept())?;
            stream.set_nonblocking(false)?;
            stream.set_read_timeout(Some(LIMIT))?;
            echo(stream)?;
            client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            anyhow::Ok(peer)
        })?;
        let expected = match version {
            Version::V4 => mapped(version.kernel()),
            Version::V6 => version.kernel().to_owned(),
        };
        ensure!(peer.ip() == expected.parse::<std::net::IpAddr>()?, "{version:?}: {peer}");
    }
    Ok(())
}

/// Sockets of the stack reach one listener of the kernel by IPv4, by IPv6, and by a v4-mapped
/// address. The kernel sees an IPv4 client in the first and the last case.
fn kernel_server(link: &AnyLink, stack: &Stack) -> Result<()> {
    let listener = link.lab.namespace.enter(|| Ok(KernelListener::bind(("::", PORT))?))?;
    listener.set_nonblocking(true)?;
    let [v4, v6] = Version::ALL;
    for (to, seen) in [
        (v4.kernel().to_owned(), mapped(v4.stack())),
        (v6.kernel().to_owned(), v6.stack().to_owned()),
        (mapped(v4.kernel()), mapped(v4.stack())),
    ] {
        let peer = thread::scope(|scope| {
            let server = scope.spawn(|| {
                let (stream, peer) = within_limit(|| listener.accept())?;
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(LIMIT))?;
                echo(stream)?;
                anyhow::Ok(peer)
            });
            let stream = TcpStream::connect_timeout(stack, end(&to, PORT)?, LIMIT)?;
            stream.set_read_timeout(Some(LIMIT))?;
            ensure!(stream.peer_addr()? == end(&to, PORT)?, "the peer is {}", stream.peer_addr()?);
            exchange(stream)?;
            server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
        .with_context(|| format!("to {to}"))?;
        ensure!(peer.ip() == seen.parse::<std::net::IpAddr>()?, "to {to}: the kernel sees {peer}");
    }
    let refused = TcpStream::connect_timeout(stack, end(v6.kernel(), CLOSED)?, LIMIT);
    let error = refused.err().context("a closed port accepts")?;
    ensure!(error.kind() == ErrorKind::ConnectionRefused, "{error}");
    Ok(())
}

/// Returns payloads of several sizes; the last two do not fit into one packet.
fn payloads(version: Version) -> impl Iterator<Item = Vec<u8>> {
    let sizes = [0, 1, 100, version.payload_max(), 5000, version.datagram_max()];
    sizes.into_iter().map(|len| (0..=255).cycle().take(len as usize).collect())
}

/// Datagrams of the stack that have more than one packet, in each direction, and the buffer of all.
const LONG: u64 = 4;
const BUFFER: usize = 70_000;

/// The kernel echoes datagrams of every size; a closed port of the kernel is reported to the
/// socket.
fn kernel_datagrams(link: &AnyLink, stack: &Stack, version: Version) -> Result<()> {
    let server = link.lab.namespace.enter(|| Ok(KernelUdp::bind(end(version.kernel(), PORT)?)?))?;
    server.set_read_timeout(Some(LIMIT))?;
    let socket = UdpSocket::bind(stack, end(version.stack(), 0)?)?;
    socket.set_read_timeout(Some(LIMIT))?;
    let mut buffer = vec![0; BUFFER];
    for sent in payloads(version) {
        let len = sent.len();
        socket.send_to(&sent, end(version.kernel(), PORT)?)?;
        let received = server.recv_from(&mut buffer);
        let (count, peer) = received.with_context(|| format!("{len} bytes to the kernel"))?;
        ensure!(peer == socket.local_addr()?, "the kernel sees {peer}");
        ensure!(buffer[..count] == sent, "the kernel received {count} other bytes of {len}");
        server.send_to(&buffer[..count], peer)?;
        let received = socket.recv_from(&mut buffer);
        let (count, peer) = received.with_context(|| format!("{len} bytes to the stack"))?;
        ensure!(peer == end(version.kernel(), PORT)?, "the stack sees {peer}");
        ensure!(buffer[..count] == sent, "the stack received {count} other bytes of {len}");
    }
    socket.connect(end(version.kernel(), CLOSED)?)?;
    socket.send(b"to a closed port")?;
    let error = socket.recv(&mut buffer).err().context("a datagram from a closed port")?;
    ensure!(error.kind() == ErrorKind::ConnectionRefused, "{error}");
    Ok(())
}

/// The stack echoes datagrams of a socket of the kernel.
fn stack_datagrams(link: &AnyLink, stack: &Stack, version: Version) -> Result<()> {
    let server = UdpSocket::bind(stack, end(version.stack(), PORT)?)?;
    server.set_read_timeout(Some(LIMIT))?;
    let client = link.lab.namespace.enter(|| {
        let client = KernelUdp::bind(end(version.kernel(), 0)?)?;
        client.connect(end(version.stack(), PORT)?)?;
        Ok(client)
    })?;
    client.set_read_timeout(Some(LIMIT))?;
    let mut buffer = vec![0; BUFFER];
    for sent in payloads(version) {
        let len = sent.len();
        client.send(&sent)?;
        let received = server.recv_from(&mut buffer);
        let (count, peer) = received.with_context(|| format!("{len} bytes to the stack"))?;
        ensure!(peer == client.local_addr()?, "the stack sees {peer}");
        ensure!(buffer[..count] == sent, "the stack received {count} other bytes of {len}");
        server.send_to(&buffer[..count], peer)?;
        let count = client.recv(&mut buffer).with_context(|| format!("{len} bytes back"))?;
        ensure!(buffer[..count] == sent, "the kernel received {count} other bytes of {len}");
    }
    Ok(())
}

/// The kernel answers the echo requests of a ping socket of the stack.
fn pings(stack: &Stack, version: Version) -> Result<()> {
    let socket = PingSocket::open(stack, version.stack().parse()?)?;
    socket.set_read_timeout(Some(LIMIT))?;
    let (kernel, reply) = (version.kernel().parse()?, if version == Version::V4 { 0 } else { 129 });
    let mut buffer = vec![0; BUFFER];
    for (sequence, len) in (1_u16..).zip([0, 56, version.payload_max()]) {
        let data = vec![0x70; len as usize];
        socket.send_echo(kernel, sequence, &data)?;
        let received = socket.recv_from(&mut buffer);
        let (count, peer) = received.with_context(|| format!("{len} bytes"))?;
        ensure!(peer == kernel && buffer[0] == reply, "{peer} answers with type {}", buffer[0]);
        ensure!(buffer[6..8] == sequence.to_be_bytes(), "the answer is to another request");
        ensure!(buffer[8..count] == data, "{count} other bytes of {len} came back");
    }
    Ok(())
}

/// Fails unless long datagrams have travelled in fragments in both directions.
fn ensure_fragments(stack: &Stack, version: Version) -> Result<()> {
    let counters = stack.counters();
    for name in ["FragOKs", "ReasmOKs"].map(|name| version.counter(name)) {
        let count = counters.get(&name).with_context(|| format!("no counter {name}"))?;
        ensure!(count == LONG, "{name}: {count} of {LONG}");
    }
    Ok(())
}

fn talk_over(test: &str, kind: Kind) -> Result<()> {
    let Some(link) = AnyLink::open(test, &[], kind)? else { return Ok(()) };
    let stack = link.stack()?;
    kernel_clients(&link, &stack).context("kernel clients")?;
    kernel_server(&link, &stack).context("kernel server")?;
    for version in Version::ALL {
        let at = || format!("{version:?}");
        kernel_datagrams(&link, &stack, version).context("the kernel echoes").with_context(at)?;
        stack_datagrams(&link, &stack, version).context("the stack echoes").with_context(at)?;
        pings(&stack, version).context("pings").with_context(at)?;
        ensure_fragments(&stack, version)?;
    }
    stack.shutdown();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_tap_are_clients_and_servers() -> Result<()> {
        talk_over("both_ends_of_a_tap_are_clients_and_servers", Kind::Tap)
    }

    #[test]
    fn both_ends_of_a_tun_are_clients_and_servers() -> Result<()> {
        talk_over("both_ends_of_a_tun_are_clients_and_servers", Kind::Tun)
    }

    #[test]
    fn both_ends_of_a_packet_socket_are_clients_and_servers() -> Result<()> {
        talk_over("both_ends_of_a_packet_socket_are_clients_and_servers", Kind::AfPacket)
    }

    #[test]
    fn both_ends_of_an_xdp_socket_are_clients_and_servers() -> Result<()> {
        talk_over("both_ends_of_an_xdp_socket_are_clients_and_servers", Kind::AfXdp)
    }
}
