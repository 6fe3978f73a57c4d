//! Administration of the neighbor table: setting and deleting permanent entries, and listing all
//! entries.
//!
//! Above: `Host::set_neighbor` and related functions, which check the arguments. Linux:
//! `neigh_add`, `neigh_delete`, `neigh_dump_info`.
//!
//! An entry enters or leaves the state PERMANENT under the locks of the table and of the entry, so
//! that `Entries::permanent` is exact. The actions of the change, such as sending waiting packets,
//! are carried out without these locks.

use std::{
    net::IpAddr,
    sync::{Arc, PoisonError},
    vec::Vec,
};

use pkt::Instant;

use super::{Key, NeighborEntry, NeighborTable};
use crate::{
    base::ids::DeviceIndex,
    cx::Cx,
    header::ethernet::MacAddr,
    transmit::neighbor::{Neighbor, NeighborActions, NudState},
};

/// Neighbor entry for display, as in `ip neigh show`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighborInfo {
    /// Index of the device.
    pub device: DeviceIndex,
    /// Address of the neighbor.
    pub address: IpAddr,
    /// Link address, if known.
    pub mac: Option<MacAddr>,
    /// State of the entry.
    pub state: NudState,
}

impl NeighborTable {
    /// Makes the entry of `key` permanent and sends its waiting packets. If there is no entry,
    /// creates one, with `source` as the source address of later requests.
    pub(crate) fn set_permanent(&self, cx: &mut Cx, key: Key, source: IpAddr, mac: MacAddr) {
        let (entry, actions) = {
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            let entry = match entries.map.get(&key) {
                Some(entry) => Arc::clone(entry),
                None => entries.insert(key, source, cx.now),
            };
            entries.permanent += usize::from(!entry.is_permanent());
            let actions = entry.change(|state| state.set_permanent(mac, cx.now));
            (entry, actions)
        };
        entry.carry_out(cx, None, actions);
    }

    /// Returns the entry of a broadcast or multicast address, whose link address is known without
    /// resolution (Linux: NUD_NOARP), and creates it if necessary.
    pub(crate) fn group_entry(
        &self,
        key: Key,
        source: IpAddr,
        mac: MacAddr,
        now: Instant,
    ) -> Arc<NeighborEntry> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.map.get(&key) {
            return Arc::clone(entry);
        }
        let entry = entries.insert(key, source, now);
        entries.permanent += 1;
        // No packet waits in a new entry, so there is nothing to carry out.
        drop(entry.change(|state| state.set_permanent(mac, now)));
        entry
    }

    /// Forgets the link address of `key`, whether an administrator or a packet has set it, and
    /// drops waiting packets. Returns false if there is no entry, or if the entry is in state NONE.
    ///
    /// Differs from Linux, which unlinks the entry: here it stays in state NONE until it is
    /// collected, because cached route entries refer to it and use it to resolve the address again.
    pub(crate) fn delete(&self, cx: &mut Cx, key: Key) -> bool {
        let (entry, actions) = {
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            let known = entries.map.get(&key).filter(|entry| entry.info().state != NudState::None);
            let Some(entry) = known.map(Arc::clone) else { return false };
            entries.permanent -= usize::from(entry.is_permanent());
            let actions = entry.change(|state| state.forget(cx.now));
            (entry, actions)
        };
        entry.carry_out(cx, None, actions);
        true
    }

    /// Returns the link address of `ip`, if it is known.
    pub(crate) fn link_address(&self, device: DeviceIndex, ip: IpAddr) -> Option<MacAddr> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.map.get(&Key { device, ip }).and_then(|entry| entry.info().mac)
    }

    /// Returns all entries except those in state NONE and those of groups, by device and address.
    /// `ip neigh show` omits the same entries.
    pub(crate) fn list(&self) -> Vec<NeighborInfo> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let infos = entries.map.values().map(|entry| entry.info());
        let is_group = |mac: MacAddr| !mac.is_unicast();
        infos
            .filter(|info| info.state != NudState::None && !info.mac.is_some_and(is_group))
            .collect()
    }
}

impl NeighborEntry {
    /// Whether the entry is permanent.
    pub(super) fn is_permanent(&self) -> bool {
        self.info().state == NudState::Permanent
    }

    fn info(&self) -> NeighborInfo {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (device, address) = (self.tx.device_index(), self.ip);
        NeighborInfo { device, address, mac: state.link_address(), state: state.state() }
    }

    /// Changes the state and publishes the link address. The caller holds the lock of the table.
    fn change(&self, change: impl FnOnce(&mut Neighbor) -> NeighborActions) -> NeighborActions {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let actions = change(&mut state);
        self.publish(&state);
        actions
    }
}
