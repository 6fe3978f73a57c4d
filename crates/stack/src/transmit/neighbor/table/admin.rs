//! What an administrator does to the table: permanent entries, their end, and the list of all entries.
//!
//! Above: `Host::set_neighbor` and its relatives, which check the arguments. Linux: `neigh_add`, `neigh_delete`, `neigh_dump_info`.
//!
//! The state of an entry becomes PERMANENT, or ceases to be, under the locks of the table and of the entry, so that
//! `Entries::permanent` is exact. What the change asks for, such as sending packets that waited, is done without either.

use std::{
    net::IpAddr,
    sync::{Arc, PoisonError},
    vec::Vec,
};

use super::{Key, NeighborEntry, NeighborTable};
use crate::{
    cx::Cx,
    header::ethernet::MacAddr,
    host::Host,
    transmit::neighbor::{Neighbor, NeighborActions, NudState},
};

/// One line of the list of neighbors: `ip neigh show`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighborInfo {
    /// Index of the device.
    pub device: u32,
    /// The address.
    pub address: IpAddr,
    /// Its link address, where it is known.
    pub mac: Option<MacAddr>,
    /// State of the entry.
    pub state: NudState,
}

impl NeighborTable {
    /// Makes the entry of `key` permanent, and the entry itself if there is none; `source` is then the asker of later requests.
    /// Packets that waited for the address are sent.
    pub(crate) fn set_permanent(
        &self,
        host: &Host,
        cx: &mut Cx,
        key: Key,
        source: IpAddr,
        mac: MacAddr,
    ) {
        let (entry, actions) = {
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            let entry = match entries.map.get(&key) {
                Some(entry) => Arc::clone(entry),
                None => entries.insert(key, source),
            };
            entries.permanent += usize::from(!entry.is_permanent());
            let actions = entry.change(|state| state.set_permanent(mac, cx.now));
            (entry, actions)
        };
        entry.carry_out(host, cx, None, actions);
    }

    /// Forgets the link address of `key`, whether it was set or learned; false if nothing is known of it. Packets that wait for
    /// the address are dropped.
    ///
    /// Differs from Linux, which unlinks the entry: here it stays in state NONE until it is collected, because cached routes refer
    /// to it and resolve the address by it again.
    pub(crate) fn delete(&self, host: &Host, cx: &mut Cx, key: Key) -> bool {
        let (entry, actions) = {
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            let known = entries.map.get(&key).filter(|entry| entry.info().state != NudState::None);
            let Some(entry) = known.map(Arc::clone) else { return false };
            entries.permanent -= usize::from(entry.is_permanent());
            let actions = entry.change(|state| state.forget(cx.now));
            (entry, actions)
        };
        entry.carry_out(host, cx, None, actions);
        true
    }

    /// Every entry of which something is known, by device and address. `ip neigh show` leaves those in state NONE out, too.
    pub(crate) fn list(&self) -> Vec<NeighborInfo> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let infos = entries.map.values().map(|entry| entry.info());
        infos.filter(|info| info.state != NudState::None).collect()
    }
}

impl NeighborEntry {
    /// Whether an administrator has set the entry.
    pub(super) fn is_permanent(&self) -> bool {
        self.info().state == NudState::Permanent
    }

    fn info(&self) -> NeighborInfo {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Self { device, ip: address, .. } = *self;
        NeighborInfo { device, address, mac: state.link_address(), state: state.state() }
    }

    /// Changes the state and publishes the link address; the caller holds the lock of the table.
    fn change(&self, change: impl FnOnce(&mut Neighbor) -> NeighborActions) -> NeighborActions {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let actions = change(&mut state);
        self.publish(&state);
        actions
    }
}
