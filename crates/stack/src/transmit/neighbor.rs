//! Neighbor resolution: the state machine between an IP address on a link and its link address.
//!
//! Above: the [table], which keeps one [`Neighbor`] per address and carries out its actions. What ARP (RFC 826)
//! reports comes that way; the states are those of RFC 4861 §7.3. Linux: net/core/neighbour.c, whose times, limits and
//! transitions are kept.
//!
//! ```text
//!             packet            answer                 reachable time over
//!      NONE ─────────► INCOMPLETE ───────► REACHABLE ───────────┬─────────► STALE
//!                       │ probes      ▲  ▲  ▲                used since?      │ packet
//!                       ▼ unanswered  │  │  └── confirmed ──┐    └─────► DELAY ◄┘
//!                     FAILED ─────────┘  └── answer ── PROBE ◄─────────┘ not confirmed
//!                       ▲ packet: INCOMPLETE             │ probes unanswered
//!                       └────────────────────────────────┘
//! ```
//!
//! Data only: an event goes in with the time, what has to be done comes out as [`NeighborAction`]s, and
//! [`Neighbor::next_deadline`] says when to call again. Packets wait only while INCOMPLETE, in bounded number and
//! size; each leaves by exactly one action, so none is lost without a reason.
//!
//! Not here: sending, locks, the table, and who may create an entry.

use std::time::Duration;

use arrayvec::ArrayVec;
use pkt::{DropReason, Instant, Packet, PacketList};

use crate::{header::ethernet::MacAddr, sysctl::modes::NeighborConfig};

/// How long the first of several differing answers holds (Linux's `locktime`): of two stations that claim one address, the
/// slower one does not win by its slowness.
const LOCK_TIME: Duration = Duration::from_secs(1);

/// States by Linux's names (NUD_*).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NudState {
    /// Nothing known and nothing asked.
    None,
    /// Asked; packets wait for the answer.
    Incomplete,
    /// The link address was confirmed within the reachable time.
    Reachable,
    /// The link address is old, good enough to send to until somebody doubts it.
    Stale,
    /// Used while stale: upper layers have a few seconds to confirm it.
    Delay,
    /// Not confirmed: the old link address is being asked.
    Probe,
    /// Nobody answered.
    Failed,
    /// Set by hand: never asked, never changed.
    Permanent,
}

impl NudState {
    /// Whether packets can be sent in this state.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        matches!(self, Self::Reachable | Self::Stale | Self::Delay | Self::Probe | Self::Permanent)
    }

    /// The name that `ip neigh` prints.
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

/// What the owner of a neighbor must do.
#[derive(Debug)]
#[must_use]
pub enum NeighborAction {
    /// Ask for the link address.
    SendProbe {
        /// Ask this station only; `None`: everybody.
        unicast: Option<MacAddr>,
    },
    /// Send these packets, in order.
    Flush {
        /// To this link address.
        mac: MacAddr,
        /// At least one.
        packets: PacketList,
    },
    /// Drop these packets and count the reason. `NeighborFailed` is also reported to their senders as an unreachable
    /// host.
    Fail {
        /// `NeighborFailed` or `NeighborQueueFull`.
        reason: DropReason,
        /// At least one.
        packets: PacketList,
    },
}

/// The actions of one event, in the order to carry them out.
pub type NeighborActions = ArrayVec<NeighborAction, 2>;

/// What a packet from the neighbor said about its link address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advertisement {
    /// The link address it claims.
    pub mac: MacAddr,
    /// It answers a question of ours, to us alone: proof of reachability both ways.
    pub solicited: bool,
    /// It was announced to everybody unasked: the address has moved, at once.
    pub gratuitous: bool,
}

/// What is known about one address on one link.
#[derive(Debug)]
pub struct Neighbor {
    state: NudState,
    /// `Some` exactly while the state is valid.
    mac: Option<MacAddr>,
    /// Probes sent since the last answer.
    probes: u32,
    /// Last proof that packets arrive at `mac`; `None` without any.
    confirmed: Option<Instant>,
    /// Last packet sent there.
    used: Instant,
    /// Last change of state or link address by an advertisement.
    updated: Instant,
    /// When `on_timer` has something to decide.
    deadline: Option<Instant>,
    reachable_time: Duration,
    /// Packets that wait. Empty unless INCOMPLETE.
    queue: PacketList,
    /// `truesize` of the packets in `queue`.
    queue_truesize: u64,
}

impl Neighbor {
    /// A neighbor of which nothing is known. `reachable_time` is from [`NeighborConfig::reachable_time`].
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

    /// The link address is configured: the state is PERMANENT until [`forget`](Self::forget) or [`shut_down`](Self::shut_down),
    /// and packets that waited are sent. Linux: `neigh_update` with NUD_PERMANENT.
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

