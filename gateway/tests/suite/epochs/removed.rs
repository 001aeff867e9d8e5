//! What a member that was removed can still read, with all keys that it had, all clouds, and
//! servers that tell it everything: what was there before, and nothing that came two minutes later,
//! by a mount that has not heard of the removal. The attacker is the client itself, and beyond
//! that it tries each of its keys on each name and value.

#![allow(clippy::panic)]

use super::*;
use quorumfs_gateway::keys::{
    KeyFile, NameKeys, Principal, RealmEpochKey, SmallValueKey, ValueBinding,
};
use quorumfs_gateway::metadata::MetadataClient;
use quorumfs_gateway::vfs::{DirectoryEntry, RenameMode};
use quorumfs_gateway::volume::{Grant, KnownPeople};
use quorumfs_metadata::identity::{Cookie, Gid, Uid};
use quorumfs_metadata::query::Question;
use quorumfs_metadata::reply::QueryResult;
use quorumfs_metadata::row::{Assertable, Rights};
use std::sync::Arc;

const MINUTES: u64 = 60_000_000_000;

/// The needles: names, and contents of each size and kind.
const NAMES: [&str; 6] = [
    "needle one names a file",
    "needle two names a directory",
    "needle three names a link",
    "needle four is a new name of an old file",
    "needle five is a second name of a file",
    "needle six names a file in a directory that was there",
];
const TEXTS: [&str; 6] = [
    "needle seven is all that a tiny file holds",
    "needle eight lies in a pack",
    "needle nine lies in a block of its own",
    "needle ten is where a link points",
    "needle eleven is the value of an attribute",
    "needle twelve replaces what was in an old file",
];

/// What was there before.
const BEFORE: [&str; 2] = ["straw one names an old file", "straw two is in an old file"];

async fn plant_before(fs: &FileSystem) -> InodeId {
    let directory = mkdir(fs, "directory").await;
    write(fs, directory, BEFORE[0], BEFORE[1].as_bytes()).await;
    write(fs, directory, "old", b"old").await;
    directory
}

async fn plant(fs: &FileSystem, directory: InodeId) {
    let filled = |text: &str, length: usize| {
        let mut bytes = vec![b'.'; length];
        bytes[length / 2..length / 2 + text.len()].copy_from_slice(text.as_bytes());
        bytes
    };
    // It needs no new name, which could tell of new keys.
    let old = fs.lookup(&root(), directory, b"old").await.unwrap();
    let (inode, mode) = (old.unwrap().inode, OpenMode::READ_WRITE);
    let handle = fs.open(&root(), inode, mode).await.unwrap().handle;
    fs.write(handle, 0, TEXTS[5].as_bytes()).await.unwrap();
    fs.fsync(handle).await.unwrap();
    fs.release(handle).await.unwrap();
    write(fs, fs.root(), NAMES[0], TEXTS[0].as_bytes()).await;
    let made = mkdir(fs, NAMES[1]).await;
    write(fs, made, "packed", &filled(TEXTS[1], 9_000)).await;
    write(fs, made, "block", &filled(TEXTS[2], 700_000)).await;
    let (name, target) = (NAMES[2].as_bytes(), TEXTS[3].as_bytes());
    fs.symlink(&root(), directory, name, target).await.unwrap();
    let (old, new, how) = (b"old", NAMES[3].as_bytes(), RenameMode::Replace);
    fs.rename(&root(), directory, old, directory, new, how)
        .await
        .unwrap();
    let found = fs.lookup(&root(), directory, new).await.unwrap().unwrap();
    let second = NAMES[4].as_bytes();
    fs.link(&root(), found.inode, directory, second)
        .await
        .unwrap();
    let value = TEXTS[4].as_bytes();
    fs.setxattr(&root(), made, b"user.needle", value, SetMode::Any)
        .await
        .unwrap();
    write(fs, directory, NAMES[5], b"hay").await;
}

