//! Frames of a run as a pcapng file: one interface for each port, both directions, in virtual time.
//!
//! A failed run is repeated with a capture, so that other runs do not pay for one.

use std::{
    borrow::Cow,
    fs::File,
    io::{self, BufWriter},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use pcap_file::{
    DataLink, PcapError,
    pcapng::{
        PcapNgWriter,
        blocks::{
            enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption},
            interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
        },
    },
};
use pkt::Instant;

/// Largest amount of recorded frames; later frames are left out, because a fault shows up early or
/// repeats.
const BYTES_MAX: usize = 256 << 20;

/// `if_tsresol`: timestamps count 10^-9 seconds.
const NANOSECONDS: u8 = 9;

/// `epb_flags`: inbound, or outbound.
const FLAGS: [u32; 2] = [1, 2];

#[derive(Debug, PartialEq, Eq)]
struct Record {
    port: usize,
    at: Instant,
    outbound: bool,
    bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Records {
    list: Vec<Record>,
    bytes: usize,
}

/// See the module head. Clones share their frames.
#[derive(Clone, Debug, Default)]
pub struct Capture {
    records: Arc<Mutex<Records>>,
}

impl Capture {
    pub(super) fn record(&self, port: usize, at: Instant, outbound: bool, bytes: &[u8]) {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        if records.bytes + bytes.len() <= BYTES_MAX {
            records.bytes += bytes.len();
            records.list.push(Record { port, at, outbound, bytes: bytes.to_vec() });
        }
    }

    /// Describes the first frame that differs between two runs.
    pub(crate) fn first_difference(&self, other: &Self) -> Option<String> {
        let ours = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let theirs = other.records.lock().unwrap_or_else(PoisonError::into_inner);
        let (ours, theirs) = (&ours.list, &theirs.list);
        let shared = ours.iter().zip(theirs).take_while(|(ours, theirs)| ours == theirs).count();
        (shared < ours.len().max(theirs.len()))
            .then(|| format!("frame {shared}: {:?} or {:?}", ours.get(shared), theirs.get(shared)))
    }

    /// Writes the recorded frames and returns their number.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<usize> {
        let records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        let file = BufWriter::new(File::create(path)?);
        let mut writer = PcapNgWriter::new(file).map_err(io_error)?;
        let ports = records.list.iter().map(|record| record.port + 1).max().unwrap_or(0);
        for port in 0..ports {
            let options = vec![
                InterfaceDescriptionOption::IfName(Cow::Owned(format!("host{port}"))),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ];
            let block = InterfaceDescriptionBlock { linktype: DataLink::RAW, snaplen: 0, options };
            writer.write_pcapng_block(block).map_err(io_error)?;
        }
        for record in &records.list {
            let flags = FLAGS[usize::from(record.outbound)];
            let block = EnhancedPacketBlock {
                interface_id: u32::try_from(record.port).unwrap_or(u32::MAX),
                timestamp: Duration::from_nanos(record.at.as_nanos()),
                original_len: u32::try_from(record.bytes.len()).unwrap_or(u32::MAX),
                data: Cow::Borrowed(&record.bytes),
                options: vec![EnhancedPacketOption::Flags(flags)],
            };
            writer.write_pcapng_block(block).map_err(io_error)?;
        }
        Ok(records.list.len())
    }
}

fn io_error(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}
