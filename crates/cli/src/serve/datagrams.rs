//! The datagram services: echo (RFC 862) and discard (RFC 863) over UDP.
//!
//! One thread serves all peers: a datagram is answered before the next one is received.

use std::{
    io::{self, ErrorKind},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use super::{Server, handler::Handler};
use crate::{endpoint::Datagrams, signal::Waker};

/// Largest datagram.
const DATAGRAM_BYTES_MAX: usize = 65_535;

/// Starts the thread that serves `socket`. It ends with a permanent error of the socket, which it
/// stores in `broken` before it wakes the main thread.
pub(super) fn start<S: Datagrams>(
    socket: S,
    server: Arc<Server>,
    broken: Arc<Mutex<Option<io::Error>>>,
    waker: Waker,
) -> io::Result<()> {
    let serve = move || {
        let error = serve(&socket, &server);
        *broken.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        waker.wake();
    };
    thread::Builder::new().name("datagrams".to_owned()).spawn(serve)?;
    Ok(())
}

/// Serves until the socket fails; returns its error.
fn serve(socket: &impl Datagrams, server: &Server) -> io::Error {
    let echoes = matches!(server.handler, Handler::UdpEcho);
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let (len, peer) = match socket.receive_from(&mut buffer) {
            Ok(received) => received,
            // An ICMP error about an earlier answer.
            Err(error) if is_about_one_peer(&error) => continue,
            Err(error) => return error,
        };
        let mut sent = 0;
        if echoes {
            // An answer that cannot be sent is lost, as any datagram may be.
            sent = socket.send_to(&buffer[..len], peer).unwrap_or(0);
        }
        server.totals.datagram(len, sent);
    }
}

fn is_about_one_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable | ErrorKind::Interrupted
    )
}
