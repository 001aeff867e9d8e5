//! What a volume's costs depend on: its prices and its budget, from its configuration.

use super::{Configured, CostBasis, VolumeConfiguration};
use crate::clouds::{self, LOCKED, NamedCloud, VERSIONED};
use crate::configuration;
use crate::configuration::files::CONFIGURATION;
use crate::failure::CommandResult;
use crate::prices::PriceBook;
use quorumfs_gateway::volume::Volume;
use std::path::Path;

/// The prices and the budget of the clouds that the volume knows.
pub(super) fn basis(
    configuration: &VolumeConfiguration,
    base: &Path,
    clouds: &[NamedCloud],
    volume: &Volume,
) -> CommandResult<CostBasis> {
    CostBasis::of(configuration, configuration.prices(base)?, clouds, volume)
}

/// The same after the volume's clouds have changed: the configuration may describe new ones.
pub(in crate::commands) fn basis_now(base: &Path, volume: &Volume) -> CommandResult<CostBasis> {
    let configuration = configuration::read(&base.join(CONFIGURATION), "volume")?;
    let clouds = clouds::of_volume(&configuration, base, volume)?;
    basis(&configuration, base, &clouds, volume)
}

impl Configured {
    /// What the volume's costs depend on.
    pub(crate) fn costs(&self) -> &CostBasis {
        &self.costs
    }

    /// The same with another prices file.
    pub(in crate::commands) fn costs_with(&self, prices: &Path) -> CommandResult<CostBasis> {
        let book = PriceBook::open(Some(prices))?;
        CostBasis::of(&self.configuration, book, &self.clouds, &self.volume)
    }

    /// Whether the key is not the one in the state directory.
    pub(in crate::commands) fn is_guest(&self) -> bool {
        self.is_guest
    }

    /// What each cloud says of keeping what it was told to delete; nothing if it does not, or does
    /// not tell.
    pub(in crate::commands) async fn ask_keeping(&self) -> Vec<Option<&'static str>> {
        let mut asking = tokio::task::JoinSet::new();
        for (number, cloud) in self.clouds.iter().cloned().enumerate() {
            asking.spawn(async move { (number, keeping(&cloud).await) });
        }
        let mut kept = asking.join_all().await;
        kept.sort_by_key(|(number, _)| *number);
        kept.into_iter().map(|(_, kept)| kept).collect()
    }
}

/// What is known of a bucket that keeps what it was told to delete.
async fn keeping(cloud: &NamedCloud) -> Option<&'static str> {
    let remote = cloud.attach_remote(cloud.usual()).await.ok()??;
    let container = remote.container(clouds::soon()).await.ok()?;
    match (container.locked, container.versioned) {
        (Some(true), _) => Some(LOCKED),
        (_, Some(true)) => Some(VERSIONED),
        _ => None,
    }
}
