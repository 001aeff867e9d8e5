//! Names and content that are sealed anew under the newest key epoch.

use crate::identity::{Codec, Cookie, Home, InodeId, ObjectId, RealmId, SliceId};
use crate::operation::NewObject;
use crate::row::{SealedName, SliceKey};
use borsh::{BorshDeserialize, BorshSerialize};

/// Seals names anew. The servers cannot tell whether a name stays the same, so it takes the right
/// to administer or to reconcile. What does not fit is left for the next operation, and names that
/// were removed or resealed meanwhile are skipped; so the sender may begin again anywhere.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ResealNames {
    /// The realm.
    pub realm: RealmId,
    /// Directories, at most [`RESEAL_DIRECTORIES_MAX`](crate::limits::RESEAL_DIRECTORIES_MAX), each
    /// once; together with at most [`RESEAL_NAMES_MAX`](crate::limits::RESEAL_NAMES_MAX) names.
    pub directories: Vec<DirectoryNames>,
}

/// Names of one directory.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct DirectoryNames {
    /// The directory. Its new names are sealed under the newest key epoch from now on.
    pub directory: InodeId,
    /// Its next names of the previous generation, in the order of their present positions. Without
    /// any, the servers look whether there is one.
    pub names: Vec<ResealedName>,
}

/// One of them.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ResealedName {
    /// Its present position.
    pub at: Cookie,
    /// The same name in the directory's current generation.
    pub name: SealedName,
}

/// Seals slices anew. The servers cannot tell whether their content stays the same, so it takes
/// the right to reconcile. Slices that were dropped, moved or resealed meanwhile are skipped.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ResealSlices {
    /// The realm whose policy spreads the new objects.
    pub realm: RealmId,
    /// The new objects, at most [`MOVE_OBJECTS_MAX`](crate::limits::MOVE_OBJECTS_MAX), under
    /// unused ids of the session's live allocations; or packs that it created before. Objects
    /// without any resealed slice are not created.
    pub objects: Vec<NewObject>,
    /// The slices, at most [`MOVE_SLICES_MAX`](crate::limits::MOVE_SLICES_MAX).
    pub slices: Vec<ResealedSlice>,
}

/// One of them.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ResealedSlice {
    /// The home of the slice's row.
    pub home: Home,
    /// The slice.
    pub slice: SliceId,
    /// The object that it was in.
    pub from: ObjectId,
    /// Its offset in that object's sealed stream.
    pub from_offset: u32,
    /// The source of its key from now on.
    pub key: SliceKey,
    /// The object that it is in from now on, one of the operation's.
    pub to: ObjectId,
    /// Its offset in that object's sealed stream, disjoint from all other slices.
    pub to_offset: u32,
    /// Its sealed bytes there.
    pub sealed_length: u32,
    /// Its compression there.
    pub codec: Codec,
}
