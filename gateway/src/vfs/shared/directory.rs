//! The directory and its links.

use super::SharedPlace;
use crate::error::VfsError;
use crate::vfs::services::Services;
use quorumfs_bft::identity::Time;
use quorumfs_metadata::attributes::{Attributes, Detail, Mode, NameGenerations, Timestamp};
use quorumfs_metadata::identity::{
    Cookie, InodeId, InodeVersion, PrincipalNumber, RealmEpoch, RealmId, ShareId, Uid,
};
use quorumfs_metadata::limits::NAME_BYTES_MAX;
use quorumfs_metadata::query::SharesOf;
use quorumfs_metadata::reply::ListedShare;
use quorumfs_metadata::row::Assertable;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The directory's name in the root.
pub const SHARED_NAME: &[u8] = b"Shared with me";
/// The directory's position in the root: no name has a cookie below 8.
pub(in crate::vfs) const SHARED_COOKIE: Cookie = Cookie(3);
/// The first position of a link.
const FIRST_COOKIE: u64 = 8;
/// How often shares are asked for at most.
const ASKED_EVERY: Duration = Duration::from_secs(3);

/// A home that no realm has.
const HOME: u64 = 0xffff << 48;
/// The directory.
pub(in crate::vfs) const SHARED_DIRECTORY: InodeId = InodeId(HOME | 1);
/// Marks the numbers of links.
const LINKS: u64 = 1 << 47;

/// Nothing here can be changed.
pub(in crate::vfs) const READ_ONLY: VfsError = VfsError::refused("Shared with me", Errno::ROFS);
/// What is not shared any more.
pub(in crate::vfs) const NOT_SHARED: VfsError = VfsError::refused("Shared with me", Errno::NOENT);

/// Whether an inode is the directory or in it.
pub(in crate::vfs) const fn is_shared(inode: InodeId) -> bool {
    inode.0 >> 48 == HOME >> 48
}

/// What is shared with this mount's person.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::vfs) struct SharedLink {
    /// The share.
    id: ShareId,
    /// What is shared.
    pub(in crate::vfs) leads_to: InodeId,
    /// The link's name.
    pub(in crate::vfs) name: Vec<u8>,
    /// Where it was.
    pub(in crate::vfs) place: SharedPlace,
    since: Time,
}

type Links = Arc<Vec<SharedLink>>;

#[derive(Default)]
struct AskedShares {
    number: Option<PrincipalNumber>,
    at: Option<Instant>,
    links: Links,
}

/// See the module.
pub(in crate::vfs) struct SharedWithMe {
    pub(super) services: Arc<Services>,
    asked: Mutex<AskedShares>,
}

impl SharedLink {
    /// The link's number.
    pub(in crate::vfs) const fn inode(&self) -> InodeId {
        InodeId(HOME | LINKS | (self.id.0 & (LINKS - 1)))
    }

    /// The link's position in the directory.
    pub(in crate::vfs) const fn cookie(&self) -> Cookie {
        Cookie(FIRST_COOKIE.saturating_add(self.id.0))
    }

    /// Where it leads, if that has not been moved.
    pub(in crate::vfs) fn target(path: &[u8]) -> Vec<u8> {
        match path {
            b"" => b"..".to_vec(),
            path => [b"../", path].concat(),
        }
    }
}

/// A name with a number in front of its end, within the bound of names.
fn numbered(name: &[u8], number: usize) -> Vec<u8> {
    let suffix = format!(" ({number})");
    let most = NAME_BYTES_MAX.saturating_sub(suffix.len());
    let mut kept = name.len().min(most);
    // A letter is not cut in two.
    while name.get(kept).is_some_and(|byte| byte & 0xc0 == 0x80) && kept > 0 {
        kept = kept.saturating_sub(1);
    }
    let kept = name.get(..kept).unwrap_or(name);
    [kept, suffix.as_bytes()].concat()
}

/// The links of some shares, each with a name of its own.
fn named(shares: Vec<(ShareId, InodeId, SharedPlace, Time)>) -> Vec<SharedLink> {
    let mut taken = BTreeSet::new();
    let link = |(id, leads_to, place, since): (_, _, SharedPlace, _)| {
        let wanted = place.name();
        let mut name = wanted.to_vec();
        let mut number = 1_usize;
        while !taken.insert(name.clone()) {
            number = number.saturating_add(1);
            name = numbered(wanted, number);
        }
        SharedLink {
            id,
            leads_to,
            name,
            place,
            since,
        }
    };
    shares.into_iter().map(link).collect()
}

impl SharedWithMe {
    pub(in crate::vfs) fn new(services: Arc<Services>) -> Self {
        Self {
            services,
            asked: Mutex::default(),
        }
    }

    /// Whether this mount's principal is a person with whom something can be shared.
    pub(in crate::vfs) fn is_possible(&self) -> bool {
        let rights = self.services.volume.own_rights();
        rights.is_some_and(|rights| match rights.uids {
            Assertable::Any => false,
            Assertable::Only(uids) => !uids.is_empty() && !uids.contains(&Uid::ROOT),
        })
    }

    /// Whether a name in a directory may lead here.
    pub(in crate::vfs) fn may_be(&self, directory: InodeId, name: &[u8]) -> bool {
        name == SHARED_NAME && directory == self.services.volume.root() && self.is_possible()
    }

