//! IGMP as a host: reports of the multicast groups that sockets of this host have joined.
//!
//! Above: `socket::datagram::groups`, which reports the first join and the last leave of a group,
//! and `receive::igmp_input`, which passes queries. Linux: net/ipv4/igmp.c. Reports are those of
//! RFC 3376 (IGMPv3), or of RFC 2236 (IGMPv2) while a router of an older version is present.
//!
//! A change is reported at once, and again after a random time of up to a second (robustness 2). A
//! query is answered after a random part of its response time. All groups are reported in the mode
//! EXCLUDE without sources, because sockets do not filter by source.
//!
//! Differs from Linux: queries of IGMPv1 are answered like those of IGMPv2, and a report of another
//! host does not suppress the report of this host. For IGMPv3, RFC 3376 §4.2 forbids that
//! suppression in any case.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
    vec::Vec,
};

use pkt::{Instant, Sum, TxChecksum};

use super::Net;
use crate::{
    base::ids::{CoreId, DeviceIndex, LOOPBACK},
    cx::Cx,
    header::ip::{self, ETHER_TYPE_IPV4, Fragment, IPV4_HEADER_LEN, IpHeader, protocol},
    socket::{core_sockets::TimerEntry, datagram::groups::Membership},
    transmit::ip_output,
};

/// The timer runs on the first core: IGMP is not a data path.
const CORE: CoreId = CoreId(0);

/// Group of all hosts, which is never reported (RFC 3376 §5).
const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);

/// Group of all IGMPv3 routers: destination of version 3 reports (RFC 3376 §4.2.14).
const ALL_IGMPV3_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 22);

/// Group of all routers: destination of IGMPv2 Leave messages (RFC 2236 §9).
const ALL_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);

/// Unsolicited Report Interval of RFC 3376 §8.11.
const UNSOLICITED_INTERVAL: Duration = Duration::from_secs(1);

/// Older Version Querier Present Timeout of RFC 3376 §8.12: two query intervals of 125 s, and a
/// response time of 10 s.
const OLDER_QUERIER_TIMEOUT: Duration = Duration::from_secs(260);

/// With this number of waiting reports, further queries are not answered.
const WAITING_MAX: usize = 256;

/// Largest number of groups in one report.
const RECORDS_MAX: usize = 64;

/// Length of the header with the option Router Alert (RFC 2113).
const HEADER_BYTES: usize = IPV4_HEADER_LEN + 4;

/// Types of group records (RFC 3376 §4.2.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Record {
    ModeIsExclude = 2,
    ChangeToInclude = 3,
    ChangeToExclude = 4,
}

/// Message types.
const V3_REPORT: u8 = 0x22;
const V2_REPORT: u8 = 0x16;
const V2_LEAVE: u8 = 0x17;

/// A report that is due later.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    device: DeviceIndex,
    /// Group; `None` for all groups of the device.
    group: Option<Ipv4Addr>,
    record: Record,
    due: Instant,
}

/// Reports that wait, and the versions of the routers.
#[derive(Debug, Default)]
pub(crate) struct Igmp(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Waiting>,
    /// Devices with a router of an older version than IGMPv3, each with the time until which this
    /// host uses the older version on the device.
    older: Vec<(DeviceIndex, Instant)>,
}

/// A membership query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Query {
    pub(crate) device: DeviceIndex,
    /// Group of a group-specific query.
    pub(crate) group: Option<Ipv4Addr>,
    /// Upper bound of the random time after which the answer is sent.
    pub(crate) response_time: Duration,
    /// Whether the router speaks an older version than IGMPv3.
    pub(crate) older: bool,
}

impl Igmp {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_older(&self, device: DeviceIndex, now: Instant) -> bool {
        self.older.iter().any(|(on, until)| *on == device && now < *until)
    }
}

/// Returns a random time below `limit`.
fn random(cx: &mut Cx, limit: Duration) -> Duration {
    let limit = u32::try_from(limit.as_micros()).unwrap_or(u32::MAX);
    Duration::from_micros(u64::from(cx.rng.below(limit.max(1))))
}

impl Net {
    /// Reports a group after the first socket of the host has joined it on a device.
    pub(crate) fn on_group_joined(&self, cx: &mut Cx, membership: Membership) {
        self.report_change(cx, membership, Record::ChangeToExclude);
    }

    /// Reports that the last socket of the host has left a group on a device.
    pub(crate) fn on_group_left(&self, cx: &mut Cx, membership: Membership) {
        self.report_change(cx, membership, Record::ChangeToInclude);
    }

    fn report_change(&self, cx: &mut Cx, membership: Membership, record: Record) {
        let Membership { device, group: IpAddr::V4(group) } = membership else { return };
        if device == LOOPBACK || group == ALL_HOSTS || self.is_down() {
            return;
        }
        let entered = cx.enter(self);
        let due = cx.now + random(cx, UNSOLICITED_INTERVAL);
        {
            let mut state = self.igmp.lock();
            // A change replaces the waiting report of an earlier change of the group.
            state
                .waiting
                .retain(|waiting| (waiting.device, waiting.group) != (device, Some(group)));
            state.waiting.push(Waiting { device, group: Some(group), record, due });
        }
        self.send_report(cx, device, &[group], record);
        self.arm_igmp();
        cx.do_softirq();
        cx.leave(entered);
    }

