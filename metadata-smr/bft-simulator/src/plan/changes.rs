//! Changes of the membership: who comes, who goes, in which order.

use crate::random::Random;
use quorumfs_bft::fault_model::FaultModel;

/// A change of the membership; replicas are named by their machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A spare machine takes a voter's place.
    Swap {
        /// Who goes.
        out: usize,
        /// Who comes.
        into: usize,
    },
    /// A spare machine votes as well.
    Grow {
        /// Which.
        into: usize,
    },
    /// A voter goes.
    Shrink {
        /// Which.
        out: usize,
    },
}

/// Swaps, and now and then one more for a while: a spare machine for each that comes.
pub(super) fn draw(model: &FaultModel, random: &mut Random) -> Vec<Change> {
    let replicas = usize::from(model.replicas());
    let mut voters: Vec<usize> = (0..replicas).collect();
    let mut changes = Vec::new();
    for into in replicas..replicas + random.between(1, 2) as usize {
        let place = random.index(voters.len());
        let Some(out) = voters.get(place).copied() else {
            continue;
        };
        let roomy = FaultModel::new(model.up(), model.right(), model.replicas() + 1).is_ok();
        if roomy && random.chance(1, 3) {
            changes.push(Change::Grow { into });
            changes.push(Change::Shrink { out });
        } else {
            changes.push(Change::Swap { out, into });
        }
        if let Some(voter) = voters.get_mut(place) {
            *voter = into;
        }
    }
    changes
}

/// How many machines the changes bring along.
pub(super) fn spares(changes: &[Change]) -> usize {
    let comes = |change: &&Change| !matches!(change, Change::Shrink { .. });
    changes.iter().filter(comes).count()
}
