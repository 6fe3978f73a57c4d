//! A host that answers requests, its softirq and its application on two CPUs.
//!
//! Above: the declaration. Below: `quietline::sans_io`, because a worker of a stack cannot share
//! its thread with a client.

use std::{
    io::IoSlice,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Instant,
};

use quietline::{
    Snapshot,
    sans_io::{
        Connection, Cx, Device, DeviceConfig, Errno, Host, HostConfig, Listener, Memory, Readiness,
    },
};

use super::COUNTERS;
use crate::{
    copy_link::CopyLink,
    experiment::{Error, Observation, Setup},
    experiments::threads::{self, Pinned, STALL_MAX},
};

/// Bytes of a request and of its response.
const MESSAGE_BYTES: usize = 64;
/// Requests per connection that a run makes at least: at its ends a request under way is counted
/// partly, which is a part of this many.
const ROUNDS_MIN: f64 = 50.0;
/// A machine on which other programs run does not get so far: the run then ends after so many times
/// its length, and its load makes it invalid.
const OVERTIME: u32 = 10;
/// Packet memory of each host.
const MEMORY_BYTES: usize = 256 << 20;

/// A host and its memory.
fn host(
    device: Arc<dyn Device>,
    address: &str,
    seed: u64,
    settings: &[(&str, &str)],
) -> Result<(Memory, Arc<Host>), Error> {
    let memory = Memory::new(MEMORY_BYTES);
    let devices = vec![DeviceConfig { device, addresses: vec![address.parse()?] }];
    let host = Host::new(&memory, HostConfig { devices, ..HostConfig::replay(seed) })?;
    for (name, value) in settings {
        host.set_sysctl(name, value)?;
    }
    Ok((memory, host))
}

/// A context of a thread of this process.
fn context(memory: &Memory, seed: u64) -> Cx {
    let mut cx = Cx::replay(memory, seed).with_clock(threads::now);
    cx.set_now(threads::now());
    cx.linger();
    cx
}

/// The client and the softirq of the server, on one thread.
struct Front {
    client: Arc<Host>,
    server: Arc<Host>,
    client_cx: Cx,
    softirq_cx: Cx,
}

impl Front {
    /// Both hosts do what there is.
    fn turn(&mut self) {
        let now = threads::now();
        self.client_cx.set_now(now);
        self.softirq_cx.set_now(now);
        let _ = self.client.poll(&mut self.client_cx);
        let _ = self.server.poll(&mut self.softirq_cx);
        self.client_cx.rest();
        self.softirq_cx.rest();
    }

    /// Opens a connection; returns the client's and the server's end.
    fn connect(
        &mut self,
        listener: &Listener,
    ) -> Result<(Arc<Connection>, Arc<Connection>), Error> {
        let client =
            Connection::connect(&self.client, &mut self.client_cx, None, listener.local())?;
        let start = Instant::now();
        while start.elapsed() < STALL_MAX {
            self.turn();
            if let Ok(server) = listener.accept() {
                client.with_tcb(&self.client, &mut self.client_cx, |tcb, _| tcb.set_nodelay(true));
                server.with_tcb(&self.server, &mut self.softirq_cx, |tcb, _| tcb.set_nodelay(true));
                return Ok((client, server));
            }
        }
        Err("no connection".into())
    }
}

/// Makes one run.
pub(super) fn run(connections: usize, setup: &Setup<'_>) -> Result<Observation, Error> {
    let _pinned = Pinned::to(0);
    let (left, right) = CopyLink::pair(1);
    let (client_memory, client) = host(left, "10.0.0.1/24", setup.seed, &[])?;
    let (server_memory, server) =
        host(right, "10.0.0.2/24", setup.seed.wrapping_add(1), &setup.arm.settings)?;
    let mut front = Front {
        client_cx: context(&client_memory, setup.seed),
        softirq_cx: context(&server_memory, setup.seed),
        client,
        server: Arc::clone(&server),
    };
    let local = SocketAddr::from(([10, 0, 0, 2], 80));
    let listener = Listener::listen(&server, &mut front.softirq_cx, local, 1024)?;
    let mut ends = Vec::new();
    for _ in 0..connections {
        ends.push(front.connect(&listener)?);
    }
    let (clients, servers): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
    let stop = AtomicBool::new(false);
    let (measured, cpu_s) = thread::scope(|scope| {
        let application = scope.spawn(|| {
            let _pinned = Pinned::to(1);
            let mut cx = context(&server_memory, setup.seed.wrapping_add(2));
            answer(&server, &mut cx, &servers, &stop)
        });
        let measured = ask(&mut front, &clients, setup);
        // Relaxed: the other thread looks again and again, and the join orders the rest.
        stop.store(true, Ordering::Relaxed);
        let answered = application.join().map_err(|_| Error::from("the application panicked"));
        Ok::<_, Error>((measured?, answered??))
    })?;
    // CPU time of the whole run, warm-up included, in proportion.
    let part = measured.requests / measured.all_requests.max(1.0);
    let request_ns = measured.seconds * 1e9 / measured.requests;
    let count = |name| threads::count(&measured.change, name) / measured.requests;
    Ok(Observation {
        metrics: vec![
            request_ns,
            1e9 / request_ns,
            cpu_s * 1e9 * part / measured.requests,
            count("SkbFreesRemote"),
            count("SkbLocks"),
        ],
        counters: threads::per_operation(&measured.change, &COUNTERS, measured.requests),
        series: Vec::new(),
    })
}

