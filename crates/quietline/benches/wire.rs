//! One thread runs both ends of a wire: the cost of the whole path, application to application,
//! without a wake.
//!
//! `cargo bench -p quietline --bench wire [-- [--smoke] [PART OF A NAME]]` prints, per workload,
//! the time per unit and the rate. Compare only figures of one run: other machines give other
//! figures.

use std::{
    io::{ErrorKind, Read, Write},
    time::{Duration, Instant},
};

use quietline::{Stack, TcpListener, TcpStream, Wire, WireConfig};

fn pair(config: &WireConfig) -> (Stack, Stack) {
    let (left, right) = Wire::pair(config).expect("a valid wire");
    let build = |device: std::sync::Arc<Wire>, address: &str| {
        let builder = Stack::builder().device(device).address(address.parse().expect("an address"));
        builder.manual().build().expect("a valid stack")
    };
    (build(left, "10.0.0.1/24"), build(right, "10.0.0.2/24"))
}

fn connect(client: &Stack, server: &Stack) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(server, "10.0.0.2:0").expect("a port");
    let a = TcpStream::connect(client, listener.local_addr().unwrap()).expect("a connection");
    let (b, _) = listener.accept().expect("a connection");
    for stream in [&a, &b] {
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(true).unwrap();
    }
    (a, b)
}

/// Returns the bytes per second of one stream.
fn bulk(config: &WireConfig, write: usize, time: Duration) -> f64 {
    let (client, server) = pair(config);
    let (mut a, mut b) = connect(&client, &server);
    let data = vec![0x5a; write];
    let mut buf = vec![0; 256 * 1024];
    let mut received = 0u64;
    let begin = Instant::now();
    while begin.elapsed() < time {
        match a.write(&data) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        loop {
            match b.read(&mut buf) {
                Ok(read) => received += read as u64,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    break;
                }
            }
        }
    }
    received as f64 / begin.elapsed().as_secs_f64()
}

/// Returns the request/response pairs per second, with `idle` more connections open.
fn request_response(idle: usize, time: Duration) -> f64 {
    let (client, server) = pair(&WireConfig::default());
    let listener = TcpListener::bind_with_backlog(&server, "10.0.0.2:0", 4096).unwrap();
    let to = listener.local_addr().unwrap();
    let _idle: Vec<_> = (0..idle)
        .map(|_| {
            let stream = TcpStream::connect(&client, to).expect("a connection");
            (stream, listener.accept().expect("a connection"))
        })
        .collect();
    let (mut a, mut b) = connect(&client, &server);
    let mut byte = [0];
    let mut count = 0u64;
    let begin = Instant::now();
    while begin.elapsed() < time {
        for _ in 0..100 {
            a.write_all(&[1]).unwrap();
            b.read_exact(&mut byte).unwrap();
            b.write_all(&byte).unwrap();
            a.read_exact(&mut byte).unwrap();
            count += 1;
        }
    }
    count as f64 / begin.elapsed().as_secs_f64()
}

fn main() {
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let wanted = |name: &str| filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()));
    let smoke = std::env::args().any(|argument| argument == "--smoke" || argument == "--test");
    let time = if smoke { Duration::from_millis(20) } else { Duration::from_millis(1000) };
    let frames = WireConfig { tso: false, ..WireConfig::default() };
    let checked = WireConfig { checksums: true, ..WireConfig::default() };
    for (name, config) in [
        ("bulk, MTU 1500", &frames),
        ("bulk, MTU 1500, checksums", &checked),
        ("bulk, superframes", &WireConfig::default()),
    ] {
        if !wanted(name) {
            continue;
        }
        let rate = bulk(config, 64 * 1024, time);
        println!("{name:<32} {:8.2} Gbit/s  {:8.1} ns per 1448 bytes", rate * 8e-9, 1448e9 / rate);
    }
    if !wanted("request/response") {
        return;
    }
    for idle in if smoke { vec![0, 10] } else { vec![0, 10, 100, 1000, 10_000] } {
        let rate = request_response(idle, time);
        println!("request/response, {idle:>5} idle      {rate:10.0} /s  {:8.1} ns", 1e9 / rate);
    }
}
