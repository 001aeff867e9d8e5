//! The steps on both twins: operations, their users, and the events around them.
//!
//! Everything is data, so that a trace can be sent to another process, printed, shortened and run
//! again. Paths are relative to the twin's directory. Content follows from a stamp, so that wrong
//! content is recognised.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Bytes of a name, a path or a target, which need not be text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Text(pub Vec<u8>);

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

/// One character is one byte.
impl From<String> for Text {
    fn from(text: String) -> Self {
        let byte = |it: char| u8::try_from(u32::from(it)).unwrap_or(b'?');
        Self(text.chars().map(byte).collect())
    }
}

impl From<Text> for String {
    fn from(text: Text) -> Self {
        text.0.into_iter().map(char::from).collect()
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            length @ 101.. => {
                let start = self.0[..20].escape_ascii();
                let end = self.0[length - 20..].escape_ascii();
                write!(f, "\"{start}…{end}\" of {length} bytes")
            }
            _ => write!(f, "\"{}\"", self.0.escape_ascii()),
        }
    }
}

impl Text {
    /// This entry of a directory.
    #[must_use]
    pub fn join(&self, name: &Self) -> Self {
        match self.is_root() {
            true => name.clone(),
            false => Self([&self.0, &b"/"[..], &name.0].concat()),
        }
    }

    /// Whether it is the twin's own directory.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0 == b"."
    }

    /// The directory that contains a path.
    #[must_use]
    pub fn parent(&self) -> Self {
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(end) => Self(self.0[..end].to_vec()),
            None => ".".into(),
        }
    }
}

/// One of a user's open files, by number.
pub type Slot = u8;

/// A time that is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Moment {
    /// Leave it unchanged.
    Omit,
    /// The current time.
    Now,
    /// Seconds and nanoseconds.
    At(i64, u32),
}

/// An entry of an access control list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AclEntry {
    /// The tag, as the kernel numbers it.
    pub tag: u16,
    /// Read, write, execute.
    pub permissions: u16,
    /// The id of the user or the group.
    pub id: u32,
}

/// The arguments of a system call. Flags and modes are the kernel's numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "they are named as the system calls' arguments are"
)]
pub enum Operation {
    Open {
        slot: Slot,
        path: Text,
        flags: u32,
        mode: u32,
    },
    Close {
        slot: Slot,
    },
    Read {
        slot: Slot,
        length: usize,
    },
    ReadAt {
        slot: Slot,
        offset: u64,
        length: usize,
    },
    Write {
        slot: Slot,
        stamp: u64,
        length: usize,
    },
    WriteAt {
        slot: Slot,
        offset: u64,
        stamp: u64,
        length: usize,
    },
    Seek {
        slot: Slot,
        whence: u8,
        offset: i64,
    },
    SetLength {
        slot: Slot,
        length: u64,
    },
    Truncate {
        path: Text,
        length: u64,
    },
    Allocate {
        slot: Slot,
        flags: u32,
        offset: u64,
        length: u64,
    },
    CopyRange {
        from: Slot,
        at: u64,
        to: Slot,
        offset: u64,
        length: usize,
    },
    Sync {
        slot: Slot,
        only_data: bool,
    },
    Map {
        slot: Slot,
        offset: usize,
        stamp: u64,
        length: usize,
    },
    Chmod {
        path: Text,
        mode: u32,
    },
    ChmodOpen {
        slot: Slot,
        mode: u32,
    },
    Chown {
        path: Text,
        follow: bool,
        user: Option<u32>,
        group: Option<u32>,
    },
    ChownOpen {
        slot: Slot,
        user: Option<u32>,
        group: Option<u32>,
    },
    SetTimes {
        path: Text,
        follow: bool,
        accessed: Moment,
        modified: Moment,
    },
    SetAttribute {
        path: Text,
        follow: bool,
        name: Text,
        value: Text,
        flags: u32,
    },
    GetAttribute {
        path: Text,
        follow: bool,
        name: Text,
    },
    ListAttributes {
        path: Text,
        follow: bool,
    },
    RemoveAttribute {
        path: Text,
        follow: bool,
        name: Text,
    },
    SetAcl {
        path: Text,
        default: bool,
        entries: Vec<AclEntry>,
    },
    MakeDirectory {
        path: Text,
        mode: u32,
    },
    RemoveDirectory {
        path: Text,
    },
    Unlink {
        path: Text,
    },
    Rename {
        from: Text,
        to: Text,
        flags: u32,
    },
    Link {
        from: Text,
        to: Text,
        follow: bool,
    },
    MakeSymlink {
        target: Text,
        path: Text,
    },
    ReadLink {
        path: Text,
    },
    MakeNode {
        path: Text,
        mode: u32,
        major: u32,
        minor: u32,
    },
    Access {
        path: Text,
        mode: u32,
    },
    Umask {
        mode: u32,
    },
    List {
        path: Text,
        pause: usize,
    },
    Stat {
        path: Text,
        follow: bool,
    },
    Space {
        path: Text,
    },
    Flock {
        slot: Slot,
        exclusive: bool,
        release: bool,
    },
}

