//! A replica that does not behave, for measurements of what that does to the others.
//!
//! Around a correct core: what goes in and what comes out is held back. It exists in the bench
//! alone.

use quorumfs_bft::identity::{Monotonic, Nanos, Now, Sequence, SessionId};
use quorumfs_bft::metrics::ReplicaStatus;
use quorumfs_bft::step::{Effect, Effects, Event, Timer};
use quorumfs_bft::wire::message::{Kind, Message};
use quorumfs_bft_runtime::event_loop::Core;
use std::collections::VecDeque;

/// Events after which it looks again whether it leads.
const LOOK: u32 = 256;

/// What it does wrong.
#[derive(Clone, Copy, Debug)]
pub(super) enum Habit {
    /// Whatever it proposes leaves so much later.
    Slow(Nanos),
    /// While it leads it does not hear what this session asks for.
    Unfair(SessionId),
}

/// A core with a bad habit.
pub(super) struct Wicked<C> {
    core: C,
    habit: Habit,
    held: VecDeque<(Monotonic, Effect)>,
    leads: bool,
    events: u32,
}

impl<C: Core> Wicked<C> {
    pub(super) fn new(core: C, habit: Habit) -> Self {
        Self {
            core,
            habit,
            held: VecDeque::new(),
            leads: true,
            events: 0,
        }
    }

    /// Whether this is kept from the core.
    fn overhears(&mut self, event: &Event) -> bool {
        let Habit::Unfair(victim) = self.habit else {
            return false;
        };
        self.events += 1;
        if self.events.is_multiple_of(LOOK) {
            let status = self.core.status();
            self.leads = status.leader == status.replica;
        }
        let Event::Received { message, .. } = event else {
            return false;
        };
        let request = match message.message() {
            Message::Request(request) => request,
            _ => return false,
        };
        self.leads && request.session == victim
    }

    /// Lets go what has been held for long enough.
    fn let_go(&mut self, now: Now, effects: &mut Effects) {
        while let Some((at, effect)) = self.held.pop_front() {
            if at > now.monotonic {
                let after = Nanos(at.0.saturating_sub(now.monotonic.0));
                self.held.push_front((at, effect));
                // The service of the bench asks for no ticks, so that this timer is free.
                let timer = Timer::Tick;
                effects.push(Effect::SetTimer { timer, after });
                return;
            }
            effects.push(effect);
        }
    }
}

fn is_proposal(effect: &Effect) -> bool {
    match effect {
        Effect::Send { frame, .. } => frame.get(..8).and_then(Kind::of_tag) == Some(Kind::Proposal),
        _ => false,
    }
}

impl<C: Core> Core for Wicked<C> {
    fn step(&mut self, now: Now, event: Event, effects: &mut Effects) {
        let Habit::Slow(delay) = self.habit else {
            if !self.overhears(&event) {
                self.core.step(now, event, effects);
            }
            return;
        };
        if matches!(event, Event::Timer { timer: Timer::Tick }) {
            self.let_go(now, effects);
            return;
        }
        let mut emitted = Effects::default();
        self.core.step(now, event, &mut emitted);
        for effect in emitted.drain() {
            if is_proposal(&effect) {
                self.held.push_back((now.monotonic.plus(delay), effect));
            } else if !matches!(effect, Effect::CancelTimer { timer: Timer::Tick }) {
                effects.push(effect);
            }
        }
        self.let_go(now, effects);
    }

    fn status(&self) -> ReplicaStatus {
        self.core.status()
    }

    fn committed(&self) -> Sequence {
        self.core.committed()
    }
}
