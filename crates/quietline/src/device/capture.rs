//! Packet capture: writes the packets that a device receives and transmits to a pcapng file.
//!
//! Below: any device, wrapped by [`CaptureDevice`]. Above: every command's `--pcap FILE`. Linux:
//! net/packet/af_packet.c as tcpdump uses it; draft-ietf-opsawg-pcapng.
//!
//! A core only copies a packet's bytes into a queue; a thread of the capture writes them to the
//! file. The queue is bounded: when the file is too slow, packets are omitted from the capture and
//! counted, and the file records where. Packets themselves are never delayed.
//!
//! A superframe is written as one frame, as tcpdump shows it on Linux. A partial checksum is
//! completed in the copy, so that a reader that verifies checksums finds them correct.
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

/// Default number of bytes of a packet that are kept: tcpdump's default, and the maximum that
/// Wireshark reads. Only BIG TCP has larger packets.
pub const SNAPLEN_DEFAULT: u32 = 262_144;

/// Default number of bytes that may wait for the file: half a second at 1 Gbit/s.
pub const QUEUE_BYTES_DEFAULT: usize = 64 << 20;

/// Size of the file buffer: the writer makes one system call per this many bytes.
const FILE_BUFFER_BYTES: usize = 1 << 20;

/// Configuration of a capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureConfig {
    /// Bytes of each packet to keep, link header included. The rest is cut off, and the file
    /// records the original length.
    pub snaplen: u32,
    /// Bytes that may wait for the file before packets are omitted.
    pub queue_bytes_max: usize,
    /// Offset from the stack's `now` to the time since 1970. `None` computes it from the clocks of
    /// the machine, where `now` is CLOCK_MONOTONIC; a simulation sets its own.
    pub epoch_offset: Option<Duration>,
}

impl Default for CaptureConfig {
    fn default() -> Self {
        Self { snaplen: SNAPLEN_DEFAULT, queue_bytes_max: QUEUE_BYTES_DEFAULT, epoch_offset: None }
    }
}

/// Link type of a captured interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureLink {
    /// Frames begin with an Ethernet header.
    Ethernet {
        /// Ethernet address of the stack.
        mac: [u8; 6],
    },
    /// Frames begin with an IP header.
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

/// Direction of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the device to the stack.
    Inbound,
    /// From the stack to the device.
    Outbound,
}

/// Counts of a finished capture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CaptureReport {
    /// Packets in the file.
    pub written: u64,
    /// Packets omitted because the file was too slow or could not be written.
    pub lost: u64,
    /// Bytes of packets in the file.
    pub bytes: u64,
}

/// The file of a capture that has not started. A program that drops its privileges creates the file
/// before and starts the capture afterwards, so that the capture's thread has no privileges.
#[derive(Debug)]
pub struct CaptureFile {
    file: File,
    /// Description of the attempt, with the path, for errors.
    step: String,
}

impl CaptureFile {
    /// Creates the file at `path`. An existing file is overwritten.
    ///
    /// A capture contains the data of its connections, so only its owner may read it: the file has
    /// mode 0600, also if it existed before. A symbolic link at the end of `path`, a file with
    /// several names (hard links) and a file of another user are refused, because any user with
    /// access to the directory can have created them. `/dev/stdout`, other names in `/dev`,
    /// `/dev/fd` and below `/proc`, named pipes and devices are opened without these checks.
    ///
    /// # Errors
    /// If the file cannot be created, or is one of those that are refused.
    pub fn create(path: &Path) -> Result<Self, SetupError> {
        let step = format!("create capture file \"{}\"", path.display());
        match file::create(path) {
            Ok(file) => Ok(Self { file, step }),
            Err((errno, hint)) => Err(refused(step, errno, hint)),
        }
    }
}

/// Builds an error without a hint on capabilities, because no capability helps with a file.
fn refused(step: String, errno: i32, hint: &str) -> SetupError {
    SetupError::System { step, errno, hint: hint.to_owned() }
}

/// A running capture. Dropping it writes the queued packets and closes the file.
pub struct Capture {
    queue: Arc<Queue>,
    failure: Arc<FailureWatch>,
    snaplen: u32,
    epoch_offset: Duration,
    writer: Mutex<Option<JoinHandle<io::Result<CaptureReport>>>>,
}

impl Capture {
    /// Starts a capture into the file at `path`, which [`CaptureFile::create`] creates.
    ///
    /// # Errors
    /// If the file cannot be created, or is one of those that are refused.
    pub fn create(path: &Path, config: &CaptureConfig) -> Result<Arc<Self>, SetupError> {
        Self::start(CaptureFile::create(path)?, config)
    }

    /// Starts a capture, and its thread, into a file that was created before.
    ///
    /// # Errors
    /// If no thread can be started, or the clock cannot be read.
    pub fn start(file: CaptureFile, config: &CaptureConfig) -> Result<Arc<Self>, SetupError> {
        let CaptureFile { file, step } = file;
        Self::to(BufWriter::with_capacity(FILE_BUFFER_BYTES, file), config)
            .map_err(|error| refused(step, error.raw_os_error().unwrap_or(libc::EIO), ""))
    }

    /// Starts a capture into `sink`.
    ///
    /// # Errors
    /// If no thread can be started, or the clock cannot be read.
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

    /// Sets a function that is called once, on the capture's thread, when writing the file fails.
    /// Packets are omitted from that time on, not only at [`finish`](Self::finish). If the file has
    /// failed already, `notify` is called at once. A second call replaces the function.
    pub fn on_failure(&self, notify: impl FnOnce(&io::Error) + Send + 'static) {
        self.failure.watch(Box::new(notify));
    }

    /// Adds an interface to the file.
    #[must_use]
    pub fn interface(self: &Arc<Self>, name: &str, link: CaptureLink) -> CaptureInterface {
        let index = self.queue.add_interface(name, link);
        CaptureInterface { capture: Arc::clone(self), index, link }
    }

    /// Writes the queued packets, closes the file and returns the counts of the capture. Packets
    /// recorded later are ignored, and so is a second call.
    ///
    /// # Errors
    /// The first error of writing the file.
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
        // Callers that need the result call `finish`.
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
        // Computed before the queue is locked, because other cores record, too.
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

    /// Returns the offset and the value of the checksum that `packet` leaves partial.
    fn pending_checksum(&self, direction: Direction, packet: &Packet) -> Option<(usize, [u8; 2])> {
        let meta = packet.meta();
        match (direction, meta.rx_checksum, meta.tx_checksum) {
            (Direction::Inbound, RxChecksum::Partial { start, offset }, _)
            // A packet that arrived through memory keeps the partial checksum of its sender.
            | (_, _, TxChecksum::Partial { start, offset }) => {
                completed_checksum(packet, self.link.header_len(), start, offset)
            }
            _ => None,
        }
    }
}

/// Returns the time between 1970 and the zero of CLOCK_MONOTONIC.
fn monotonic_epoch() -> io::Result<Duration> {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_err(io::Error::other)?;
    let monotonic = clock_gettime(ClockId::Monotonic);
    let monotonic = Duration::try_from(monotonic).map_err(io::Error::other)?;
    Ok(wall.saturating_sub(monotonic))
}

#[cfg(test)]
mod tests;
