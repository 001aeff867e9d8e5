//! Operations waiting to be bundled, within bounds.
//!
//! First in, first out; an operation whose deadline passes while it waits is removed without having
//! been sent. The bounds count waiting and pending operations together, so that a slow cluster
//! pushes back on the submitter.

use super::config::ClientConfig;
use super::event::{Effect, Effects, OperationKind, Ticket};
use super::failure::Failure;
use crate::identity::{Monotonic, Sequence};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// One operation of the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    pub(super) ticket: Ticket,
    pub(super) kind: OperationKind,
    pub(super) operation: Bytes,
    pub(super) deadline: Monotonic,
}

/// Waiting operations and the budget of all unanswered ones.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: BTreeMap<u64, Pending>,
    deadlines: BTreeSet<(Monotonic, u64)>,
    next: u64,
    operations: usize,
    bytes: usize,
}

impl Queue {
    /// Queues an operation, if the budget allows it.
    pub(super) fn push(&mut self, config: &ClientConfig, pending: Pending) -> Result<(), Failure> {
        self.admit(config, &pending)?;
        self.requeue(pending);
        Ok(())
    }

    /// Counts an operation against the budget, but does not queue it.
    pub(super) fn admit(
        &mut self,
        config: &ClientConfig,
        pending: &Pending,
    ) -> Result<(), Failure> {
        let bytes = self.bytes.saturating_add(pending.operation.len());
        if self.operations >= config.operations_max || bytes > config.bytes_max {
            return Err(Failure::Full {
                operations: self.operations,
            });
        }
        self.operations += 1;
        self.bytes = bytes;
        Ok(())
    }

    /// Queues an operation that is counted already.
    pub(super) fn requeue(&mut self, pending: Pending) {
        self.deadlines.insert((pending.deadline, self.next));
        self.waiting.insert(self.next, pending);
        self.next += 1;
    }

    /// The size of the first operation in the queue.
    pub(super) fn peek(&self) -> Option<usize> {
        let (_, pending) = self.waiting.first_key_value()?;
        Some(pending.operation.len())
    }

    /// Removes the first operation from the queue; it stays in the budget.
    pub(super) fn pop(&mut self) -> Option<Pending> {
        let (number, pending) = self.waiting.pop_first()?;
        self.deadlines.remove(&(pending.deadline, number));
        Some(pending)
    }

    /// Removes one whose deadline has passed; it stays in the budget until it is answered.
    pub(super) fn pop_expired(&mut self, now: Monotonic) -> Option<Pending> {
        let (deadline, number) = *self.deadlines.first()?;
        if deadline > now {
            return None;
        }
        self.deadlines.remove(&(deadline, number));
        self.waiting.remove(&number)
    }

    /// Delivers the result of an operation that was removed, and releases its share of the budget.
    pub(super) fn deliver(
        &mut self,
        pending: &Pending,
        result: Bytes,
        version: Sequence,
        effects: &mut Effects,
    ) {
        self.release(pending);
        effects.push(Effect::Deliver {
            ticket: pending.ticket,
            result,
            version,
        });
    }

    /// Fails an operation that was removed and has no result.
    pub(super) fn fail(&mut self, pending: &Pending, reason: Failure, effects: &mut Effects) {
        self.release(pending);
        effects.push(Effect::Failed {
            ticket: pending.ticket,
            reason,
        });
    }

    fn release(&mut self, pending: &Pending) {
        self.operations = self.operations.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(pending.operation.len());
    }

    /// The earliest deadline in the queue.
    pub(super) fn next_deadline(&self) -> Option<Monotonic> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Whether the queue is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault_model::FaultModel;
    use crate::identity::{ClusterId, PublicKey};

    fn config() -> ClientConfig {
        let model = FaultModel::new(0, 0, 1).unwrap();
        ClientConfig {
            operations_max: 3,
            bytes_max: 10,
            ..ClientConfig::new(ClusterId([0; 16]), model, PublicKey([0; 32]))
        }
    }

    fn pending(ticket: u64, bytes: usize, deadline: u64) -> Pending {
        Pending {
            ticket: Ticket(ticket),
            kind: OperationKind::Execute,
            operation: Bytes::from(vec![0; bytes]),
            deadline: Monotonic(deadline),
        }
    }

    #[test]
    fn the_budget_is_freed_by_the_answer_and_not_by_the_sending() {
        let (config, mut queue) = (config(), Queue::default());
        for ticket in 0..3 {
            assert_eq!(queue.push(&config, pending(ticket, 2, 9)), Ok(()));
        }
        let full = Err(Failure::Full { operations: 3 });
        assert_eq!(queue.push(&config, pending(3, 2, 9)), full);
        let first = queue.pop().unwrap();
        assert_eq!(first.ticket, Ticket(0));
        assert_eq!(queue.push(&config, pending(3, 2, 9)), full);
        queue.release(&first);
        assert_eq!(queue.push(&config, pending(3, 6, 9)), Ok(()));
        assert!(queue.push(&config, pending(4, 1, 9)).is_err());
    }

    #[test]
    fn expired_operations_leave_in_the_order_of_deadlines() {
        let (config, mut queue) = (config(), Queue::default());
        for (ticket, deadline) in [(0, 30), (1, 10), (2, 20)] {
            queue.push(&config, pending(ticket, 0, deadline)).unwrap();
        }
        assert_eq!(queue.next_deadline(), Some(Monotonic(10)));
        assert_eq!(queue.pop_expired(Monotonic(9)), None);
        assert_eq!(queue.pop_expired(Monotonic(20)).unwrap().ticket, Ticket(1));
        assert_eq!(queue.pop_expired(Monotonic(20)).unwrap().ticket, Ticket(2));
        assert_eq!(queue.pop_expired(Monotonic(20)), None);
        assert_eq!(queue.pop().unwrap().ticket, Ticket(0));
        assert!(queue.is_empty());
    }
}
