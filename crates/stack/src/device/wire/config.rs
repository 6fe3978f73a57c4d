//! Configuration of a wire (the in-process link between two hosts) and the impairments of each
//! direction.
//!
//! Above: `wire`.

use std::{string::String, time::Duration};

use super::{BIG_TCP_BYTES_MAX, PathMtu, direction::RING_MAX};
use crate::base::config_error::ConfigError;

/// Impairments of one direction of a wire. The default has none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Impairment {
    /// Rate in bits per second; `None` is unlimited. An IP packet of n bytes occupies n + 38 bytes
    /// on the link.
    pub rate_bps: Option<u64>,
    /// Propagation delay.
    pub delay: Duration,
    /// Fraction of packets lost, 0 to 1.
    pub loss: f64,
    /// Fraction of packets delayed by `reorder_delay`, so that later ones overtake them.
    pub reorder: f64,
    /// Extra delay of a reordered packet.
    pub reorder_delay: Duration,
    /// Fraction of packets delivered twice.
    pub duplicate: f64,
    /// Fraction of packets in which one bit is flipped. Needs `WireConfig::checksums`.
    pub corrupt: f64,
    /// Fraction of ECN-capable packets that are marked CE.
    pub mark: f64,
    /// Queueing delay above which ECN-capable packets are marked CE (the `ce_threshold` of Linux's
    /// `fq_codel`). `None` marks no packet because of its delay.
    pub mark_above: Option<Duration>,
    /// Maximum number of packets in this direction; further ones are dropped. Default 5,000: more
    /// than the packets of MTU 1,500 in a receive window of 6 MB, the default upper bound. Linux's
    /// `txqueuelen` is 1,000.
    pub queue_packets: usize,
    /// Time from a packet's departure to its completion. With zero, a packet completes at once or,
    /// if there is a transmit ring, at its departure.
    pub completion_delay: Duration,
    /// Size of the sender's transmit ring: the number of packets that may be uncompleted. Further
    /// packets stay with the host. `None` (the default) is unlimited.
    pub ring_packets: Option<usize>,
    /// A router on the path that passes only packets up to a size; `None` (the default) means no
    /// router. [`Wire::set_path_mtu`](super::Wire::set_path_mtu) changes it at run time.
    pub path_mtu: Option<PathMtu>,
}

impl Default for Impairment {
    fn default() -> Self {
        Self {
            rate_bps: None,
            delay: Duration::ZERO,
            loss: 0.0,
            reorder: 0.0,
            reorder_delay: Duration::ZERO,
            duplicate: 0.0,
            corrupt: 0.0,
            mark: 0.0,
            mark_above: None,
            queue_packets: 5000,
            completion_delay: Duration::ZERO,
            ring_packets: None,
            path_mtu: None,
        }
    }
}

impl Impairment {
    /// Whether packets can be delivered without reading the clock or drawing random numbers.
    pub(super) fn is_none(&self) -> bool {
        let Self { rate_bps, delay, loss, reorder, duplicate, corrupt, completion_delay, .. } =
            self;
        let chance = loss + reorder + duplicate + corrupt + self.mark;
        rate_bps.is_none()
            && delay.is_zero()
            && completion_delay.is_zero()
            && chance == 0.0
            && !self.completes_later()
    }

    /// Whether the packets of the direction can pass through a ring (`sync::Ring`).
    pub(super) fn is_straight(&self) -> bool {
        self.is_none() && self.queue_packets <= RING_MAX
    }

    /// Whether packets complete after `transmit` has returned.
    pub(super) const fn completes_later(&self) -> bool {
        !self.completion_delay.is_zero() || self.ring_packets.is_some()
    }

    fn validate(&self, checksums: bool) -> Result<(), ConfigError> {
        let fractions = [
            ("loss", self.loss),
            ("reorder", self.reorder),
            ("duplicate", self.duplicate),
            ("corrupt", self.corrupt),
            ("mark", self.mark),
        ];
        for (field, value) in fractions {
            if !(0.0..=1.0).contains(&value) {
                return Err(ConfigError::new(field, value, "a fraction between 0 and 1"));
            }
        }
        if self.rate_bps == Some(0) {
            return Err(ConfigError::new("rate_bps", 0, "at least 1 bit per second"));
        }
        if let Some(path) = self.path_mtu
            && path.bytes < 68
        {
            return Err(ConfigError::new("path_mtu", path.bytes, "at least 68 bytes"));
        }
        if self.queue_packets == 0 {
            return Err(ConfigError::new("queue_packets", 0, "at least 1 packet"));
        }
        if self.ring_packets == Some(0) {
            return Err(ConfigError::new("ring_packets", 0, "at least 1 packet"));
        }
        if self.corrupt > 0.0 && !checksums {
            return Err(ConfigError::new("corrupt", self.corrupt, "a wire with checksums on"));
        }
        Ok(())
    }
}

/// Configuration of a wire: the same MTU and offloads at both ends, and impairments for each
/// direction.
#[derive(Clone, Debug)]
pub struct WireConfig {
    /// Interface name; the ends are NAME0 and NAME1.
    pub name: String,
    /// Largest IP packet in bytes. Default 1,500.
    pub mtu: u32,
    /// Whether superframes (packets of several segments) pass unsegmented, unless `checksums` is
    /// on. Default true. Those of datagrams pass only a wire without impairments.
    pub tso: bool,
    /// Largest superframe that passes, in bytes. Default [`BIG_TCP_BYTES_MAX`]; the size that TCP
    /// makes is a setting of the device (`gso_max_size`, `gso_ipv4_max_size`).
    pub gso_max_bytes: u32,
    /// Whether senders complete checksums and receivers verify them, as on a real link. Default
    /// false.
    pub checksums: bool,
    /// Queue pairs. Default 1.
    pub queues: u16,
    /// Impairments of packets from end 0 to end 1.
    pub forward: Impairment,
    /// Impairments of packets from end 1 to end 0.
    pub backward: Impairment,
    /// Seed of every random choice.
    pub seed: u64,
}

impl Default for WireConfig {
    fn default() -> Self {
        Self {
            name: String::from("wire"),
            mtu: 1500,
            tso: true,
            gso_max_bytes: BIG_TCP_BYTES_MAX,
            checksums: false,
            queues: 1,
            forward: Impairment::default(),
            backward: Impairment::default(),
            seed: 1,
        }
    }
}

impl WireConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if !(68..=65_535).contains(&self.mtu) {
            return Err(ConfigError::new("mtu", self.mtu, "68 to 65535 bytes"));
        }
        if self.gso_max_bytes < self.mtu || self.gso_max_bytes > BIG_TCP_BYTES_MAX {
            return Err(ConfigError::new(
                "gso_max_bytes",
                self.gso_max_bytes,
                "the MTU to 524280 bytes",
            ));
        }
        if self.queues == 0 || self.queues > 64 {
            return Err(ConfigError::new("queues", self.queues, "1 to 64"));
        }
        self.forward.validate(self.checksums)?;
        self.backward.validate(self.checksums)
    }
}
