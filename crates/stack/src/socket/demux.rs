//! From a four-tuple to a socket, in constant time and without writing a shared line.
//!
//! `established` holds everything that has both ends named: streams, half-open requests and TIME-WAIT remnants, as
//! Linux's ehash does. `listeners` is keyed by local port. Who owns a port follows from the two: a port is looked at when
//! it is bound, and costs a connection no more than a count. Linux: net/ipv4/inet_hashtables.c, inet_csk_get_port.
//!
//! Lookups run under an RCU section and return borrowed entries.

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
    base::{errno::Errno, ids::CoreId, secrets::HashKey},
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

/// With whom a socket shares its local port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BindFlags {
    /// `SO_REUSEADDR`: with any that says so too and does not listen.
    pub(crate) reuse_address: bool,
    /// `SO_REUSEPORT`: with any that says so too.
    pub(crate) reuse_port: bool,
}

impl BindFlags {
    /// Linux's `inet_bind_conflict` for two sockets on addresses that overlap.
    const fn conflicts_with(self, owner: Self, listening: bool) -> bool {
        let address = self.reuse_address && owner.reuse_address && !listening;
        let port = self.reuse_port && owner.reuse_port;
        !(address || port)
    }
}

/// One count for each port. A fuzzer builds a host for each run, and a run has few connections: there, ports share counts, so that
/// some ports are searched for in vain.
const PORTS: usize = if cfg!(fuzzing) { 1 << 10 } else { 1 << 16 };

/// Entries that the tables of connections and of listeners hold before they grow.
const ROOM: [usize; 2] = if cfg!(fuzzing) { [32, 4] } else { [1024, 64] };

/// The lookup tables of a host.
#[derive(Debug)]
pub(crate) struct Demux {
    established: RcuMap<FourTuple, Entry>,
    listeners: RcuMap<u16, Arc<Vec<Arc<Listener>>>>,
    /// Connections and remnants by their local port, so that most ports need not be searched for. Written once when a
    /// connection begins and once when it ends. Relaxed: whoever binds at the same moment comes before or after.
    owners: Box<[AtomicU32]>,
    /// Held while a port is bound: between the look and the entry nobody else may bind.
    binding: Mutex<()>,
    /// Key of the hash: a peer must not be able to aim many connections at one bucket.
    secret: HashKey,
}

impl Demux {
    pub(crate) fn new(rcu: &Domain, secret: HashKey) -> Self {
        Self {
            established: RcuMap::new(rcu, ROOM[0]),
            listeners: RcuMap::new(rcu, ROOM[1]),
            // Zeros from the system: pages of ports that nobody uses are never touched.
            owners: <[AtomicU32]>::new_box_zeroed_with_elems(PORTS).expect("memory for a host"),
            binding: Mutex::default(),
            secret,
        }
    }

    /// Keyed hash of a four-tuple; also the flow hash of what is sent.
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

