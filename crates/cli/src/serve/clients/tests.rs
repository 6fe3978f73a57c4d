use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::atomic::{AtomicUsize, Ordering},
};

use super::*;
use crate::endpoint::{KernelHost, Stream as _};

/// Time limit of every wait in these tests: far more than any of them needs.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Threads inside `serve` and their maximum; connections that have ended, and connections that
/// expired.
#[derive(Debug, Default)]
struct Seen {
    serving: AtomicUsize,
    serving_max: AtomicUsize,
    ended: AtomicUsize,
    late: AtomicUsize,
}

/// Echoes received bytes at once. `wait` is the time limit for the next ones.
struct Echo {
    stream: TcpStream,
    wait: Duration,
    seen: Arc<Seen>,
}

impl Client for Echo {
    type Stream = TcpStream;

    fn stream(&self) -> &TcpStream {
        &self.stream
    }

    fn serve(&mut self) -> Option<Instant> {
        let serving = self.seen.serving.fetch_add(1, Ordering::SeqCst) + 1;
        self.seen.serving_max.fetch_max(serving, Ordering::SeqCst);
        let mut buffer = [0; 16];
        let goes_on = match self.stream.try_read(&mut buffer) {
            Ok(0) => false,
            Ok(count) => self.stream.write_all(&buffer[..count]).is_ok(),
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        self.seen.serving.fetch_sub(1, Ordering::SeqCst);
        goes_on.then(|| Instant::now() + self.wait)
    }

    fn expire(&mut self) {
        self.seen.late.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.seen.ended.fetch_add(1, Ordering::SeqCst);
    }
}

struct Server {
    listener: TcpListener,
    clients: Clients<Echo, <KernelHost as Host>::Watch>,
    seen: Arc<Seen>,
}

impl Server {
    fn new(connections_max: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let clients = Clients::new(&KernelHost, connections_max).expect("a thread");
        Self { listener, clients, seen: Arc::default() }
    }

    fn connect(&self, wait: Duration) -> TcpStream {
        let stream = TcpStream::connect(self.listener.local_addr().expect("an address"));
        let accepted = self.listener.accept().expect("a connection").0;
        let client = Echo { stream: accepted, wait, seen: Arc::clone(&self.seen) };
        self.clients.submit(client, Instant::now() + wait);
        stream.expect("a connection")
    }

    fn threads(&self) -> usize {
        self.clients.shared.lock().threads
    }
}

fn ask(stream: &mut TcpStream) {
    let mut answer = [0; 2];
    stream.set_read_timeout(Some(WAIT_MAX)).expect("an option");
    stream.write_all(b"hi").expect("written");
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"hi");
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < WAIT_MAX, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn idle_connections_hold_no_threads() {
    let server = Server::new(1000);
    let mut streams: Vec<_> = (0..200).map(|_| server.connect(WAIT_MAX)).collect();
    assert_eq!(server.threads(), 0, "no data has arrived");
    for _ in 0..3 {
        streams.iter_mut().for_each(ask);
    }
    let most = server.seen.serving_max.load(Ordering::SeqCst);
    // A thread that is descheduled after its response may still be counted when the next exchange
    // begins.
    assert!(most <= 20, "one exchange at a time needs no {most} threads");
    assert!(server.threads() <= 20, "{} threads for one exchange at a time", server.threads());
    drop(streams);
    // A client is counted as ended when it is dropped, and frees its slot after that.
    wait_until("connections end with their peers", || {
        server.clients.shared.lock().connections == 0
    });
    assert_eq!(server.seen.ended.load(Ordering::SeqCst), 200);
}

#[test]
fn silent_connections_end_at_their_deadline() {
    let server = Server::new(10);
    let mut silent = server.connect(Duration::from_millis(50));
    let mut other = server.connect(WAIT_MAX);
    silent.set_read_timeout(Some(WAIT_MAX)).expect("an option");
    assert_eq!(silent.read(&mut [0; 1]).expect("the end"), 0);
    assert_eq!(server.seen.late.load(Ordering::SeqCst), 1);
    ask(&mut other);
}

#[test]
fn connections_beyond_the_limit_are_not_taken() {
    let server = Server::new(2);
    let first = server.connect(WAIT_MAX);
    let mut second = server.connect(WAIT_MAX);
    thread::scope(|scope| {
        let third = scope.spawn(|| server.connect(WAIT_MAX));
        ask(&mut second);
        assert_eq!(server.clients.shared.lock().connections, 2);
        drop(first);
        ask(&mut third.join().expect("the slot of the first"));
    });
}