    /// Softirq: schedules the answer to a query, unless an answer about the same group or all
    /// groups is already due earlier.
    pub(crate) fn on_igmp_query(&self, cx: &mut Cx, query: &Query) {
        let Query { device, group, response_time, older } = *query;
        let due = cx.now + random(cx, response_time);
        {
            let mut state = self.igmp.lock();
            if older {
                state.older.retain(|(on, _)| *on != device);
                state.older.push((device, cx.now + OLDER_QUERIER_TIMEOUT));
            }
            let is_answered = |waiting: &Waiting| {
                waiting.device == device
                    && waiting.record == Record::ModeIsExclude
                    && (waiting.group.is_none() || waiting.group == group)
                    && waiting.due <= due
            };
            if state.waiting.iter().any(is_answered) || state.waiting.len() >= WAITING_MAX {
                return;
            }
            let record = Record::ModeIsExclude;
            state.waiting.push(Waiting { device, group, record, due });
        }
        self.arm_igmp();
    }

    /// Softirq: sends the reports that are due.
    pub(crate) fn on_igmp_timer(&self, cx: &mut Cx) {
        let due: Vec<_> = {
            let mut state = self.igmp.lock();
            let now = cx.now;
            let due = state.waiting.iter().copied().filter(|waiting| waiting.due <= now).collect();
            state.waiting.retain(|waiting| waiting.due > now);
            due
        };
        for Waiting { device, group, record, .. } in due {
            let mut groups = self.groups_of(cx, device);
            if record != Record::ChangeToInclude {
                groups.retain(|member| group.is_none_or(|group| group == *member));
            } else if let Some(group) = group {
                groups = Vec::from([group]);
            }
            for part in groups.chunks(RECORDS_MAX) {
                self.send_report(cx, device, part, record);
            }
        }
        self.arm_igmp();
    }

    fn groups_of(&self, cx: &Cx, device: DeviceIndex) -> Vec<Ipv4Addr> {
        let reader = cx.reader();
        let groups = self.groups().of_device(device, &reader.pin());
        let v4 = groups.into_iter().filter_map(|group| match group {
            IpAddr::V4(group) if group != ALL_HOSTS => Some(group),
            _ => None,
        });
        v4.collect()
    }

    fn arm_igmp(&self) {
        let due = self.igmp.lock().waiting.iter().map(|waiting| waiting.due).min();
        if let Some(due) = due {
            self.core_sockets(CORE).arm(due, TimerEntry::Igmp);
        }
    }

    fn send_report(&self, cx: &mut Cx, device: DeviceIndex, groups: &[Ipv4Addr], record: Record) {
        if self.igmp.lock().is_older(device, cx.now) {
            for group in groups {
                let (kind, to) = match record {
                    Record::ChangeToInclude => (V2_LEAVE, ALL_ROUTERS),
                    _ => (V2_REPORT, *group),
                };
                let mut message = [0; 8];
                message[0] = kind;
                message[4..].copy_from_slice(&group.octets());
                self.send_igmp(cx, device, to, &mut message);
            }
            return;
        }
        let mut message = [0; 8 + 8 * RECORDS_MAX];
        let count = groups.len().min(RECORDS_MAX);
        message[0] = V3_REPORT;
        message[6..8].copy_from_slice(&u16::try_from(count).unwrap_or_default().to_be_bytes());
        for (group, bytes) in groups.iter().zip(message[8..].chunks_exact_mut(8)) {
            bytes[0] = record as u8;
            bytes[4..].copy_from_slice(&group.octets());
        }
        self.send_igmp(cx, device, ALL_IGMPV3_ROUTERS, &mut message[..8 + 8 * count]);
    }

    /// Sends one message, with TTL 1, the precedence of network control and the option Router Alert
    /// (RFC 3376 §4). Without memory or a route the message is lost, as it can be on the link.
    fn send_igmp(&self, cx: &mut Cx, device: DeviceIndex, to: Ipv4Addr, message: &mut [u8]) {
        let mut sum = Sum::default();
        sum.add_bytes(message);
        message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
        let Ok(hop) = self.datagram_hop(cx, to.into(), None, false, Some(device)) else { return };
        let reader = cx.reader();
        let rcu = reader.pin();
        let Ok(dst) = self.output_routes().entry(self, cx, &hop, CORE, &rcu) else { return };
        let Some(mut packet) = cx.pool.alloc_from(message) else { return };
        let src = dst.cold().source;
        let header = IpHeader {
            src,
            dst: to.into(),
            protocol: protocol::IGMP,
            hop_limit: 1,
            traffic_class: 0xc0,
            flow_label: 0,
            id: 0,
            fragment: Fragment::DONT,
            header_len: 0,
            payload_len: u32::try_from(message.len()).unwrap_or_default(),
        };
        let bytes = packet.push(HEADER_BYTES);
        header.emit::<true>(bytes);
        ip::add_router_alert(bytes);
        let meta = packet.meta_mut();
        meta.protocol = ETHER_TYPE_IPV4;
        meta.tx_checksum = TxChecksum::Done;
        ip_output::send(cx, &dst, packet);
    }
}
