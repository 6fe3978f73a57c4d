//! Source filters of multicast groups: the senders whose datagrams a socket, or the host, receives
//! (RFC 3376 §2, §3; RFC 3810 §3, §4).
//!
//! Above: `groups`, which keeps one filter for each membership of a socket and merges those of all
//! sockets, and `group_reports`, which reports the merged filter. Linux: `ip_mc_source`,
//! `ip_mc_sf_allow`, `ip6_mc_source`, `inet6_mc_check`.

use std::{net::IpAddr, vec::Vec};

use crate::base::errno::Errno;

/// Change of a socket's source filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceChange {
    /// Receives from one more source, and joins the group for the first one
    /// (`IP_ADD_SOURCE_MEMBERSHIP`, `MCAST_JOIN_SOURCE_GROUP`).
    Join,
    /// Receives from one source less, and leaves the group with the last one
    /// (`IP_DROP_SOURCE_MEMBERSHIP`, `MCAST_LEAVE_SOURCE_GROUP`).
    Leave,
    /// Refuses a source of a group that was joined for all sources (`IP_BLOCK_SOURCE`,
    /// `MCAST_BLOCK_SOURCE`).
    Block,
    /// Accepts a blocked source again (`IP_UNBLOCK_SOURCE`, `MCAST_UNBLOCK_SOURCE`).
    Unblock,
}

impl SourceChange {
    /// Whether the change is one of a filter in mode EXCLUDE.
    const fn excludes(self) -> bool {
        matches!(self, Self::Block | Self::Unblock)
    }
}

/// The sources of a group whose datagrams are received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceFilter {
    /// Mode EXCLUDE: all sources but those listed. Otherwise mode INCLUDE: only those listed.
    pub(crate) exclude: bool,
    /// In ascending order.
    pub(crate) sources: Vec<IpAddr>,
}

impl SourceFilter {
    /// Every source: that of a membership without a filter.
    pub(crate) const ALL: Self = Self { exclude: true, sources: Vec::new() };

    /// No source, which is the same as no membership.
    pub(crate) const NONE: Self = Self { exclude: false, sources: Vec::new() };

    /// Whether datagrams of `source` are received.
    pub(crate) fn allows(&self, source: IpAddr) -> bool {
        self.exclude != self.has(source)
    }

    pub(crate) fn has(&self, source: IpAddr) -> bool {
        self.sources.binary_search(&source).is_ok()
    }

    /// Changes the filter of a socket; `max` is the largest number of sources. A filter without
    /// sources takes the mode of the change.
    ///
    /// # Errors
    /// `EINVAL` for a change of the other mode, `EADDRNOTAVAIL` for a source that the filter has
    /// already or does not have, `ENOBUFS` above `max`; the filter stays as it was.
    pub(super) fn change(
        &mut self,
        change: SourceChange,
        source: IpAddr,
        max: u32,
    ) -> Result<(), Errno> {
        if self.exclude != change.excludes() && !self.sources.is_empty() {
            return Err(Errno::EINVAL);
        }
        let place = self.sources.binary_search(&source);
        match (change, place) {
            (SourceChange::Join | SourceChange::Block, Err(at)) => {
                if u32::try_from(self.sources.len()).is_ok_and(|len| len >= max) {
                    return Err(Errno::ENOBUFS);
                }
                self.sources.insert(at, source);
            }
            (SourceChange::Leave | SourceChange::Unblock, Ok(at)) => {
                self.sources.remove(at);
            }
            _ => return Err(Errno::EADDRNOTAVAIL),
        }
        self.exclude = change.excludes();
        Ok(())
    }

    /// Returns the filter of a host whose sockets have `filters` (RFC 3376 §3.2, RFC 3810 §4.2):
    /// what at least one of them receives.
    pub(super) fn merged(filters: &[Self]) -> Self {
        let of_mode = |exclude| filters.iter().filter(move |filter| filter.exclude == exclude);
        let mut included: Vec<IpAddr> =
            of_mode(false).flat_map(|filter| &filter.sources).copied().collect();
        included.sort_unstable();
        included.dedup();
        let Some(first) = of_mode(true).next() else {
            return Self { exclude: false, sources: included };
        };
        let is_refused = |source: &&IpAddr| {
            of_mode(true).all(|filter| filter.has(**source))
                && included.binary_search(source).is_err()
        };
        let sources = first.sources.iter().filter(is_refused).copied().collect();
        Self { exclude: true, sources }
    }

    /// Returns the sources of which only one of two filters in the same mode receives.
    pub(crate) fn differing(&self, other: &Self) -> Vec<IpAddr> {
        let only = |of: &Self, not: &Self| -> Vec<IpAddr> {
            of.sources.iter().filter(|source| !not.has(**source)).copied().collect()
        };
        let mut sources = only(self, other);
        sources.extend(only(other, self));
        sources.sort_unstable();
        sources
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn ip(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    fn filter(exclude: bool, sources: &[u8]) -> SourceFilter {
        SourceFilter { exclude, sources: sources.iter().map(|last| ip(*last)).collect() }
    }

    #[test]
    fn a_merged_filter_receives_what_one_of_its_filters_receives() {
        let cases: [(&[SourceFilter], SourceFilter); 6] = [
            (&[], SourceFilter::NONE),
            (&[filter(false, &[2]), filter(false, &[1, 2])], filter(false, &[1, 2])),
            (&[filter(true, &[1, 2, 3]), filter(true, &[2, 3, 4])], filter(true, &[2, 3])),
            (&[filter(true, &[1, 2]), filter(false, &[2, 5])], filter(true, &[1])),
            (&[filter(false, &[1]), SourceFilter::ALL], SourceFilter::ALL),
            (&[SourceFilter::NONE, filter(false, &[1])], filter(false, &[1])),
        ];
        for (filters, expected) in cases {
            let merged = SourceFilter::merged(filters);
            assert_eq!(merged, expected, "{filters:?}");
            for source in (1..7).map(ip) {
                let any = filters.iter().any(|filter| filter.allows(source));
                assert_eq!(merged.allows(source), any, "{source} of {filters:?}");
            }
        }
    }

    #[test]
    fn changes_follow_the_mode_and_the_limit_of_the_filter() {
        use SourceChange::{Block, Join, Leave, Unblock};
        let mut changed = SourceFilter::ALL;
        let mut change = |change, last| changed.change(change, ip(last), 2);
        assert_eq!(change(Unblock, 1), Err(Errno::EADDRNOTAVAIL));
        assert_eq!(change(Block, 2), Ok(()));
        assert_eq!(change(Block, 2), Err(Errno::EADDRNOTAVAIL), "blocked already");
        assert_eq!(change(Block, 1), Ok(()));
        assert_eq!(change(Block, 3), Err(Errno::ENOBUFS));
        assert_eq!(change(Join, 3), Err(Errno::EINVAL), "the filter excludes");
        assert_eq!(change(Unblock, 2), Ok(()));
        assert_eq!(changed, filter(true, &[1]));
        changed.change(Unblock, ip(1), 2).expect("a blocked source");
        // Without sources the mode may change.
        changed.change(Join, ip(4), 2).expect("room");
        assert_eq!(changed, filter(false, &[4]));
        assert_eq!(changed.change(Leave, ip(5), 2), Err(Errno::EADDRNOTAVAIL));
        assert_eq!(filter(true, &[1, 2]).differing(&filter(true, &[2, 3])), [ip(1), ip(3)]);
    }
}