/// All that an attacker could read.
#[derive(Default)]
struct Loot(Vec<Vec<u8>>);

impl Loot {
    fn has(&self, needle: &str) -> bool {
        let is_in = |found: &Vec<u8>| {
            found
                .windows(needle.len())
                .any(|it| it == needle.as_bytes())
        };
        self.0.iter().any(is_in)
    }

    fn take(&mut self, found: impl Into<Vec<u8>>) {
        self.0.push(found.into());
    }
}

struct Attacker<'a> {
    fs: &'a FileSystem,
    gateway: &'a Gateway,
    keys: Vec<RealmEpochKey>,
    loot: Loot,
}

impl Attacker<'_> {
    async fn ask(&self, question: Question) -> QueryResult {
        let metadata = &self.gateway.metadata;
        metadata.ask_about_volume("attack", question).await.unwrap()
    }

    /// Reads all that it can, below a directory. The servers tell it what is in there, whatever its
    /// names are sealed under.
    async fn walk(&mut self, directory: InodeId) {
        let question = Question::Directory {
            inode: directory,
            after: Cookie::START,
            limit: 512,
            by_handle: true,
        };
        let QueryResult::Directory(page) = self.ask(question).await else {
            panic!("no page")
        };
        self.list(directory).await;
        for key in &self.keys {
            let keys: NameKeys = key.name_keys(directory);
            for entry in &page.entries {
                if let Ok(name) = keys.open(&entry.name, entry.cookie) {
                    self.loot.take(name);
                }
            }
        }
        for entry in page.entries {
            self.inode(entry.inode.inode).await;
            if entry.inode.file_type() == quorumfs_metadata::attributes::FileType::Directory {
                Box::pin(self.walk(entry.inode.inode)).await;
            }
        }
    }

    /// The names as its client shows them.
    async fn list(&mut self, directory: InodeId) {
        let handle = self.fs.opendir(&root(), directory, true).await.unwrap();
        let mut offset = 0;
        while let Ok(piece) = self.fs.readdir(handle, offset, 100).await {
            match piece.last() {
                Some(last) => offset = last.cookie.0,
                None => break,
            }
            for DirectoryEntry { name, .. } in piece {
                self.loot.take(name);
            }
        }
    }

    async fn inode(&mut self, inode: InodeId) {
        if let Ok(target) = self.fs.readlink(inode).await {
            self.loot.take(target);
        }
        if let Ok(names) = self.fs.listxattr(&root(), inode).await {
            for name in names.split(|byte| *byte == 0).filter(|it| !it.is_empty()) {
                self.loot.take(name);
                if let Ok(value) = self.fs.getxattr(&root(), inode, name).await {
                    self.loot.take(value.to_vec());
                }
            }
        }
        if let Ok(opened) = self.fs.open(&root(), inode, OpenMode::READ).await {
            let mut offset = 0;
            while let Ok(bytes) = self.fs.read(opened.handle, offset, 1 << 20).await {
                if bytes.is_empty() {
                    break;
                }
                offset += bytes.len() as u64;
                self.loot.take(bytes.to_vec());
            }
        }
        let question = Question::Content {
            inode,
            from: 0,
            to: u64::MAX,
            limit: 256,
        };
        let asked = self.gateway.metadata.ask_about_volume("attack", question);
        if let Ok(QueryResult::Content(page)) = asked.await
            && let Some(inline) = page.inline
        {
            for key in &self.keys {
                let values: SmallValueKey = key.small_value_key();
                if let Ok(text) = values.open(ValueBinding::content(inode), &inline.sealed.bytes) {
                    self.loot.take(text);
                }
            }
        }
    }
}

/// How the guest was removed.
struct Removal {
    /// So long before the rest was stored.
    before: u64,
    /// Whether all names were resealed, as `people remove` does.
    names_resealed: bool,
}

