//! Sampled queueing delay below the sender, in disciplines and devices. One packet of a transmit
//! queue at a time is observed, from its departure time until its device has completed it or,
//! without completions, has accepted it.
//!
//! Above: `state`, which reports the bytes passed to the device and the completed bytes. The
//! histogram covers these samples, not all packets: to mark each packet would cost about as much
//! time as the delays to be measured. Devices complete packets in order, so a count of bytes
//! identifies the observed packet.
//!
//! Linux has no such counter; `tc -s qdisc` shows the backlog at one point in time.

use pkt::Instant;

use crate::{base::counters::Counter, cx::Cx};

/// Delay measurement of one transmit queue.
#[derive(Debug, Default)]
pub(super) struct DelayProbe {
    /// Total number of bytes that the device has accepted.
    handed: u64,
    completed: u64,
    watched: Option<Watched>,
}

/// Packet under observation.
#[derive(Debug)]
struct Watched {
    /// Value that `completed` has once the packet has completed.
    end: u64,
    /// Departure time that the sender has chosen; with `fq_codel`, the time of the enqueue.
    departs: Instant,
}

impl DelayProbe {
    /// Starts to observe a packet that became ready for the device, unless another one is observed.
    /// `ready`: bytes that the device has not accepted yet, up to and including this packet.
    #[inline]
    pub(super) fn watch(&mut self, ready: usize, departs: Instant) {
        // A packet that was sent without a socket has no departure time.
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
        // Completed bytes may include some that are not in `handed`, because the device accepted
        // them before this measurement began.
        self.completed = (self.completed + bytes as u64).min(self.handed);
        if let Some(watched) = self.watched.take_if(|watched| watched.end <= self.completed) {
            count_delay(cx, watched.departs);
        }
    }

    /// Ends the observation without a sample: the device will not report completions for the bytes
    /// that it has, or the waiting packets were dropped.
    pub(super) fn forget(&mut self) {
        self.completed = self.handed;
        self.watched = None;
    }
}

/// Counts the delay since `departs` in a histogram whose bounds are powers of ten.
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
