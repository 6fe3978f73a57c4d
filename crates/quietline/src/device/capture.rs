//! Packet capture: what a device received and was told to send, as a pcapng file.
//!
//! Below: any device, wrapped by [`CaptureDevice`]. Above: every command's `--pcap FILE`. Linux: net/packet/af_packet.c
//! as tcpdump uses it; draft-ietf-opsawg-pcapng.
//!
//! The path of a packet only copies its bytes into a queue; a thread of the capture writes them to the file. The queue
//! is bounded: when the file cannot keep up, packets are left out of the capture, counted, and the file says where.
//! They are never held up.
//!
//! A superframe is written as one frame, as tcpdump shows it on Linux. A partial checksum is completed in the copy, so
//! that a reader which verifies checksums finds every one of them good.
//!
//! Not here: capture filters, rotation.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pkt::{Instant, Packet, RxChecksum, TxChecksum};
use rustix::time::{ClockId, clock_gettime};

use super::checksum::completed_checksum;
use super::setup_error::SetupError;
use failure::FailureWatch;
use queue::{Queue, Record};

mod device;
mod failure;
mod file;
mod queue;
mod writer;

pub use device::CaptureDevice;

/// Bytes of a packet that are kept: tcpdump's default, and the most that Wireshark reads. Only BIG TCP has larger ones.
pub const SNAPLEN_DEFAULT: u32 = 262_144;

/// Bytes that may wait for the file: half a second of 1 Gbit/s.
pub const QUEUE_BYTES_DEFAULT: usize = 64 << 20;

/// File buffer: the writer calls the kernel once per this many bytes.
const FILE_BUFFER_BYTES: usize = 1 << 20;

/// How a capture behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureConfig {
    /// Bytes of each packet to keep, link header included; the rest is cut off and its length remembered.
    pub snaplen: u32,
    /// Bytes that may wait for the file before packets are left out.
    pub queue_bytes_max: usize,
    /// What to add to the stack's `now` to get the time since 1970. `None` takes it from the clocks of the machine,
    /// where `now` is CLOCK_MONOTONIC; a simulation sets its own.
    pub epoch_offset: Option<Duration>,
}

impl Default for CaptureConfig {
    fn default() -> Self {
        Self { snaplen: SNAPLEN_DEFAULT, queue_bytes_max: QUEUE_BYTES_DEFAULT, epoch_offset: None }
    }
}

/// What the frames of a captured interface begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureLink {
    /// An Ethernet header, and our address on it.
    Ethernet {
        /// Our address.
        mac: [u8; 6],
    },
    /// An IP header.
    Ip,
}

impl CaptureLink {
    const fn header_len(self) -> u16 {
        match self {
            Self::Ethernet { .. } => 14,
            Self::Ip => 0,
        }
    }
}

/// Which way a packet went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the device to the stack.
    Inbound,
    /// From the stack to the device.
    Outbound,
}

/// What became of a capture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CaptureReport {
    /// Packets in the file.
    pub written: u64,
    /// Packets left out because the file could not keep up or could not be written.
    pub lost: u64,
    /// Bytes of packets in the file.
    pub bytes: u64,
}

/// The file of a capture that has not started. A program that drops its privileges makes the file before and starts the capture
/// afterwards, so that the capture's thread has none.
#[derive(Debug)]
pub struct CaptureFile {
    file: File,
    /// For errors: the attempt, with the path.
    step: String,
}

impl CaptureFile {
    /// Makes the file at `path`; the content of an existing file is overwritten.
    ///
    /// A capture holds what its connections carried, so that only its owner may read it: the file has mode 0600, one that
    /// exists gets it. A symbolic link at the end of `path`, a file with several names (hard links) and a file of another user
    /// are refused, because whoever may write to the directory can have put them there. `/dev/stdout`, other names in `/dev`,
    /// `/dev/fd` and below `/proc`, named pipes and devices are written to as they are.
    ///
    /// # Errors
    /// The file cannot be made, or is one of those that are refused.
    pub fn create(path: &Path) -> Result<Self, SetupError> {
        let step = format!("create capture file \"{}\"", path.display());
        match file::create(path) {
            Ok(file) => Ok(Self { file, step }),
            Err((errno, hint)) => Err(refused(step, errno, hint)),
        }
    }
}

/// No capability helps with a file, so the general hint would mislead.
fn refused(step: String, errno: i32, hint: &str) -> SetupError {
    SetupError::System { step, errno, hint: hint.to_owned() }
}

/// A capture file that is being written. Dropping it writes what is queued and closes the file.
pub struct Capture {
    queue: Arc<Queue>,
    failure: Arc<FailureWatch>,
    snaplen: u32,
    epoch_offset: Duration,
    writer: Mutex<Option<JoinHandle<io::Result<CaptureReport>>>>,
}

impl Capture {
    /// Starts a capture into the file at `path`, as [`CaptureFile::create`] makes it.
    ///
    /// # Errors
    /// The file cannot be made, or is one of those that are refused.
    pub fn create(path: &Path, config: &CaptureConfig) -> Result<Arc<Self>, SetupError> {
        Self::start(CaptureFile::create(path)?, config)
    }

