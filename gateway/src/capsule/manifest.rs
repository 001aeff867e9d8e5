//! What a capsule says of a tree, and the bytes of that.
//!
//! ```text
//! magic "QFSCAPSU" 8 ‖ format u16 ‖ Payload, Borsh-encoded ‖ zeros, if it is tiny
//! ```
//!
//! The payload is a manifest, or where the manifest is: a link carries the URLs of one object only,
//! and a manifest that lies in several is linked by a small file in between.
//!
//! The maker of a capsule is trusted with the content and with nothing else: names, the shape of
//! the tree, and numbers are checked before any of it is used.

use super::content::{CapsuleTables, LinkedContent};
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_metadata::identity::VolumeId;

const MAGIC: &[u8; 8] = b"QFSCAPSU";
const FORMAT: u16 = 1;
/// So that it lies in an object and not in its inode.
const BYTES_MIN: usize = 4096;
/// Bytes of a manifest: about forty thousand objects, or 150 GiB in files of some size.
pub(super) const MANIFEST_BYTES_MAX: u64 = 64 << 20;
const PERMISSIONS: u16 = 0o777;
/// Bytes of a path below the top.
const PATH_BYTES_MAX: usize = 4095;
/// Directories above each other.
const DEPTH_MAX: usize = 256;
const NAME_BYTES_MAX: usize = 255;
const TARGET_BYTES_MAX: usize = 4095;

/// Bytes that are no manifest, or one that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ManifestError {
    /// Something else.
    #[error("what the link leads to is no capsule")]
    Foreign,
    /// A later format.
    #[error("the capsule has format {0}, and this program reads up to {FORMAT}; use a newer one")]
    Newer(u16),
    /// It ends too early, or has impossible values.
    #[error("the capsule is damaged: {0}")]
    Damaged(String),
    /// Its parts do not fit each other.
    #[error("the capsule contradicts itself, so nothing of it is used: {0}")]
    Contradiction(&'static str),
    /// A name or a link that could lead out of the directory that it is put into.
    #[error("the capsule would write outside of its directory, so nothing of it is used: {0}")]
    Escapes(String),
    /// Too much for one.
    #[error(
        "too much for one capsule: its list of names and places would have {bytes} bytes, and at \
         most {MANIFEST_BYTES_MAX} are possible"
    )]
    TooLarge {
        /// Bytes of the list.
        bytes: u64,
    },
}

/// What something in a capsule is.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A file.
    File(LinkedContent),
    /// A symbolic link to this path within the capsule, relative to its directory.
    Symlink(Vec<u8>),
}

/// Something in a capsule.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct CapsuleEntry {
    /// The place of its directory, which comes before it; `None` at the top.
    pub parent: Option<u32>,
    /// Its name.
    pub name: Vec<u8>,
    /// Permissions: nine bits.
    pub mode: u16,
    /// The time of its last change: seconds since 1970 and nanoseconds.
    pub modified: (i64, u32),
    /// What it is.
    pub kind: EntryKind,
}

/// A tree with all that is needed to read it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Manifest {
    /// The volume that it was made of.
    pub(super) volume: VolumeId,
    /// Directories before what is in them; the first is the only one at the top.
    pub(super) entries: Vec<CapsuleEntry>,
    pub(super) tables: CapsuleTables,
}

/// Where the bytes of a manifest are.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(super) struct Located {
    pub(super) volume: VolumeId,
    /// When the first of the URLs ends by itself, in seconds since 1970; of the whole capsule.
    pub(super) ends: u64,
    pub(super) content: LinkedContent,
    pub(super) tables: CapsuleTables,
}

/// What is stored.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(super) enum Payload {
    Manifest(Manifest),
    Elsewhere(Located),
}

impl Payload {
    /// The bytes to be stored.
    ///
    /// # Errors
    /// `TooLarge`.
    pub(super) fn encode(&self) -> Result<Vec<u8>, ManifestError> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&FORMAT.to_be_bytes());
        let encoded = borsh::to_writer(&mut bytes, self);
        encoded.map_err(|error| ManifestError::Damaged(error.to_string()))?;
        bytes.resize(bytes.len().max(BYTES_MIN), 0);
        match bytes.len() as u64 {
            fits if fits <= MANIFEST_BYTES_MAX => Ok(bytes),
            bytes => Err(ManifestError::TooLarge { bytes }),
        }
    }

    /// Reads and checks it.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(ManifestError::Foreign)?;
        let (format, mut rest) = rest.split_first_chunk().ok_or(ManifestError::Foreign)?;
        match u16::from_be_bytes(*format) {
            FORMAT => {}
            newer => return Err(ManifestError::Newer(newer)),
        }
        let payload = Self::deserialize(&mut rest);
        let payload = payload.map_err(|error| ManifestError::Damaged(error.to_string()))?;
        if rest.iter().any(|byte| *byte != 0) || rest.len() > BYTES_MIN {
            return Err(ManifestError::Damaged("it goes on after its end".into()));
        }
        match &payload {
            Self::Manifest(manifest) => manifest.check()?,
            Self::Elsewhere(located) => located.check()?,
        }
        Ok(payload)
    }
}

