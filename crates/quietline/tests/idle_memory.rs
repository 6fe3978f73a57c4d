//! Memory of an idle connection, and a check that many idle connections cost no work.
//!
//! The allocator counts every byte of the process, including malloc's overhead. Both ends of every
//! connection are in this process, so the sum is divided by two.
//! `CONNECTIONS=n cargo test -p quietline --test idle_memory -- --nocapture` uses another number of
//! connections and prints the figures.
//!
//! The only test of its process, because the allocations of another test would be counted, too.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

/// Bytes of live blocks, malloc's overhead included. Relaxed: read while no thread allocates.
static LIVE: AtomicUsize = AtomicUsize::new(0);

struct Counting;

/// Returns the size of a block of glibc's malloc: a word in front, a multiple of 16, at least 32. A
/// larger alignment adds to it.
fn chunk(layout: Layout) -> usize {
    let padding = if layout.align() > 16 { layout.align() } else { 0 };
    (layout.size() + padding + 8).next_multiple_of(16).max(32)
}

// SAFETY: every call is passed unchanged to the system's allocator; counting uses only an atomic.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(chunk(layout), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE.fetch_sub(chunk(layout), Ordering::Relaxed);
        // SAFETY: `block` came from `alloc` with this layout, hence from the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[cfg(test)]
mod tests {
    use std::{
        io::IoSlice,
        net::SocketAddr,
        sync::{Arc, atomic::Ordering},
        time::Duration,
    };

    use pkt::Instant;
    use stack::{
        Cx, Memory,
        base::ids::DeviceIndex,
        device::{Wire, WireConfig},
        host::{
            Host,
            config::{DeviceConfig, HostConfig},
        },
        route::fib::RouteSpec,
        socket::{
            Connection, Listener, RequestSocket,
            flows::{Intercept, NewFlow},
        },
    };

    use super::LIVE;

    /// Number of established connections, both ends in this process.
    const CONNECTIONS: usize = 100_000;

    /// Memory budget of a connection's end, in bytes: a goal of the project.
    const BYTES_MAX: usize = 4096;

    /// Number of operations by which two equal exchanges may differ: a timer that expires in only
    /// one of them.
    const COINCIDENCES_MAX: u64 = 4;

    /// Number of connections per listener: a client has 28,232 ports for one destination.
    const PER_LISTENER: usize = 20_000;

    /// Two hosts, a wire, one thread, virtual time.
    struct Pair {
        memory: Memory,
        cx: Cx,
        client: Arc<Host>,
        server: Arc<Host>,
    }

    impl Pair {
        /// With `intercepts`, the server intercepts what the client sends to any address.
        fn new(intercepts: bool) -> Self {
            let memory = Memory::new(64 << 20);
            let mut cx = Cx::replay(&memory, 1);
            cx.now = Instant::from_secs(1000);
            let (left, right) = Wire::pair(&WireConfig::default()).expect("a wire");
            let host = |device: Arc<Wire>, address: &str, config: HostConfig| {
                let addresses = vec![address.parse().expect("a prefix")];
                let devices = vec![DeviceConfig { device, addresses }];
                Host::new(&memory, HostConfig { devices, ..config }).expect("a configuration")
            };
            let gateway = RouteSpec::via(
                "0.0.0.0/0".parse().expect("a prefix"),
                "10.0.0.2".parse().expect("an address"),
            );
            let routed = HostConfig { routes: vec![gateway], ..HostConfig::replay(0) };
            let intercept = Intercept::all().max_pending(20_000).max_pending_per_source(0);
            let intercepts = intercepts.then_some((DeviceIndex(1), intercept));
            let gate = HostConfig {
                intercepts: intercepts.into_iter().collect(),
                ..HostConfig::replay(0)
            };
            let client = host(left, "10.0.0.1/24", routed);
            let server = host(right, "10.0.0.2/24", gate);
            Self { memory, cx, client, server }
        }

        /// Opens `count` connections and appends both ends of each.
        fn open(&mut self, count: usize, ends: &mut Vec<(Arc<Connection>, Arc<Connection>)>) {
            let mut left = count;
            for port in 1000.. {
                if left == 0 {
                    break;
                }
                let to = SocketAddr::new([10, 0, 0, 2].into(), port);
                let listener =
                    Listener::listen(&self.server, &mut self.cx, to, 16).expect("a free port");
                for _ in 0..left.min(PER_LISTENER) {
                    let socket = Connection::connect(&self.client, &mut self.cx, None, to);
                    let accepted = listener.accept().expect("the wire works at once");
                    ends.push((socket.expect("a free port"), accepted));
                }
                left -= left.min(PER_LISTENER);
                listener.close(&self.server, &mut self.cx);
            }
        }

        /// Opens `count` connections to addresses that no host has, whose requests are not
        /// answered.
        fn dial(&mut self, count: usize) -> Vec<(Arc<Connection>, Arc<RequestSocket>)> {
            let mut dials = Vec::with_capacity(count);
            for number in 0..count {
                let last = u8::try_from(number % 200).expect("below 200");
                let to = SocketAddr::new([192, 0, 2, last].into(), 443);
                let dial = Connection::connect(&self.client, &mut self.cx, None, to);
                let flow = self.server.flow_queue().expect("it intercepts").try_next();
                let Ok(NewFlow::Tcp(request)) = flow else { panic!("{flow:?} is no request") };
                dials.push((dial.expect("a free port"), request));
            }
            dials
        }

