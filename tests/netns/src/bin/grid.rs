//! Throughput over loss and round-trip time: kernel to kernel, and quietline to kernel, through the
//! same path.
//!
//! By hand, as root: `cargo build --release -p netns-tests && target/release/grid [cubic|bbr]
//! [repeats] [LOSS RTT]`, for all cells or for one. Each cell transfers for some seconds in both
//! directions, kernel and quietline in turn (A B B A), both of a pair with the same seed of loss.
//! The table shows medians in Mbit/s, and the geometric mean of the pairs' ratios. Four cells run
//! at a time: a transfer that waits for round trips leaves the machine idle.
//!
//! Not here: a verdict. A person should examine a ratio below 0.9.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use netns_tests::{FAR, Impaired, Link, Namespace, Quietline, STACK, WirePath};
use rustix::net::sockopt::set_tcp_congestion;

/// Percent of packets lost in each direction.
const LOSSES: [f64; 5] = [0.1, 0.5, 1.0, 2.0, 5.0];

/// Round-trip times in milliseconds.
const RTTS: [u64; 4] = [10, 50, 100, 200];

/// Number of cells that run at once.
const AT_ONCE: usize = 4;

/// Low enough that the machine never limits a transfer.
const RATE_BPS: u64 = 20_000_000;

/// Ports of the service that sends without end, and of the one that only reads.
const CHARGEN: u16 = 19;
const DISCARD: u16 = 9;

/// Direction of the stream.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// The far end sends: quietline, or the kernel.
    Down,
    /// The far end receives.
    Up,
}

/// Bits per second, one for each repeat.
#[derive(Debug, Default)]
struct Figures {
    kernel: Vec<f64>,
    quietline: Vec<f64>,
}

impl Figures {
    /// Geometric mean of the ratios of quietline's rate to the kernel's, pair by pair.
    fn ratio(&self) -> f64 {
        let pairs = self.kernel.iter().zip(&self.quietline);
        let logs: Vec<f64> =
            pairs.map(|(kernel, ours)| (ours.max(1.0) / kernel.max(1.0)).ln()).collect();
        #[expect(clippy::cast_precision_loss, reason = "a few repeats")]
        let count = logs.len().max(1) as f64;
        (logs.iter().sum::<f64>() / count).exp()
    }
}

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let congestion = words.next().unwrap_or_else(|| "cubic".to_owned());
    let repeats = words.next().map_or(Ok(5), |word| word.parse()).context("repeats")?;
    let relay = std::env::current_exe()?.with_file_name("relay");
    let cells: Vec<(f64, u64)> = match (words.next(), words.next()) {
        (Some(loss), Some(rtt)) => vec![(loss.parse()?, rtt.parse()?)],
        _ => LOSSES.iter().flat_map(|loss| RTTS.map(|rtt| (*loss, rtt))).collect(),
    };
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let work = || -> Result<()> {
        while let Some(&(loss, rtt)) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
            let row = cell(&relay, (loss, rtt), &congestion, repeats)?;
            println!("{row}");
            results
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .push((loss, rtt, row));
        }
        Ok(())
    };
    thread::scope(|scope| -> Result<()> {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(())
    })?;
    let mut results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results
        .sort_by(|a, b| (a.0, a.1).partial_cmp(&(b.0, b.1)).unwrap_or(std::cmp::Ordering::Equal));
    println!(
        "\n| loss | RTT | down: kernel | quietline | ratio | up: kernel | quietline | ratio |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|");
    for (_, _, row) in results {
        println!("{row}");
    }
    Ok(())
}

/// Measures one row of the table.
fn cell(relay: &Path, (loss, rtt): (f64, u64), congestion: &str, repeats: usize) -> Result<String> {
    let far = Namespace::create()?;
    let path = WirePath {
        rtt: Duration::from_millis(rtt),
        loss: loss / 100.0,
        rate_bps: RATE_BPS,
        queue: 200,
        seed: rtt ^ loss.to_bits(),
    };
    let impaired = Impaired::open(relay, &far, &path)?;
    far.enter(|| {
        serve_kernel(CHARGEN, congestion, send_endlessly)?;
        serve_kernel(DISCARD, congestion, read_to_the_end)
    })?;
    let time = Duration::from_secs(3) + path.rtt * 40;
    let down = measure(&impaired, &far, Way::Down, congestion, time, repeats)?;
    let up = measure(&impaired, &far, Way::Up, congestion, time, repeats)?;
    impaired.close()?;
    let mut row = format!("| {loss} % | {rtt} ms |");
    for figures in [down, up] {
        let ratio = figures.ratio();
        let (kernel, quietline) = (median(figures.kernel), median(figures.quietline));
        row += &format!(" {:.2} | {:.2} | {ratio:.2} |", kernel / 1e6, quietline / 1e6);
    }
    Ok(row)
}

