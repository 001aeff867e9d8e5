//! A file system over a service in this process and slices in memory.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use async_trait::async_trait;
use bytes::Bytes;
use quorumfs_bft::identity::Digest;
use quorumfs_gateway::journal::{Directory, Disk, Generation, JOURNAL_BYTES_MIN, JournalOptions};
use quorumfs_gateway::keys::Secret;
use quorumfs_gateway::metadata::{
    AllocatedId, Embedded, EmbeddedSession, MetadataClient, MetadataError, MountMode, Takeover,
    Transport,
};
use quorumfs_gateway::vfs::{
    AttributeChange, Attributes, Caller, FileSystem, HandleId, InodeId, OpenMode, Replay, Replayed,
    SliceStore, StoredSlice, VfsError, VfsOptions, WrittenSlice,
};
use quorumfs_gateway::volume::{Created, NewVolume, Volume, create};
use quorumfs_metadata::Metadata;
use quorumfs_metadata::identity::{
    CloudIndex, Codec, ObjectClass, ObjectId, RealmEpoch, RealmId, SliceId,
};
use quorumfs_metadata::operation::{NewObject, NewSlice, Operation, Step};
use quorumfs_metadata::placement::{Policy, Shard};
use quorumfs_metadata::row::{SliceKey, SliceSalt};
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Slices in memory, which can be set to fail.
#[derive(Default)]
pub(crate) struct MemorySlices {
    slices: Mutex<HashMap<SliceId, Bytes>>,
    pub(crate) failing: AtomicBool,
    /// The clouds have no space.
    pub(crate) full: AtomicBool,
    /// No slice can be read.
    pub(crate) refusing: AtomicBool,
    /// How long a write takes, in milliseconds.
    pub(crate) delay: AtomicU32,
    /// How many writes may begin until this is raised, if it is not 0.
    pub(crate) let_through: AtomicU32,
    /// Free space in bytes, if it is not 0.
    pub(crate) room: AtomicU64,
    begun: AtomicU32,
    pub(crate) writes: AtomicU32,
    pub(crate) reads: AtomicU32,
    pub(crate) committed: AtomicU32,
    pub(crate) abandoned: AtomicU32,
}

#[async_trait]
impl SliceStore for MemorySlices {
    async fn write(&self, id: &AllocatedId, plain: Bytes) -> Result<WrittenSlice, VfsError> {
        let delay = self.delay.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(delay.into())).await;
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        while (1..=number).contains(&self.let_through.load(Ordering::Relaxed)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if self.failing.load(Ordering::Relaxed) {
            return Err(VfsError::Data {
                kind: quorumfs_gateway::blocks::BlockErrorKind::Io,
                doing: "a write",
                reason: "set to fail".into(),
            });
        }
        if self.full.load(Ordering::Relaxed) {
            return Err(VfsError::Refused {
                what: "a write",
                errno: rustix::io::Errno::NOSPC,
            });
        }
        self.writes.fetch_add(1, Ordering::Relaxed);
        let length = u32::try_from(plain.len()).unwrap();
        self.slices.lock().unwrap().insert(id.slice(), plain);
        let shards = (0..4)
            .map(|cloud| Shard {
                digest: Digest([cloud; 32]),
                cloud: CloudIndex(cloud),
                attempt: 0,
                acknowledged: cloud < 3,
                withdrawn: false,
                receipt: None,
                coded_for: None,
            })
            .collect();
        let object = NewObject {
            id: id.object(),
            class: ObjectClass::BLOCK,
            policy: Policy::new(4, 1, 2, 4).unwrap(),
            length: length + 16,
            shard_length: length / 2 + 64,
            shards,
        };
        let slice = NewSlice {
            id: id.slice(),
            object: id.object(),
            offset: 0,
            length,
            sealed_length: length + 16,
            codec: Codec::NONE,
            keys: vec![SliceKey::Derived {
                realm: RealmId::ROOT,
                epoch: RealmEpoch(0),
                salt: SliceSalt::default(),
            }],
        };
        Ok(WrittenSlice {
            object,
            slice,
            lease: None,
        })
    }

