//! Neighbor table of one IP version: one entry per address and device. The table carries out the
//! actions that the state machine of an entry returns.
//!
//! Below: [`crate::transmit::neighbor`], the state machine. Above: `link_output::output`, which
//! reads `NeighborEntry::resolved` for every list of packets. Linux: net/core/neighbour.c,
//! net/ipv4/arp.c (`arp_solicit`, `arp_error_report`), net/ipv6/ndisc.c (`ndisc_solicit`).
//!
//! An entry publishes its link address in one atomic word, so that a sender to a reachable neighbor
//! takes no lock.
//!
//! Not here: entries that an administrator sets (`admin`).

use std::{
    collections::BTreeMap,
    net::IpAddr,
    ops::Bound,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use pkt::{DropReason, Instant, Packet, PacketList};

use super::{Advertisement, Neighbor, NeighborAction, NeighborActions, NudState};
use crate::{
    base::{
        armed_timers::ArmedTimers,
        counters::{Counter, Snapshot},
        ids::{CoreId, DeviceIndex},
    },
    cx::Cx,
    device::{LinkType, QueueId},
    header::{arp::ArpPacket, ethernet::MacAddr},
    sysctl::modes::NeighborConfig,
    transmit::{link_output, ndp_output, tx_queue::DeviceTx},
};

mod admin;

pub use admin::NeighborInfo;

/// Bit of `NeighborEntry::published`, above the 48 bits of the link address. It is set if senders
/// may use the address without an event of the state machine.
const RESOLVED: u64 = 1 << 48;

/// Factor by which the entries in use may exceed `gc_thresh3`. Differs from Linux, which refuses
/// new entries at `gc_thresh3`: a host may have connections to more neighbors than the default of
/// 1,024.
const OVERFLOW: usize = 8;

/// Maximum number of entries examined for a new entry in a full table. The bound is needed because
/// remote hosts can cause any number of new entries, and entries with waiting packets cannot be
/// removed.
const LOOKED_AT_MAX: usize = 16;

/// Minimum interval between two scans of a table that has reached [`OVERFLOW`], and between two
/// flushes of cached routes that keep neighbors in use.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum interval between two collections because of `gc_thresh2`. Such a collection also keeps
/// the entries that have changed within this time. Linux: 5 s in `neigh_alloc` and
/// `neigh_forced_gc`.
const FLUSH_INTERVAL: Duration = Duration::from_secs(5);

/// Minimum interval between two writes of `confirmed_ns`. All connections through a neighbor share
/// its cache line, and the decisions that use it concern seconds.
const CONFIRM_GRANULARITY: Duration = Duration::from_millis(500);

/// Neighbor entry: one address on one device.
#[derive(Debug)]
pub(crate) struct NeighborEntry {
    /// Transmit queues of its device.
    tx: Arc<DeviceTx>,
    upper: Weak<dyn Upper>,
    /// Number of cores of the host.
    cores: u16,
    ip: IpAddr,
    /// Source address of the requests for the link address.
    source: IpAddr,
    this: Weak<Self>,
    /// [`RESOLVED`] with the link address, or 0. Written under `state`, read by every sender.
    published: AtomicU64,
    /// State machine. The lock is held for one event; its actions are carried out after it is
    /// released.
    state: Mutex<Neighbor>,
    /// Time of the last progress of a connection through this neighbor. Connections write it, and
    /// the next event reads it. Relaxed, because it is a hint.
    confirmed_ns: AtomicU64,
    /// Bound of this neighbor's entries in the timer wheel. Every event may need a timer, and a
    /// remote station can cause any number of events. Without the bound, the station could exhaust
    /// memory.
    armed: ArmedTimers,
}

/// Services that a neighbor needs from the layers above.
pub(crate) trait Upper: Send + Sync {
    /// Arms a timer that calls [`NeighborEntry::on_timer`] of `entry` at `at`.
    fn arm(&self, entry: Weak<NeighborEntry>, at: Instant);

    /// Reports a host unreachable error to the socket that sent `packet` over `device`.
    fn unreachable(&self, cx: &mut Cx, device: DeviceIndex, packet: &Packet);
}

/// Neighbor table of one IP version.
#[derive(Debug)]
pub(crate) struct NeighborTable {
    entries: Mutex<Entries>,
}

/// Key of an entry: device and address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) device: DeviceIndex,
    pub(crate) ip: IpAddr,
}

