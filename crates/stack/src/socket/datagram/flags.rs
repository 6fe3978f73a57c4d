//! Options of a datagram socket that softirq context and every send read without the lock.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, Ordering},
};

use crate::{
    base::ids::DeviceIndex,
    socket::options::{SocketSettings, VersionSettings},
};

/// Copies of options, written by `setsockopt`. Relaxed: an option orders nothing.
#[derive(Debug, Default)]
pub(super) struct DatagramFlags {
    broadcast: AtomicBool,
    no_check: AtomicBool,
    v4: VersionFlags,
    v6: VersionFlags,
    /// Source address of datagrams to IPv4 groups (`IP_MULTICAST_IF`); 0 is none.
    multicast_source: AtomicU32,
    segment: AtomicU16,
    gro: AtomicBool,
}

/// Options that IPv4 and IPv6 have under separate numbers.
#[derive(Debug, Default)]
struct VersionFlags {
    receive_error: AtomicBool,
    multicast_hops: AtomicU8,
    multicast_loop: AtomicBool,
    multicast_all: AtomicBool,
    /// Index of the device for datagrams to groups; 0 is none.
    multicast_device: AtomicU32,
}

impl VersionFlags {
    fn follow(&self, settings: &VersionSettings) {
        self.receive_error.store(settings.receive_error, Ordering::Relaxed);
        self.multicast_hops.store(settings.multicast_hops, Ordering::Relaxed);
        self.multicast_loop.store(settings.multicast_loop, Ordering::Relaxed);
        self.multicast_all.store(settings.multicast_all, Ordering::Relaxed);
        self.multicast_device.store(settings.multicast_device, Ordering::Relaxed);
    }
}

impl DatagramFlags {
    pub(super) fn new(settings: &SocketSettings) -> Self {
        let flags = Self::default();
        flags.copy_from(settings);
        flags
    }

    /// Copies the options from `settings`.
    pub(super) fn copy_from(&self, settings: &SocketSettings) {
        let datagram = settings.datagram;
        self.broadcast.store(datagram.broadcast, Ordering::Relaxed);
        self.no_check.store(datagram.no_check, Ordering::Relaxed);
        let receive_error = settings.tcp.receive_error;
        self.v4.follow(&VersionSettings { receive_error, ..datagram.v4 });
        self.v6.follow(&datagram.v6);
        self.multicast_source.store(datagram.multicast_source.to_bits(), Ordering::Relaxed);
        self.segment.store(datagram.segment, Ordering::Relaxed);
        self.gro.store(datagram.gro, Ordering::Relaxed);
    }

    /// `SO_BROADCAST`.
    pub(super) fn broadcast(&self) -> bool {
        self.broadcast.load(Ordering::Relaxed)
    }

    /// `SO_NO_CHECK`.
    pub(super) fn no_check(&self) -> bool {
        self.no_check.load(Ordering::Relaxed)
    }

    const fn of(&self, v4: bool) -> &VersionFlags {
        if v4 { &self.v4 } else { &self.v6 }
    }

    /// `IP_RECVERR` or `IPV6_RECVERR`.
    pub(super) fn receive_error(&self, v4: bool) -> bool {
        self.of(v4).receive_error.load(Ordering::Relaxed)
    }

    /// `IP_MULTICAST_TTL` or `IPV6_MULTICAST_HOPS`.
    pub(super) fn multicast_hops(&self, v4: bool) -> u8 {
        self.of(v4).multicast_hops.load(Ordering::Relaxed)
    }

    /// `IP_MULTICAST_LOOP` or `IPV6_MULTICAST_LOOP`.
    pub(super) fn multicast_loop(&self, v4: bool) -> bool {
        self.of(v4).multicast_loop.load(Ordering::Relaxed)
    }

    /// `IP_MULTICAST_ALL` or `IPV6_MULTICAST_ALL`.
    pub(super) fn multicast_all(&self, v4: bool) -> bool {
        self.of(v4).multicast_all.load(Ordering::Relaxed)
    }

    /// `IP_MULTICAST_IF` or `IPV6_MULTICAST_IF`: device and source address of datagrams to groups.
    pub(super) fn multicast_interface(&self, v4: bool) -> (Option<DeviceIndex>, Option<IpAddr>) {
        let index = self.of(v4).multicast_device.load(Ordering::Relaxed);
        let source = if v4 { self.multicast_source.load(Ordering::Relaxed) } else { 0 };
        let source = (source != 0).then(|| IpAddr::V4(Ipv4Addr::from_bits(source)));
        ((index != 0).then_some(DeviceIndex(index)), source)
    }

    /// `UDP_SEGMENT`; 0 is off.
    pub(super) fn segment(&self) -> u16 {
        self.segment.load(Ordering::Relaxed)
    }

    /// `UDP_GRO`.
    pub(super) fn gro(&self) -> bool {
        self.gro.load(Ordering::Relaxed)
    }
}
