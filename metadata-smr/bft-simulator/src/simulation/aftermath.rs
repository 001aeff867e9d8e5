//! What has to be seen once everything is well again, in regions.
//!
//! ```text
//!   everything has finished ──► calm: views hardly change ──► all ways are longer: reads are not
//!                                                             ordered for that
//! ```
//!
//! * *Calm.* A replica that should lead may be handed the view. No one goes on changing views.
//! * *Stretched.* All ways take some times as long, and stay so. Who waits for answers has to learn
//!   that; unordered queries then need no order as a rule, as before.

use super::{Happening, Simulation};
use crate::agenda::MILLISECOND;
use crate::plan::Plan;
use crate::workload::Workload;

/// How long each of the two lasts.
const LENGTH: u64 = 12_000 * MILLISECOND;
/// The pause between two operations of the client that is active.
const PAUSE: u64 = 300 * MILLISECOND;
/// Views that a node may enter in the calm: a handover or two, and what was under way before.
const VIEWS_MAX: u64 = 6;
/// The same where a replica lies: it may lose each view that it is handed, after two seconds, two,
/// and four.
const VIEWS_MAX_OF_LIARS: u64 = 12;
/// So many queries tell something.
const READS_MIN: u64 = 8;

/// How far it has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Aftermath {
    /// This seed has none.
    Never,
    /// It comes when everything else has finished.
    Ahead,
    /// How many views each node had entered when the calm began.
    Calm(Vec<Option<u64>>),
    /// How many queries the active client had answered, and ordered in the end, before.
    Stretched((u64, u64)),
    /// It is over.
    Over,
}

impl Aftermath {
    pub(super) fn of(plan: &Plan) -> Self {
        match plan.return_after {
            Some(_) => Self::Ahead,
            None => Self::Never,
        }
    }
}

impl<W: Workload> Simulation<'_, W> {
    /// Begins its next part, if there is one, and returns whether it did.
    pub(super) fn advance_aftermath(&mut self) -> bool {
        let before = std::mem::replace(&mut self.aftermath, Aftermath::Over);
        self.aftermath = match before {
            Aftermath::Never | Aftermath::Over => return false,
            Aftermath::Ahead => {
                self.note(|_| "the calm begins".into());
                self.agenda.after(PAUSE, Happening::Murmur);
                Aftermath::Calm(self.views_entered())
            }
            Aftermath::Calm(entered) => {
                self.judge_views(&entered);
                let (factor, by) = (self.plan.stretched_after, self.plan.faults.len());
                self.note(|_| format!("all ways take {factor} times as long"));
                if let Some(ways) = self.network.ways_mut() {
                    ways.stretch_all(factor, by);
                }
                Aftermath::Stretched(self.reads_of_active_client())
            }
            Aftermath::Stretched(before) => {
                self.judge_reads(before);
                return false;
            }
        };
        self.done = None;
        self.settled = self.agenda.now().plus(LENGTH);
        self.agenda.put(self.settled, Happening::Look);
        true
    }

    /// The active client submits an operation: only queries once all ways are longer.
    pub(super) fn act_in_aftermath(&mut self) {
        if self.agenda.now() < self.settled {
            match self.aftermath {
                Aftermath::Stretched(_) => self.submit_read(0),
                _ => self.submit_operation(0),
            }
        }
        if matches!(self.aftermath, Aftermath::Calm(_) | Aftermath::Stretched(_)) {
            self.agenda.after(PAUSE, Happening::Murmur);
        }
    }

    fn views_entered(&self) -> Vec<Option<u64>> {
        let statuses = self.nodes.iter().map(|node| node.status());
        let entered = statuses.map(|it| it.map(|status| status.counters.views_entered));
        entered.collect()
    }

    fn judge_views(&mut self, before: &[Option<u64>]) {
        let most = match self.nodes.iter().all(|node| node.honest()) {
            true => VIEWS_MAX,
            false => VIEWS_MAX_OF_LIARS,
        };
        for (node, (before, after)) in before.iter().zip(self.views_entered()).enumerate() {
            if let (Some(before), Some(after)) = (before, after)
                && after.saturating_sub(*before) > most
            {
                let number = after - before;
                let what = format!("node {node} entered {number} views, though nothing was wrong");
                self.judge.violation(what);
            }
        }
    }

    fn reads_of_active_client(&self) -> (u64, u64) {
        let client = self.honest_clients.first();
        client.map_or((0, 0), |client| client.reads())
    }

    fn judge_reads(&mut self, before: (u64, u64)) {
        let after = self.reads_of_active_client();
        let unordered = after.0.saturating_sub(before.0);
        let ordered = after.1.saturating_sub(before.1);
        self.counters.add("reads_stretched", unordered + ordered);
        if unordered + ordered >= READS_MIN && ordered > unordered {
            let all = unordered + ordered;
            let what = format!("{ordered} of {all} queries were ordered, though nothing was wrong");
            self.judge.violation(what);
        }
    }
}
