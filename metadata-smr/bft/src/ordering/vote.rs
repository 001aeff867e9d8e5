//! Counting votes for one sequence.
//!
//! Of every replica the vote of its latest view counts, and of one view the first: a voter that
//! votes for two digests in one view is a liar, and either vote may be counted. So a tally holds at
//! most one vote for each replica, whatever is sent.

use crate::certificate::Vote;
use crate::identity::{Digest, Monotonic, ReplicaId, Signature, View};
use crate::sabotage::Flag;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
struct CountedVote {
    view: View,
    digest: Digest,
    signature: Signature,
    since: Monotonic,
    copies: usize,
}

/// PREPAREs or COMMITs for one sequence.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    votes: BTreeMap<ReplicaId, CountedVote>,
    /// A planted defect: a vote that comes twice counts twice.
    duplicates: Flag,
}

impl Tally {
    /// An empty one.
    #[must_use]
    pub const fn new(duplicates: Flag) -> Self {
        Self {
            votes: BTreeMap::new(),
            duplicates,
        }
    }

    /// Adds a verified vote.
    pub fn add(&mut self, view: View, digest: Digest, vote: Vote, now: Monotonic) {
        let fresh = CountedVote {
            view,
            digest,
            signature: vote.signature,
            since: now,
            copies: 1,
        };
        match self.votes.get_mut(&vote.signer) {
            Some(counted) if counted.view < view => *counted = fresh,
            Some(counted) => {
                if self.duplicates.is_set() && counted.view == view && counted.digest == digest {
                    counted.copies += 1;
                }
            }
            None => {
                self.votes.insert(vote.signer, fresh);
            }
        }
    }

    /// The latest vote of a replica, if it came before `time`.
    #[must_use]
    pub fn latest(&self, signer: ReplicaId, time: Monotonic) -> Option<(View, Digest, Signature)> {
        let counted = self
            .votes
            .get(&signer)
            .filter(|counted| counted.since < time)?;
        Some((counted.view, counted.digest, counted.signature))
    }

    /// All votes for this, without that of `except`, if they are at least `quorum`.
    #[must_use]
    pub fn quorum(
        &self,
        view: View,
        digest: &Digest,
        quorum: usize,
        except: Option<ReplicaId>,
    ) -> Option<Vec<Vote>> {
        let matching = self.votes.iter().filter(|(signer, counted)| {
            counted.view == view && counted.digest == *digest && Some(**signer) != except
        });
        let votes: Vec<Vote> = matching
            .flat_map(|(signer, counted)| {
                let vote = Vote {
                    signer: *signer,
                    signature: counted.signature,
                };
                std::iter::repeat_n(vote, counted.copies)
            })
            .collect();
        (votes.len() >= quorum).then_some(votes)
    }

    /// A view and digest that at least `quorum` votes agree on, if there is one.
    #[must_use]
    pub fn decided(&self, quorum: usize) -> Option<(View, Digest, Vec<Vote>)> {
        if self
            .votes
            .values()
            .map(|counted| counted.copies)
            .sum::<usize>()
            < quorum
        {
            return None;
        }
        self.votes.values().find_map(|counted| {
            let votes = self.quorum(counted.view, &counted.digest, quorum, None)?;
            Some((counted.view, counted.digest, votes))
        })
    }

    /// The replicas whose votes in this view are here, whatever they are for, as a mask.
    #[must_use]
    pub fn voters(&self, view: View) -> u64 {
        let counted = self
            .votes
            .iter()
            .filter(|(_, counted)| counted.view == view);
        counted.fold(0, |mask, (signer, _)| mask | bit(*signer))
    }

    /// The replicas whose votes for this are here, as a mask.
    #[must_use]
    pub fn mask(&self, view: View, digest: &Digest) -> u64 {
        self.votes
            .iter()
            .filter(|(_, counted)| counted.view == view && counted.digest == *digest)
            .fold(0, |mask, (signer, _)| mask | bit(*signer))
    }
}

/// A replica's bit in a mask.
#[must_use]
pub const fn bit(replica: ReplicaId) -> u64 {
    if replica.0 < 64 { 1 << replica.0 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vote(signer: u16) -> Vote {
        Vote {
            signer: ReplicaId(signer),
            signature: Signature::default(),
        }
    }

    #[test]
    fn a_replica_that_votes_twice_counts_once() {
        let mut tally = Tally::new(Flag::CLEAR);
        let digest = Digest([1; 32]);
        for _ in 0..5 {
            tally.add(View(0), digest, vote(1), Monotonic(0));
        }
        tally.add(View(0), digest, vote(2), Monotonic(0));
        assert!(tally.quorum(View(0), &digest, 3, None).is_none());
        assert!(tally.decided(3).is_none());
        tally.add(View(0), digest, vote(3), Monotonic(0));
        assert_eq!(tally.decided(3).expect("three voted").2.len(), 3);
        assert!(
            tally
                .quorum(View(0), &digest, 3, Some(ReplicaId(3)))
                .is_none()
        );
    }

    #[test]
    fn only_the_latest_view_of_a_voter_counts_and_in_it_the_first_vote() {
        let mut tally = Tally::new(Flag::CLEAR);
        let (one, two) = (Digest([1; 32]), Digest([2; 32]));
        tally.add(View(3), one, vote(0), Monotonic(0));
        tally.add(View(2), two, vote(0), Monotonic(0));
        tally.add(View(3), two, vote(0), Monotonic(0));
        assert_eq!(tally.mask(View(3), &one), 1);
        assert_eq!(tally.mask(View(3), &two) | tally.mask(View(2), &two), 0);
        tally.add(View(4), two, vote(0), Monotonic(0));
        assert_eq!(tally.mask(View(3), &one), 0);
        assert_eq!(tally.mask(View(4), &two), 1);
    }
}