impl Operation {
    /// The paths that it names.
    #[must_use]
    pub fn paths(&self) -> Vec<&Text> {
        match self {
            Self::Open { path, .. }
            | Self::Truncate { path, .. }
            | Self::Chmod { path, .. }
            | Self::Chown { path, .. }
            | Self::SetTimes { path, .. }
            | Self::SetAttribute { path, .. }
            | Self::GetAttribute { path, .. }
            | Self::ListAttributes { path, .. }
            | Self::RemoveAttribute { path, .. }
            | Self::SetAcl { path, .. }
            | Self::MakeDirectory { path, .. }
            | Self::RemoveDirectory { path }
            | Self::Unlink { path }
            | Self::MakeSymlink { path, .. }
            | Self::ReadLink { path }
            | Self::MakeNode { path, .. }
            | Self::Access { path, .. }
            | Self::List { path, .. }
            | Self::Stat { path, .. }
            | Self::Space { path } => vec![path],
            Self::Rename { from, to, .. } | Self::Link { from, to, .. } => vec![from, to],
            _ => Vec::new(),
        }
    }

    /// The open files that it names.
    #[must_use]
    pub fn slots(&self) -> Vec<Slot> {
        match self {
            Self::Open { slot, .. }
            | Self::Close { slot }
            | Self::Read { slot, .. }
            | Self::ReadAt { slot, .. }
            | Self::Write { slot, .. }
            | Self::WriteAt { slot, .. }
            | Self::Seek { slot, .. }
            | Self::SetLength { slot, .. }
            | Self::Allocate { slot, .. }
            | Self::Sync { slot, .. }
            | Self::Map { slot, .. }
            | Self::ChmodOpen { slot, .. }
            | Self::ChownOpen { slot, .. }
            | Self::Flock { slot, .. } => vec![*slot],
            Self::CopyRange { from, to, .. } => vec![*from, *to],
            _ => Vec::new(),
        }
    }

    /// The name of its variant.
    #[must_use]
    pub fn kind(&self) -> String {
        let all = format!("{self:?}");
        let end = all.find(|it: char| !it.is_alphanumeric());
        all[..end.unwrap_or(all.len())].to_owned()
    }
}

/// One line of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// A user executes an operation.
    Does {
        /// The number of the user: see [`super::user`].
        user: usize,
        /// The operation.
        operation: Operation,
    },
    /// The kernel's caches are dropped.
    DropCaches,
    /// This many milliseconds pass, so that cached entries of the kernel and the mount expire.
    Wait(u64),
    /// All files are closed, and the mount is unmounted and mounted again.
    Remount,
    /// Everything is synced, and the mount's process is killed; another one replaces it.
    Kill,
}

/// `length` bytes that follow from a stamp; some of them are zeros in long runs.
#[must_use]
pub fn content(stamp: u64, length: usize) -> Vec<u8> {
    if stamp.is_multiple_of(16) {
        return vec![0; length];
    }
    let mut bytes = vec![0; length];
    let mut reader = blake3::Hasher::new()
        .update(&stamp.to_le_bytes())
        .finalize_xof();
    reader.fill(&mut bytes);
    bytes
}
