//! Faults for runs that had too few.
//!
//! A plan draws more than enough, but some come to nothing: a crash of what is down already, a
//! partition that nobody talks across. When the last one is over, what is missing is made up for
//! with crashes, which always have an effect on a replica that runs.

use super::{Happening, Simulation};
use crate::agenda::MILLISECOND;
use crate::disk::Crash;
use crate::plan::{FAULTS_MIN, Fault, Liar, Trouble};
use crate::profile::Profile;
use crate::workload::Workload;

impl<W: Workload> Simulation<'_, W> {
    /// The faults that had an effect so far. Who lies does so all the time.
    pub(super) fn faults(&self) -> usize {
        self.effective.len() + self.plan.liars.iter().flatten().count()
    }

    /// Adds a fault if the last one is over and there were too few.
    pub(super) fn make_up(&mut self) {
        let now = self.agenda.now();
        let few = self.faults() < FAULTS_MIN && self.options.profile != Profile::Calm;
        if now < self.plan.healed || !few {
            return;
        }
        let node = self.disk_random.index(self.nodes.len());
        let liar = self
            .plan
            .nodes
            .get(node)
            .and_then(|r| self.plan.liars.get(*r));
        let disk = match liar {
            Some(Some(Liar::Forgetful)) => Crash::Forgetful,
            _ => Crash::Honest,
        };
        let from = now.plus(self.disk_random.between(20, 100) * MILLISECOND);
        let until = from.plus(self.disk_random.between(60, 600) * MILLISECOND);
        let index = self.plan.faults.len();
        self.plan.faults.push(Fault {
            from,
            until,
            trouble: Trouble::Crash { node, disk },
        });
        (self.plan.healed, self.settled) = (until, until);
        self.agenda.put(from, Happening::Begin(index));
        self.agenda.put(until, Happening::End(index));
    }
}
