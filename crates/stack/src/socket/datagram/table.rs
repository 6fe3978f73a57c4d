//! Lookup of datagram sockets: by four-tuple if connected, otherwise by local port.
//!
//! Above: `receive::{early_demux, udp_input, icmp_input}`, `bind`. Below: the choice among sockets
//! that share a port (`socket::demux`). Linux: `__udp4_lib_lookup`, `udp_lib_get_port`.
//!
//! Lookups run in a read section, take no lock and write nothing. A connected socket is found in
//! constant time. The unconnected sockets of a port are searched from the newest to the oldest. Of
//! several with `SO_REUSEADDR`, the newest therefore gets the datagrams, as in Linux.
//!
//! If two sockets are connected from the same local end to the same peer, the one that connected
//! first receives the datagrams. When it is closed, disconnects or connects to another peer, the
//! other receives them.

use std::{
    net::{IpAddr, SocketAddr},
    ops::RangeInclusive,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    vec::Vec,
};

use sync::{
    RcuMap,
    epoch::{Domain, Reader, Section},
};
use tcp::{FourTuple, Rng};

use super::DatagramSocket;
use crate::{
    base::{errno::Errno, ids::CoreId},
    socket::{
        demux::{BindFlags, Demux, OnPort, choose, overlap, port_hash},
        family::Family,
    },
};

/// Initial capacities of the tables.
const ROOM: usize = if cfg!(fuzzing) { 4 } else { 64 };

/// Entry of one socket.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) socket: Arc<DatagramSocket>,
    pub(crate) local: SocketAddr,
    /// Peer of a connected socket.
    pub(crate) remote: Option<SocketAddr>,
    pub(crate) flags: BindFlags,
    /// `SO_INCOMING_CPU`.
    pub(crate) incoming_core: Option<CoreId>,
}

impl OnPort for Bound {
    fn local_ip(&self) -> IpAddr {
        self.local.ip()
    }

    fn flags(&self) -> BindFlags {
        self.flags
    }

    fn incoming_core(&self) -> Option<CoreId> {
        self.incoming_core
    }
}

impl Bound {
    /// Whether the socket's local address covers the destination `dst` of a received datagram.
    pub(crate) fn covers(&self, dst: IpAddr) -> bool {
        overlap((dst, Family::V6Only), (self.local.ip(), self.flags.family))
    }
}

/// Sockets of one port, newest first.
#[derive(Clone, Debug, Default)]
struct PortSockets {
    open: Vec<Bound>,
    connected: Vec<Bound>,
}

impl PortSockets {
    fn all(&self) -> impl Iterator<Item = &Bound> {
        self.open.iter().chain(&self.connected)
    }

    fn take(&mut self, socket: &Arc<DatagramSocket>) -> Option<Bound> {
        for list in [&mut self.open, &mut self.connected] {
            if let Some(at) = list.iter().position(|bound| Arc::ptr_eq(&bound.socket, socket)) {
                return Some(list.remove(at));
            }
        }
        None
    }
}

/// The datagram sockets of a host.
#[derive(Debug)]
pub(crate) struct DatagramTable {
    connected: RcuMap<FourTuple, Bound>,
    ports: RcuMap<u16, Arc<PortSockets>>,
    /// Lock held while the sockets of a port are changed.
    binding: Mutex<()>,
}

impl DatagramTable {
    pub(crate) fn new(rcu: &Domain) -> Self {
        Self {
            connected: RcuMap::new(rcu, ROOM),
            ports: RcuMap::new(rcu, ROOM),
            binding: Mutex::default(),
        }
    }

