//! A full quota as applications see it.

use super::{pattern, soon};
use crate::common::{MountedVolume, as_user};
use quorumfs_gateway::metadata::MetadataClient;
use quorumfs_metadata::identity::Uid;
use quorumfs_metadata::operation::QuotaOf;
use quorumfs_metadata::row::Limit;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, chown};
use std::sync::Arc;

const EDQUOT: i32 = 122;
const ENOSPC: i32 = 28;
const USER: u32 = 1234;
const OTHER: u32 = 1235;
/// What a name counts as.
const NAME: u64 = 512;

fn limit(world: &MountedVolume, of: QuotaOf, bytes: Option<u64>, inodes: Option<u64>) {
    let key = world.created.owner.principal.id().signing;
    let session = world.embedded.open_session(key).unwrap();
    let own = world.volume.own_credentials();
    let client = MetadataClient::new(Arc::new(session), own);
    world.runtime.block_on(async {
        let limit = Limit { bytes, inodes };
        client.set_quota(of, Some(limit)).await.unwrap();
        client.close().await;
    });
}

fn world_with(bytes: Option<u64>, inodes: Option<u64>) -> MountedVolume {
    let world = MountedVolume::new();
    world.open_to_all_users();
    limit(&world, QuotaOf::User(Uid(USER)), bytes, inodes);
    world
}

/// Writes a file and closes it, as `cp` would.
fn put(world: &MountedVolume, name: &str, content: &[u8]) -> io::Result<()> {
    let mut file = File::create(world.path(name))?;
    file.write_all(content)?;
    file.sync_all()
}

fn errno<T: std::fmt::Debug>(outcome: io::Result<T>) -> i32 {
    outcome.unwrap_err().raw_os_error().unwrap()
}

#[test]
fn a_user_at_his_limit_gets_edquot_and_others_go_on() {
    let world = world_with(Some((1 << 20) + 3 * NAME), None);
    let large = pattern(30 << 20, 1);
    as_user(USER, &[], || {
        put(&world, "fits", &large[..1 << 20]).unwrap();
        assert_eq!(errno(put(&world, "one more", &large[..5000])), EDQUOT);
        assert_eq!(errno(put(&world, "many more", &large)), EDQUOT);
    });
    for name in ["one more", "many more"] {
        // Linux reports a last close after it has returned.
        soon(name, || {
            let left = fs::metadata(world.path(name)).unwrap();
            (left.size(), left.blocks()) == (0, 0)
        });
        assert!(fs::read(world.path(name)).unwrap().is_empty());
    }
    as_user(OTHER, &[], || put(&world, "other's", &large).unwrap());
    put(&world, "root's", &large).unwrap();
    // Freed space is usable at once.
    as_user(USER, &[], || {
        fs::remove_file(world.path("fits")).unwrap();
        put(&world, "one more", &large[..1 << 20]).unwrap();
    });
    let found = fs::read(world.path("one more")).unwrap();
    assert!(found == large[..1 << 20]);
    let status = world.file_system.as_ref().unwrap().status();
    assert_eq!((status.dirty_bytes, status.files_lost), (0, 2));
}

#[test]
fn a_file_that_is_too_large_by_little_fits_after_something_was_removed() {
    let mut world = world_with(Some(100_000), None);
    let content = pattern(60_000, 2);
    as_user(USER, &[], || {
        put(&world, "old", &content).unwrap();
        let mut file = File::create(world.path("new")).unwrap();
        file.write_all(&content).unwrap();
        assert_eq!(errno(file.sync_all()), EDQUOT);
        assert_eq!(errno(file.write_all(b"more")), EDQUOT);
        fs::remove_file(world.path("old")).unwrap();
        file.sync_all().unwrap();
    });
    world.remount();
    assert!(fs::read(world.path("new")).unwrap() == content);
}

#[test]
fn every_kind_of_inode_counts() {
    let world = world_with(None, Some(2));
    as_user(USER, &[], || {
        fs::create_dir(world.path("directory")).unwrap();
        File::create(world.path("file")).unwrap();
        assert_eq!(errno(File::create(world.path("file 2"))), EDQUOT);
        assert_eq!(errno(fs::create_dir(world.path("directory 2"))), EDQUOT);
        let link = std::os::unix::fs::symlink("file", world.path("link"));
        assert_eq!(errno(link), EDQUOT);
        // Another name is no inode.
        fs::hard_link(world.path("file"), world.path("file 3")).unwrap();
        fs::remove_dir(world.path("directory")).unwrap();
        std::os::unix::fs::symlink("file", world.path("link")).unwrap();
    });
    assert_eq!(fs::read_dir(world.path("")).unwrap().count(), 3);
}

#[test]
fn a_file_that_is_given_away_takes_its_bytes_along() {
    let world = world_with(Some(50_000), None);
    put(&world, "file", &pattern(60_000, 3)).unwrap();
    let path = world.path("file");
    assert_eq!(errno(chown(&path, Some(USER), None)), EDQUOT);
    assert_eq!(fs::metadata(&path).unwrap().uid(), 0);
    limit(&world, QuotaOf::User(Uid(USER)), Some(NAME + 60_000), None);
    chown(&path, Some(USER), None).unwrap();
    as_user(USER, &[], || {
        assert_eq!(errno(put(&world, "more", &pattern(5000, 4))), EDQUOT);
    });
    chown(&path, Some(OTHER), None).unwrap();
    as_user(USER, &[], || {
        put(&world, "more", &pattern(5000, 4)).unwrap()
    });
}

#[test]
fn a_full_volume_is_enospc_for_all_users_and_statfs_shows_it() {
    const MIB: u64 = 1 << 20;
    let world = MountedVolume::new();
    world.open_to_all_users();
    limit(&world, QuotaOf::Realm, Some(2 * MIB + 4 * NAME), Some(100));
    let free = || {
        let found = rustix::fs::statvfs(world.path("")).unwrap();
        (found.f_bavail * found.f_frsize, found.f_ffree)
    };
    assert_eq!(free(), (2 * MIB, 99));
    put(&world, "file", &pattern(2 << 20, 5)).unwrap();
    assert_eq!(free(), (0, 98));
    assert_eq!(errno(put(&world, "root's", &pattern(5000, 6))), ENOSPC);
    as_user(USER, &[], || {
        assert_eq!(errno(put(&world, "user's", &pattern(5000, 6))), ENOSPC);
    });
    fs::remove_file(world.path("file")).unwrap();
    put(&world, "root's", &pattern(5000, 6)).unwrap();
}

#[test]
fn the_superuser_has_no_limit_of_his_own() {
    let world = MountedVolume::new();
    limit(&world, QuotaOf::Default, Some(0), Some(0));
    put(&world, "file", &pattern(60_000, 7)).unwrap();
    fs::create_dir(world.path("directory")).unwrap();
}

#[test]
fn a_shared_copy_counts_for_each_of_its_files() {
    let world = world_with(Some(150_000), None);
    let content = pattern(60_000, 8);
    as_user(USER, &[], || {
        put(&world, "one", &content).unwrap();
        fs::copy(world.path("one"), world.path("two")).unwrap();
        let third = fs::copy(world.path("one"), world.path("three"));
        assert_eq!(errno(third), EDQUOT);
    });
    assert!(fs::read(world.path("two")).unwrap() == content);
}
