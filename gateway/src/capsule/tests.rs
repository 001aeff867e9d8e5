//! Links, manifests, and what an opener refuses.

use super::content::{LinkedContent, Run, RunSource};
use super::decoding::{entry, file, located, manifest};
use super::manifest::{EntryKind, Manifest, ManifestError, Payload, check_target};
use super::open::{CapsuleError, OpenedCapsule};
use super::text::{CapsuleLink, LinkTextError, PREFIX};
use crate::blocks::{LinkedReader, UrlReader};
use async_trait::async_trait;
use bytes::Bytes;
use quorumfs_backends::{Deadline, Operation, StoreError, StoreErrorKind};
use quorumfs_metadata::placement::Policy;
use std::sync::Arc;

/// The text of a link of the first version.
const LINK: &str = "quorumfs-capsule-1:KLUv_WDhAf0DABJGFh6gqwP__-v_fzx7_paNROI9j-rZzP-3OXD \
    2x7L3likA8L_573n4vTOMVhQrEVpdVZGax0pkpBBHCkYJOTDXBC0xHhbX6vwX9u8b8Gv7D \
    v9vz-97_j-VZHcBECBwr1YDoidx2Him-DES-6SYH4Mkdi8tcqlDWCZiEAveVTa7w-im11O \
    Scw";

fn text() -> String {
    CapsuleLink(located()).to_text().unwrap()
}

fn refused(manifest: Manifest) -> ManifestError {
    let bytes = Payload::Manifest(manifest).encode().unwrap();
    Payload::decode(&bytes).unwrap_err()
}

#[test]
fn a_link_says_the_same_after_mail_programs_have_broken_its_lines() {
    let text = text();
    let broken: Vec<String> = text
        .as_bytes()
        .chunks(60)
        .map(|line| String::from_utf8(line.to_vec()).unwrap())
        .collect();
    for text in [text, broken.join("\r\n  "), broken.join("\n") + "\n"] {
        assert_eq!(CapsuleLink::parse(&text), Ok(CapsuleLink(located())));
    }
}

#[test]
fn a_link_that_was_cut_or_changed_is_said_to_be_so() {
    let text = text();
    for length in [
        PREFIX.len() - 2,
        PREFIX.len(),
        text.len() / 2,
        text.len() - 1,
    ] {
        let cut = CapsuleLink::parse(&text[..length]);
        assert_eq!(cut, Err(LinkTextError::Cut), "{length}");
    }
    let mut changed = text.clone().into_bytes();
    let at = changed.len() / 2;
    changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
    let changed = String::from_utf8(changed).unwrap();
    assert_eq!(CapsuleLink::parse(&changed), Err(LinkTextError::Cut));
    let newer = text.replacen("capsule-1", "capsule-2", 1);
    assert_eq!(CapsuleLink::parse(&newer), Err(LinkTextError::Newer));
    for foreign in ["", "https://files.example/s/x#y", "quorumfs"] {
        assert_eq!(CapsuleLink::parse(foreign), Err(LinkTextError::Foreign));
    }
}

#[test]
fn neither_a_link_nor_a_manifest_shows_its_secrets() {
    let shown = format!("{:?} {:?}", CapsuleLink(located()), manifest());
    assert!(
        !shown.contains("signature") && !shown.contains("9, 9, 9"),
        "{shown}"
    );
}

#[test]
fn a_manifest_is_read_as_it_was_written() {
    for payload in [Payload::Manifest(manifest()), Payload::Elsewhere(located())] {
        let bytes = payload.encode().unwrap();
        assert!(bytes.len() >= 4096, "it would lie in its inode");
        assert_eq!(Payload::decode(&bytes), Ok(payload));
    }
    let paths: Vec<_> = manifest()
        .entries()
        .iter()
        .map(|it| manifest().path(it))
        .collect();
    assert_eq!(paths.last().unwrap(), b"Photos/2024/first");
    assert_eq!(manifest().bytes(), 400_000);
}

/// What was written by the first version is read by all.
#[test]
fn the_bytes_of_a_capsule_stay_as_they_are() {
    let bytes = Payload::Manifest(manifest()).encode().unwrap();
    let digest = blake3::hash(&bytes).to_hex();
    assert_eq!(&digest[..16], "ba8b5524bbd09e87");
    assert_eq!(CapsuleLink::parse(LINK), Ok(CapsuleLink(located())));
}