    async fn read(&self, stored: &StoredSlice, range: Range<u32>) -> Result<Bytes, VfsError> {
        tokio::task::yield_now().await;
        if self.refusing.load(Ordering::Relaxed) {
            return Err(VfsError::Data {
                kind: quorumfs_gateway::blocks::BlockErrorKind::Io,
                doing: "a read",
                reason: "set to refuse".into(),
            });
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        let slices = self.slices.lock().unwrap();
        Ok(slices[&stored.id].slice(range.start as usize..range.end as usize))
    }

    fn committed(&self, _: ObjectId) {
        self.committed.fetch_add(1, Ordering::Relaxed);
    }

    fn abandoned(&self, _: ObjectId) {
        self.abandoned.fetch_add(1, Ordering::Relaxed);
    }

    async fn room(&self) -> Option<u64> {
        let room = self.room.load(Ordering::Relaxed);
        (room != 0).then_some(room)
    }
}

/// A volume whose servers and clouds live in this process.
pub(crate) struct TestVolume {
    pub(crate) created: Created,
    pub(crate) volume: Arc<Volume>,
    pub(crate) embedded: Arc<Embedded<Metadata>>,
    pub(crate) slices: Arc<MemorySlices>,
}

pub(crate) fn new_volume() -> NewVolume {
    NewVolume::in_process().unwrap()
}

impl TestVolume {
    pub(crate) fn new() -> Self {
        Self::of(new_volume())
    }

    pub(crate) fn of(new: NewVolume) -> Self {
        let created = create(new).unwrap();
        let volume = Arc::new(Volume::open(&created.genesis, &created.owner).unwrap());
        let embedded = Embedded::new(Metadata, &created.genesis).unwrap();
        Self {
            created,
            volume,
            embedded,
            slices: Arc::default(),
        }
    }

    /// The same with servers whose clock is so many seconds behind this machine's.
    pub(crate) fn behind(seconds: u64) -> Self {
        let mut world = Self::new();
        let clock = move || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            (now - Duration::from_secs(seconds)).as_nanos() as u64
        };
        world.embedded = Embedded::with_clock(Metadata, &world.created.genesis, clock).unwrap();
        world
    }

    /// The same with servers whose clock is the test's, which may be paused.
    pub(crate) fn in_test_time() -> Self {
        let mut world = Self::new();
        let (began, start) = (SystemTime::now(), tokio::time::Instant::now());
        let clock = move || {
            let now = (began + start.elapsed()).duration_since(UNIX_EPOCH);
            now.unwrap().as_nanos() as u64
        };
        world.embedded = Embedded::with_clock(Metadata, &world.created.genesis, clock).unwrap();
        world
    }

    pub(crate) fn session(&self) -> EmbeddedSession<Metadata> {
        self.embedded
            .open_session(self.created.owner.principal.id().signing)
            .unwrap()
    }

    /// A file system over a session of its own that does not mount, as of a command.
    pub(crate) fn command(&self, options: VfsOptions) -> FileSystem {
        let own = self.volume.own_credentials();
        let client = Arc::new(MetadataClient::new(Arc::new(self.session()), own));
        FileSystem::new(self.volume.clone(), client, self.slices.clone(), options)
    }

    /// A file system over a new mount session, taking over from an older one.
    pub(crate) async fn mount(&self, options: VfsOptions) -> FileSystem {
        self.mount_as(MountMode::Exclusive, options).await
    }

    /// A file system over a new mount session that shares with others.
    pub(crate) async fn share(&self, options: VfsOptions) -> FileSystem {
        self.mount_as(MountMode::Shared, options).await
    }

    pub(crate) async fn mount_as(&self, mode: MountMode, options: VfsOptions) -> FileSystem {
        let own = self.volume.own_credentials();
        let client = Arc::new(MetadataClient::new(Arc::new(self.session()), own));
        client.mount(Takeover::OfAny, mode).await.unwrap();
        FileSystem::new(self.volume.clone(), client, self.slices.clone(), options)
    }
}

pub(crate) fn root() -> Caller {
    Caller::user(0, 0, vec![])
}

/// A fault of one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OperationFault {
    /// It is not sent.
    NotSent,
    /// It is executed, and the answer is lost.
    AnswerLost,
    /// Its answer is lost, but it is executed in the end: see [`Wire::deliver`].
    Late,
}

type Which = fn(&Operation) -> bool;

/// A session whose operations can have faults.
pub(crate) struct Wire {
    session: EmbeddedSession<Metadata>,
    faults: Mutex<Vec<(Which, OperationFault)>>,
    late: Mutex<Vec<Bytes>>,
    /// No query is answered.
    pub(crate) unheard: AtomicBool,
    /// Every operation that was answered.
    pub(crate) sent: Mutex<Vec<Operation>>,
    /// Queries to a quorum, and queries to the nearest servers.
    asked: [AtomicU64; 2],
}

