//! IGMP and MLD as a host: reports of the multicast groups of this host to routers and switches.
//!
//! Above: `socket::datagram::groups`, which reports the first join and the last leave of a group,
//! `claims`, which reports the solicited-node group of an address, and `receive::group_query`,
//! which passes queries. Linux: net/ipv4/igmp.c, net/ipv6/mcast.c. Reports are those of RFC 3376
//! (IGMPv3) and RFC 3810 (MLDv2), or of RFC 2236 (IGMPv2) and RFC 2710 (MLDv1) while a router of an
//! older version is present. MLD is IGMP with other numbers: both have the same queries, records
//! and delays, so that one state machine serves both.
//!
//! A change is reported at once, and again after a random time of up to a second (robustness 2). A
//! query is answered after a random part of its response time, but not before [`ANSWER_DELAY_MIN`].
//! What waits is the reason of a report (`Reason`); its records are made from the source filter of
//! the host when it is sent (`records`).
//!
//! Invariant: at most one answer and one change wait for each group of a device, and one answer for
//! all groups of an IP version on a device; at most [`WAITING_MAX`] reports wait in total. The
//! answers about one group, and those about all groups, are at least [`ANSWER_DELAY_MIN`] apart,
//! however many queries arrive.
//!
//! Differs from Linux: queries of IGMPv1 are answered like those of IGMPv2, and a report of another
//! host does not suppress the report of this host; IGMPv3 and MLDv2 have no such suppression. The
//! groups of an address that this host gives up are not reported as left: they are only missing in
//! the answer to the next query.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
    vec::Vec,
};

use pkt::{Instant, TxChecksum};

use super::Net;
use crate::{
    base::{
        armed_timers::ArmedTimers,
        counters::Counter,
        ids::{CoreId, DeviceIndex, LOOPBACK},
    },
    cx::Cx,
    device::LinkType,
    header::{
        ethernet::multicast_mac,
        icmp,
        ip::{
            self, ETHER_TYPE_IPV4, ETHER_TYPE_IPV6, Fragment, IPV4_HEADER_LEN, IPV6_HEADER_LEN,
            IpHeader, protocol,
        },
        ndp,
    },
    route::source_address,
    socket::{
        core_sockets::TimerEntry,
        datagram::{groups::Membership, source_filter::SourceFilter},
    },
    transmit::link_output::send_control,
};
use records::{Message, Record, records};

mod records;

/// The timer runs on the first core, because these reports are not on the data path.
const CORE: CoreId = CoreId(0);

/// Group of all hosts, which is never reported (RFC 3376 §5).
pub(crate) const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);

/// Unsolicited Report Interval of RFC 3376 §8.11 and RFC 3810 §9.11.
const UNSOLICITED_INTERVAL: Duration = Duration::from_secs(1);

/// Shortest time from a query to its answer, so that queries with a response time of 0 are not
/// answered one for one. Linux waits a tick of its clock, which has 1 to 10 ms.
const ANSWER_DELAY_MIN: Duration = Duration::from_millis(10);

/// Older Version Querier Present Timeout of RFC 3376 §8.12 and RFC 3810 §9.12: two query intervals
/// of 125 s, and a response time of 10 s.
const OLDER_QUERIER_TIMEOUT: Duration = Duration::from_secs(260);

/// Largest number of reports that wait. Further queries are not answered, and further changes are
/// reported only once.
const WAITING_MAX: usize = 256;

/// Largest number of sources that a waiting report names. Beyond it, the report is about the whole
/// filter of its group.
const SOURCES_MAX: usize = 64;

/// Differentiated services field of IGMP: internetwork control (RFC 3376 §4).
const INTERNETWORK_CONTROL: u8 = 0xc0;

/// Hop-by-Hop header with the option Router Alert for MLD (RFC 2711), padded to eight bytes.
const ROUTER_ALERT_V6: [u8; 8] = [protocol::ICMPV6, 0, 5, 2, 0, 0, 1, 0];