    /// Returns the connected socket of `tuple`.
    #[inline]
    pub(crate) fn connected<'s>(
        &'s self,
        hash: u32,
        tuple: &FourTuple,
        rcu: &'s Section<'_>,
    ) -> Option<&'s DatagramSocket> {
        self.connected.lookup(hash, tuple, rcu).map(|bound| &*bound.socket)
    }

    /// Returns the unconnected socket of `local`. A socket bound to the address itself is preferred
    /// to one bound to the unspecified address; for IPv4, a socket for both families on `[::]`
    /// comes last. In a group that shares the port (`SO_REUSEPORT`), `hash` selects a member: one
    /// of those that prefer datagrams of `core` (`SO_INCOMING_CPU`), or if there are none, one of
    /// all.
    pub(crate) fn open<'s>(
        &'s self,
        core: CoreId,
        local: SocketAddr,
        hash: u32,
        rcu: &'s Section<'_>,
    ) -> Option<&'s DatagramSocket> {
        let sockets = self.on_port(local.port(), rcu)?;
        choose(&sockets.open, local.ip(), hash, core).map(|bound| &*bound.socket)
    }

    /// Visits every socket of a port.
    pub(crate) fn for_each_on_port<'s>(
        &'s self,
        port: u16,
        rcu: &'s Section<'_>,
        visit: impl FnMut(&'s Bound),
    ) {
        if let Some(sockets) = self.on_port(port, rcu) {
            sockets.all().for_each(visit);
        }
    }

    /// Visits every socket.
    pub(crate) fn for_each(&self, rcu: &Section<'_>, mut visit: impl FnMut(&Bound)) {
        self.ports.for_each(rcu, |_, sockets| sockets.all().for_each(&mut visit));
    }

    /// Returns a port without sockets.
    pub(crate) fn unused_port(
        &self,
        range: &RangeInclusive<u16>,
        rng: &mut Rng,
        rcu: &Section<'_>,
    ) -> Option<u16> {
        let (first, last) = (u32::from(*range.start()), u32::from(*range.end()));
        let count = last.checked_sub(first)? + 1;
        // RFC 6056 §3.3.1: a random port, and if it is used, the next ones.
        let start = rng.below(count);
        (0..count)
            .filter_map(|step| u16::try_from(first + (start + step) % count).ok())
            .find(|port| self.on_port(*port, rcu).is_none())
    }

    /// Adds a socket; `EADDRINUSE` if another socket owns its local end and does not share it.
    pub(crate) fn bind(&self, rcu: &Reader, bound: Bound) -> Result<(), Errno> {
        let _binding = self.binding();
        let port = bound.local.port();
        let mut sockets = self.copy_of(port, rcu);
        let end = |of: &Bound| (of.local.ip(), of.flags.family);
        let is_in_use = sockets.all().any(|other| {
            overlap(end(&bound), end(other)) && bound.flags.conflicts_with(other.flags, false)
        });
        if is_in_use {
            return Err(Errno::EADDRINUSE);
        }
        sockets.open.insert(0, bound);
        self.store(port, sockets);
        Ok(())
    }

    /// Changes the ends of a socket that has been bound: `remote` is its peer, or `None` to
    /// disconnect.
    pub(crate) fn change(
        &self,
        demux: &Demux,
        rcu: &Reader,
        socket: &Arc<DatagramSocket>,
        local: SocketAddr,
        remote: Option<SocketAddr>,
    ) {
        let _binding = self.binding();
        let mut sockets = self.copy_of(local.port(), rcu);
        let Some(mut bound) = sockets.take(socket) else { return };
        self.forget_tuple(demux, &bound, &sockets);
        (bound.local, bound.remote) = (local, remote);
        match remote {
            Some(remote) => {
                let tuple = FourTuple { local, remote };
                // The table refuses a four-tuple that another socket has: that socket continues to
                // receive.
                let _ = self.connected.insert(demux.hash(&tuple), tuple, bound.clone());
                sockets.connected.insert(0, bound);
            }
            None => sockets.open.insert(0, bound),
        }
        self.store(local.port(), sockets);
    }

    /// Removes a socket with this local port.
    pub(crate) fn unbind(
        &self,
        demux: &Demux,
        rcu: &Reader,
        socket: &Arc<DatagramSocket>,
        port: u16,
    ) {
        let _binding = self.binding();
        let mut sockets = self.copy_of(port, rcu);
        let Some(bound) = sockets.take(socket) else { return };
        self.forget_tuple(demux, &bound, &sockets);
        self.store(port, sockets);
    }

    /// Removes the four-tuple of a socket. Another socket with the same four-tuple takes its place.
    fn forget_tuple(&self, demux: &Demux, gone: &Bound, others: &PortSockets) {
        let Some(remote) = gone.remote else { return };
        let tuple = FourTuple { local: gone.local, remote };
        let hash = demux.hash(&tuple);
        let removed = self
            .connected
            .remove_if(hash, &tuple, |bound| Arc::ptr_eq(&bound.socket, &gone.socket));
        let has_tuple =
            |bound: &&Bound| bound.local == tuple.local && bound.remote == Some(tuple.remote);
        if removed && let Some(next) = others.connected.iter().rev().find(has_tuple) {
            let _ = self.connected.insert(hash, tuple, next.clone());
        }
    }

    fn binding(&self) -> MutexGuard<'_, ()> {
        self.binding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn on_port<'s>(&'s self, port: u16, rcu: &'s Section<'_>) -> Option<&'s PortSockets> {
        self.ports.lookup(port_hash(port), &port, rcu).map(|sockets| &**sockets)
    }

    /// Returns a copy of the sockets of a port, for the caller to change. Callers hold `binding`.
    fn copy_of(&self, port: u16, rcu: &Reader) -> PortSockets {
        self.on_port(port, &rcu.pin()).cloned().unwrap_or_default()
    }

    fn store(&self, port: u16, sockets: PortSockets) {
        let hash = port_hash(port);
        if sockets.all().next().is_none() {
            self.ports.remove(hash, &port);
        } else {
            self.ports.insert_or_replace(hash, port, Arc::new(sockets));
        }
    }
}
