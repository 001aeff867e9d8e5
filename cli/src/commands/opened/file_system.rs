//! The file system over an open session.

use super::{Access, Configured};
use crate::commands::journal;
use crate::explain::vfs_failure;
use crate::failure::CommandResult;
use quorumfs_gateway::metadata::MetadataClient;
use quorumfs_gateway::vfs::{FileSystem, SliceStore, VfsOptions};
use std::sync::Arc;

/// The parts of a file system that is to be opened.
pub(super) struct FileSystemOver<'a> {
    pub(super) configured: &'a Configured,
    pub(super) metadata: Arc<MetadataClient>,
    pub(super) slices: Arc<dyn SliceStore>,
    pub(super) access: Access,
}

impl FileSystemOver<'_> {
    /// The file system, after its journal is replayed; and the journal's damage, if any.
    pub(super) async fn open(self) -> CommandResult<(FileSystem, Option<String>)> {
        let volume = self.configured.volume.clone();
        let options = self.configured.budget.plan().vfs();
        if !matches!(self.access, Access::Mount { .. }) {
            let files = FileSystem::new(volume, self.metadata, self.slices, options);
            return Ok((files, None));
        }
        let options = VfsOptions {
            tier: self.configured.configuration.mount.tier.into(),
            ..options
        };
        let Some(replay) = journal::open(self.configured)? else {
            let files = FileSystem::new(volume, self.metadata, self.slices, options);
            return Ok((files, None));
        };
        let opened =
            FileSystem::journalled(volume, self.metadata, self.slices, options, replay).await;
        let (files, replayed) = opened.map_err(|error| vfs_failure(&error))?;
        journal::log_replay(&replayed);
        Ok((files, replayed.damage))
    }
}