    /// The connection, request or remnant of `tuple`.
    pub(crate) fn established<'s>(
        &'s self,
        hash: u32,
        tuple: &FourTuple,
        rcu: &'s Section<'_>,
    ) -> Option<&'s Entry> {
        self.established.lookup(hash, tuple, rcu)
    }

    /// The listener of `local`: one bound to the address itself before one bound to any address. Of a group that
    /// shares the port, the member that `hash` chooses, among those that want connections of `core` if there are any.
    pub(crate) fn listener<'s>(
        &'s self,
        core: CoreId,
        local: SocketAddr,
        hash: u32,
        rcu: &'s Section<'_>,
    ) -> Option<&'s Arc<Listener>> {
        let port = local.port();
        let on_port = self.listeners.lookup(port_hash(port), &port, rcu)?;
        let flow = (hash, core);
        let any = match local.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        member(on_port, local.ip(), flow).or_else(|| member(on_port, any, flow))
    }

    /// Adds a connection whose four-tuple must be new.
    pub(crate) fn insert(&self, hash: u32, tuple: FourTuple, entry: Entry) -> Result<(), Errno> {
        let owns = entry.owns_port();
        self.established.insert(hash, tuple, entry).map_err(|_| Errno::EADDRNOTAVAIL)?;
        if owns {
            self.owner_added(tuple.local.port());
        }
        Ok(())
    }

    /// As `insert`, for a local end that the application has chosen; `EADDRINUSE` when another owns it.
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

    /// Puts `entry` where another of the same tuple was: request → stream, stream → TIME-WAIT.
    pub(crate) fn replace(&self, hash: u32, tuple: FourTuple, entry: Entry) {
        // A remnant inherits the port of its stream.
        if matches!(entry, Entry::Stream(_)) {
            self.owner_added(tuple.local.port());
        }
        self.established.insert_or_replace(hash, tuple, entry);
    }

    /// Puts a stream where a remnant was, if that is the one meant: both own the port. False if it is not.
    pub(crate) fn replace_if(
        &self,
        hash: u32,
        tuple: FourTuple,
        entry: Entry,
        is_meant: impl FnOnce(&Entry) -> bool,
    ) -> bool {
        self.established.replace_if(hash, tuple, entry, is_meant).is_ok()
    }

    /// Takes `gone` out, unless something else has come in its place.
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

    /// The count of connections and remnants by `port`.
    fn owners_of(&self, port: u16) -> &AtomicU32 {
        &self.owners[usize::from(port) % PORTS]
    }

    fn owner_added(&self, port: u16) {
        self.owners_of(port).fetch_add(1, Ordering::Relaxed);
    }

    fn bind(&self) -> MutexGuard<'_, ()> {
        self.binding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody owns `local` who does not share it with `flags`: bind(2)'s question, and listen(2)'s.
    pub(crate) fn is_in_use(&self, local: SocketAddr, flags: BindFlags, rcu: &Section<'_>) -> bool {
        let port = local.port();
        let on_port = self.listeners.lookup(port_hash(port), &port, rcu);
        let listening = on_port.is_some_and(|list| {
            list.iter().any(|listener| {
                overlap(local.ip(), listener.local().ip())
                    && flags.conflicts_with(listener.flags(), true)
            })
        });
        if listening || self.owners_of(port).load(Ordering::Relaxed) == 0 {
            return listening;
        }
        let mut in_use = false;
        self.established.for_each(rcu, |tuple, entry| {
            if tuple.local.port() == port
                && overlap(local.ip(), tuple.local.ip())
                && let Some(owner) = entry.bind_flags()
            {
                in_use |= flags.conflicts_with(owner, false);
            }
        });
        in_use
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

    /// About `entries` of them from `from` on; returns where to go on, `None` at the end.
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

    /// Registers a listener; `EADDRINUSE` when another owns the address and port.
    pub(crate) fn listen(&self, rcu: &Reader, listener: &Arc<Listener>) -> Result<(), Errno> {
        let _binding = self.bind();
        if self.is_in_use(listener.local(), listener.flags(), &rcu.pin()) {
            return Err(Errno::EADDRINUSE);
        }
        self.edit_listeners(rcu, listener.local().port(), |list| list.push(Arc::clone(listener)));
        Ok(())
    }

    pub(crate) fn unlisten(&self, rcu: &Reader, listener: &Arc<Listener>) {
        let _binding = self.bind();
        self.edit_listeners(rcu, listener.local().port(), |list| {
            list.retain(|other| !Arc::ptr_eq(other, listener))
        });
    }

    /// Copy-on-write change of the listeners of one port. `binding` is held by the callers: it serialises writers.
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

    /// A port nobody owns, from `candidates`; used to listen on port 0.
    pub(crate) fn unused_port(
        &self,
        mut candidates: impl Iterator<Item = u16>,
        rcu: &Section<'_>,
    ) -> Option<u16> {
        candidates.find(|&port| {
            self.owners_of(port).load(Ordering::Relaxed) == 0 && self.may_connect_from(port, rcu)
        })
    }

    /// Whether a connection may take `port` as its local port by itself: nobody listens there.
    pub(crate) fn may_connect_from(&self, port: u16, rcu: &Section<'_>) -> bool {
        self.listeners.lookup(port_hash(port), &port, rcu).is_none()
    }
}

impl Entry {
    /// With whom it shares its local port; `None` for a request, which owns none: its listener does.
    fn bind_flags(&self) -> Option<BindFlags> {
        match self {
            Self::Stream(socket) => Some(socket.bind_flags()),
            Self::TimeWait(remnant) => Some(remnant.bind_flags()),
            Self::Request(_) => None,
        }
    }

    const fn owns_port(&self) -> bool {
        !matches!(self, Self::Request(_))
    }
}

/// Two local addresses that cannot both be served apart: the same, or one of them any.
fn overlap(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4() && (a == b || a.is_unspecified() || b.is_unspecified())
}

/// The listener bound to `ip`; of several the one for this flow.
fn member(
    on_port: &[Arc<Listener>],
    ip: IpAddr,
    (hash, core): (u32, CoreId),
) -> Option<&Arc<Listener>> {
    let bound = || on_port.iter().filter(move |listener| listener.local().ip() == ip);
    let first = bound().next()?;
    if !first.flags().reuse_port {
        return Some(first);
    }
    let here = || bound().filter(move |listener| listener.incoming_core() == Some(core));
    let (mine, all) = (here().count(), bound().count());
    // The high bits have chosen the core: others choose among its members.
    let nth = |count: usize| {
        let spread = u64::from(hash.wrapping_mul(0x9e37_79b9));
        usize::try_from((spread * count as u64) >> 32).unwrap_or_default()
    };
    if mine > 0 { here().nth(nth(mine)) } else { bound().nth(nth(all)) }
}

/// Ports are spread evenly by multiplication with the golden ratio.
fn port_hash(port: u16) -> u32 {
    u32::from(port).wrapping_mul(0x9e37_79b9)
}

#[cfg(test)]
mod tests;