        /// Advances virtual time and runs expired timers.
        fn pass(&mut self, time: Duration) {
            let end = self.cx.now + time;
            loop {
                for host in [&self.client, &self.server] {
                    let _ = host.poll(&mut self.cx);
                }
                let next = [&self.client, &self.server]
                    .iter()
                    .filter_map(|host| host.next_deadline())
                    .min();
                match next {
                    Some(at) if at <= end => self.cx.now = self.cx.now.max(at),
                    _ => break,
                }
            }
            self.cx.now = end;
            for _ in 0..4 {
                self.memory.rcu.reclaim();
            }
        }

        /// Returns the counters of both hosts for a request and its answer.
        fn exchange(
            &mut self,
            ends: &(Arc<Connection>, Arc<Connection>),
        ) -> Vec<(&'static str, u64)> {
            // The first exchange resolves the neighbors.
            self.ping(ends);
            let before = [self.client.counters(), self.server.counters()];
            self.ping(ends);
            let after = [self.client.counters(), self.server.counters()];
            let counts = after.iter().zip(&before).flat_map(|(after, before)| {
                let since = after.since(before);
                since.iter().collect::<Vec<_>>()
            });
            counts.collect()
        }

        /// Sends a request and its answer.
        fn ping(&mut self, (client, server): &(Arc<Connection>, Arc<Connection>)) {
            let mut buf = [0; 64];
            let sent = client.send(&self.client, &mut self.cx, &[IoSlice::new(b"ping")]);
            assert_eq!(sent, Ok(4));
            self.pass(Duration::from_millis(1));
            let read = server.recv(&self.server, &mut self.cx, &mut buf, false);
            assert_eq!(read, Ok(4));
            let sent = server.send(&self.server, &mut self.cx, &[IoSlice::new(b"pong")]);
            assert_eq!(sent, Ok(4));
            self.pass(Duration::from_secs(2));
            let read = client.recv(&self.client, &mut self.cx, &mut buf, false);
            assert_eq!(read, Ok(4));
        }
    }

    fn live() -> usize {
        LIVE.load(Ordering::Relaxed)
    }

    #[test]
    fn an_idle_connection_uses_at_most_four_kilobytes_and_no_cpu_time() {
        let count = std::env::var("CONNECTIONS")
            .map_or(CONNECTIONS, |count| count.parse().expect("CONNECTIONS is a number"));
        let mut pair = Pair::new(false);
        let mut ends = Vec::with_capacity(count + 1);
        // Create everything that is created once: pools, tables, the neighbors of the first
        // connection.
        pair.open(1, &mut ends);
        pair.pass(Duration::from_secs(10));
        pair.pass(Duration::from_secs(600));
        let alone = pair.exchange(&ends[0]);
        let (before, packets) = (live(), pair.memory.packets.balance());

        pair.open(count, &mut ends);
        // The timers of the handshakes expire, and so do the neighbor entries.
        pair.pass(Duration::from_secs(600));
        let each = (live() - before) / (2 * count);
        assert_eq!(pair.client.established_len(), count + 1);
        assert_eq!(pair.server.established_len(), count + 1);
        println!(
            "{count} established connections, {each} bytes for each end, of which {} are its Tcb",
            size_of::<tcp::Tcb>()
        );
        assert!(each <= BYTES_MAX, "{each} bytes for an idle connection");
        assert_eq!(pair.memory.packets.balance(), packets, "an idle connection holds no packet");

        // No timer is armed for idle connections, and no work is pending.
        assert_eq!(pair.client.next_deadline(), None);
        assert_eq!(pair.server.next_deadline(), None);
        let crowded = pair.exchange(&ends[0]);
        let grown: Vec<_> = alone
            .iter()
            .zip(&crowded)
            .filter(|(alone, crowded)| crowded.1 > alone.1 + COINCIDENCES_MAX)
            .collect();
        assert!(grown.is_empty(), "work grows with idle connections: {grown:?}");

        let (client, server) = (Arc::clone(&pair.client), Arc::clone(&pair.server));
        for (near, far) in ends.drain(1..) {
            near.abort(&client, &mut pair.cx);
            far.close(&server, &mut pair.cx);
        }
        pair.pass(Duration::from_secs(600));
        assert_eq!((client.established_len(), server.established_len()), (1, 1));
        let left = live().saturating_sub(before) / (2 * count);
        assert!(left < each / 4, "{left} bytes of each connection remain after its end");
        drop((pair, ends, client, server));
        intercepted_flows_use_no_more();
    }

    /// 10,000 flows to any address, first unanswered, then established and idle.
    fn intercepted_flows_use_no_more() {
        const FLOWS: usize = 10_000;
        /// Memory budget of a request: it holds no control block.
        const REQUEST_BYTES_MAX: usize = 1024;
        let mut pair = Pair::new(true);
        let first = pair.dial(1);
        pair.pass(Duration::from_millis(1));
        let before = live();
        let dials = pair.dial(FLOWS);
        // The control block of the client's end is part of the sum.
        let pending = (live() - before) / FLOWS;
        assert_eq!(pair.server.flows_pending(), FLOWS + 1);
        let server = Arc::clone(&pair.server);
        let ends: Vec<_> = dials
            .into_iter()
            .map(|(near, request)| {
                request.answer(&server, &mut pair.cx).expect("the client waits");
                (near, request.take().expect("the wire works at once"))
            })
            .collect();
        pair.pass(Duration::from_secs(600));
        let each = (live() - before) / (2 * FLOWS);
        println!(
            "{FLOWS} intercepted flows: {each} bytes for each end; {} for a request",
            pending.saturating_sub(each)
        );
        assert_eq!(pair.server.established_len(), FLOWS);
        assert!(each <= BYTES_MAX, "{each} bytes for an idle intercepted connection");
        assert!(pending <= BYTES_MAX + REQUEST_BYTES_MAX, "{pending} bytes for a pending dial");
        assert_eq!((server.next_deadline(), server.flows_pending()), (None, 0));
        drop((ends, first));
    }
}
