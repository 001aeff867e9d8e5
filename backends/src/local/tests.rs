//! A local cloud: what it stores, what it refuses, and what a crash leaves.

use super::*;
use crate::marker::MARKER_FILE;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

const MARKER: Marker = Marker {
    volume: [9; 16],
    cloud: 2,
};

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

fn name(number: u32) -> ObjectName {
    ObjectName::parse(&format!("{:02x}/{number:08x}", number % 256)).unwrap()
}

fn cloud() -> (TempDir, PathBuf, LocalStore) {
    let place = TempDir::new().unwrap();
    let path = place.path().join("cloud-2");
    LocalStore::create(&path, MARKER).unwrap();
    let store = LocalStore::open(&path, MARKER).unwrap();
    (place, path, store)
}

#[track_caller]
fn refused(path: &Path, marker: Marker, kind: StoreErrorKind, what: &str) {
    let error = LocalStore::open(path, marker).unwrap_err();
    let text = error.to_string();
    assert_eq!(error.kind, kind, "{text}");
    assert!(text.contains("cloud 2 (") && text.contains(what), "{text}");
    assert!(text.ends_with(kind.advice()), "{text}");
}

#[tokio::test]
async fn an_object_reads_back_whole_and_in_ranges() {
    let (_place, _, store) = cloud();
    let body = Bytes::from((0..100_000u32).map(|i| i as u8).collect::<Vec<_>>());
    store
        .put_if_absent(&name(1), body.clone(), soon())
        .await
        .unwrap();
    assert_eq!(store.get(&name(1), 100_000, soon()).await.unwrap(), body);
    assert_eq!(
        store
            .get_range(&name(1), 70_000..70_010, soon())
            .await
            .unwrap(),
        body.slice(70_000..70_010)
    );
    assert_eq!(
        store.head(&name(1), soon()).await.unwrap(),
        ObjectInfo { length: 100_000 }
    );
    assert_eq!(
        store.get(&name(2), 9, soon()).await.unwrap_err().kind,
        StoreErrorKind::NotFound
    );
    assert_eq!(
        store.get(&name(1), 9, soon()).await.unwrap_err().kind,
        StoreErrorKind::Corrupt
    );
    let beyond = store
        .get_range(&name(1), 99_999..100_001, soon())
        .await
        .unwrap_err();
    assert_eq!(beyond.kind, StoreErrorKind::Corrupt);
    store.delete(&name(1), soon()).await.unwrap();
    store.delete(&name(1), soon()).await.unwrap();
    assert_eq!(
        store.head(&name(1), soon()).await.unwrap_err().kind,
        StoreErrorKind::NotFound
    );
}

#[tokio::test]
async fn of_many_writers_of_one_name_exactly_one_wins_and_its_bytes_stay() {
    let (_place, path, store) = cloud();
    let writers: Vec<_> = (0..12u8)
        .map(|i| {
            let store = store.clone();
            tokio::spawn(async move {
                store
                    .put_if_absent(&name(5), Bytes::from(vec![i; 5000]), soon())
                    .await
            })
        })
        .collect();
    let mut winner = None;
    for (i, writer) in writers.into_iter().enumerate() {
        match writer.await.unwrap() {
            Ok(_) => assert_eq!(winner.replace(i), None),
            Err(error) => assert_eq!(error.kind, StoreErrorKind::AlreadyExists),
        }
    }
    let stored = store.get(&name(5), 5000, soon()).await.unwrap();
    assert!(stored.iter().all(|b| usize::from(*b) == winner.unwrap()));
    assert_eq!(
        fs::read_dir(path.join("incoming")).unwrap().count(),
        0,
        "no temporary file is left"
    );
}