impl Wire {
    /// The next operation that `which` selects gets `fault`.
    pub(crate) fn next(&self, which: Which, fault: OperationFault) {
        self.faults.lock().unwrap().push((which, fault));
    }

    /// Drops faults that did not occur.
    pub(crate) fn forget(&self) {
        self.faults.lock().unwrap().clear();
    }

    /// Whether every fault has occurred.
    pub(crate) fn all_faults_occurred(&self) -> bool {
        self.faults.lock().unwrap().is_empty()
    }

    /// Executes late operations now; returns how many.
    pub(crate) async fn deliver(&self) -> usize {
        let late = std::mem::take(&mut *self.late.lock().unwrap());
        let count = late.len();
        for operation in late {
            let _ = self.session.execute(operation).await;
        }
        count
    }
}

#[async_trait]
impl Transport for Wire {
    async fn execute(&self, operation: Bytes) -> Result<Bytes, MetadataError> {
        let decoded = Operation::from_bytes(&operation).unwrap();
        let fault = {
            let mut faults = self.faults.lock().unwrap();
            let at = faults.iter().position(|(which, _)| which(&decoded));
            at.map(|at| faults.remove(at).1)
        };
        let unknown = || MetadataError::OutcomeUnknown {
            reason: "set to lose it".into(),
        };
        match fault {
            None => {
                let answer = self.session.execute(operation).await;
                self.sent.lock().unwrap().push(decoded);
                answer
            }
            Some(OperationFault::NotSent) => Err(MetadataError::NotExecuted {
                reason: "set to fail".into(),
            }),
            Some(OperationFault::AnswerLost) => {
                self.session.execute(operation).await?;
                Err(unknown())
            }
            Some(OperationFault::Late) => {
                self.late.lock().unwrap().push(operation);
                Err(unknown())
            }
        }
    }

    async fn query(&self, query: Bytes) -> Result<Bytes, MetadataError> {
        self.asked[0].fetch_add(1, Ordering::Relaxed);
        self.answer(query).await
    }

    async fn query_near(&self, query: Bytes) -> Result<Bytes, MetadataError> {
        self.asked[1].fetch_add(1, Ordering::Relaxed);
        self.answer(query).await
    }

    async fn close(&self) {
        self.session.close().await;
    }
}

impl Wire {
    async fn answer(&self, query: Bytes) -> Result<Bytes, MetadataError> {
        if self.unheard.load(Ordering::Relaxed) {
            return Err(MetadataError::NotExecuted {
                reason: "set to fail".into(),
            });
        }
        self.session.query(query).await
    }

    /// How many queries went to a quorum, and how many to the nearest servers, since the last call.
    pub(crate) fn take_asked(&self) -> [u64; 2] {
        [0, 1].map(|way: usize| self.asked[way].swap(0, Ordering::Relaxed))
    }
}

impl TestVolume {
    /// As [`TestVolume::mount`], over a wire with faults.
    pub(crate) async fn mount_over(&self, options: VfsOptions) -> (FileSystem, Arc<Wire>) {
        self.over(MountMode::Exclusive, options).await
    }

    /// As [`TestVolume::share`], over a wire with faults.
    pub(crate) async fn share_over(&self, options: VfsOptions) -> (FileSystem, Arc<Wire>) {
        self.over(MountMode::Shared, options).await
    }

    pub(crate) async fn over(
        &self,
        mode: MountMode,
        options: VfsOptions,
    ) -> (FileSystem, Arc<Wire>) {
        let wire = Arc::new(Wire {
            session: self.session(),
            faults: Mutex::default(),
            late: Mutex::default(),
            unheard: AtomicBool::new(false),
            sent: Mutex::default(),
            asked: Default::default(),
        });
        let own = self.volume.own_credentials();
        let client = Arc::new(MetadataClient::new(wire.clone(), own));
        client.mount(Takeover::OfAny, mode).await.unwrap();
        let slices = self.slices.clone();
        let fs = FileSystem::new(self.volume.clone(), client, slices, options);
        (fs, wire)
    }
}

