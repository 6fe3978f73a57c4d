//! One slice of one workload: opens connections, warms up, measures and closes.
//!
//! Implemented once over `endpoint`, so that both sides run the same instructions above the socket.
//! Every slice listens on a new port, so that connections in TIME-WAIT from earlier slices cannot
//! conflict.
//!
//! Not here: the schedule of slices (`run`).

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::{IpAddr, Shutdown, SocketAddr},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail};
use hdrhistogram::Histogram;

use super::{
    content::{Content, ContentSum},
    meter::{Meter, Slice},
    workload::Workload,
};
use crate::endpoint::{Host, Listener, Stream};

/// Size of a stream's reads and writes: the default of iperf3.
const BULK_BYTES: usize = 128 * 1024;

/// Time limit of one call. It is far above any retransmission timeout on an in-memory wire, so that
/// only calls that hang exceed it.
const STALL_MAX: Duration = Duration::from_secs(10);

/// Two hosts that can reach each other.
#[derive(Debug, Clone)]
pub(super) struct Pair<H> {
    /// Host that connects.
    pub(super) client: H,
    /// Host that listens.
    pub(super) server: H,
    /// Address of the server.
    pub(super) server_ip: IpAddr,
}

/// Result of a slice.
#[derive(Debug)]
pub(super) struct Sample {
    /// Work per second, in the workload's unit.
    pub(super) rate: f64,
    /// CPU seconds per second of the whole process: both hosts, application and stack.
    pub(super) cores: f64,
    /// Nanoseconds per transaction, if the workload has transactions.
    pub(super) latency: Option<Histogram<u64>>,
    /// Checksums of the content as sent and as received, if it is checked.
    pub(super) content: Option<(ContentSum, ContentSum)>,
}

/// Runs one slice.
pub(super) fn run<H: Host>(pair: &Pair<H>, workload: Workload, slice: Slice) -> Result<Sample> {
    match workload {
        Workload::BulkMtu1500 | Workload::BulkSuperframes => bulk(pair, slice),
        Workload::Lossy => transfer(pair, slice),
        Workload::RequestResponse1 => request_response(pair, slice, 1),
        Workload::RequestResponse100 => request_response(pair, slice, 100),
        Workload::ConnectRate => connect_rate(pair, slice),
    }
}

/// Measures a one-way stream at its receiver.
fn bulk<H: Host>(pair: &Pair<H>, slice: Slice) -> Result<Sample> {
    let mut meter = Meter::start(slice);
    stream(pair, slice, &mut meter, false)?;
    let measured = meter.finish();
    Ok(Sample {
        rate: measured.bits_per_second() / 1e9,
        cores: measured.cores,
        latency: None,
        content: None,
    })
}

/// Measures a one-way stream with checked content, from the first byte to the last: on a lossy
/// wire, a window inside the transfer would miss the stalls at its edges.
fn transfer<H: Host>(pair: &Pair<H>, slice: Slice) -> Result<Sample> {
    let mut meter = Meter::start(slice);
    let (sent, received) = stream(pair, slice, &mut meter, true)?;
    let measured = meter.finish_whole();
    Ok(Sample {
        rate: measured.bits_per_second() / 1e6,
        cores: measured.cores,
        latency: None,
        content: Some((sent, received)),
    })
}

/// Sends until the slice is over and receives until the end. Returns both checksums, which are
/// empty if content is not checked. The byte counts are always compared, because a stack that loses
/// bytes would look fast.
fn stream<H: Host>(
    pair: &Pair<H>,
    slice: Slice,
    meter: &mut Meter,
    checked: bool,
) -> Result<(ContentSum, ContentSum)> {
    let (_, mut connections) = connections(pair, 1)?;
    let (mut client, mut server) = connections.pop().context("no connection")?;
    let end = meter.end();
    thread::scope(|scope| {
        let sender =
            thread::Builder::new().name("sender".to_owned()).spawn_scoped(scope, || {
                send_stream(&mut client, end, slice.seed, checked).inspect_err(|_| {
                    // Otherwise the receiver would wait for an end that never arrives.
                    let _ = client.shutdown(Shutdown::Both);
                })
            })?;
        let received = receive_stream(&mut server, meter, checked);
        if received.is_err() {
            // The sender may be blocked in a write whose data is never read.
            let _ = server.shutdown(Shutdown::Both);
        }
        let sent = join(sender);
        let (received_bytes, received) = received.context("cannot receive")?;
        let (sent_bytes, sent) = sent.context("cannot send")?;
        if sent_bytes != received_bytes {
            bail!("{sent_bytes} bytes were sent and {received_bytes} received");
        }
        Ok((sent, received))
    })
}

