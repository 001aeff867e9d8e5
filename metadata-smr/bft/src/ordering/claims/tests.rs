//! The rule case by case, and against a liar in random histories.

use super::*;
use crate::ordering::chains::{GENESIS, START, at, proposal};
use crate::sabotage::Flag;
use proptest::prelude::*;

const RULE: Rule = Rule {
    quorum: 3,
    small: 2,
    without_acceptance: Flag::CLEAR,
    without_waiting: Flag::CLEAR,
    lowest_view: Flag::CLEAR,
};

/// What one replica knows.
#[derive(Clone, Debug, Default)]
struct Knowledge {
    executed: Vec<(u64, Digest)>,
    prepared: Vec<Arc<Envelope>>,
    accepted: Vec<Arc<Envelope>>,
}

impl Knowledge {
    fn holding(all: &[Arc<Envelope>]) -> Self {
        Self {
            executed: Vec::new(),
            prepared: all.to_vec(),
            accepted: all.to_vec(),
        }
    }

    fn as_view_change(&self, signer: u16, view: u64) -> Arc<Envelope> {
        let executed = self
            .executed
            .iter()
            .map(|(sequence, digest)| CommitCertificate {
                view: View(0),
                sequence: Sequence(*sequence),
                digest: *digest,
                votes: Vec::new(),
            });
        let prepared = self.prepared.iter().map(|proposal| PreparedCertificate {
            proposal: Arc::clone(proposal),
            votes: Vec::new(),
        });
        let accepted = self.accepted.iter().map(|proposal| Accepted {
            sequence: proposal.batch().map_or(Sequence(0), |it| it.sequence),
            digest: proposal.digest(),
            view: proposal.view(),
        });
        let change = ViewChange {
            signer: ReplicaId(signer),
            base: executed.collect(),
            prepared: prepared.collect(),
            claims: Some(Box::new(Claims {
                stable: None,
                accepted: accepted.collect(),
            })),
        };
        unsigned(at(view), Message::ViewChange(change))
    }
}

fn choice(replicas: &[Knowledge], rule: Rule) -> Option<Choice> {
    let changes: Vec<_> = replicas
        .iter()
        .zip(0..)
        .map(|(knowledge, id)| knowledge.as_view_change(id, 9))
        .collect();
    choose(&changes, START, at(9), rule)
}

/// The times of the batches that are carried over.
fn times(choice: &Choice) -> Vec<u64> {
    let from = choice.base_sequence().0 + 1;
    let carried = (from..).map_while(|it| choice.carried_at(Sequence(it))?.batch());
    carried.map(|batch| batch.time.0).collect()
}

#[test]
fn a_claim_of_one_replica_needs_others_that_accepted_it() {
    let one = proposal(1, 1, GENESIS, 10);
    let alone = Knowledge::holding(std::slice::from_ref(&one));
    let witness = Knowledge {
        accepted: vec![one.clone()],
        ..Knowledge::default()
    };
    let empty = Knowledge::default();
    // Only one of three has accepted it, and only two have prepared nothing: one has to wait.
    let three = [alone.clone(), empty.clone(), empty.clone()];
    assert!(choice(&three, RULE).is_none());
    let sabotaged = Rule {
        without_waiting: Flag::SET,
        ..RULE
    };
    assert_eq!(choice(&three, sabotaged).map(|it| times(&it)), Some(vec![]));
    let sabotaged = Rule {
        without_acceptance: Flag::SET,
        ..RULE
    };
    assert_eq!(
        choice(&three, sabotaged).map(|it| times(&it)),
        Some(vec![10])
    );
    // The fourth decides, whatever it says.
    let four = [alone.clone(), empty.clone(), empty.clone(), empty.clone()];
    assert_eq!(choice(&four, RULE).map(|it| times(&it)), Some(vec![]));
    let four = [alone, empty.clone(), empty, witness];
    assert_eq!(choice(&four, RULE).map(|it| times(&it)), Some(vec![10]));
}