impl Located {
    pub(super) fn check(&self) -> Result<(), ManifestError> {
        if self.content.size() > MANIFEST_BYTES_MAX {
            return Err(ManifestError::TooLarge {
                bytes: self.content.size(),
            });
        }
        self.tables.check()?;
        self.content.check(&self.tables)
    }
}

impl Manifest {
    /// All that is in it: directories before what is in them.
    #[must_use]
    pub fn entries(&self) -> &[CapsuleEntry] {
        &self.entries
    }

    /// The path of an entry, with the name of the top in front.
    #[must_use]
    pub fn path(&self, entry: &CapsuleEntry) -> Vec<u8> {
        let (mut path, mut parent) = (entry.name.clone(), entry.parent);
        while let Some(above) = parent.and_then(|it| self.entries.get(usize::try_from(it).ok()?)) {
            path.splice(0..0, above.name.iter().copied().chain(*b"/"));
            parent = above.parent;
        }
        path
    }

    /// All that is no directory, in an order in which no object is fetched twice if that can be.
    #[must_use]
    pub fn leaves(&self) -> Vec<&CapsuleEntry> {
        let is_leaf = |entry: &&CapsuleEntry| entry.kind != EntryKind::Directory;
        let mut leaves: Vec<&CapsuleEntry> = self.entries.iter().filter(is_leaf).collect();
        leaves.sort_by_key(|entry| match &entry.kind {
            EntryKind::File(content) => content.first_object(&self.tables),
            EntryKind::Directory | EntryKind::Symlink(_) => None,
        });
        leaves
    }

    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let sizes = self.entries.iter().map(|entry| match &entry.kind {
            EntryKind::File(content) => content.size(),
            EntryKind::Directory | EntryKind::Symlink(_) => 0,
        });
        sizes.fold(0, u64::saturating_add)
    }

    fn check(&self) -> Result<(), ManifestError> {
        self.tables.check()?;
        // Of directories: how deep what is in them lies, and the bytes of their paths.
        let mut depths: Vec<Option<(usize, usize)>> = Vec::with_capacity(self.entries.len());
        let mut names = std::collections::HashSet::with_capacity(self.entries.len());
        for (place, entry) in self.entries.iter().enumerate() {
            check_name(&entry.name)?;
            let is_sound = entry.mode <= PERMISSIONS && entry.modified.1 < 1_000_000_000;
            if !is_sound {
                return Err(ManifestError::Contradiction(
                    "a mode or a time is impossible",
                ));
            }
            let (depth, above) = match entry.parent {
                None if place == 0 => (0, 0),
                None => return Err(ManifestError::Contradiction("it has several tops")),
                Some(parent) => {
                    let parent = usize::try_from(parent).ok();
                    let above = parent.and_then(|it| depths.get(it).copied().flatten());
                    above.ok_or(ManifestError::Contradiction("something is in no directory"))?
                }
            };
            let path = above.saturating_add(entry.name.len()).saturating_add(1);
            if depth > DEPTH_MAX || path > PATH_BYTES_MAX {
                return Err(ManifestError::Contradiction("it is too deep"));
            }
            if !names.insert((entry.parent, entry.name.as_slice())) {
                return Err(ManifestError::Contradiction("a name occurs twice"));
            }
            match &entry.kind {
                EntryKind::Directory => {}
                EntryKind::File(content) => content.check(&self.tables)?,
                EntryKind::Symlink(target) => check_target(target, depth)?,
            }
            let is_directory = entry.kind == EntryKind::Directory;
            depths.push(is_directory.then_some((depth + 1, path)));
        }
        match self.entries.is_empty() {
            true => Err(ManifestError::Contradiction("it is empty")),
            false => Ok(()),
        }
    }
}

/// Whether it is one name.
fn check_name(name: &[u8]) -> Result<(), ManifestError> {
    let is_name = !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, b'/' | 0));
    match is_name {
        true => Ok(()),
        false => Err(ManifestError::Escapes(format!(
            "it has something that is called {}",
            String::from_utf8_lossy(name).escape_debug()
        ))),
    }
}

/// Whether a symbolic link in a directory at this depth leads to something within the top: what a
/// maker takes into a capsule, and an opener makes.
pub(super) fn check_target(target: &[u8], depth: usize) -> Result<(), ManifestError> {
    let mut here = depth;
    let mut is_within = depth > 0
        && !target.is_empty()
        && target.len() <= TARGET_BYTES_MAX
        && !target.starts_with(b"/")
        && !target.contains(&0);
    // Only at its beginning: behind a name that is itself a link, `..` may lead anywhere.
    let mut has_gone_down = false;
    for name in target.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => {
                is_within &= here > 1 && !has_gone_down;
                here = here.saturating_sub(1);
            }
            _ => has_gone_down = true,
        }
    }
    match is_within {
        true => Ok(()),
        false => Err(ManifestError::Escapes(format!(
            "it has a symbolic link to {}",
            String::from_utf8_lossy(target).escape_debug()
        ))),
    }
}