/// Entries, with the counts that are protected by the same lock.
#[derive(Debug)]
struct Entries {
    config: NeighborConfig,
    upper: Weak<dyn Upper>,
    /// Transmit queues of every device.
    tx: Vec<Arc<DeviceTx>>,
    /// Number of cores of the host.
    cores: u16,
    map: BTreeMap<Key, Arc<NeighborEntry>>,
    /// PERMANENT entries in `map`. They do not count towards `gc_thresh3`, as in Linux
    /// (`exempt_from_gc`).
    permanent: usize,
    /// Entry that was examined last for a new entry in a full table. The next search continues
    /// after it, or begins at the start of the table if there is none.
    hand: Option<Key>,
    /// Time of the last scan of all entries.
    scanned_at: Option<Instant>,
    /// Time of the last flush of cached routes.
    gave_up_at: Option<Instant>,
    /// Time of the last collection because of `gc_thresh2`.
    flushed_at: Option<Instant>,
    /// Time of the last collection of old entries.
    aged_at: Option<Instant>,
    allocs: u64,
    destroys: u64,
    /// Number of times that all entries were examined, in steps or at once.
    forced_gc_runs: u64,
    /// Number of collections of old entries.
    periodic_gc_runs: u64,
    /// Entries examined since `forced_gc_runs` was last incremented.
    looked_at: usize,
    table_fulls: u64,
}

impl Entries {
    /// Returns the number of entries that count towards `gc_thresh3`.
    fn dynamic(&self) -> usize {
        self.map.len() - self.permanent
    }

    /// Creates an entry in state NONE.
    fn insert(&mut self, key: Key, source: IpAddr, now: Instant) -> Arc<NeighborEntry> {
        let random = u32::try_from(entropy(key.ip)).unwrap_or(u32::MAX);
        let reachable_time = self.config.reachable_time(random);
        let mut state = Neighbor::new(Instant::ZERO, reachable_time);
        state.used = now;
        let entry = Arc::new_cyclic(|this| NeighborEntry {
            tx: Arc::clone(&self.tx[key.device.position()]),
            upper: self.upper.clone(),
            cores: self.cores,
            ip: key.ip,
            source,
            this: this.clone(),
            published: AtomicU64::new(0),
            state: Mutex::new(state),
            confirmed_ns: AtomicU64::new(0),
            armed: ArmedTimers::new(),
        });
        self.map.insert(key, Arc::clone(&entry));
        self.allocs += 1;
        entry
    }

    /// Makes room for a new entry in a full table: removes unused entries until one more fits into
    /// `limit`, but examines at most [`LOOKED_AT_MAX`] entries. Linux bounds the time of
    /// `neigh_forced_gc` instead.
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
        // At the end of the table, the next search starts from the beginning.
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

    /// Removes the unused entries that failed or were neither used nor confirmed for
    /// `gc_stale_time`, at most once per `gc_interval`, from a table of `gc_thresh1` entries or
    /// more.
    ///
    /// Differs from Linux: the addition of an entry calls this function. There is no timer
    /// (`neigh_periodic_work`), so that an idle host sleeps.
    fn collect_old(&mut self, now: Instant) {
        let NeighborConfig { gc_interval, gc_stale_time, gc_thresh1, .. } = self.config;
        let last = *self.aged_at.get_or_insert(now);
        if self.dynamic() < gc_thresh1 as usize || now.saturating_duration_since(last) < gc_interval
        {
            return;
        }
        self.aged_at = Some(now);
        self.periodic_gc_runs += 1;
        self.remove_where(usize::MAX, |state| state.is_old(now, gc_stale_time));
    }

    /// Removes unused entries from a table that has reached `gc_thresh2`, until a new entry fits,
    /// at most once per [`FLUSH_INTERVAL`]. An entry that has changed within this time stays,
    /// unless it failed. Linux: `neigh_forced_gc`.
    fn flush(&mut self, now: Instant) {
        let limit = self.config.gc_thresh2 as usize;
        let last = self.flushed_at;
        let is_due = |last| now.saturating_duration_since(last) >= FLUSH_INTERVAL;
        if self.dynamic() < limit || !last.is_none_or(is_due) {
            return;
        }
        self.flushed_at = Some(now);
        self.forced_gc_runs += 1;
        let most = (self.dynamic() + 1).saturating_sub(limit);
        self.remove_where(most, |state| state.is_settled(now, FLUSH_INTERVAL));
    }