    /// What is shared with this mount's person.
    pub(in crate::vfs) async fn links(&self) -> Links {
        if !self.is_possible() {
            return Links::default();
        }
        let mut asked = self.asked.lock().await;
        if asked.at.is_some_and(|at| at.elapsed() < ASKED_EVERY) {
            return asked.links.clone();
        }
        match self.ask(asked.number).await {
            Ok((number, links)) => {
                asked.number = Some(number);
                if *asked.links != links {
                    asked.links = Arc::new(links);
                }
            }
            Err(error) => tracing::debug!(%error, "what is shared with this person is unknown"),
        }
        asked.at = Some(Instant::now());
        asked.links.clone()
    }

    async fn ask(
        &self,
        number: Option<PrincipalNumber>,
    ) -> Result<(PrincipalNumber, Vec<SharedLink>), VfsError> {
        let metadata = &self.services.metadata;
        let number = match number {
            Some(number) => number,
            None => metadata.own_number().await?,
        };
        let of = SharesOf::With(number);
        let mut found = Vec::new();
        for ListedShare { id, share, exists } in metadata.shares(metadata.own(), of).await? {
            if share.ended || !exists {
                continue;
            }
            match self.open(share.inode, &share.place).await {
                Ok(place) => found.push((id, share.inode, place, share.created)),
                Err(error) => tracing::warn!(share = %id, %error, "a share cannot be shown"),
            }
        }
        Ok((number, named(found)))
    }

    /// A link by its name.
    pub(in crate::vfs) async fn find(&self, name: &[u8]) -> Option<Attributes> {
        let links = self.links().await;
        let link = links.iter().find(|link| link.name == name)?;
        Some(self.of_link(link))
    }

    /// A link by its number.
    pub(in crate::vfs) async fn link(&self, inode: InodeId) -> Option<SharedLink> {
        let links = self.links().await;
        links.iter().find(|link| link.inode() == inode).cloned()
    }

    /// The attributes of the directory, or of a link.
    pub(in crate::vfs) async fn attributes(&self, inode: InodeId) -> Option<Attributes> {
        if inode == SHARED_DIRECTORY {
            return Some(self.directory().await);
        }
        self.link(inode).await.map(|link| self.of_link(&link))
    }

    /// The directory. It exists for those that work in it even when nothing is shared any more.
    pub(in crate::vfs) async fn directory(&self) -> Attributes {
        let links = self.links().await;
        let newest = links.iter().map(|link| link.since).max();
        let parent = self.services.volume.root();
        let generations = NameGenerations {
            current: RealmEpoch(0),
            previous: None,
        };
        Attributes {
            mode: Mode(0o555),
            links: 2,
            detail: Detail::Directory {
                parent,
                generations,
            },
            ..self.plain(SHARED_DIRECTORY, newest.unwrap_or_default())
        }
    }

    pub(in crate::vfs) fn of_link(&self, link: &SharedLink) -> Attributes {
        Attributes {
            mode: Mode(0o777),
            size: SharedLink::target(&link.place.path).len() as u64,
            detail: Detail::Symlink,
            ..self.plain(link.inode(), link.since)
        }
    }

    fn plain(&self, inode: InodeId, since: Time) -> Attributes {
        let own = self.services.metadata.own();
        let at = Timestamp::from(since);
        Attributes {
            inode,
            realm: RealmId::ROOT,
            mode: Mode(0),
            uid: own.uid,
            gid: own.gid,
            links: 1,
            size: 0,
            allocated: 0,
            atime: at,
            mtime: at,
            ctime: at,
            created: at,
            version: InodeVersion(0),
            acl: quorumfs_metadata::attributes::AclKinds::default(),
            extended: quorumfs_metadata::attributes::Extended::default(),
            detail: Detail::Symlink,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str) -> SharedPlace {
        SharedPlace {
            parent: InodeId::ROOT,
            path: path.as_bytes().to_vec(),
        }
    }

    #[test]
    fn names_that_clash_get_numbers_and_fit() {
        let long = format!("a/{}", "ä".repeat(127));
        let paths = [
            "Photos/2024",
            "b/2024",
            "c/2024 (2)",
            "2024",
            &long,
            &long,
            "",
        ];
        let shares = paths.iter().zip(1..).map(|(path, id)| {
            let (id, inode) = (ShareId(id), InodeId(id + 100));
            (id, inode, place(path), Time(id.0))
        });
        let links = named(shares.collect());
        let names: Vec<_> = links
            .iter()
            .map(|link| String::from_utf8(link.name.clone()).unwrap())
            .collect();
        assert_eq!(names[..4], ["2024", "2024 (2)", "2024 (2) (2)", "2024 (3)"]);
        assert_eq!(names[4], "ä".repeat(127));
        assert_eq!(names[5], format!("{} (2)", "ä".repeat(125)));
        assert_eq!(names[6], "volume");
        assert!(names.iter().all(|name| name.len() <= NAME_BYTES_MAX));
        let all: BTreeSet<_> = names.iter().collect();
        assert_eq!(all.len(), names.len());
        for link in &links {
            assert!(is_shared(link.inode()) && link.inode() != SHARED_DIRECTORY);
            assert!(link.cookie() > SHARED_COOKIE);
        }
        assert!(!is_shared(InodeId::ROOT) && !is_shared(InodeId(u64::MAX >> 16)));
    }

    #[test]
    fn a_link_leads_from_the_directory_to_the_place() {
        assert_eq!(SharedLink::target(b"Photos/2024"), b"../Photos/2024");
        assert_eq!(SharedLink::target(b""), b"..");
    }
}
