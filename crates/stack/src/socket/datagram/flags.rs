//! Options of a datagram socket that softirq context and every send read without the lock.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, Ordering};

use crate::socket::options::SocketSettings;

/// Copies of options, written by `setsockopt`. Relaxed: an option orders nothing.
#[derive(Debug, Default)]
pub(super) struct DatagramFlags {
    broadcast: AtomicBool,
    no_check: AtomicBool,
    receive_error: AtomicBool,
    multicast_ttl: AtomicU8,
    multicast_loop: AtomicBool,
    multicast_all: AtomicBool,
    segment: AtomicU16,
    gro: AtomicBool,
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
        self.receive_error.store(settings.tcp.receive_error, Ordering::Relaxed);
        self.multicast_ttl.store(datagram.multicast_ttl, Ordering::Relaxed);
        self.multicast_loop.store(datagram.multicast_loop, Ordering::Relaxed);
        self.multicast_all.store(datagram.multicast_all, Ordering::Relaxed);
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

    /// `IP_RECVERR`.
    pub(super) fn receive_error(&self) -> bool {
        self.receive_error.load(Ordering::Relaxed)
    }

    /// `IP_MULTICAST_TTL`.
    pub(super) fn multicast_ttl(&self) -> u8 {
        self.multicast_ttl.load(Ordering::Relaxed)
    }

    /// `IP_MULTICAST_LOOP`.
    pub(super) fn multicast_loop(&self) -> bool {
        self.multicast_loop.load(Ordering::Relaxed)
    }

    /// `IP_MULTICAST_ALL`.
    pub(super) fn multicast_all(&self) -> bool {
        self.multicast_all.load(Ordering::Relaxed)
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
