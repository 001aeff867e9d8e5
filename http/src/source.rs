//! What the server reads from: links, and the files and folders that they lead to.
//!
//! An implementation answers as things are *now*. It reads with the rights of the user who shared,
//! goes from the shared inode downwards, name by name, and follows no symbolic link.

use crate::token::LinkToken;
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;

/// Why something could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// It is not there, or the user who shared may not read it: the same for the one who asks.
    #[error("it is not there, or may not be read")]
    Missing,
    /// It cannot be said or read now, and may be later.
    #[error("it cannot be read now: {0}")]
    Unavailable(String),
}

/// The links.
#[async_trait]
pub trait LinkSource: Send + Sync + 'static {
    /// What a link leads to now; `None` if there is no such link, or not any more.
    ///
    /// # Errors
    /// If that cannot be said now.
    async fn find(&self, token: &LinkToken) -> Result<Option<Arc<dyn LinkTarget>>, SourceError>;
}

/// What one link leads to.
#[async_trait]
pub trait LinkTarget: Send + Sync + 'static {
    /// Its number, for log lines: no secret.
    fn number(&self) -> u64;

    /// The name of what it leads to.
    fn name(&self) -> &[u8];

    /// What lies at these names below it.
    ///
    /// # Errors
    /// If nothing does, or it may not be read, or that cannot be said now.
    async fn look(&self, path: &[Vec<u8>]) -> Result<TargetEntry, SourceError>;

    /// Opens a file, and says how it is then.
    ///
    /// # Errors
    /// If it may not be read, or not now.
    async fn open(
        &self,
        entry: &TargetEntry,
    ) -> Result<(TargetEntry, Box<dyn OpenContent>), SourceError>;

    /// Entries of a folder after a position (0: from the beginning), at most `limit` of them.
    ///
    /// # Errors
    /// If it may not be read, or not now.
    async fn list(
        &self,
        entry: &TargetEntry,
        after: u64,
        limit: usize,
    ) -> Result<ListedPage, SourceError>;
}

/// An open file; closed when it is dropped.
#[async_trait]
pub trait OpenContent: Send + Sync {
    /// Up to `size` bytes from `offset`; none at its end.
    ///
    /// # Errors
    /// If they cannot be read.
    async fn read(&self, offset: u64, size: u32) -> Result<Bytes, SourceError>;

    /// Whether the content is still what it was when it was opened.
    ///
    /// # Errors
    /// If that cannot be said.
    async fn is_unchanged(&self) -> Result<bool, SourceError>;
}

/// The kind of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TargetKind {
    /// A file.
    File,
    /// A folder.
    Folder,
    /// Something else, in words: it is shown and leads nowhere.
    Other(&'static str),
}

/// Something below a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetEntry {
    /// The source's own number for it.
    pub inode: u64,
    /// Its kind.
    pub kind: TargetKind,
    /// The length of a file.
    pub size: u64,
    /// When it was changed last, in seconds since 1970.
    pub modified: i64,
    /// Differs whenever its content differs, and says nothing else.
    pub version: [u8; 16],
}

/// An entry of a folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedEntry {
    /// Its name.
    pub name: Vec<u8>,
    /// What it is.
    pub entry: TargetEntry,
}

/// Some entries of a folder.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ListedPage {
    /// The entries, in any order.
    pub entries: Vec<ListedEntry>,
    /// The position to go on after; `None` at the end.
    pub next: Option<u64>,
}