fn send_stream<S: Stream>(
    client: &mut S,
    end: Instant,
    seed: u64,
    checked: bool,
) -> Result<(u64, ContentSum)> {
    let mut content = Content::new(seed);
    let (mut bytes, mut sum) = (0, ContentSum::default());
    let mut buffer = vec![0; BULK_BYTES];
    content.fill(&mut buffer);
    while Instant::now() < end {
        if checked {
            content.fill(&mut buffer);
            sum.update(&buffer);
        }
        client.write_all(&buffer)?;
        bytes += buffer.len() as u64;
    }
    client.shutdown(Shutdown::Write)?;
    Ok((bytes, sum))
}

fn receive_stream<S: Stream>(
    server: &mut S,
    meter: &mut Meter,
    checked: bool,
) -> Result<(u64, ContentSum)> {
    let (mut bytes, mut sum) = (0, ContentSum::default());
    let mut buffer = vec![0; BULK_BYTES];
    loop {
        let count = server.read(&mut buffer)?;
        if count == 0 {
            return Ok((bytes, sum));
        }
        if checked {
            sum.update(&buffer[..count]);
        }
        bytes += count as u64;
        meter.add(count as u64);
    }
}

/// Sends rounds of one-byte requests, one on each connection, which the server answers one by one.
fn request_response<H: Host>(pair: &Pair<H>, slice: Slice, count: usize) -> Result<Sample> {
    let (_, connections) = connections(pair, count)?;
    let (mut clients, mut servers): (Vec<_>, Vec<_>) = connections.into_iter().unzip();
    for stream in clients.iter().chain(&servers) {
        stream.set_nodelay(true)?;
    }
    let mut latency = histogram()?;
    let mut meter = Meter::start(slice);
    thread::scope(|scope| {
        let server = thread::Builder::new()
            .name("server".to_owned())
            .spawn_scoped(scope, || answer_requests(&mut servers))?;
        let asked = ask(&mut clients, &mut meter, &mut latency);
        // The end of a stream ends the server.
        clients.clear();
        join(server).context("the server failed")?;
        asked.context("the client failed")
    })?;
    let measured = meter.finish();
    Ok(Sample {
        rate: measured.per_second(),
        cores: measured.cores,
        latency: Some(latency),
        content: None,
    })
}

fn ask<S: Stream>(
    clients: &mut [S],
    meter: &mut Meter,
    latency: &mut Histogram<u64>,
) -> Result<()> {
    let mut question = 0_u8;
    loop {
        question = question.wrapping_add(1);
        let start = Instant::now();
        for client in &mut *clients {
            client.write_all(&[question])?;
        }
        for client in &mut *clients {
            let mut answer = [0];
            client.read_exact(&mut answer)?;
            if answer != [question] {
                bail!("asked {question}, answered {}", answer[0]);
            }
            if meter.is_measuring() {
                latency.saturating_record(nanoseconds(start.elapsed()));
            }
        }
        if !meter.add(clients.len() as u64) {
            return Ok(());
        }
    }
}

fn answer_requests<S: Stream>(servers: &mut [S]) -> Result<()> {
    loop {
        for server in &mut *servers {
            let mut request = [0];
            if server.read(&mut request)? == 0 {
                return Ok(());
            }
            server.write_all(&request)?;
        }
    }
}