#[tokio::test]
async fn a_listing_in_pages_shows_every_object_once_in_order() {
    let (_place, path, store) = cloud();
    let mut wanted: Vec<_> = (0..300).map(|i| name(i * 7)).collect();
    wanted.sort();
    for object in &wanted {
        store
            .put_if_absent(object, Bytes::from_static(b"x"), soon())
            .await
            .unwrap();
    }
    fs::write(path.join("07/not.an.object"), b"").unwrap();
    for limit in [1, 7, 299, 300, 1000] {
        let (mut seen, mut cursor) = (Vec::new(), None);
        loop {
            let page = store
                .list("", cursor.as_ref(), limit, soon())
                .await
                .unwrap();
            assert!(page.names.len() <= limit);
            seen.extend(page.names);
            cursor = seen.last().cloned();
            if !page.more {
                break;
            }
        }
        assert_eq!(seen, wanted, "limit {limit}");
    }
    let page = store.list("0", None, 1000, soon()).await.unwrap();
    let below = |prefix: &str| {
        wanted
            .iter()
            .filter(|n| n.as_str().starts_with(prefix))
            .count()
    };
    assert_eq!(page.names.len(), below("0"));
    let page = store.list("07/000000", None, 1000, soon()).await.unwrap();
    assert_eq!(page.names.len(), below("07/000000"));
}

#[tokio::test]
async fn a_missing_cloud_directory_is_refused() {
    let (_place, path, store) = cloud();
    store
        .put_if_absent(&name(1), Bytes::from_static(b"kept"), soon())
        .await
        .unwrap();
    let away = path.with_extension("away");
    fs::rename(&path, &away).unwrap();
    refused(
        &path,
        MARKER,
        StoreErrorKind::Unavailable,
        "the directory does not exist",
    );
    let error = store.get(&name(1), 9, soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    let error = store
        .put_if_absent(&name(2), Bytes::new(), soon())
        .await
        .unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    // It is used again as soon as it is back.
    fs::rename(&away, &path).unwrap();
    assert_eq!(store.get(&name(1), 9, soon()).await.unwrap(), "kept");
}

#[tokio::test]
async fn a_read_only_cloud_directory_is_refused_for_writing_and_still_read() {
    let (_place, path, store) = cloud();
    store
        .put_if_absent(&name(1), Bytes::from_static(b"kept"), soon())
        .await
        .unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o555)).unwrap();
    refused(
        &path,
        MARKER,
        StoreErrorKind::ReadOnly,
        "lets no user write",
    );
    let error = store
        .put_if_absent(&name(2), Bytes::new(), soon())
        .await
        .unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::ReadOnly, "{error}");
    assert_eq!(store.get(&name(1), 9, soon()).await.unwrap(), "kept");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_cloud_directory_full_of_garbage_is_refused_and_left_alone() {
    let place = TempDir::new().unwrap();
    refused(
        place.path(),
        MARKER,
        StoreErrorKind::Foreign,
        "the directory is empty",
    );
    fs::write(place.path().join("holiday.jpg"), b"precious").unwrap();
    refused(
        place.path(),
        MARKER,
        StoreErrorKind::Foreign,
        "holds something else",
    );
    let error = LocalStore::create(place.path(), MARKER).unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Foreign);
    assert!(error.to_string().contains("holiday.jpg"), "{error}");
    fs::write(place.path().join(MARKER_FILE), b"garbage").unwrap();
    refused(
        place.path(),
        MARKER,
        StoreErrorKind::Foreign,
        "not one of quorumfs",
    );
    fs::write(place.path().join(MARKER_FILE), vec![b'Q'; 1 << 20]).unwrap();
    refused(
        place.path(),
        MARKER,
        StoreErrorKind::Foreign,
        "not one of quorumfs",
    );
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
}

#[test]
fn a_cloud_of_another_volume_or_index_is_refused() {
    let (_place, path, _) = cloud();
    let other = Marker {
        volume: [8; 16],
        ..MARKER
    };
    refused(&path, other, StoreErrorKind::Foreign, "was expected");
    let error = LocalStore::open(&path, Marker { cloud: 3, ..MARKER }).unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Foreign, "{error}");
    assert_eq!(
        LocalStore::create(&path, Marker { cloud: 3, ..MARKER })
            .unwrap_err()
            .kind,
        error.kind
    );
}

#[test]
fn a_cloud_of_a_newer_format_is_refused() {
    let (_place, path, _) = cloud();
    let mut bytes = MARKER.encode();
    bytes[9] = 3;
    fs::write(path.join(MARKER_FILE), bytes).unwrap();
    refused(&path, MARKER, StoreErrorKind::NewerFormat, "format 3");
}

