//! What a task of the reconciler is.
//!
//! A task is work that is done again and again, in rounds, and that no caller waits for. It says
//! when its next round is due, does one round, and says how far it is. When rounds begin, that a
//! task has no two of them at a time, and that all of them end with the store is the scheduler's
//! matter.
//!
//! # A further task
//!
//! 1. A module of its own with a struct that has the [`Reconciler`](super::Reconciler) and what the
//!    task alone remembers, such as when its next round is due. State that an operator or another
//!    task needs goes into the reconciler.
//! 2. `next` answers at once and has no effect that a second question would notice: it may be asked
//!    again before the round. A task that works off a queue answers `Now` while the queue has
//!    something, otherwise `Notified`, and its `wakes` is notified *after* something was queued.
//! 3. `run` does one round. It may be dropped at any await, when the store is shut down or its
//!    process dies, so what it has not ordered yet must be found again by the next process. Every
//!    wait in it has a deadline, and an error that a later round may not meet is logged and not
//!    tried again for ever.
//! 4. A line in [`Reconciler::start`](super::Reconciler::start), at the end of the list: the order
//!    of the list is the order in which tasks begin, and the simulator's seeds follow from it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// When the next round of a task is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Due {
    /// At once.
    Now,
    /// At this instant. If the task is notified before, it is asked again.
    At(Instant),
    /// Not before the task is notified; then it is asked again.
    Notified,
    /// Never.
    Never,
}

/// When the next round is due of a task that has one every so often, counted from the end of the
/// round before.
#[derive(Debug)]
pub(super) struct Interval(Mutex<Option<Instant>>);

impl Interval {
    /// The first round is due at this instant; `None`: there are no rounds.
    pub(super) const fn from(first: Option<Instant>) -> Self {
        Self(Mutex::new(first))
    }

    pub(super) fn next(&self) -> Due {
        match *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(due) if due <= Instant::now() => Due::Now,
            Some(due) => Due::At(due),
            None => Due::Never,
        }
    }

    /// A round has ended: the next one is due after this pause.
    pub(super) fn pause(&self, pause: Duration) {
        let next = Instant::now().checked_add(pause);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = next;
    }
}

/// How far a task is, in units of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct TaskProgress {
    /// What is known to wait for it.
    pub(super) waiting: u64,
    /// What it has done since the start.
    pub(super) done: u64,
}

/// Work that is done in rounds.
#[async_trait::async_trait]
pub(super) trait Task: Send + Sync {
    /// Its name for operators.
    fn name(&self) -> &'static str;

    /// When its next round is due. Asked after each round, and after each notification between two.
    fn next(&self) -> Due;

    /// What is notified when the answer of [`next`](Self::next) may have changed; `None` if time
    /// alone changes it.
    fn wakes(&self) -> Option<&Notify> {
        None
    }

    /// Does one round.
    async fn run(&self);

    /// How far it is.
    fn progress(&self) -> TaskProgress;
}

/// A task as an operator sees it: plain numbers, in the shape in which they are written out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaskStatus {
    /// Its name.
    pub name: &'static str,
    /// Whether a round is under way.
    pub running: bool,
    /// Whether it has no further rounds: it was shut down, or a defect ended it.
    pub ended: bool,
    /// The rounds that have begun.
    pub rounds: u64,
    /// What is known to wait for it, in its own unit.
    pub waiting: u64,
    /// What it has done since the start, in its own unit.
    pub done: u64,
}

impl TaskStatus {
    /// Each number's name and value.
    #[must_use]
    pub fn entries(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("running", self.running.into()),
            ("ended", self.ended.into()),
            ("rounds", self.rounds),
            ("waiting", self.waiting),
            ("done", self.done),
        ]
    }
}
