//! Queues that are not to be polled: their device is down, or gone.
//!
//! Linux: `napi_disable`, which sets `NAPI_STATE_DISABLE` and waits until the poll is over; `napi_enable`. Here whoever wants it
//! says so in a word of the core, and the core's owner acts on it at the beginning of its next turn: it lets go of what the queue
//! holds and polls it no more. So no poll is interrupted, and whoever waits knows when the last one is over.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use pkt::Instant;

use super::{Core, CoreState};
use crate::{
    cx::Cx,
    device::{Device, attached::Blackhole},
    host::Host,
};

/// What is wanted of the queues of a core, one bit each.
#[derive(Debug, Default)]
pub(super) struct Power {
    /// Not to be polled.
    disabled: AtomicU64,
    /// Their device is gone. Of those disabled.
    gone: AtomicU64,
    /// Number of the last change. Release after the words, Acquire by the owner.
    wanted: AtomicU64,
    /// Number of the change that the owner has acted on. Release by the owner: who reads it finds the polls before it over.
    done: AtomicU64,
}

/// What the owner has made of it.
#[derive(Debug, Default)]
pub(super) struct Powered {
    change: u64,
    disabled: u64,
    gone: u64,
}

impl Powered {
    /// Queues that are not polled.
    #[inline]
    pub(super) const fn disabled(&self) -> u64 {
        self.disabled
    }
}

/// What becomes of the queues of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PowerChange {
    /// They are polled.
    Up,
    /// They are not.
    Down,
    /// Nor does anything refer to their device.
    Gone,
}

impl Core {
    /// Changes what is polled of device `index`, and returns when it is so: no poll of a queue that is disabled is under way
    /// then. Linux: `napi_disable`, `napi_enable`.
    pub(crate) fn set_power(&self, host: &Host, cx: &mut Cx, index: u32, change: PowerChange) {
        let queues = self.queues_of_device(index);
        if queues == 0 {
            return;
        }
        let power = &self.power;
        match change {
            PowerChange::Up => power.disabled.fetch_and(!queues, Ordering::Relaxed),
            PowerChange::Down => power.disabled.fetch_or(queues, Ordering::Relaxed),
            PowerChange::Gone => power.gone.fetch_or(queues, Ordering::Relaxed),
        };
        let wanted = power.wanted.fetch_add(1, Ordering::Release) + 1;
        while power.done.load(Ordering::Acquire) < wanted {
            // It may be this thread that owes the run.
            cx.do_softirq();
            // Nobody owns the core: this thread runs the turn. Somebody does: it is made to run once more, and acts on it then.
            match self.lock.try_own() {
                Some(guard) => self.run_for_another(host, guard, cx),
                None => sync::yield_now(),
            }
        }
        if change == PowerChange::Up {
            // The worker may sleep without the descriptors of these queues: it is to watch them from here on.
            self.wake_before(Instant::ZERO);
        }
        cx.do_softirq();
    }

    /// Whether the device of the queue is gone: its descriptor is not there any more.
    #[must_use]
    pub fn is_gone(&self, napi: crate::base::ids::NapiId) -> bool {
        self.power.gone.load(Ordering::Relaxed) & napi.bit() != 0
    }

    fn queues_of_device(&self, index: u32) -> u64 {
        let places = self.places.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let bits =
            places.iter().zip(0..).map(|((device, _), bit)| u64::from(*device == index) << bit);
        bits.sum()
    }
}

/// The beginning of a turn: has anything changed?
#[inline]
pub(super) fn follow(core: &Core, state: &mut CoreState, cx: &mut Cx) -> u64 {
    let wanted = core.power.wanted.load(Ordering::Acquire);
    if wanted == state.powered.change { 0 } else { apply(core, state, cx, wanted) }
}

/// Acts on what is wanted. Answers the queues that are to be polled again.
#[cold]
fn apply(core: &Core, state: &mut CoreState, cx: &mut Cx, wanted: u64) -> u64 {
    let disabled = core.power.disabled.load(Ordering::Relaxed);
    let gone = core.power.gone.load(Ordering::Relaxed);
    let before = core::mem::replace(&mut state.powered, Powered { change: wanted, disabled, gone });
    let again = before.disabled & !disabled;
    for (bit, napi) in state.napis.iter_mut().enumerate() {
        if (disabled & !before.disabled) & (1 << bit) != 0 {
            napi.disable(cx);
        }
        if again & (1 << bit) != 0 {
            napi.enable(cx);
        }
        if (gone & !before.gone) & (1 << bit) != 0 {
            let caps = napi.device().caps().clone();
            napi.set_device(Arc::new(Blackhole(caps)) as Arc<dyn Device>);
        }
    }
    state.holding &= !disabled;
    core.attendance.set_masked((core.attendance.masked() & !again) | disabled);
    super::turn::publish_deferrals(core, state);
    core.power.done.store(wanted, Ordering::Release);
    again
}
