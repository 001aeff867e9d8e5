//! Counting the replicas that give the same statement.
//!
//! A statement counts once r + 1 replicas make it, since at least one of them is correct then;
//! where queries are answered out of order, once a medium quorum does. Every replica has one vote,
//! its last one, so that a replica that catches up counts with its new statement. Memory is bounded
//! by the number of replicas.

use crate::identity::ReplicaId;
use std::collections::BTreeMap;

/// The last statement of each replica about one thing.
#[derive(Clone, Debug)]
pub(super) struct ReplyQuorum<T> {
    votes: BTreeMap<ReplicaId, T>,
}

impl<T> Default for ReplyQuorum<T> {
    fn default() -> Self {
        Self {
            votes: BTreeMap::new(),
        }
    }
}

impl<T: Eq> ReplyQuorum<T> {
    /// Records a statement. Returns whether `needed` replicas make it now.
    pub(super) fn vote(&mut self, from: ReplicaId, statement: T, needed: u16) -> bool {
        self.votes.insert(from, statement);
        let Some(statement) = self.votes.get(&from) else {
            return false;
        };
        let equal = self.votes.values().filter(|vote| *vote == statement);
        equal.count() >= usize::from(needed)
    }

    /// Whether `needed` replicas make the same statement, and it passes `test`.
    pub(super) fn agrees(&self, needed: u16, test: impl Fn(&T) -> bool) -> bool {
        let equal = |one: &T| self.votes.values().filter(|vote| *vote == one).count();
        let mut passing = self.votes.values().filter(|vote| test(vote));
        passing.any(|vote| equal(vote) >= usize::from(needed))
    }

    /// The last statement of a replica.
    pub(super) fn vote_of(&self, from: ReplicaId) -> Option<&T> {
        self.votes.get(&from)
    }

    /// Removes the last statement of a replica.
    pub(super) fn take(&mut self, from: ReplicaId) -> Option<T> {
        self.votes.remove(&from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_replica_counts_once_however_often_it_replies() {
        let mut quorum = ReplyQuorum::default();
        assert!(!quorum.vote(ReplicaId(0), 'a', 2));
        assert!(!quorum.vote(ReplicaId(0), 'a', 2));
        assert!(!quorum.vote(ReplicaId(1), 'b', 2));
        assert!(quorum.vote(ReplicaId(2), 'a', 2));
    }

    #[test]
    fn a_laggard_counts_with_its_latest_statement() {
        let mut quorum = ReplyQuorum::default();
        assert!(!quorum.vote(ReplicaId(0), 'a', 2));
        assert!(!quorum.vote(ReplicaId(1), 'b', 2));
        assert!(quorum.vote(ReplicaId(0), 'b', 2));
        assert!(!quorum.vote(ReplicaId(2), 'a', 2), "its old vote is gone");
        assert_eq!(quorum.vote_of(ReplicaId(2)), Some(&'a'));
        assert_eq!(quorum.take(ReplicaId(2)), Some('a'));
    }
}
