//! A host that receives from a generator: its softirq on the first CPU, its application on the
//! second.
//!
//! Above: the experiments of the receive path. Below: a stack with one worker, and `generator`.
//!
//! The application has a blocked thread for each connection, as `netserver` has a process. It reads
//! without end, or answers each request with as many bytes.

use std::{
    io::{self, Read as _, Write as _},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use quietline::{Attachment, Snapshot, Stack, TcpListener, TcpStream};

use super::{
    generator::{Generator, Load},
    threads::{self, Pinned, STALL_MAX},
};
use crate::experiment::{Error, Setup};

/// Bytes of a read of a stream.
const READ_BYTES: usize = 64 * 1024;

/// Measurements of a run.
#[derive(Debug)]
pub(super) struct Measured {
    /// Time of the measurement.
    pub(super) seconds: f64,
    /// Frames with data that the host received meanwhile.
    pub(super) frames: f64,
    /// Bytes that the application read.
    pub(super) bytes: f64,
    /// Responses that the generator got.
    pub(super) responses: f64,
    /// Counters of the host.
    pub(super) change: Snapshot,
    /// CPU time of the softirq's thread per frame, the generator's included, over the whole run.
    pub(super) softirq_ns: f64,
    /// CPU time of the application per frame, over the whole run.
    pub(super) application_ns: f64,
    /// Time of the generator per frame, over the whole run.
    pub(super) generator_ns: f64,
}

impl Measured {
    /// CPU time of the host per frame, without the generator.
    pub(super) fn host_ns(&self) -> f64 {
        self.softirq_ns + self.application_ns - self.generator_ns
    }

    /// A counter per frame.
    pub(super) fn per_frame(&self, name: &str) -> f64 {
        threads::count(&self.change, name) / self.frames
    }
}

/// Counts at one moment.
struct Mark {
    at: Instant,
    frames: u64,
    bytes: u64,
    responses: u64,
    counters: Snapshot,
}

impl Mark {
    /// Whether frames, bytes and the responses of the load have arrived since `before`.
    const fn has_result_since(&self, before: &Self, load: Load) -> bool {
        self.frames > before.frames
            && self.bytes > before.bytes
            && (load.request == 0 || self.responses > before.responses)
    }
}

/// The host, its application's connections, and the generator.
struct Receiver {
    stack: Stack,
    generator: Arc<Generator>,
    streams: Vec<TcpStream>,
    /// Bytes that the application has read. Relaxed: a count orders nothing.
    bytes: AtomicU64,
    /// Connections whose application has read. Release and Acquire: what a first read counts is
    /// counted before.
    begun: AtomicUsize,
}

impl Receiver {
    fn new(load: Load, settings: &[(&str, &str)]) -> Result<Self, Error> {
        let generator = Arc::new(Generator::new(load));
        let mut builder = Stack::builder()
            .cores(1)
            .device(Attachment::new(Arc::clone(&generator)))
            .address("10.0.0.2/24".parse()?);
        for flow in 1..if load.separate { load.flows } else { 1 } {
            builder = builder.address(format!("10.0.0.{}/32", 2 + flow).parse()?);
        }
        for (name, value) in settings {
            builder = builder.sysctl(name, value);
        }
        let stack = builder.build()?;
        let listener = TcpListener::bind(&stack, "0.0.0.0:80")?;
        generator.connect();
        let mut streams = Vec::new();
        for _ in 0..load.flows {
            let (stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(STALL_MAX))?;
            stream.set_write_timeout(Some(STALL_MAX))?;
            streams.push(stream);
        }
        Ok(Self { stack, generator, streams, bytes: AtomicU64::new(0), begun: AtomicUsize::new(0) })
    }

    /// Counts what the application of a connection has read.
    fn has_read(&self, bytes: usize, has_begun: &mut bool) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if !*has_begun {
            *has_begun = true;
            self.begun.fetch_add(1, Ordering::Release);
        }
    }

    /// Waits until each connection has had its first read. The first packets of a connection take
    /// references to the route entry until its socket has cached the entry, in every arm.
    fn wait_for_first_reads(&self, load: Load) {
        let begin = Instant::now();
        while self.begun.load(Ordering::Acquire) < usize::from(load.flows)
            && begin.elapsed() < STALL_MAX
        {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn mark(&self) -> Mark {
        Mark {
            at: Instant::now(),
            frames: self.generator.frames(),
            bytes: self.bytes.load(Ordering::Relaxed),
            responses: self.generator.responses(),
            counters: self.stack.counters(),
        }
    }
}

/// Makes one run.
pub(super) fn measure(
    load: Load,
    settings: &[(&str, &str)],
    setup: &Setup<'_>,
) -> Result<Measured, Error> {
    // The worker of the stack inherits the first CPU.
    let _pinned = Pinned::to(0);
    let mut receiver = Receiver::new(load, settings)?;
    let streams = std::mem::take(&mut receiver.streams);
    let receiver = &receiver;
    let start_s = threads::process_cpu_s();
    let ([before, after], application_s) = thread::scope(|scope| {
        let application: Vec<_> = streams
            .into_iter()
            .map(|stream| {
                scope.spawn(move || {
                    let _pinned = Pinned::to(1);
                    match load.request as usize {
                        0 => read(stream, receiver)?,
                        bytes => answer(stream, bytes, receiver)?,
                    }
                    Ok::<_, Error>(threads::thread_cpu_s())
                })
            })
            .collect();
        receiver.generator.start();
        thread::sleep(setup.warm_up);
        receiver.wait_for_first_reads(load);
        let before = receiver.mark();
        thread::sleep(setup.measure);
        let mut after = receiver.mark();
        // On a busy machine a short run may get no CPU. It lasts until it has a result.
        while !after.has_result_since(&before, load) && after.at - before.at < STALL_MAX {
            thread::sleep(setup.measure);
            after = receiver.mark();
        }
        receiver.generator.end();
        let mut application_s = 0.0;
        for thread in application {
            let result = thread.join().map_err(|_| Error::from("a reader panicked"))?;
            application_s += result.map_err(|error| {
                let drops = drops(&receiver.stack.counters());
                Error::from(format!("{error}; dropped packets: {drops}"))
            })?;
        }
        Ok::<_, Error>(([before, after], application_s))
    })?;
    let softirq_s = threads::process_cpu_s() - start_s - application_s;
    let generator_s = receiver.generator.spent().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let number = |number: u64| number as f64;
    let frames = number(after.frames - before.frames);
    if frames < 1.0 || after.bytes == before.bytes {
        return Err("nothing arrived".into());
    }
    let per_frame = |seconds: f64| seconds * 1e9 / number(receiver.generator.frames());
    Ok(Measured {
        seconds: (after.at - before.at).as_secs_f64(),
        frames,
        bytes: number(after.bytes - before.bytes),
        responses: number(after.responses - before.responses),
        change: after.counters.since(&before.counters),
        softirq_ns: per_frame(softirq_s),
        application_ns: per_frame(application_s),
        generator_ns: per_frame(generator_s),
    })
}

/// Names the packets that the host has dropped: the generator sends nothing twice, so that a
/// connection that has lost a segment waits until its read times out.
fn drops(counters: &Snapshot) -> String {
    let is_reason = |name: &str| !name.contains(|letter: char| letter.is_ascii_lowercase());
    let drops = counters.iter().filter(|(name, count)| *count > 0 && is_reason(name));
    let drops: Vec<_> = drops.map(|(name, count)| format!("{name} {count}")).collect();
    drops.join(", ")
}

fn read(mut stream: TcpStream, receiver: &Receiver) -> io::Result<()> {
    let mut buffer = vec![0; READ_BYTES];
    let mut has_begun = false;
    loop {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        receiver.has_read(count, &mut has_begun);
    }
}

fn answer(mut stream: TcpStream, request: usize, receiver: &Receiver) -> io::Result<()> {
    let mut message = vec![0; request];
    let mut has_begun = false;
    loop {
        match stream.read_exact(&mut message) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
        stream.write_all(&message)?;
        receiver.has_read(request, &mut has_begun);
    }
}