#[test]
fn a_damaged_marker_is_refused() {
    let (_place, path, _) = cloud();
    let mut bytes = MARKER.encode();
    bytes[40] ^= 1;
    fs::write(path.join(MARKER_FILE), bytes).unwrap();
    refused(&path, MARKER, StoreErrorKind::Corrupt, "damaged");
}

#[test]
fn creating_a_cloud_again_completes_an_interrupted_creation() {
    let (_place, path, _) = cloud();
    LocalStore::create(&path, MARKER).unwrap();
    fs::remove_file(path.join(MARKER_FILE)).unwrap();
    fs::remove_dir(path.join("7f")).unwrap();
    LocalStore::create(&path, MARKER).unwrap();
    LocalStore::open(&path, MARKER).unwrap();
}

#[tokio::test]
async fn a_directory_that_was_swept_away_is_restored_by_the_next_put() {
    let (_place, path, store) = cloud();
    fs::remove_dir(path.join("01")).unwrap();
    fs::remove_dir(path.join("incoming")).unwrap();
    store
        .put_if_absent(&name(1), Bytes::from_static(b"x"), soon())
        .await
        .unwrap();
    assert_eq!(store.get(&name(1), 9, soon()).await.unwrap(), "x");
}

#[tokio::test]
async fn reading_never_waits_for_a_special_file() {
    let (_place, path, store) = cloud();
    let status = std::process::Command::new("mkfifo")
        .arg(path.join("01/00000001"))
        .status()
        .unwrap();
    assert!(status.success());
    std::os::unix::fs::symlink("/etc/passwd", path.join("02/00000002")).unwrap();
    for object in [name(1), name(2)] {
        assert_eq!(
            store.get(&object, 9999, soon()).await.unwrap_err().kind,
            StoreErrorKind::Other
        );
    }
}

#[tokio::test]
async fn a_deadline_ends_the_wait() {
    let (_place, _, store) = cloud();
    let _all = store
        .jobs
        .clone()
        .acquire_many_owned(JOBS_MAX as u32)
        .await
        .unwrap();
    let deadline = Deadline::after(Duration::from_millis(20));
    let error = store.get(&name(1), 9, deadline).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Timeout, "{error}");
}

#[test]
fn a_full_disk_and_its_relatives_have_kinds_of_their_own() {
    use rustix::io::Errno;
    for (errno, kind) in [
        (Errno::NOSPC, StoreErrorKind::Full),
        (Errno::DQUOT, StoreErrorKind::Full),
        (Errno::ROFS, StoreErrorKind::ReadOnly),
        (Errno::ACCESS, StoreErrorKind::Denied),
        (Errno::PERM, StoreErrorKind::Denied),
        (Errno::IO, StoreErrorKind::Other),
        (Errno::STALE, StoreErrorKind::Unavailable),
    ] {
        let fault = files::Fault::from(std::io::Error::from_raw_os_error(errno.raw_os_error()));
        assert_eq!(fault.kind, kind, "{errno}");
    }
}

#[tokio::test]
async fn a_cloud_that_was_founded_in_vain_is_given_back_and_one_in_use_is_not() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("cloud");
    let store = LocalStore::attach(&path, MARKER);
    store.found(soon()).await.unwrap();
    store.check(soon()).await.unwrap();
    store.give_back(soon()).await.unwrap();
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    store.found(soon()).await.unwrap();
    let body = Bytes::from_static(b"kept");
    store
        .put_if_absent(&name(1), body.clone(), soon())
        .await
        .unwrap();
    let error = store.give_back(soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Foreign, "{error}");
    assert_eq!(store.get(&name(1), 10, soon()).await.unwrap(), body);
    store.check(soon()).await.unwrap();
}

#[tokio::test]
async fn a_place_without_a_marker_is_founded_again_only_if_it_holds_no_object() {
    let (_place, path, store) = cloud();
    store
        .put_if_absent(&name(7), Bytes::from_static(b"x"), soon())
        .await
        .unwrap();
    fs::remove_file(path.join(MARKER_FILE)).unwrap();
    let refused = store.found(soon()).await.unwrap_err();
    assert_eq!(refused.kind, StoreErrorKind::Foreign);
    assert!(refused.to_string().contains("07/00000007"), "{refused}");
    assert!(!path.join(MARKER_FILE).exists());
    fs::remove_file(path.join(name(7).as_str())).unwrap();
    store.found(soon()).await.unwrap();
    store.check(soon()).await.unwrap();
}

