//! Neighbor resolution: the state machine that finds and checks the link address of an IP address.
//!
//! Above: the [table], which keeps one [`Neighbor`] per address and carries out its actions. Link
//! addresses come from ARP packets (RFC 826) and neighbor discovery messages (RFC 4861); both
//! protocols share this state machine. The states are those of RFC 4861 §7.3. Linux:
//! net/core/neighbour.c; times, limits and transitions are the same.
//!
//! | state | event | next state |
//! |---|---|---|
//! | NONE, FAILED | A packet is to be sent | INCOMPLETE |
//! | INCOMPLETE, PROBE | The last probe is not answered | FAILED |
//! | REACHABLE | The reachable time is over, confirmed meanwhile | REACHABLE |
//! | REACHABLE | The reachable time is over, used recently | DELAY |
//! | REACHABLE | The reachable time is over, otherwise | STALE |
//! | REACHABLE | Another link address arrives that must not replace the known one | STALE |
//! | STALE | A packet is to be sent | DELAY |
//! | DELAY | `delay_first_probe_time` is over, confirmed within it | REACHABLE |
//! | DELAY | `delay_first_probe_time` is over, otherwise | PROBE |
//! | all but PERMANENT | A reply to this host arrives | REACHABLE |
//! | all but PERMANENT | An unsolicited new link address arrives | STALE |
//! | all | An administrator sets the link address | PERMANENT |
//! | all | The entry is deleted by an administrator | NONE |
//! | all | The entry is removed with its device or source address | FAILED |
//!
//! *Confirmed* means that packets arrive at the neighbor ([`Neighbor::on_confirmed`]). A packet
//! with another link address than the known one may be ignored ([`LinkChange`]).
//!
//! This module does no I/O. The caller passes an event and the time, gets [`NeighborAction`]s to
//! carry out, and calls [`Neighbor::on_timer`] at [`Neighbor::next_deadline`]. Packets wait only in
//! the state INCOMPLETE; their number and memory are bounded. Each leaves by exactly one action, so
//! none is lost without a reason.
//!
//! Not here: sending, locks, the table, and the decision to create an entry.

use std::time::Duration;

use arrayvec::ArrayVec;
use pkt::{DropReason, Instant, Packet, PacketList};

use crate::{header::ethernet::MacAddr, sysctl::modes::NeighborConfig};

/// Time after a change of state or link address for which the address is kept although a different
/// reply arrives (Linux's `locktime`). If two stations claim one address, the first reply counts.
const LOCK_TIME: Duration = Duration::from_secs(1);

/// Neighbor states, with Linux's names (NUD_*).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NudState {
    /// No link address and no pending request.
    None,
    /// A request was sent, and packets wait for the reply.
    Incomplete,
    /// The link address was confirmed within the reachable time.
    Reachable,
    /// The link address is unconfirmed, but still used for sending.
    Stale,
    /// The link address was used without a recent confirmation. Upper layers have a few seconds to
    /// confirm it.
    Delay,
    /// Upper layers have not confirmed the link address, and unicast requests are sent to it.
    Probe,
    /// No reply arrived.
    Failed,
    /// An administrator has set the link address. It is not probed, and packets from the network do
    /// not change it.
    Permanent,
}

impl NudState {
    /// Whether packets can be sent in this state.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        matches!(self, Self::Reachable | Self::Stale | Self::Delay | Self::Probe | Self::Permanent)
    }

    /// Returns the name that `ip neigh` prints.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::Incomplete => "INCOMPLETE",
            Self::Reachable => "REACHABLE",
            Self::Stale => "STALE",
            Self::Delay => "DELAY",
            Self::Probe => "PROBE",
            Self::Failed => "FAILED",
            Self::Permanent => "PERMANENT",
        }
    }
}

/// Action that the owner of a neighbor must carry out.
#[derive(Debug)]
#[must_use]
pub enum NeighborAction {
    /// Send a request for the link address.
    SendProbe {
        /// Destination of the request. `None`: the broadcast address (ARP) or the solicited-node
        /// multicast group (neighbor discovery).
        unicast: Option<MacAddr>,
    },
    /// Send these packets, in order.
    Flush {
        /// Link address of the next hop.
        mac: MacAddr,
        /// Packets, at least one.
        packets: PacketList,
    },
    /// Drop these packets and count the reason. `NeighborFailed` is also reported to the senders as
    /// an unreachable host.
    Fail {
        /// `NeighborFailed` or `NeighborQueueFull`.
        reason: DropReason,
        /// Packets, at least one.
        packets: PacketList,
    },
}

