//! The neighbors of a host: one entry per address and device, and what their state machine asks to be done.
//!
//! Below: [`crate::transmit::neighbor`], which decides. Above: `link_output::output`, which looks at [`NeighborEntry::resolved`] for
//! every list of packets. Linux: net/core/neighbour.c, net/ipv4/arp.c (`arp_solicit`, `arp_error_report`).
//!
//! An entry publishes its link address in one word, so that sending to a reachable neighbor takes no lock.
//!
//! Not here: entries that an administrator sets ([`admin`]).

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    ops::Bound,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use pkt::{DropReason, Instant, Packet, PacketList};
use tcp::{FourTuple, IcmpError, SeqNum, TcpError};

use super::{Advertisement, Neighbor, NeighborAction, NeighborActions, NudState};
use crate::{
    base::{
        armed::Armed,
        counters::{Counter, Snapshot},
        ids::CoreId,
    },
    core::TimerEntry,
    cx::Cx,
    device::{LinkType, QueueId},
    header::{arp::ArpPacket, ethernet::MacAddr, icmp::Quote, ip::protocol},
    host::Host,
    socket::demux::Entry,
    sysctl::modes::NeighborConfig,
    transmit::link_output,
};

mod admin;

pub use admin::NeighborInfo;

/// In `NeighborEntry::published`, above the 48 bits of the address: there is one.
const RESOLVED: u64 = 1 << 48;

/// How many times `gc_thresh3` entries may be in use at once. Differs from Linux, which refuses at `gc_thresh3`: by
/// default a host may have more connections on its link than that.
const OVERFLOW: usize = 8;

/// Entries that a newcomer to a full table looks at. A bound, because strangers bring as many newcomers as they like, and
/// entries that packets wait for cannot be forgotten however often they are looked at.
const LOOKED_AT_MAX: usize = 16;

/// Time between two looks at all entries of a table that has reached [`OVERFLOW`], and between two times that cached routes are
/// given up for the neighbors they keep.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// How finely progress of connections is noted: the line is shared by all of them, and what depends on it takes
/// seconds.
const CONFIRM_GRANULARITY: Duration = Duration::from_millis(500);

/// Timers of neighbors run on the first core: ARP is not a data path.
const CORE: CoreId = CoreId(0);

/// One address on one device.
#[derive(Debug)]
pub(crate) struct NeighborEntry {
    device: u32,
    ip: IpAddr,
    /// Address that our questions name as the asker.
    source: IpAddr,
    this: Weak<Self>,
    /// [`RESOLVED`] with the link address, or 0. Written under `state`, read by every sender.
    published: AtomicU64,
    /// Held for one event; what it asks for is done after it is released.
    state: Mutex<Neighbor>,
    /// When a connection last made progress through this neighbor. Written by whoever holds a connection, taken over
    /// by the next event. Relaxed: a hint.
    confirmed_ns: AtomicU64,
    /// Entries in the timer wheel. Every event may want a timer, and a station can cause events as fast as it likes: an
    /// entry for each would be memory for the asking.
    armed: Armed,
}

/// Every neighbor of a host.
#[derive(Debug)]
pub(crate) struct NeighborTable {
    entries: Mutex<Entries>,
}

/// Device and address.
type Key = (u32, IpAddr);

/// The table itself, with what is counted under its lock.
#[derive(Debug)]
struct Entries {
    config: NeighborConfig,
    map: BTreeMap<Key, Arc<NeighborEntry>>,
    /// PERMANENT entries in `map`. They are not counted against `gc_thresh3`, as in Linux (`exempt_from_gc`).
    permanent: usize,
    /// The entry that a newcomer to a full table looked at last; the next one goes on behind it.
    hand: Option<Key>,
    /// Last look at all entries.
    scanned_at: Option<Instant>,
    /// Last time that cached routes were given up.
    gave_up_at: Option<Instant>,
    allocs: u64,
    destroys: u64,
    /// Times that as many entries as there are have been looked at, in steps or at once.
    forced_gc_runs: u64,
    /// Entries looked at since the last of these.
    looked_at: usize,
    table_fulls: u64,
}

impl Entries {
    /// Entries that `gc_thresh3` bounds.
    fn dynamic(&self) -> usize {
        self.map.len() - self.permanent
    }