/// Message types and destinations of one protocol.
struct Numbers {
    /// Report of the present version, and its destination: all routers that speak it.
    report: u8,
    routers: IpAddr,
    /// Report and leave message of the older version; the latter goes to all routers.
    old_report: u8,
    old_leave: u8,
    old_routers: IpAddr,
}

const IGMP: Numbers = Numbers {
    report: 0x22,
    routers: IpAddr::V4(Ipv4Addr::new(224, 0, 0, 22)),
    old_report: 0x16,
    old_leave: 0x17,
    old_routers: IpAddr::V4(Ipv4Addr::new(224, 0, 0, 2)),
};

const MLD: Numbers = Numbers {
    report: icmp::MLD_V2_REPORT,
    routers: IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16)),
    old_report: icmp::MLD_REPORT,
    old_leave: icmp::MLD_DONE,
    old_routers: IpAddr::V6(ndp::ALL_ROUTERS),
};

/// Reason of a report about a group.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reason {
    /// A query, about these sources or, without sources, about the whole filter.
    Query(Vec<IpAddr>),
    /// The mode of the filter has changed; a group without members has mode INCLUDE.
    Mode,
    /// A change of the filter: sources that were added to it or removed from it.
    Sources(Vec<IpAddr>),
}

impl Reason {
    /// Returns the reason of a report about a change of the filter, if it has changed.
    fn of_change(before: &SourceFilter, now: &SourceFilter) -> Option<Self> {
        if before.exclude != now.exclude {
            return Some(Self::Mode);
        }
        let sources = before.differing(now);
        (!sources.is_empty()).then_some(Self::Sources(sources))
    }

    /// Returns the reason of one report for two changes (RFC 3376 §5.1, RFC 3810 §6.1): a change of
    /// the mode includes all others.
    fn with(self, later: Self) -> Self {
        let (Self::Sources(mut sources), Self::Sources(more)) = (self, later) else {
            return Self::Mode;
        };
        sources.extend(more);
        sources.sort_unstable();
        sources.dedup();
        Self::Sources(sources)
    }

    const fn is_query(&self) -> bool {
        matches!(self, Self::Query(_))
    }
}

/// A report that is due later.
#[derive(Clone, Debug)]
struct Waiting {
    device: DeviceIndex,
    v4: bool,
    /// Group; `None` for all groups of the device.
    group: Option<IpAddr>,
    reason: Reason,
    due: Instant,
}

/// Reports that wait, and the versions of the routers.
#[derive(Debug)]
pub(crate) struct GroupReports {
    state: Mutex<State>,
    /// Entries in the timer wheel: no more are armed than needed, although routers can send any
    /// number of queries.
    armed: ArmedTimers,
}

impl Default for GroupReports {
    fn default() -> Self {
        Self { state: Mutex::default(), armed: ArmedTimers::new() }
    }
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Waiting>,
    /// Devices with a router of an older version than IGMPv3 or MLDv2, each with the time until
    /// which this host uses the older version on the device. The flag is true for IGMP.
    older: Vec<(DeviceIndex, bool, Instant)>,
}

/// A membership query.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) device: DeviceIndex,
    /// Whether the query is one of IGMP.
    pub(crate) v4: bool,
    /// Group of a group-specific query.
    pub(crate) group: Option<IpAddr>,
    /// Sources of a query about a group and sources.
    pub(crate) sources: Vec<IpAddr>,
    /// Upper bound of the random time after which the answer is sent.
    pub(crate) response_time: Duration,
    /// Whether the router speaks an older version.
    pub(crate) older: bool,
}

impl GroupReports {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_older(&self, device: DeviceIndex, v4: bool, now: Instant) -> bool {
        self.older.iter().any(|(on, of, until)| (*on, *of) == (device, v4) && now < *until)
    }

