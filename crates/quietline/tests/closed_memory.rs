//! Checks that the memory of closed connections is released once the stack is idle, without later
//! traffic.
//!
//! The allocator counts every live byte of the process. Both ends of every connection are in this
//! process, each on a stack with its own workers.
//!
//! The only test of its process, because the allocations of another test would be counted, too.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

/// Bytes in live blocks. Relaxed: a sum orders nothing.
static LIVE: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call is passed unchanged to the system's allocator; counting uses only an atomic.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `block` came from `alloc` with this layout, hence from the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[cfg(test)]
mod tests {
    use std::{
        net::SocketAddr,
        sync::{Arc, atomic::Ordering},
        thread,
        time::{Duration, Instant},
    };

    use quietline::{Stack, TcpListener, TcpStream, Wire, WireConfig};

    use super::LIVE;

    /// Number of connections opened and closed again.
    const CONNECTIONS: usize = 10_000;

    /// Bytes that each closed connection may leave, both ends together: zero except for tables that
    /// happen to grow.
    const LEFT_MAX: usize = 16;

    /// Time limit for a loaded machine; the release itself takes a second or two.
    const TIMEOUT: Duration = Duration::from_secs(60);

    fn live() -> usize {
        LIVE.load(Ordering::Relaxed)
    }

    /// Opens and resets `count` connections, `at_once` of them at a time. A reset leaves no
    /// TIME-WAIT socket.
    fn open_and_close(
        client: &Stack,
        listener: &TcpListener,
        to: SocketAddr,
        count: usize,
        at_once: usize,
    ) {
        for _ in 0..count / at_once {
            let ends: Vec<_> = (0..at_once)
                .map(|_| {
                    let stream = TcpStream::connect(client, to).expect("a connection");
                    let accepted = listener.accept().expect("the accepted end").0;
                    stream.set_linger(Some(Duration::ZERO)).expect("an option");
                    // Arms a timer two hours ahead.
                    stream.set_keepalive(true).expect("an option");
                    accepted.set_keepalive(true).expect("an option");
                    (stream, accepted)
                })
                .collect();
            drop(ends);
        }
    }

    #[test]
    fn an_idle_stack_holds_no_memory_of_closed_connections() {
        let (left, right) = Wire::pair(&WireConfig::default()).expect("a wire");
        let build = |wire: Arc<Wire>, address: &str| {
            let builder = Stack::builder().device(wire);
            builder.address(address.parse().expect("a prefix")).build().expect("a stack")
        };
        let (client, server) = (build(left, "10.0.0.1/24"), build(right, "10.0.0.2/24"));
        let to: SocketAddr = "10.0.0.2:80".parse().expect("an address");
        let listener = TcpListener::bind_with_backlog(&server, to, 4096).expect("a free port");
        // Let tables, pools and timer wheels grow to their final sizes.
        open_and_close(&client, &listener, to, CONNECTIONS, CONNECTIONS / 2);
        let begin = Instant::now();
        let mut before = usize::MAX;
        while before > live() {
            before = live();
            thread::sleep(Duration::from_secs(3));
        }
        println!("{before} bytes are live after {:?}", begin.elapsed());

        open_and_close(&client, &listener, to, CONNECTIONS, CONNECTIONS / 2);
        println!("{} bytes more after the second round", live().saturating_sub(before));
        assert_eq!((client.connections(), server.connections()), (0, 0));
        let begin = Instant::now();
        while live() > before + LEFT_MAX * CONNECTIONS && begin.elapsed() < TIMEOUT {
            thread::sleep(Duration::from_millis(100));
        }
        let left = live().saturating_sub(before) / CONNECTIONS;
        println!("{left} bytes per connection after {:?}", begin.elapsed());
        assert!(left <= LEFT_MAX, "{left} bytes of each closed connection are still held");
    }
}
