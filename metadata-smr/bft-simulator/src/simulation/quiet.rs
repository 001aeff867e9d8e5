//! A period of almost no activity.
//!
//! A session ends when it has been idle for long on the clock of leases. That clock advances by at
//! most a second per batch, so time cannot be skipped: one client continues to send requests, once
//! a second, while all others (and the sessions of crashed clients) become idle. In such a run
//! sessions are idle after a minute and a half, not half an hour, and the quiet comes after
//! everything else has finished.

use super::{Happening, Simulation};
use crate::agenda::{MILLISECOND, SECOND};
use crate::plan::Plan;
use crate::workload::Workload;
use quorumfs_bft::wire::limits::SESSION_TOUCHES;

/// The active client's pause between two operations: more than the second by which the clock of
/// leases advances at most.
const PAUSE: u64 = 1_010 * MILLISECOND;

/// The state of the quiet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quiet {
    /// This seed has none.
    Never,
    /// It comes when everything else has finished.
    Ahead,
    /// It has begun, and the run ends with it.
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
    /// Begins the quiet if it is due, and returns whether it did.
    pub(super) fn begin_quiet(&mut self) -> bool {
        if self.quiet != Quiet::Ahead {
            return false;
        }
        self.note(|_| "the quiet begins".into());
        self.quiet = Quiet::Here;
        self.done = None;
        // A margin, because a session's activity is noted only at intervals.
        let idle = self.plan.session_idle.0;
        let length = (idle + 2 * idle / SESSION_TOUCHES) / SECOND * PAUSE;
        self.settled = self.agenda.now().plus(length);
        self.agenda.after(PAUSE, Happening::Murmur);
        let look = self.settled.plus(2 * PAUSE);
        self.agenda.put(look, Happening::Look);
        true
    }

    /// The active client submits an operation.
    pub(super) fn send_quiet_request(&mut self) {
        if self.quiet != Quiet::Here {
            self.act_in_aftermath();
        } else if self.agenda.now() < self.settled {
            self.submit_operation(0);
            self.agenda.after(PAUSE, Happening::Murmur);
        }
    }
}
