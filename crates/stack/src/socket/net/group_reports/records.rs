//! Group records, and the messages that carry them (RFC 3376 §4.2, RFC 3810 §5.2).
//!
//! Above: `group_reports`, which sends the messages.

use std::{net::IpAddr, vec::Vec};

use pkt::{Sum, checksum};

use super::Reason;
use crate::{header::ip::protocol, socket::datagram::source_filter::SourceFilter};

/// Length of the largest message, which fits the smallest MTU of IPv6.
const MESSAGE_BYTES_MAX: usize = 1208;

/// Length of the header of a report, and of a record without its addresses.
const MESSAGE_HEADER_BYTES: usize = 8;
const RECORD_BYTES: usize = 4;

/// Offsets of the number of records in a report, and of the number of sources in a record.
const RECORDS: usize = 6;
const SOURCES: usize = 2;

/// Types of group records (RFC 3376 §4.2.12, RFC 3810 §5.2.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    ModeIsInclude = 1,
    ModeIsExclude = 2,
    ChangeToInclude = 3,
    ChangeToExclude = 4,
    AllowNewSources = 5,
    BlockOldSources = 6,
}

impl Kind {
    /// Whether the sources of a record are those that are not received. Only one record of such a
    /// type is about a group, so that it is never divided.
    const fn excludes(self) -> bool {
        matches!(self, Self::ModeIsExclude | Self::ChangeToExclude)
    }
}

/// A record about one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    pub(super) kind: Kind,
    pub(super) group: IpAddr,
    pub(super) sources: &'a [IpAddr],
}

/// Returns the types and sources of the records about a group whose filter is `filter` (RFC 3376
/// §5.1, §5.2; RFC 3810 §6.1, §6.2).
pub(super) fn records(reason: &Reason, filter: &SourceFilter) -> Vec<(Kind, Vec<IpAddr>)> {
    let allowed = |of: &[IpAddr], wanted: bool| -> Vec<IpAddr> {
        of.iter().copied().filter(|source| filter.allows(*source) == wanted).collect()
    };
    let whole = |include, exclude| {
        let kind = if filter.exclude { exclude } else { include };
        Vec::from([(kind, filter.sources.clone())])
    };
    let some = |kind, sources: Vec<IpAddr>| (!sources.is_empty()).then_some((kind, sources));
    match reason {
        Reason::Query(_) if *filter == SourceFilter::NONE => Vec::new(),
        Reason::Query(asked) if asked.is_empty() => whole(Kind::ModeIsInclude, Kind::ModeIsExclude),
        Reason::Query(asked) => {
            some(Kind::ModeIsInclude, allowed(asked, true)).into_iter().collect()
        }
        Reason::Mode => whole(Kind::ChangeToInclude, Kind::ChangeToExclude),
        Reason::Sources(changed) => {
            let allow = some(Kind::AllowNewSources, allowed(changed, true));
            let block = some(Kind::BlockOldSources, allowed(changed, false));
            allow.into_iter().chain(block).collect()
        }
    }
}

/// A message that is built.
pub(super) struct Message {
    bytes: [u8; MESSAGE_BYTES_MAX],
    len: usize,
    records: u16,
}

impl Message {
    /// Returns a report without records.
    pub(super) const fn new(kind: u8) -> Self {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        bytes[0] = kind;
        Self { bytes, len: MESSAGE_HEADER_BYTES, records: 0 }
    }

