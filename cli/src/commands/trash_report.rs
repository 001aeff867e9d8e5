//! The size of the trash, for `status` and `quota`.

use super::files::kept_for;
use quorumfs_gateway::metadata::MetadataClient;
use quorumfs_gateway::vfs::VfsError;
use serde::Serialize;

/// How much was removed and can be restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct TrashReport {
    files: u64,
    bytes: u64,
    /// For how long it is kept; 0: there is no trash.
    kept_seconds: u64,
}

impl TrashReport {
    /// Asks over an open session; nothing if there is no answer.
    pub(crate) async fn ask(metadata: &MetadataClient) -> Option<Self> {
        let asked = Self::of(metadata).await;
        asked
            .inspect_err(|error| tracing::debug!(%error, "the size of the trash is not known"))
            .ok()
    }

    /// That of the volume.
    pub(crate) async fn of(metadata: &MetadataClient) -> Result<Self, VfsError> {
        let (kept_seconds, held) = metadata.trash_size().await?;
        Ok(Self {
            files: held.inodes,
            bytes: held.bytes,
            kept_seconds,
        })
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let kept = kept_for(self.kept_seconds);
        match self.files {
            0 => format!("The trash is empty; what is removed is {kept}."),
            1 => format!(
                "Trash: 1 file, {} bytes; what is removed is {kept}.",
                self.bytes
            ),
            files => format!(
                "Trash: {files} files, {} bytes; what is removed is {kept}.",
                self.bytes
            ),
        }
    }
}
