//! How long packets wait below their senders, in disciplines and devices: one packet of a transmit queue at a time is watched, from
//! its departure time until its device has completed it, or has taken it where it tells no completions.
//!
//! Above: `state`, which says what is handed over and what has completed. A histogram of samples, not of all packets: a mark on each
//! would cost what it measures. Devices complete in order, so that a number of bytes says which packet it is.
//!
//! Linux has no such counter; `tc -s qdisc` shows a backlog at a moment.

use pkt::Instant;

use crate::{base::counters::Counter, cx::Cx};

/// See the module head.
#[derive(Debug, Default)]
pub(super) struct DelayProbe {
    /// Bytes that the device has taken, and those of them that it has completed.
    handed: u64,
    completed: u64,
    watched: Option<Watched>,
}

/// The packet that is watched.
#[derive(Debug)]
struct Watched {
    /// It has completed when so many bytes have.
    end: u64,
    /// When it was to leave, as far as its sender decides.
    departs: Instant,
}

impl DelayProbe {
    /// A packet is ready for the device: with it and what is before it `ready` bytes are.
    #[inline]
    pub(super) fn watch(&mut self, ready: usize, departs: Instant) {
        // What no socket sends carries no time.
        if self.watched.is_none() && departs != Instant::ZERO {
            self.watched = Some(Watched { end: self.handed + ready as u64, departs });
        }
    }

    /// The device has taken `bytes`; without completions it is through with them.
    #[inline]
    pub(super) fn on_handed(&mut self, cx: &Cx, bytes: usize, completes: bool) {
        self.handed += bytes as u64;
        if !completes {
            self.on_completed(cx, bytes);
        }
    }

    /// The device is through with `bytes`.
    #[inline]
    pub(super) fn on_completed(&mut self, cx: &Cx, bytes: usize) {
        // What it took before anybody counted is not in the books.
        self.completed = (self.completed + bytes as u64).min(self.handed);
        if let Some(watched) = self.watched.take_if(|watched| watched.end <= self.completed) {
            count_delay(cx, watched.departs);
        }
    }

    /// What the device has will not be told, and what waited is gone.
    pub(super) fn forget(&mut self) {
        self.completed = self.handed;
        self.watched = None;
    }
}

/// The histogram of delays, in tens.
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
