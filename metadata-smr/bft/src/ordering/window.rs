//! The sequences that are open.
//!
//! ```text
//!       last │ last+1   last+2   …   last+WINDOW │ last+WINDOW+1   …   last+2·WINDOW
//!   executed │ voted on, each following upon     │ kept: the messages of replicas that
//!            │ the one before it                 │ are a few batches ahead of this one
//! ```
//!
//! Each is a [`Slot`].
//!
//! What always holds: slots are numbered without a gap from the one after the last executed batch;
//! a proposal stands in a slot only if the one that it names as its predecessor stands in the slot
//! before, or was executed; a certificate of view v stands in a slot only if every slot below has
//! one of view v or later. Proposals that came before their predecessor wait as `received`.
//!
//! Memory: proposals and votes are bounded by their number; bodies of batches that were voted for
//! in failed views by [`KEPT_BYTES_MAX`] over the whole window.

use super::slot::Slot;
use crate::certificate::PreparedCertificate;
use crate::identity::{Digest, Sequence};
use crate::sabotage::Flag;
use crate::wire::limits::{KEPT_BYTES_MAX, WINDOW};
use crate::wire::{Context, Envelope};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// All open sequences.
#[derive(Clone, Debug)]
pub struct Window {
    lowest: Slot,
    later: VecDeque<Slot>,
    /// How many are voted on.
    width: usize,
    duplicates: Flag,
}

impl Window {
    /// Everything after `last_executed` is open, and nothing is known of it.
    #[must_use]
    pub fn after(last_executed: Sequence, context: &Context) -> Self {
        let duplicates = context.duplicates;
        let slot = |sequence| Slot::new(sequence, duplicates);
        let lowest = slot(last_executed.next());
        let numbers =
            (2..=2 * WINDOW as u64).map(|step| Sequence(last_executed.0.saturating_add(step)));
        let later = numbers.map(slot).collect();
        Self {
            lowest,
            later,
            width: context.window(),
            duplicates,
        }
    }

    /// The one that is executed next.
    #[must_use]
    pub const fn lowest(&self) -> &Slot {
        &self.lowest
    }

    /// The one that is executed next.
    pub const fn lowest_mut(&mut self) -> &mut Slot {
        &mut self.lowest
    }

    /// The lowest open sequence.
    #[must_use]
    pub const fn open(&self) -> Sequence {
        self.lowest.sequence
    }

    /// The highest sequence with a slot.
    #[must_use]
    pub fn end(&self) -> Sequence {
        self.later
            .back()
            .map_or(self.lowest.sequence, |slot| slot.sequence)
    }

    /// Whether votes are given for this sequence now.
    #[must_use]
    pub const fn votes_on(&self, sequence: Sequence) -> bool {
        let open = self.lowest.sequence.0;
        sequence.0 >= open && sequence.0 < open.saturating_add(self.width as u64)
    }

    /// One of them, if it is open.
    #[must_use]
    pub fn get(&self, sequence: Sequence) -> Option<&Slot> {
        match sequence.0.checked_sub(self.lowest.sequence.0)? {
            0 => Some(&self.lowest),
            step => self.later.get(usize::try_from(step - 1).ok()?),
        }
    }

    /// One of them, if it is open.
    pub fn get_mut(&mut self, sequence: Sequence) -> Option<&mut Slot> {
        match sequence.0.checked_sub(self.lowest.sequence.0)? {
            0 => Some(&mut self.lowest),
            step => self.later.get_mut(usize::try_from(step - 1).ok()?),
        }
    }

