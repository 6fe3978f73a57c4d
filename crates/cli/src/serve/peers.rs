//! Limits the connections of each peer, so that one address cannot occupy the whole service.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Connections by the address of their peer.
#[derive(Debug, Clone)]
pub(super) struct Peers {
    counts: Arc<Mutex<HashMap<IpAddr, u32>>>,
    /// Most connections of one address. `None`: no limit.
    max: Option<u32>,
}

/// Permission for one connection of a peer. Dropping it frees the slot.
#[derive(Debug)]
pub(super) struct Permit {
    /// `None` if there is no limit and connections are not counted.
    of: Option<(Peers, IpAddr)>,
}

impl Peers {
    /// Starts without connections, with a limit of `max` for each address.
    pub(super) fn new(max: Option<u32>) -> Self {
        Self { counts: Arc::default(), max }
    }

    /// Returns a permit for a connection of this peer; `None` if the peer has reached its limit.
    pub(super) fn admit(&self, peer: IpAddr) -> Option<Permit> {
        let Some(max) = self.max else { return Some(Permit { of: None }) };
        let mut counts = self.lock();
        let count = counts.entry(peer).or_insert(0);
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(Permit { of: Some((self.clone(), peer)) })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, u32>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
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
    fn a_dropped_permit_can_be_used_by_the_same_peer_again() {
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let peers = Peers::new(Some(2));
        let first = peers.admit(one).expect("a permit");
        let second = peers.admit(one).expect("a permit");
        assert!(peers.admit(one).is_none());
        assert!(peers.admit(other).is_some());
        drop(first);
        let third = peers.admit(one).expect("the permit of the first");
        drop((second, third));
        assert!(peers.lock().is_empty(), "peers without connections have no entry");
    }

    #[test]
    fn connections_are_not_counted_without_a_limit() {
        let peers = Peers::new(None);
        let permits: Vec<_> = (0..100).map(|_| peers.admit([10, 0, 0, 1].into())).collect();
        assert!(permits.iter().all(Option::is_some) && peers.lock().is_empty());
    }
}