    /// Makes an entry of which nothing is known.
    fn insert(&mut self, (device, ip): Key, source: IpAddr) -> Arc<NeighborEntry> {
        let random = u32::try_from(entropy(ip)).unwrap_or(u32::MAX);
        let reachable_time = self.config.reachable_time(random);
        let entry = Arc::new_cyclic(|this| NeighborEntry {
            device,
            ip,
            source,
            this: this.clone(),
            published: AtomicU64::new(0),
            state: Mutex::new(Neighbor::new(Instant::ZERO, reachable_time)),
            confirmed_ns: AtomicU64::new(0),
            armed: Armed::new(),
        });
        self.map.insert((device, ip), Arc::clone(&entry));
        self.allocs += 1;
        entry
    }

    /// Makes room for a newcomer to a full table: forgets what nobody uses until one more fits into `limit`, looking at
    /// [`LOOKED_AT_MAX`] entries at most. Linux bounds `neigh_forced_gc` likewise, by time.
    fn make_room(&mut self, limit: usize) {
        let behind = self.hand.map_or(Bound::Unbounded, Bound::Excluded);
        let (mut spare, mut looked_at, mut last) =
            ((self.dynamic() + 1).saturating_sub(limit), 0, None);
        let mut unused = Vec::new();
        for (key, entry) in self.map.range((behind, Bound::Unbounded)).take(LOOKED_AT_MAX) {
            (looked_at, last) = (looked_at + 1, Some(*key));
            if spare > 0 && entry.is_unused() {
                spare -= 1;
                unused.push(*key);
            }
            if spare == 0 {
                break;
            }
        }
        // At the end of the table the next newcomer begins anew.
        self.hand = last.filter(|_| spare == 0 || looked_at == LOOKED_AT_MAX);
        self.looked_at += looked_at;
        if self.looked_at >= self.map.len() {
            self.looked_at = 0;
            self.forced_gc_runs += 1;
        }
        self.destroys += unused.len() as u64;
        for key in unused {
            self.map.remove(&key);
        }
    }

    /// Forgets everything that nobody uses, if the last time is [`SCAN_INTERVAL`] ago.
    fn scan(&mut self, now: Instant) {
        if !is_due(self.scanned_at, now) {
            return;
        }
        self.scanned_at = Some(now);
        let before = self.map.len();
        self.map.retain(|_, entry| !entry.is_unused());
        self.forced_gc_runs += 1;
        self.destroys += (before - self.map.len()) as u64;
    }
}

/// Whether [`SCAN_INTERVAL`] has passed since `last`. Contexts read the clock at different moments: `now` may be before it.
fn is_due(last: Option<Instant>, now: Instant) -> bool {
    last.is_none_or(|last| now.saturating_duration_since(last) >= SCAN_INTERVAL)
}

impl NeighborTable {
    pub(crate) const fn new(config: NeighborConfig) -> Self {
        let entries = Entries {
            config,
            map: BTreeMap::new(),
            permanent: 0,
            hand: None,
            scanned_at: None,
            gave_up_at: None,
            allocs: 0,
            destroys: 0,
            forced_gc_runs: 0,
            looked_at: 0,
            table_fulls: 0,
        };
        Self { entries: Mutex::new(entries) }
    }

    /// Whether the caller may give up cached routes for the neighbors that only these keep: the next newcomer then looks at all
    /// entries. Not more often than every [`SCAN_INTERVAL`], or strangers would have every packet pay for both.
    #[must_use]
    pub(crate) fn may_give_up_routes(&self, now: Instant) -> bool {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let due = is_due(entries.gave_up_at, now);
        if due {
            entries.gave_up_at = Some(now);
            entries.scanned_at = None;
        }
        due
    }

