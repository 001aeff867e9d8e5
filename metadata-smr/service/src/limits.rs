//! Every bound of the metadata service, with its reason.
//!
//! One operation touches a bounded number of rows, one message a bounded number of bytes, one
//! session a bounded number of ids. The client splits larger work (a commit), or ordered ticks
//! drain it (a truncation, a deletion).

use quorumfs_bft::identity::Nanos;

/// Rows that one operation may write; beyond it the operation is refused completely and its sender
/// splits it. Keeps the longest batch short and its write set in memory.
pub const ROWS_WRITTEN_MAX: usize = 1000;
/// Rows that one operation may read, scans included. A few reads accompany each write.
pub const ROWS_READ_MAX: usize = 8 * ROWS_WRITTEN_MAX;
/// Rows that one tick may write while it drains the reap queue and the grave.
pub const TICK_ROWS_MAX: usize = 768;
/// Bytes of an encoded operation. Fits a commit of several hundred objects.
pub const OPERATION_BYTES_MAX: usize = 512 << 10;
/// Bytes of an encoded query: two sealed names and a few numbers.
pub const QUERY_BYTES_MAX: usize = 8 << 10;
/// Bytes of an encoded genesis.
pub const GENESIS_BYTES_MAX: usize = 512 << 10;

/// Preconditions in one compound.
pub const PRECONDITIONS_MAX: usize = 32;
/// Steps in one compound.
pub const STEPS_MAX: usize = 32;
/// Inodes that one step may report as read, one row each.
pub const ACCESSED_MAX: usize = 256;
/// Objects that one commit may create.
pub const COMMIT_OBJECTS_MAX: usize = 200;
/// Slices that one commit may create.
pub const COMMIT_SLICES_MAX: usize = 200;
/// Sources of one slice's key. There will be one for each realm that shares the slice.
pub const SLICE_KEYS_MAX: usize = 1;
/// Extents that one commit may set.
pub const COMMIT_EXTENTS_MAX: usize = 200;
/// Extents that one clone may read: each costs a row of its own and its slice's.
pub const CLONE_EXTENTS_MAX: usize = 256;
/// Slices of one pack: one of 4 MiB can be full of pages of 4 KiB. A move reads all slices of the
/// packs that it adds to.
pub const PACK_SLICES_MAX: u32 = 1024;
/// Packs that one move of slices may create.
pub const MOVE_OBJECTS_MAX: usize = 4;
/// Slices that one operation may move: each costs three rows, and the pack that it leaves up to
/// four.
pub const MOVE_SLICES_MAX: usize = 128;
/// Shards that one confirmation may name.
pub const CONFIRM_SHARDS_MAX: usize = 256;
/// Shards that one withdrawal may name: each may be an object's own, which costs three rows.
pub const WITHDRAW_SHARDS_MAX: usize = 256;

/// Objects that one operation may forget: each costs two rows, and reads five.
pub const FORGET_OBJECTS_MAX: usize = 256;
/// Retained points, or runs of them, at a time: one operation reads all of them once.
pub const RETENTIONS_MAX: usize = 64;
/// Rows that one operation may load into a volume that is recovered: each is written once.
pub const LOAD_ROWS_MAX: usize = 960;
/// How long a session may take a job for before it takes it again, in seconds.
pub const JOB_SECONDS_MAX: u32 = 600;

/// Objects that one confirmation may report as checked, one row each.
pub const CHECKED_OBJECTS_MAX: usize = 256;
/// Findings in one testimony: each reads an object and writes a row, in addition to the one cloud's
/// ring, which is read once.
pub const TESTIFY_FINDINGS_MAX: usize = 32;
/// Findings that are recorded for one cloud; the next one replaces the oldest. Enough to show a
/// provider, and at 32 clouds no more than a few MiB.
pub const EVIDENCE_PER_CLOUD: u16 = 256;

