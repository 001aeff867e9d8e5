//! A time in which next to nothing happens.
//!
//! A session ends when it has been idle for long on the clock that leases run on. That clock
//! advances by a second a batch at most, so time cannot be skipped: one client goes on asking, once
//! a second, while all others (and the sessions that crashed clients left behind) fall asleep. In
//! such a run sessions are idle after a minute and a half, not half an hour, and the quiet comes
//! after everything else has been judged done.

use super::{Happening, Simulation};
use crate::agenda::{MILLISECOND, SECOND};
use crate::plan::Plan;
use crate::workload::Workload;
use quorumfs_bft::wire::limits::SESSION_TOUCHES;

/// How long the one client waits between two operations: more than the second by which the clock
/// of leases advances at most.
const PAUSE: u64 = 1_010 * MILLISECOND;

/// Whether the quiet is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quiet {
    /// This seed has none.
    Never,
    /// It comes when everything else is done.
    Ahead,
    /// It is here, and the run ends with it.
    Here,
}

impl Quiet {
    pub(super) const fn of(plan: &Plan) -> Self {
        match plan.quiet {
            true => Self::Ahead,
            false => Self::Never,
        }
    }
}

impl<W: Workload> Simulation<'_, W> {
    /// Begins the quiet if it is to come, and says whether it did.
    pub(super) fn fall_quiet(&mut self) -> bool {
        if self.quiet != Quiet::Ahead {
            return false;
        }
        self.note(|_| "the quiet begins".into());
        self.quiet = Quiet::Here;
        self.done = None;
        // A margin, for a session is noted as active only so often.
        let idle = self.plan.session_idle.0;
        let length = (idle + 2 * idle / SESSION_TOUCHES) / SECOND * PAUSE;
        self.settled = self.agenda.now().plus(length);
        self.agenda.after(PAUSE, Happening::Murmur);
        let look = self.settled.plus(2 * PAUSE);
        self.agenda.put(look, Happening::Look);
        true
    }

    /// The one client that is awake asks for something.
    pub(super) fn murmur(&mut self) {
        if self.agenda.now() < self.settled {
            self.ask_something(0);
            self.agenda.after(PAUSE, Happening::Murmur);
        }
    }
}
