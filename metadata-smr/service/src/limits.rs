//! Every bound of the metadata service, with its reason.
//!
//! One operation touches a bounded number of rows, one message a bounded number of bytes, one
//! session a bounded number of ids. What is larger is split by the client (a commit) or drained by
//! ordered ticks (a truncation, a deletion).

/// Rows that one operation may write; beyond it the operation is refused whole and its sender
/// splits it. Keeps the longest batch short and its write set in memory.
pub const ROWS_WRITTEN_MAX: usize = 1000;
/// Rows that one operation may read, scans included. A few reads go with each write.
pub const ROWS_READ_MAX: usize = 8 * ROWS_WRITTEN_MAX;
/// Rows that one tick may write while it drains the reap queue.
pub const TICK_ROWS_MAX: usize = 736;
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
/// Inodes that one step may say were read, one row each.
pub const ACCESSED_MAX: usize = 256;
/// Objects that one commit may bring in.
pub const COMMIT_OBJECTS_MAX: usize = 200;
/// Slices that one commit may bring in.
pub const COMMIT_SLICES_MAX: usize = 200;
/// Extents that one commit may set.
pub const COMMIT_EXTENTS_MAX: usize = 200;
/// Extents that one clone may look at: each costs a row of its own and its slice's.
pub const CLONE_EXTENTS_MAX: usize = 256;
/// Slices of one pack: one of 4 MiB can be full of pages of 4 KiB. A move reads all that lie in
/// the packs it adds to.
pub const PACK_SLICES_MAX: u32 = 1024;
/// Packs that one move of slices may bring in.
pub const MOVE_OBJECTS_MAX: usize = 4;
/// Slices that one operation may move: each costs three rows, and the pack that it leaves up to
/// four.
pub const MOVE_SLICES_MAX: usize = 128;
/// Shards that one confirmation may name.
pub const CONFIRM_SHARDS_MAX: usize = 256;
/// Shards that one withdrawal may name: each may be an object's own, which costs three rows.
pub const WITHDRAW_SHARDS_MAX: usize = 256;

/// Objects that one confirmation may say were checked, one row each.
pub const CHECKED_OBJECTS_MAX: usize = 256;
/// Findings in one testimony: each costs an object that is read and a row that is written, besides
/// the one cloud's ring, which is read once.
pub const TESTIFY_FINDINGS_MAX: usize = 32;
/// Findings that are kept of one cloud; the oldest gives way to the next. Enough to show a
/// provider, and at 32 clouds no more than a few MiB.
pub const EVIDENCE_PER_CLOUD: u16 = 256;

/// Supplementary groups of one caller; Linux allows 65536, almost nobody has more than these.
pub const GROUPS_MAX: usize = 1024;
/// Uids or gids that a principal's rights may list.
pub const RIGHTS_LIST_MAX: usize = 256;

/// Bytes of a plain name, as everywhere on Linux.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of a sealed name: the plain name, a synthetic nonce of 16 bytes, room for a header.
pub const SEALED_NAME_BYTES_MAX: usize = NAME_BYTES_MAX + 33;
/// Bytes of a plain symlink target (`PATH_MAX` without the terminator).
pub const SYMLINK_BYTES_MAX: usize = 4095;
/// Bytes of file content that may lie in the inode.
pub const INLINE_BYTES_MAX: u32 = 1024;
/// What sealing may add to a small value: nonce, tag, header.
pub const SEAL_OVERHEAD_MAX: usize = 64;
/// Users and groups that one access control list may name: with the rest it fits the page that
/// Linux takes lists in.
pub const ACL_ENTRIES_MAX: usize = 256;
/// Extended attributes of one inode: the names of all of them fit what `listxattr` can answer.
pub const EXTENDED_MAX: u16 = 256;
/// Bytes of the plain value of an extended attribute, as everywhere on Linux.
pub const EXTENDED_VALUE_BYTES_MAX: usize = 64 << 10;
/// Bytes of all sealed names and values of an inode's extended attributes: they are answered in
/// one piece.
pub const EXTENDED_BYTES_MAX: u32 = 128 << 10;
/// Extended attributes that an operation deletes by itself with their inode; more are queued.
pub const EXTENDED_DROPPED_MAX: usize = 16;
/// Bytes of an opaque wrapped key, its encapsulation included.
pub const WRAPPED_KEY_BYTES_MAX: usize = 512;
/// Bytes of a label that an operator gave to something.
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

