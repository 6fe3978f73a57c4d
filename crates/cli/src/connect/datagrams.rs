//! `quietline connect --udp`: sends stdin as datagrams, and copies received datagrams to stdout.
//!
//! A read of stdin becomes one datagram of at most [`DATAGRAM_BYTES`], so that a line typed at a
//! terminal is one datagram. UDP has no end of a stream: after the end of stdin, the command ends
//! when no datagram has arrived for [`QUIET`] to twice that time. An ICMP error about a datagram,
//! such as a closed port, ends the command.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{self, TryRecvError},
    },
    thread,
    time::Duration,
};

use anyhow::anyhow;

use super::Moved;
use crate::{
    endpoint::{Datagrams, Host},
    failure::Failure,
    output,
};

/// Largest datagram sent: it fits the smallest MTU of IPv6 with both headers.
const DATAGRAM_BYTES: usize = 1232;

/// Largest datagram received.
const RECEIVE_BYTES: usize = 65_535;

/// Time without a datagram after which the end of stdin is looked at.
const QUIET: Duration = Duration::from_secs(1);

/// Opens a socket that is connected to the first address with a route.
pub(super) fn connect_to_any<H: Host>(
    host: &H,
    remotes: &[SocketAddr],
    moved: &Moved,
) -> Result<H::Datagrams, Failure> {
    let mut failure = anyhow!("the host has no address");
    for &remote in remotes {
        let any = match remote {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let opened = host.bind_datagrams(SocketAddr::new(any, 0)).and_then(|socket| {
            socket.connect(remote)?;
            Ok(socket)
        });
        match opened {
            Ok(socket) => {
                let _ = moved.remote.set(remote);
                return Ok(socket);
            }
            Err(error) => {
                failure = anyhow::Error::new(error).context(format!("cannot send to {remote}"));
            }
        }
    }
    Err(failure.into())
}

/// Moves datagrams both ways.
pub(super) fn exchange<S: Datagrams>(socket: S, moved: &Arc<Moved>) -> Result<(), Failure> {
    socket.set_read_timeout(Some(QUIET))?;
    let socket = Arc::new(socket);
    let (done, sending) = mpsc::channel();
    {
        let (socket, moved) = (Arc::clone(&socket), Arc::clone(moved));
        thread::Builder::new().name("sender".to_owned()).spawn(move || {
            // The channel is closed if the receiver has already ended the command.
            let _ = done.send(send(&*socket, &moved));
        })?;
    }
    let mut stdout = io::stdout().lock();
    let mut buffer = vec![0; RECEIVE_BYTES];
    let mut stdin_ended = false;
    loop {
        match socket.receive(&mut buffer) {
            Ok(count) => {
                moved.received.fetch_add(count as u64, Ordering::Relaxed);
                let written = stdout.write_all(&buffer[..count]).and_then(|()| stdout.flush());
                output::reader_gone(written)?;
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if stdin_ended {
                    return Ok(());
                }
                stdin_ended = match sending.try_recv() {
                    Ok(sent) => {
                        sent.map_err(|error| failed(error, "cannot send a datagram"))?;
                        true
                    }
                    Err(TryRecvError::Disconnected) => true,
                    Err(TryRecvError::Empty) => false,
                };
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error, "the peer does not receive")),
        }
    }
}

fn failed(error: io::Error, context: &'static str) -> Failure {
    anyhow::Error::new(error).context(context).into()
}

/// Sends stdin until it ends.
fn send(socket: &impl Datagrams, moved: &Moved) -> io::Result<()> {
    let mut stdin = io::stdin().lock();
    let mut buffer = vec![0; DATAGRAM_BYTES];
    loop {
        match stdin.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                let sent = socket.send(&buffer[..count])?;
                moved.sent.fetch_add(sent as u64, Ordering::Relaxed);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
