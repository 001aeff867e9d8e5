//! What becomes of the disk that fails, if one does.

use super::{Plan, Trouble};
use crate::disk::Crash;
use crate::random::Random;

impl Plan {
    /// Lost in one way or another; or put back to what it was a while ago, if there is room for one
    /// more liar, which its replica is until it has noticed.
    pub(super) fn ailment(&self, random: &mut Random) -> Crash {
        let all = [Crash::Damaged, Crash::Wiped, Crash::Bereft, Crash::Bereft];
        let drawn = *random.pick(&all).unwrap_or(&Crash::Wiped);
        let liars = self.liars.iter().flatten().count();
        let room = liars < usize::from(self.fault_model.right());
        // Drawn apart, so that all other seeds go on being what they were.
        match room && random.clone().fork(55).chance(1, 3) {
            true => Crash::RolledBack,
            false => drawn,
        }
    }

    /// Whether a node's disk is going to be put back.
    #[must_use]
    pub fn rolls_back(&self, node: usize) -> bool {
        let disk = Crash::RolledBack;
        let wanted = Trouble::Crash { node, disk };
        self.faults.iter().any(|fault| fault.trouble == wanted)
    }
}
