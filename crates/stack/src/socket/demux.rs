//! Lookup of sockets by four-tuple, in constant time and without writing shared cache lines.
//!
//! `established` holds every socket whose two ends are known: connections, half-open requests and
//! TIME-WAIT sockets, like Linux's ehash. `listeners` is keyed by local port. No table lists the
//! owners of a port: both tables are searched when a port is bound, so that a connection only
//! updates a count. Linux: net/ipv4/inet_hashtables.c, inet_csk_get_port.
//!
//! Lookups run in an RCU section and return borrowed entries.

use std::{
    boxed::Box,
    hash::Hasher,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    vec::Vec,
};

use siphasher::sip::SipHasher13;
use sync::{
    RcuMap,
    epoch::{Domain, Reader, Section},
    rcu_map::Place,
};
use tcp::FourTuple;
use zerocopy::FromZeros;

use crate::{
    base::{
        errno::Errno,
        ids::{CoreId, DeviceIndex},
        secrets::HashKey,
    },
    route::router::Destination,
    socket::{Connection, Listener, RequestSocket, TimeWaitSocket, family::Family},
};

/// Socket found by a four-tuple.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    /// A connection: an active open from SYN-SENT on, or a passive open whose handshake is complete
    /// or that Fast Open has opened earlier.
    Stream(Arc<Connection>),
    /// A passive open that waits for its third segment.
    Request(Arc<RequestSocket>),
    /// A closed connection in TIME-WAIT.
    TimeWait(Arc<TimeWaitSocket>),
}

/// Key of a flow in the tables of a host, and the core of the flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowName {
    pub(crate) tuple: FourTuple,
    /// Hash of the tuple ([`Demux::hash`]).
    pub(crate) hash: u32,
    /// Home core of the flow: selects the transmit queue, and runs the timers (those of a
    /// connection until packets arrive on another core).
    pub(crate) core: CoreId,
    /// Device that has brought an intercepted flow, and by which the answers leave; `None` for a
    /// flow of the host's own addresses (`socket::flows`).
    pub(crate) via: Option<DeviceIndex>,
}

impl FlowName {
    /// Returns the destination of packets to the peer.
    pub(crate) fn peer(&self) -> Destination {
        Destination::of_answer(self.tuple.remote, self.via)
    }
}

/// Flags that decide with which other sockets a socket shares its local port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BindFlags {
    /// `SO_REUSEADDR`: the port is shared with sockets that also set this option and do not listen.
    pub(crate) reuse_address: bool,
    /// `SO_REUSEPORT`: the port is shared with sockets that also set this option.
    pub(crate) reuse_port: bool,
    /// Family of the socket: a socket that listens on `[::]` may own the port for IPv4, too.
    pub(crate) family: Family,
}

impl BindFlags {
    /// Returns whether a socket with these flags cannot share its port with `owner`, a socket with
    /// an overlapping address. `listening`: whether `owner` listens. Linux: `inet_bind_conflict`.
    pub(super) const fn conflicts_with(self, owner: Self, listening: bool) -> bool {
        let address = self.reuse_address && owner.reuse_address && !listening;
        let port = self.reuse_port && owner.reuse_port;
        !(address || port)
    }
}

/// Number of port counters, one for each port. In a fuzz build, which creates many hosts with few
/// connections, several ports share a counter; the only effect is unnecessary searches of the
/// table.
const PORTS: usize = if cfg!(fuzzing) { 1 << 10 } else { 1 << 16 };

/// Initial capacities of the tables of connections and of listeners.
const ROOM: [usize; 2] = if cfg!(fuzzing) { [32, 4] } else { [1024, 64] };

/// The lookup tables of a host.
#[derive(Debug)]
pub(crate) struct Demux {
    established: RcuMap<FourTuple, Entry>,
    listeners: RcuMap<u16, Arc<Vec<Arc<Listener>>>>,
    /// Numbers of connections and TIME-WAIT sockets by local port, so that most ports need no
    /// search. Written once when a connection starts and once when it ends. Relaxed: a bind that is
    /// concurrent with either may see the count before or after it.
    owners: Box<[AtomicU32]>,
    /// Lock held while a port is bound: no other thread may bind between check and insertion.
    binding: Mutex<()>,
    /// Key of the hash, so that a peer cannot aim many connections at one bucket.
    secret: HashKey,
}

