//! What the servers answer, in stable bytes.
//!
//! A client accepts what r + 1 replicas answer byte for byte, so nothing in a reply may depend on
//! anything but agreed state: errors are values like any other.

use crate::acl::{AccessAcl, Acl};
use crate::attributes::{Attributes, Namespace};
use crate::codec::{self, DecodeError};
use crate::error::{Error, OperationError};
use crate::identity::{
    AllocationId, AttributeHash, Cookie, Home, InodeId, MountEpoch, ObjectId, PrincipalId,
    RealmEpoch, SliceId, Uid,
};
use crate::row::{
    Cloud, Epoch, Evidence, Format, Inline, Member, Mount, Numbered, Object, PackedSlice,
    Principal, Realm, RealmQuota, Sealed, Session, Slice, UserQuota,
};
use crate::succession::SignedSuccession;
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::{SessionId, Time};
use quorumfs_bft::state::VALUE_BYTES_MAX;

/// The answer to an [`Operation`](crate::operation::Operation).
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Response(pub Result<Done, OperationError>);

/// What an operation did.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Done {
    /// Each step's result, in order.
    Compound(Vec<StepDone>),
    /// Ids 0 to `count` of this allocation, for objects and for slices.
    Allocated {
        /// The allocation.
        allocation: AllocationId,
        /// How many of each.
        count: u32,
    },
    /// The allocation is closed.
    AllocationClosed,
    /// The realm is mounted.
    Mounted {
        /// The mount's number in the realm.
        epoch: MountEpoch,
        /// The realm.
        realm: Realm,
        /// The session that was fenced for it.
        fenced: Option<SessionId>,
    },
    /// The realm is free again.
    Unmounted,
    /// The shards are recorded; how many objects reached their target by it.
    Confirmed {
        /// Objects that are complete now.
        completed: u32,
    },
    /// The shard has its new place.
    Replaced,
    /// The acknowledgements are taken back.
    Withdrawn {
        /// How many of the shards had one.
        shards: u32,
    },
    /// The slices lie where they were moved to.
    Moved {
        /// How many of them; the others were passed over.
        slices: u32,
    },
    /// The findings are kept.
    Testified {
        /// How many of them were new.
        findings: u32,
    },
    /// The realm has this epoch now.
    EpochBegun {
        /// Its number.
        number: RealmEpoch,
    },
    /// The limit is set.
    QuotaSet,
    /// The successor is a principal in its predecessor's place.
    Succeeded {
        /// Which succession it was.
        number: u32,
    },
}

/// What a step did.
// At most a few dozen of these live at a time, and for a moment; being Copy is worth more.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum StepDone {
    /// An inode and its entry exist.
    Created {
        /// The inode.
        inode: Attributes,
        /// The entry's place.
        cookie: Cookie,
        /// Its directory.
        parent: Attributes,
        /// It was there before.
        existed: bool,
    },
    /// The inode has one more entry.
    Linked {
        /// The inode.
        inode: Attributes,
        /// The entry's place.
        cookie: Cookie,
        /// Its directory.
        parent: Attributes,
    },
    /// The entry is gone.
    Removed {
        /// What it led to.
        removed: Removed,
        /// Its directory.
        parent: Attributes,
    },
    /// The entry has moved.
    Renamed {
        /// The inode that moved.
        moved: Attributes,
        /// What it replaced.
        replaced: Option<Removed>,
        /// With an exchange: the inode that went the other way.
        exchanged: Option<Attributes>,
        /// The directory that it left.
        from_parent: Attributes,
        /// The directory that it came to; the same one perhaps.
        to_parent: Attributes,
        /// The entry's new place.
        cookie: Cookie,
    },
    /// The attributes are set.
    Set(Attributes),
    /// The content is committed.
    Committed(Attributes),
    /// The orphan is gone.
    Released,
    /// The times of access are at least what they were said to be, where there was a right to that.
    Accessed,
}

/// An inode that lost an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Removed {
    /// The inode as it is, or was, after the loss.
    pub inode: Attributes,
    /// That was its last entry; a session holds it open and it lives on as an orphan.
    pub held: bool,
}

/// The answer to a [`Query`](crate::query::Query).
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Answer(pub Result<QueryResult, Error>);

