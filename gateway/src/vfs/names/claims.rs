//! Keeping what is open here and has lost its last name on another mount.
//!
//! The servers do not know what a mount has open. An inode whose last name goes while several
//! mounts share the volume therefore waits for a minute of their clock in its grave. News tell the
//! other mounts of it, and one that has it open *claims* it: it then is an orphan of this session,
//! and its last close releases it ([`super::orphans`]).
//!
//! ```text
//!   news: these inodes ──► open here? ──► asked for: no name left? ──► claimed, many at once
//! ```
//!
//! * Most news of a file that is open here are of its content. So the servers are asked first, by a
//!   query, and only what has no name left is claimed by an ordered operation.
//! * A mount that is not used asks for no news; but as long as it has something open it does, often
//!   enough for a grave.
//! * What is closed and has uncommitted content counts as open: it is claimed, and given up as if
//!   it had been removed here.
//! * A claim that fails is tried again, for all that is open: the news will not come again.
//!
//! What can go wrong: until the claim, what went to the trash cannot be reached by its number, so a
//! read of content that is in no cache fails; news follow a removal within milliseconds where the
//! bell is heard, and within half a second elsewhere. A mount that hears nothing for a minute loses
//! its open files without a name. Of pipes, sockets and devices, of paths (`O_PATH`) and working
//! directories the kernel alone knows that they are open, and they are not claimed.

use crate::error::VfsError;
use crate::vfs::file_system::FileSystemCore;
use crate::vfs::known::{Invalidation, Invalidations};
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::limits::CLAIM_INODES_MAX;
use quorumfs_metadata::reply::Claimed;
use rustix::io::Errno;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often a mount that has something open asks for news at least: a third of a grave's time.
const HEAR_EVERY: Duration = Duration::from_secs(20);

/// How long after a claim that failed the next one follows.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// Claims what has to be after each news, until the file system is shut down or dropped.
pub(in crate::vfs) fn spawn(inner: &Arc<FileSystemCore>) {
    let (weak, mut news) = (Arc::downgrade(inner), inner.known.invalidations());
    tokio::spawn(async move {
        let mut missed = false;
        while let Some(()) = round(&weak, &mut news, &mut missed).await {}
    });
}

/// `missed`: a claim has failed, and the news of what it was for will not come again.
async fn round(
    weak: &Weak<FileSystemCore>,
    news: &mut Invalidations,
    missed: &mut bool,
) -> Option<()> {
    let wait = if *missed { AGAIN_AFTER } else { HEAR_EVERY };
    let next = match tokio::time::timeout(wait, news.next()).await {
        Ok(next) => Some(next?),
        Err(_) => None,
    };
    let inner = weak.upgrade()?;
    if inner.services.is_stopped() {
        return None;
    }
    let concerned = match next {
        _ if *missed => Invalidation::Everything,
        Some(next) => next,
        None => {
            if inner.known.may_be_shared() && !inner.files.open_inodes().is_empty() {
                inner.known.hear().await;
            }
            return Some(());
        }
    };
    let claimed = inner.claim_open(&concerned).await;
    *missed = false;
    if let Err(error) = claimed {
        // A fenced mount holds nothing any more.
        *missed = !matches!(error, VfsError::Fenced);
        tracing::warn!(%error, "open files without a name are not all held; trying again");
    }
    Some(())
}

impl FileSystemCore {
    /// Claims what is open here and has no name any more, as far as these news may concern it.
    async fn claim_open(self: &Arc<Self>, news: &Invalidation) -> Result<(), VfsError> {
        if !self.known.may_be_shared() {
            return Ok(());
        }
        let mut open = self.files.open_inodes();
        match news {
            Invalidation::Everything => {}
            Invalidation::Inodes(changed) => open.retain(|inode| changed.contains(inode)),
            Invalidation::Pages(_) => return Ok(()),
        }
        let mut nameless = Vec::new();
        for inode in open {
            if !self.has_name(inode).await? {
                nameless.push(inode);
            }
        }
        for some in nameless.chunks(CLAIM_INODES_MAX) {
            let claimed = self.services.metadata.claim(some).await?;
            for (inode, claimed) in some.iter().zip(claimed) {
                match claimed {
                    // It may have been closed meanwhile. The release of what is gone is refused.
                    Claimed::Held | Claimed::Gone => self.release_unless_open(*inode).await?,
                    Claimed::Named => {}
                }
            }
        }
        Ok(())
    }

    /// Whether an inode has a name, as the servers say now.
    async fn has_name(&self, inode: InodeId) -> Result<bool, VfsError> {
        let asked = self.known.query_stamp();
        match self.services.metadata.attributes(inode).await {
            Ok(attributes) => {
                self.files.learn(&attributes, asked);
                Ok(attributes.links > 0)
            }
            Err(VfsError::Refused {
                errno: Errno::STALE | Errno::NOENT,
                ..
            }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
