//! Clouds in memory behind decorators that make them lie, and a log of placements.

use crate::blocks::{
    BlockConfig, BlockError, BlockStore, Cloud, Compression, ObjectsPage, PlacementError,
    PlacementLog, PrincipalName, SealedSlice, Sealing, Stored, StoredObject, Timeouts,
    UnderReplicatedCursor, UnderReplicatedPage,
};
use crate::keys::{CloudSecret, Secret, SliceKey};
use bytes::Bytes;
use quorumfs_backends::faulty::{Faulty, Plan};
use quorumfs_backends::{
    Deadline, ObjectInfo, ObjectName, ObjectStore, Operation, Page, Receipt, StoreError,
    StoreErrorKind,
};
use quorumfs_bft::identity::{ClusterId, PublicKey, Sequence, SessionId, Time};
use quorumfs_metadata::fleet::Fleet;
use quorumfs_metadata::identity::{AllocationId, CloudIndex, ObjectId, PrincipalNumber, SliceId};
use quorumfs_metadata::operation::{Finding, NewObject, PlacedShard, ShardMove};
use quorumfs_metadata::placement::{MovedClaim, Policy};
use quorumfs_metadata::row;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(super) const VOLUME: ClusterId = ClusterId([7; 16]);
/// The principal of foreign objects; this process's own is number 0.
pub(super) const FOREIGN: PrincipalNumber = PrincipalNumber(7);
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// A cloud in memory.
#[derive(Debug, Default)]
pub(super) struct MemoryStore {
    pub(super) objects: Mutex<BTreeMap<ObjectName, Bytes>>,
    /// Gets that returned bytes, and the bytes.
    pub(super) gets: AtomicU64,
    pub(super) bytes_got: AtomicU64,
    pub(super) puts: AtomicU64,
}

impl MemoryStore {
    fn error(operation: Operation, name: &ObjectName, kind: StoreErrorKind) -> StoreError {
        StoreError {
            kind,
            operation,
            cloud: "memory".to_owned(),
            object: Some(name.clone()),
            detail: format!("{kind:?}"),
        }
    }

    fn find(&self, name: &ObjectName) -> Result<Bytes, StoreError> {
        let missing = || Self::error(Operation::Get, name, StoreErrorKind::NotFound);
        self.objects
            .lock()
            .unwrap()
            .get(name)
            .cloned()
            .ok_or_else(missing)
    }

    fn count(&self, body: &Bytes) {
        self.gets.fetch_add(1, Ordering::Relaxed);
        self.bytes_got
            .fetch_add(body.len() as u64, Ordering::Relaxed);
    }

    /// Changes every stored object.
    pub(super) fn alter(&self, change: impl Fn(&mut Vec<u8>)) {
        for body in self.objects.lock().unwrap().values_mut() {
            let mut bytes = body.to_vec();
            change(&mut bytes);
            *body = bytes.into();
        }
    }
}

#[async_trait::async_trait]
impl ObjectStore for MemoryStore {
    fn describe(&self) -> String {
        "memory".to_owned()
    }
    async fn found(&self, _: Deadline) -> Result<(), StoreError> {
        Ok(())
    }

    async fn check(&self, _: Deadline) -> Result<(), StoreError> {
        Ok(())
    }

    async fn give_back(&self, _: Deadline) -> Result<(), StoreError> {
        Ok(())
    }