/// Mounts of one realm at a time. Mounting counts them, and fences some or all of them.
pub const MOUNTS_MAX: usize = 64;
/// Rows that the fencing of a session writes at most, beyond the bound of its operation: its
/// allocations, its jobs, and a few more. A takeover must be possible however many it fences.
pub const FENCED_ROWS: usize = SESSION_ALLOCATIONS_MAX + 18;
/// Entries in a realm's change log. A mount that has heard nothing for 1.5 s takes nothing for
/// valid any more, whatever the log says; half of this, which the answers use, lasts for 1.5 s of
/// 5000 changes a second. It costs about 1 MiB, and 9 MiB if all entries are full.
pub const LOG_SLOTS: u16 = 16 << 10;
/// Inodes in one entry of the change log; an operation that changes more says that any may have
/// changed. A rename changes five, a compound of 32 steps seldom more than this.
pub const LOG_INODES_MAX: usize = 64;
/// Entries of the change log that one answer covers: each is a row.
pub const NEWS_ENTRIES_MAX: u64 = 1024;
/// Inodes in one answer about the change log.
pub const NEWS_INODES_MAX: usize = 2048;
/// The time between two rings of a realm's bell. Each ring is a message to each mount.
pub const BELL_INTERVAL: Nanos = Nanos(10_000_000);
/// Rows that the change log writes at most at the end of an operation or a tick, beyond its bound:
/// the log's end, the entry, the bell, a bell that is owed.
pub const LOG_ROWS: usize = 4;

/// Locks of one inode and kind: each operation on one of them reads all.
pub const LOCKS_MAX: usize = 1024;
/// Requests that wait for locks of one inode and kind.
pub const LOCK_WAITERS_MAX: usize = 256;
/// Inodes, counted once for each kind, of which a mount may have locks or wait for some.
pub const LOCKED_INODES_MAX: u32 = 4096;
/// How long a waiter may take to take a lock once nothing is in its way, by the lease clock. Others
/// wait behind it meanwhile.
pub const LOCK_TURN_TIME: Nanos = Nanos(3_000_000_000);
/// Locks, and as many waiters, of mounts that have ended which one operation removes when it meets
/// them. At least as many as one operation adds, so that the bounds above hold with them.
pub const LOCKS_BURIED_MAX: usize = 32;
/// Locks and waiters of a mount that has ended which one piece of a tick removes: up to two rows
/// each.
pub const LOCKS_REAPED_PER_PIECE: usize = 64;
/// Waiters that did not take a lock in time which one operation or piece of a tick drops. Each
/// costs four rows.
pub const LOCK_WAITERS_DROPPED_MAX: usize = 16;
/// Turns that one operation or piece of a tick begins or ends. Each costs two rows.
pub const LOCK_TURNS_MAX: usize = 32;
/// Rows that an operation on a lock writes at most, beyond the bound of others: an owner may unlock
/// all locks of an inode at once, and a process that ends does.
pub const LOCK_ROWS: usize = LOCKS_MAX;
/// Rows that one tick reads for locks before it stops: each inode has up to 1280.
pub const LOCK_ROWS_READ_PER_TICK: usize = 16 << 10;
/// Places of locks that one page of a listing looks at; each may need all waiters of its inode.
pub const LOCK_PAGE_MAX: u32 = 128;

/// How long an inode without a name waits for the mounts that have it open, by the lease clock.
pub const GRAVE_TIME: Nanos = Nanos(60_000_000_000);
/// How long a mount that is alone may take to share, by the lease clock, until it is fenced.
pub const RECALL_TIME: Nanos = Nanos(10_000_000_000);
/// How long a mount acts as alone after it has sent a question for news whose answer told of no
/// recall, by its own clock. The rest of [`RECALL_TIME`] is for clocks that run apart.
pub const ACTS_ALONE_FOR: Nanos = Nanos(3_000_000_000);
const _: () = assert!(2 * ACTS_ALONE_FOR.0 < RECALL_TIME.0);
/// Inodes that one operation may claim: each costs up to nine rows if it comes out of the trash.
pub const CLAIM_INODES_MAX: usize = 64;
/// Inodes without a name that a session may hold for it to claim more. Claiming counts them.
pub const CLAIMS_MAX: usize = 2048;