/// Actions of one event, in the order of execution.
pub type NeighborActions = ArrayVec<NeighborAction, 2>;

/// Link address of the neighbor in a packet from the network, and the effect of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advertisement {
    /// Link address that the sender claims.
    pub mac: MacAddr,
    /// True for a reply that was sent to this host alone. It proves that packets arrive in both
    /// directions.
    pub solicited: bool,
    /// Effect if another link address is known.
    pub change: LinkChange,
}

/// Effect of a packet on a known link address that differs from the address in the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkChange {
    /// The known address is replaced, unless the entry changed its state or link address within the
    /// last second: an ARP request or reply.
    AfterLock,
    /// The known address is replaced at once: an ARP announcement, a solicitation that the neighbor
    /// sends (RFC 4861 §7.2.3), or an advertisement with the Override flag.
    AtOnce,
    /// The known address is kept: an advertisement without the Override flag. The difference ends
    /// the state REACHABLE (RFC 4861 §7.2.5).
    Never,
}

/// State of one address on one link.
#[derive(Debug)]
pub struct Neighbor {
    state: NudState,
    /// Link address; `Some` exactly while the state is valid.
    mac: Option<MacAddr>,
    /// Probes sent since INCOMPLETE or PROBE was entered.
    probes: u32,
    /// Time of the last proof that packets arrive at `mac`; `None` without any.
    confirmed: Option<Instant>,
    /// Time of the last use: a packet was sent or queued.
    used: Instant,
    /// Time of the last change of state or link address, except changes of state that a packet to
    /// be sent causes (to INCOMPLETE, and from STALE to DELAY).
    updated: Instant,
    /// Time of the next call of `on_timer`.
    deadline: Option<Instant>,
    reachable_time: Duration,
    /// Packets that wait. Empty unless the state is INCOMPLETE.
    queue: PacketList,
    /// Sum of `truesize` of the packets in `queue`.
    queue_truesize: u64,
}

impl Neighbor {
    /// Creates a neighbor in state NONE. `reachable_time` is from
    /// [`NeighborConfig::reachable_time`].
    #[must_use]
    pub const fn new(now: Instant, reachable_time: Duration) -> Self {
        Self {
            state: NudState::None,
            mac: None,
            probes: 0,
            confirmed: None,
            used: now,
            updated: now,
            deadline: None,
            reachable_time,
            queue: PacketList::new(),
            queue_truesize: 0,
        }
    }

    /// Sets a configured link address: the state is PERMANENT until [`forget`](Self::forget) or
    /// [`shut_down`](Self::shut_down), and waiting packets are sent. Linux: `neigh_update` with
    /// NUD_PERMANENT.
    pub fn set_permanent(&mut self, mac: MacAddr, now: Instant) -> NeighborActions {
        self.state = NudState::Permanent;
        self.mac = Some(mac);
        (self.updated, self.confirmed, self.deadline) = (now, None, None);
        let mut actions = NeighborActions::new();
        let packets = self.take_queue();
        if !packets.is_empty() {
            actions.push(NeighborAction::Flush { mac, packets });
        }
        actions
    }

    /// Returns to the state NONE from any state, so that the next packet causes a request. Waiting
    /// packets are dropped ([`NeighborAction::Fail`]).
    pub fn forget(&mut self, now: Instant) -> NeighborActions {
        let actions = self.fail(now);
        self.enter(NudState::None, now);
        actions
    }

    /// Sends packets, or queues them while the address is being resolved. If the queue is full, the
    /// oldest packets are dropped.
    pub fn output(
        &mut self,
        packets: &mut PacketList,
        now: Instant,
        config: &NeighborConfig,
    ) -> NeighborActions {
        let mut actions = NeighborActions::new();
        if packets.is_empty() {
            return actions;
        }
        if let Some(mac) = self.on_use(now, config) {
            actions.push(NeighborAction::Flush { mac, packets: std::mem::take(packets) });
            return actions;
        }
        if self.state != NudState::Incomplete {
            self.state = NudState::Incomplete;
            self.probes = 1;
            self.deadline = Some(now + config.retrans_time);
            actions.push(NeighborAction::SendProbe { unicast: None });
        }
        let overflow = self.enqueue(packets, config);
        push_failed(&mut actions, DropReason::NeighborQueueFull, overflow);
        actions
    }

