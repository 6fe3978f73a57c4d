//! Options of a connection or datagram socket that are read without owning the socket.

use core::{
    sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering},
    time::Duration,
};

use super::SocketSettings;
use crate::{
    socket::{
        connection::busy_poll::{BusyPoll, BusyPollCell},
        demux::BindFlags,
    },
    transmit::ip_output::{IpFields, Ipv6Fields, MtuDiscover},
};

/// Options written by `setsockopt`, and read by calls that may wait and by sends. Relaxed: an
/// option orders nothing.
#[derive(Debug, Default)]
pub(in crate::socket) struct SharedSettings {
    /// `SO_RCVTIMEO` in nanoseconds; 0 is unlimited.
    receive_timeout_ns: AtomicU64,
    /// `SO_SNDTIMEO` in nanoseconds; 0 is unlimited.
    send_timeout_ns: AtomicU64,
    /// `SO_REUSEADDR`. The sharing of the port is decided when the port is bound; a later change of
    /// the option is only visible to `getsockopt`.
    reuse_address: AtomicBool,
    /// `SO_REUSEPORT`.
    reuse_port: AtomicBool,
    /// `IP_TOS`.
    tos: AtomicU8,
    /// `SO_PRIORITY`.
    priority: AtomicU8,
    /// `IP_TTL`; 0 selects the sysctl.
    ttl: AtomicU8,
    busy_poll: BusyPollCell,
    /// `IP_MTU_DISCOVER` plus one; 0 selects the sysctl.
    mtu_discover: AtomicU8,
    ipv6: Ipv6Cells,
}

/// Options of IPv6 packets.
#[derive(Debug, Default)]
struct Ipv6Cells {
    /// `IPV6_TCLASS`.
    traffic_class: AtomicU8,
    /// `IPV6_UNICAST_HOPS` plus one; 0 selects the sysctl.
    hop_limit: AtomicU16,
    /// `IPV6_MTU_DISCOVER` plus one; 0 selects the default.
    mtu_discover: AtomicU8,
    /// `IPV6_AUTOFLOWLABEL` plus one; 0 selects the sysctl.
    flow_label: AtomicU8,
}

impl Ipv6Cells {
    fn set(&self, fields: Ipv6Fields) {
        self.traffic_class.store(fields.traffic_class, Ordering::Relaxed);
        let hops = fields.hop_limit.map_or(0, |hops| u16::from(hops) + 1);
        self.hop_limit.store(hops, Ordering::Relaxed);
        self.mtu_discover.store(number_of(fields.mtu_discover), Ordering::Relaxed);
        let label = fields.flow_label.map_or(0, |on| u8::from(on) + 1);
        self.flow_label.store(label, Ordering::Relaxed);
    }

    fn load(&self) -> Ipv6Fields {
        let hops = self.hop_limit.load(Ordering::Relaxed);
        let label = self.flow_label.load(Ordering::Relaxed);
        Ipv6Fields {
            traffic_class: self.traffic_class.load(Ordering::Relaxed),
            hop_limit: hops.checked_sub(1).and_then(|hops| u8::try_from(hops).ok()),
            mtu_discover: mode_of(self.mtu_discover.load(Ordering::Relaxed)),
            flow_label: label.checked_sub(1).map(|on| on != 0),
        }
    }
}

/// Returns the number that stands for a mode of path MTU discovery; 0 for none.
fn number_of(discover: Option<MtuDiscover>) -> u8 {
    discover.map_or(0, |discover| discover as u8 + 1)
}

/// Returns the mode of a number.
fn mode_of(number: u8) -> Option<MtuDiscover> {
    usize::from(number).checked_sub(1).map(|index| MtuDiscover::ALL[index])
}