/// How long an inode must have existed to go to the trash with its last name, in seconds: what
/// programs create and remove at once (a journal, a lock, an intermediate result) is not worth
/// keeping.
pub const TRASH_AGE_SECONDS: i64 = 60;
/// The longest time for which a trash is kept, in seconds: ten years.
pub const TRASH_SECONDS_MAX: u64 = 10 * 366 * 24 * 60 * 60;
/// Entries of the trash in one page.
pub const TRASH_PAGE_MAX: u32 = 256;
/// Inodes in the trash that one operation may purge: each costs up to twelve rows, because its
/// extents are queued.
pub const TRASH_PURGED_MAX: usize = 32;
/// Inodes in the trash that go with each operation while the servers' disks are nearly full.
pub const TRASH_PURGED_WHEN_SHORT: usize = 4;

/// Supplementary groups of one caller; Linux allows 65536, very few users have more than these.
pub const GROUPS_MAX: usize = 1024;
/// Uids or gids that a principal's rights may list.
pub const RIGHTS_LIST_MAX: usize = 256;

/// Bytes of a plain name, as everywhere on Linux.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of a sealed name: the plain name, a synthetic nonce of 16 bytes, space for a header.
pub const SEALED_NAME_BYTES_MAX: usize = NAME_BYTES_MAX + 33;
/// Bytes of a plain symlink target (`PATH_MAX` without the terminator).
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Bytes of file content that may lie in the inode.
pub const INLINE_BYTES_MAX: u32 = 1024;
/// Bytes that sealing may add to a small value: nonce, tag, header.
pub const SEAL_OVERHEAD_MAX: usize = 64;
/// Users and groups that one access control list may name: with its other entries it fits the page
/// in which Linux passes lists.
pub const ACL_ENTRIES_MAX: usize = 256;
/// Extended attributes of one inode: their names fit an answer of `listxattr`.
pub const EXTENDED_MAX: u16 = 256;
/// Bytes of the plain value of an extended attribute, as everywhere on Linux.
pub const EXTENDED_VALUE_BYTES_MAX: usize = 64 << 10;
/// Bytes of all sealed names and values of an inode's extended attributes, which are one answer.
pub const EXTENDED_BYTES_MAX: u32 = 128 << 10;
/// Extended attributes that an operation deletes itself with their inode; more are queued.
pub const EXTENDED_DROPPED_MAX: usize = 16;
/// Bytes of an opaque wrapped key, its encapsulation included.
pub const WRAPPED_KEY_BYTES_MAX: usize = 512;
/// Bytes of a label that an operator chose.
pub const LABEL_BYTES_MAX: usize = 128;

/// Names of one directory that may share the 60 bits of their cookie: the 3 bits below them.
pub const COOKIE_COLLISIONS_MAX: u64 = 8;
/// The largest size of a file: offsets stay positive as signed 64-bit numbers.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;
/// Bytes of plaintext in one slice.
pub const SLICE_BYTES_MAX: u32 = 64 << 20;
/// Bytes of sealed stream in one object.
pub const OBJECT_BYTES_MAX: u32 = 128 << 20;
/// Links of one inode, as in ext4's successors; far below overflow.
pub const LINKS_MAX: u32 = 1 << 20;

/// Bytes that each name of an inode counts in quotas, whatever its length: about the space of its
/// entry and of a part of the inode's own row on the servers' disks.
pub const NAME_CHARGE: u64 = 512;

/// Bytes that each named entry of an access control list counts.
pub const ACL_ENTRY_CHARGE: u64 = 8;
/// Directories between an inode and the root that a rename searches for a cycle. Deeper trees exist
/// only in attacks; they can be read and removed but not moved into.
pub const DEPTH_MAX: usize = 1024;

/// How much later than its writing content may be committed with the time of its writing as its
/// ctime, in seconds. The ctime shown before the commit then stays, for programs that compare it;
/// and programs that search by ctime have to search only so much further back.
pub const CTIME_BEHIND_MAX_SECONDS: i64 = 60;
/// How far a gateway's clock may be ahead of the agreed one for this, in seconds.
pub const CTIME_AHEAD_MAX_SECONDS: i64 = 5;