    async fn put_if_absent(
        &self,
        name: &ObjectName,
        body: Bytes,
        _: Deadline,
    ) -> Result<Option<Receipt>, StoreError> {
        let mut objects = self.objects.lock().unwrap();
        if objects.contains_key(name) {
            return Err(Self::error(
                Operation::Put,
                name,
                StoreErrorKind::AlreadyExists,
            ));
        }
        self.puts.fetch_add(1, Ordering::Relaxed);
        let receipt = Receipt::crc32c(&body);
        objects.insert(name.clone(), body);
        Ok(Some(receipt))
    }
    async fn get(&self, name: &ObjectName, most: u64, _: Deadline) -> Result<Bytes, StoreError> {
        let body = self.find(name)?;
        if body.len() as u64 > most {
            return Err(Self::error(Operation::Get, name, StoreErrorKind::Corrupt));
        }
        self.count(&body);
        Ok(body)
    }
    async fn get_range(
        &self,
        name: &ObjectName,
        range: Range<u64>,
        _: Deadline,
    ) -> Result<Bytes, StoreError> {
        let body = self.find(name)?;
        if range.end > body.len() as u64 {
            return Err(Self::error(Operation::Get, name, StoreErrorKind::Corrupt));
        }
        let body = body.slice(range.start as usize..range.end as usize);
        self.count(&body);
        Ok(body)
    }
    async fn head(&self, name: &ObjectName, _: Deadline) -> Result<ObjectInfo, StoreError> {
        Ok(ObjectInfo {
            length: self.find(name)?.len() as u64,
        })
    }
    async fn list(
        &self,
        prefix: &str,
        cursor: Option<&ObjectName>,
        limit: usize,
        _: Deadline,
    ) -> Result<Page, StoreError> {
        let objects = self.objects.lock().unwrap();
        let wanted = |name: &&ObjectName| {
            name.as_str().starts_with(prefix) && cursor.is_none_or(|c| *name > c)
        };
        let names: Vec<_> = objects.keys().filter(wanted).take(limit).cloned().collect();
        Ok(Page {
            more: names.len() == limit,
            names,
        })
    }
    async fn delete(&self, name: &ObjectName, _: Deadline) -> Result<(), StoreError> {
        self.objects.lock().unwrap().remove(name);
        Ok(())
    }
}

/// The metadata's part: rows of objects, and the operations that were ordered.
#[derive(Debug, Default)]
pub(super) struct MemoryLog {
    pub(super) rows: Mutex<BTreeMap<ObjectId, NewObject>>,
    /// Objects of the foreign principal.
    pub(super) foreign: Mutex<BTreeSet<ObjectId>>,
    /// Objects that were ordered as checked.
    pub(super) checked: Mutex<BTreeSet<ObjectId>>,
    /// Findings about clouds.
    pub(super) testified: Mutex<Vec<(CloudIndex, Finding)>>,
    /// How far replaced clouds are drained.
    pub(super) drain: Mutex<row::Drain>,
    /// Clouds that are retired, and those that hold a share of the newest key.
    pub(super) retired: Mutex<BTreeSet<CloudIndex>>,
    pub(super) holding: Mutex<BTreeSet<CloudIndex>>,
    /// How many more moves are ordered before all are refused.
    pub(super) moves_left: Mutex<Option<usize>>,
}

impl MemoryLog {
    /// An object as its row describes it.
    pub(super) fn stored(&self, new: &NewObject) -> StoredObject {
        if !self.foreign.lock().unwrap().contains(&new.id) {
            return StoredObject::of_new(new).unwrap();
        }
        let checked = self.checked.lock().unwrap().contains(&new.id);
        foreign_row(new, SessionId(7), checked)
    }

    fn apply(&self, placed: PlacedShard) -> Result<(), PlacementError> {
        let mut rows = self.rows.lock().unwrap();
        let unknown = || PlacementError {
            reason: format!("no object {}", placed.object),
        };
        let row = rows.get_mut(&placed.object).ok_or_else(unknown)?;
        let shard = &mut row.shards[usize::from(placed.shard.0)];
        if shard.cloud != placed.cloud {
            shard.move_to(placed.cloud, placed.attempt, MovedClaim::Awaited);
        }
        shard.attempt = shard.attempt.max(placed.attempt);
        shard.acknowledge();
        shard.receipt = shard.receipt.or(placed.receipt);
        Ok(())
    }

    pub(super) fn row(&self, object: ObjectId) -> NewObject {
        self.rows.lock().unwrap()[&object].clone()
    }
}

