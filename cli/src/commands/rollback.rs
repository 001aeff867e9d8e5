//! `volume accept-rollback`: accepts servers that went back in time, from here on.
//!
//! Operations that they acknowledged after the restored copy are lost; this command only makes this
//! state directory go on with what there is. It removes everything stored here about the lost
//! period, since the servers will assign its numbers anew: the mounted session, the membership, the
//! disk cache. The journal of a mount has bytes that exist nowhere else, of files that are
//! identified by such numbers. It is set aside, since only a person can tell what they belong to
//! now. If the servers did not go back, nothing is changed.

use super::local_lock;
use super::memory;
use super::opened::Configured;
use super::shown::{Shown, ShownBefore};
use crate::arguments::{AcceptRollbackArguments, General};
use crate::exit::Exit;
use crate::explain::vfs_failure;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use quorumfs_bft::identity::Sequence;
use quorumfs_gateway::metadata::{MetadataClient, MetadataError, Ordered};
use quorumfs_gateway::vfs::VfsError;
use serde::Serialize;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Serialize)]
struct Accepted {
    /// The operation that this state directory had been shown.
    shown: u64,
    /// The operation that the servers are at.
    found: u64,
    /// Where data that was written and not committed is now, if there was any.
    #[serde(skip_serializing_if = "Option::is_none")]
    journal: Option<PathBuf>,
}

impl Accepted {
    fn text(&self) -> String {
        let mut text = format!(
            "accepted: the servers are at operation {}, this machine had been shown {}",
            self.found, self.shown
        );
        if let Some(journal) = &self.journal {
            let journal = journal.display();
            text.push_str(&format!(
                "\ndata that a mount had written and not committed is set aside in {journal}"
            ));
        }
        text
    }
}

/// Accepts the current state of the servers.
pub(crate) async fn accept(
    general: &General,
    arguments: &AcceptRollbackArguments,
    output: Output,
) -> CommandResult {
    let configured = Configured::read(general)?;
    let _lock = configured.state().lock("mount")?;
    let before: &ShownBefore = configured.shown_before();
    let known = before.recall();
    if !arguments.yes {
        let message = format!(
            "this state directory was shown operation {} of the volume; accepting servers that are \
             at an older one loses everything written since",
            known.sequence
        );
        return Err(Failure::new(Exit::Usage, message)
            .hint("if no newer copy of the replicas exists, run it again with --yes"));
    }
    let client = configured.connect_at_any_state().await?;
    let found = client.shown();
    let session = Arc::new(Ordered::new(client));
    let metadata = MetadataClient::new(session, configured.volume().own_credentials());
    let went_back = went_back(&metadata, found, known).await;
    metadata.close().await;
    if !went_back? {
        let message = "the servers are not behind the state that this directory was shown";
        return Err(Failure::new(Exit::Usage, message)
            .hint("there is nothing to accept, and nothing was changed"));
    }
    let journal = put_aside(
        &configured
            .state()
            .join(&configured.configuration().journal.path),
    )?;
    for file in [memory::FILE, local_lock::FILE] {
        remove(&configured.state().join(file), |path| fs::remove_file(path))?;
    }
    let cache = configured
        .state()
        .join(&configured.configuration().cache.path)
        .join(configured.volume().id().to_string());
    remove(&cache, |path| fs::remove_dir_all(path))?;
    before.accept(Shown {
        sequence: found,
        ..Shown::default()
    })?;
    let accepted = Accepted {
        shown: known.sequence.0,
        found: found.0,
        journal,
    };
    output.record("rollback", &accepted, Accepted::text)?;
    Ok(Exit::Success)
}

/// Whether the servers are behind: in their operations, the key epoch, or the allocation of ids.
async fn went_back(
    metadata: &MetadataClient,
    found: Sequence,
    known: Shown,
) -> CommandResult<bool> {
    if found <= known.sequence {
        return Ok(true);
    }
    let (epoch, _, _) = metadata
        .newest_epoch()
        .await
        .map_err(|error| vfs_failure(&error))?;
    if epoch < known.epoch {
        return Ok(true);
    }
    let Some(allocation) = known.allocation else {
        return Ok(false);
    };
    metadata.allocated_before(allocation);
    match metadata.allocate().await {
        Ok(_) => Ok(false),
        Err(VfsError::Metadata(error)) if matches!(*error, MetadataError::WentBack { .. }) => {
            Ok(true)
        }
        Err(error) => Err(vfs_failure(&error)),
    }
}

fn remove(path: &Path, by: impl FnOnce(&Path) -> std::io::Result<()>) -> CommandResult<()> {
    match by(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Failure::file("remove", path, &error))
        }
        _ => Ok(()),
    }
}

/// Renames a journal that holds data to an unused name.
fn put_aside(journal: &Path) -> CommandResult<Option<PathBuf>> {
    if !fs::read_dir(journal).is_ok_and(|mut files| files.next().is_some()) {
        return Ok(None);
    }
    let mut name = journal.as_os_str().to_os_string();
    name.push(".before-rollback");
    let free = (1..)
        .map(|number: u32| {
            let mut name = name.clone();
            name.push(format!("-{number}"));
            PathBuf::from(name)
        })
        .find(|path| path.symlink_metadata().is_err());
    let Some(aside) = free else {
        return Ok(None);
    };
    fs::rename(journal, &aside).map_err(|error| Failure::file("rename", journal, &error))?;
    Ok(Some(aside))
}