fn measure(
    impaired: &Impaired,
    far: &Namespace,
    way: Way,
    congestion: &str,
    time: Duration,
    repeats: usize,
) -> Result<Figures> {
    let (service, port) = match way {
        Way::Down => ("chargen", CHARGEN),
        Way::Up => ("discard", DISCARD),
    };
    let port_text = port.to_string();
    let setting = format!("--sysctl=net.ipv4.tcp_congestion_control={congestion}");
    let mut words = vec![service, "--port", &port_text, "--gateway=10.77.0.1"];
    if congestion != "cubic" {
        words.push(&setting);
    }
    let server = Quietline::serve(far, &Link::default(), &words)?;
    let mut figures = Figures::default();
    for repeat in 0..2 * repeats {
        // In the order A B B A, drift affects both alike.
        let is_kernel = matches!(repeat % 4, 0 | 3);
        let address = if is_kernel { FAR } else { STACK };
        let address: SocketAddr = format!("{address}:{port}").parse()?;
        impaired.restart_loss()?;
        let bits = impaired.near.enter(|| match way {
            Way::Down => download(address, time),
            Way::Up => upload(address, congestion, time),
        })?;
        if is_kernel { &mut figures.kernel } else { &mut figures.quietline }.push(bits);
    }
    server.interrupt()?;
    Ok(figures)
}

/// Measures the bits per second received, from the first byte on.
fn download(address: SocketAddr, time: Duration) -> Result<f64> {
    let mut stream = connect(address)?;
    let mut buffer = vec![0; 65_536];
    stream.read_exact(&mut buffer[..1])?;
    let start = Instant::now();
    let mut bytes = 0_u64;
    while start.elapsed() < time {
        bytes += stream.read(&mut buffer)? as u64;
    }
    Ok(per_second(bytes, start.elapsed()))
}

/// Measures the bits per second that the peer has acknowledged.
fn upload(address: SocketAddr, congestion: &str, time: Duration) -> Result<f64> {
    let mut stream = connect(address)?;
    set_tcp_congestion(&stream, congestion).context("TCP_CONGESTION")?;
    let buffer = vec![0x5a; 65_536];
    let start = Instant::now();
    stream.set_write_timeout(Some(Duration::from_millis(100)))?;
    while start.elapsed() < time {
        // A full send buffer returns, so that the time is checked.
        let _ = stream.write(&buffer);
    }
    let took = start.elapsed();
    Ok(per_second(acknowledged(&stream)?, took))
}

/// Reads `tcpi_bytes_acked`, by ss(8).
fn acknowledged(stream: &TcpStream) -> Result<u64> {
    let port = stream.local_addr()?.port();
    let listed = std::process::Command::new("ss")
        .args(["-Htin", &format!("sport = :{port}")])
        .output()
        .context("starting ss")?;
    let text = String::from_utf8_lossy(&listed.stdout);
    let word = text.split_whitespace().find_map(|word| word.strip_prefix("bytes_acked:"));
    word.and_then(|word| word.parse().ok()).with_context(|| format!("ss said {text}"))
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(30))
        .with_context(|| format!("connecting to {address}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    // Closing resets the connection: queued data must not disturb the next transfer.
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
    Ok(stream)
}

/// Serves connections on threads in the calling thread's namespace, as long as the program runs.
fn serve_kernel(
    port: u16,
    congestion: &str,
    serve: fn(TcpStream) -> std::io::Result<()>,
) -> Result<()> {
    let listener = TcpListener::bind((FAR, port)).context("listening")?;
    set_tcp_congestion(&listener, congestion).context("TCP_CONGESTION")?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // The client ends each connection by a reset, which is no failure.
            thread::spawn(move || serve(stream));
        }
    });
    Ok(())
}

fn send_endlessly(mut stream: TcpStream) -> std::io::Result<()> {
    let buffer = vec![0x5a; 65_536];
    loop {
        stream.write_all(&buffer)?;
    }
}

fn read_to_the_end(mut stream: TcpStream) -> std::io::Result<()> {
    let mut buffer = vec![0; 65_536];
    while stream.read(&mut buffer)? > 0 {}
    Ok(())
}

fn per_second(bytes: u64, took: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let bits = (bytes * 8) as f64;
    bits / took.as_secs_f64()
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}
