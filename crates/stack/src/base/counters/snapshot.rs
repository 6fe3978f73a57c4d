//! Sum of all counter pages, for readers of the counters. Printed in the columns of `nstat -az`,
//! zeros included.

use std::fmt;

use pkt::DropReason;

use super::{Counter, CounterPage};

/// Sums over pages. The counters are not read at one instant: their writers continue meanwhile.
#[derive(Clone, PartialEq, Eq)]
pub struct Snapshot {
    stack: [u64; Counter::COUNT],
    tcp: [u64; tcp::Counter::COUNT],
    drops: [u64; DropReason::COUNT],
}

/// Width of the name column, as in nstat.
const NAME_WIDTH: usize = 32;

impl Snapshot {
    /// Returns the sum of `pages`.
    pub fn sum<'a>(pages: impl IntoIterator<Item = &'a CounterPage>) -> Self {
        let mut sums = Self::default();
        for page in pages {
            sums.add(page);
        }
        sums
    }

    /// Adds one page.
    pub fn add(&mut self, page: &CounterPage) {
        page.stack.0.add_to(&mut self.stack);
        page.tcp.add_to(&mut self.tcp);
        page.drops.0.add_to(&mut self.drops);
    }

    /// Adds a count that is kept outside of pages.
    pub(crate) fn add_stack(&mut self, counter: Counter, n: u64) {
        let sum = &mut self.stack[counter as usize];
        *sum = sum.wrapping_add(n);
    }

    /// Returns the change since `earlier` was taken. A gauge yields its change modulo 2^64.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut change = self.clone();
        let pairs = change.values_mut().zip(earlier.values());
        for (value, before) in pairs {
            *value = value.wrapping_sub(before);
        }
        change
    }

    /// Returns one of the stack's counters.
    #[must_use]
    pub const fn stack(&self, counter: Counter) -> u64 {
        self.stack[counter as usize]
    }

    /// Returns one of the engine's counters.
    #[must_use]
    pub const fn tcp(&self, counter: tcp::Counter) -> u64 {
        self.tcp[counter as usize]
    }

    /// Returns the number of packets dropped for `reason`.
    #[must_use]
    pub const fn drops(&self, reason: DropReason) -> u64 {
        self.drops[reason.index()]
    }

    /// Returns the number of packets dropped for any reason.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Returns the counter with this printed name, `"TcpInSegs"` or `"TCP_CSUM"`; `None` when there
    /// is no such counter.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.iter().find(|&(known, _)| known == name).map(|(_, value)| value)
    }

    /// Returns every counter with its printed name: the groups of Linux (`Ip`, `Icmp`, `Udp`,
    /// `Tcp`, `TcpExt`, `IpExt`, then those of IPv6), then the stack's own counters, then drop
    /// reasons.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let stack = || Counter::ALL.iter().map(|&counter| (counter.name(), self.stack(counter)));
        let tcp = tcp::Counter::ALL.iter().map(|&counter| (counter.name(), self.tcp(counter)));
        let drops = DropReason::ALL.iter().map(|&reason| (reason.name(), self.drops(reason)));
        stack().take(Self::BEFORE_TCP).chain(tcp).chain(stack().skip(Self::BEFORE_TCP)).chain(drops)
    }

    /// Number of the stack's counters printed before those of TCP: the groups `Ip*`, `Icmp*` and
    /// `Udp*`. The TCP groups follow, then `IpExt*`.
    const BEFORE_TCP: usize = Counter::IpExtInNoRoutes as usize;

    fn values(&self) -> impl Iterator<Item = u64> + '_ {
        self.stack.iter().chain(&self.tcp).chain(&self.drops).copied()
    }

    fn values_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        self.stack.iter_mut().chain(&mut self.tcp).chain(&mut self.drops)
    }
}

impl Default for Snapshot {
    fn default() -> Self {
        Self {
            stack: [0; Counter::COUNT],
            tcp: [0; tcp::Counter::COUNT],
            drops: [0; DropReason::COUNT],
        }
    }
}

