//! Deferral of interrupts: `napi_defer_hard_irqs` and `gro_flush_timeout` of one queue.
//!
//! Linux: the second half of `napi_complete_done`, and its watchdog. An interrupt of Linux
//! corresponds to a watched file descriptor here: a worker that sleeps watches the descriptor of
//! the queue. A queue that has just received frames is polled by a timer a few more times before
//! its descriptor is watched again, and receive offload may hold packets until such a poll.

use std::time::Duration;

use pkt::Instant;

use crate::sysctl::DeviceSettings;

/// State of one queue's deferred interrupts.
#[derive(Debug, Default)]
pub(crate) struct Deferral {
    /// Number of further empty polls after which the descriptor stays unwatched. It is watched
    /// after the empty poll that follows them.
    left: u32,
    /// Time of the next timed poll; `None` if none is scheduled.
    timer: Option<Instant>,
}

impl Deferral {
    /// Ends a sequence of polls, of which the last one received `received` frames and emptied the
    /// queue. `holds` is true if receive offload holds packets. Returns true if the descriptor must
    /// be watched. A timed poll that finds no frame delivers the held packets (packets that wait
    /// for the next segment of their flow).
    pub(crate) fn complete(
        &mut self,
        settings: &DeviceSettings,
        now: Instant,
        received: usize,
        holds: bool,
    ) -> bool {
        let mut timeout = Duration::ZERO;
        if received > 0 {
            if holds {
                timeout = settings.gro_flush_timeout;
            }
            self.left = settings.napi_defer_hard_irqs;
        }
        let mut watch = true;
        if self.left > 0 {
            self.left -= 1;
            timeout = settings.gro_flush_timeout;
            watch = timeout.is_zero();
        }
        self.timer = (!timeout.is_zero()).then(|| now + timeout);
        watch
    }

    /// Whether no timed poll is pending.
    pub(crate) const fn is_idle(&self) -> bool {
        self.left == 0 && self.timer.is_none()
    }

    /// Returns the time of the next timed poll.
    pub(crate) const fn timer(&self) -> Option<Instant> {
        self.timer
    }

    /// Returns whether the timer has expired, and clears an expired timer.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        self.timer.take_if(|timer| *timer <= now).is_some()
    }
}
