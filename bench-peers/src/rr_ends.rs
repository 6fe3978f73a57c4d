//! Pairs of connected ends that exchange one byte: quietline over a wire, smoltcp over queues, the
//! kernel over loopback, and two threads over two counters without a stack.
//!
//! smoltcp has no threads and no blocking calls: each end polls its own interface, and in the
//! blocking modes it parks until the other end has queued a frame.
//!
//! Not here: measurement of time (`rr`).

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener as KernelListener, TcpStream as KernelStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant as Clock};

use anyhow::{Context as _, Result, bail, ensure};
use quietline::{Stack, TcpListener, TcpStream, Wire, WireConfig};
use smoltcp::iface::SocketHandle;
use smoltcp::phy::{
    ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken as Receive,
    TxToken as Transmit,
};
use smoltcp::time::Instant;
use smoltcp::wire::Ipv4Address;

use crate::rr::Mode;
use crate::smoltcp_host::Host;

/// One end of a connection.
pub trait End: Send {
    /// Sends one byte.
    fn send(&mut self) -> Result<()>;
    /// Waits for one byte.
    fn receive(&mut self) -> Result<()>;
}

/// Both ends of a connection.
#[allow(missing_debug_implementations, reason = "ends are opaque")]
pub struct Ends {
    /// End that sends first.
    pub client: Box<dyn End>,
    /// End that responds.
    pub server: Box<dyn End>,
}

/// Creates two quietline hosts connected by a wire. The spinning mode uses busy polling
/// (`net.core.busy_read`).
pub fn quietline(mode: Mode) -> Result<Ends> {
    let (left, right) = Wire::pair(&WireConfig::default()).context("cannot create the wire")?;
    let host = |device: Arc<Wire>, address: &str| -> Result<Stack> {
        let busy_read = if mode == Mode::Spin { "1000" } else { "0" };
        let builder = Stack::builder().device(device).address(address.parse()?);
        let builder = builder.sysctl("net.core.busy_read", busy_read);
        let builder = if mode == Mode::OneThread { builder.manual() } else { builder };
        builder.build().context("cannot build a stack")
    };
    let (client, server) = (host(left, "10.0.0.2/24")?, host(right, "10.0.0.1/24")?);
    let listener = TcpListener::bind(&server, "10.0.0.1:5000")?;
    let near = TcpStream::connect(&client, listener.local_addr()?)?;
    let (far, _peer) = listener.accept()?;
    for stream in [&near, &far] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    }
    Ok(Ends {
        client: Box::new(Blocking { stream: near, _keep: client }),
        server: Box::new(Blocking { stream: far, _keep: server }),
    })
}

/// Creates two sockets of the kernel that are connected over loopback.
pub fn kernel(mode: Mode) -> Result<Ends> {
    let listener = KernelListener::bind("127.0.0.1:0")?;
    let near = KernelStream::connect(listener.local_addr()?)?;
    let (far, _peer) = listener.accept()?;
    for stream in [&near, &far] {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(mode == Mode::Spin)?;
    }
    Ok(Ends {
        client: Box::new(Blocking { stream: near, _keep: () }),
        server: Box::new(Blocking { stream: far, _keep: () }),
    })
}

/// A stream whose reads wait as its options say: by sleeping, by busy polling, or by repeated
/// calls.
struct Blocking<S, K> {
    stream: S,
    /// Stack of the stream, which must live as long as the stream.
    _keep: K,
}

impl<S: Read + Write + Send, K: Send> End for Blocking<S, K> {
    fn send(&mut self) -> Result<()> {
        self.stream.write_all(&[1]).context("cannot write")
    }

    fn receive(&mut self) -> Result<()> {
        let mut byte = [0];
        loop {
            match self.stream.read(&mut byte) {
                Ok(1) => return Ok(()),
                Ok(_) => bail!("the other end has closed the connection"),
                Err(error) if error.kind() == ErrorKind::WouldBlock => core::hint::spin_loop(),
                Err(error) => return Err(error).context("cannot read"),
            }
        }
    }
}

/// Notification from one thread to another thread that may sleep.
#[derive(Debug, Default)]
struct Notifier {
    /// Whether the other thread sleeps or is about to.
    asleep: AtomicBool,
    sleeper: Mutex<Option<Thread>>,
}

impl Notifier {
    /// Wakes the other thread if it sleeps. Called after an item is queued.
    fn notify(&self) {
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            let sleeper = self.sleeper.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(sleeper) = sleeper {
                sleeper.unpark();
            }
        }
    }

    /// Waits until `there` returns true. In the spinning modes it returns after one pause instead.
    fn wait(&self, mode: Mode, there: impl Fn() -> bool) {
        if !mode.blocks() {
            core::hint::spin_loop();
            return;
        }
        *self.sleeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
        self.asleep.store(true, Ordering::SeqCst);
        if !there() {
            thread::park_timeout(Duration::from_secs(1));
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}

/// Creates the ends of two threads, with a counter for each direction.
pub fn floor(mode: Mode) -> Ends {
    let (there, back) = (Arc::new(Counter::default()), Arc::new(Counter::default()));
    let end = |out: &Arc<Counter>, into: &Arc<Counter>| {
        Box::new(CounterEnd { out: Arc::clone(out), into: Arc::clone(into), taken: 0, mode })
    };
    Ends { client: end(&there, &back), server: end(&back, &there) }
}

/// A counter with its own cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Counter {
    sent: AtomicUsize,
    notifier: Notifier,
}

