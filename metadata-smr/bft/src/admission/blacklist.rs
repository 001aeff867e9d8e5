//! Peers that signed a message that no correct peer would sign. Each stays here for a while.

use crate::identity::Monotonic;
use crate::step::Peer;
use crate::wire::limits::{BLACKLIST_MAX, BLACKLIST_TIME};
use std::collections::BTreeMap;

/// The peers that are ignored, and until when.
#[derive(Clone, Debug, Default)]
pub struct Blacklist {
    until: BTreeMap<Peer, Monotonic>,
}

impl Blacklist {
    /// Ignores `peer` for a while.
    pub fn add(&mut self, peer: Peer, now: Monotonic) {
        self.until.retain(|_, until| *until > now);
        if self.until.len() >= BLACKLIST_MAX && !self.until.contains_key(&peer) {
            let oldest = self.until.iter().min_by_key(|(_, until)| **until);
            if let Some(oldest) = oldest.map(|(peer, _)| *peer) {
                self.until.remove(&oldest);
            }
        }
        self.until.insert(peer, now.plus(BLACKLIST_TIME));
    }

    /// Whether `peer` is ignored now.
    #[must_use]
    pub fn holds(&self, peer: &Peer, now: Monotonic) -> bool {
        self.until.get(peer).is_some_and(|until| *until > now)
    }

    /// Removes a peer whose connection is closed; no other connection gets its number.
    pub fn forget(&mut self, peer: &Peer) {
        self.until.remove(peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{ConnectionId, ReplicaId};

    #[test]
    fn a_peer_is_heard_again_after_its_parole() {
        let mut list = Blacklist::default();
        let peer = Peer::Replica(ReplicaId(2));
        let now = Monotonic(5);
        list.add(peer, now);
        assert!(list.holds(&peer, now));
        assert!(!list.holds(&Peer::Replica(ReplicaId(1)), now));
        assert!(!list.holds(&peer, now.plus(BLACKLIST_TIME)));
    }

    #[test]
    fn it_does_not_grow_without_bound_and_keeps_the_newest() {
        let mut list = Blacklist::default();
        for number in 0..3 * BLACKLIST_MAX as u64 {
            list.add(Peer::Client(ConnectionId(number)), Monotonic(number));
        }
        assert_eq!(list.until.len(), BLACKLIST_MAX);
        let newest = Peer::Client(ConnectionId(3 * BLACKLIST_MAX as u64 - 1));
        assert!(list.holds(&newest, Monotonic(0)));
    }
}
