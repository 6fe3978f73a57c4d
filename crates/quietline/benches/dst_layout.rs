//! Requests and responses over loopback between two threads, for each layout of the dst entry.
//!
//! `cargo bench -p quietline --bench dst_layout [-- --smoke]`. One thread sends a request on each
//! of its connections and then reads the answers; the other answers every request that it finds.
//! Both spin, so that no wake hides the cost of a packet. If `net.quietline.dst_ref` counts
//! references, each packet holds its entry from the sending thread to the receiving thread, which
//! also checks the entry: the cache line of the count moves with every packet, and with *packed*
//! the checked fields are on the same line (mechanisms of `dst_layout`: docs/sysctl.md).
//!
//! The arms run in turn, each round beginning with another arm, and each time on a new stack: the
//! placement of its memory makes as much of a difference as the layout. No other program may run on
//! the two cores meanwhile (`chrt -f 5` ensures that for the twelve seconds of the run). The bench
//! prints the median time per request, and the ratio to *packed* with the same counting, round by
//! round, with its quartiles. A ratio of 1 or more: this layout is not slower.

use std::{
    io::{ErrorKind, Read, Write},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use quietline::{Stack, TcpListener, TcpStream};

/// Number of rounds, each of which runs every arm once.
const ROUNDS: usize = 24;

const COUNTINGS: [&str; 4] = ["cas_inc_not_zero", "rcuref", "sharded", "noref"];
const LAYOUTS: [&str; 3] = ["packed", "padded", "filled"];

/// One stack with connections to itself.
struct Arm {
    /// Both ends of each connection.
    clients: Vec<TcpStream>,
    servers: Vec<TcpStream>,
    _stack: Stack,
}

impl Arm {
    fn new(counting: &str, layout: &str, connections: usize) -> Self {
        let stack = Stack::builder()
            .cores(2)
            .manual()
            .sysctl("net.quietline.dst_ref", counting)
            .sysctl("net.quietline.dst_layout", layout)
            // Otherwise no packet reads what the layout places.
            .sysctl("net.quietline.dst_check", "entry")
            .build()
            .expect("a valid stack");
        let listener = TcpListener::bind(&stack, "127.0.0.1:0").expect("a port");
        let to = listener.local_addr().expect("bound");
        let connect = |_| {
            let client = TcpStream::connect(&stack, to).expect("a connection");
            let (server, _) = listener.accept().expect("a connection");
            for stream in [&client, &server] {
                stream.set_nodelay(true).unwrap();
                stream.set_nonblocking(true).unwrap();
            }
            (client, server)
        };
        let (clients, servers) = (0..connections).map(connect).unzip();
        Self { clients, servers, _stack: stack }
    }

    /// Returns the nanoseconds per request.
    fn run(&mut self, time: Duration) -> f64 {
        let Self { clients, servers, .. } = self;
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let answering = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for server in &mut *servers {
                        if take_byte(server) {
                            server.write_all(&[2]).expect("room for a byte");
                        }
                    }
                }
            });
            let begin = Instant::now();
            let mut requests = 0u32;
            while begin.elapsed() < time {
                for client in &mut *clients {
                    client.write_all(&[1]).expect("room for a byte");
                }
                for client in &mut *clients {
                    while !take_byte(client) {
                        std::hint::spin_loop();
                    }
                    requests += 1;
                }
            }
            let each = begin.elapsed().as_nanos() as f64 / f64::from(requests);
            stop.store(true, Ordering::Relaxed);
            answering.join().expect("no panic");
            each
        })
    }
}

/// Reads one byte. Returns whether there was one.
fn take_byte(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(read) => {
            assert_eq!(read, 1, "the stream is open");
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            false
        }
    }
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}

fn main() {
    let smoke = std::env::args().any(|arg| arg == "--smoke" || arg == "--test");
    let (rounds, time) = if smoke { (1, 5) } else { (ROUNDS, 25) };
    let arms: Vec<_> = COUNTINGS
        .into_iter()
        .flat_map(|counting| LAYOUTS.map(|layout| (counting, layout)))
        .collect();
    for connections in [1, 16] {
        let mut results = vec![Vec::new(); arms.len()];
        for round in 0..rounds {
            for turn in 0..arms.len() {
                let index = (round + turn) % arms.len();
                let (counting, layout) = arms[index];
                let mut arm = Arm::new(counting, layout, connections);
                results[index].push(arm.run(Duration::from_millis(time)));
            }
        }
        println!("{connections:>3} connections {:>17} {:>22}", "ns per request", "packed / this");
        for (index, (counting, layout)) in arms.iter().enumerate() {
            let packed = &results[index / LAYOUTS.len() * LAYOUTS.len()];
            let ratios = packed.iter().zip(&results[index]).map(|(packed, own)| packed / own);
            let [low, ratio, high] = quartiles(ratios.collect());
            let [_, median, _] = quartiles(results[index].clone());
            let name = format!("{layout} {counting}");
            println!("{name:<24} {median:>9.1} {ratio:>9.2} ({low:.2} – {high:.2})");
        }
    }
}
