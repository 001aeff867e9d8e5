//! Which process deletes what nothing needs.

use super::{Access, Configured};
use crate::clouds::NamedCloud;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use quorumfs_gateway::blocks::Collection;
use quorumfs_metadata::fleet::CloudState;
use quorumfs_metadata::identity::CloudIndex;

impl Access {
    /// Whether the process lives for long, and does the volume's jobs.
    pub(super) const fn works_in_the_background(self) -> bool {
        matches!(
            self,
            Self::Mount { .. } | Self::Reconciler { serves: Some(_) }
        )
    }
}

impl Configured {
    /// Refuses if this machine may not delete on every cloud that may hold something.
    pub(in crate::commands) fn may_collect(&self) -> CommandResult<()> {
        let fleet = self.volume.fleet();
        let is_used = |cloud: &&NamedCloud| {
            let state = fleet.state(CloudIndex(cloud.index));
            matches!(state, CloudState::Active | CloudState::Draining)
        };
        let mut used = self.clouds.iter().filter(is_used);
        match used.find(|cloud| !cloud.may_delete()) {
            None => Ok(()),
            Some(cloud) => {
                let message = format!(
                    "cloud `{}` has no credentials that may list and delete",
                    cloud.name
                );
                Err(Failure::new(Exit::Usage, message).hint(
                    "set `collector_credentials` of each cloud in quorumfs.toml, on a machine \
                     that does not mount; docs/CLOUDS.md says what they may do",
                ))
            }
        }
    }

    /// How this process collects in the background: a service does, and a mount whose clouds all
    /// let it delete.
    pub(super) fn collection(&self, access: Access) -> Option<Collection> {
        match access {
            Access::Mount { .. } if self.may_collect().is_ok() => Some(Collection::default()),
            Access::Reconciler {
                serves: Some(grace),
            } => Some(Collection::after(grace)),
            _ => None,
        }
    }
}
