//! A Byzantine replica, to measure its effect on the others.
//!
//! It wraps a correct core and drops or delays its input and output. It exists in the bench alone.

use quorumfs_bft::identity::{Monotonic, Nanos, Now, Sequence, SessionId};
use quorumfs_bft::metrics::ReplicaStatus;
use quorumfs_bft::step::{Effect, Effects, Event, Timer};
use quorumfs_bft::wire::message::{Kind, Message};
use quorumfs_bft_runtime::event_loop::Core;
use std::collections::VecDeque;

/// Events between checks of whether it leads.
const LOOK: u32 = 256;

/// Its misbehaviour.
#[derive(Clone, Copy, Debug)]
pub(super) enum Habit {
    /// It delays its proposals by so much.
    Slow(Nanos),
    /// While it leads it ignores the requests of this session.
    Unfair(SessionId),
}

/// A core that misbehaves.
pub(super) struct ByzantineCore<C> {
    core: C,
    habit: Habit,
    delayed: VecDeque<(Monotonic, Effect)>,
    leads: bool,
    events: u32,
}

impl<C: Core> ByzantineCore<C> {
    pub(super) fn new(core: C, habit: Habit) -> Self {
        Self {
            core,
            habit,
            delayed: VecDeque::new(),
            leads: true,
            events: 0,
        }
    }

    /// Whether the core must not see this event.
    fn ignores(&mut self, event: &Event) -> bool {
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

    /// Sends delayed effects that are due.
    fn release_due(&mut self, now: Now, effects: &mut Effects) {
        while let Some((at, effect)) = self.delayed.pop_front() {
            if at > now.monotonic {
                let after = Nanos(at.0.saturating_sub(now.monotonic.0));
                self.delayed.push_front((at, effect));
                // The service of the bench needs no ticks, so this timer is free.
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

impl<C: Core> Core for ByzantineCore<C> {
    fn step(&mut self, now: Now, event: Event, effects: &mut Effects) {
        let Habit::Slow(delay) = self.habit else {
            if !self.ignores(&event) {
                self.core.step(now, event, effects);
            }
            return;
        };
        if matches!(event, Event::Timer { timer: Timer::Tick }) {
            self.release_due(now, effects);
            return;
        }
        let mut emitted = Effects::default();
        self.core.step(now, event, &mut emitted);
        for effect in emitted.drain() {
            if is_proposal(&effect) {
                self.delayed.push_back((now.monotonic.plus(delay), effect));
            } else if !matches!(effect, Effect::CancelTimer { timer: Timer::Tick }) {
                effects.push(effect);
            }
        }
        self.release_due(now, effects);
    }

    fn status(&self) -> ReplicaStatus {
        self.core.status()
    }

    fn committed(&self) -> Sequence {
        self.core.committed()
    }
}
