//! Beginning and end of a core: its queues are added while its host is built, and removed when the
//! host is gone. A run that is then still owed is canceled.
//!
//! Not here: devices that leave while the host stays (`admin_state`).

use std::sync::{Arc, PoisonError};

use sync::CoreGuard;

use super::{Core, CoreState, DEVICE_QUEUES_MAX};
use crate::{
    base::ids::{DeviceIndex, NapiId},
    device::{Device, DeviceQueue, QueueId, RxSignal},
    receive::napi::Napi,
    transmit::tx_queue::DeviceTx,
};

/// Attempts to own a core whose host is gone. After them, the cleanup is left to the core's owner.
const LOOKS_MAX: u32 = 1000;

impl Core {
    /// Adds a device queue to the core; returns `None` if the core has [`DEVICE_QUEUES_MAX`].
    /// Called only while the host is built.
    pub(crate) fn add_queue(
        &self,
        device: Arc<dyn Device>,
        tx: Arc<DeviceTx>,
        index: DeviceIndex,
        queue: QueueId,
    ) -> Option<NapiId> {
        let mut guard = self.lock.try_own().expect("no thread runs a core that is being built");
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
        let napi = Napi::new(device, tx, index, queue);
        guard.completing |= u64::from(napi.completes()) << id;
        guard.ringed |= u64::from(napi.has_ring()) << id;
        guard.napis.push(napi);
        self.places
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(DeviceQueue { device: index, queue });
        let _ = guard.release();
        Some(NapiId(u8::try_from(id).expect("a core has at most 60 device queues")))
    }

    /// Removes the device queues of a core whose host is gone. If a thread still owns the core,
    /// this call waits a limited time for the release, so that the caller can open the same device
    /// again afterwards. An owner that does not release the core in that time (it may be the
    /// calling thread) removes the queues when it next runs the core.
    pub(super) fn end(&self) {
        for _ in 0..LOOKS_MAX {
            if let Some(guard) = self.lock.try_own() {
                return self.forget(guard);
            }
            sync::yield_now();
        }
    }

    /// Releases the devices, the timers, the kick (which wakes the worker) and the backlog of a
    /// core whose host is gone.
    pub(super) fn forget(&self, mut guard: CoreGuard<'_, CoreState>) {
        guard.napis.clear();
        (guard.completing, guard.ringed) = (0, 0);
        // Contexts that have run the core may keep a reference to it for a while. The timers, which
        // refer to sockets of the host, must not be kept with it.
        self.sockets.forget_timers();
        self.lose_worker();
        guard.backlog.clear(self.backlog());
    }
}
