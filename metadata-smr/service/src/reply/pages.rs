//! Pages of directories and of files' content.

use crate::attributes::{Attributes, NameGenerations};
use crate::identity::{Cookie, Home, InodeId, ObjectId, RealmEpoch, SliceId};
use crate::row::{Inline, Object, Slice};
use borsh::{BorshDeserialize, BorshSerialize};

/// A page of a directory.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct DirectoryPage {
    /// The directory itself.
    pub directory: Attributes,
    /// Entries in the order of cookies, without `.` and `..`.
    pub entries: Vec<ListedEntry>,
    /// Whether there are more after the last.
    pub more: bool,
}

/// An entry in a listing.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ListedEntry {
    /// Its place, from which the next page continues.
    pub cookie: Cookie,
    /// The generation that its name is sealed under.
    pub generation: RealmEpoch,
    /// Its sealed name.
    pub name: Vec<u8>,
    /// Its inode.
    pub inode: Attributes,
}

/// A file's extents.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ContentPage {
    /// The file.
    pub attributes: Attributes,
    /// All of its bytes, if it is tiny.
    pub inline: Option<Inline>,
    /// Extents in the order of offsets; gaps read as zeros.
    pub extents: Vec<ListedExtent>,
    /// The slices that they name, by id, each once.
    pub slices: Vec<(SliceId, Slice)>,
    /// The objects of those slices, by id, each once.
    pub objects: Vec<(ObjectId, Object)>,
    /// Whether there are more extents before `to`; continue after the last.
    pub more: bool,
}

/// An extent in a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ListedExtent {
    /// Its offset in the file.
    pub offset: u64,
    /// The extent.
    pub extent: crate::row::Extent,
}

/// A directory with names under older key epochs than the newest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct OldNames {
    /// The directory.
    pub directory: InodeId,
    /// The generations of its names.
    pub generations: NameGenerations,
    /// Names up to this position are resealed already.
    pub after: Cookie,
    /// Entries in it.
    pub entries: u64,
}

/// A name under an older key epoch.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct OldName {
    /// Its position.
    pub at: Cookie,
    /// The key epoch.
    pub generation: RealmEpoch,
    /// The sealed name.
    pub bytes: Vec<u8>,
}

/// A slice under an older key epoch.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct OldSlice {
    /// The home of its row.
    pub home: Home,
    /// Its id.
    pub id: SliceId,
    /// The slice.
    pub slice: Slice,
    /// The object that it lies in.
    pub object: Object,
}