    /// Other settings for the entries to come; those that exist are given theirs with every event.
    pub(crate) fn configure(&self, config: NeighborConfig) {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).config = config;
    }

    /// The entry of `ip`, made if there is none. A full table forgets what nobody uses; if everything is in use it
    /// grows beyond `gc_thresh3` rather than cut a connection off, up to [`OVERFLOW`] times as many. `None` beyond.
    pub(crate) fn entry(
        &self,
        device: u32,
        ip: IpAddr,
        source: IpAddr,
        now: Instant,
    ) -> Option<Arc<NeighborEntry>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.map.get(&(device, ip)) {
            return Some(Arc::clone(entry));
        }
        let limit = entries.config.gc_thresh3 as usize;
        if entries.dynamic() >= limit {
            entries.make_room(limit);
        }
        if entries.dynamic() >= limit.saturating_mul(OVERFLOW) {
            entries.scan(now);
        }
        if entries.dynamic() >= limit.saturating_mul(OVERFLOW) {
            entries.table_fulls += 1;
            return None;
        }
        Some(entries.insert((device, ip), source))
    }

    /// `device` is down: forgets its neighbors, those included that were set, and drops what waits for them. Linux: `neigh_ifdown`.
    pub(crate) fn device_down(&self, cx: &mut Cx, device: u32) {
        let gone: Vec<_> = {
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            let keys: Vec<_> =
                entries.map.keys().filter(|(on, _)| *on == device).copied().collect();
            entries.destroys += keys.len() as u64;
            let gone: Vec<_> = keys.iter().filter_map(|key| entries.map.remove(key)).collect();
            entries.permanent -= gone.iter().filter(|entry| entry.is_permanent()).count();
            gone
        };
        for entry in gone {
            entry.shut_down(cx);
        }
    }

    /// Adds what is counted here to a sum over pages.
    pub(crate) fn add_counts(&self, sums: &mut Snapshot) {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        sums.add_stack(Counter::NeighAllocs, entries.allocs);
        sums.add_stack(Counter::NeighDestroys, entries.destroys);
        sums.add_stack(Counter::NeighForcedGcRuns, entries.forced_gc_runs);
        sums.add_stack(Counter::NeighTableFulls, entries.table_fulls);
    }

    /// A neighbor has told its link address. Without an entry one is made only if `may_create`. In strict mode no entry is made,
    /// and one changes by the answer it waits for alone.
    pub(crate) fn learn(
        &self,
        host: &Host,
        cx: &mut Cx,
        (device, ip): (u32, IpAddr),
        told: Advertisement,
        may_create: Option<IpAddr>,
    ) {
        let strict = cx.sysctls().arp_strict;
        if strict >= 2 {
            return;
        }
        let known = {
            let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            entries.map.get(&(device, ip)).map(Arc::clone)
        };
        let entry = match (known, may_create) {
            (Some(entry), _) => Some(entry),
            (None, Some(source)) if strict == 0 => self.entry(device, ip, source, cx.now),
            (None, _) => None,
        };
        let Some(entry) = entry else { return };
        entry.event(host, cx, None, |state, cx, config| {
            if strict == 0 || state.awaits(told) {
                state.on_advertisement(told, cx.now, config)
            } else {
                NeighborActions::new()
            }
        });
    }
}

impl NeighborEntry {
    /// Whose link address it is.
    pub(crate) const fn ip(&self) -> IpAddr {
        self.ip
    }

    /// The link address, when a packet may be sent to it without telling the state machine.
    #[inline]
    pub(crate) fn resolved(&self) -> Option<MacAddr> {
        let published = self.published.load(Ordering::Relaxed);
        (published & RESOLVED != 0).then(|| MacAddr::from_bits(published & (RESOLVED - 1)))
    }

