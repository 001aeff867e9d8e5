//! Counting votes for one sequence.
//!
//! Of every replica the vote of its latest view is kept, and of one view the first: a voter that
//! says two things there is a liar, and either of them is as good. So a tally holds at most one
//! vote for each replica, whatever is sent.

use crate::certificate::Vote;
use crate::identity::{Digest, Monotonic, ReplicaId, Signature, View};
use crate::sabotage::Flag;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
struct Held {
    view: View,
    digest: Digest,
    signature: Signature,
    since: Monotonic,
    copies: usize,
}

/// PREPAREs or COMMITs for one sequence.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    votes: BTreeMap<ReplicaId, Held>,
    /// The simulator's sabotage: who votes twice counts twice.
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

    /// Takes a verified vote in.
    pub fn add(&mut self, view: View, digest: Digest, vote: Vote, now: Monotonic) {
        let fresh = Held {
            view,
            digest,
            signature: vote.signature,
            since: now,
            copies: 1,
        };
        match self.votes.get_mut(&vote.signer) {
            Some(held) if held.view < view => *held = fresh,
            Some(held) => {
                if self.duplicates.is_set() && held.view == view && held.digest == digest {
                    held.copies += 1;
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
        let held = self.votes.get(&signer).filter(|held| held.since < time)?;
        Some((held.view, held.digest, held.signature))
    }

    /// At least `quorum` votes for this, without those of `except`: as many as there are.
    #[must_use]
    pub fn quorum(
        &self,
        view: View,
        digest: &Digest,
        quorum: usize,
        except: Option<ReplicaId>,
    ) -> Option<Vec<Vote>> {
        let matching = self.votes.iter().filter(|(signer, held)| {
            held.view == view && held.digest == *digest && Some(**signer) != except
        });
        let votes: Vec<Vote> = matching
            .flat_map(|(signer, held)| {
                let vote = Vote {
                    signer: *signer,
                    signature: held.signature,
                };
                std::iter::repeat_n(vote, held.copies)
            })
            .collect();
        (votes.len() >= quorum).then_some(votes)
    }

    /// A view and digest that at least `quorum` votes agree on, if there is one.
    #[must_use]
    pub fn decided(&self, quorum: usize) -> Option<(View, Digest, Vec<Vote>)> {
        if self.votes.values().map(|held| held.copies).sum::<usize>() < quorum {
            return None;
        }
        self.votes.values().find_map(|held| {
            let votes = self.quorum(held.view, &held.digest, quorum, None)?;
            Some((held.view, held.digest, votes))
        })
    }

    /// Whose votes in this view are here, whatever for, as a mask.
    #[must_use]
    pub fn voters(&self, view: View) -> u64 {
        let held = self.votes.iter().filter(|(_, held)| held.view == view);
        held.fold(0, |mask, (signer, _)| mask | bit(*signer))
    }

    /// Whose votes for this are here, as a mask.
    #[must_use]
    pub fn mask(&self, view: View, digest: &Digest) -> u64 {
        self.votes
            .iter()
            .filter(|(_, held)| held.view == view && held.digest == *digest)
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
    fn who_votes_twice_counts_once() {
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
