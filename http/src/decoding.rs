//! Everything of this crate that reads bytes of strangers, as one function from bytes: for fuzzing.
//!
//! A tree in memory stands for the volume. Bytes are either a header or a name for the pure parts,
//! or what a client sends on a connection. Next to the shared folder lies a secret that no answer
//! may contain.

use crate::admission::forwarded_for;
use crate::archive::ZipStream;
use crate::conditions::{Conditions, Representation, RightAnswer, right_answer};
use crate::escape::{archived, disposition, html, shown, url};
use crate::route::{Route, is_name, route};
use crate::server::{LinkServer, ServingOptions};
use crate::source::{
    LinkSource, LinkTarget, ListedEntry, ListedPage, OpenContent, SourceError, TargetEntry,
    TargetKind,
};
use crate::token::LinkToken;
use async_trait::async_trait;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The secret next to the shared folder.
pub const SECRET: &str = "what is outside of the link";
/// The link to the folder.
pub const FOLDER: LinkToken = LinkToken::new([1; 24]);
/// The link to a file.
pub const FILE: LinkToken = LinkToken::new([2; 24]);

/// A tree by paths from its root, and links into it.
#[derive(Clone, Debug, Default)]
pub struct MemoryTree {
    /// Files by path; a folder is what is on the way.
    pub files: BTreeMap<Vec<Vec<u8>>, Bytes>,
    /// Symbolic links by path, with the path that each leads to.
    pub symlinks: BTreeMap<Vec<Vec<u8>>, Vec<Vec<u8>>>,
    /// Where the links lead.
    pub links: Arc<Mutex<BTreeMap<LinkToken, Vec<Vec<u8>>>>>,
    /// Counts changes: a file that was opened before the last one has changed.
    pub writes: Arc<AtomicU64>,
}

impl MemoryTree {
    /// A folder with a few things, a file, and the secret next to them.
    #[must_use]
    pub fn sample() -> Self {
        let path = |text: &str| -> Vec<Vec<u8>> {
            text.split('/')
                .map(|name| name.as_bytes().to_vec())
                .collect()
        };
        let mut tree = Self::default();
        for (name, content) in [
            ("shared/a.txt", "the first file"),
            ("shared/b/page.html", "<script>alert(1)</script>"),
            ("shared/b/c/deep.bin", "deep"),
            ("shared/<i>&amp;.png", "picture"),
            ("secret.txt", SECRET),
        ] {
            tree.files
                .insert(path(name), Bytes::from_static(content.as_bytes()));
        }
        tree.symlinks.insert(path("shared/out"), path("secret.txt"));
        tree.link(FOLDER, path("shared"));
        tree.link(FILE, path("shared/a.txt"));
        tree
    }

    /// Makes a link.
    pub fn link(&self, token: LinkToken, path: Vec<Vec<u8>>) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.insert(token, path);
    }

    /// Ends a link.
    pub fn revoke(&self, token: &LinkToken) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.remove(token);
    }

    /// What lies at a path, which also is its number.
    fn entry(&self, path: &[Vec<u8>]) -> Result<TargetEntry, SourceError> {
        let is_below =
            |(it, _): &(&Vec<Vec<u8>>, &Bytes)| it.len() > path.len() && it.starts_with(path);
        let (kind, size) = if self.symlinks.contains_key(path) {
            (TargetKind::Other("symbolic link"), 0)
        } else if let Some(content) = self.files.get(path) {
            (TargetKind::File, content.len() as u64)
        } else if path.is_empty() || self.files.iter().any(|it| is_below(&it)) {
            (TargetKind::Folder, 0)
        } else {
            return Err(SourceError::Missing);
        };
        let mut version = [0; 16];
        for (index, byte) in path.iter().flatten().enumerate() {
            version[index % 16] ^= byte.rotate_left((index / 16 % 8) as u32);
        }
        Ok(TargetEntry {
            inode: 0,
            kind,
            size,
            modified: 784_111_777,
            version,
        })
    }
}

struct MemoryTarget {
    tree: MemoryTree,
    root: Vec<Vec<u8>>,
    opened: Mutex<BTreeMap<[u8; 16], Vec<Vec<u8>>>>,
}

#[async_trait]
impl LinkSource for MemoryTree {
    async fn find(&self, token: &LinkToken) -> Result<Option<Arc<dyn LinkTarget>>, SourceError> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let target = links.get(token).map(|root| MemoryTarget {
            tree: self.clone(),
            root: root.clone(),
            opened: Mutex::default(),
        });
        Ok(target.map(|it| Arc::new(it) as Arc<dyn LinkTarget>))
    }
}