/// Bytes that each name of an inode counts in quotas, whatever its length: about what its entry
/// and a part of the inode's own row take of the servers' disks.
pub const NAME_CHARGE: u64 = 512;

/// Bytes that each user or group counts that an access control list names.
pub const ACL_ENTRY_CHARGE: u64 = 8;
/// Directories between an inode and the root that a rename looks at for a cycle. Deeper trees
/// exist only where somebody wants to hurt; they can be read and removed but not moved into.
pub const DEPTH_MAX: usize = 1024;

/// How much later than it was written content may be committed with the time of its writing as its
/// ctime, in seconds. What was shown before the commit then stays, for programs that compare it;
/// and who looks for what changed by ctime has to look only so much further back.
pub const CTIME_BEHIND_MAX_SECONDS: i64 = 60;
/// How far ahead of the agreed clock a gateway's may be for the same, in seconds.
pub const CTIME_AHEAD_MAX_SECONDS: i64 = 5;

/// Ids of each kind in one allocation.
pub const ALLOCATION_IDS_MAX: u32 = 1024;
/// Live allocations of one session.
pub const SESSION_ALLOCATIONS_MAX: usize = 16;
/// Live sessions of one principal.
pub const PRINCIPAL_SESSIONS_MAX: u32 = 1024;
/// Clouds of one volume; a set of them fits 32 bits with room for those that were retired.
pub const CLOUDS_MAX: usize = 32;
/// Principals that a genesis may name.
pub const GENESIS_PRINCIPALS_MAX: usize = 64;

/// Members of one realm.
pub const MEMBERS_MAX: usize = GENESIS_PRINCIPALS_MAX;
/// Principals that are looked at when an epoch begins: all that a volume can have now.
pub const PRINCIPALS_READ_MAX: usize = 2 * GENESIS_PRINCIPALS_MAX;

/// How often a principal of a volume can be replaced: all successions are one answer.
pub const SUCCESSIONS_MAX: usize = 32;
/// Bytes of one succession: a wrapped secret for each cloud is most of it.
pub const SUCCESSION_BYTES_MAX: usize = 32 << 10;

/// Epochs in one answer.
pub const EPOCHS_PAGE_MAX: u32 = 64;
/// Slices that one question about how many there are looks at.
pub const SLICES_COUNTED_MAX: u32 = 4096;

/// Entries in one page of a directory.
pub const DIRECTORY_PAGE_MAX: u32 = 512;
/// Extents in one page of a file's content.
pub const EXTENT_PAGE_MAX: u32 = 256;
/// Objects in one page of a queue.
pub const QUEUE_PAGE_MAX: u32 = 256;

/// Users in one page of a realm's quotas.
pub const QUOTA_PAGE_MAX: u32 = 256;

/// Extents that an operation removes by itself when a file shrinks or goes; the rest is queued.
pub const EXTENTS_DROPPED_MAX: usize = 48;
/// Slices whose references an operation drops by itself; beyond it they are queued.
pub const SLICES_DROPPED_MAX: usize = 48;
/// Slices in one row of the reap queue.
pub const REAP_SLICES_PER_ROW: usize = 128;
/// Extents or slices that one piece of work on the reap queue drops.
pub const REAPED_PER_PIECE: usize = 48;
/// Extents that go at once with an inode, a truncation or a piece of reaping cost up to seven rows
/// each: their own, the slice, its place in its pack, the object and its places in three queues.
pub const ROWS_PER_EXTENT: usize = 7;
