//! The state of the disk that fails, if one does.

use super::{Disturbance, Plan};
use crate::disk::Crash;
use crate::random::Random;

impl Plan {
    /// The disk's state: lost in one way or another; or rolled back, if there may be one more liar,
    /// which its replica is until it has noticed.
    pub(super) fn failed_disk_state(&self, random: &mut Random) -> Crash {
        let all = [Crash::Damaged, Crash::Wiped, Crash::Bereft, Crash::Bereft];
        let drawn = *random.pick(&all).unwrap_or(&Crash::Wiped);
        let liars = self.liars.iter().flatten().count();
        let room = liars < usize::from(self.fault_model.right());
        // Drawn from a fork, so that all other seeds stay the same.
        match room && random.clone().fork(55).chance(1, 3) {
            true => Crash::RolledBack,
            false => drawn,
        }
    }

    /// Whether a node's disk is going to be rolled back.
    #[must_use]
    pub fn rolls_back(&self, node: usize) -> bool {
        let disk = Crash::RolledBack;
        let wanted = Disturbance::Crash { node, disk };
        self.faults.iter().any(|fault| fault.disturbance == wanted)
    }
}