#[test]
fn nothing_that_could_lead_outside_is_accepted() {
    for name in ["", ".", "..", "a/b", "/etc", "a\0"] {
        let mut evil = manifest();
        evil.entries[1].name = name.into();
        assert!(
            matches!(refused(evil), ManifestError::Escapes(_)),
            "{name:?}"
        );
    }
    for target in [
        "/etc/passwd",
        "..",
        "../..",
        "2024/../../..",
        "x/../../y",
        "",
        "../x/../../y",
    ] {
        let mut evil = manifest();
        evil.entries
            .push(entry(Some(0), "link", EntryKind::Symlink(target.into())));
        assert!(
            matches!(refused(evil), ManifestError::Escapes(_)),
            "{target:?}"
        );
    }
    assert_eq!(check_target(b"../a.jpg", 2), Ok(()));
    assert_eq!(check_target(b"./2024/b.jpg", 1), Ok(()));
    // A link at the top has nothing around it that it could lead to.
    assert!(check_target(b"a", 0).is_err());
}

#[test]
fn what_contradicts_itself_is_refused() {
    let changed = |change: fn(&mut Manifest)| {
        let mut evil = manifest();
        change(&mut evil);
        assert!(matches!(refused(evil), ManifestError::Contradiction(_)));
    };
    changed(|it| it.entries.clear());
    changed(|it| it.entries.push(entry(None, "second", file())));
    changed(|it| it.entries.push(entry(Some(0), "a.jpg", file())));
    changed(|it| it.entries.push(entry(Some(1), "in a file", file())));
    changed(|it| it.entries.push(entry(Some(4), "in a link", file())));
    changed(|it| it.entries.push(entry(Some(99), "nowhere", file())));
    changed(|it| it.tables.slices[0].object = 9);
    changed(|it| drop(it.tables.objects[0].shards.pop()));
    changed(|it| it.tables.objects[0].shards[0].url = None);
    changed(|it| it.tables.slices[0].length = u32::MAX);
    changed(|it| it.tables.slices[0].sealed_length = 60_017);
    changed(|it| it.tables.slices[0].offset = 20_000);
    changed(|it| it.tables.objects[0].policy = Policy::new(32, 0, 1, 32).unwrap());
    changed(|it| it.entries[1].mode = 0o4755);
    changed(|it| it.entries[1].modified.1 = 1_000_000_000);
    let content = |runs: Vec<(u64, u32, RunSource)>| {
        let run = |(at, length, source)| Run { at, length, source };
        let runs = runs.into_iter().map(run).collect();
        let mut evil = manifest();
        let content = EntryKind::File(LinkedContent { size: 100, runs });
        evil.entries.push(entry(Some(0), "c", content));
        assert!(matches!(refused(evil), ManifestError::Contradiction(_)));
    };
    let slice = |slice, begin| RunSource::Slice { slice, begin };
    content(vec![(0, 101, slice(0, 0))]);
    content(vec![(0, 10, slice(0, 59_991))]);
    content(vec![(0, 10, slice(0, u32::MAX))]);
    content(vec![(0, 10, slice(2, 0))]);
    content(vec![(0, 0, slice(0, 0))]);
    content(vec![(0, 10, slice(0, 0)), (9, 10, slice(0, 0))]);
    content(vec![(0, 10, RunSource::Bytes(vec![1]))]);
}

#[test]
fn bytes_of_something_else_are_no_capsule() {
    let bytes = Payload::Manifest(manifest()).encode().unwrap();
    assert_eq!(Payload::decode(b"QFSOBJCT"), Err(ManifestError::Foreign));
    let mut newer = bytes.clone();
    newer[9] = 2;
    assert_eq!(Payload::decode(&newer), Err(ManifestError::Newer(2)));
    assert!(matches!(
        Payload::decode(&bytes[..60]),
        Err(ManifestError::Damaged(_))
    ));
    let mut longer = bytes;
    longer.push(1);
    assert!(matches!(
        Payload::decode(&longer),
        Err(ManifestError::Damaged(_))
    ));
}

/// Clouds that all refuse in the same way.
#[derive(Debug)]
struct Refusing(StoreErrorKind);

#[async_trait]
impl UrlReader for Refusing {
    async fn get(&self, url: &str, _: u64, _: Deadline) -> Result<Bytes, StoreError> {
        assert!(url.starts_with("https://"));
        Err(StoreError {
            kind: self.0,
            operation: Operation::Get,
            cloud: "cloud".to_owned(),
            object: None,
            detail: "no".to_owned(),
        })
    }
}

#[tokio::test]
async fn a_link_that_has_ended_is_told_from_clouds_that_are_away() {
    let open = |kind| async move {
        let reader = LinkedReader::new(Arc::new(Refusing(kind)));
        let opened = OpenedCapsule::open(reader, &CapsuleLink(located())).await;
        opened.map(drop).unwrap_err()
    };
    for kind in [StoreErrorKind::Denied, StoreErrorKind::NotFound] {
        let error = open(kind).await;
        assert!(matches!(error, CapsuleError::Ended(_)), "{error}");
    }
    let error = open(StoreErrorKind::Unavailable).await;
    assert!(matches!(error, CapsuleError::Unreachable(_)), "{error}");
}