/// Ids of each kind in one allocation.
pub const ALLOCATION_IDS_MAX: u32 = 1024;
/// Live allocations of one session.
pub const SESSION_ALLOCATIONS_MAX: usize = 16;
/// Live sessions of one principal.
pub const PRINCIPAL_SESSIONS_MAX: u32 = 1024;
/// Clouds of one volume; a set of them fits 32 bits, including retired ones.
pub const CLOUDS_MAX: usize = 32;
/// Changes of a volume's clouds in its life: all of them are one answer.
pub const CLOUD_CHANGES_MAX: usize = 256;
/// Bytes of one change of the clouds.
pub const CLOUD_CHANGE_BYTES_MAX: usize = 2 << 10;
/// Bytes of a cloud's sealed location: an URL with a bucket and a prefix.
pub const CLOUD_DESCRIPTION_BYTES_MAX: usize = 1 << 10;
/// Shards that one operation may move to other clouds: each may be an object's own, which costs
/// five rows.
pub const MOVE_SHARDS_MAX: usize = 128;
/// Principals that a genesis may name.
pub const GENESIS_PRINCIPALS_MAX: usize = 64;

/// Members of one realm.
pub const MEMBERS_MAX: usize = GENESIS_PRINCIPALS_MAX;
/// Principals of a volume at a time: each can be a member.
pub const PRINCIPALS_MAX: usize = MEMBERS_MAX;
/// Principals that are read when a key epoch begins, and that finish a recovery: more than a volume
/// can have.
pub const PRINCIPALS_READ_MAX: usize = 2 * PRINCIPALS_MAX;
const _: () = assert!(GENESIS_PRINCIPALS_MAX <= PRINCIPALS_MAX);
/// Changes of a volume's principals and names of groups in its life: a client reads all of them
/// once.
pub const PEOPLE_CHANGES_MAX: u32 = 4096;
/// Bytes of one change of the principals: a wrapped secret for each cloud is most of it.
pub const PEOPLE_CHANGE_BYTES_MAX: usize = 24 << 10;
/// Bytes of a cloud's credentials that are sealed for a principal: a file as providers hand it out.
pub const SEALED_CREDENTIALS_BYTES_MAX: usize = 16 << 10;
/// Changes of the principals in one answer, which has less than 1 MiB.
pub const PEOPLE_PAGE_MAX: usize = 32;
const _: () = assert!(PEOPLE_PAGE_MAX * (PEOPLE_CHANGE_BYTES_MAX + 128) < 1 << 20);

/// Further machines of one person.
pub const MACHINES_OF_PERSON_MAX: u32 = 8;
/// Further machines of all people: more than a volume can have.
pub const MACHINES_READ_MAX: usize = 2 * PRINCIPALS_MAX;
/// Bytes of the name of a machine.
pub const MACHINE_NAME_BYTES_MAX: usize = 32;
/// The last number of a change that members make of their own machines: those after it are left
/// to administrators.
pub const MACHINE_CHANGES_MAX: u32 = PEOPLE_CHANGES_MAX / 4 * 3;
/// How long an invitation of a machine may last, in seconds.
pub const INVITATION_SECONDS_MAX: u64 = 60 * 60;
/// Invitations of machines at a time.
pub const INVITATIONS_MAX: usize = 4 * PRINCIPALS_MAX;
/// The most principals with which a member still adds a machine: the rest is for administrators.
pub const PRINCIPALS_WITH_MACHINES_MAX: usize = PRINCIPALS_MAX / 4 * 3;
/// Invitations of one member at a time, those that it has ended or replaced included: each lasts
/// its whole time for this count.
pub const INVITATIONS_OF_MEMBER_MAX: usize = 4;
/// Sessions that are opened with one invitation.
pub const INVITATION_SESSIONS_MAX: u32 = 4;
/// Sessions of a person with several machines: less than what the cluster permits to one key.
pub const PERSON_SESSIONS_MAX: u32 = 192;
/// Bytes of what an invitation says of the volume.
pub const INVITATION_CARD_BYTES_MAX: usize = 128 << 10;
/// Bytes of what a machine answers.
pub const INVITATION_ANSWER_BYTES_MAX: usize = 512;