    /// Notes a use and returns the link address, if it is known. The first use of a stale address
    /// starts the delay before it is probed.
    pub fn on_use(&mut self, now: Instant, config: &NeighborConfig) -> Option<MacAddr> {
        self.used = self.used.max(now);
        if self.state == NudState::Stale {
            self.state = NudState::Delay;
            self.deadline = Some(now + config.delay_first_probe_time);
        }
        self.mac
    }

    /// Notes a proof that packets arrive at the neighbor: at the time `at`, TCP received an
    /// acknowledgment of new data (Linux's `dst_confirm`). A proof that is older than the last
    /// change of the entry is ignored, because it may be about the previous link address.
    pub fn on_confirmed(&mut self, at: Instant) {
        if at > self.updated {
            self.confirmed = self.confirmed.max(Some(at));
        }
    }

    /// Handles a packet with a link address of the neighbor. The sender may be an impostor.
    pub fn on_advertisement(
        &mut self,
        advertisement: Advertisement,
        now: Instant,
        config: &NeighborConfig,
    ) -> NeighborActions {
        let mut actions = NeighborActions::new();
        if self.state == NudState::Permanent {
            return actions;
        }
        let was_valid = self.state.is_valid();
        let moved = self.mac != Some(advertisement.mac);
        if was_valid && moved {
            match advertisement.change {
                LinkChange::AfterLock if now <= self.updated + LOCK_TIME => return actions,
                LinkChange::Never => {
                    if self.state == NudState::Reachable {
                        self.enter(NudState::Stale, now);
                        self.deadline = None;
                    }
                    return actions;
                }
                LinkChange::AfterLock | LinkChange::AtOnce => {}
            }
        }
        if advertisement.solicited {
            self.confirmed = Some(now);
            self.probes = 0;
            self.enter(NudState::Reachable, now);
            self.deadline = Some(now + self.reachable_time);
        } else if moved {
            // An unsolicited link address is used for sending, but it does not prove that packets
            // arrive.
            self.confirmed = None;
            self.enter(NudState::Stale, now);
            self.deadline = None;
        }
        if moved {
            self.mac = Some(advertisement.mac);
            self.updated = now;
        }
        let packets = self.take_queue();
        if !packets.is_empty() {
            self.on_use(now, config);
            actions.push(NeighborAction::Flush { mac: advertisement.mac, packets });
        }
        actions
    }

    /// Whether `advertisement` replies to a pending request of this host: a request for an unknown
    /// link address, or a probe of a known one. With `net.quietline.arp_strict`, only such a reply
    /// may change an entry.
    #[must_use]
    pub fn awaits(&self, advertisement: Advertisement) -> bool {
        let is_pending = match self.state {
            NudState::Incomplete => true,
            NudState::Probe => self.mac == Some(advertisement.mac),
            _ => false,
        };
        advertisement.solicited && is_pending
    }

