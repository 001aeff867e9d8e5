//! `trash empty`: deletes for good.
//!
//! What was removed first goes first, so that a directory goes after what was in it. Only an owner
//! and the superuser delete for good; what others own is passed over.

use super::super::walk::shown;
use super::super::{CommandProgress, closing, counted, refused};
use super::path::Paths;
use crate::arguments::{General, PathOrId, TrashEmptyArguments};
use crate::commands::opened::Opened;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use quorumfs_gateway::vfs::{FileSystem, InTrash, InodeId, PURGED_AT_ONCE, VfsError};
use rustix::io::Errno;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What is deleted.
struct Selection {
    /// Nothing but this and what was below it; all if it is empty.
    what: Vec<PathOrId>,
    /// Removed by then, in nanoseconds since the epoch.
    until: Option<u64>,
    uid: u32,
}

impl Selection {
    fn of(arguments: &TrashEmptyArguments, uid: u32) -> Self {
        let what = arguments.what.iter().map(|what| match what {
            PathOrId::Path(path) => PathOrId::Path(shown(path)),
            PathOrId::Id(inode) => PathOrId::Id(*inode),
        });
        let until = |older: Duration| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let then = now.unwrap_or_default().saturating_sub(older);
            u64::try_from(then.as_nanos()).unwrap_or(u64::MAX)
        };
        Self {
            what: what.collect(),
            until: arguments.older_than.map(until),
            uid,
        }
    }

    async fn takes(&self, paths: &mut Paths<'_>, item: &InTrash) -> CommandResult<Option<PathBuf>> {
        let is_old = self.until.is_none_or(|until| item.at.0 <= until);
        let is_own = self.uid == 0 || self.uid == item.inode.uid.0;
        if !is_old || !is_own {
            return Ok(None);
        }
        let place = paths.place(item).await?;
        let named = self.what.iter().any(|what| match what {
            PathOrId::Path(path) => place.path.starts_with(path),
            PathOrId::Id(inode) => item.inode.inode == *inode || place.above.contains(inode),
        });
        Ok((named || self.what.is_empty()).then_some(place.path))
    }
}

/// Runs `trash empty`.
pub(super) async fn empty(
    general: &General,
    arguments: &TrashEmptyArguments,
    output: Output,
) -> CommandResult {
    if !arguments.yes {
        let message = "what is deleted from the trash cannot be restored";
        return Err(Failure::new(Exit::Usage, message)
            .hint("`quorumfs trash ls` shows what is there; run it again with --yes"));
    }
    let opened = Opened::for_a_command(general).await?;
    let mut progress = CommandProgress::new(output);
    let selection = Selection::of(arguments, opened.file_system().this_process().uid);
    let outcome = delete(opened.file_system(), &selection, &mut progress).await;
    closing(opened, outcome).await?;
    progress.end(|summary| format!("Deleted {} for good.", counted(summary.done)))
}

/// Something to delete.
type Doomed = (InodeId, PathBuf);

async fn delete(
    fs: &FileSystem,
    selection: &Selection,
    progress: &mut CommandProgress,
) -> CommandResult<()> {
    let mut paths = Paths::new(fs);
    let mut after = None;
    // Directories that were removed in the same moment as what was in them.
    let mut later = Vec::new();
    loop {
        let page = fs.trash(&fs.this_process(), after).await;
        let (items, next) = page.map_err(|error| refused("/".as_ref(), &error))?;
        let mut doomed: Vec<Doomed> = Vec::new();
        for item in &items {
            if let Some(path) = selection.takes(&mut paths, item).await? {
                doomed.push((item.inode.inode, path));
            }
        }
        for batch in doomed.chunks(PURGED_AT_ONCE) {
            later.extend(purge(fs, batch, progress).await?);
        }
        after = next;
        if after.is_none() {
            break;
        }
    }
    let mut left = usize::MAX;
    while !later.is_empty() && later.len() < left {
        left = later.len();
        let mut again = Vec::new();
        for one in later {
            again.extend(purge(fs, &[one], progress).await?);
        }
        later = again;
    }
    for (_, path) in later {
        let message = format!("{}: something that was in it is kept", path.display());
        let failure = Failure::new(Exit::Path, message);
        progress.failed(
            &path,
            failure.hint("another user owns it, or it is younger; the directory stays until then"),
        )?;
    }
    Ok(())
}

/// Deletes a few; returns the directories of which something is still there.
async fn purge(
    fs: &FileSystem,
    batch: &[Doomed],
    progress: &mut CommandProgress,
) -> CommandResult<Vec<Doomed>> {
    let inodes: Vec<InodeId> = batch.iter().map(|(inode, _)| *inode).collect();
    let mut later = Vec::new();
    match (fs.purge(&fs.this_process(), &inodes).await, batch) {
        (Ok(purged), _) => (0..purged).for_each(|_| progress.done(0)),
        (Err(VfsError::Refused { errno, .. }), [one]) if errno == Errno::NOTEMPTY => {
            later.push(one.clone());
        }
        (Err(error), [(_, path)]) => progress.failed(path, refused(path, &error))?,
        // One of them was refused, so none is gone.
        (Err(VfsError::Refused { .. }), _) => {
            for one in batch {
                later.extend(Box::pin(purge(fs, std::slice::from_ref(one), progress)).await?);
            }
        }
        (Err(error), _) => return Err(refused("/".as_ref(), &error)),
    }
    Ok(later)
}
