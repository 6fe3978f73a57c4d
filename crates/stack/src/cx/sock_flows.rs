//! RFS table: the home core of the thread that last made a socket call on each flow.
//!
//! Linux: `rps_sock_flow_table`, `sock_rps_record_flow`. Socket calls write it, the cores that poll
//! devices read it. An entry may be stale for a moment. Then a packet may be processed on another
//! core than its reader runs on, which is slower but correct.

use std::{
    boxed::Box,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::base::ids::{CORES_MAX, CoreId};

/// Bits of an entry that hold the core. The other bits hold bits of the hash, which distinguish two
/// flows of one slot.
const CORE_MASK: u32 = CORES_MAX as u32 - 1;

const _: () = assert!(CORES_MAX.is_power_of_two());

/// The table of `net.core.rps_sock_flow_entries`.
#[derive(Debug)]
pub(crate) struct SockFlows {
    /// High bits of a flow's hash and the core of its application. The length is a power of two.
    /// Relaxed: an entry is a hint. Written only if it changes, so that the cache line stays
    /// shared.
    entries: Box<[AtomicU32]>,
}

impl SockFlows {
    /// Creates a table of `entries` slots, a power of two.
    pub(crate) fn new(entries: u32) -> Self {
        debug_assert!(entries.is_power_of_two());
        // Entry that matches no flow of its slot.
        let empty = |index: u32| AtomicU32::new(!index & !CORE_MASK);
        Self { entries: (0..entries).map(empty).collect() }
    }

    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    fn entry(&self, hash: u32) -> &AtomicU32 {
        &self.entries[hash as usize & (self.entries.len() - 1)]
    }

    /// Records that the application of a flow runs on `core`.
    #[inline]
    pub(crate) fn record(&self, hash: u32, core: CoreId) {
        let (entry, value) = (self.entry(hash), hash & !CORE_MASK | u32::from(core.0));
        if entry.load(Ordering::Relaxed) != value {
            entry.store(value, Ordering::Relaxed);
        }
    }

    /// Returns the core of a flow's application, if that flow was the last to write its slot.
    #[inline]
    pub(crate) fn core_of(&self, hash: u32) -> Option<CoreId> {
        let value = self.entry(hash).load(Ordering::Relaxed);
        let core = u16::try_from(value & CORE_MASK).expect("a core number is at most 63");
        ((value ^ hash) & !CORE_MASK == 0).then_some(CoreId(core))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_found_until_another_takes_its_slot() {
        let flows = SockFlows::new(1024);
        let (hash, other) = (0x1234_5678, 0x9999_5678);
        assert!((0..4096).all(|hash| flows.core_of(hash).is_none()));
        assert_eq!(flows.core_of(hash), None);
        flows.record(hash, CoreId(3));
        assert_eq!((flows.core_of(hash), flows.core_of(other)), (Some(CoreId(3)), None));
        flows.record(other, CoreId(0));
        assert_eq!((flows.core_of(hash), flows.core_of(other)), (None, Some(CoreId(0))));
    }
}
