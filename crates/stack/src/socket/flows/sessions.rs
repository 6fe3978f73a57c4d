//! The UDP sessions of one device: found by their source without a lock, listed by their expiry.
//!
//! Above: `interceptor`; the timer of a core. RFC 4787 §4.3: a session ends after five minutes
//! without a datagram in either direction (REQ-5, REQ-6), or earlier if its datagrams have gone to
//! well-known ports alone (REQ-5 a). If there are too many, the one that would expire first ends:
//! with equal timeouts, the one that was not used for the longest time.
//!
//! The list orders sessions by an expiry that may be out of date, because a datagram does not take
//! its lock. A session whose turn comes is listed again under its true expiry, or ended.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use pkt::Instant;
use sync::{
    RcuMap,
    epoch::{Domain, Section},
};
use tcp::FourTuple;

use super::session::UdpSession;
use crate::{
    base::{
        errno::Errno,
        ids::{CoreId, DeviceIndex},
    },
    cx::Cx,
    socket::{core_sockets::TimerEntry, net::Net},
};

/// Initial capacity of the table.
const ROOM: usize = if cfg!(fuzzing) { 4 } else { 64 };

/// Sessions of one device.
#[derive(Debug)]
pub(crate) struct Sessions {
    device: DeviceIndex,
    by_source: RcuMap<SocketAddr, Arc<UdpSession>>,
    list: Mutex<List>,
    /// Number of sessions opened so far. Relaxed: each number is used once.
    serial: AtomicU64,
}

#[derive(Debug, Default)]
struct List {
    /// Sessions by the expiry under which they are listed, in nanoseconds, and their number.
    by_expiry: BTreeMap<(u64, u64), Arc<UdpSession>>,
    /// Time of the armed timer.
    armed: Option<Instant>,
    /// Whether no session is opened any more.
    closed: bool,
}

impl List {
    fn add(&mut self, session: Arc<UdpSession>) {
        let expiry = session.expiry().as_nanos();
        session.listed_ns.store(expiry, Ordering::Relaxed);
        self.by_expiry.insert((expiry, session.serial), session);
    }

    fn remove(&mut self, session: &UdpSession) -> bool {
        let key = (session.listed_ns.load(Ordering::Relaxed), session.serial);
        self.by_expiry.remove(&key).is_some()
    }

    /// Takes the session that expires first, if it is `due`. Sessions that were used since they
    /// were listed are listed anew on the way.
    fn pop_first(&mut self, due: impl Fn(Instant) -> bool) -> Option<Arc<UdpSession>> {
        loop {
            let entry = self.by_expiry.first_entry()?;
            let listed = entry.key().0;
            if !due(Instant::from_nanos(listed)) {
                return None;
            }
            let session = entry.remove();
            if session.expiry().as_nanos() <= listed {
                return Some(session);
            }
            self.add(session);
        }
    }
}

impl Sessions {
    pub(super) fn new(rcu: &Domain, device: DeviceIndex) -> Self {
        Self {
            device,
            by_source: RcuMap::new(rcu, ROOM),
            list: Mutex::default(),
            serial: AtomicU64::new(0),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_source.len()
    }

    pub(super) fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the session of a source.
    pub(super) fn find<'s>(
        &'s self,
        net: &Net,
        source: SocketAddr,
        rcu: &'s Section<'_>,
    ) -> Option<&'s Arc<UdpSession>> {
        self.by_source.lookup(hash(net, source), &source, rcu)
    }

    /// Adds a session that was just used. Returns the sessions that make room for it, which the
    /// caller ends; `Err` if another core has opened one for this source meanwhile, or if the host
    /// shuts down.
    pub(super) fn add(
        &self,
        net: &Net,
        session: &Arc<UdpSession>,
        max: usize,
    ) -> Result<Vec<Arc<UdpSession>>, ()> {
        let source = session.source();
        let mut list = self.lock();
        if list.closed
            || self.by_source.insert(hash(net, source), source, Arc::clone(session)).is_err()
        {
            return Err(());
        }
        let mut evicted = Vec::new();
        while list.by_expiry.len() >= max.max(1)
            && let Some(oldest) = list.pop_first(|_| true)
        {
            self.forget(net, &oldest);
            evicted.push(oldest);
        }
        list.add(Arc::clone(session));
        self.arm(net, &mut list);
        Ok(evicted)
    }

    /// Removes a session. Does nothing if it has ended.
    pub(super) fn remove(&self, net: &Net, session: &UdpSession) {
        if self.lock().remove(session) {
            self.forget(net, session);
        }
    }

    /// Ends the sessions that have expired. Returns their number.
    pub(super) fn expire(&self, net: &Net, cx: &mut Cx) -> usize {
        let mut expired = Vec::new();
        {
            let mut list = self.lock();
            list.armed = None;
            while let Some(session) = list.pop_first(|listed| listed <= cx.now) {
                self.forget(net, &session);
                expired.push(session);
            }
            self.arm(net, &mut list);
        }
        for session in &expired {
            session.end(cx, Errno::ETIMEDOUT);
        }
        expired.len()
    }

    /// Ends all sessions. No session is opened from here on.
    pub(super) fn close(&self, net: &Net, cx: &mut Cx) {
        let sessions = {
            let mut list = self.lock();
            list.closed = true;
            core::mem::take(&mut list.by_expiry)
        };
        for session in sessions.into_values() {
            self.forget(net, &session);
            session.end(cx, Errno::ENETDOWN);
        }
    }

    fn forget(&self, net: &Net, session: &UdpSession) {
        let source = session.source();
        self.by_source.remove_if(hash(net, source), &source, |found| {
            std::ptr::eq(Arc::as_ptr(found), session)
        });
    }

    /// Arms the timer for the session that is listed first, unless it is armed for an earlier time.
    fn arm(&self, net: &Net, list: &mut List) {
        let Some(((first, _), _)) = list.by_expiry.first_key_value() else { return };
        let first = Instant::from_nanos(*first);
        if list.armed.is_none_or(|armed| first < armed) {
            list.armed = Some(first);
            // The expiry of sessions is no data path, so the first core does it.
            let _ = net.core_sockets(CoreId(0)).arm(first, TimerEntry::Sessions(self.device));
        }
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the keyed hash of a source, so that a sender cannot aim at one bucket.
fn hash(net: &Net, source: SocketAddr) -> u32 {
    net.demux().hash(&FourTuple { local: source, remote: source })
}