impl TestVolume {
    /// As [`TestVolume::mount_over`], with a journal in `directory` and its replay.
    pub(crate) async fn mount_journalled(
        &self,
        options: VfsOptions,
        disk: impl Disk,
    ) -> (FileSystem, Replayed, Arc<Wire>) {
        let wire = Arc::new(Wire {
            session: self.session(),
            faults: Mutex::default(),
            late: Mutex::default(),
            unheard: AtomicBool::new(false),
            sent: Mutex::default(),
            asked: Default::default(),
        });
        let own = self.volume.own_credentials();
        let client = Arc::new(MetadataClient::new(wire.clone(), own));
        client
            .mount(Takeover::OfAny, MountMode::Exclusive)
            .await
            .unwrap();
        let secret = Secret::from_bytes([7; 32]);
        let bounds = JournalOptions {
            bytes_max: JOURNAL_BYTES_MIN,
            free_bytes_min: 1,
        };
        let replay = Replay::open(disk, secret, self.volume.id(), bounds).unwrap();
        let (volume, slices) = (self.volume.clone(), self.slices.clone());
        let opened = FileSystem::journalled(volume, client, slices, options, replay);
        let (fs, replayed) = opened.await.unwrap();
        (fs, replayed, wire)
    }
}

/// Whether `which` selects some step of the operation.
fn any_step(operation: &Operation, which: fn(&Step) -> bool) -> bool {
    matches!(operation, Operation::Compound(compound) if compound.steps.iter().any(which))
}

/// New content of a file.
pub(crate) fn is_commit(operation: &Operation) -> bool {
    any_step(operation, |step| matches!(step, Step::Commit(_)))
}

/// Asking for ids.
pub(crate) fn is_allocation(operation: &Operation) -> bool {
    matches!(operation, Operation::Allocate { .. })
}

/// A change of a file's length.
pub(crate) fn is_truncation(operation: &Operation) -> bool {
    any_step(
        operation,
        |step| matches!(step, Step::SetAttributes(set) if set.size.is_some()),
    )
}

/// A file that was just made, open.
pub(crate) async fn new_file(fs: &FileSystem, name: &[u8]) -> (InodeId, HandleId) {
    let (found, handle) = fs
        .create(&root(), fs.root(), name, 0o644, OpenMode::READ_WRITE, true)
        .await
        .unwrap();
    (found.inode, handle)
}

/// All bytes of a file.
pub(crate) async fn content(fs: &FileSystem, inode: InodeId) -> Vec<u8> {
    let handle = fs
        .open(&root(), inode, OpenMode::READ)
        .await
        .unwrap()
        .handle;
    let bytes = fs.read(handle, 0, 1 << 20).await.unwrap().to_vec();
    fs.release(handle).await.unwrap();
    bytes
}

/// Truncates a file to nothing when it is opened.
pub(crate) const TRUNCATE: OpenMode = OpenMode {
    read: true,
    write: true,
    truncate: true,
    keep_atime: false,
    append: false,
};

/// Sets a file's length.
pub(crate) async fn set_size(
    fs: &FileSystem,
    inode: InodeId,
    handle: Option<HandleId>,
    size: u64,
) -> Result<Attributes, VfsError> {
    let change = AttributeChange {
        size: Some(size),
        ..AttributeChange::default()
    };
    fs.setattr(&root(), inode, handle, change).await
}

/// Faults of a disk.
#[derive(Default)]
pub(crate) struct DiskFault {
    /// Nor by another process that has seen that epoch before.
    pub(crate) fails: AtomicBool,
    /// No space is free; writes succeed all the same.
    pub(crate) full: AtomicBool,
}

/// A directory with these faults.
pub(crate) struct FaultyDisk(pub(crate) Directory, pub(crate) Arc<DiskFault>);

impl Disk for FaultyDisk {
    fn list(&mut self) -> io::Result<Vec<Generation>> {
        self.0.list()
    }
    fn read(&mut self, file: Generation) -> io::Result<Vec<u8>> {
        self.0.read(file)
    }
    fn settle(&mut self, file: Generation) -> io::Result<()> {
        self.0.settle(file)
    }
    fn create(&mut self, file: Generation, header: &[u8]) -> io::Result<()> {
        self.0.create(file, header)
    }
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.append(bytes)
    }
    fn sync(&mut self) -> io::Result<()> {
        if self.1.fails.swap(false, Ordering::Relaxed) {
            return Err(io::Error::other("set to fail"));
        }
        self.0.sync()
    }
    fn remove(&mut self, file: Generation) -> io::Result<()> {
        self.0.remove(file)
    }
    fn put_aside(&mut self, file: Generation) -> io::Result<()> {
        self.0.put_aside(file)
    }
    fn free_bytes(&mut self) -> io::Result<u64> {
        match self.1.full.load(Ordering::Relaxed) {
            true => Ok(0),
            false => self.0.free_bytes(),
        }
    }
}
