//! Changes of the membership: which replicas join and leave, in which order.

use crate::random::Random;
use quorumfs_bft::fault_model::FaultModel;

/// A change of the membership; replicas are named by their machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A spare machine takes a voter's place.
    Swap {
        /// The replica that leaves.
        out: usize,
        /// The machine that joins.
        into: usize,
    },
    /// A spare machine votes as well.
    Grow {
        /// The machine.
        into: usize,
    },
    /// A voter is the first to lead.
    Lead {
        /// The machine.
        machine: usize,
    },
    /// A voter leaves.
    Shrink {
        /// The machine.
        out: usize,
    },
}

/// Draws swaps, and sometimes one more voter for a while: each joining machine is a spare.
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

/// Draws voters that are put first, one after the other: liars and those that are cut off too.
pub(super) fn draw_leaders(model: &FaultModel, random: &mut Random) -> Vec<Change> {
    let replicas = usize::from(model.replicas());
    let mut before = 0;
    let mut changes = Vec::new();
    for _ in 0..random.below(4) {
        let machine = random.index(replicas);
        if machine != before {
            changes.push(Change::Lead { machine });
            before = machine;
        }
    }
    changes
}

/// How many spare machines the changes need.
pub(super) fn spares(changes: &[Change]) -> usize {
    let joining = |change: &&Change| matches!(change, Change::Swap { .. } | Change::Grow { .. });
    changes.iter().filter(joining).count()
}