#[test]
fn an_acceptance_in_an_earlier_view_does_not_support_a_later_claim() {
    let one = proposal(1, 1, GENESIS, 10);
    let again = proposal(3, 1, GENESIS, 10);
    assert_eq!(one.digest(), again.digest());
    let early = Knowledge::holding(std::slice::from_ref(&one));
    let late = Knowledge::holding(std::slice::from_ref(&again));
    let other = Knowledge::holding(&[proposal(2, 1, GENESIS, 20)]);
    // For view 3 there is one acceptance only; for view 1 there are two, but view 2 has another
    // batch.
    assert!(choice(&[early.clone(), late.clone(), other.clone()], RULE).is_none());
    // Three are for it: the other one cannot be committed.
    let four = [early.clone(), late, other, early];
    assert_eq!(choice(&four, RULE).map(|it| times(&it)), Some(vec![10]));
}

/// A leader that lies proposed one batch to some and another one to the others. A batch that q
/// replicas prepared may be committed; a liar's claim for the other batch in the same view is no
/// later one.
#[test]
fn of_two_claims_of_one_view_neither_counts_as_the_earlier() {
    // The lower and the higher digest: candidates are examined by digest.
    for (kept, other) in [(10, 20), (20, 10)] {
        let twin = proposal(4, 1, GENESIS, other);
        let honest = Knowledge::holding(&[proposal(4, 1, GENESIS, kept)]);
        let liar = Knowledge::holding(std::slice::from_ref(&twin));
        let witness = Knowledge {
            accepted: vec![twin],
            ..Knowledge::default()
        };
        let three = [honest.clone(), witness.clone(), liar.clone()];
        assert!(choice(&three, RULE).is_none(), "{kept}: one has to wait");
        let four = [honest.clone(), witness, liar, honest];
        let chosen = choice(&four, RULE).map(|it| times(&it));
        assert_eq!(chosen, Some(vec![kept]));
    }
}

#[test]
fn the_base_is_what_enough_have_executed_and_a_replica_alone_beyond_agrees_with_the_rest() {
    let one = proposal(1, 1, GENESIS, 10);
    let two = proposal(1, 2, one.digest(), 20);
    let ahead = Knowledge {
        executed: vec![(1, one.digest()), (2, two.digest())],
        ..Knowledge::default()
    };
    let behind = Knowledge {
        executed: vec![(1, one.digest())],
        prepared: vec![two.clone()],
        accepted: vec![two.clone()],
    };
    let all = [ahead.clone(), behind.clone(), behind.clone()];
    let chosen = choice(&all, RULE).expect("two is prepared and accepted");
    assert_eq!((chosen.base_sequence().0, times(&chosen)), (1, vec![20]));
    assert_eq!(chosen.base().map(|it| it.votes.len()), Some(3));
    // No other replica saw it: the one that executed it counts neither for another batch nor for
    // none.
    let other = Knowledge {
        executed: vec![(1, one.digest())],
        ..Knowledge::default()
    };
    assert!(choice(&[ahead.clone(), other.clone(), other.clone()], RULE).is_none());
    let chosen = choice(&[ahead.clone(), ahead, other.clone()], RULE);
    let chosen = chosen.expect("two have executed it");
    assert_eq!((chosen.base_sequence().0, times(&chosen)), (2, vec![]));
}

#[test]
fn a_replica_too_far_ahead_to_show_a_sequence_does_not_count_as_nothing_there() {
    let far = Knowledge {
        executed: (40..50).map(|it| (it, Digest([it as u8; 32]))).collect(),
        ..Knowledge::default()
    };
    let empty = Knowledge::default();
    assert!(choice(&[far.clone(), empty.clone(), empty.clone()], RULE).is_none());
    let four = [far, empty.clone(), empty.clone(), empty];
    assert_eq!(choice(&four, RULE).map(|it| times(&it)), Some(vec![]));
}