    /// Starts a capture into a file that was made before: the capture's thread starts here.
    ///
    /// # Errors
    /// No thread can be started, or the clock cannot be read.
    pub fn start(file: CaptureFile, config: &CaptureConfig) -> Result<Arc<Self>, SetupError> {
        let CaptureFile { file, step } = file;
        Self::to(BufWriter::with_capacity(FILE_BUFFER_BYTES, file), config)
            .map_err(|error| refused(step, error.raw_os_error().unwrap_or(libc::EIO), ""))
    }

    /// Starts a capture into `sink`.
    ///
    /// # Errors
    /// No thread can be started, or the clock cannot be read.
    pub fn to(sink: impl Write + Send + 'static, config: &CaptureConfig) -> io::Result<Arc<Self>> {
        let epoch_offset = match config.epoch_offset {
            Some(offset) => offset,
            None => monotonic_epoch()?,
        };
        let queue = Arc::new(Queue::new(config.queue_bytes_max));
        let failure = Arc::new(FailureWatch::default());
        let snaplen = config.snaplen;
        let writer = {
            let (queue, failure) = (Arc::clone(&queue), Arc::clone(&failure));
            thread::Builder::new()
                .name("capture".to_owned())
                .spawn(move || writer::run(&queue, sink, snaplen, &failure))?
        };
        let writer = Mutex::new(Some(writer));
        Ok(Arc::new(Self { queue, failure, snaplen, epoch_offset, writer }))
    }

    /// Calls `notify` once, on the capture's thread, when the file cannot be written: then, and not only at
    /// [`finish`](Self::finish), packets begin to be left out. A file that has failed already is told at once. A second call
    /// replaces the first.
    pub fn on_failure(&self, notify: impl FnOnce(&io::Error) + Send + 'static) {
        self.failure.watch(Box::new(notify));
    }

    /// Adds an interface to the file.
    #[must_use]
    pub fn interface(self: &Arc<Self>, name: &str, link: CaptureLink) -> CaptureInterface {
        let index = self.queue.add_interface(name, link);
        CaptureInterface { capture: Arc::clone(self), index, link }
    }

    /// Writes what is queued, closes the file and says what became of the capture. Packets recorded from here on are
    /// ignored, and so is a second call.
    ///
    /// # Errors
    /// The first error met while writing the file.
    pub fn finish(&self) -> io::Result<CaptureReport> {
        self.queue.close();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        match writer.map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the capture's writer panicked")),
            None => Ok(CaptureReport::default()),
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // Whoever wants to know calls `finish`.
        let _ = self.finish();
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("snaplen", &self.snaplen).finish_non_exhaustive()
    }
}

/// One interface of a capture.
#[derive(Debug, Clone)]
pub struct CaptureInterface {
    capture: Arc<Capture>,
    index: usize,
    link: CaptureLink,
}

impl CaptureInterface {
    /// Copies `packet`, which begins with its link header, into the capture.
    pub fn record(&self, direction: Direction, now: Instant, packet: &Packet) {
        let snaplen = usize::try_from(self.capture.snaplen).unwrap_or(usize::MAX);
        let record = Record {
            interface: self.index,
            direction,
            timestamp: self.capture.epoch_offset + Duration::from_nanos(now.as_nanos()),
            original_len: packet.len(),
            captured_len: packet.len().min(snaplen),
            lost_before: 0,
        };
        // Summed before the queue is locked: other cores record too.
        let checksum = self.pending_checksum(direction, packet);
        self.capture.queue.push(record, |copy| {
            let mut at = 0;
            for slice in packet.slices() {
                let len = slice.len().min(copy.len() - at);
                copy[at..at + len].copy_from_slice(&slice[..len]);
                at += len;
            }
            if let Some((position, value)) = checksum
                && let Some(field) = copy.get_mut(position..position + 2)
            {
                field.copy_from_slice(&value);
            }
        });
    }

    /// Where the checksum that `packet` leaves to others belongs, and its value.
    fn pending_checksum(&self, direction: Direction, packet: &Packet) -> Option<(usize, [u8; 2])> {
        let meta = packet.meta();
        match (direction, meta.rx_checksum, meta.tx_checksum) {
            (Direction::Inbound, RxChecksum::Partial { start, offset }, _)
            // A packet that came through memory still has what its sender left open.
            | (_, _, TxChecksum::Partial { start, offset }) => {
                completed_checksum(packet, self.link.header_len(), start, offset)
            }
            _ => None,
        }
    }
}

/// How far CLOCK_MONOTONIC's zero lies after 1970.
fn monotonic_epoch() -> io::Result<Duration> {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
    let monotonic = clock_gettime(ClockId::Monotonic);
    let monotonic = Duration::try_from(monotonic).map_err(io::Error::other)?;
    Ok(wall.saturating_sub(monotonic))
}

#[cfg(test)]
mod tests;
