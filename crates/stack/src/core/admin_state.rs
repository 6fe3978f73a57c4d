//! Administrative state of devices: disables queues whose device is down or gone (removed).
//!
//! Linux: `napi_disable`, which sets `NAPI_STATE_DISABLE` and waits until the poll is over;
//! `napi_enable`. Here the caller sets bits in a word of the core, and the owner of the core
//! applies them at the beginning of its next turn (one pass over its queues): the owner drops the
//! packets that the queue holds, and polls the queue no more. Therefore no poll is interrupted, and
//! the caller waits until the owner has applied the bits, which is after the last poll.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use pkt::Instant;

use super::{Core, CoreState};
use crate::{
    base::ids::{DeviceIndex, NapiId},
    cx::Cx,
    device::{Device, attached::Blackhole},
    socket::net::Net,
};

/// Requested state of the queues of a core, one bit each.
#[derive(Debug, Default)]
pub(super) struct RequestedStates {
    /// Queues that must not be polled.
    disabled: AtomicU64,
    /// Disabled queues whose device is gone.
    gone: AtomicU64,
    /// Number of the last requested change. The requester stores it with Release after the words
    /// above; the owner loads it with Acquire.
    wanted: AtomicU64,
    /// Number of the last change that the owner has applied. Stored with Release by the owner, so
    /// that a thread which reads the number sees the end of all earlier polls.
    done: AtomicU64,
}

/// State that the owner has applied.
#[derive(Debug, Default)]
pub(super) struct AppliedStates {
    change: u64,
    disabled: u64,
    gone: u64,
}

impl AppliedStates {
    /// Returns the queues that are not polled.
    #[inline]
    pub(super) const fn disabled(&self) -> u64 {
        self.disabled
    }
}

/// Administrative state of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminState {
    /// The queues are polled.
    Up,
    /// The queues are not polled.
    Down,
    /// The queues are not polled, and release their device.
    Gone,
}

impl Core {
    /// Changes the state of the queues of device `index`, and returns when the owner has applied
    /// it: no poll of a disabled queue is under way then. Linux: `napi_disable`, `napi_enable`.
    pub(crate) fn set_admin_state(
        &self,
        net: &Net,
        cx: &mut Cx,
        index: DeviceIndex,
        state: AdminState,
    ) {
        let queues = self.queues_of_device(index);
        if queues == 0 {
            return;
        }
        let requested = &self.requested;
        match state {
            AdminState::Up => requested.disabled.fetch_and(!queues, Ordering::Relaxed),
            AdminState::Down => requested.disabled.fetch_or(queues, Ordering::Relaxed),
            AdminState::Gone => requested.gone.fetch_or(queues, Ordering::Relaxed),
        };
        let wanted = requested.wanted.fetch_add(1, Ordering::Release) + 1;
        while requested.done.load(Ordering::Acquire) < wanted {
            // This context itself may owe a run of this core.
            cx.do_softirq();
            // If the core is idle, this thread runs the turn that applies the change. Otherwise
            // MISSED makes the owner run another turn, which applies it.
            match self.lock.try_own() {
                Some(guard) => self.run_for_another(net, guard, cx),
                None => sync::yield_now(),
            }
        }
        if state == AdminState::Up {
            // The worker may sleep without watching the descriptors of these queues. The kick wakes
            // the worker, which then watches them.
            self.wake_before(Instant::ZERO);
        }
        cx.do_softirq();
    }

    /// Returns whether the device of the queue is gone; the descriptor of the device is then
    /// closed, or is about to be.
    #[must_use]
    pub fn is_gone(&self, napi: NapiId) -> bool {
        self.requested.gone.load(Ordering::Relaxed) & napi.bit() != 0
    }

    fn queues_of_device(&self, index: DeviceIndex) -> u64 {
        let places = self.places.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let bits =
            places.iter().zip(0..).map(|(place, bit)| u64::from(place.device == index) << bit);
        bits.sum()
    }
}

/// Applies a pending change at the beginning of a turn. Returns the queues that are enabled again.
#[inline]
pub(super) fn apply_pending(core: &Core, state: &mut CoreState, cx: &mut Cx) -> u64 {
    let wanted = core.requested.wanted.load(Ordering::Acquire);
    if wanted == state.applied.change { 0 } else { apply(core, state, cx, wanted) }
}

/// Applies the requested state. Returns the queues that are enabled again.
#[cold]
fn apply(core: &Core, state: &mut CoreState, cx: &mut Cx, wanted: u64) -> u64 {
    let disabled = core.requested.disabled.load(Ordering::Relaxed);
    let gone = core.requested.gone.load(Ordering::Relaxed);
    let before =
        core::mem::replace(&mut state.applied, AppliedStates { change: wanted, disabled, gone });
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
    core.requested.done.store(wanted, Ordering::Release);
    again
}
