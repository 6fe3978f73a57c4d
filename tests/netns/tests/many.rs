//! Many connections: one thousand open at once, each with its own bytes.
//!
//! The clients are kernel sockets of this process, opened on threads inside the namespace.
//!
//! Not here: connections per second.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use netns_tests::{Lab, STACK};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const CONNECTIONS: usize = 1000;
const THREADS: usize = 8;
const LIMIT: Duration = Duration::from_secs(20);

/// Makes room for all descriptors; a soft limit of 1024 is common.
fn raise_descriptor_limit() -> Result<()> {
    let old = getrlimit(Resource::Nofile);
    let wanted = old.maximum.map_or(65_536, |most| most.min(65_536));
    let new = Rlimit { current: Some(wanted), maximum: old.maximum };
    setrlimit(Resource::Nofile, new).context("raising the limit of descriptors")
}

/// Opens this thread's share, waits for the other threads, then exchanges messages on every
/// connection while all are open.
fn share(address: SocketAddr, first: usize, open: &AtomicUsize) -> Result<()> {
    let connections: Result<Vec<TcpStream>> = (0..CONNECTIONS / THREADS)
        .map(|number| {
            let stream = TcpStream::connect_timeout(&address, LIMIT)
                .with_context(|| format!("connection {}", first + number))?;
            stream.set_read_timeout(Some(LIMIT))?;
            stream.set_write_timeout(Some(LIMIT))?;
            Ok(stream)
        })
        .collect();
    let mut connections = connections?;
    open.fetch_add(connections.len(), Ordering::Relaxed);
    // The wait is bounded, because another thread may have failed.
    let begin = Instant::now();
    while open.load(Ordering::Relaxed) < CONNECTIONS {
        ensure!(begin.elapsed() < LIMIT, "others have not opened theirs");
        sleep(Duration::from_millis(1));
    }
    for round in 0..3_u8 {
        for (number, stream) in connections.iter_mut().enumerate() {
            stream.write_all(&message(first + number, round)).context("sending")?;
        }
        for (number, stream) in connections.iter_mut().enumerate() {
            let expected = message(first + number, round);
            let mut answer = vec![0; expected.len()];
            stream.read_exact(&mut answer).context("receiving")?;
            ensure!(
                answer == expected,
                "connection {} received the bytes of another",
                first + number
            );
        }
    }
    Ok(())
}

/// Returns bytes that are unique to this connection and round.
fn message(connection: usize, round: u8) -> Vec<u8> {
    format!("connection {connection:04} round {round} ").repeat(40).into_bytes()
}

#[cfg(test)]
mod tests {
    use netns_tests::Link;

    use super::*;

    fn one_thousand(test: &str, link: Link) -> Result<()> {
        let Some(lab) = Lab::open(test, &[])? else { return Ok(()) };
        raise_descriptor_limit()?;
        let mut server = lab.serve(&link, &["echo", "--port", "7"])?;
        let address: SocketAddr = format!("{STACK}:7").parse()?;
        let open = AtomicUsize::new(0);
        std::thread::scope(|scope| -> Result<()> {
            let clients: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let first = thread * CONNECTIONS / THREADS;
                    let (namespace, open) = (&lab.namespace, &open);
                    scope.spawn(move || namespace.enter(|| share(address, first, open)))
                })
                .collect();
            for client in clients {
                client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            Ok(())
        })?;
        // The server still accepts another connection.
        lab.namespace.enter(|| {
            TcpStream::connect_timeout(&address, LIMIT).map(drop).context("after the thousand")
        })?;
        server.assert_alive()?;
        server.interrupt()?;
        Ok(())
    }

    #[test]
    fn one_thousand_connections_get_their_own_bytes() -> Result<()> {
        one_thousand("one_thousand_connections_get_their_own_bytes", Link::default())
    }

    #[test]
    fn one_thousand_connections_on_two_cores_get_their_own_bytes() -> Result<()> {
        let link = Link { cores: 2, ..Link::default() };
        one_thousand("one_thousand_connections_on_two_cores_get_their_own_bytes", link)
    }
}