impl fmt::Display for Snapshot {
    /// Prints every counter on its own row, zeros included, in the columns of nstat.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.iter() {
            writeln!(f, "{name:<NAME_WIDTH$}{value}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Snapshot {
    /// Prints the counters that are not zero.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().filter(|&(_, value)| value != 0)).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::base::counters::NOT_COUNTED;

    #[test]
    fn a_snapshot_is_the_sum_of_its_pages() {
        let (a, b) = (CounterPage::new(), CounterPage::new());
        a.stack.add(Counter::IpInReceives, 3);
        b.stack.add(Counter::IpInReceives, 4);
        b.tcp.add(tcp::Counter::TcpInSegs, 5);
        a.drops.add(DropReason::IpCsum, 1);
        b.drops.add(DropReason::TcpCsum, 2);
        let sum = Snapshot::sum([&a, &b]);
        assert_eq!(sum.stack(Counter::IpInReceives), 7);
        assert_eq!(sum.get("IpInReceives"), Some(7));
        assert_eq!(sum.get("TcpInSegs"), Some(5));
        assert_eq!(sum.get("IP_CSUM"), Some(1));
        assert_eq!(sum.get("NoSuchCounter"), None);
        assert_eq!(sum.dropped(), 3);
    }

    #[test]
    fn since_returns_the_change_and_a_gauge_may_fall() {
        let page = CounterPage::new();
        page.stack.add(Counter::IpOutRequests, 10);
        page.tcp.add(tcp::Counter::TcpCurrEstab, 2);
        let earlier = Snapshot::sum([&page]);
        page.stack.add(Counter::IpOutRequests, 5);
        page.tcp.sub(tcp::Counter::TcpCurrEstab, 1);
        let change = Snapshot::sum([&page]).since(&earlier);
        assert_eq!(change.stack(Counter::IpOutRequests), 5);
        assert_eq!(change.tcp(tcp::Counter::TcpCurrEstab), u64::MAX);
        assert_eq!(change.stack(Counter::IpInReceives), 0);
    }

    #[test]
    fn names_are_unique_over_all_tables() {
        let names: Vec<_> = Snapshot::default().iter().map(|(name, _)| name).collect();
        let unique: BTreeSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        assert_eq!(names.len(), Counter::COUNT + tcp::Counter::COUNT + DropReason::COUNT);
    }

    #[test]
    fn groups_of_linux_precede_own_counters_and_drop_reasons() {
        let names: Vec<_> = Snapshot::default().iter().map(|(name, _)| name).collect();
        let at = |name| names.iter().position(|&known| known == name).unwrap();
        let order = [
            at("IpInReceives"),
            at("IcmpInMsgs"),
            at("TcpActiveOpens"),
            at("TcpExtSyncookiesSent"),
            at("IpExtInNoRoutes"),
            at("SoftnetProcessed"),
            at("PKT_TOO_SMALL"),
        ];
        assert!(order.is_sorted(), "positions of the groups: {order:?}");
    }

    /// The kernel's own lists are the reference where they are readable. An older kernel may lack a
    /// few names.
    #[test]
    fn names_are_those_of_the_kernel() {
        // The columns of each group: those of a row that names them, or in /proc/net/snmp6 one row
        // for each name. Rows of ICMPv6 types by number (`Icmp6InType1`) are skipped, because they
        // repeat the counts of the rows with names.
        let snmp6 = |text: &str, group: &str| {
            let names = text.lines().filter_map(|line| line.split_whitespace().next());
            let of_group = names.filter(|name| name.starts_with(group) && !name.contains("Type"));
            of_group.map(str::to_owned).collect::<Vec<_>>()
        };
        for (file, groups) in [
            ("/proc/net/snmp", ["Ip", "Icmp", "Udp"]),
            ("/proc/net/netstat", ["IpExt"; 3]),
            ("/proc/net/snmp6", ["Ip6", "Icmp6", "Ip6"]),
        ] {
            let Ok(text) = std::fs::read_to_string(file) else { continue };
            for group in groups {
                let prefix = format!("{group}:");
                let header = text.lines().find(|line| line.starts_with(&prefix));
                let columns = header.into_iter().flat_map(|row| row.split_whitespace().skip(1));
                let known: Vec<_> = columns
                    .map(|name| format!("{group}{name}"))
                    .chain(file.ends_with("6").then(|| snmp6(&text, group)).into_iter().flatten())
                    .collect();
                let ours: Vec<_> = Counter::ALL
                    .iter()
                    .map(|counter| counter.name())
                    .filter(|name| known.iter().any(|known| known == name))
                    .collect();
                let shared: Vec<_> =
                    known.iter().filter(|name| ours.contains(&name.as_str())).collect();
                assert_eq!(shared, ours, "the names of {group} are not in the order of {file}");
                let explained = |name: &&String| NOT_COUNTED.iter().any(|(not, _)| not == name);
                let known = known.iter().filter(|name| !shared.contains(name));
                let missing: Vec<_> = known.filter(|name| !explained(name)).collect();
                assert!(
                    missing.is_empty(),
                    "names of {file} that are in neither table: {missing:?}"
                );
            }
        }
    }

    #[test]
    fn texts_are_sentences() {
        for counter in Counter::ALL {
            assert!(counter.doc().ends_with('.'), "{}", counter.name());
        }
    }

    #[test]
    fn a_snapshot_prints_in_the_columns_of_nstat() {
        let page = CounterPage::new();
        page.stack.add(Counter::IpInReceives, 12);
        let text = Snapshot::sum([&page]).to_string();
        assert_eq!(text.lines().next(), Some("IpInReceives                    12"));
        assert_eq!(format!("{page:?}"), r#"{"IpInReceives": 12}"#);
    }

    #[test]
    fn pages_do_not_share_cache_lines() {
        assert_eq!(align_of::<CounterPage>(), 128);
        assert_eq!(size_of::<CounterPage>() % 128, 0);
    }
}
