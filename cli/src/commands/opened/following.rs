//! How an opened volume follows changes of its clouds.
//!
//! Clouds are added and replaced while the volume is in use. A mount and a reconciler ask for
//! changes every few seconds, read the configuration again for the description of new clouds, and
//! go on with the clouds as they are then: nothing is mounted again. A cloud that this machine has
//! no credentials for stands among the others as one that refuses everything, and the status says
//! why.

use super::{Configured, Opened, known_clouds, known_people};
use crate::clouds::{self, NamedCloud, Role};
use crate::configuration::files::CONFIGURATION;
use crate::configuration::{self, VolumeConfiguration};
use crate::directory::StateDirectory;
use crate::explain::{block_failure, volume_failure};
use crate::failure::CommandResult;
use quorumfs_gateway::blocks::Cloud;
use quorumfs_gateway::volume::Volume;
use quorumfs_metadata::identity::CloudIndex;
use std::collections::BTreeSet;
use std::sync::Mutex;

/// How clouds are attached, now and later.
#[derive(Debug)]
pub(super) struct Attachment {
    state: StateDirectory,
    role: Role,
    deletes: bool,
    is_guest: bool,
    attached: Mutex<BTreeSet<CloudIndex>>,
}

impl Attachment {
    pub(super) fn new(configured: &Configured, role: Role, deletes: bool) -> Self {
        Self {
            state: configured.state.clone(),
            role,
            deletes,
            is_guest: configured.is_guest,
            attached: Mutex::default(),
        }
    }

    /// Stores the changes that the volume knows for the next process.
    pub(super) fn remember(&self, volume: &Volume) {
        if !self.is_guest {
            known_clouds::keep(&self.state, volume);
        }
    }

    /// Stores the credentials of clouds that this principal was given.
    pub(super) fn keep_given(&self, volume: &Volume) {
        if self.is_guest {
            return;
        }
        if let Err(failure) = known_people::keep_given(&self.state, volume) {
            tracing::warn!(%failure, "credentials that were given could not be stored");
        }
    }

    /// The same of the volume's people.
    pub(super) fn remember_people(&self, volume: &Volume) {
        if !self.is_guest {
            known_people::keep_learned(&self.state, volume);
        }
    }

    /// All clouds that the volume knows, except some, as stores.
    pub(super) async fn attach(
        &self,
        volume: &Volume,
        except: &BTreeSet<CloudIndex>,
    ) -> CommandResult<Vec<Cloud>> {
        let path = self.state.join(CONFIGURATION);
        let configuration: VolumeConfiguration = configuration::read(&path, "volume")?;
        let named = clouds::of_volume(&configuration, self.state.path(), volume)?;
        let mut attached = Vec::new();
        for (known, named) in volume.known_clouds().into_iter().zip(&named) {
            if except.contains(&known.cloud.index) {
                continue;
            }
            attached.push(Cloud {
                index: known.cloud.index,
                store: match self.deletes {
                    true => named.store_to_collect().await,
                    false => named.store(self.role).await,
                },
                secret: known.secret,
                read_price: named.read_price,
            });
        }
        self.note(&attached);
        Ok(attached)
    }

    fn note(&self, clouds: &[Cloud]) {
        let attached = self.attached.lock();
        let mut attached = attached.unwrap_or_else(std::sync::PoisonError::into_inner);
        attached.extend(clouds.iter().map(|cloud| cloud.index));
    }

    fn attached(&self) -> BTreeSet<CloudIndex> {
        let attached = self.attached.lock();
        attached
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone()
    }
}

impl Opened {
    /// The clouds as this machine's configuration describes them now.
    pub(crate) fn named_clouds(&self) -> CommandResult<Vec<NamedCloud>> {
        let state = &self.attachment.state;
        let configuration = configuration::read(&state.join(CONFIGURATION), "volume")?;
        clouds::of_volume(&configuration, state.path(), &self.volume)
    }

    /// Learns of changes of the volume's people.
    pub(crate) async fn follow_people(&self) -> CommandResult<()> {
        let learned = self.volume.learn_people(&self.metadata).await;
        learned.map_err(|error| volume_failure(&error))?;
        self.metadata.act_as(self.volume.own_credentials());
        self.attachment.remember_people(&self.volume);
        self.attachment.keep_given(&self.volume);
        Ok(())
    }

    /// Learns of changes of the volume's clouds, and goes on with the clouds as they are now.
    pub(crate) async fn follow_clouds(&self) -> CommandResult<()> {
        let learned = self.volume.learn_clouds(&self.metadata).await;
        if !learned.map_err(|error| volume_failure(&error))? {
            return Ok(());
        }
        self.use_clouds().await
    }

    /// Goes on with the clouds that the volume knows now.
    pub(crate) async fn use_clouds(&self) -> CommandResult<()> {
        self.attachment.remember(&self.volume);
        let attached = self.attachment.attached();
        let new = self.attachment.attach(&self.volume, &attached).await?;
        let learned = self.blocks.learn_clouds(&new, self.volume.fleet());
        if learned.map_err(|error| block_failure(&error))? {
            tracing::info!(fleet = ?self.volume.fleet(), "the volume's clouds have changed");
        }
        Ok(())
    }
}