    /// Removes up to `most` unused entries whose state is `removable`.
    fn remove_where(&mut self, most: usize, removable: impl Fn(&Neighbor) -> bool) {
        let before = self.map.len();
        let mut left = most;
        self.map.retain(|_, entry| {
            let goes = left > 0 && entry.is_unused_and(&removable);
            left -= usize::from(goes);
            !goes
        });
        self.destroys += (before - self.map.len()) as u64;
    }

    /// Removes all unused entries, unless the last scan was less than [`SCAN_INTERVAL`] ago.
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

/// Whether [`SCAN_INTERVAL`] has passed since `last`. Contexts read the clock at different times,
/// so `now` may be before `last`.
fn is_due(last: Option<Instant>, now: Instant) -> bool {
    last.is_none_or(|last| now.saturating_duration_since(last) >= SCAN_INTERVAL)
}

impl NeighborTable {
    /// Creates an empty table for a host of `cores` cores. `tx` has the transmit queues of its
    /// devices, `upper` the services of the layers above.
    pub(crate) const fn new(
        config: NeighborConfig,
        upper: Weak<dyn Upper>,
        tx: Vec<Arc<DeviceTx>>,
        cores: u16,
    ) -> Self {
        let entries = Entries {
            config,
            upper,
            tx,
            cores,
            map: BTreeMap::new(),
            permanent: 0,
            hand: None,
            scanned_at: None,
            gave_up_at: None,
            flushed_at: None,
            aged_at: None,
            allocs: 0,
            destroys: 0,
            forced_gc_runs: 0,
            periodic_gc_runs: 0,
            looked_at: 0,
            table_fulls: 0,
        };
        Self { entries: Mutex::new(entries) }
    }

    /// Whether the caller may flush the cached route entries (dst), to release neighbors that only
    /// these entries keep in use. If so, the next new neighbor scans the whole table. Limited to
    /// once per [`SCAN_INTERVAL`], so that remote hosts cannot make every packet pay for a flush
    /// and a scan.
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

    /// Changes the settings of future entries. Existing entries get the settings with every event.
    pub(crate) fn configure(&self, config: NeighborConfig) {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).config = config;
    }

