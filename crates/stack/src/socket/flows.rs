//! Interception: flows to any address that a device brings, handed to the application before they
//! are answered.
//!
//! Above: `receive`, which passes segments and packets for addresses that this host does not have;
//! crate `quietline`, whose `Flows` takes the flows. Below: requests (`listener::request`),
//! connections, `route`. Linux: TPROXY and `ip_transparent`; gVisor calls the same promiscuous mode
//! and spoofing.
//!
//! Interception belongs to a **device**, not to the table of routes: a local route to 0.0.0.0/0
//! would make the address of every sender one of this host. A packet that the device brings for a
//! foreign address passes the same steps as one for this host. Its socket has the destination of
//! the flow as its local address, and the device in its name (`FlowName::via`): the answers leave
//! by that device, whatever the routes say. Listeners and sockets of this host's own addresses come
//! first; a segment to an own address without a socket is intercepted, too.
//!
//! Two devices that intercept must bring flows of different clients, because the four-tuple alone
//! names a connection; a segment that another device brings for it is dropped.
//!
//! Not here: the steps of the handshake (`tcp::Request`).

use std::sync::Arc;

use sync::epoch::Domain;

use crate::{
    base::{counters::Counter, ids::DeviceIndex},
    cx::Cx,
    socket::{flows::interceptor::Interceptor, net::Net},
};

pub use config::Intercept;
pub use packet::FlowPacket;
pub use queue::{FlowQueue, NewFlow};
pub use session::UdpSession;

mod config;
pub(crate) mod held;
pub(crate) mod interceptor;
mod packet;
mod queue;
mod session;
mod sessions;

/// Interception of a host.
#[derive(Debug)]
pub(crate) struct Interception {
    /// Interceptors by the position of their device; empty if no device intercepts.
    by_device: Box<[Option<Arc<Interceptor>>]>,
    queue: Arc<FlowQueue>,
}

impl Interception {
    /// Makes the interceptors of `devices`, which are indices of devices besides loopback.
    pub(crate) fn new(rcu: &Domain, devices: Vec<(DeviceIndex, Intercept)>) -> Self {
        let queue = Arc::new(FlowQueue::new());
        let count = devices.iter().map(|(device, _)| device.position() + 1).max().unwrap_or(0);
        let mut by_device: Vec<_> = (0..count).map(|_| None).collect();
        for (device, config) in devices {
            by_device[device.position()] =
                Some(Arc::new(Interceptor::new(rcu, device, config, Arc::clone(&queue))));
        }
        Self { by_device: by_device.into(), queue }
    }

    /// Returns the interceptor of a device; `None` if it has none, or if no application takes
    /// flows any more.
    #[inline]
    pub(crate) fn of(&self, device: DeviceIndex) -> Option<&Arc<Interceptor>> {
        let interceptor = self.interceptor(device)?;
        self.queue.is_open().then_some(interceptor)
    }

    /// Returns the interceptor of a device, also if no application takes flows any more.
    #[inline]
    pub(crate) fn interceptor(&self, device: DeviceIndex) -> Option<&Arc<Interceptor>> {
        self.by_device.get(device.position())?.as_ref()
    }

    /// Returns whether a device has an interceptor.
    #[inline]
    pub(crate) fn intercepts(&self, device: DeviceIndex) -> bool {
        self.interceptor(device).is_some()
    }

    /// Ends the UDP sessions of a device that was removed. Its connections are in the table.
    pub(crate) fn device_gone(&self, net: &Net, cx: &mut Cx, device: DeviceIndex) {
        if let Some(interceptor) = self.interceptor(device) {
            interceptor.sessions().close(net, cx);
        }
    }

    /// Softirq: ends the UDP sessions of a device that have expired.
    pub(crate) fn on_sessions_timer(&self, net: &Net, cx: &mut Cx, device: DeviceIndex) {
        if let Some(interceptor) = self.interceptor(device) {
            let expired = interceptor.sessions().expire(net, cx);
            cx.count(Counter::FlowSessionsExpired, expired as u64);
        }
    }

    /// Softirq: hands an echo request, or a packet of another protocol, to the application.
    pub(crate) fn hand_over(&self, cx: &mut Cx, flow: NewFlow) {
        self.queue.push_packet(cx, flow);
    }

    /// Refuses all flows, now and from here on, because the host shuts down.
    pub(crate) fn shut_down(&self, net: &Net, cx: &mut Cx) {
        self.queue.shut_down(net, cx);
        for interceptor in self.by_device.iter().flatten() {
            interceptor.shut_down(net, cx);
        }
    }

    /// Breaks the reference cycles of a host that is dropped: a waiting flow holds its interceptor,
    /// which holds the queue.
    pub(crate) fn forget(&self) {
        self.queue.forget();
    }
}

impl Net {
    pub(crate) const fn flows(&self) -> &Interception {
        &self.flows
    }

    /// Returns the queue of intercepted flows; `None` if no device of the host intercepts.
    #[must_use]
    pub fn flow_queue(&self) -> Option<&Arc<FlowQueue>> {
        (!self.flows.by_device.is_empty()).then_some(&self.flows.queue)
    }

    /// Returns the number of intercepted connections that are not established yet.
    #[must_use]
    pub fn flows_pending(&self) -> usize {
        self.flows.by_device.iter().flatten().map(|interceptor| interceptor.pending().len()).sum()
    }

    /// Returns the number of UDP sessions of intercepting devices.
    #[must_use]
    pub fn flow_sessions(&self) -> usize {
        self.flows.by_device.iter().flatten().map(|interceptor| interceptor.sessions().len()).sum()
    }
}
