//! Sampled queueing delay below the sender, in disciplines and devices. One packet of a transmit
//! queue at a time is observed, from its departure time until its device has completed it or,
//! without completions, has accepted it.
//!
//! Above: `state`, which reports the bytes passed to the device and the completed bytes. The
//! histogram covers samples, not all packets: a mark on each packet would cost as much as the delay
//! that it measures. Devices complete in order, so a byte count identifies the packet.
//!
//! Linux has no such counter; `tc -s qdisc` shows the backlog at one point in time.

use pkt::Instant;

use crate::{base::counters::Counter, cx::Cx};

/// Delay measurement of one transmit queue.
#[derive(Debug, Default)]
pub(super) struct DelayProbe {
    /// Total bytes that the device has accepted.
    handed: u64,
    completed: u64,
    watched: Option<Watched>,
}

/// Packet under observation.
#[derive(Debug)]
struct Watched {
    /// Value of `completed` at which the packet has completed.
    end: u64,
    /// Departure time that the sender has chosen.
    departs: Instant,
}

impl DelayProbe {
    /// Starts observing a packet that became ready for the device. `ready`: bytes up to and
    /// including this packet that the device has not accepted yet.
    #[inline]
    pub(super) fn watch(&mut self, ready: usize, departs: Instant) {
        // Packets that no socket has sent carry no departure time.
        if self.watched.is_none() && departs != Instant::ZERO {
            self.watched = Some(Watched { end: self.handed + ready as u64, departs });
        }
    }

    /// Counts `bytes` as accepted by the device. Without completions, they are also completed.
    #[inline]
    pub(super) fn on_handed(&mut self, cx: &Cx, bytes: usize, completes: bool) {
        self.handed += bytes as u64;
        if !completes {
            self.on_completed(cx, bytes);
        }
    }

    /// Counts `bytes` as completed by the device.
    #[inline]
    pub(super) fn on_completed(&mut self, cx: &Cx, bytes: usize) {
        // Bytes that the device accepted before this measurement began are not in `handed`.
        self.completed = (self.completed + bytes as u64).min(self.handed);
        if let Some(watched) = self.watched.take_if(|watched| watched.end <= self.completed) {
            count_delay(cx, watched.departs);
        }
    }

    /// Drops the observation: the device will report no completions for its bytes, and waiting
    /// packets were dropped.
    pub(super) fn forget(&mut self) {
        self.completed = self.handed;
        self.watched = None;
    }
}

/// Counts a delay in the histogram, in powers of ten.
fn count_delay(cx: &Cx, departs: Instant) {
    let micros = u64::try_from((cx.now - departs).as_micros()).unwrap_or(u64::MAX);
    cx.count(Counter::HostQueueDelayMicros, micros);
    let bucket = match micros {
        0..10 => Counter::HostQueueDelayTo10Us,
        10..100 => Counter::HostQueueDelayTo100Us,
        100..1000 => Counter::HostQueueDelayTo1Ms,
        1000..10_000 => Counter::HostQueueDelayTo10Ms,
        10_000..100_000 => Counter::HostQueueDelayTo100Ms,
        100_000.. => Counter::HostQueueDelayOver100Ms,
    };
    cx.count(bucket, 1);
}