    /// Returns the entry of `ip`, and creates it if necessary. A new entry beyond `gc_thresh1`
    /// removes old ones, and one beyond `gc_thresh2` or `gc_thresh3` unused ones. If all entries
    /// are in use, the table may grow to [`OVERFLOW`] times `gc_thresh3`, because a refusal would
    /// interrupt a connection. Returns `None` beyond that.
    pub(crate) fn entry(
        &self,
        device: DeviceIndex,
        ip: IpAddr,
        source: IpAddr,
        now: Instant,
    ) -> Option<Arc<NeighborEntry>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.map.get(&Key { device, ip }) {
            return Some(Arc::clone(entry));
        }
        entries.collect_old(now);
        entries.flush(now);
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
        Some(entries.insert(Key { device, ip }, source, now))
    }

    /// Removes all neighbors of `device`, including permanent ones, and drops their waiting
    /// packets, because the device is down. Linux: `neigh_ifdown`.
    pub(crate) fn device_down(&self, cx: &mut Cx, device: DeviceIndex) {
        self.remove(cx, DropReason::DeviceDown, |key, _| key.device == device);
    }

    /// Removes the neighbors of `device` whose requests have the source address `source`, and drops
    /// their waiting packets, because the host has given that address up. Permanent neighbors stay.
    pub(crate) fn source_gone(&self, cx: &mut Cx, device: DeviceIndex, source: IpAddr) {
        self.remove(cx, DropReason::NeighborFailed, |key, entry| {
            key.device == device && entry.source == source && !entry.is_permanent()
        });
    }

    /// Removes the entries for which `is_gone` returns true, and drops their waiting packets for
    /// `reason`.
    fn remove(
        &self,
        cx: &mut Cx,
        reason: DropReason,
        is_gone: impl Fn(&Key, &NeighborEntry) -> bool,
    ) {
        let gone: Vec<_> = {
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            let gone = entries.map.iter().filter(|(key, entry)| is_gone(key, entry));
            let keys: Vec<_> = gone.map(|(key, _)| *key).collect();
            entries.destroys += keys.len() as u64;
            let gone: Vec<_> = keys.iter().filter_map(|key| entries.map.remove(key)).collect();
            entries.permanent -= gone.iter().filter(|entry| entry.is_permanent()).count();
            gone
        };
        for entry in gone {
            entry.shut_down(cx, reason);
        }
    }

    /// Adds the counts of this table to a sum over counter pages.
    pub(crate) fn add_counts(&self, sums: &mut Snapshot) {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        sums.add_stack(Counter::NeighAllocs, entries.allocs);
        sums.add_stack(Counter::NeighDestroys, entries.destroys);
        sums.add_stack(Counter::NeighForcedGcRuns, entries.forced_gc_runs);
        sums.add_stack(Counter::NeighPeriodicGcRuns, entries.periodic_gc_runs);
        sums.add_stack(Counter::NeighTableFulls, entries.table_fulls);
    }

    /// Handles a packet with the link address of the neighbor `ip`. A missing entry is created only
    /// if `may_create` is given, which is the source address of the entry's later requests. With
    /// `arp_strict` at 1, no entry is created, and only a reply that an entry awaits changes it; at
    /// 2, no packet changes an entry.
    pub(crate) fn learn(
        &self,
        cx: &mut Cx,
        device: DeviceIndex,
        ip: IpAddr,
        advertisement: Advertisement,
        may_create: Option<IpAddr>,
    ) {
        let strict = cx.sysctls().arp_strict;
        if strict >= 2 {
            return;
        }
        let known = {
            let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            entries.map.get(&Key { device, ip }).map(Arc::clone)
        };
        let entry = match (known, may_create) {
            (Some(entry), _) => Some(entry),
            (None, Some(source)) if strict == 0 => self.entry(device, ip, source, cx.now),
            (None, _) => None,
        };
        let Some(entry) = entry else { return };
        entry.event(cx, None, |state, cx, config| {
            if strict == 0 || state.awaits(advertisement) {
                state.on_advertisement(advertisement, cx.now, config)
            } else {
                NeighborActions::new()
            }
        });
    }
}

impl NeighborEntry {
    /// Returns the address of the neighbor.
    pub(crate) const fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Returns the link address if packets may be sent to it without an event of the state machine.
    #[inline]
    pub(crate) fn resolved(&self) -> Option<MacAddr> {
        let published = self.published.load(Ordering::Relaxed);
        (published & RESOLVED != 0).then(|| MacAddr::from_bits(published & (RESOLVED - 1)))
    }