/// What happens in one view of a random history.
#[derive(Clone, Debug)]
struct Act {
    /// How far each correct replica accepts, prepares and executes.
    accepts: [u64; 3],
    prepares: [u64; 3],
    executes: [u64; 3],
    /// The replica whose VIEW-CHANGE the NEW-VIEW omits; 4 for none.
    without: u8,
    /// The liar's: of all proposals ever made, what it claims to have prepared and executed.
    lies: Vec<(u8, u8)>,
    invents: bool,
}

fn act() -> impl Strategy<Value = Act> {
    let far = || [0_u64..7, 0_u64..7, 0_u64..7];
    let lies = proptest::collection::vec((any::<u8>(), any::<u8>()), 0..5);
    (far(), far(), far(), 0_u8..5, lies, any::<bool>()).prop_map(
        |(accepts, prepares, executes, without, lies, invents)| Act {
            accepts,
            prepares,
            executes,
            without,
            lies,
            invents,
        },
    )
}

/// A correct replica.
#[derive(Clone, Debug, Default)]
struct Correct {
    executed: Vec<Digest>,
    prepared: BTreeMap<u64, Arc<Envelope>>,
    accepted: BTreeMap<(u64, Digest), Arc<Envelope>>,
}

impl Correct {
    fn last_executed(&self) -> u64 {
        self.executed.len() as u64
    }

    fn knowledge(&self) -> Knowledge {
        let executed = self
            .executed
            .iter()
            .zip(1_u64..)
            .map(|(digest, at)| (at, *digest));
        Knowledge {
            executed: executed.collect(),
            prepared: self.prepared.values().cloned().collect(),
            accepted: self.accepted.values().cloned().collect(),
        }
    }

    fn execute(&mut self, digest: Digest) {
        self.executed.push(digest);
        let last_executed = self.last_executed();
        self.prepared
            .retain(|sequence, _| *sequence > last_executed);
        self.accepted
            .retain(|(sequence, _), _| *sequence > last_executed);
    }
}

