//! Devices of a host that go down, come up again and are removed while it runs.
//!
//! Linux: `ip link set DEVICE down`, `up`, `ip link del`; `__dev_close_many`,
//! `unregister_netdevice_many`, `dst_dev_put`, `neigh_ifdown`, `napi_disable`, `dev_deactivate`.
//!
//! A device goes down in an order in which no step creates work that an earlier step has ended:
//!
//! 1. The device drops the packets passed to it.
//! 2. No route leads to the device. A new route generation makes all cached route entries (dst)
//!    stale, including those that refer to the device.
//! 3. The queues of the device are disabled on every core; the last poll is over.
//! 4. Packets in the transmit queues of the device, and packets that wait for its neighbors, are
//!    dropped with a reason.
//!
//! A removed device is then replaced by a black hole, which drops packets sent through route
//! entries still in use. The device is freed after a grace period.
//!
//! Not supported: devices that are added while a host runs.

use std::{
    net::IpAddr,
    sync::{Arc, PoisonError},
    vec::Vec,
};

use super::Host;
use crate::{
    base::{
        errno::Errno,
        ids::{DeviceIndex, LOOPBACK},
    },
    core::{AdminState, Core},
    cx::{Cx, event::Event},
    device::{Capabilities, Device as _, attached::Attached},
    socket::{Listener, demux::Entry},
};

impl Host {
    /// Takes a device down or up (`ip link set DEVICE down`). A device that is down carries no
    /// packets: its networks and the routes through it are removed, and its addresses remain local.
    /// When it comes up, its networks and its next hops in routes with several next hops are
    /// restored, but its other routes are not; frames that arrived meanwhile are dropped.
    ///
    /// # Errors
    ///
    /// `ENODEV` without such a device, `EINVAL` for loopback.
    ///
    /// # Panics
    ///
    /// If called from within a turn of a core (one pass of its softirq work): the call waits for
    /// the end of every poll of the device, and this turn may be such a poll.
    pub fn set_device_up(&self, cx: &mut Cx, index: DeviceIndex, up: bool) -> Result<(), Errno> {
        let device = self.attached(index)?;
        let entered = self.enter_change(cx);
        let changes = self.device_changes.lock().unwrap_or_else(PoisonError::into_inner);
        if device.is_gone() {
            cx.leave(entered);
            return Err(Errno::ENODEV);
        }
        let name = || device.caps().name.clone();
        let mut event = None;
        if device.is_up() != up {
            if up {
                device.set_up(true);
                self.set_admin_state(cx, index, AdminState::Up);
                self.tx(index).follow_superframe_max();
                self.change_device_routes(|routes| routes.device_up(index));
                self.announce_addresses_of(cx, index);
                self.on_autoconf_device_up(cx, index);
                event = Some(Event::DeviceUp { device: name() });
            } else {
                self.take_down(cx, index, device);
                event = Some(Event::DeviceDown { device: name() });
            }
        }
        drop(changes);
        if let Some(event) = event {
            self.report(event);
        }
        cx.do_softirq();
        cx.leave(entered);
        Ok(())
    }

    /// Removes a device (`ip link del DEVICE`) with its addresses. A connection that used the
    /// device continues if another route leads to its peer and another device has its local
    /// address. Sockets whose address no device has cannot work again: connections and datagram
    /// sockets end and listeners fail with `ENETDOWN`, after [`Event::DeviceGone`] was reported.
    /// The device is dropped after a grace period, when no running call can refer to it.
    ///
    /// # Errors
    ///
    /// As [`set_device_up`](Self::set_device_up).
    ///
    /// # Panics
    ///
    /// As [`set_device_up`](Self::set_device_up).
    pub fn remove_device(&self, cx: &mut Cx, index: DeviceIndex) -> Result<(), Errno> {
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
        self.on_autoconf_device_gone(index);
        self.set_admin_state(cx, index, AdminState::Gone);
        device.set_gone();
        drop(changes);
        self.report(Event::DeviceGone { device: device.caps().name.clone() });
        self.end_sockets_without_address(cx, index);
        cx.do_softirq();
        cx.leave(entered);
        cx.reader().quiescent();
        self.rcu.reclaim();
        Ok(())
    }