    /// Notes that an upper layer has a proof that packets arrive through this neighbor.
    #[inline]
    pub(crate) fn confirm(&self, now: Instant) {
        let confirmed = Instant::from_nanos(self.confirmed_ns.load(Ordering::Relaxed));
        if now - confirmed >= CONFIRM_GRANULARITY {
            self.confirmed_ns.store(now.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Whether the table may remove this entry: it has no other reference, and no packet waits for
    /// it.
    fn is_unused(self: &Arc<Self>) -> bool {
        self.is_unused_and(|_| true)
    }

    /// As [`is_unused`](Self::is_unused), for an entry whose state fulfills a condition.
    fn is_unused_and(self: &Arc<Self>, condition: impl FnOnce(&Neighbor) -> bool) -> bool {
        if Arc::strong_count(self) > 1 {
            return false;
        }
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.may_collect() && condition(&state)
    }

    /// Sends IP packets to this neighbor by the transmit queue `queue`. Until the neighbor is
    /// resolved, the packets wait in the entry.
    pub(crate) fn send(&self, cx: &mut Cx, queue: QueueId, list: &mut PacketList) {
        self.event(cx, Some(queue), |state, cx, config| state.output(list, cx.now, config));
    }

    pub(crate) fn on_timer(&self, cx: &mut Cx) {
        self.armed.fired(cx.now);
        self.event(cx, None, |state, cx, config| state.on_timer(cx.now, config));
    }

    /// Enters FAILED and drops the waiting packets for `reason`. Route entries that still refer to
    /// this neighbor then find it failed.
    fn shut_down(&self, cx: &mut Cx, reason: DropReason) {
        let actions = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            self.published.store(0, Ordering::Relaxed);
            state.shut_down(cx.now)
        };
        for action in actions {
            if let NeighborAction::Fail { packets, .. } = action {
                for packet in packets {
                    cx.drop_packet(reason, packet);
                }
            }
        }
    }

    /// Applies one event, publishes the result, then carries out the actions. `queue`: transmit
    /// queue for packets that the event releases; `None` to choose a queue for each packet.
    fn event(
        &self,
        cx: &mut Cx,
        queue: Option<QueueId>,
        apply: impl FnOnce(&mut Neighbor, &Cx, &NeighborConfig) -> NeighborActions,
    ) {
        let (actions, deadline) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let before = state.state();
            state.on_confirmed(Instant::from_nanos(self.confirmed_ns.load(Ordering::Relaxed)));
            let actions = apply(&mut state, cx, cx.sysctls().neigh_of(self.ip));
            if state.state() == NudState::Failed && before != NudState::Failed {
                cx.count(Counter::NeighResFailed, 1);
            }
            self.publish(&state);
            (actions, state.next_deadline().filter(|deadline| self.armed.must_arm(*deadline)))
        };
        if let Some(deadline) = deadline
            && let Some(upper) = self.upper.upgrade()
        {
            upper.arm(self.this.clone(), deadline);
        }
        self.carry_out(cx, queue, actions);
    }

    /// Publishes the link address of `state` to senders. The caller has locked `state`.
    fn publish(&self, state: &Neighbor) {
        let published = state.published().map_or(0, |mac| RESOLVED | mac.to_bits());
        self.published.store(published, Ordering::Relaxed);
    }

    /// Carries out the actions of an event, without the lock.
    fn carry_out(&self, cx: &mut Cx, queue: Option<QueueId>, actions: NeighborActions) {
        for action in actions {
            match action {
                NeighborAction::SendProbe { unicast } => self.probe(cx, unicast),
                NeighborAction::Flush { mac, packets } => self.flush(cx, queue, mac, packets),
                NeighborAction::Fail { reason, packets } => self.fail(cx, reason, packets),
            }
        }
    }

    fn probe(&self, cx: &mut Cx, unicast: Option<MacAddr>) {
        let LinkType::Ethernet { mac } = self.tx.link() else { return };
        match (self.source, self.ip) {
            (IpAddr::V4(source), IpAddr::V4(ip)) => {
                let to = unicast.unwrap_or(MacAddr::BROADCAST);
                link_output::send_arp(&self.tx, cx, to, &ArpPacket::request(mac, source, ip));
            }
            (IpAddr::V6(source), IpAddr::V6(ip)) => {
                ndp_output::solicit(&self.tx, cx, source, ip, unicast);
            }
            // A neighbor and the source of its requests have the same address family.
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {}
        }
    }

    /// Sends packets that have waited. Without a `queue`, each packet takes the queue of its flow:
    /// the queue may decide on which core the peer receives the first packet of a connection, and
    /// this core then owns the connection on the peer. Linux calls `netdev_pick_tx` at this point,
    /// too.
    fn flush(
        &self,
        cx: &mut Cx,
        queue: Option<QueueId>,
        next_hop: MacAddr,
        mut packets: PacketList,
    ) {
        let LinkType::Ethernet { mac } = self.tx.link() else { return };
        link_output::frame(&mut packets, next_hop, mac);
        if let Some(queue) = queue {
            let _ = self.tx.xmit(cx, queue, &mut packets);
            return;
        }
        while let Some(packet) = packets.pop_front() {
            let hash = packet.meta().flow_hash;
            let queue = self.tx.pick_queue(cx, CoreId::of_flow(hash, self.cores), hash);
            let _ = self.tx.xmit(cx, queue, &mut PacketList::from_iter([packet]));
        }
    }

    /// Drops packets that could not be sent. If resolution failed, their senders get a host
    /// unreachable error, as from `arp_error_report`.
    fn fail(&self, cx: &mut Cx, reason: DropReason, mut packets: PacketList) {
        if reason == DropReason::NeighborQueueFull {
            cx.count(Counter::NeighUnresolvedDiscards, packets.len() as u64);
        }
        while let Some(packet) = packets.pop_front() {
            if reason == DropReason::NeighborFailed
                && let Some(upper) = self.upper.upgrade()
            {
                upper.unreachable(cx, self.tx.device_index(), &packet);
            }
            cx.drop_packet(reason, packet);
        }
    }
}

/// Returns a number that differs between neighbors, so that they are not probed at the same time.
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