#[async_trait::async_trait]
impl PlacementLog for MemoryLog {
    async fn confirm_placed(&self, shards: Vec<PlacedShard>) -> Result<(), PlacementError> {
        shards.into_iter().try_for_each(|placed| self.apply(placed))
    }
    async fn confirm_checked(&self, objects: Vec<ObjectId>) -> Result<(), PlacementError> {
        self.checked.lock().unwrap().extend(objects);
        Ok(())
    }
    async fn testify(
        &self,
        cloud: CloudIndex,
        findings: Vec<Finding>,
    ) -> Result<(), PlacementError> {
        let found = findings.into_iter().map(|finding| (cloud, finding));
        self.testified.lock().unwrap().extend(found);
        Ok(())
    }
    async fn own_principal(&self) -> Result<Option<PrincipalNumber>, PlacementError> {
        Ok(Some(PrincipalNumber(0)))
    }
    async fn principal(
        &self,
        number: PrincipalNumber,
    ) -> Result<Option<PrincipalName>, PlacementError> {
        Ok((number == FOREIGN).then(|| PrincipalName {
            key: PublicKey([7; 32]),
            label: "mallory".to_owned(),
        }))
    }
    async fn replace_placement(&self, shard: PlacedShard) -> Result<(), PlacementError> {
        self.apply(shard)
    }
    async fn take_job(&self, _: row::Job, _: Duration) -> Result<Option<Time>, PlacementError> {
        Ok(Some(Time(2_000_000_000)))
    }
    async fn drain_row(&self) -> Result<row::Drain, PlacementError> {
        Ok(*self.drain.lock().unwrap())
    }
    async fn move_shards(
        &self,
        moves: Vec<ShardMove>,
        after: Option<ObjectId>,
    ) -> Result<u32, PlacementError> {
        if let Some(left) = self.moves_left.lock().unwrap().as_mut() {
            *left = left.checked_sub(1).ok_or_else(|| PlacementError {
                reason: "the servers are gone".to_owned(),
            })?;
        }
        let mut rows = self.rows.lock().unwrap();
        let mut drain = self.drain.lock().unwrap();
        let before = drain.shards;
        for step in moves {
            let Some(row) = rows.get_mut(&step.to.object) else {
                continue;
            };
            let shard = &mut row.shards[usize::from(step.to.shard.0)];
            if (shard.cloud, shard.attempt) == (step.from, step.from_attempt) {
                shard.move_to(step.to.cloud, step.to.attempt, step.claim);
                drain.shards += 1;
                drain.bytes += u64::from(row.shard_length);
            }
            let clouds: BTreeSet<_> = row.shards.iter().map(|shard| shard.cloud).collect();
            assert_eq!(clouds.len(), row.shards.len(), "{row:?}");
        }
        drain.after = after;
        Ok((drain.shards - before) as u32)
    }
    async fn retire_cloud(&self, cloud: CloudIndex) -> Result<bool, PlacementError> {
        let holds = self.holding.lock().unwrap().contains(&cloud);
        if !holds {
            self.retired.lock().unwrap().insert(cloud);
        }
        Ok(!holds)
    }
    async fn withdraw_placed(&self, shards: Vec<PlacedShard>) -> Result<(), PlacementError> {
        let mut rows = self.rows.lock().unwrap();
        for placed in shards {
            if let Some(row) = rows.get_mut(&placed.object) {
                let shard = &mut row.shards[usize::from(placed.shard.0)];
                if (shard.cloud, shard.attempt) == (placed.cloud, placed.attempt) {
                    shard.withdraw();
                }
            }
        }
        Ok(())
    }
    async fn list_objects(
        &self,
        after: Option<ObjectId>,
        limit: u32,
    ) -> Result<ObjectsPage, PlacementError> {
        let rows = self.rows.lock().unwrap();
        let behind = rows
            .values()
            .filter(|row| after.is_none_or(|it| row.id > it));
        let objects: Vec<_> = behind
            .clone()
            .take(limit as usize)
            .map(|row| self.stored(row))
            .collect();
        Ok(ObjectsPage {
            last: objects.last().map(StoredObject::id),
            more: behind.count() > objects.len(),
            objects,
        })
    }
    async fn list_under_replicated(
        &self,
        after: Option<UnderReplicatedCursor>,
        limit: u32,
    ) -> Result<UnderReplicatedPage, PlacementError> {
        let rows = self.rows.lock().unwrap();
        let lacking = rows.values().filter(|row| {
            let there = row.shards.iter().filter(|s| s.acknowledged).count();
            there < usize::from(row.policy.target())
        });
        let page: Vec<_> = lacking
            .filter(|row| after.is_none_or(|(_, id)| row.id > id))
            .take(limit as usize)
            .collect();
        let next = match page.last() {
            Some(last) if page.len() == limit as usize => Some((0, last.id)),
            _ => None,
        };
        let objects = page.into_iter().map(|row| self.stored(row)).collect();
        Ok(UnderReplicatedPage { objects, next })
    }
}