/// Opens connections one after the other; the client closes first.
fn connect_rate<H: Host>(pair: &Pair<H>, slice: Slice) -> Result<Sample> {
    let (listener, address) = listen(pair)?;
    let stop = AtomicBool::new(false);
    let mut latency = histogram()?;
    let mut meter = Meter::start(slice);
    thread::scope(|scope| {
        let server = thread::Builder::new()
            .name("server".to_owned())
            .spawn_scoped(scope, || accept_connections(&listener, &stop))?;
        let connected = connect_again(&pair.client, address, &mut meter, &mut latency);
        // Relaxed: the server loads the flag after `accept` returned, and the connection orders
        // store and load.
        stop.store(true, Ordering::Relaxed);
        // The server blocks in `accept`; a last connection ends the wait.
        let last = pair.client.connect(address).context("the last connection failed");
        connected.context("the client failed")?;
        drop(last?);
        join(server).context("the server failed")
    })?;
    let measured = meter.finish();
    Ok(Sample {
        rate: measured.per_second(),
        cores: measured.cores,
        latency: Some(latency),
        content: None,
    })
}

fn connect_again<H: Host>(
    client: &H,
    address: SocketAddr,
    meter: &mut Meter,
    latency: &mut Histogram<u64>,
) -> Result<()> {
    loop {
        let start = Instant::now();
        let mut stream = client.connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(STALL_MAX))?;
        stream.write_all(&[1])?;
        let mut answer = [0];
        stream.read_exact(&mut answer)?;
        drop(stream);
        if meter.is_measuring() {
            latency.saturating_record(nanoseconds(start.elapsed()));
        }
        if !meter.add(1) {
            return Ok(());
        }
    }
}

fn accept_connections<L: Listener>(listener: &L, stop: &AtomicBool) -> Result<()> {
    loop {
        let (mut stream, _) = listener.accept()?;
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        stream.set_read_timeout(Some(STALL_MAX))?;
        stream.set_nodelay(true)?;
        let mut request = [0];
        stream.read_exact(&mut request)?;
        stream.write_all(&request)?;
        // The server closes after the client's end of stream, so that TIME-WAIT always stays with
        // the client.
        match stream.read(&mut request) {
            Ok(0) => {}
            Ok(_) => bail!("the server received more bytes than were sent"),
            Err(error) => return Err(error.into()),
        }
    }
}

fn listen<H: Host>(pair: &Pair<H>) -> Result<(H::Listener, SocketAddr)> {
    let listener = pair.server.bind(SocketAddr::new(pair.server_ip, 0)).context("cannot listen")?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Opens a listener and connections to it. Returns both ends of each connection.
#[expect(clippy::type_complexity, reason = "a list of pairs needs no type of its own")]
fn connections<H: Host>(
    pair: &Pair<H>,
    count: usize,
) -> Result<(H::Listener, Vec<(H::Stream, H::Stream)>)> {
    let (listener, address) = listen(pair)?;
    let mut connections = Vec::with_capacity(count);
    for _ in 0..count {
        let client = pair.client.connect(address).context("cannot connect")?;
        let (server, _) = listener.accept().context("cannot accept")?;
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(STALL_MAX))?;
            stream.set_write_timeout(Some(STALL_MAX))?;
        }
        connections.push((client, server));
    }
    Ok((listener, connections))
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("the thread panicked"))?.map_err(|error| {
        let stalled = error.downcast_ref::<io::Error>().is_some_and(|error| {
            matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
        });
        if stalled {
            error.context(format!("no progress for {} s", STALL_MAX.as_secs()))
        } else {
            error
        }
    })
}

/// Creates a histogram for latencies up to a minute, with two digits: a bucket's width is below 1 %
/// of its value.
fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_max(60_000_000_000, 2)?)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::endpoint::KernelHost;

    #[test]
    fn every_workload_runs_on_the_kernel() {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let pair = Pair { client: KernelHost, server: KernelHost, server_ip: loopback };
        let (warmup, measure) = (Duration::from_millis(2), Duration::from_millis(20));
        for workload in Workload::all() {
            let sample =
                run(&pair, workload, Slice { warmup, measure, seed: 9 }).expect("a sample");
            assert!(sample.rate > 0.0 && sample.cores >= 0.0, "{workload:?}: {sample:?}");
            if let Some((sent, received)) = sample.content {
                assert!(sent.length() > 0);
                assert_eq!(sent.value(), received.value());
            }
        }
    }
}