fn store(slot: &AtomicU64, limit: Option<Duration>) {
    let ns = limit.map_or(0, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
    slot.store(ns, Ordering::Relaxed);
}

fn load(slot: &AtomicU64) -> Option<Duration> {
    let ns = slot.load(Ordering::Relaxed);
    (ns != 0).then(|| Duration::from_nanos(ns))
}

impl SharedSettings {
    /// Creates the options of a socket that bound its port with these flags.
    pub(in crate::socket) fn new(bind: BindFlags) -> Self {
        Self {
            reuse_address: AtomicBool::new(bind.reuse_address),
            reuse_port: AtomicBool::new(bind.reuse_port),
            ..Self::default()
        }
    }

    /// Copies the settings of a datagram socket.
    pub(in crate::socket) fn copy_from(&self, settings: &SocketSettings) {
        self.inherit(settings);
        self.set_reuse_address(settings.reuse_address);
        self.set_reuse_port(settings.reuse_port);
    }

    /// Copies the settings of the socket or listener from which the connection originates.
    pub(in crate::socket) fn inherit(&self, settings: &SocketSettings) {
        self.set_receive_timeout(settings.receive_timeout);
        self.set_send_timeout(settings.send_timeout);
        self.set_busy_poll(settings.busy_poll);
        self.set_ip_fields(settings.ip);
        self.ipv6.set(settings.ipv6);
    }

    pub(super) fn set_receive_timeout(&self, limit: Option<Duration>) {
        store(&self.receive_timeout_ns, limit);
    }

    pub(in crate::socket) fn receive_timeout(&self) -> Option<Duration> {
        load(&self.receive_timeout_ns)
    }

    pub(super) fn set_send_timeout(&self, limit: Option<Duration>) {
        store(&self.send_timeout_ns, limit);
    }

    pub(in crate::socket) fn send_timeout(&self) -> Option<Duration> {
        load(&self.send_timeout_ns)
    }

    fn set_busy_poll(&self, options: BusyPoll) {
        self.busy_poll.set(options);
    }

    pub(in crate::socket) fn busy_poll(&self) -> BusyPoll {
        self.busy_poll.load()
    }

    fn set_ip_fields(&self, fields: IpFields) {
        self.tos.store(fields.tos, Ordering::Relaxed);
        self.priority.store(fields.priority, Ordering::Relaxed);
        self.ttl.store(fields.ttl.unwrap_or(0), Ordering::Relaxed);
        self.mtu_discover.store(number_of(fields.mtu_discover), Ordering::Relaxed);
    }

    pub(in crate::socket) fn ip_fields(&self) -> IpFields {
        let ttl = self.ttl.load(Ordering::Relaxed);
        IpFields {
            tos: self.tos.load(Ordering::Relaxed),
            priority: self.priority.load(Ordering::Relaxed),
            ttl: (ttl != 0).then_some(ttl),
            mtu_discover: mode_of(self.mtu_discover.load(Ordering::Relaxed)),
            flow_label: None,
        }
    }

    pub(in crate::socket) fn ipv6_fields(&self) -> Ipv6Fields {
        self.ipv6.load()
    }

    /// Returns the fields of packets of one IP version.
    #[inline]
    pub(in crate::socket) fn packet_fields(&self, v4: bool) -> IpFields {
        if v4 {
            return self.ip_fields();
        }
        let Ipv6Fields { traffic_class, hop_limit, mtu_discover, flow_label } = self.ipv6_fields();
        let priority = self.priority.load(Ordering::Relaxed);
        IpFields { tos: traffic_class, priority, ttl: hop_limit, mtu_discover, flow_label }
    }

    pub(super) fn change_ipv6(&self, change: impl FnOnce(&mut Ipv6Fields)) {
        let mut fields = self.ipv6_fields();
        change(&mut fields);
        self.ipv6.set(fields);
    }

    pub(super) fn change_ip(&self, change: impl FnOnce(&mut IpFields)) {
        let mut fields = self.ip_fields();
        change(&mut fields);
        self.set_ip_fields(fields);
    }

    pub(super) fn change_busy_poll(&self, change: impl FnOnce(&mut BusyPoll)) {
        let mut options = self.busy_poll();
        change(&mut options);
        self.set_busy_poll(options);
    }

    pub(super) fn set_reuse_address(&self, on: bool) {
        self.reuse_address.store(on, Ordering::Relaxed);
    }

    pub(super) fn reuse_address(&self) -> bool {
        self.reuse_address.load(Ordering::Relaxed)
    }

    pub(super) fn set_reuse_port(&self, on: bool) {
        self.reuse_port.store(on, Ordering::Relaxed);
    }

    pub(super) fn reuse_port(&self) -> bool {
        self.reuse_port.load(Ordering::Relaxed)
    }
}