    /// Returns a message of the older version about a group.
    pub(super) fn old(kind: u8, group: IpAddr) -> Self {
        let mut message = Self::new(kind);
        if group.is_ipv4() {
            // The group follows the eight bytes of an MLD header, and the four of IGMP.
            message.len = MESSAGE_HEADER_BYTES / 2;
        }
        message.push_address(group);
        message
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(super) const fn has_records(&self) -> bool {
        self.records > 0
    }

    /// Adds a record, and returns the part for which the message has no room. Of a record that is
    /// not divided, the sources that do not fit an empty message are not reported (RFC 3376
    /// §4.2.16, RFC 3810 §5.2.15).
    pub(super) fn push<'a>(&mut self, record: &Record<'a>) -> Option<Record<'a>> {
        let address = if record.group.is_ipv4() { 4 } else { 16 };
        let room = MESSAGE_BYTES_MAX - self.len;
        let fits = (room / address).saturating_sub(1 + RECORD_BYTES.div_ceil(address));
        let count = record.sources.len();
        let is_whole = fits >= count && room >= RECORD_BYTES + address;
        if !is_whole && (self.has_records() && (record.kind.excludes() || fits == 0)) {
            return Some(*record);
        }
        let (now, later) = record.sources.split_at(count.min(fits));
        let start = self.len;
        self.bytes[start] = record.kind as u8;
        let sources = u16::try_from(now.len()).unwrap_or_default().to_be_bytes();
        self.bytes[start + SOURCES..start + SOURCES + 2].copy_from_slice(&sources);
        self.len += RECORD_BYTES;
        self.push_address(record.group);
        now.iter().for_each(|source| self.push_address(*source));
        self.records += 1;
        self.bytes[RECORDS..RECORDS + 2].copy_from_slice(&self.records.to_be_bytes());
        let is_done = later.is_empty() || record.kind.excludes();
        (!is_done).then_some(Record { sources: later, ..*record })
    }

    fn push_address(&mut self, address: IpAddr) {
        let start = self.len;
        match address {
            IpAddr::V4(ip) => {
                self.len += 4;
                self.bytes[start..self.len].copy_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                self.len += 16;
                self.bytes[start..self.len].copy_from_slice(&ip.octets());
            }
        }
    }

    /// Computes the checksum; that of MLD covers a pseudo-header.
    pub(super) fn fill_checksum(&mut self, src: IpAddr, to: IpAddr) {
        let len = u32::try_from(self.len).unwrap_or_default();
        let mut sum = match to {
            IpAddr::V4(_) => Sum::default(),
            IpAddr::V6(_) => checksum::pseudo_header(src, to, protocol::ICMPV6, len),
        };
        self.bytes[2..4].fill(0);
        sum.add_bytes(&self.bytes[..self.len]);
        self.bytes[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn v6(number: u16) -> IpAddr {
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number).into()
    }

    /// Sends a record by as many messages as needed; returns the number of sources in each.
    fn parts(kind: Kind, sources: &[IpAddr]) -> Vec<usize> {
        let mut record = Record { kind, group: v6(1), sources };
        let mut parts = Vec::new();
        loop {
            let mut message = Message::new(143);
            let rest = message.push(&record);
            let bytes = message.bytes();
            assert_eq!((bytes[0], bytes[8], &bytes[6..8]), (143, kind as u8, &[0, 1][..]));
            let count = usize::from(u16::from_be_bytes([bytes[10], bytes[11]]));
            assert_eq!(bytes.len(), 8 + 4 + 16 + 16 * count);
            parts.push(count);
            match rest {
                Some(rest) => record = rest,
                None => return parts,
            }
        }
    }

    #[test]
    fn records_of_many_sources_are_divided_and_those_of_mode_exclude_are_cut() {
        let sources: Vec<_> = (0..200).map(v6).collect();
        assert_eq!(parts(Kind::AllowNewSources, &sources), [73, 73, 54]);
        assert_eq!(parts(Kind::ChangeToInclude, &sources), [73, 73, 54]);
        assert_eq!(parts(Kind::ModeIsExclude, &sources), [73]);
        assert_eq!(parts(Kind::ModeIsExclude, &[]), [0]);
    }

    #[test]
    fn a_message_takes_records_until_it_is_full() {
        let group = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
        let record = Record { kind: Kind::ModeIsExclude, group, sources: &[] };
        let mut message = Message::new(0x22);
        let fitted = (0..).find(|_| message.push(&record).is_some());
        assert_eq!(fitted, Some((1208 - 8) / 8));
        assert_eq!(message.bytes().len(), 1208);
    }

    #[test]
    fn records_follow_the_filter_at_the_time_of_the_report() {
        let [a, b, c] = [1, 2, 3].map(v6);
        let include = SourceFilter { exclude: false, sources: Vec::from([a, b]) };
        let exclude = SourceFilter { exclude: true, ..include.clone() };
        let list = |sources: &[IpAddr]| sources.to_vec();
        let changed = Reason::Sources(list(&[a, c]));
        let cases = [
            (Reason::Query(list(&[])), &include, list(&[a, b]), Kind::ModeIsInclude),
            (Reason::Query(list(&[])), &exclude, list(&[a, b]), Kind::ModeIsExclude),
            (Reason::Query(list(&[b, c])), &include, list(&[b]), Kind::ModeIsInclude),
            (Reason::Query(list(&[b, c])), &exclude, list(&[c]), Kind::ModeIsInclude),
            (Reason::Mode, &SourceFilter::NONE, list(&[]), Kind::ChangeToInclude),
            (Reason::Mode, &exclude, list(&[a, b]), Kind::ChangeToExclude),
        ];
        for (reason, filter, sources, kind) in cases {
            assert_eq!(records(&reason, filter), [(kind, sources)], "{reason:?} {filter:?}");
        }
        let allow = (Kind::AllowNewSources, list(&[a]));
        let block = (Kind::BlockOldSources, list(&[c]));
        assert_eq!(records(&changed, &include), [allow, block]);
        assert_eq!(records(&Reason::Query(list(&[c])), &include), []);
        assert_eq!(records(&Reason::Query(list(&[])), &SourceFilter::NONE), []);
    }
}