#[tokio::test]
async fn free_space_is_that_of_the_file_system() {
    let (place, path, store) = cloud();
    let room = store.free_space(soon()).await.unwrap().unwrap();
    let free = rustix::fs::statvfs(&path).unwrap();
    // Other processes write there too.
    let free = free.f_bavail * free.f_frsize;
    assert!(room.bytes.abs_diff(free) < 1 << 30, "{room:?} {free}");
    let neighbour = place.path().join("cloud-3");
    let marker = Marker { cloud: 3, ..MARKER };
    LocalStore::create(&neighbour, marker).unwrap();
    let neighbour = LocalStore::open(&neighbour, marker).unwrap();
    let other = neighbour.free_space(soon()).await.unwrap().unwrap();
    assert_eq!(other.pool, room.pool, "they share it");
}

/// A file that was last written long ago.
fn old_file(path: &Path) {
    fs::write(path, b"content").unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(7200);
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(long_ago).unwrap();
}

const RANDOM: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn only_files_left_by_crashes_are_swept() {
    let (place, path, _) = cloud();
    let other = place.path().join("other");
    old_file(&other);
    let incoming = path.join("incoming");
    old_file(&incoming.join(RANDOM));
    let link = RANDOM.replace('0', "f");
    std::os::unix::fs::symlink(&other, incoming.join(&link)).unwrap();
    old_file(&incoming.join("notes.txt"));
    let new = RANDOM.replace('0', "e");
    fs::write(incoming.join(&new), b"under way").unwrap();
    LocalStore::open(&path, MARKER).unwrap();
    let left = fs::read_dir(&incoming).unwrap();
    let left: BTreeSet<_> = left
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(left, BTreeSet::from([link, "notes.txt".into(), new]));
    assert!(other.exists());
}

#[tokio::test]
async fn a_link_in_the_place_of_incoming_is_not_followed() {
    let (place, path, _) = cloud();
    let elsewhere = place.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    old_file(&elsewhere.join(RANDOM));
    fs::remove_dir(path.join("incoming")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, path.join("incoming")).unwrap();
    let store = LocalStore::open(&path, MARKER).unwrap();
    let body = Bytes::from_static(b"x");
    let error = store.put_if_absent(&name(1), body, soon()).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Other);
    assert!(
        error.to_string().contains("incoming in it is a link"),
        "{error}"
    );
    store.give_back(soon()).await.unwrap_err();
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 1);
}

#[tokio::test]
async fn a_link_in_the_place_of_objects_is_not_followed() {
    let (place, path, store) = cloud();
    let elsewhere = place.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("00000001"), b"another's").unwrap();
    fs::remove_dir(path.join("01")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, path.join("01")).unwrap();
    let body = Bytes::from_static(b"x");
    let (here, there) = (name(1), name(257));
    store.put_if_absent(&there, body, soon()).await.unwrap_err();
    store.get(&here, 99, soon()).await.unwrap_err();
    store.head(&here, soon()).await.unwrap_err();
    store.delete(&here, soon()).await.unwrap_err();
    store.list("", None, 99, soon()).await.unwrap_err();
    let left = fs::read_dir(&elsewhere).unwrap().count();
    assert_eq!(left, 1);
    assert_eq!(fs::read(elsewhere.join("00000001")).unwrap(), b"another's");
}

#[test]
fn the_root_of_a_disk_can_be_a_cloud() {
    let place = TempDir::new().unwrap();
    fs::create_dir(place.path().join("lost+found")).unwrap();
    fs::write(place.path().join("lost+found/#12"), b"found").unwrap();
    LocalStore::create(place.path(), MARKER).unwrap();
    LocalStore::open(place.path(), MARKER).unwrap();
}

#[test]
fn a_file_system_without_hard_links_is_named_as_the_reason() {
    for errno in [rustix::io::Errno::PERM, rustix::io::Errno::OPNOTSUPP] {
        let fault = files::unlinked(errno);
        assert!(
            fault.detail.contains("has no hard links"),
            "{}",
            fault.detail
        );
    }
}