    /// Schedules the answer to a query (RFC 3376 §5.2, RFC 3810 §6.2): an earlier answer about all
    /// groups includes this one; an answer that waits is only made earlier, and about more sources.
    fn answer(&mut self, query: Query, due: Instant) {
        let Query { device, v4, group, sources, .. } = query;
        let is_about = |waiting: &Waiting, group| {
            (waiting.device, waiting.v4, waiting.group) == (device, v4, group)
                && waiting.reason.is_query()
        };
        if self.waiting.iter().any(|waiting| is_about(waiting, None) && waiting.due <= due) {
            return;
        }
        let Some(same) = self.waiting.iter_mut().find(|waiting| is_about(waiting, group)) else {
            return self.add(Waiting { device, v4, group, reason: Reason::Query(sources), due });
        };
        same.due = same.due.min(due);
        if let Reason::Query(asked) = &mut same.reason {
            let is_whole = asked.is_empty() || sources.is_empty();
            asked.extend(sources);
            asked.sort_unstable();
            asked.dedup();
            if is_whole || asked.len() > SOURCES_MAX {
                asked.clear();
            }
        }
    }

    /// Takes the waiting report of an earlier change of a group. Answers about the group stay: a
    /// report of sources does not tell a router that the group has members.
    fn take_change(&mut self, device: DeviceIndex, group: IpAddr) -> Option<Reason> {
        let is_change = |waiting: &Waiting| {
            (waiting.device, waiting.group) == (device, Some(group)) && !waiting.reason.is_query()
        };
        let place = self.waiting.iter().position(is_change)?;
        Some(self.waiting.swap_remove(place).reason)
    }

    fn add(&mut self, report: Waiting) {
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push(report);
        }
    }
}

/// Returns a random time below `limit`.
fn random(cx: &mut Cx, limit: Duration) -> Duration {
    let limit = u32::try_from(limit.as_micros()).unwrap_or(u32::MAX);
    Duration::from_micros(u64::from(cx.rng.below(limit.max(1))))
}

/// Whether routers need to know the members of a group: not for the groups of all hosts, and not
/// for IPv6 groups that never leave a host (RFC 3376 §5, RFC 3810 §6).
fn is_reported(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => group != ALL_HOSTS,
        IpAddr::V6(group) => group != ndp::ALL_NODES && group.octets()[1] & 0x0f > 1,
    }
}

impl Net {
    /// Reports the group of an address of the host on a device.
    pub(crate) fn on_group_joined(&self, cx: &mut Cx, membership: Membership) {
        self.on_group_changed(cx, membership, &SourceFilter::NONE, &SourceFilter::ALL);
    }

    /// Reports that the filter of the host for a group has changed.
    pub(crate) fn on_group_changed(
        &self,
        cx: &mut Cx,
        membership: Membership,
        before: &SourceFilter,
        now: &SourceFilter,
    ) {
        let Membership { device, group } = membership;
        if device == LOOPBACK || !is_reported(group) || self.is_down() {
            return;
        }
        let Some(reason) = Reason::of_change(before, now) else { return };
        let entered = cx.enter(self);
        let due = cx.now + random(cx, UNSOLICITED_INTERVAL);
        let reason = {
            let mut state = self.group_reports.lock();
            let earlier = state.take_change(device, group);
            let reason = match earlier {
                Some(earlier) => earlier.with(reason),
                None => reason,
            };
            let (v4, group) = (group.is_ipv4(), Some(group));
            state.add(Waiting { device, v4, group, reason: reason.clone(), due });
            reason
        };
        self.send_reports(cx, device, group.is_ipv4(), &reason, &[group]);
        self.arm_group_timer();
        cx.do_softirq();
        cx.leave(entered);
    }