/// A volume with a guest; what was there before; what came after the guest's removal, or without
/// one; and what the guest reads of all that.
async fn attacked(removal: Option<Removal>) -> Loot {
    let world = World::new(Lock::MembersAndClouds).await;
    let (owner, unaware) = (world.gateway(), world.gateway());
    owner.refresh().await.unwrap();
    let bob = Principal::random().unwrap();
    let grant = Grant {
        label: "bob".to_owned(),
        rights: Rights {
            uids: Assertable::Only(vec![Uid(1003)]),
            gids: Assertable::Only(vec![Gid(1003)]),
            mount: true,
            reconcile: false,
            administer: false,
        },
        expires: None,
    };
    let (volume, metadata) = (&owner.volume, &owner.metadata);
    let keys = bob.id();
    let admitted = volume.admit(metadata, &owner.shares, &keys, grant);
    admitted.await.unwrap();
    let key = KeyFile {
        principal: bob.clone(),
        root: world.created.owner.root,
    };
    let known = KnownPeople {
        successions: volume.successions(),
        changes: volume.people_changes(),
    };
    // His machine has opened all keys. From now on it asks in the owner's name: the servers lie,
    // and tell him everything.
    let guest = world.gateway_with(&key, &known);
    let session = world.embedded.open_session(keys.signing).unwrap();
    let his = MetadataClient::new(Arc::new(session), guest.volume.own_credentials());
    let opened = guest.volume.refresh(&his, Some(&guest.shares)).await;
    assert_eq!(opened.unwrap(), RealmEpoch(0));
    unaware.refresh().await.unwrap();
    let fs = unaware.file_system();
    let directory = plant_before(&fs).await;
    if let Some(removal) = &removal {
        volume.dismiss(metadata, bob.id().signing).await.unwrap();
        owner.rekey(Lock::MembersAndClouds).await.unwrap();
        if removal.names_resealed {
            let mut told = |_: &_| {};
            let resealed = volume.reseal_names(metadata, Some(&owner.shares), &mut told);
            assert_eq!(resealed.await.unwrap().left, 0);
        }
        world.pass(removal.before);
    }
    plant(&fs, directory).await;
    let epochs = 0..=guest.volume.current_epoch().unwrap().0;
    let keys = epochs.map(|epoch| guest.volume.epoch_key(RealmEpoch(epoch)).unwrap());
    let guest_fs = guest.file_system();
    let mut attacker = Attacker {
        fs: &guest_fs,
        gateway: &guest,
        keys: keys.collect(),
        loot: Loot::default(),
    };
    attacker.walk(guest_fs.root()).await;
    attacker.loot
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_member_reads_nothing_that_was_stored_two_minutes_later() {
    let loot = attacked(Some(Removal {
        before: 2 * MINUTES + 1,
        names_resealed: true,
    }))
    .await;
    let read = NAMES.iter().chain(&TEXTS).filter(|needle| loot.has(needle));
    assert_eq!(read.collect::<Vec<_>>(), Vec::<&&str>::new());
    assert!(loot.has(BEFORE[1]), "content from before stays readable");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_was_not_removed_reads_all_of_that() {
    let loot = attacked(None).await;
    let unread = NAMES
        .iter()
        .chain(&TEXTS)
        .filter(|needle| !loot.has(needle));
    assert_eq!(unread.collect::<Vec<_>>(), Vec::<&&str>::new());
    assert!(BEFORE.iter().all(|it| loot.has(it)));
}

/// It is the two minutes that protect: an unaware mount seals under the keys that it has, until it
/// hears of new ones from a directory with resealed names, or from a refusal.
#[tokio::test(flavor = "multi_thread")]
async fn within_two_minutes_a_mount_may_still_store_what_a_removed_member_reads() {
    let loot = attacked(Some(Removal {
        before: MINUTES,
        names_resealed: false,
    }))
    .await;
    assert!(loot.has(TEXTS[5]));
}
