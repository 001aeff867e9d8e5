//! What can be chosen about a run.

use crate::profile::Profile;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::sabotage::Sabotage;

/// What can be chosen about a run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Decides everything.
    pub seed: u64,
    /// What may go wrong.
    pub profile: Profile,
    /// A defect to build into every honest replica, to see it caught.
    pub sabotage: Option<Sabotage>,
    /// The fault model, if it is not to be drawn from the seed.
    pub fault_model: Option<FaultModel>,
}

impl Options {
    /// Nothing but the seed and the profile.
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