    /// Softirq: schedules the answer to a query.
    pub(crate) fn on_group_query(&self, cx: &mut Cx, query: Query) {
        let Query { device, v4, group, response_time, older, .. } = query;
        let rest = response_time.saturating_sub(ANSWER_DELAY_MIN).max(ANSWER_DELAY_MIN);
        let due = cx.now + ANSWER_DELAY_MIN + random(cx, rest);
        let groups = self.reported_groups(cx, device, v4);
        {
            let mut state = self.group_reports.lock();
            if older {
                state.older.retain(|(on, of, _)| (*on, *of) != (device, v4));
                state.older.push((device, v4, cx.now + OLDER_QUERIER_TIMEOUT));
            }
            if group.map_or(groups.is_empty(), |group| !groups.contains(&group)) {
                return;
            }
            state.answer(query, due);
        }
        self.arm_group_timer();
    }

    /// Softirq: sends the reports that are due.
    pub(crate) fn on_group_timer(&self, cx: &mut Cx) {
        self.group_reports.armed.fired(cx.now);
        let due: Vec<Waiting> = {
            let mut state = self.group_reports.lock();
            let now = cx.now;
            state.waiting.extract_if(.., |waiting| waiting.due <= now).collect()
        };
        for Waiting { device, v4, group, reason, .. } in due {
            let groups = match group {
                Some(group) => Vec::from([group]),
                None => self.reported_groups(cx, device, v4),
            };
            self.send_reports(cx, device, v4, &reason, &groups);
        }
        self.arm_group_timer();
    }

    /// Returns the groups of a device that are reported: those that sockets have joined, and for
    /// IPv6 the solicited-node groups of the device's addresses.
    fn reported_groups(&self, cx: &Cx, device: DeviceIndex, v4: bool) -> Vec<IpAddr> {
        let reader = cx.reader();
        let rcu = reader.pin();
        let mut groups = self.groups().of_device(device, &rcu);
        if !v4 {
            groups.extend(self.solicited_groups(&rcu, device));
        }
        groups.retain(|group| group.is_ipv4() == v4 && is_reported(*group));
        groups.sort_unstable();
        groups.dedup();
        groups
    }

    fn arm_group_timer(&self) {
        let due = {
            let state = self.group_reports.lock();
            let due = state.waiting.iter().map(|waiting| waiting.due).min();
            due.filter(|due| self.group_reports.armed.must_arm(*due))
        };
        if let Some(due) = due {
            self.core_sockets(CORE).arm(due, TimerEntry::GroupReports);
        }
    }

    /// Returns the filter of the host for a group on a device.
    fn filter_of(&self, cx: &Cx, membership: Membership) -> SourceFilter {
        let reader = cx.reader();
        let rcu = reader.pin();
        if let Some(filter) = self.groups().filter_of(membership, &rcu) {
            return filter;
        }
        let Membership { device, group } = membership;
        let is_of_address = group.is_ipv6() && self.solicited_groups(&rcu, device).contains(&group);
        if is_of_address { SourceFilter::ALL } else { SourceFilter::NONE }
    }

    /// Sends reports about groups, in as few messages as possible.
    fn send_reports(
        &self,
        cx: &mut Cx,
        device: DeviceIndex,
        v4: bool,
        reason: &Reason,
        groups: &[IpAddr],
    ) {
        if self.group_reports.lock().is_older(device, v4, cx.now) {
            return self.send_old_reports(cx, device, reason, groups);
        }
        let numbers = if v4 { IGMP } else { MLD };
        let mut message = Message::new(numbers.report);
        for group in groups {
            let filter = self.filter_of(cx, Membership { device, group: *group });
            for (kind, sources) in records(reason, &filter) {
                let mut record = Record { kind, group: *group, sources: &sources };
                while let Some(rest) = message.push(&record) {
                    self.send_group_message(cx, device, numbers.routers, &mut message);
                    message = Message::new(numbers.report);
                    record = rest;
                }
            }
        }
        if message.has_records() {
            self.send_group_message(cx, device, numbers.routers, &mut message);
        }
    }

