//! The servers' answers, in stable bytes.
//!
//! A client accepts an answer that r + 1 replicas give byte for byte, so a reply may depend only on
//! agreed state: errors are values like any other.

use crate::acl::{AccessAcl, Acl};
use crate::attributes::{Attributes, Namespace};
use crate::codec::{self, DecodeError};
use crate::error::{Error, OperationError};
use crate::fleet::{Fleet, SignedCloudChange};
use crate::identity::{
    AllocationId, AttributeHash, CloudIndex, Cookie, Home, InodeId, LogPosition, MountEpoch,
    ObjectId, PrincipalId, RealmEpoch, ShareId, SliceId, Uid,
};
use crate::people::SignedPeopleChange;
use crate::row::{
    Amount, Cloud, CloudSecretRow, Drain, Epoch, Evidence, Format, Member, Mount, MountMode,
    Numbered, Object, PackedSlice, Principal, Realm, RealmQuota, RemovedEntry, Retention, Sealed,
    Session, UserQuota, key::LockPlace,
};
use crate::succession::SignedSuccession;
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::{Sequence, SessionId, Time};
use quorumfs_bft::state::VALUE_BYTES_MAX;

mod locks;
mod objects;
mod pages;
mod share;
mod steps;

pub use locks::{ListedLock, LockBlocker};
pub use objects::{Fate, Garbage, UnderReplicatedObject};
pub use pages::{
    ContentPage, DirectoryPage, ListedEntry, ListedExtent, OldName, OldNames, OldSlice,
};
pub use share::ListedShare;
pub use steps::{Removed, StepDone};

/// The answer to an [`Operation`](crate::operation::Operation).
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Response(pub Result<Done, OperationError>);

/// The result of an operation.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Done {
    /// Each step's result, in order.
    Compound(Vec<StepDone>),
    /// Ids 0 to `count` of this allocation, for objects and for slices.
    Allocated {
        /// The allocation.
        allocation: AllocationId,
        /// The number of each.
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
        /// The sessions that were fenced for it.
        fenced: Vec<SessionId>,
        /// The position in the change log at which it begins: answers after this one show all
        /// changes up to there, and the first [`News`](crate::query::Question::News) is asked from
        /// there on. A session that had the realm mounted before drops what it knew.
        position: LogPosition,
        /// Whether others may mount it meanwhile: as was asked for, or `Shared` in place of
        /// `Alone`.
        mode: MountMode,
    },
    /// The mount has ended.
    Unmounted,
    /// The shards are recorded.
    Confirmed {
        /// Objects that this has completed.
        completed: u32,
    },
    /// The shard has its new place.
    Replaced,
    /// The acknowledgements are withdrawn.
    Withdrawn {
        /// The number of shards that had one.
        shards: u32,
    },
    /// The slices are in their new packs.
    Moved {
        /// Their number; the others were skipped.
        slices: u32,
    },
    /// The findings are recorded.
    Testified {
        /// The number of new ones.
        findings: u32,
    },
    /// The realm has this key epoch now.
    EpochBegun {
        /// Its number.
        number: RealmEpoch,
    },
    /// The limit is set.
    QuotaSet,
    /// The successor has replaced its predecessor.
    Succeeded {
        /// The number of the succession.
        number: u32,
    },
    /// The rows are gone.
    Forgotten {
        /// Their number; the others were skipped.
        objects: u32,
    },
    /// The session has the job.
    JobTaken {
        /// Until when, by the agreed time.
        until: Time,
        /// The time of the batch: what is old is old by this clock.
        now: Time,
    },
    /// The session does not have the job any more.
    JobReleased,
    /// The point is retained.
    Retained {
        /// The number of what is retained.
        number: u64,
        /// The point.
        point: Sequence,
    },
    /// The points are not retained any more.
    Released,
    /// One point is retained.
    Narrowed,
    /// The rows are loaded.
    Loaded {
        /// The key of the last row that was loaded; empty: none was.
        last: Vec<u8>,
        /// The number of rows that were loaded so far.
        rows: u64,
    },
    /// The volume is recovered.
    LoadingFinished,
    /// The realm's trash is kept so long from now on.
    TrashKept,
    /// Some of the trash is gone.
    TrashRelieved {
        /// The number of inodes.
        inodes: u32,
    },
    /// The clouds are changed.
    CloudsChanged {
        /// The number of the change.
        number: u32,
    },
    /// The shards are at their new places.
    ShardsMoved {
        /// Their number; the others were skipped.
        shards: u32,
    },
    /// The cloud is retired.
    CloudRetired,
    /// The result of each claim, in the order of the operation.
    Claimed(Vec<Claimed>),
    /// The realm is not mounted yet: this mount is alone, and was asked to share it. To be tried
    /// again; after the deadline of its recall a takeover fences it.
    Recalled(Mount),
    /// The owner's locks are as it wished.
    Locked,
    /// Another owner is in the way. That is no refusal: the request may wait in the queue now.
    Blocked(LockBlocker),
    /// The owner waits for no lock of this inode and kind.
    StoppedWaiting,
    /// These locks have ended.
    LocksEnded {
        /// Their number.
        locks: u32,
    },
    /// The principals or the names of groups are changed.
    PeopleChanged {
        /// The number of the change.
        number: u32,
    },
    /// Names are resealed.
    NamesResealed {
        /// Their number.
        names: u32,
        /// Directories all of whose names are under the newest key epoch.
        directories: u32,
    },
    /// Slices are resealed.
    SlicesResealed {
        /// Their number; the others were skipped.
        slices: u32,
    },
    /// It is shared.
    Shared {
        /// The share's number; that of an earlier share if this one has changed it.
        id: ShareId,
    },
    /// The share has ended.
    ShareEnded,
    /// The share's row is gone.
    ShareForgotten,
    /// The machine is invited.
    MachineInvited {
        /// When the invitation ends, by the agreed time.
        until: Time,
    },
    /// The invitation is answered.
    InvitationAnswered,
    /// There is no such invitation any more.
    InvitationEnded,
}