/// Shares of a volume, ended ones included: a command of an administrator lists all of them.
pub const SHARES_MAX: u32 = 64 << 10;
/// Shares of one user: a mount asks for all of them to take back the lists of those that have
/// ended.
pub const SHARES_OF_USER_MAX: u32 = 4096;
/// Shares with one person: each is a link in a directory that its mount shows, and is asked for
/// every few seconds while that is read.
pub const SHARES_WITH_PERSON_MAX: u32 = 1024;
/// Directories above a shared inode that let a person pass for its name alone.
pub const SHARE_THROUGH_MAX: usize = 64;
/// How long a capsule may last, in seconds: a year. What the volume needs when it is ordered takes
/// space on the clouds for as long.
pub const CAPSULE_SECONDS_MAX: u64 = 366 * 24 * 60 * 60;
/// Capsules of one user at a time. Each retains what the volume needed at a point of its own, and
/// quotas count only what is needed now: so this bounds what a user can keep beyond its quota.
pub const CAPSULES_OF_USER_MAX: u32 = 256;
/// Objects of a capsule's manifest, which is one file.
pub const MANIFEST_OBJECTS_MAX: usize = 8;
/// Bytes of the plain place of a share: a path and some numbers.
pub const SHARE_PLACE_BYTES_MAX: usize = SYMLINK_BYTES_MAX + 65;
/// Shares in one page, which has less than 512 KiB.
pub const SHARE_PAGE_MAX: u32 = 64;
const _: () = assert!(
    SHARE_PAGE_MAX as usize * (SHARE_PLACE_BYTES_MAX + 8 * SHARE_THROUGH_MAX + 512) < 512 << 10
);
const _: () = assert!(12 * MANIFEST_OBJECTS_MAX <= 8 * SHARE_THROUGH_MAX);

/// How often principals of a volume can be replaced: all successions are one answer.
pub const SUCCESSIONS_MAX: usize = 32;
/// Bytes of one succession: a wrapped secret for each cloud is most of it.
pub const SUCCESSION_BYTES_MAX: usize = 32 << 10;

/// Epochs in one answer.
pub const EPOCHS_PAGE_MAX: u32 = 64;
/// Slices that one question about their number counts.
pub const SLICES_COUNTED_MAX: u32 = 4096;

/// How long a key epoch still seals after the next one has begun, by the agreed time: what mounts
/// have sealed and sent meanwhile need not be sealed twice.
pub const OLD_KEYS_TIME: Nanos = Nanos(120_000_000_000);
/// Directories whose names one operation may reseal: each costs four rows beyond its names.
pub const RESEAL_DIRECTORIES_MAX: usize = 128;
/// Names that one operation may reseal: each costs two rows.
pub const RESEAL_NAMES_MAX: usize = 256;
/// Inodes that one question about old names looks at.
pub const INODES_LOOKED_AT_MAX: u32 = 4096;

/// Entries in one page of a directory.
pub const DIRECTORY_PAGE_MAX: u32 = 512;
/// Extents in one page of a file's content.
pub const EXTENT_PAGE_MAX: u32 = 256;
/// Objects in one page of a queue.
pub const QUEUE_PAGE_MAX: u32 = 256;

/// Users in one page of a realm's quotas.
pub const QUOTA_PAGE_MAX: u32 = 256;

/// Extents that an operation removes itself when a file shrinks or goes; the rest is queued.
pub const EXTENTS_DROPPED_MAX: usize = 48;
/// Slices whose references an operation drops itself; more are queued.
pub const SLICES_DROPPED_MAX: usize = 48;
/// Slices in one row of the reap queue.
pub const REAP_SLICES_PER_ROW: usize = 128;
/// Extents or slices that one item of the reap queue drops.
pub const REAPED_PER_PIECE: usize = 48;
/// Extents that go at once with an inode, a truncation or an item of the reap queue cost up to
/// seven rows each: their own, the slice, its place in its pack, the object and its places in three
/// queues.
pub const ROWS_PER_EXTENT: usize = 7;