/// An object of the foreign principal.
pub(super) fn foreign_row(new: &NewObject, writer: SessionId, checked: bool) -> StoredObject {
    let row = row::Object {
        class: new.class,
        policy: new.policy,
        length: new.length,
        shard_length: new.shard_length,
        shards: new.shards.clone(),
        writer,
        principal: FOREIGN,
        checked,
        committed: Time(0),
        born: Sequence(0),
        generation: 0,
        live_bytes: u64::from(new.length),
        slices: 1,
    };
    StoredObject::of_row(new.id, &row).unwrap()
}

/// A volume's clouds, log and block store.
pub(super) struct Volume {
    pub(super) policy: Policy,
    pub(super) memories: Vec<Arc<MemoryStore>>,
    pub(super) clouds: Vec<Arc<Faulty>>,
    pub(super) log: Arc<MemoryLog>,
    pub(super) blocks: BlockStore,
    pub(super) timeouts: Timeouts,
    pub(super) background_bytes_max: usize,
    pub(super) sealing: Sealing,
    pub(super) compression: Compression,
    pub(super) fleet: Fleet,
}

pub(super) fn policy(n: u8, f: u8, k: u8) -> Policy {
    Policy::new(n, f, k, n).unwrap()
}

/// The policies that every behaviour is tested with.
pub(super) fn policies() -> [Policy; 7] {
    [
        policy(4, 1, 2),
        policy(3, 1, 1),
        policy(5, 1, 3),
        policy(6, 1, 4),
        policy(7, 2, 3),
        Policy::new(4, 1, 2, 3).unwrap(),
        Policy::new(7, 2, 3, 6).unwrap(),
    ]
}

pub(super) fn key(slice: u32) -> SliceKey {
    let mut bytes = [3; 32];
    bytes[..4].copy_from_slice(&slice.to_be_bytes());
    SliceKey::from_secret(Secret::from_bytes(bytes))
}

pub(super) fn object_id(number: u32) -> ObjectId {
    ObjectId {
        allocation: AllocationId(5),
        counter: number,
    }
}

pub(super) fn slice_id(number: u32) -> SliceId {
    SliceId {
        allocation: AllocationId(5),
        counter: number,
    }
}

