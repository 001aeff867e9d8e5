//! What backups of the metadata need of an opened volume.

use super::{Configured, Opened};
use crate::explain::recovery_failure;
use crate::failure::CommandResult;
use quorumfs_gateway::backup::{BackupConfig, BackupMaker};

/// Where the copy of the servers' rows lies, in the state directory.
const DIRECTORY: &str = "backup";

impl Opened {
    /// Refuses if the volume was recovered into a later incarnation than the servers of this
    /// session are of.
    pub(in crate::commands) async fn is_newest(&self) -> CommandResult<()> {
        let newest = self
            .blocks
            .backups()
            .superseded(self.volume.lineage())
            .await;
        newest.map_err(|error| recovery_failure(&error.into()))
    }
}

impl Configured {
    /// A maker of backups in the session of `opened`.
    pub(in crate::commands) fn backup_maker(&self, opened: &Opened) -> CommandResult<BackupMaker> {
        let config = BackupConfig {
            volume: self.volume.clone(),
            genesis: self.genesis.clone(),
            key: self.key.clone(),
            store: opened.blocks.backups(),
            directory: self.state.join(DIRECTORY),
            servers: self.client.clone(),
        };
        BackupMaker::open(config, opened.metadata.clone(), opened.client.clone())
            .map_err(|error| recovery_failure(&error))
    }
}
