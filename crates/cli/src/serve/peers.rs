//! How many connections each peer has, and how many it may have: one address cannot take all that a service has to give.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Connections by the address of their peer.
#[derive(Debug, Clone)]
pub(super) struct Peers {
    counts: Arc<Mutex<HashMap<IpAddr, u32>>>,
    /// Most connections of one address. `None`: as many as it likes.
    max: Option<u32>,
}

/// One connection's place among those of its peer, given up when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    /// `None` where nothing is counted.
    of: Option<(Peers, IpAddr)>,
}

impl Peers {
    /// Nobody has a connection, and `max` of each address may.
    pub(super) fn new(max: Option<u32>) -> Self {
        Self { counts: Arc::default(), max }
    }

    /// A place for a connection of this peer; `None` when it has as many as it may.
    pub(super) fn admit(&self, peer: IpAddr) -> Option<Place> {
        let Some(max) = self.max else { return Some(Place { of: None }) };
        let mut counts = self.lock();
        let count = counts.entry(peer).or_insert(0);
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(Place { of: Some((self.clone(), peer)) })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, u32>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some((peers, peer)) = &self.of else { return };
        let mut counts = peers.lock();
        if let Some(count) = counts.get_mut(peer) {
            *count -= 1;
            if *count == 0 {
                counts.remove(peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_has_its_places_and_gets_them_back() {
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let peers = Peers::new(Some(2));
        let first = peers.admit(one).expect("a place");
        let second = peers.admit(one).expect("a place");
        assert!(peers.admit(one).is_none());
        assert!(peers.admit(other).is_some());
        drop(first);
        let third = peers.admit(one).expect("the place of the first");
        drop((second, third));
        assert!(peers.lock().is_empty(), "nothing is kept of peers without connections");
    }

    #[test]
    fn without_a_limit_nothing_is_counted() {
        let peers = Peers::new(None);
        let places: Vec<_> = (0..100).map(|_| peers.admit([10, 0, 0, 1].into())).collect();
        assert!(places.iter().all(Option::is_some) && peers.lock().is_empty());
    }
}