/// Pseudorandom bytes.
pub(super) fn content(seed: u64, length: usize) -> Bytes {
    let mut bytes = vec![0; length];
    blake3::Hasher::new()
        .update(&seed.to_be_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes.into()
}

pub(super) fn timeouts() -> Timeouts {
    Timeouts {
        put: Duration::from_secs(2),
        get: Duration::from_secs(2),
        hedge_min: Duration::from_millis(20),
        hedge_max: Duration::from_millis(100),
        suspect: Duration::from_millis(200),
        backoff_min: Duration::from_millis(50),
        backoff_max: Duration::from_millis(200),
        completion: Duration::from_millis(100),
    }
}

pub(super) fn secrets(count: u8) -> Vec<CloudSecret> {
    (0..count)
        .map(|i| CloudSecret::from_secret(Secret::from_bytes([i + 1; 32])))
        .collect()
}

impl Volume {
    pub(super) fn new(policy: Policy) -> Self {
        Self::with(policy, Sealing::On, 64 << 20)
    }

    pub(super) fn with(policy: Policy, sealing: Sealing, background_bytes_max: usize) -> Self {
        let memories: Vec<_> = (0..policy.clouds())
            .map(|_| Arc::new(MemoryStore::default()))
            .collect();
        let clouds: Vec<_> = memories
            .iter()
            .enumerate()
            .map(|(i, memory)| {
                let memory: Arc<dyn ObjectStore> = Arc::clone(memory) as _;
                Arc::new(Faulty::new(memory, Plan::honest(), i as u64))
            })
            .collect();
        let log = Arc::new(MemoryLog::default());
        let timeouts = timeouts();
        let fleet = Fleet {
            active: (0..policy.clouds()).map(CloudIndex).collect(),
            ..Fleet::default()
        };
        let blocks = open(
            policy,
            (&clouds, &fleet),
            &log,
            timeouts,
            sealing,
            background_bytes_max,
            Compression::Off,
        );
        Self {
            policy,
            memories,
            clouds,
            log,
            blocks,
            timeouts,
            background_bytes_max,
            sealing,
            compression: Compression::Off,
            fleet,
        }
    }

    pub(super) fn compressing(policy: Policy) -> Self {
        let mut volume = Self::new(policy);
        volume.compression = Compression::Zstd;
        volume.restart();
        volume
    }

    /// The process ends and another opens the volume.
    pub(super) fn restart(&mut self) {
        self.blocks.shutdown();
        self.blocks = open(
            self.policy,
            (&self.clouds, &self.fleet),
            &self.log,
            self.timeouts,
            self.sealing,
            self.background_bytes_max,
            self.compression,
        );
    }

    /// Writes and commits.
    pub(super) async fn write(&self, number: u32, plain: &Bytes) -> Result<Stored, BlockError> {
        let key = key(number);
        let written = self
            .blocks
            .write(object_id(number), slice_id(number), &key, plain.clone());
        let stored = written.await?;
        self.log
            .rows
            .lock()
            .unwrap()
            .insert(stored.object.id, stored.object.clone());
        self.blocks.committed(stored.object.id);
        Ok(stored)
    }

    /// Reads by the log's row, as a later reader would.
    pub(super) async fn read(
        &self,
        number: u32,
        slice: &SealedSlice,
        range: Range<u32>,
    ) -> Result<Bytes, BlockError> {
        let object = self.log.stored(&self.log.row(object_id(number)));
        self.blocks.read(&object, slice, &key(number), range).await
    }

    pub(super) async fn drain(&self) {
        let drained = self.blocks.drain(PATIENCE).await;
        assert!(
            drained.is_complete(),
            "{drained:?} {:?}",
            self.blocks.status()
        );
    }

    pub(super) fn plan(&self, cloud: usize, plan: Plan) {
        self.clouds[cloud].set_plan(plan);
    }

    pub(super) fn heal(&self) {
        for cloud in &self.clouds {
            cloud.set_plan(Plan::honest());
        }
    }
}

pub(super) fn attached(clouds: &[Arc<Faulty>]) -> Vec<Cloud> {
    let stores = clouds.iter().zip(secrets(clouds.len() as u8));
    stores
        .enumerate()
        .map(|(i, (store, secret))| Cloud {
            index: CloudIndex(i as u8),
            store: Arc::clone(store) as _,
            secret,
            read_price: 0,
        })
        .collect()
}

fn open(
    policy: Policy,
    (clouds, fleet): (&[Arc<Faulty>], &Fleet),
    log: &Arc<MemoryLog>,
    timeouts: Timeouts,
    sealing: Sealing,
    background_bytes_max: usize,
    compression: Compression,
) -> BlockStore {
    let clouds = attached(clouds);
    let config = BlockConfig {
        timeouts,
        sealing,
        background_bytes_max,
        compression,
        ..BlockConfig::new(VOLUME, policy)
    };
    BlockStore::open_with(config, &clouds, fleet.clone(), Arc::clone(log) as _).unwrap()
}