/// The liar's VIEW-CHANGE: it claims to have just prepared proposals of any earlier time.
fn lie(act: &Act, all: &[Arc<Envelope>], view: u64) -> Knowledge {
    let mut knowledge = Knowledge::default();
    let pick = |number: u8| all.get(usize::from(number) % all.len().max(1));
    let mut prepared: BTreeMap<u64, Arc<Envelope>> = BTreeMap::new();
    for (prepares, executes) in &act.lies {
        if let Some(batch) = pick(*prepares).and_then(|it| it.batch()) {
            let mut batch = batch.clone();
            batch.time.0 += u64::from(act.invents);
            let proposal = unsigned(at(view - 1), Message::Proposal(batch.clone()));
            knowledge.accepted.push(Arc::clone(&proposal));
            prepared.insert(batch.sequence.0, proposal);
        }
        if let Some(executed) = pick(*executes) {
            let sequence = executed.batch().map_or(0, |it| it.sequence.0);
            if knowledge
                .executed
                .last()
                .is_none_or(|(last, _)| *last < sequence)
            {
                knowledge.executed.push((sequence, executed.digest()));
            }
        }
    }
    knowledge.prepared = prepared.into_values().collect();
    knowledge
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, ..ProptestConfig::default() })]

    /// Three correct replicas and one that claims anything. A batch that may have been committed
    /// stays in its place in every later view, and with the VIEW-CHANGEs of all correct replicas
    /// the choice is made.
    #[test]
    fn what_may_be_committed_is_kept_and_all_correct_replicas_together_decide(
        acts in proptest::collection::vec(act(), 1..9),
    ) {
        const LAST: u64 = 6;
        let mut correct = vec![Correct::default(); 3];
        let mut all: Vec<Arc<Envelope>> = Vec::new();
        let mut decided: Vec<Digest> = Vec::new();
        for (act, view) in acts.iter().zip(1_u64..) {
            let liar = lie(act, &all, view);
            let mut changes: Vec<_> = correct.iter().zip(0..)
                .map(|(replica, id)| replica.knowledge().as_view_change(id, view))
                .collect();
            changes.push(liar.as_view_change(3, view));
            prop_assert!(
                choose(&changes, START, at(view), RULE).is_some()
                    && choose(&changes[..3], START, at(view), RULE).is_some(),
                "view {view}: all correct replicas have sent theirs"
            );
            if usize::from(act.without) < changes.len() {
                changes.remove(act.without.into());
            }
            let Some(chosen) = choose(&changes, START, at(view), RULE) else {
                continue;
            };
            // The view's chain: up to its base it is committed, then comes what it begins with,
            // then a fresh batch.
            let base = chosen.base_sequence().0;
            let known = usize::try_from(base).unwrap_or(usize::MAX);
            prop_assert!(known <= decided.len(), "view {view}: the base is committed");
            let last = known.checked_sub(1).map(|it| decided[it]);
            prop_assert_eq!(chosen.base().map(|it| it.digest), last);
            let mut previous = last.unwrap_or(GENESIS);
            let mut chain: BTreeMap<u64, Arc<Envelope>> = BTreeMap::new();
            for sequence in base + 1..=LAST {
                let fresh = || proposal(view, sequence, previous, 100 * view + 10 * sequence);
                let carried = chosen.carried_at(Sequence(sequence)).cloned();
                let proposal = carried.unwrap_or_else(fresh);
                let batch = proposal.batch().expect("a proposal");
                prop_assert_eq!(batch.previous, previous);
                prop_assert_eq!(proposal.view(), View(view));
                if let Some(kept) = decided.get(sequence as usize - 1) {
                    prop_assert_eq!(*kept, proposal.digest(), "view {} at {}", view, sequence);
                }
                previous = proposal.digest();
                all.push(Arc::clone(&proposal));
                chain.insert(sequence, proposal);
            }
            // No replica votes beyond a base that it has not executed.
            for (far, replica) in act.accepts.iter().zip(&mut correct) {
                while *far > 0 && replica.last_executed() < base {
                    replica.execute(decided[replica.executed.len()]);
                }
            }
            // A replica that has executed a batch has accepted and prepared it in every view; the
            // liar claims all of it.
            let reach = |far: &[u64; 3], correct: &[Correct]| -> Vec<u64> {
                let both = far.iter().zip(correct);
                both.map(|(far, it)| it.last_executed().max(base + far)).collect()
            };
            let quorum = |reached: &[u64]| {
                let mut reached = reached.to_vec();
                reached.sort_unstable();
                reached[1]
            };
            let accepts = reach(&act.accepts, &correct);
            let prepared = quorum(&accepts);
            let prepares: Vec<u64> = reach(&act.prepares, &correct).iter().zip(&accepts)
                .zip(&correct)
                .map(|((far, accepts), it)| {
                    (*far).min(*accepts).min(prepared).max(it.last_executed())
                })
                .collect();
            let committed = quorum(&prepares).min(LAST);
            for (index, replica) in correct.iter_mut().enumerate() {
                for (sequence, proposal) in &chain {
                    if *sequence > replica.last_executed() && *sequence <= accepts[index] {
                        let place = (*sequence, proposal.digest());
                        replica.accepted.insert(place, Arc::clone(proposal));
                    }
                    if *sequence > replica.last_executed() && *sequence <= prepares[index] {
                        replica.prepared.insert(*sequence, Arc::clone(proposal));
                    }
                }
            }
            for sequence in decided.len() as u64 + 1..=committed {
                decided.push(chain[&sequence].digest());
            }
            for (far, replica) in act.executes.iter().zip(&mut correct) {
                while replica.last_executed() < committed.min(base + far) {
                    let digest = decided[replica.executed.len()];
                    replica.execute(digest);
                }
            }
        }
    }
}
