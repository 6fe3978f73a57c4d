//! Sockets of a stack in this process and sockets of the kernel, as clients and servers of each
//! other: TCP with one listener for both IP versions on either side, UDP with the kernel as the
//! server.
//!
//! Not here: programs (`peers.rs`, `udp.rs`).

use std::io::{self, ErrorKind, Read, Write};
use std::net::{
    SocketAddr, TcpListener as KernelListener, TcpStream as KernelStream, UdpSocket as KernelUdp,
};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use netns_tests::{AnyLink, Kind, Version, host};
use quietline::{Stack, TcpListener, TcpStream, UdpSocket};

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

/// The kernel echoes datagrams of every size up to the MTU; a closed port of the kernel is reported
/// to the socket.
fn kernel_datagrams(link: &AnyLink, stack: &Stack, version: Version) -> Result<()> {
    let server = link.lab.namespace.enter(|| Ok(KernelUdp::bind(end(version.kernel(), PORT)?)?))?;
    server.set_read_timeout(Some(LIMIT))?;
    let socket = UdpSocket::bind(stack, end(version.stack(), 0)?)?;
    socket.set_read_timeout(Some(LIMIT))?;
    let mut buffer = [0; 2000];
    for len in [0, 1, 100, version.payload_max() as usize] {
        let sent: Vec<u8> = (0..=255).cycle().take(len).collect();
        socket.send_to(&sent, end(version.kernel(), PORT)?)?;
        let (count, peer) = server.recv_from(&mut buffer).context("the kernel's side")?;
        ensure!(peer == socket.local_addr()?, "the kernel sees {peer}");
        ensure!(buffer[..count] == sent, "the kernel received {count} other bytes of {len}");
        server.send_to(&buffer[..count], peer)?;
        let (count, peer) = socket.recv_from(&mut buffer).context("the stack's side")?;
        ensure!(peer == end(version.kernel(), PORT)?, "the stack sees {peer}");
        ensure!(buffer[..count] == sent, "the stack received {count} other bytes of {len}");
    }
    socket.connect(end(version.kernel(), CLOSED)?)?;
    socket.send(b"to a closed port")?;
    let error = socket.recv(&mut buffer).err().context("a datagram from a closed port")?;
    ensure!(error.kind() == ErrorKind::ConnectionRefused, "{error}");
    Ok(())
}

fn talk_over(test: &str, kind: Kind) -> Result<()> {
    let Some(link) = AnyLink::open(test, &[], kind)? else { return Ok(()) };
    let stack = link.stack()?;
    kernel_clients(&link, &stack).context("kernel clients")?;
    kernel_server(&link, &stack).context("kernel server")?;
    kernel_datagrams(&link, &stack, Version::V4).context("datagrams")?;
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
