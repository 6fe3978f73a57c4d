//! Devices of a host that go down, come up again and go away while it runs.
//!
//! Linux: `ip link set DEVICE down`, `up`, `ip link del`; `__dev_close_many`, `unregister_netdevice_many`, `dst_dev_put`,
//! `neigh_ifdown`, `napi_disable`, `dev_deactivate`.
//!
//! In this order, so that nothing new begins on what is about to end: the device drops what it is given; no route leads to it any
//! more, and a new generation makes every entry that does stale; its queues are polled no more, the last poll over; what waits in
//! its transmit queues and for its neighbors is dropped with a reason. A device that goes away then leaves a black hole behind
//! for whoever still holds an entry, and is freed after a grace period.
//!
//! Not here: devices that come while a host runs.

use std::{
    net::IpAddr,
    sync::{Arc, PoisonError, atomic::Ordering},
    vec::Vec,
};

use super::Host;
use crate::{
    base::{errno::Errno, ids::LOOPBACK},
    core::{Core, PowerChange},
    cx::{Cx, event::Event},
    device::{Device as _, LinkType, attached::Attached},
    header::ethernet::MacAddr,
    socket::{Listener, demux::Entry},
};

impl Host {
    /// Takes a device down or up (`ip link set DEVICE down`). Down it carries nothing: its networks and the routes through it
    /// are gone, its addresses stay this host's. Up again its networks are back, but not the routes that were added; frames that
    /// came meanwhile are dropped.
    ///
    /// # Errors
    /// `ENODEV` without such a device, `EINVAL` for loopback.
    ///
    /// # Panics
    /// From within a turn of a core: the poll that it would wait for is its own.
    pub fn set_device_up(&self, cx: &mut Cx, index: u32, up: bool) -> Result<(), Errno> {
        let device = self.attached(index)?;
        let entered = self.enter_change(cx);
        let changes = self.device_changes.lock().unwrap_or_else(PoisonError::into_inner);
        if device.is_gone() {
            cx.leave(entered);
            return Err(Errno::ENODEV);
        }
        if device.is_up() != up {
            if up {
                device.set_up(true);
                self.power(cx, index, PowerChange::Up);
                self.tx(index).follow_superframe_max();
                self.change_device_routes(|routes| routes.device_up(index));
                self.announce_addresses_of(cx, index);
            } else {
                self.take_down(cx, index, device);
            }
        }
        drop(changes);
        cx.do_softirq();
        cx.leave(entered);
        Ok(())
    }

    /// Takes a device away (`ip link del DEVICE`): down, and with it its addresses. Connections that used it go on by other
    /// routes, if any lead there, and from the address that they have, if another device has it, too. Sockets whose address no
    /// device has any more can never work again: connections end and listeners fail with `ENETDOWN`. [`Event::DeviceGone`] is
    /// reported before. The device is dropped after a grace period, when no thread is in a call any more that may still look at it.
    ///
    /// # Errors
    /// As [`set_device_up`](Self::set_device_up).
    ///
    /// # Panics
    /// As [`set_device_up`](Self::set_device_up).
    pub fn remove_device(&self, cx: &mut Cx, index: u32) -> Result<(), Errno> {
        let device = self.attached(index)?;
        let entered = self.enter_change(cx);
        let changes = self.device_changes.lock().unwrap_or_else(PoisonError::into_inner);
        if device.is_gone() {
            cx.leave(entered);
            return Err(Errno::ENODEV);
        }
        if device.is_up() {
            self.take_down(cx, index, device);
        }
        self.change_device_routes(|routes| routes.device_gone(index));
        self.power(cx, index, PowerChange::Gone);
        device.set_gone();
        drop(changes);
        self.report(Event::DeviceGone { device: device.caps().name.clone() });
        self.end_sockets_without_address(cx);
        cx.do_softirq();
        cx.leave(entered);
        cx.reader().quiescent();
        self.rcu.reclaim();
        Ok(())
    }

    /// Whether a device carries packets. False for one that is gone, or that never was.
    #[must_use]
    pub fn is_device_up(&self, index: u32) -> bool {
        index == LOOPBACK || self.attached(index).is_ok_and(|device| device.is_up())
    }

    pub(super) fn attached(&self, index: u32) -> Result<&Attached, Errno> {
        match index.checked_sub(LOOPBACK + 1) {
            None => Err(Errno::EINVAL),
            Some(place) => self.attached.get(place as usize).map(|own| &**own).ok_or(Errno::ENODEV),
        }
    }

    fn enter_change(&self, cx: &mut Cx) -> crate::cx::Entered {
        let entered = cx.enter(self);
        assert!(cx.running().is_none(), "a device is taken down by a turn that may be polling it");
        entered
    }

    fn take_down(&self, cx: &mut Cx, index: u32, device: &Attached) {
        device.set_up(false);
        self.change_device_routes(|routes| routes.device_down(index));
        self.power(cx, index, PowerChange::Down);
        self.tx(index).purge(cx);
        self.neighbors.device_down(cx, index);
    }

    /// Ends the sockets that are bound to an address which this host had on a device that is gone, and has on no other.
    ///
    /// Differs from Linux: there a connection retransmits until it times out, because its address may be added again. This host
    /// gets no addresses while it runs, so the connection would wait for nothing.
    fn end_sockets_without_address(&self, cx: &mut Cx) {
        let (mut listeners, mut entries) = (Vec::<Arc<Listener>>::new(), Vec::<Entry>::new());
        {
            let reader = cx.reader();
            let rcu = reader.pin();
            let fib = self.fib(&rcu);
            let is_lost = |ip: IpAddr| !ip.is_unspecified() && !fib.is_local(ip);
            self.demux.for_each_listener(&rcu, |listener| {
                if is_lost(listener.local().ip()) {
                    listeners.push(Arc::clone(listener));
                }
            });
            self.demux.for_each_established(&rcu, |tuple, entry| {
                if is_lost(tuple.local.ip()) {
                    entries.push(entry.clone());
                }
            });
        }
        for listener in listeners {
            listener.lose_address(self, cx);
        }
        for entry in entries {
            match entry {
                Entry::Stream(socket) => socket.lose_address(self, cx),
                Entry::Request(request) => request.give_up(self),
                Entry::TimeWait(remnant) => {
                    let _ended = remnant.end(self);
                }
            }
        }
    }

    fn power(&self, cx: &mut Cx, index: u32, change: PowerChange) {
        for core in &self.cores {
            core.set_power(self, cx, index, change);
        }
    }
}

impl Host {
    /// The worker of `core` has panicked. Nothing is handed to it any more, and whoever it belonged to shuts the host down.
    #[cold]
    pub fn worker_panicked(&self, core: &Core) {
        core.lose_worker();
        self.report(Event::WorkerPanicked { core: core.id().0 });
    }

    /// A segment with an unfinished checksum has arrived by device `index`: reported once for each of the first 64 devices.
    #[cold]
    pub(crate) fn report_unfinished_checksum(&self, index: u32) {
        let Some(bit) = 1_u64.checked_shl(index) else { return };
        if self.unfinished_checksums.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            let device = self.device_name(index).into();
            self.report(Event::UnfinishedChecksums { device });
        }
    }

    /// Link address of a device; none where its frames have no Ethernet header.
    pub(crate) fn mac_of(&self, index: u32) -> Option<MacAddr> {
        match self.device(index).caps().link {
            LinkType::Ethernet { mac } => Some(mac),
            LinkType::Ip => None,
        }
    }
}