    /// Nothing is known any more, whatever the state was, and the next packet causes a request. Packets that wait fail.
    pub fn forget(&mut self, now: Instant) -> NeighborActions {
        let actions = self.fail(now);
        self.enter(NudState::None, now);
        actions
    }

    /// Packets want to go there: they are sent, or wait while the address is asked for. When too many wait, the oldest are
    /// dropped.
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

    /// Notes a use and returns the link address to send to, if it is known. Using a stale one starts the delay after
    /// which it is doubted.
    pub fn on_use(&mut self, now: Instant, config: &NeighborConfig) -> Option<MacAddr> {
        self.used = self.used.max(now);
        if self.state == NudState::Stale {
            self.state = NudState::Delay;
            self.deadline = Some(now + config.delay_first_probe_time);
        }
        self.mac
    }

    /// An upper layer has proof that packets arrive: TCP saw new data acknowledged (Linux's `dst_confirm`). Proof from
    /// before the last change is about what was believed then.
    pub fn on_confirmed(&mut self, at: Instant) {
        if at > self.updated {
            self.confirmed = self.confirmed.max(Some(at));
        }
    }

    /// A packet from the neighbor, or one that claims to be, told its link address.
    pub fn on_advertisement(
        &mut self,
        told: Advertisement,
        now: Instant,
        config: &NeighborConfig,
    ) -> NeighborActions {
        let mut actions = NeighborActions::new();
        if self.state == NudState::Permanent {
            return actions;
        }
        let was_valid = self.state.is_valid();
        let moved = self.mac != Some(told.mac);
        if was_valid && moved && !told.gratuitous && now <= self.updated + LOCK_TIME {
            return actions;
        }
        if told.solicited {
            self.confirmed = Some(now);
            self.probes = 0;
            self.enter(NudState::Reachable, now);
            self.deadline = Some(now + self.reachable_time);
        } else if moved {
            // Hearsay: good enough to send to, but nothing has arrived there yet.
            self.confirmed = None;
            self.enter(NudState::Stale, now);
            self.deadline = None;
        }
        if moved {
            self.mac = Some(told.mac);
            self.updated = now;
        }
        let packets = self.take_queue();
        if !packets.is_empty() {
            self.on_use(now, config);
            actions.push(NeighborAction::Flush { mac: told.mac, packets });
        }
        actions
    }

    /// Whether `told` answers a request of ours that is pending: one for an unknown link address, or one that asks a known address
    /// whether it is still there. What `net.quietline.arp_strict` lets change an entry.
    #[must_use]
    pub fn awaits(&self, told: Advertisement) -> bool {
        let is_pending = match self.state {
            NudState::Incomplete => true,
            NudState::Probe => self.mac == Some(told.mac),
            _ => false,
        };
        told.solicited && is_pending
    }

    /// Time has passed. Without effect before [`next_deadline`](Self::next_deadline), so a stale timer does no harm.
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

    /// Gives everything up: the device goes away.
    pub fn shut_down(&mut self, now: Instant) -> NeighborActions {
        self.fail(now)
    }

    /// The link address, in states in which a packet may be sent to it.
    #[must_use]
    #[inline]
    pub const fn link_address(&self) -> Option<MacAddr> {
        self.mac
    }

    /// The link address, in states in which sending changes nothing but the time of the last use: what an owner may
    /// publish to senders that do not take its lock. A stale address is not among them; see [`on_use`](Self::on_use).
    #[must_use]
    pub const fn published(&self) -> Option<MacAddr> {
        match self.state {
            NudState::Stale => None,
            _ => self.mac,
        }
    }

    /// When [`on_timer`](Self::on_timer) has something to decide.
    #[must_use]
    pub const fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Where in the state machine.
    #[must_use]
    pub const fn state(&self) -> NudState {
        self.state
    }

    /// Packets that wait for the link address.
    #[must_use]
    pub const fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// Whether a table that needs room may forget a neighbor that nobody refers to: no packet waits for it, and it was
    /// not set by hand.
    #[must_use]
    pub const fn may_collect(&self) -> bool {
        self.queue.is_empty() && !matches!(self.state, NudState::Permanent)
    }

    fn enter(&mut self, state: NudState, now: Instant) {
        if self.state != state {
            self.state = state;
            self.updated = now;
        }
    }

    /// REACHABLE, its time over: confirmed meanwhile, in use, or neither?
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

    /// Queues `packets`; returns the oldest ones that no longer fit.
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
        // The sum over the queue, whose packets nobody changes. A sum that wrapped would make every later packet overflow.
        debug_assert!(self.queue_truesize >= truesize, "{} of {truesize}", self.queue_truesize);
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
#[cfg(test)]
mod tests;
