//! Effects of one direction on its frames, and their changes over time.
//!
//! Each path has its own random generator: its effects do not depend on the traffic of other paths.
//!
//! Not here: the contents of frames.

use std::{collections::VecDeque, time::Duration};

use pkt::Instant;

use super::transmission_time;

/// Reason why a frame was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Random loss.
    Loss,
    /// Loss in a burst.
    Burst,
    /// The queue was full.
    QueueFull,
    /// The path was in a blackout.
    Blackout,
    /// Longer than the path's MTU.
    TooBig,
    /// No port has its destination address.
    Unroutable,
    /// The receiver had no packet memory.
    NoMemory,
}

impl Fate {
    /// Number of reasons.
    pub const COUNT: usize = 7;
}

/// Loss in bursts (Gilbert and Elliott): the path is good and bad in turn, each for a random time
/// around its mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// Mean length of good periods.
    pub good: Duration,
    /// Mean length of bad periods.
    pub bad: Duration,
    /// Fraction lost in bad periods.
    pub loss: f64,
}

/// Properties of one direction. The default has no effect on frames.
#[derive(Clone, Debug, PartialEq)]
pub struct PathConfig {
    /// Bits per second; `None` is unlimited and never queues.
    pub rate_bps: Option<u64>,
    /// Limit of the queue in front of the link, as time at its rate: milliseconds are a tiny queue,
    /// seconds bufferbloat.
    pub queue: Duration,
    /// Propagation delay.
    pub delay: Duration,
    /// Largest random addition to the delay.
    pub jitter: Duration,
    /// Jitter lets frames overtake each other.
    pub jitter_reorders: bool,
    /// Fraction lost at random.
    pub loss: f64,
    /// Loss in bursts.
    pub burst: Option<Burst>,
    /// Fraction delayed by an additional `reorder_delay`.
    pub reorder: f64,
    /// Additional delay of these frames.
    pub reorder_delay: Duration,
    /// Fraction delivered twice, the copy up to `reorder_delay` later.
    pub duplicate: f64,
    /// Fraction in which one bit is flipped.
    pub corrupt: f64,
    /// Queueing delay above which ECN-capable frames are marked Congestion Experienced.
    pub mark_above: Option<Duration>,
    /// Largest IP packet.
    pub mtu: u32,
    /// Whether the sender of a packet above the MTU receives an ICMP error. Otherwise the path is a
    /// black hole.
    pub tells_mtu: bool,
    /// Changes by time since the start, in order.
    pub changes: Vec<(Duration, Change)>,
}

/// A change of a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// Begin or end of a blackout: no frame passes while it is true.
    Dark(bool),
    /// Another MTU.
    Mtu(u32),
    /// Another rate.
    Rate(u64),
    /// Another delay.
    Delay(Duration),
}

impl Default for PathConfig {
    fn default() -> Self {
        Self {
            rate_bps: None,
            queue: Duration::from_millis(100),
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            jitter_reorders: false,
            loss: 0.0,
            burst: None,
            reorder: 0.0,
            reorder_delay: Duration::ZERO,
            duplicate: 0.0,
            corrupt: 0.0,
            mark_above: None,
            mtu: 65_535,
            tells_mtu: true,
            changes: Vec::new(),
        }
    }
}

/// A path in use.
pub(super) struct Path {
    pub(super) config: PathConfig,
    changes: VecDeque<(Instant, Change)>,
    dark: bool,
    /// When the transmitter becomes idle.
    idle_at: Instant,
    /// Arrival time of the last frame.
    last_due: Instant,
    is_bad: bool,
    /// When the next good or bad period begins.
    turns_at: Instant,
    rng: tcp::Rng,
}

impl Path {
    pub(super) fn new(config: PathConfig, seed: u64, start: Instant) -> Self {
        let changes = config.changes.iter().map(|(after, change)| (start + *after, *change));
        Self {
            changes: changes.collect(),
            dark: false,
            idle_at: start,
            last_due: start,
            is_bad: true,
            turns_at: start,
            rng: tcp::Rng::new(seed),
            config,
        }
    }

    /// Applies the changes that are due.
    pub(super) fn advance(&mut self, now: Instant) {
        while self.changes.front().is_some_and(|(at, _)| *at <= now) {
            match self.changes.pop_front() {
                Some((_, Change::Dark(dark))) => self.dark = dark,
                Some((_, Change::Mtu(mtu))) => self.config.mtu = mtu,
                Some((_, Change::Rate(rate))) => self.config.rate_bps = Some(rate),
                Some((_, Change::Delay(delay))) => self.config.delay = delay,
                None => {}
            }
        }
        if let Some(burst) = self.config.burst {
            while self.turns_at <= now {
                self.is_bad = !self.is_bad;
                let mean = if self.is_bad { burst.bad } else { burst.good };
                // Between zero and twice the mean.
                self.turns_at += mean * (1 + self.rng.below(200)) / 100;
            }
        }
    }

    pub(super) fn is_dark(&self) -> bool {
        self.dark
    }

    /// Passes a frame of `bytes` through the queue, the link and random loss. Returns its arrival
    /// time.
    pub(super) fn pass(&mut self, now: Instant, bytes: usize) -> Result<Instant, Fate> {
        let mut sent = now;
        if let Some(rate) = self.config.rate_bps {
            if self.waiting(now) > self.config.queue {
                return Err(Fate::QueueFull);
            }
            sent = self.idle_at.max(now) + transmission_time(rate, bytes);
            self.idle_at = sent;
        }
        if chance(&mut self.rng, self.config.loss) {
            return Err(Fate::Loss);
        }
        if let Some(burst) = self.config.burst
            && self.is_bad
            && chance(&mut self.rng, burst.loss)
        {
            return Err(Fate::Burst);
        }
        let mut due = sent + self.config.delay + self.up_to(self.config.jitter);
        if !self.config.jitter_reorders {
            due = due.max(self.last_due);
        }
        self.last_due = self.last_due.max(due);
        if chance(&mut self.rng, self.config.reorder) {
            due += self.config.reorder_delay;
        }
        Ok(due)
    }

    /// Whether the queue that the last frame found was long enough for a mark.
    pub(super) fn wants_mark(&self, now: Instant) -> bool {
        self.config.mark_above.is_some_and(|limit| self.waiting(now) > limit)
    }

    pub(super) fn corrupts(&mut self) -> bool {
        chance(&mut self.rng, self.config.corrupt)
    }

    pub(super) fn flip_one_bit(&mut self, bytes: &mut [u8]) {
        let at = self.rng.below(u32::try_from(bytes.len()).unwrap_or(u32::MAX)) as usize;
        bytes[at] ^= 1 << self.rng.below(8);
    }

    pub(super) fn duplicates(&mut self) -> bool {
        chance(&mut self.rng, self.config.duplicate)
    }

    /// Returns the additional delay of a copy.
    pub(super) fn copy_delay(&mut self) -> Duration {
        self.up_to(self.config.reorder_delay)
    }

    fn waiting(&self, now: Instant) -> Duration {
        self.idle_at.saturating_duration_since(now)
    }

    fn up_to(&mut self, most: Duration) -> Duration {
        most * self.rng.below(1024) / 1024
    }
}

/// Returns true in `fraction` of the calls.
fn chance(rng: &mut tcp::Rng, fraction: f64) -> bool {
    fraction > 0.0 && f64::from(rng.next_u32()) < fraction * 4_294_967_296.0
}