/// What a query found.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum QueryResult {
    /// Where an entry leads.
    Entry {
        /// The entry's place.
        cookie: Cookie,
        /// What it leads to.
        inode: Attributes,
        /// The directory.
        parent: Attributes,
    },
    /// What `stat` shows.
    Attributes(Attributes),
    /// The caller may.
    Allowed,
    /// A page of a directory.
    Directory(DirectoryPage),
    /// A symlink's target.
    Symlink(Sealed),
    /// Where a file's bytes are.
    Content(ContentPage),
    /// Counts for `statfs`.
    Usage {
        /// Inodes that exist.
        inodes: u64,
        /// Bytes that extents cover.
        allocated: u64,
    },
    /// An object.
    Object(Object),
    /// A page of the under-replicated objects.
    UnderReplicated {
        /// Priority, id and row of each.
        objects: Vec<(u8, ObjectId, Object)>,
        /// There are more.
        more: bool,
    },
    /// A page of the unreferenced objects.
    Unreferenced {
        /// Which.
        objects: Vec<ObjectId>,
        /// There are more.
        more: bool,
    },
    /// A page of this session's orphans.
    Orphans {
        /// Which.
        inodes: Vec<InodeId>,
        /// There are more.
        more: bool,
    },
    /// The volume.
    Volume {
        /// Its format.
        format: Format,
        /// Its clouds, by index.
        clouds: Vec<Cloud>,
    },
    /// A realm.
    Realm {
        /// The realm.
        realm: Realm,
        /// Its last epochs, oldest first, the current one last.
        epochs: Vec<(RealmEpoch, Epoch)>,
        /// This principal's membership.
        member: Option<Member>,
        /// Who has it mounted.
        mount: Option<Mount>,
    },
    /// Who asks.
    WhoAmI {
        /// The session's number.
        session: SessionId,
        /// The session.
        row: Session,
        /// Its principal's key.
        principal: PrincipalId,
        /// Its principal.
        rights: Principal,
    },
    /// A page of all objects.
    Objects {
        /// Id and row of each.
        objects: Vec<(ObjectId, Object)>,
        /// There are more.
        more: bool,
    },
    /// A page of the packs that are worth compacting.
    SparsePacks {
        /// Id, row and since when it is one, of each.
        packs: Vec<(ObjectId, Object, Time)>,
        /// There are more.
        more: bool,
    },
    /// A page of the slices that lie in a pack.
    PackedSlices {
        /// Where the row of each lies, its id, and its place in the pack.
        slices: Vec<(Home, SliceId, PackedSlice)>,
        /// There are more.
        more: bool,
    },
    /// Whose a number is.
    Principal(Numbered),
    /// What is kept of a cloud.
    Evidence {
        /// How many findings there were; more than there are here if the oldest gave way.
        total: u64,
        /// Those that are kept, the oldest first.
        kept: Vec<Evidence>,
    },
    /// Epochs of a realm that lie before one.
    Epochs {
        /// Number and row of each, oldest first, up to the one before.
        epochs: Vec<(RealmEpoch, Epoch)>,
    },
    /// All members of a realm.
    Members(Vec<(PrincipalId, Member)>),
    /// What some slices are sealed under.
    SlicesByEpoch {
        /// Each epoch that occurs.
        epochs: Vec<SealedUnder>,
        /// The last slice that was looked at, if there are more.
        next: Option<(Home, SliceId)>,
    },
    /// An inode's extended attributes.
    Extended {
        /// The inode.
        attributes: Attributes,
        /// The extended ones, in the order of their keys.
        listed: Vec<ListedExtended>,
        /// What its access list has beside the mode.
        acl: Option<AccessAcl>,
        /// A directory's default list.
        default_acl: Option<Acl>,
    },
    /// What a realm and one of its users have and may have.
    Quota {
        /// The realm.
        realm: RealmQuota,
        /// The user.
        user: UserQuota,
    },
    /// A page of what a realm and its users have and may have.
    Quotas {
        /// The realm.
        realm: RealmQuota,
        /// Some of its users.
        users: Vec<(Uid, UserQuota)>,
        /// There are more.
        more: bool,
    },
    /// Who has a realm mounted.
    Mounted(Option<Mount>),
    /// Which principals were replaced, the first one first.
    Successions(Vec<SignedSuccession>),
}

/// An extended attribute in a listing.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ListedExtended {
    /// Its namespace.
    pub namespace: Namespace,
    /// The hash of its name.
    pub hash: AttributeHash,
    /// Its sealed name.
    pub name: Vec<u8>,
    /// Its sealed value, if the principal may know it.
    pub value: Option<Sealed>,
}

/// How much is sealed under an epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SealedUnder {
    /// Which epoch.
    pub epoch: RealmEpoch,
    /// Slices.
    pub slices: u64,
    /// Their plain bytes.
    pub bytes: u64,
}

/// A page of a directory.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct DirectoryPage {
    /// The directory itself.
    pub directory: Attributes,
    /// Entries in the order of cookies; `.` and `..` are not among them.
    pub entries: Vec<ListedEntry>,
    /// There are more behind the last.
    pub more: bool,
}

/// An entry in a listing.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ListedEntry {
    /// Its place: what the next page continues from.
    pub cookie: Cookie,
    /// What its name is sealed under.
    pub generation: RealmEpoch,
    /// Its sealed name.
    pub name: Vec<u8>,
    /// What it leads to.
    pub inode: Attributes,
}

/// Where a file's bytes are.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ContentPage {
    /// The file.
    pub attributes: Attributes,
    /// All of its bytes, if it is tiny.
    pub inline: Option<Inline>,
    /// Extents in the order of offsets; what none covers reads as zeros.
    pub extents: Vec<ListedExtent>,
    /// The slices that they name, by id, each once.
    pub slices: Vec<(SliceId, Slice)>,
    /// The objects that those lie in, by id, each once.
    pub objects: Vec<(ObjectId, Object)>,
    /// There are more extents before `to`; continue behind the last.
    pub more: bool,
}

/// An extent in a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ListedExtent {
    /// Where in the file it begins.
    pub offset: u64,
    /// The extent.
    pub extent: crate::row::Extent,
}

macro_rules! bytes {
    ($($type:ty),*) => {$(
        impl $type {
            /// The answer's bytes.
            #[must_use]
            pub fn to_bytes(&self) -> Vec<u8> {
                codec::encode(self)
            }

            /// Reads the answer's bytes.
            ///
            /// # Errors
            /// If they are too many, of a newer version, or do not follow the layout.
            pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
                codec::decode(bytes, VALUE_BYTES_MAX)
            }
        }
    )*};
}

bytes!(Response, Answer);
