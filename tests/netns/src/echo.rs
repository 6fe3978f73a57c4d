//! A client of an echo server.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

/// Time limit of one step.
const LIMIT: Duration = Duration::from_secs(20);

/// Exchanges `rounds` messages of a few kB on each of `connections` concurrent connections, in
/// turn, so that their packets mix. Each must receive its own bytes back.
pub fn talk(address: SocketAddr, connections: usize, rounds: usize) -> Result<()> {
    let open = |number| -> Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&address, LIMIT)
            .with_context(|| format!("connection {number}"))?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    let mut connections = (0..connections).map(open).collect::<Result<Vec<_>>>()?;
    for round in 0..rounds {
        let message = |number: usize| format!("{number} {round} ").repeat(700).into_bytes();
        for (number, stream) in connections.iter_mut().enumerate() {
            stream.write_all(&message(number)).context("sending")?;
        }
        for (number, stream) in connections.iter_mut().enumerate() {
            let expected = message(number);
            let mut answer = vec![0; expected.len()];
            stream.read_exact(&mut answer).context("receiving")?;
            ensure!(answer == expected, "connection {number} received the bytes of another");
        }
    }
    Ok(())
}
