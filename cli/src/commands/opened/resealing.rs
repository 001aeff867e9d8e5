//! Sealing the volume's content anew.

use super::Opened;
use quorumfs_gateway::slices::ContentResealer;
use std::sync::Arc;

impl Opened {
    /// The job that seals content anew.
    pub(crate) fn content_resealer(&self) -> ContentResealer {
        let (volume, metadata) = (Arc::clone(&self.volume), Arc::clone(&self.metadata));
        ContentResealer::new(volume, metadata, self.blocks.clone())
    }
}
