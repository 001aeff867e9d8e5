//! The options of a run.

use crate::profile::Profile;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::sabotage::Sabotage;

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The seed, which decides everything.
    pub seed: u64,
    /// The kinds of faults.
    pub profile: Profile,
    /// A defect to plant in every honest replica, to check that it is found.
    pub sabotage: Option<Sabotage>,
    /// The fault model, if it is not to be drawn from the seed.
    pub fault_model: Option<FaultModel>,
}

impl Options {
    /// Only a seed and a profile.
    #[must_use]
    pub const fn new(seed: u64, profile: Profile) -> Self {
        Self {
            seed,
            profile,
            sabotage: None,
            fault_model: None,
        }
    }
}
