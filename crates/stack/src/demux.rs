//! From a four-tuple to a socket, in constant time and without writing a shared line.
//!
//! `established` holds everything that has both ends named: streams, half-open requests and TIME-WAIT remnants, as
//! Linux's ehash does. `listeners` is keyed by local port. `bound` is the set of local ports in use, touched only when
//! a socket is bound or connected. Linux: net/ipv4/inet_hashtables.c.
//!
//! Lookups run under an RCU section and return borrowed entries.

use std::{
    collections::BTreeMap,
    hash::Hasher,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    vec::Vec,
};

use siphasher::sip::SipHasher13;
use sync::{
    RcuMap,
    epoch::{Domain, Reader, Section},
};
use tcp::FourTuple;

use crate::{
    errno::Errno,
    socket::{Listener, RequestSocket, TcpSocket, TimeWaitSocket},
};

/// What a four-tuple can lead to.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    /// A connection from SYN-SENT on, or an accepted one.
    Stream(Arc<TcpSocket>),
    /// A passive open that waits for its third segment.
    Request(Arc<RequestSocket>),
    /// The remnant of a closed connection.
    TimeWait(Arc<TimeWaitSocket>),
}

/// Who holds a local port.
#[derive(Debug, Default)]
struct PortUse {
    /// Addresses that listeners are bound to on this port.
    listening: Vec<IpAddr>,
    /// Connections whose local end was bound or chosen here.
    connections: usize,
}

/// The lookup tables of a host.
#[derive(Debug)]
pub(crate) struct Demux {
    established: RcuMap<FourTuple, Entry>,
    listeners: RcuMap<u16, Arc<Vec<Arc<Listener>>>>,
    bound: Mutex<BTreeMap<u16, PortUse>>,
    /// Key of the hash: a peer must not be able to aim many connections at one bucket.
    secret: (u64, u64),
}

impl Demux {
    pub(crate) fn new(rcu: &Domain, secret: (u64, u64)) -> Self {
        Self {
            established: RcuMap::new(rcu, 1024),
            listeners: RcuMap::new(rcu, 64),
            bound: Mutex::default(),
            secret,
        }
    }

    /// Keyed hash of a four-tuple; also the flow hash of what is sent.
    pub(crate) fn hash(&self, tuple: &FourTuple) -> u32 {
        let mut hasher = SipHasher13::new_with_keys(self.secret.0, self.secret.1);
        for end in [&tuple.local, &tuple.remote] {
            match end.ip() {
                IpAddr::V4(ip) => hasher.write_u32(ip.to_bits()),
                IpAddr::V6(ip) => hasher.write_u128(ip.to_bits()),
            }
            hasher.write_u16(end.port());
        }
        let hash = hasher.finish();
        #[expect(clippy::cast_possible_truncation, reason = "the two halves are folded on purpose")]
        let folded = (hash ^ (hash >> 32)) as u32;
        folded
    }