impl MemoryTarget {
    fn note(&self, path: Vec<Vec<u8>>) -> Result<TargetEntry, SourceError> {
        let entry = self.tree.entry(&path)?;
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.insert(entry.version, path);
        Ok(entry)
    }

    fn path(&self, entry: &TargetEntry) -> Result<Vec<Vec<u8>>, SourceError> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened
            .get(&entry.version)
            .cloned()
            .ok_or(SourceError::Missing)
    }
}

#[async_trait]
impl LinkTarget for MemoryTarget {
    fn number(&self) -> u64 {
        1
    }

    fn name(&self) -> &[u8] {
        self.root.last().map_or(b"", Vec::as_slice)
    }

    async fn look(&self, path: &[Vec<u8>]) -> Result<TargetEntry, SourceError> {
        assert!(path.iter().all(|name| is_name(name)), "{path:?}");
        self.note([&self.root[..], path].concat())
    }

    async fn open(
        &self,
        entry: &TargetEntry,
    ) -> Result<(TargetEntry, Box<dyn OpenContent>), SourceError> {
        let path = self.path(entry)?;
        let content = self.tree.files.get(&path).cloned();
        let content = content.ok_or(SourceError::Missing)?;
        let writes = self.tree.writes.clone();
        let content = MemoryContent {
            content,
            number: writes.load(Ordering::Relaxed),
            writes,
        };
        Ok((entry.clone(), Box::new(content)))
    }

    async fn list(
        &self,
        entry: &TargetEntry,
        after: u64,
        limit: usize,
    ) -> Result<ListedPage, SourceError> {
        let path = self.path(entry)?;
        let all = self.tree.files.keys().chain(self.tree.symlinks.keys());
        let inside = all.filter(|it| it.len() > path.len() && it.starts_with(&path));
        let mut names: Vec<Vec<u8>> = inside.map(|it| it[path.len()].clone()).collect();
        names.sort();
        names.dedup();
        let (from, count) = (usize::try_from(after).unwrap_or(usize::MAX), names.len());
        let end = from.saturating_add(limit);
        let mut entries = Vec::new();
        for name in names.into_iter().skip(from).take(limit) {
            let entry = self.note([&path[..], std::slice::from_ref(&name)].concat())?;
            entries.push(ListedEntry { name, entry });
        }
        Ok(ListedPage {
            entries,
            next: (end < count).then_some(end as u64),
        })
    }
}

struct MemoryContent {
    content: Bytes,
    number: u64,
    writes: Arc<AtomicU64>,
}

#[async_trait]
impl OpenContent for MemoryContent {
    async fn read(&self, offset: u64, size: u32) -> Result<Bytes, SourceError> {
        let length = self.content.len();
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(length);
        let end = from.saturating_add(size as usize).min(length);
        Ok(self.content.slice(from..end))
    }

    async fn is_unchanged(&self) -> Result<bool, SourceError> {
        Ok(self.number == self.writes.load(Ordering::Relaxed))
    }
}

/// Reads pieces of a stranger's; the number says as what.
///
/// # Panics
/// If anything comes of it that must not.
pub fn read(pieces: &[(u8, &[u8])]) {
    for (kind, bytes) in pieces {
        match kind % 8 {
            0 => sent(bytes),
            1 => named(bytes),
            2 => routed(bytes),
            _ => conditional(pieces, bytes),
        }
    }
}

