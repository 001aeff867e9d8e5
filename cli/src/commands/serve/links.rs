//! The volume as the server of links sees it.
//!
//! Each request asks the replicas for the share of its token, and gets nothing if there is none.
//! What the share leads to is read with the rights of the user who shared: each folder on the way
//! has to let that user pass, each file has to let it read. The way goes from the shared inode
//! downwards, name by name; symbolic links are not followed, and `..` is no name.
//!
//! Times of access stay as they are. Names and attributes may be as old as any command's: a second.
//! The share itself is never cached.

use crate::commands::opened::Opened;
use async_trait::async_trait;
use bytes::Bytes;
use quorumfs_gateway::vfs::{
    Attributes, Caller, FileSystem, FileType, HandleId, InodeId, KnownShare, OpenMode, VfsError,
    is_temporary_name,
};
use quorumfs_gateway::volume::Volume;
use quorumfs_http::{
    LinkSource, LinkTarget, LinkToken, ListedEntry, ListedPage, OpenContent, SourceError,
    TargetEntry, TargetKind,
};
use quorumfs_metadata::identity::Uid;
use quorumfs_metadata::query::Question;
use quorumfs_metadata::reply::QueryResult;
use quorumfs_metadata::row::Assertable;
use rustix::io::Errno;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// The rights that reading a folder's entries takes: to read it, and to pass.
const READ_AND_SEARCH: u8 = 5;
const READ: u8 = 4;
const SEARCH: u8 = 1;
/// Entries to ask for at a time.
const ENTRIES_AT_ONCE: usize = 512;
/// Reads a file, and leaves its time of access as it is.
const QUIETLY: OpenMode = OpenMode {
    keep_atime: true,
    ..OpenMode::READ
};
/// The group of a user whose groups are not known here: none has this number.
const NO_GROUP: u32 = u32::MAX - 1;
const VERSION_CONTEXT: &str = "quorumfs 2026 entity tag";

/// The links of a volume.
pub(super) struct VolumeLinks {
    opened: RwLock<Arc<Opened>>,
}

impl VolumeLinks {
    pub(super) fn new(opened: Arc<Opened>) -> Self {
        Self {
            opened: RwLock::new(opened),
        }
    }

    /// The session that is used now.
    pub(super) fn opened(&self) -> Arc<Opened> {
        let opened = self.opened.read();
        opened.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Uses another session from now on.
    pub(super) fn reopened(&self, opened: Arc<Opened>) {
        *self.opened.write().unwrap_or_else(PoisonError::into_inner) = opened;
    }
}

#[async_trait]
impl LinkSource for VolumeLinks {
    async fn find(&self, token: &LinkToken) -> Result<Option<Arc<dyn LinkTarget>>, SourceError> {
        let opened = self.opened();
        let files = opened.file_system();
        let found = files.share_of_token(token.bytes()).await;
        let found = found.map_err(|error| not_read(&error))?;
        let live = found.filter(|it| it.exists && !it.share.ended && !is_over(it));
        let Some(KnownShare {
            id, share, place, ..
        }) = live
        else {
            return Ok(None);
        };
        Ok(Some(Arc::new(SharedTree {
            opened: opened.clone(),
            files: files.clone(),
            caller: caller(opened.volume(), share.uid),
            root: share.inode,
            number: id.0,
            name: place.map_or(b"shared".to_vec(), |place| place.name().to_vec()),
        })))
    }
}

/// Whether its time has come by this machine's clock. The replicas end it by theirs; neither has
/// to wait for the other.
fn is_over(listed: &KnownShare) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |it| it.as_nanos());
    listed
        .share
        .expires
        .is_some_and(|at| u128::from(at.0) <= now)
}

/// The user who shared. A person acts in the groups that it was granted, and this process's own
/// user in those that it has; of any other user only the number is known.
fn caller(volume: &Volume, uid: Uid) -> Caller {
    let local = Caller::this_process();
    if uid == Uid::ROOT || uid.0 == local.uid && is_owner(volume) {
        return match uid == Uid::ROOT {
            true => Caller::user(0, 0, Vec::new()),
            false => local,
        };
    }
    for person in volume.people() {
        let rights = &person.statement.rights;
        let is_user = matches!(&rights.uids, Assertable::Only(uids) if uids.contains(&uid));
        if let (true, Assertable::Only(gids)) = (is_user, &rights.gids) {
            let groups: Vec<u32> = gids.iter().map(|gid| gid.0).collect();
            let first = groups.first().copied().unwrap_or(NO_GROUP);
            return Caller::user(uid.0, first, groups);
        }
    }
    Caller::user(uid.0, NO_GROUP, Vec::new())
}