    /// The connection, request or remnant of `tuple`.
    pub(crate) fn established<'s>(
        &'s self,
        hash: u32,
        tuple: &FourTuple,
        rcu: &'s Section<'_>,
    ) -> Option<&'s Entry> {
        self.established.lookup(hash, tuple, rcu)
    }

    /// The listener of `local`: one bound to the address itself before one bound to any address.
    pub(crate) fn listener<'s>(
        &'s self,
        local: SocketAddr,
        rcu: &'s Section<'_>,
    ) -> Option<&'s Arc<Listener>> {
        let port = local.port();
        let on_port = self.listeners.lookup(port_hash(port), &port, rcu)?;
        let mut any = None;
        for listener in on_port.iter() {
            let bound = listener.local().ip();
            if bound == local.ip() {
                return Some(listener);
            }
            if bound.is_unspecified() && bound.is_ipv4() == local.is_ipv4() {
                any = Some(listener);
            }
        }
        any
    }

    /// Adds a connection whose four-tuple must be new.
    pub(crate) fn insert(&self, hash: u32, tuple: FourTuple, entry: Entry) -> Result<(), Errno> {
        self.established.insert(hash, tuple, entry).map_err(|_| Errno::EADDRNOTAVAIL)
    }

    /// Puts `entry` where another of the same tuple was: request → stream, stream → TIME-WAIT.
    pub(crate) fn replace(&self, hash: u32, tuple: FourTuple, entry: Entry) {
        self.established.insert_or_replace(hash, tuple, entry);
    }

    /// Takes `gone` out, unless something else has come in its place.
    pub(crate) fn remove(
        &self,
        hash: u32,
        tuple: &FourTuple,
        is_gone: impl FnOnce(&Entry) -> bool,
    ) {
        self.established.remove_if(hash, tuple, is_gone);
    }

    /// How many four-tuples are known.
    pub(crate) fn established_len(&self) -> usize {
        self.established.len()
    }

    pub(crate) fn for_each_established(
        &self,
        rcu: &Section<'_>,
        mut visit: impl FnMut(&FourTuple, &Entry),
    ) {
        self.established.for_each(rcu, |tuple, entry| visit(tuple, entry));
    }

    pub(crate) fn for_each_listener(
        &self,
        rcu: &Section<'_>,
        mut visit: impl FnMut(&Arc<Listener>),
    ) {
        self.listeners.for_each(rcu, |_, on_port| on_port.iter().for_each(&mut visit));
    }

    /// Registers a listener; `EADDRINUSE` when another holds the address and port.
    pub(crate) fn listen(&self, rcu: &Reader, listener: &Arc<Listener>) -> Result<(), Errno> {
        let local = listener.local();
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        let port_use = bound.entry(local.port()).or_default();
        let conflict = port_use.listening.iter().any(|other| {
            other.is_ipv4() == local.is_ipv4()
                && (*other == local.ip() || other.is_unspecified() || local.ip().is_unspecified())
        });
        if conflict {
            return Err(Errno::EADDRINUSE);
        }
        port_use.listening.push(local.ip());
        self.edit_listeners(rcu, local.port(), |list| list.push(Arc::clone(listener)));
        Ok(())
    }

    pub(crate) fn unlisten(&self, rcu: &Reader, listener: &Arc<Listener>) {
        let local = listener.local();
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(port_use) = bound.get_mut(&local.port()) {
            port_use.listening.retain(|ip| *ip != local.ip());
            if port_use.listening.is_empty() && port_use.connections == 0 {
                bound.remove(&local.port());
            }
        }
        self.edit_listeners(rcu, local.port(), |list| {
            list.retain(|other| !Arc::ptr_eq(other, listener))
        });
    }

    /// Copy-on-write change of the listeners of one port. `bound` is held by the callers: it serialises writers.
    fn edit_listeners(&self, rcu: &Reader, port: u16, edit: impl FnOnce(&mut Vec<Arc<Listener>>)) {
        let hash = port_hash(port);
        let mut list = {
            let section = rcu.pin();
            let on_port = self.listeners.lookup(hash, &port, &section);
            on_port.map_or_else(Vec::new, |list| list.to_vec())
        };
        edit(&mut list);
        if list.is_empty() {
            self.listeners.remove(hash, &port);
        } else {
            self.listeners.insert_or_replace(hash, port, Arc::new(list));
        }
    }

    /// A port nobody listens on, from `candidates`; used to listen on port 0.
    pub(crate) fn unused_port(&self, mut candidates: impl Iterator<Item = u16>) -> Option<u16> {
        let bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        candidates.find(|port| !bound.contains_key(port))
    }

    /// Whether a connection may use `port` as its local port: nobody listens there.
    pub(crate) fn may_connect_from(&self, port: u16) -> bool {
        let bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        bound.get(&port).is_none_or(|port_use| port_use.listening.is_empty())
    }
}

/// Ports are spread evenly by multiplication with the golden ratio.
fn port_hash(port: u16) -> u32 {
    u32::from(port).wrapping_mul(0x9e37_79b9)
}

#[cfg(test)]
mod tests;