    /// Handles an expired deadline. A call before [`next_deadline`](Self::next_deadline) has no
    /// effect, so a timer that was not canceled is harmless.
    pub fn on_timer(&mut self, now: Instant, config: &NeighborConfig) -> NeighborActions {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return NeighborActions::new();
        }
        match self.state {
            NudState::Reachable => self.reconsider(now, config),
            NudState::Delay => {
                let good = |at: &Instant| now <= *at + config.delay_first_probe_time;
                if let Some(confirmed) = self.confirmed.filter(good) {
                    self.enter(NudState::Reachable, now);
                    self.deadline = Some(confirmed + self.reachable_time);
                    return NeighborActions::new();
                }
                self.enter(NudState::Probe, now);
                self.probes = 0;
                return self.probe_or_fail(now, config);
            }
            NudState::Probe | NudState::Incomplete => return self.probe_or_fail(now, config),
            NudState::None | NudState::Stale | NudState::Failed | NudState::Permanent => {
                self.deadline = None;
            }
        }
        NeighborActions::new()
    }

    /// Enters FAILED and drops all waiting packets, because the entry is being removed with its
    /// device or source address.
    pub fn shut_down(&mut self, now: Instant) -> NeighborActions {
        self.fail(now)
    }

    /// Returns the link address, in states in which packets may be sent to it.
    #[must_use]
    #[inline]
    pub const fn link_address(&self) -> Option<MacAddr> {
        self.mac
    }

    /// Returns the link address in states in which sending changes nothing but the time of the last
    /// use. The owner may publish it to senders that do not take its lock. A stale address is not
    /// published; see [`on_use`](Self::on_use).
    #[must_use]
    pub const fn published(&self) -> Option<MacAddr> {
        match self.state {
            NudState::Stale => None,
            _ => self.mac,
        }
    }

    /// Returns the time of the next call of [`on_timer`](Self::on_timer).
    #[must_use]
    pub const fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the current state.
    #[must_use]
    pub const fn state(&self) -> NudState {
        self.state
    }

    /// Returns the number of packets that wait for the link address.
    #[must_use]
    pub const fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// Whether a full table may remove this neighbor if it has no other reference: no packet waits
    /// for it, and it is not permanent.
    #[must_use]
    pub const fn may_collect(&self) -> bool {
        self.queue.is_empty() && !matches!(self.state, NudState::Permanent)
    }

    /// Whether the neighbor has failed, or was neither used nor confirmed for `time`.
    fn is_old(&self, now: Instant, time: Duration) -> bool {
        let used = self.confirmed.map_or(self.used, |at| at.max(self.used));
        self.state == NudState::Failed || now.saturating_duration_since(used) >= time
    }

    /// Whether the neighbor has failed, or has not changed for `time` (see `updated`).
    fn is_settled(&self, now: Instant, time: Duration) -> bool {
        self.state == NudState::Failed || now.saturating_duration_since(self.updated) >= time
    }

    fn enter(&mut self, state: NudState, now: Instant) {
        if self.state != state {
            self.state = state;
            self.updated = now;
        }
    }

    /// Handles the end of the reachable time: stays REACHABLE if the neighbor was confirmed
    /// meanwhile, enters DELAY if it was used recently, and STALE otherwise.
    fn reconsider(&mut self, now: Instant, config: &NeighborConfig) {
        let confirmed_until = self.confirmed.map(|at| at + self.reachable_time);
        if confirmed_until.is_some_and(|until| now < until) {
            self.deadline = confirmed_until;
        } else if now <= self.used + config.delay_first_probe_time {
            self.enter(NudState::Delay, now);
            self.deadline = Some(now + config.delay_first_probe_time);
        } else {
            self.enter(NudState::Stale, now);
            self.deadline = None;
        }
    }

    fn probe_or_fail(&mut self, now: Instant, config: &NeighborConfig) -> NeighborActions {
        let probes_max = match self.state {
            NudState::Probe => config.ucast_solicit,
            _ => config.mcast_solicit,
        };
        if self.probes >= probes_max {
            return self.fail(now);
        }
        self.probes += 1;
        self.deadline = Some(now + config.retrans_time);
        NeighborActions::from_iter([NeighborAction::SendProbe { unicast: self.mac }])
    }

    fn fail(&mut self, now: Instant) -> NeighborActions {
        self.enter(NudState::Failed, now);
        self.mac = None;
        self.deadline = None;
        let mut actions = NeighborActions::new();
        let packets = self.take_queue();
        push_failed(&mut actions, DropReason::NeighborFailed, packets);
        actions
    }

    /// Queues `packets`. Returns the oldest packets of the queue, which had to make room.
    fn enqueue(&mut self, packets: &mut PacketList, config: &NeighborConfig) -> PacketList {
        let mut overflow = PacketList::new();
        while let Some(packet) = packets.pop_front() {
            let truesize = u64::from(packet.truesize());
            while self.queue.len() >= config.unres_qlen as usize
                || self.queue_truesize + truesize > u64::from(config.unres_qlen_bytes)
            {
                let Some(oldest) = self.pop_queue() else { break };
                overflow.push_back(oldest);
            }
            self.queue_truesize += truesize;
            self.queue.push_back(packet);
        }
        overflow
    }

    fn pop_queue(&mut self) -> Option<Packet> {
        let packet = self.queue.pop_front()?;
        let truesize = u64::from(packet.truesize());
        // `queue_truesize` is the sum over the queued packets, whose sizes do not change. If the
        // sum wrapped around, the queue would seem full forever.
        debug_assert!(
            self.queue_truesize >= truesize,
            "a packet of {truesize} bytes leaves a queue of {}",
            self.queue_truesize
        );
        self.queue_truesize = self.queue_truesize.saturating_sub(truesize);
        Some(packet)
    }

    fn take_queue(&mut self) -> PacketList {
        self.queue_truesize = 0;
        std::mem::take(&mut self.queue)
    }
}

fn push_failed(actions: &mut NeighborActions, reason: DropReason, packets: PacketList) {
    if !packets.is_empty() {
        actions.push(NeighborAction::Fail { reason, packets });
    }
}

pub mod table;
pub(crate) mod tables;
#[cfg(test)]
mod tests;