/// Whether this process may act for any user, as the owner's may.
fn is_owner(volume: &Volume) -> bool {
    let rights = volume.own_rights();
    rights.is_some_and(|rights| rights.uids == Assertable::Any)
}

/// The failure of a call: what is not there and what may not be read are one.
fn not_read(error: &VfsError) -> SourceError {
    const MISSING: [Errno; 9] = [
        Errno::NOENT,
        Errno::ACCESS,
        Errno::PERM,
        Errno::NOTDIR,
        Errno::ISDIR,
        Errno::NAMETOOLONG,
        Errno::STALE,
        Errno::LOOP,
        Errno::NXIO,
    ];
    match error {
        VfsError::Refused { errno, .. } if MISSING.contains(errno) => SourceError::Missing,
        _ => SourceError::Unavailable(error.to_string()),
    }
}

/// What one link leads to.
struct SharedTree {
    opened: Arc<Opened>,
    files: FileSystem,
    caller: Caller,
    root: InodeId,
    number: u64,
    name: Vec<u8>,
}

impl SharedTree {
    fn entry(&self, found: &Attributes) -> TargetEntry {
        let kind = match found.file_type() {
            FileType::File => TargetKind::File,
            FileType::Directory => TargetKind::Folder,
            FileType::Symlink => TargetKind::Other("symbolic link"),
            FileType::Fifo => TargetKind::Other("pipe"),
            FileType::Socket => TargetKind::Other("socket"),
            FileType::CharacterDevice | FileType::BlockDevice => TargetKind::Other("device"),
        };
        // The parts are not shown: a number of an inode, or how often it was changed, is not for
        // those that have the link.
        let mut version = [0; 16];
        let mut hasher = blake3::Hasher::new_derive_key(VERSION_CONTEXT);
        for part in [self.number, found.inode.0, found.version.0, found.size] {
            hasher.update(&part.to_le_bytes());
        }
        hasher.finalize_xof().fill(&mut version);
        TargetEntry {
            inode: found.inode.0,
            kind,
            size: found.size,
            modified: found.mtime.seconds,
            version,
        }
    }

    async fn may(&self, inode: InodeId, rights: u8) -> Result<(), SourceError> {
        let may = self.files.access(&self.caller, inode, rights).await;
        may.map_err(|error| not_read(&error))
    }
}

#[async_trait]
impl LinkTarget for SharedTree {
    fn number(&self) -> u64 {
        self.number
    }

    fn name(&self) -> &[u8] {
        &self.name
    }

    async fn look(&self, path: &[Vec<u8>]) -> Result<TargetEntry, SourceError> {
        let found = self.files.by_number(self.root).await;
        let mut found = found.map_err(|error| not_read(&error))?;
        for name in path {
            if found.file_type() != FileType::Directory {
                return Err(SourceError::Missing);
            }
            self.may(found.inode, SEARCH).await?;
            let child = self.files.lookup(&self.caller, found.inode, name).await;
            let child = child.map_err(|error| not_read(&error))?;
            found = child.ok_or(SourceError::Missing)?;
        }
        Ok(self.entry(&found))
    }

    async fn open(
        &self,
        entry: &TargetEntry,
    ) -> Result<(TargetEntry, Box<dyn OpenContent>), SourceError> {
        let inode = InodeId(entry.inode);
        self.may(inode, READ).await?;
        let opened = self.files.open(&self.caller, inode, QUIETLY).await;
        let mut content = OpenFile {
            handle: opened.map_err(|error| not_read(&error))?.handle,
            files: self.files.clone(),
            opened: self.opened.clone(),
            found: None,
        };
        let found = self.files.getattr(inode).await;
        let found = found.map_err(|error| not_read(&error))?;
        content.found = Some(found);
        Ok((self.entry(&found), Box::new(content)))
    }