impl Demux {
    pub(crate) fn new(rcu: &Domain, secret: HashKey) -> Self {
        Self {
            established: RcuMap::new(rcu, ROOM[0]),
            listeners: RcuMap::new(rcu, ROOM[1]),
            // The system provides zeroed pages; pages of unused ports are never touched.
            owners: <[AtomicU32]>::new_box_zeroed_with_elems(PORTS)
                .expect("the host has memory for its tables"),
            binding: Mutex::default(),
            secret,
        }
    }

    /// Returns the keyed hash of a four-tuple, which is also the flow hash of transmitted packets.
    pub(crate) fn hash(&self, tuple: &FourTuple) -> u32 {
        let mut hasher = SipHasher13::new_with_key(&self.secret.0);
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

    /// Returns the connection, request or TIME-WAIT socket of `tuple`.
    pub(crate) fn established<'s>(
        &'s self,
        hash: u32,
        tuple: &FourTuple,
        rcu: &'s Section<'_>,
    ) -> Option<&'s Entry> {
        self.established.lookup(hash, tuple, rcu)
    }

    /// Returns the listener of `local`. A listener bound to the address itself is preferred to one
    /// bound to the unspecified address; for IPv4, a listener for both families on `[::]` comes
    /// last. In a group that shares the port (`SO_REUSEPORT`), `hash` selects a member: one of
    /// those that prefer connections of `core` (`SO_INCOMING_CPU`), or if there are none, one of
    /// all.
    pub(crate) fn listener<'s>(
        &'s self,
        core: CoreId,
        local: SocketAddr,
        hash: u32,
        rcu: &'s Section<'_>,
    ) -> Option<&'s Arc<Listener>> {
        let port = local.port();
        let on_port = self.listeners.lookup(port_hash(port), &port, rcu)?;
        choose(on_port, local.ip(), hash, core)
    }

    /// Inserts a socket; `EADDRNOTAVAIL` if the table has an entry with the same four-tuple.
    pub(crate) fn insert(&self, hash: u32, tuple: FourTuple, entry: Entry) -> Result<(), Errno> {
        let owns = entry.owns_port();
        self.established.insert(hash, tuple, entry).map_err(|_| Errno::EADDRNOTAVAIL)?;
        if owns {
            self.owner_added(tuple.local.port());
        }
        Ok(())
    }

    /// Like `insert`, for a local end chosen by the application; `EADDRINUSE` when another socket
    /// owns it and does not share it.
    pub(crate) fn insert_bound(
        &self,
        hash: u32,
        tuple: FourTuple,
        entry: Entry,
        flags: BindFlags,
        rcu: &Section<'_>,
    ) -> Result<(), Errno> {
        let _binding = self.bind();
        if self.is_in_use(tuple.local, flags, rcu) {
            return Err(Errno::EADDRINUSE);
        }
        self.insert(hash, tuple, entry)
    }

    /// Replaces the entry of the same four-tuple: request → stream, stream → TIME-WAIT.
    pub(crate) fn replace(&self, hash: u32, tuple: FourTuple, entry: Entry) {
        // A TIME-WAIT socket inherits the port from its stream.
        if matches!(entry, Entry::Stream(_)) && entry.owns_port() {
            self.owner_added(tuple.local.port());
        }
        self.established.insert_or_replace(hash, tuple, entry);
    }

    /// Replaces a TIME-WAIT socket by a stream if `is_meant` accepts the present entry. Both own
    /// the port. Returns whether the entry was replaced.
    pub(crate) fn replace_if(
        &self,
        hash: u32,
        tuple: FourTuple,
        entry: Entry,
        is_meant: impl FnOnce(&Entry) -> bool,
    ) -> bool {
        self.established.replace_if(hash, tuple, entry, is_meant).is_ok()
    }

    /// Removes the entry if `is_gone` accepts it, that is, unless it has been replaced.
    pub(crate) fn remove(
        &self,
        hash: u32,
        tuple: &FourTuple,
        is_gone: impl FnOnce(&Entry) -> bool,
    ) {
        let mut owned = false;
        self.established.remove_if(hash, tuple, |entry| {
            let gone = is_gone(entry);
            owned = gone && entry.owns_port();
            gone
        });
        if owned {
            self.owners_of(tuple.local.port()).fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns the counter of connections and TIME-WAIT sockets of `port`.
    fn owners_of(&self, port: u16) -> &AtomicU32 {
        &self.owners[usize::from(port) % PORTS]
    }

    fn owner_added(&self, port: u16) {
        self.owners_of(port).fetch_add(1, Ordering::Relaxed);
    }

    fn bind(&self) -> MutexGuard<'_, ()> {
        self.binding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether `local` is owned by a socket that does not share it with a socket of these
    /// `flags`. Linux: the check of bind(2) and listen(2).
    pub(crate) fn is_in_use(&self, local: SocketAddr, flags: BindFlags, rcu: &Section<'_>) -> bool {
        let port = local.port();
        let on_port = self.listeners.lookup(port_hash(port), &port, rcu);
        let listening = on_port.is_some_and(|list| {
            list.iter().any(|listener| {
                let bound = (listener.address().ip(), listener.flags().family);
                overlap((local.ip(), flags.family), bound)
                    && flags.conflicts_with(listener.flags(), true)
            })
        });
        if listening || self.owners_of(port).load(Ordering::Relaxed) == 0 {
            return listening;
        }
        let mut in_use = false;
        self.established.for_each(rcu, |tuple, entry| {
            if tuple.local.port() == port
                && let Some(owner) = entry.bind_flags()
                && overlap((local.ip(), flags.family), (tuple.local.ip(), owner.family))
            {
                in_use |= flags.conflicts_with(owner, false);
            }
        });
        in_use
    }

    /// Returns the number of four-tuples in the table.
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

    /// Visits about `entries` entries starting at `from`; returns where to continue, `None` at the
    /// end.
    pub(crate) fn for_each_established_from(
        &self,
        rcu: &Section<'_>,
        from: Place,
        entries: usize,
        mut visit: impl FnMut(&Entry),
    ) -> Option<Place> {
        self.established.for_each_from(rcu, from, entries, |_, entry| visit(entry))
    }

    pub(crate) fn for_each_listener(
        &self,
        rcu: &Section<'_>,
        mut visit: impl FnMut(&Arc<Listener>),
    ) {
        self.listeners.for_each(rcu, |_, on_port| on_port.iter().for_each(&mut visit));
    }

    /// Registers a listener; `EADDRINUSE` when another socket owns the address and port and does
    /// not share them.
    pub(crate) fn listen(&self, rcu: &Reader, listener: &Arc<Listener>) -> Result<(), Errno> {
        let _binding = self.bind();
        if self.is_in_use(listener.address(), listener.flags(), &rcu.pin()) {
            return Err(Errno::EADDRINUSE);
        }
        self.edit_listeners(rcu, listener.address().port(), |list| list.push(Arc::clone(listener)));
        Ok(())
    }

    pub(crate) fn unlisten(&self, rcu: &Reader, listener: &Arc<Listener>) {
        let _binding = self.bind();
        self.edit_listeners(rcu, listener.address().port(), |list| {
            list.retain(|other| !Arc::ptr_eq(other, listener))
        });
    }

    /// Changes the listeners of one port by copy-on-write. Callers hold `binding`, which serializes
    /// writers.
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

    /// Returns the first port of `candidates` that no socket owns; used to listen on port 0.
    pub(crate) fn unused_port(
        &self,
        mut candidates: impl Iterator<Item = u16>,
        rcu: &Section<'_>,
    ) -> Option<u16> {
        candidates.find(|&port| {
            self.owners_of(port).load(Ordering::Relaxed) == 0 && self.may_connect_from(port, rcu)
        })
    }

    /// Returns whether `port` may be chosen as the local port of a connection: no socket listens on
    /// it.
    pub(crate) fn may_connect_from(&self, port: u16, rcu: &Section<'_>) -> bool {
        self.listeners.lookup(port_hash(port), &port, rcu).is_none()
    }
}

impl Entry {
    /// Returns the device of an intercepted flow.
    pub(crate) fn via(&self) -> Option<DeviceIndex> {
        match self {
            Self::Stream(socket) => socket.via(),
            Self::TimeWait(time_wait) => time_wait.via(),
            Self::Request(request) => request.via(),
        }
    }

    /// Returns the sharing flags of its local port; `None` for a request, whose port belongs to its
    /// listener, and for an intercepted flow, whose address is that of another host.
    fn bind_flags(&self) -> Option<BindFlags> {
        if self.via().is_some() {
            return None;
        }
        match self {
            Self::Stream(socket) => Some(socket.bind_flags()),
            Self::TimeWait(time_wait) => Some(time_wait.bind_flags()),
            Self::Request(_) => None,
        }
    }

    fn owns_port(&self) -> bool {
        !matches!(self, Self::Request(_)) && self.via().is_none()
    }
}

/// One of the sockets that share a local port.
pub(super) trait OnPort {
    /// Address to which the socket is bound, in the form that the tables use.
    fn local_ip(&self) -> IpAddr;
    /// Flags with which the socket was bound.
    fn flags(&self) -> BindFlags;
    /// Core whose flows the socket prefers.
    fn incoming_core(&self) -> Option<CoreId>;
}

impl OnPort for Arc<Listener> {
    fn local_ip(&self) -> IpAddr {
        self.address().ip()
    }

    fn flags(&self) -> BindFlags {
        Listener::flags(self)
    }

    fn incoming_core(&self) -> Option<CoreId> {
        Listener::incoming_core(self)
    }
}

/// Returns whether the local addresses of two sockets overlap: they are equal, or one of them is
/// unspecified. `[::]` of a socket for both families also covers every IPv4 address. Linux:
/// `ipv6_rcv_saddr_equal`.
pub(super) fn overlap(a: (IpAddr, Family), b: (IpAddr, Family)) -> bool {
    let ((a, a_family), (b, b_family)) = (a, b);
    if a.is_ipv4() == b.is_ipv4() {
        return a == b || a.is_unspecified() || b.is_unspecified();
    }
    let covers = |ip: IpAddr, family| ip.is_ipv6() && ip.is_unspecified() && family == Family::Dual;
    covers(a, a_family) || covers(b, b_family)
}

/// Returns the socket of a port for packets to the address `ip`: one bound to the address itself,
/// else one bound to the unspecified address; for IPv4, a socket for both families on `[::]` comes
/// last. Linux: `compute_score`.
#[inline]
pub(super) fn choose<S: OnPort>(on_port: &[S], ip: IpAddr, hash: u32, core: CoreId) -> Option<&S> {
    let (any_v4, any_v6) = (Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into());
    let member = |ip, dual| member(on_port, (ip, dual), hash, core);
    member(ip, false).or_else(|| match ip {
        IpAddr::V4(_) => member(any_v4, false).or_else(|| member(any_v6, true)),
        IpAddr::V6(_) => member(any_v6, false),
    })
}

/// Returns the socket bound to the address `ip`; with `dual`, only a socket for both families. Of
/// several sockets, `hash` selects one if they have set `SO_REUSEPORT`, among those that prefer
/// `core` if there are any; otherwise the first is returned.
fn member<S: OnPort>(
    on_port: &[S],
    (ip, dual): (IpAddr, bool),
    hash: u32,
    core: CoreId,
) -> Option<&S> {
    let is_bound = move |socket: &&S| {
        socket.local_ip() == ip && (!dual || socket.flags().family == Family::Dual)
    };
    let bound = || on_port.iter().filter(is_bound);
    let first = bound().next()?;
    if !first.flags().reuse_port {
        return Some(first);
    }
    let here = || bound().filter(move |socket| socket.incoming_core() == Some(core));
    let (mine, all) = (here().count(), bound().count());
    // The high bits of the hash have selected the core, so the hash is mixed again to select a
    // member.
    let nth = |count: usize| {
        let spread = u64::from(hash.wrapping_mul(0x9e37_79b9));
        usize::try_from((spread * count as u64) >> 32).unwrap_or_default()
    };
    if mine > 0 { here().nth(nth(mine)) } else { bound().nth(nth(all)) }
}

/// Returns the hash of a port. Multiplication by the golden ratio spreads ports evenly.
pub(super) fn port_hash(port: u16) -> u32 {
    u32::from(port).wrapping_mul(0x9e37_79b9)
}

#[cfg(test)]
mod tests;
