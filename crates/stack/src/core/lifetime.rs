//! The beginning and the end of a core: its queues are added while its host is built and forgotten when that is gone, and a run that
//! nobody will come to is given up.
//!
//! Not here: devices that go while the host stays (`power`).

use std::sync::{Arc, PoisonError};

use sync::CoreGuard;

use super::{Core, CoreState, DEVICE_QUEUES_MAX};
use crate::{
    base::ids::NapiId,
    device::{Device, QueueId, RxSignal},
    receive::napi::Napi,
    transmit::tx_queue::DeviceTx,
};

/// Looks at a core whose host is gone before its end is left to its owner.
const LOOKS_MAX: u32 = 1000;

impl Core {
    /// Adds a device queue to those this core polls; `None` when it has [`DEVICE_QUEUES_MAX`]. Only while the host is being built.
    pub(crate) fn add_queue(
        &self,
        (device, tx): (Arc<dyn Device>, Arc<DeviceTx>),
        index: u32,
        queue: QueueId,
    ) -> Option<NapiId> {
        let mut guard = self.lock.try_own().expect("nobody runs a core that is being built");
        let id = guard.napis.len();
        if id == DEVICE_QUEUES_MAX {
            return None;
        }
        match device.rx_signal(queue) {
            RxSignal::Doorbell => {}
            RxSignal::Descriptor => {
                guard.descriptors |= 1 << id;
                self.attendance.add_descriptor();
            }
            RxSignal::None => guard.unannounced |= 1 << id,
        }
        let napi = Napi::new((device, tx), index, queue);
        guard.completing |= u64::from(napi.completes()) << id;
        guard.ringed |= u64::from(napi.has_ring()) << id;
        guard.napis.push(napi);
        self.places.lock().unwrap_or_else(PoisonError::into_inner).push((index, queue));
        let _ = guard.release();
        Some(NapiId(u8::try_from(id).expect("at most 61")))
    }

    /// Forgets the device queues: the host is gone, so nobody runs them any more. Another thread may own the core for a moment, and
    /// is waited for: who opens the same device again finds it closed. One that has rung it and does not come to it, as this very
    /// thread may have, finds the host gone, and forgets them then.
    pub(crate) fn remove_queues(&self) {
        for _ in 0..LOOKS_MAX {
            if let Some(guard) = self.lock.try_own() {
                return self.forget(guard);
            }
            sync::yield_now();
        }
    }

    /// The end of a core without a host: its devices, its timers and whom to kick.
    pub(super) fn forget(&self, mut guard: CoreGuard<'_, CoreState>) {
        guard.napis.clear();
        (guard.completing, guard.ringed) = (0, 0);
        // Contexts that have run the core may keep it for a while: not what it remembers of the host's sockets, too.
        self.sockets.forget_timers();
        self.lose_worker();
        guard.backlog.clear(&self.backlog());
    }
}