    async fn list(
        &self,
        entry: &TargetEntry,
        after: u64,
        limit: usize,
    ) -> Result<ListedPage, SourceError> {
        let inode = InodeId(entry.inode);
        self.may(inode, READ_AND_SEARCH).await?;
        let opened = self.files.opendir(&self.caller, inode, true).await;
        let folder = OpenFolder {
            handle: opened.map_err(|error| not_read(&error))?,
            files: &self.files,
        };
        let (mut page, mut position) = (ListedPage::default(), after);
        while page.entries.len() < limit {
            let wanted = ENTRIES_AT_ONCE.min(limit.saturating_sub(page.entries.len()));
            let listed = self.files.readdir_plus(folder.handle, position, wanted);
            let listed = listed.await.map_err(|error| not_read(&error))?;
            let Some((last, _)) = listed.last() else {
                return Ok(page);
            };
            position = last.cookie.0;
            for (listed, found) in &listed {
                let is_dots = listed.name == b"." || listed.name == b"..";
                // Copies in progress, and lists of capsules with all of their keys.
                if !is_dots && !is_temporary_name(&listed.name) {
                    page.entries.push(ListedEntry {
                        name: listed.name.clone(),
                        entry: self.entry(found),
                    });
                }
            }
        }
        let more = self.files.readdir(folder.handle, position, 1).await;
        let more = more.map_err(|error| not_read(&error))?;
        page.next = (!more.is_empty()).then_some(position);
        Ok(page)
    }
}

/// An open folder; closed when it is dropped.
struct OpenFolder<'a> {
    files: &'a FileSystem,
    handle: HandleId,
}

impl Drop for OpenFolder<'_> {
    fn drop(&mut self) {
        self.files.leave_directory(self.handle);
    }
}

/// An open file; closed when it is dropped.
struct OpenFile {
    files: FileSystem,
    handle: HandleId,
    opened: Arc<Opened>,
    /// What it was when it was opened.
    found: Option<Attributes>,
}

#[async_trait]
impl OpenContent for OpenFile {
    async fn read(&self, offset: u64, size: u32) -> Result<Bytes, SourceError> {
        let read = self.files.read(self.handle, offset, size).await;
        read.map_err(|error| SourceError::Unavailable(error.to_string()))
    }

    async fn is_unchanged(&self) -> Result<bool, SourceError> {
        let Some(before) = self.found else {
            return Ok(false);
        };
        // What is cached may be a second old.
        let question = Question::Attributes(before.inode);
        let metadata = self.opened.metadata();
        match metadata.ask_about_volume("attributes", question).await {
            Ok(QueryResult::Attributes(now)) => {
                Ok((now.size, now.mtime) == (before.size, before.mtime))
            }
            Ok(_) => Err(SourceError::Unavailable(
                "an answer to another question".into(),
            )),
            Err(error) => Err(not_read(&error)),
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let (files, handle) = (self.files.clone(), self.handle);
        tokio::spawn(async move {
            if let Err(error) = files.release(handle).await {
                tracing::debug!(%error, "a file was not closed in order");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_bft::identity::Time;
    use quorumfs_metadata::identity::{PrincipalNumber, RealmEpoch, ShareId};
    use quorumfs_metadata::row::{Sealed, Share, ShareWith};

    fn link(expires: Option<Time>) -> KnownShare {
        KnownShare {
            id: ShareId(1),
            share: Share {
                by: PrincipalNumber(0),
                uid: Uid(1000),
                inode: InodeId(9),
                with: ShareWith::Link { token: [1; 32] },
                expires,
                created: Time(1),
                ended: false,
                place: Sealed {
                    epoch: RealmEpoch(0),
                    bytes: Vec::new(),
                },
            },
            exists: true,
            place: None,
        }
    }

    #[test]
    fn a_link_is_over_by_this_machines_clock_too() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let now = u64::try_from(now.as_nanos()).unwrap();
        assert!(is_over(&link(Some(Time(now)))));
        assert!(!is_over(&link(Some(Time(now + 60_000_000_000)))));
        assert!(!is_over(&link(None)));
    }

    #[test]
    fn what_is_missing_and_what_is_forbidden_are_one_and_an_outage_is_another() {
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::NOTDIR, Errno::STALE] {
            let error = VfsError::Refused { what: "x", errno };
            assert_eq!(not_read(&error), SourceError::Missing);
        }
        for error in [
            VfsError::Fenced,
            VfsError::Refused {
                what: "x",
                errno: Errno::IO,
            },
        ] {
            assert!(matches!(not_read(&error), SourceError::Unavailable(_)));
        }
    }
}