/// Bytes that begin such an input.
#[must_use]
pub fn seeds() -> Vec<Vec<(u8, Vec<u8>)>> {
    let (folder, file) = (FOLDER.text(), FILE.text());
    let mut seeds = Vec::new();
    for request in [
        format!("GET /s/{file} HTTP/1.1\r\nHost: a\r\nRange: bytes=2-5\r\n\r\n"),
        format!("GET /s/{folder}/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
        format!("GET /s/{folder}/?zip HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\n\r\n"),
        format!("HEAD /s/{folder}/b/%70age.html HTTP/1.0\r\nIf-None-Match: *\r\n\r\n"),
        format!("GET /s/{folder}/%2e%2e/secret.txt HTTP/1.1\r\nHost: a\r\n\r\n"),
        format!("GET http://a/s/{folder}/out HTTP/1.1\r\nHost: a\r\n\r\n"),
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n".to_owned(),
    ] {
        seeds.push(vec![(0, request.into_bytes())]);
    }
    seeds.push(vec![
        (1, "..\\ä<\u{202e}".into()),
        (2, format!("/s/{folder}/a%00").into()),
    ]);
    seeds.push(vec![
        (3, b"bytes=-5".to_vec()),
        (4, b"\"a1\", W/\"b\"".to_vec()),
        (5, b"Sun, 06 Nov 1994 08:49:37 GMT".to_vec()),
        (6, b"10.0.0.1, [2001:db8::1]:80".to_vec()),
    ]);
    seeds
}

/// What a client sends on a connection.
fn sent(bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let Ok(runtime) = runtime else {
        return;
    };
    let answer = runtime.block_on(exchange(Arc::new(MemoryTree::sample()), bytes));
    let holds = |needle: &[u8]| answer.windows(needle.len()).any(|it| it == needle);
    assert!(
        !holds(SECRET.as_bytes()),
        "what is outside of the link was sent"
    );
}

/// Sends bytes, ends, and returns what comes back.
pub async fn exchange(source: Arc<dyn LinkSource>, bytes: &[u8]) -> Vec<u8> {
    let (mut client, server) = tokio::io::duplex(1 << 16);
    let face = LinkServer::new(source, ServingOptions::default());
    let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let mut answer = Vec::new();
    let talk = async {
        let (mut from, mut to) = tokio::io::split(&mut client);
        let write = async {
            let _ = to.write_all(bytes).await;
            let _ = to.shutdown().await;
        };
        let (_, _) = tokio::join!(write, from.read_to_end(&mut answer));
    };
    tokio::join!(face.serve_stream(server, peer), talk);
    answer
}

/// A name.
fn named(bytes: &[u8]) {
    let text = html(&shown(bytes));
    assert!(!text.contains(['<', '>', '"', '\'']));
    assert!(url(bytes).bytes().all(|it| it.is_ascii_graphic()));
    let value = disposition(true, bytes);
    assert!(value.bytes().all(|it| it == b' ' || it.is_ascii_graphic()));
    let name = archived(bytes);
    assert!(!name.contains(['/', '\\', '\0']) && name != ".." && name != ".");
    if is_name(bytes) {
        let mut zip = ZipStream::default();
        let file = zip.file(&[bytes, bytes], i64::MAX);
        assert!(file.and_then(super::archive::ZipFile::finish).is_ok());
        assert!(zip.finish().is_ok_and(|it| it.starts_with(b"PK\x03\x04")));
    }
}

/// A target of a request.
fn routed(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (path, query) = match text.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (&*text, None),
    };
    if let Route::Link(link) = route("/base", path, query) {
        assert!(link.path.iter().all(|name| is_name(name)));
        let spelled: String = link
            .path
            .iter()
            .map(|name| format!("/{}", url(name)))
            .collect();
        let again = route("", &format!("/s/{}{spelled}", link.token.text()), None);
        assert!(matches!(again, Route::Link(it) if it.path == link.path));
    }
}

/// The headers that a request may have conditions in.
fn conditional(pieces: &[(u8, &[u8])], bytes: &[u8]) {
    let _ = forwarded_for(bytes);
    let of = |number: u8| {
        pieces
            .iter()
            .find(|(kind, _)| kind % 8 == number)
            .map(|it| it.1)
    };
    let asked = Conditions {
        range: of(3),
        if_range: of(4),
        if_none_match: of(5),
        if_match: of(6),
        if_modified_since: of(7),
        if_unmodified_since: Some(bytes),
    };
    for length in [0, 1, 1 << 40, u64::MAX] {
        let there = Representation {
            tag: "\"a1\"".to_owned(),
            modified: i64::MAX,
            length,
        };
        if let RightAnswer::Part(part) = right_answer(&asked, &there) {
            assert!(part.start < part.end && part.end <= length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_seeds_are_read() {
        for seed in seeds() {
            let pieces: Vec<_> = seed
                .iter()
                .map(|(kind, bytes)| (*kind, &bytes[..]))
                .collect();
            read(&pieces);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn damaged_requests_do_no_harm(seed in 0..7_usize, at in 0..200_usize, byte: u8) {
            let mut pieces = seeds()[seed].clone();
            let bytes = &mut pieces[0].1;
            let at = at % bytes.len();
            bytes[at] = byte;
            sent(bytes);
        }
    }
}
