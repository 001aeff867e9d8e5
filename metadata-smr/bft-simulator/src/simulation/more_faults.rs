//! Additional faults for runs that had too few.
//!
//! A plan draws more than enough faults, but some have no effect: a crash of a stopped node, a
//! partition without traffic across it. When the last one is over, the missing ones are replaced by
//! crashes, which always have an effect on a running replica.

use super::{Happening, Simulation};
use crate::agenda::MILLISECOND;
use crate::disk::Crash;
use crate::plan::{Disturbance, FAULTS_MIN, Fault, Liar};
use crate::profile::Profile;
use crate::workload::Workload;

impl<W: Workload> Simulation<'_, W> {
    /// The faults that had an effect so far. Liars always count.
    pub(super) fn faults(&self) -> usize {
        self.effective.len() + self.plan.liars.iter().flatten().count()
    }

    /// Adds a fault if the last one is over and there were too few.
    pub(super) fn add_missing_fault(&mut self) {
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
            disturbance: Disturbance::Crash { node, disk },
        });
        (self.plan.healed, self.settled) = (until, until);
        self.agenda.put(from, Happening::Begin(index));
        self.agenda.put(until, Happening::End(index));
    }
}