    /// Sends reports to a router of the older version, which knows no source filters: one message
    /// for each group (RFC 3376 §7.2.1, RFC 3810 §8.2.1).
    fn send_old_reports(
        &self,
        cx: &mut Cx,
        device: DeviceIndex,
        reason: &Reason,
        groups: &[IpAddr],
    ) {
        for group in groups {
            let numbers = if group.is_ipv4() { IGMP } else { MLD };
            let filter = self.filter_of(cx, Membership { device, group: *group });
            let (kind, to) = match (filter == SourceFilter::NONE, reason) {
                (true, Reason::Query(_)) => continue,
                (true, _) => (numbers.old_leave, numbers.old_routers),
                (false, _) => (numbers.old_report, *group),
            };
            self.send_group_message(cx, device, to, &mut Message::old(kind, *group));
        }
    }

    /// Sends one message, with TTL or hop limit 1 and the option Router Alert (RFC 3376 §4,
    /// RFC 3810 §5). Without memory the message is lost, as it can be on the link.
    fn send_group_message(
        &self,
        cx: &mut Cx,
        device: DeviceIndex,
        to: IpAddr,
        message: &mut Message,
    ) {
        let (src, v4) = (self.report_source(cx, device, to), to.is_ipv4());
        message.fill_checksum(src, to);
        let bytes = message.bytes();
        let Some(mut packet) = cx.pool.alloc_from(bytes) else { return };
        let alert = if v4 { 0 } else { ROUTER_ALERT_V6.len() };
        let header = IpHeader {
            src,
            dst: to,
            protocol: if v4 { protocol::IGMP } else { protocol::HOP_BY_HOP },
            hop_limit: 1,
            traffic_class: if v4 { INTERNETWORK_CONTROL } else { 0 },
            flow_label: 0,
            id: 0,
            fragment: Fragment::DONT,
            header_len: 0,
            payload_len: u32::try_from(bytes.len() + alert).unwrap_or_default(),
        };
        if v4 {
            let start = packet.push(IPV4_HEADER_LEN + 4);
            header.emit::<true>(start);
            ip::add_router_alert(start);
        } else {
            packet.push(alert).copy_from_slice(&ROUTER_ALERT_V6);
            header.emit::<false>(packet.push(IPV6_HEADER_LEN));
            cx.count(Counter::Icmp6OutMsgs, 1);
            if let Some(counter) = icmp::out_counter::<false>(bytes[0]) {
                cx.count(counter, 1);
            }
        }
        let meta = packet.meta_mut();
        meta.protocol = if v4 { ETHER_TYPE_IPV4 } else { ETHER_TYPE_IPV6 };
        meta.tx_checksum = TxChecksum::Done;
        for (counter, n) in [
            (Counter::IpOutRequests, 1),
            (Counter::IpExtOutOctets, packet.len() as u64),
            (Counter::IpOutTransmits, 1),
            (Counter::IpExtOutMcastPkts, 1),
            (Counter::IpExtOutMcastOctets, packet.len() as u64),
        ] {
            cx.count(counter.of_version(v4), n);
        }
        let tx = self.tx(device);
        let frame = match tx.link() {
            LinkType::Ethernet { mac } => Some((multicast_mac(to), mac)),
            LinkType::Ip => None,
        };
        send_control(tx, cx, frame, packet);
    }

    /// Returns the source address of a report: an address of the device, for MLD a link-local one
    /// that is not probed any more; unspecified if there is none (RFC 3376 §4.2.13,
    /// RFC 3810 §5.2.13).
    fn report_source(&self, cx: &Cx, device: DeviceIndex, to: IpAddr) -> IpAddr {
        let reader = cx.reader();
        let rcu = reader.pin();
        let usable = |ip: &IpAddr| match ip {
            IpAddr::V4(_) => true,
            IpAddr::V6(link_local) => {
                link_local.is_unicast_link_local() && !self.claims().is_tentative(device, *ip)
            }
        };
        let source = source_address::select(self.fib(&rcu), device, to, false);
        source.filter(usable).unwrap_or_else(|| match to {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        })
    }
}