    /// All, lowest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Slot> {
        std::iter::once(&self.lowest).chain(&self.later)
    }

    /// All, lowest first.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Slot> {
        std::iter::once(&mut self.lowest).chain(&mut self.later)
    }

    /// Those that votes are given for, lowest first.
    pub fn voting(&self) -> impl Iterator<Item = &Slot> {
        self.iter().take(self.width)
    }

    /// The lowest was executed: returns its slot; the next one takes its place.
    pub fn advance(&mut self) -> Slot {
        let end = self.end().next();
        self.later.push_back(Slot::new(end, self.duplicates));
        match self.later.pop_front() {
            Some(next) => std::mem::replace(&mut self.lowest, next),
            None => std::mem::take(&mut self.lowest),
        }
    }

    /// Everything up to `last_executed` was executed by others. State and promises of later
    /// sequences stay.
    pub fn skip_to(&mut self, last_executed: Sequence, context: &Context) {
        if last_executed >= self.end() {
            *self = Self::after(last_executed, context);
        }
        while self.open() <= last_executed {
            self.advance();
        }
    }

    /// The current view is over.
    pub fn leave_view(&mut self) {
        self.iter_mut().for_each(Slot::leave_view);
    }

    /// The prepared certificates for a VIEW-CHANGE, by sequence.
    #[must_use]
    pub fn certificates(&self) -> Vec<PreparedCertificate> {
        let slots = self.voting();
        slots.filter_map(|slot| slot.prepared.clone()).collect()
    }

    /// How many of this view's proposals are undecided.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.iter().filter(|slot| slot.proposal.is_some()).count()
    }

    /// Whether an open proposal of this view whose bodies did not all wait here asks for this
    /// request. A request that waits here has been set aside with its proposal.
    #[must_use]
    pub fn asks_elsewhere_for(&self, digest: &Digest) -> bool {
        let mut proposed = self.iter().filter(|slot| slot.proposal.is_some());
        proposed.any(|slot| !slot.bodies().waited() && slot.asks_for(digest))
    }

    /// The requests that open proposals of this view ask for.
    #[must_use]
    pub fn asked(&self) -> BTreeSet<&Digest> {
        let proposals = self.iter().filter_map(|slot| slot.proposal.as_ref());
        let batches = proposals.filter_map(|proposal| proposal.batch());
        batches.flat_map(|batch| &batch.requests).collect()
    }

    /// The requests that came with open batches; one that came with several, several times.
    pub fn bodies(&self) -> impl Iterator<Item = &Arc<Envelope>> {
        self.iter().flat_map(|slot| slot.bodies().iter())
    }

    /// Gives a body to every slot that wants it. Whether one did.
    pub fn offer(&mut self, body: &Arc<Envelope>) -> bool {
        let wanting = self
            .iter_mut()
            .filter_map(|slot| slot.offer(body).then_some(()));
        wanting.count() > 0
    }

    /// The journal holds the batch of this proposal with its bodies. Of many failed views only the
    /// newest few are kept, within the limit on bytes.
    pub fn journaled(&mut self, proposal: &Arc<Envelope>) {
        let Some(batch) = proposal.batch() else {
            return;
        };
        if let Some(slot) = self.get_mut(batch.sequence) {
            slot.journaled(proposal);
        }
        while self.iter().map(|slot| slot.bodies().bytes()).sum::<usize>() > KEPT_BYTES_MAX {
            let slots = self.iter().rev();
            let oldest = slots.filter_map(|slot| Some((slot.oldest()?, slot.sequence)));
            let Some(((_, digest), sequence)) = oldest.min_by_key(|((view, _), _)| *view) else {
                return;
            };
            if let Some(slot) = self.get_mut(sequence) {
                slot.forget(&digest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault_model::FaultModel;
    use crate::identity::{ClusterId, Epoch};

    #[test]
    fn what_is_known_beyond_a_checkpoint_stays() {
        let model = FaultModel::new(1, 1, 4).expect("a preset");
        let context = Context::new(ClusterId([0; 16]), Epoch(0), model);
        let mut window = Window::after(Sequence(10), &context);
        let mark = |window: &mut Window, sequence| {
            let slot = window.get_mut(Sequence(sequence));
            slot.expect("it is open").patience_used = true;
        };
        let marked = |window: &Window| -> Vec<u64> {
            let slots = window.iter().filter(|slot| slot.patience_used);
            slots.map(|slot| slot.sequence.0).collect()
        };
        (11..=18).for_each(|sequence| mark(&mut window, sequence));
        window.skip_to(Sequence(15), &context);
        assert_eq!(window.open(), Sequence(16));
        assert_eq!(marked(&window), [16, 17, 18]);
        assert_eq!(window.end(), Window::after(Sequence(15), &context).end());
        window.skip_to(Sequence(15), &context);
        assert_eq!(marked(&window), [16, 17, 18]);
        window.skip_to(Sequence(1_000_000), &context);
        assert_eq!(window.open(), Sequence(1_000_001));
        assert_eq!(marked(&window), [0; 0]);
    }
}