    /// Returns whether a device carries packets. False for a removed or unknown device.
    #[must_use]
    pub fn is_device_up(&self, index: DeviceIndex) -> bool {
        index == LOOPBACK || self.attached(index).is_ok_and(|device| device.is_up())
    }

    /// Iterates over the devices besides loopback that were not removed, with their capabilities.
    pub fn present_devices(&self) -> impl Iterator<Item = (DeviceIndex, &Capabilities)> {
        let attached = (1..).map(DeviceIndex).zip(&self.attached);
        let present = attached.filter(|(_, device)| !device.is_gone());
        present.map(|(index, device)| (index, device.caps()))
    }

    pub(super) fn attached(&self, index: DeviceIndex) -> Result<&Attached, Errno> {
        match index.position().checked_sub(1) {
            None => Err(Errno::EINVAL),
            Some(place) => self.attached.get(place).map(|own| &**own).ok_or(Errno::ENODEV),
        }
    }

    /// Enters the host for a change of a device.
    ///
    /// # Panics
    ///
    /// From within a turn of a core.
    fn enter_change(&self, cx: &mut Cx) -> crate::cx::Entered {
        let entered = cx.enter(self);
        assert!(
            cx.running().is_none(),
            "a device was changed from within a turn of a core, which may be polling it"
        );
        entered
    }

    fn take_down(&self, cx: &mut Cx, index: DeviceIndex, device: &Attached) {
        device.set_up(false);
        self.change_device_routes(|routes| routes.device_down(index));
        self.on_autoconf_device_down(index);
        self.set_admin_state(cx, index, AdminState::Down);
        self.tx(index).purge(cx);
        self.neighbors.device_down(cx, index);
    }

    /// Ends the sockets that are bound to an address which only the removed device `gone` had, and
    /// the intercepted flows of that device.
    ///
    /// Differs from Linux: there a connection retransmits until it times out, because its address
    /// may be added again. Here a removed device does not return, and neither does its address, so
    /// the connection could not recover.
    fn end_sockets_without_address(&self, cx: &mut Cx, gone: DeviceIndex) {
        let (mut listeners, mut entries) = (Vec::<Arc<Listener>>::new(), Vec::<Entry>::new());
        let mut datagrams = Vec::new();
        {
            let reader = cx.reader();
            let rcu = reader.pin();
            let fib = self.fib(&rcu);
            let is_lost = |ip: IpAddr| !ip.is_unspecified() && !fib.is_local(ip);
            self.demux.for_each_listener(&rcu, |listener| {
                if is_lost(listener.address().ip()) {
                    listeners.push(Arc::clone(listener));
                }
            });
            for table in [&self.datagrams, &self.pings] {
                table.for_each(&rcu, |bound| {
                    // A socket may be bound to a multicast group, which is an address of no device.
                    if fib.local_kind(bound.local.ip()).is_none() && is_lost(bound.local.ip()) {
                        datagrams.push(Arc::clone(&bound.socket));
                    }
                });
            }
            self.demux.for_each_established(&rcu, |tuple, entry| {
                let ends = match entry.via() {
                    Some(device) => device == gone,
                    None => is_lost(tuple.local.ip()),
                };
                if ends {
                    entries.push(entry.clone());
                }
            });
        }
        for socket in datagrams {
            socket.end(self, cx);
        }
        for listener in listeners {
            listener.lose_address(self, cx);
        }
        self.flows().device_gone(self, cx, gone);
        for entry in entries {
            match entry {
                Entry::Stream(socket) => socket.lose_address(self, cx),
                Entry::Request(request) => request.give_up(self),
                Entry::TimeWait(time_wait) => {
                    let _ended = time_wait.end(self);
                }
            }
        }
    }

    /// Changes the administrative state of the queues of a device, on every core.
    fn set_admin_state(&self, cx: &mut Cx, index: DeviceIndex, state: AdminState) {
        for core in &self.cores {
            core.set_admin_state(self, cx, index, state);
        }
    }
}

impl Host {
    /// Reports that the worker of `core` has panicked. From here on, no run of the core is handed
    /// to that worker. The owner of the worker shuts the host down.
    #[cold]
    pub fn worker_panicked(&self, core: &Core) {
        core.lose_worker();
        self.report(Event::WorkerPanicked { core: core.id().0 });
    }
}