    /// An upper layer has proof that packets arrive through this neighbor.
    #[inline]
    pub(crate) fn confirm(&self, now: Instant) {
        let confirmed = Instant::from_nanos(self.confirmed_ns.load(Ordering::Relaxed));
        if now - confirmed >= CONFIRM_GRANULARITY {
            self.confirmed_ns.store(now.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Whether the table may forget this entry: nobody else refers to it, and no packet waits for it.
    fn is_unused(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1
            && self.state.lock().unwrap_or_else(PoisonError::into_inner).may_collect()
    }

    /// Sends IP packets to this neighbor by `queue`, or keeps them until it is resolved.
    pub(crate) fn send(&self, host: &Host, cx: &mut Cx, queue: QueueId, list: &mut PacketList) {
        self.event(host, cx, Some(queue), |state, cx, config| state.output(list, cx.now, config));
    }

    pub(crate) fn on_timer(&self, host: &Host, cx: &mut Cx) {
        self.armed.fired(cx.now);
        self.event(host, cx, None, |state, cx, config| state.on_timer(cx.now, config));
    }

    /// Whoever still has a path through it finds it failed.
    fn shut_down(&self, cx: &mut Cx) {
        let actions = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            self.published.store(0, Ordering::Relaxed);
            state.shut_down(cx.now)
        };
        for action in actions {
            if let NeighborAction::Fail { packets, .. } = action {
                for packet in packets {
                    cx.drop_packet(DropReason::DeviceDown, packet);
                }
            }
        }
    }

    /// Applies one event, publishes the outcome, then does what it asks for. `queue`: the one of packets that it is about.
    fn event(
        &self,
        host: &Host,
        cx: &mut Cx,
        queue: Option<QueueId>,
        apply: impl FnOnce(&mut Neighbor, &Cx, &NeighborConfig) -> NeighborActions,
    ) {
        let (actions, deadline) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let before = state.state();
            state.on_confirmed(Instant::from_nanos(self.confirmed_ns.load(Ordering::Relaxed)));
            let actions = apply(&mut state, cx, &cx.sysctls().neigh);
            if state.state() == NudState::Failed && before != NudState::Failed {
                cx.count(Counter::NeighResFailed, 1);
            }
            self.publish(&state);
            (actions, state.next_deadline().filter(|deadline| self.armed.must_arm(*deadline)))
        };
        if let Some(deadline) = deadline {
            host.core(CORE).arm(deadline, TimerEntry::Neighbor(self.this.clone()));
        }
        self.carry_out(host, cx, queue, actions);
    }

    /// Lets senders find the link address of `state`, which the caller has locked.
    fn publish(&self, state: &Neighbor) {
        let published = state.published().map_or(0, |mac| RESOLVED | mac.to_bits());
        self.published.store(published, Ordering::Relaxed);
    }

    /// Does what an event asks for, without the lock.
    fn carry_out(
        &self,
        host: &Host,
        cx: &mut Cx,
        queue: Option<QueueId>,
        actions: NeighborActions,
    ) {
        for action in actions {
            match action {
                NeighborAction::SendProbe { unicast } => self.probe(host, cx, unicast),
                NeighborAction::Flush { mac, packets } => self.flush(host, cx, queue, mac, packets),
                NeighborAction::Fail { reason, packets } => fail(host, cx, reason, packets),
            }
        }
    }

    fn probe(&self, host: &Host, cx: &mut Cx, unicast: Option<MacAddr>) {
        let LinkType::Ethernet { mac } = host.device(self.device).caps().link else { return };
        if let (IpAddr::V4(source), IpAddr::V4(ip)) = (self.source, self.ip) {
            let to = unicast.unwrap_or(MacAddr::BROADCAST);
            link_output::send_arp(host, cx, self.device, to, &ArpPacket::request(mac, source, ip));
        }
    }

    /// What has waited, and has no `queue` any more, leaves by the one that its flow would choose: the peer's side of a connection
    /// lives where its first packet arrives. Linux asks `netdev_pick_tx` then, too.
    fn flush(
        &self,
        host: &Host,
        cx: &mut Cx,
        queue: Option<QueueId>,
        next_hop: MacAddr,
        mut packets: PacketList,
    ) {
        let LinkType::Ethernet { mac } = host.device(self.device).caps().link else { return };
        let tx = host.tx(self.device);
        link_output::frame(&mut packets, next_hop, mac);
        if let Some(queue) = queue {
            let _ = tx.xmit(host, cx, queue, &mut packets);
            return;
        }
        while let Some(packet) = packets.pop_front() {
            let hash = packet.meta().flow_hash;
            let queue = tx.pick_queue(cx, host.core_of_flow(hash), hash);
            let _ = tx.xmit(host, cx, queue, &mut PacketList::from_iter([packet]));
        }
    }
}

/// Drops what could not be sent. Its senders learn that the host cannot be reached, as `arp_error_report` tells them.
fn fail(host: &Host, cx: &mut Cx, reason: DropReason, mut packets: PacketList) {
    if reason == DropReason::NeighborQueueFull {
        cx.count(Counter::NeighUnresolvedDiscards, packets.len() as u64);
    }
    while let Some(packet) = packets.pop_front() {
        if reason == DropReason::NeighborFailed {
            report_unreachable(host, cx, &packet);
        }
        cx.drop_packet(reason, packet);
    }
}

fn report_unreachable(host: &Host, cx: &mut Cx, packet: &Packet) {
    let Ok(sent) = Quote::parse::<true>(packet.linear()) else { return };
    if sent.protocol != protocol::TCP {
        return;
    }
    let (src_port, dst_port) = sent.ports();
    let tuple = FourTuple {
        local: SocketAddr::new(sent.src, src_port),
        remote: SocketAddr::new(sent.dst, dst_port),
    };
    let hash = host.demux().hash(&tuple);
    let reader = cx.reader();
    let rcu = reader.pin();
    if let Some(Entry::Stream(socket)) = host.demux().established(hash, &tuple, &rcu) {
        let error = IcmpError::PathBroken(TcpError::HostUnreachable);
        socket.icmp_error(host, cx, error, SeqNum(sent.tcp_seq()));
    }
}

/// A number that differs between neighbors, so that they are not probed in step.
fn entropy(ip: IpAddr) -> u64 {
    let bits = match ip {
        IpAddr::V4(ip) => u64::from(ip.to_bits()),
        IpAddr::V6(ip) => {
            let [high, low] =
                [ip.to_bits() >> 64, ip.to_bits()].map(|half| half & u128::from(u64::MAX));
            u64::try_from(high ^ low).unwrap_or(0)
        }
    };
    bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}