struct CounterEnd {
    out: Arc<Counter>,
    into: Arc<Counter>,
    taken: usize,
    mode: Mode,
}

impl End for CounterEnd {
    fn send(&mut self) -> Result<()> {
        self.out.sent.fetch_add(1, Ordering::SeqCst);
        self.out.notifier.notify();
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        let there = || self.into.sent.load(Ordering::SeqCst) > self.taken;
        while !there() {
            self.into.notifier.wait(self.mode, there);
        }
        self.taken += 1;
        Ok(())
    }
}

/// Creates two smoltcp hosts with a queue for each direction.
pub fn smoltcp(mode: Mode) -> Result<Ends> {
    const SERVER: Ipv4Address = Ipv4Address::new(10, 0, 0, 1);
    const CLIENT: Ipv4Address = Ipv4Address::new(10, 0, 0, 2);
    let (there, back) = (Arc::new(Queue::default()), Arc::new(Queue::default()));
    let epoch = Clock::now();
    let end = |address, out: &Arc<Queue>, into: &Arc<Queue>| {
        let mut device = QueueDevice { out: Arc::clone(out), into: Arc::clone(into) };
        let mut host = Host::new(&mut device, address, 24, epoch);
        let handle = host.add_socket(64 << 10);
        SmoltcpEnd { host, device, handle, mode }
    };
    let mut server = end(SERVER, &back, &there);
    let mut client = end(CLIENT, &there, &back);
    server.host.tcp(server.handle).listen(5000)?;
    let context = client.host.interface.context();
    let socket = client.host.sockets.get_mut::<smoltcp::socket::tcp::Socket<'_>>(client.handle);
    socket.connect(context, (SERVER, 5000), 49_152)?;
    for _ in 0..100 {
        client.poll();
        server.poll();
    }
    ensure!(server.host.tcp(server.handle).may_send(), "the smoltcp pair did not connect");
    Ok(Ends { client: Box::new(client), server: Box::new(server) })
}

/// Frames of one direction, and buffers for reuse.
#[derive(Debug, Default)]
struct Queue {
    frames: Mutex<Frames>,
    /// Number of waiting frames, which can be checked without the lock.
    waiting: AtomicUsize,
    notifier: Notifier,
}

#[derive(Debug, Default)]
struct Frames {
    waiting: VecDeque<Vec<u8>>,
    recycle: Vec<Vec<u8>>,
}

struct QueueDevice {
    out: Arc<Queue>,
    into: Arc<Queue>,
}

impl Device for QueueDevice {
    type RxToken<'a> = RxToken;
    type TxToken<'a> = TxToken;

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        // Like quietline's wire, which does not complete checksums.
        capabilities.checksum = ChecksumCapabilities::ignored();
        capabilities
    }

    fn receive(&mut self, _now: Instant) -> Option<(RxToken, TxToken)> {
        if self.into.waiting.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut frames = self.into.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let frame = frames.waiting.pop_front()?;
        self.into.waiting.store(frames.waiting.len(), Ordering::SeqCst);
        Some((RxToken { frame, queue: Arc::clone(&self.into) }, TxToken(Arc::clone(&self.out))))
    }

    fn transmit(&mut self, _now: Instant) -> Option<TxToken> {
        Some(TxToken(Arc::clone(&self.out)))
    }
}

struct RxToken {
    frame: Vec<u8>,
    queue: Arc<Queue>,
}

impl Receive for RxToken {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        let result = take(&self.frame);
        let mut frames = self.queue.frames.lock().unwrap_or_else(PoisonError::into_inner);
        frames.recycle.push(self.frame);
        result
    }
}

struct TxToken(Arc<Queue>);

impl Transmit for TxToken {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        let lock = || self.0.frames.lock().unwrap_or_else(PoisonError::into_inner);
        let mut frame = lock().recycle.pop().unwrap_or_default();
        frame.resize(length, 0);
        let result = fill(&mut frame);
        let mut frames = lock();
        frames.waiting.push_back(frame);
        self.0.waiting.store(frames.waiting.len(), Ordering::SeqCst);
        drop(frames);
        self.0.notifier.notify();
        result
    }
}

struct SmoltcpEnd {
    host: Host,
    device: QueueDevice,
    handle: SocketHandle,
    mode: Mode,
}

impl SmoltcpEnd {
    fn poll(&mut self) {
        self.host.poll(&mut self.device);
    }
}

impl End for SmoltcpEnd {
    fn send(&mut self) -> Result<()> {
        let sent = self.host.tcp(self.handle).send_slice(&[1])?;
        ensure!(sent == 1, "the send buffer is full");
        self.poll();
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        let mut byte = [0];
        loop {
            self.poll();
            if self.host.tcp(self.handle).recv_slice(&mut byte)? == 1 {
                return Ok(());
            }
            let into = &self.device.into;
            into.notifier.wait(self.mode, || into.waiting.load(Ordering::SeqCst) > 0);
        }
    }
}
