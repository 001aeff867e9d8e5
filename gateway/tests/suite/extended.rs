//! Extended attributes over a service in this process: what is sealed, and what is cached.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use crate::common::{TestVolume, new_file, root};
use quorumfs_gateway::vfs::{AttributeChange, Caller, OpenMode, SetMode, VfsOptions};
use quorumfs_metadata::operation::{Operation, Step};
use rustix::io::Errno;
use std::time::Duration;

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[tokio::test]
async fn servers_see_neither_names_nor_values_and_cannot_compare_them() {
    let world = TestVolume::new();
    let (fs, wire) = world.mount_over(VfsOptions::default()).await;
    let (one, _) = new_file(&fs, b"one").await;
    let (two, _) = new_file(&fs, b"two").await;
    let (name, value) = (b"user.planted-name".as_slice(), b"planted value".as_slice());
    for inode in [one, two] {
        fs.setxattr(&root(), inode, name, value, SetMode::Any)
            .await
            .unwrap();
    }
    let same_name = b"trusted.planted-name";
    fs.setxattr(&root(), one, same_name, value, SetMode::Any)
        .await
        .unwrap();
    let mut seen = Vec::new();
    for operation in wire.sent.lock().unwrap().iter() {
        assert!(!contains(&operation.to_bytes(), b"planted"));
        if let Operation::Compound(compound) = operation {
            for step in &compound.steps {
                if let Step::SetExtended(set) = step {
                    seen.push((set.place.hash, set.name.clone(), set.value.bytes.clone()));
                }
            }
        }
    }
    assert_eq!(seen.len(), 3);
    for (at, a) in seen.iter().enumerate() {
        for b in &seen[..at] {
            assert!(a.0 != b.0 && a.1 != b.1 && a.2 != b.2);
        }
    }
    let fresh = world.mount(VfsOptions::default()).await;
    assert_eq!(fresh.getxattr(&root(), two, name).await.unwrap(), value);
    let listed = fresh.listxattr(&root(), one).await.unwrap();
    let mut names: Vec<_> = listed.split_terminator(0).collect();
    names.sort_unstable();
    assert_eq!(names, [same_name.as_slice(), name]);
}

trait SplitTerminator {
    fn split_terminator(&self, terminator: u8) -> impl Iterator<Item = &[u8]>;
}

impl SplitTerminator for Vec<u8> {
    fn split_terminator(&self, terminator: u8) -> impl Iterator<Item = &[u8]> {
        self.split_inclusive(move |byte| *byte == terminator)
            .map(|part| &part[..part.len() - 1])
    }
}

#[tokio::test(start_paused = true)]
async fn attributes_set_by_another_session_are_seen_within_a_second() {
    let world = TestVolume::in_test_time();
    let fs = world.mount(VfsOptions::default()).await;
    let command = world.command(VfsOptions::default());
    let (inode, handle) = new_file(&fs, b"file").await;
    fs.release(handle).await.unwrap();
    static ROOT: Caller = Caller {
        uid: 0,
        gid: 0,
        groups: quorumfs_gateway::vfs::GroupSource::Known(Vec::new()),
        umask: 0,
    };
    let set = |value: &'static [u8]| command.setxattr(&ROOT, inode, b"user.a", value, SetMode::Any);
    assert_eq!(
        fs.getxattr(&ROOT, inode, b"user.a")
            .await
            .unwrap_err()
            .errno(),
        Errno::NODATA
    );
    for value in [b"one".as_slice(), b"two"] {
        set(value).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1100)).await;
        assert_eq!(fs.getxattr(&ROOT, inode, b"user.a").await.unwrap(), value);
    }
    let before = fs.status().queries;
    for _ in 0..20 {
        fs.getxattr(&ROOT, inode, b"user.a").await.unwrap();
        let none = fs.getxattr(&ROOT, inode, b"security.capability").await;
        assert_eq!(none.unwrap_err().errno(), Errno::NODATA);
    }
    assert!(fs.status().queries - before <= 1);
    fs.removexattr(&ROOT, inode, b"user.a").await.unwrap();
    let gone = fs.getxattr(&ROOT, inode, b"user.a").await;
    assert_eq!(
        gone.unwrap_err().errno(),
        Errno::NODATA,
        "own changes at once"
    );
}

#[tokio::test]
async fn a_value_is_readable_with_the_file() {
    let world = TestVolume::new();
    let fs = world.mount(VfsOptions::default()).await;
    let (inode, _) = new_file(&fs, b"file").await;
    fs.setxattr(&root(), inode, b"user.a", b"value", SetMode::Any)
        .await
        .unwrap();
    fs.setxattr(&root(), inode, b"trusted.b", b"value", SetMode::Any)
        .await
        .unwrap();
    let chmod = |mode| {
        let change = AttributeChange {
            mode: Some(mode),
            uid: Some(7),
            gid: Some(8),
            ..AttributeChange::default()
        };
        let fs = fs.clone();
        async move { fs.setattr(&root(), inode, None, change).await.unwrap() }
    };
    let get = |caller: Caller, name: &'static [u8]| {
        let fs = fs.clone();
        async move {
            let found = fs.getxattr(&caller, inode, name).await;
            found.map_err(|error| error.errno())
        }
    };
    let owner = || Caller::user(7, 1, vec![]);
    let member = || Caller::user(9, 1, vec![8]);
    let other = || Caller::user(9, 9, vec![]);
    chmod(0o640).await;
    assert!(get(owner(), b"user.a").await.is_ok());
    assert!(get(member(), b"user.a").await.is_ok());
    assert_eq!(get(other(), b"user.a").await, Err(Errno::ACCESS));
    chmod(0o004).await;
    assert_eq!(get(owner(), b"user.a").await, Err(Errno::ACCESS));
    assert_eq!(get(member(), b"user.a").await, Err(Errno::ACCESS));
    assert!(get(other(), b"user.a").await.is_ok());
    assert_eq!(get(owner(), b"trusted.b").await, Err(Errno::NODATA));
    assert!(get(root(), b"trusted.b").await.is_ok());
}

#[tokio::test]
async fn attributes_set_while_content_is_pending_and_that_content_are_both_kept() {
    let world = TestVolume::new();
    let fs = world.mount(VfsOptions::default()).await;
    let (inode, handle) = new_file(&fs, b"file").await;
    for round in 0..5_u8 {
        fs.write(handle, u64::from(round) * 5000, &[round; 5000])
            .await
            .unwrap();
        fs.setxattr(&root(), inode, b"user.round", &[round], SetMode::Any)
            .await
            .unwrap();
        let capability = b"security.capability";
        fs.setxattr(&root(), inode, capability, b"c", SetMode::Any)
            .await
            .unwrap();
        assert_eq!(fs.getxattr(&root(), inode, capability).await.unwrap(), "c");
    }
    fs.release(handle).await.unwrap();
    let again = world.mount(VfsOptions::default()).await;
    assert_eq!(again.getattr(inode).await.unwrap().size, 25_000);
    let round = again.getxattr(&root(), inode, b"user.round").await;
    assert_eq!(round.unwrap(), [4].as_slice());
    let opened = again.open(&root(), inode, OpenMode::READ_WRITE).await;
    let handle = opened.unwrap().handle;
    again.write(handle, 0, b"x").await.unwrap();
    let gone = again.getxattr(&root(), inode, b"security.capability").await;
    assert_eq!(gone.unwrap_err().errno(), Errno::NODATA);
    again.release(handle).await.unwrap();
}