/// The result of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum Claimed {
    /// The session holds the inode, until [`Step::Release`](crate::operation::Step::Release) or its
    /// end.
    Held,
    /// The inode has a name, so that there is nothing to hold. If it loses that, it is news again.
    Named,
    /// The inode is gone: [`Error::Stale`].
    Gone,
}

/// The answer to a [`Query`](crate::query::Query).
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Answer(pub Result<QueryResult, Error>);

/// The result of a query.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum QueryResult {
    /// The inode of an entry.
    Entry {
        /// The entry's place.
        cookie: Cookie,
        /// The inode.
        inode: Attributes,
        /// The directory.
        parent: Attributes,
    },
    /// An inode's attributes.
    Attributes(Attributes),
    /// The access is allowed.
    Allowed,
    /// A page of a directory.
    Directory(DirectoryPage),
    /// A symlink's target.
    Symlink(Sealed),
    /// A file's extents.
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
        /// The objects.
        objects: Vec<UnderReplicatedObject>,
        /// Whether there are more.
        more: bool,
    },
    /// A page of the unreferenced objects.
    Unreferenced {
        /// They and what is known of them.
        objects: Vec<Garbage>,
        /// Whether there are more.
        more: bool,
    },
    /// A page of this session's orphans.
    Orphans {
        /// Their numbers.
        inodes: Vec<InodeId>,
        /// Whether there are more.
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
        /// Its mount.
        mount: Option<Mount>,
    },
    /// The caller's session and principal.
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
        /// Whether there are more.
        more: bool,
    },
    /// A page of the packs that are worth compacting.
    SparsePacks {
        /// Id and row of each, and since when it is sparse.
        packs: Vec<(ObjectId, Object, Time)>,
        /// Whether there are more.
        more: bool,
    },
    /// A page of the slices in a pack.
    PackedSlices {
        /// The home, the id and the place in the pack of each.
        slices: Vec<(Home, SliceId, PackedSlice)>,
        /// Whether there are more.
        more: bool,
    },
    /// The principal of a number.
    Principal(Numbered),
    /// The recorded faults of a cloud.
    Evidence {
        /// The number of all findings; more than are listed if old ones were replaced.
        total: u64,
        /// The recorded ones, oldest first.
        kept: Vec<Evidence>,
    },
    /// Key epochs of a realm before a given one.
    Epochs {
        /// Number and row of each, oldest first, up to the one before it.
        epochs: Vec<(RealmEpoch, Epoch)>,
    },
    /// All members of a realm.
    Members(Vec<(PrincipalId, Member)>),
    /// The key epochs that some slices are sealed under.
    SlicesByEpoch {
        /// Each epoch that occurs.
        epochs: Vec<SealedUnder>,
        /// The last slice that was counted, if there are more.
        next: Option<(Home, SliceId)>,
    },
    /// An inode's extended attributes.
    Extended {
        /// The inode.
        attributes: Attributes,
        /// The extended ones, in the order of their keys.
        listed: Vec<ListedExtended>,
        /// The part of its access list that its mode lacks.
        acl: Option<AccessAcl>,
        /// A directory's default list.
        default_acl: Option<Acl>,
    },
    /// The usage and quotas of a realm and one of its users.
    Quota {
        /// The realm.
        realm: RealmQuota,
        /// The user.
        user: UserQuota,
    },
    /// A page of the usage and quotas of a realm and its users.
    Quotas {
        /// The realm.
        realm: RealmQuota,
        /// Some of its users.
        users: Vec<(Uid, UserQuota)>,
        /// Whether there are more.
        more: bool,
    },
    /// The mount of a realm.
    Mounted(Option<Mount>),
    /// The principals that were replaced, in order.
    Successions(Vec<SignedSuccession>),
    /// What is known of each id, in the order of the question.
    Fates(Vec<Fate>),
    /// The clouds' secrets that are wrapped for this principal, by cloud.
    CloudSecrets(Vec<(CloudIndex, CloudSecretRow)>),
    /// The retained points, with their numbers.
    Retained(Vec<(u64, Retention)>),
    /// A page of the trash.
    Trash {
        /// What the caller may see of it.
        entries: Vec<TrashedEntry>,
        /// The last place that was looked at, if there are more.
        next: Option<(Time, InodeId)>,
    },
    /// The size of the trash.
    TrashSize {
        /// How long it is kept, in seconds; 0: there is none.
        seconds: u64,
        /// What is in it.
        held: Amount,
    },
    /// Changes of the clouds.
    CloudChanges {
        /// The signed changes, in order.
        changes: Vec<SignedCloudChange>,
        /// Which clouds take new shards, as the servers say. Clients derive that from the changes.
        fleet: Fleet,
        /// How far the others are drained.
        drain: Drain,
    },
    /// What other sessions have changed in a realm.
    News {
        /// The position up to which this is. The next question is asked from there on.
        position: LogPosition,
        /// Whether anything may have changed: the log does not say what, or not any more. No inode
        /// is listed then.
        gap: bool,
        /// The inodes that others have changed, in the order of their numbers: attributes, names in
        /// a directory, content, extended attributes. Those that are new are listed in their
        /// directory only.
        inodes: Vec<InodeId>,
        /// Whether there is more to ask for already.
        more: bool,
        /// Whether other sessions have the realm mounted too.
        others: bool,
        /// Whether the caller's mount is alone and has to share the realm.
        recalled: bool,
    },
    /// The mounts of a realm.
    Mounts(Vec<Mount>),
    /// What is in the way of a lock.
    Lock(Option<LockBlocker>),
    /// A page of the locks of a realm.
    Locks {
        /// Some of them.
        locks: Vec<ListedLock>,
        /// The last place that was looked at, if there are more.
        next: Option<LockPlace>,
    },
    /// Changes of the principals.
    People {
        /// Some of the signed changes, in order.
        changes: Vec<SignedPeopleChange>,
        /// The number of the last change of all.
        last: u32,
    },
    /// The directories among some inodes that have names under older key epochs.
    NamesByEpoch {
        /// Each such directory.
        directories: Vec<OldNames>,
        /// The last inode that was looked at, if there are more.
        next: Option<InodeId>,
    },
    /// The names among some entries that are under older key epochs.
    NamesToReseal {
        /// Each such name.
        names: Vec<OldName>,
        /// The last position that was looked at, if there are more.
        next: Option<Cookie>,
    },
    /// Some slices that are sealed under older key epochs.
    SlicesToReseal {
        /// Each of them.
        slices: Vec<OldSlice>,
        /// The last slice that was looked at, if there are more.
        next: Option<(Home, SliceId)>,
    },
    /// A page of shares.
    Shares {
        /// Some of them.
        shares: Vec<ListedShare>,
        /// The last one, if there are more.
        next: Option<ShareId>,
    },
    /// A share.
    Share(ListedShare),
    /// An invitation of a machine.
    Invitation(ListedInvitation),
}

/// An invitation of a machine, for both sides.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct ListedInvitation {
    /// When it ends, by the agreed time.
    pub until: Time,
    /// What the member says of the volume.
    pub card: Vec<u8>,
    /// What the machine has answered.
    pub answer: Option<Vec<u8>>,
}

/// An inode in the trash, in a listing.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct TrashedEntry {
    /// The time of its removal, by the agreed clock.
    pub at: Time,
    /// Its last entry.
    pub entry: RemovedEntry,
    /// The inode, without links.
    pub inode: Attributes,
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

/// The slices that are sealed under a key epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SealedUnder {
    /// The key epoch.
    pub epoch: RealmEpoch,
    /// Slices.
    pub slices: u64,
    /// Their plain bytes.
    pub bytes: u64,
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