/// Measurements of the client.
struct Measured {
    requests: f64,
    /// Requests with those of the warm-up.
    all_requests: f64,
    seconds: f64,
    change: Snapshot,
}

/// The client: sends a request on each connection that has none, for as long as the run takes.
fn ask(
    front: &mut Front,
    clients: &[Arc<Connection>],
    setup: &Setup<'_>,
) -> Result<Measured, Error> {
    let message = [7; MESSAGE_BYTES];
    let mut buffer = [0; MESSAGE_BYTES];
    let mut missing = vec![0; clients.len()];
    let start = Instant::now();
    let (mut begin, mut last) = (None, start);
    let mut requests = 0.0;
    loop {
        for (socket, missing) in clients.iter().zip(&mut missing) {
            if *missing == 0 {
                let sent =
                    socket.send(&front.client, &mut front.client_cx, &[IoSlice::new(&message)]);
                if sent != Ok(MESSAGE_BYTES) {
                    return Err(format!("request: {sent:?}").into());
                }
                *missing = MESSAGE_BYTES;
            }
        }
        front.turn();
        for (socket, missing) in clients.iter().zip(&mut missing) {
            match socket.recv(&front.client, &mut front.client_cx, &mut buffer, false) {
                Ok(0) => return Err("the connection ended".into()),
                Ok(count) => *missing -= count,
                Err(Errno::EAGAIN) => continue,
                Err(error) => return Err(format!("response: {error}").into()),
            }
            if *missing == 0 {
                requests += 1.0;
                last = Instant::now();
            }
        }
        let now = Instant::now();
        if now - last > STALL_MAX {
            return Err("no response for 10 s".into());
        }
        let is_enough = |since: f64| requests - since >= ROUNDS_MIN * clients.len() as f64;
        match &begin {
            None if now - start >= setup.warm_up => {
                begin = Some((now, requests, front.server.counters()));
            }
            Some((at, before, counters))
                if requests > *before
                    && now - *at >= setup.measure
                    && (is_enough(*before) || now - *at >= OVERTIME * setup.measure) =>
            {
                return Ok(Measured {
                    requests: requests - before,
                    all_requests: requests,
                    seconds: (now - *at).as_secs_f64(),
                    change: front.server.counters().since(counters),
                });
            }
            _ => {}
        }
    }
}

/// The server's application: answers every request, and returns its CPU time.
fn answer(
    server: &Host,
    cx: &mut Cx,
    sockets: &[Arc<Connection>],
    stop: &AtomicBool,
) -> Result<f64, Error> {
    let mut buffer = [0; MESSAGE_BYTES];
    let mut missing = vec![MESSAGE_BYTES; sockets.len()];
    while !stop.load(Ordering::Relaxed) {
        cx.set_now(threads::now());
        for (socket, missing) in sockets.iter().zip(&mut missing) {
            // As after epoll_wait: a read that finds nothing would lock the socket just when the
            // softirq has a packet for it.
            if !socket.readiness().contains(Readiness::READ) {
                continue;
            }
            match socket.recv(server, cx, &mut buffer[..*missing], false) {
                Ok(0) => return Err("the connection ended".into()),
                Ok(count) => *missing -= count,
                Err(Errno::EAGAIN) => continue,
                Err(error) => return Err(format!("request: {error}").into()),
            }
            if *missing == 0 {
                *missing = MESSAGE_BYTES;
                let sent = socket.send(server, cx, &[IoSlice::new(&buffer)]);
                if sent != Ok(MESSAGE_BYTES) {
                    return Err(format!("response: {sent:?}").into());
                }
            }
        }
        cx.rest();
    }
    Ok(threads::thread_cpu_s())
}
