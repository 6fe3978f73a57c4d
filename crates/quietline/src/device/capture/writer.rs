//! Writes queued packets as pcapng blocks.
//!
//! One section: a header, an interface description before the first packet of each interface,
//! enhanced packet blocks with nanosecond timestamps, direction flags and the count of packets
//! omitted before them, and interface statistics at the end. After an error nothing more is written
//! to the file, and all further packets count as lost.

use std::borrow::Cow;
use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{
    InterfaceStatisticsBlock, InterfaceStatisticsOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::{DataLink, PcapError};

use super::failure::FailureWatch;
use super::queue::{Buffer, Interface, Queue, Record};
use super::{CaptureLink, CaptureReport, Direction};

/// `if_tsresol`: timestamps count 10^-9 seconds.
const NANOSECONDS: u8 = 9;

/// `epb_flags`: inbound packet.
const FLAG_INBOUND: u32 = 1;
/// `epb_flags`: outbound packet.
const FLAG_OUTBOUND: u32 = 2;

/// Counts of one interface.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    seen: u64,
    /// Packets not written because the file had failed.
    unwritten: u64,
}

/// Runs the capture's thread until the queue is closed and drained.
pub(super) fn run(
    queue: &Queue,
    sink: impl Write,
    snaplen: u32,
    watch: &FailureWatch,
) -> io::Result<CaptureReport> {
    let mut failure = None;
    let mut writer = match open(sink) {
        Ok(writer) => Some(writer),
        Err(error) => {
            watch.report(&error);
            failure = Some(error);
            None
        }
    };
    let mut report = CaptureReport::default();
    let mut tallies: Vec<Tally> = Vec::new();
    let mut buffer = Buffer::default();
    loop {
        let taken = queue.take(&mut buffer);
        let described = tallies.len();
        tallies.resize(taken.interfaces.len(), Tally::default());
        let result = writer.as_mut().map_or(Ok(()), |writer| {
            describe(writer, &taken.interfaces[described..], snaplen)?;
            write_records(writer, &buffer, &mut tallies, &mut report)?;
            if taken.closed {
                write_statistics(writer, &taken.interfaces, &tallies)?;
            }
            writer.get_mut().flush()
        });
        if let Err(error) = result {
            watch.report(&error);
            failure = Some(error);
            writer = None;
        }
        if writer.is_none() {
            count_unwritten(&buffer, &mut tallies);
        }
        buffer.clear();
        if taken.closed {
            let left_out: u64 = taken.interfaces.iter().map(|interface| interface.lost).sum();
            let unwritten: u64 = tallies.iter().map(|tally| tally.unwritten).sum();
            report.lost = left_out + unwritten;
            return failure.map_or(Ok(report), Err);
        }
    }
}

fn open<W: Write>(sink: W) -> io::Result<PcapNgWriter<W>> {
    let section = SectionHeaderBlock {
        endianness: pcap_file::Endianness::Little,
        options: vec![
            SectionHeaderOption::OS(Cow::Borrowed("Linux")),
            SectionHeaderOption::UserApplication(Cow::Borrowed(concat!(
                "quietline ",
                env!("CARGO_PKG_VERSION")
            ))),
        ],
        ..SectionHeaderBlock::default()
    };
    PcapNgWriter::with_section_header(sink, section).map_err(io_error)
}

fn describe<W: Write>(
    writer: &mut PcapNgWriter<W>,
    interfaces: &[Interface],
    snaplen: u32,
) -> io::Result<()> {
    for interface in interfaces {
        let mut options = vec![
            InterfaceDescriptionOption::IfName(Cow::Borrowed(&interface.name)),
            InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
        ];
        let linktype = match interface.link {
            CaptureLink::Ethernet { mac } => {
                options.push(InterfaceDescriptionOption::IfMacAddr(Cow::Owned(mac.to_vec())));
                DataLink::ETHERNET
            }
            CaptureLink::Ip => DataLink::RAW,
        };
        let block = InterfaceDescriptionBlock { linktype, snaplen, options };
        writer.write_pcapng_block(block).map_err(io_error)?;
    }
    Ok(())
}

fn write_records<W: Write>(
    writer: &mut PcapNgWriter<W>,
    buffer: &Buffer,
    tallies: &mut [Tally],
    report: &mut CaptureReport,
) -> io::Result<()> {
    let mut bytes = buffer.bytes.as_slice();
    for record in &buffer.records {
        let (data, rest) = bytes.split_at(record.captured_len);
        bytes = rest;
        writer.write_pcapng_block(packet_block(record, data)).map_err(io_error)?;
        tallies[record.interface].seen += 1;
        report.written += 1;
        report.bytes += u64::try_from(data.len()).unwrap_or(u64::MAX);
    }
    Ok(())
}

fn packet_block<'a>(record: &Record, data: &'a [u8]) -> EnhancedPacketBlock<'a> {
    let flags = match record.direction {
        Direction::Inbound => FLAG_INBOUND,
        Direction::Outbound => FLAG_OUTBOUND,
    };
    let mut options = vec![EnhancedPacketOption::Flags(flags)];
    if record.lost_before > 0 {
        options.push(EnhancedPacketOption::DropCount(record.lost_before));
    }
    EnhancedPacketBlock {
        interface_id: u32::try_from(record.interface).unwrap_or(u32::MAX),
        timestamp: record.timestamp,
        original_len: u32::try_from(record.original_len).unwrap_or(u32::MAX),
        data: Cow::Borrowed(data),
        options,
    }
}

fn write_statistics<W: Write>(
    writer: &mut PcapNgWriter<W>,
    interfaces: &[Interface],
    tallies: &[Tally],
) -> io::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    // pcapng stores the high half of a timestamp first in either byte order. The library writes
    // these 64 bits as one little-endian number, so the halves are exchanged here.
    let timestamp = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX).rotate_left(32);
    for (index, (interface, tally)) in interfaces.iter().zip(tallies).enumerate() {
        let block = InterfaceStatisticsBlock {
            interface_id: u32::try_from(index).unwrap_or(u32::MAX),
            timestamp,
            options: vec![
                InterfaceStatisticsOption::IsbIfRecv(tally.seen + interface.lost),
                InterfaceStatisticsOption::IsbIfDrop(interface.lost),
            ],
        };
        writer.write_pcapng_block(block).map_err(io_error)?;
    }
    Ok(())
}

/// Counts the packets of a buffer as not written. After a failure in the middle of a buffer the
/// first packets may be in the file. They count as lost, too, because the end of the file is
/// unreliable.
fn count_unwritten(buffer: &Buffer, tallies: &mut [Tally]) {
    for record in &buffer.records {
        tallies[record.interface].unwritten += 1;
    }
}

fn io_error(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}
