//! Interrupts put off: `napi_defer_hard_irqs` and `gro_flush_timeout` of one queue.
//!
//! Linux: the second half of `napi_complete_done`, and its watchdog. A queue that has just had frames is polled a few times
//! more by time before its descriptor is watched again, and what receive offload holds may wait for that long.

use std::time::Duration;

use pkt::Instant;

use crate::sysctl::DeviceSettings;

/// See the module head.
#[derive(Debug, Default)]
pub(crate) struct Deferral {
    /// Empty polls that still do not bring the descriptor back.
    left: u32,
    /// When the queue is polled although nothing was heard of it.
    timer: Option<Instant>,
}

impl Deferral {
    /// A poll that took `received` frames has found the end of the queue, and receive offload `holds` some. True if the
    /// descriptor shall be watched. While the timer is armed, what is held is flushed only once it is old.
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

    /// No poll is put off.
    pub(crate) const fn is_idle(&self) -> bool {
        self.left == 0 && self.timer.is_none()
    }

    /// When the queue is polled by itself.
    pub(crate) const fn timer(&self) -> Option<Instant> {
        self.timer
    }

    /// Whether that is now; if so, it is over.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        self.timer.take_if(|timer| *timer <= now).is_some()
    }
}
