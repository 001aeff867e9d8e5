//! A gateway, restricted to blocks: it writes and commits, looks up and reads, and crashes.
//!
//! One *life* is a block store and a session with the metadata. A life ends by a crash, or because
//! the world goes on to its next phase. All pending operations are then aborted, and the next life
//! opens the same volume with a new session.

use super::ledger::Attempt;
use super::metadata::{Connection, FailureRate, OWNER, TIME};
use super::wire::{Life, Wire};
use super::world::World;
use bytes::Bytes;
use quorumfs_backends::ObjectStore;
use quorumfs_bft::identity::SessionId;
use quorumfs_bft_simulator::random::Random;
use quorumfs_gateway::blocks::{
    BlockConfig, BlockError, BlockErrorKind, BlockStore, Cloud, Compaction, PlainSlice, Planted,
    Sabotage, SealedSlice, Stored, StoredObject, Workers,
};
use quorumfs_gateway::metadata::{AllocatedId, MetadataClient};
use quorumfs_metadata::attributes::Credentials;
use quorumfs_metadata::fleet::Fleet;
use quorumfs_metadata::identity::{CloudIndex, ObjectClass, ObjectId, SliceId};
use quorumfs_metadata::limits::EXTENT_PAGE_MAX;
use quorumfs_metadata::operation::{Commit, NewContent, NewExtent, Step};
use quorumfs_metadata::query::Question;
use quorumfs_metadata::reply::{ContentPage, ListedExtent, QueryResult};
use quorumfs_metadata::row::Verdict;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often a commit or a question is retried.
const TRIES: u64 = 8;
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// Successfully.
    Done,
    /// With an error which says that the clouds could not be reached.
    Failed,
}

/// A gateway between start and end.
pub(super) struct Gateway {
    pub(super) world: Arc<World>,
    pub(super) life: Arc<Life>,
    pub(super) store: BlockStore,
    pub(super) client: Arc<MetadataClient>,
    session: SessionId,
}

impl Gateway {
    /// Opens the volume over all clouds.
    pub(super) fn open(
        world: &Arc<World>,
        life: Arc<Life>,
        failure_rate: FailureRate,
        seed: u64,
    ) -> Result<Arc<Self>, String> {
        let session = world.servers.embedded.open_session(OWNER);
        let session = session.map_err(|error| error.to_string())?;
        let connection = Connection {
            session,
            life: Arc::clone(&life),
            ledger: Arc::clone(&world.ledger),
            random: Mutex::new(Random::new(seed)),
            failure_rate,
            judge: world.reconciles.then(|| Arc::clone(world)),
        };
        let session = connection.session.session();
        world.sessions().push(session);
        let client = Arc::new(MetadataClient::new(
            Arc::new(connection),
            Credentials::root(),
        ));
        let clouds: Vec<Cloud> = world
            .clouds
            .iter()
            .zip(&world.secrets)
            .map(|(cloud, secret)| {
                let wire = Wire {
                    cloud: Arc::clone(cloud),
                    life: Arc::clone(&life),
                    ledger: Arc::clone(&world.ledger),
                };
                Cloud {
                    index: CloudIndex(cloud.index),
                    store: Arc::new(wire) as Arc<dyn ObjectStore>,
                    secret: secret.clone(),
                    read_price: 0,
                }
            })
            .collect();
        let config = BlockConfig {
            workers: Workers::Inline,
            sabotage: Planted::new(world.sabotage),
            background_bytes_max: world.background_bytes_max,
            ..BlockConfig::new(world.volume, world.policy)
        };
        // The clouds of the genesis; changes are learned later.
        let fleet = Fleet {
            active: (0..world.policy.clouds()).map(CloudIndex).collect(),
            ..Fleet::default()
        };
        let store = BlockStore::open_with(config, &clouds, fleet, Arc::clone(&client) as _)
            .map_err(|error| error.to_string())?;
        Ok(Arc::new(Self {
            world: Arc::clone(world),
            life,
            store,
            client,
            session,
        }))
    }

    /// Ends the life: none of its requests gets through any more.
    pub(super) fn end(&self) {
        let counters = self.store.status().counters;
        let mut records = self.world.ledger.records();
        for (name, value) in counters.entries() {
            records.counters.add(name, value);
        }
        drop(records);
        self.store.shutdown();
    }

    /// The servers end the session of a life that is over, where there are collectors: its ids
    /// protect what it wrote until then.
    pub(super) async fn end_session(&self, random: &mut Random) {
        if self.world.reconciles {
            tokio::time::sleep(Duration::from_millis(random.below(2000))).await;
            let _ = self.world.servers.embedded.end_session(self.session);
        }
    }

    fn ids_of_a_former_life(&self) -> Option<(ObjectId, SliceId)> {
        match self.world.sabotage {
            Some(Sabotage::NonceReusedAfterCrash) => self.world.interrupted().pop(),
            _ => None,
        }
    }

    /// Writes something and commits it.
    pub(super) async fn write(&self, random: &mut Random) -> Ended {
        let world = &self.world;
        let Ok(ids) = self.client.allocate().await else {
            return Ended::Failed;
        };
        let (object, slice) = self
            .ids_of_a_former_life()
            .unwrap_or((ids.object(), ids.slice()));
        let plain = world.content(random.next(), draw_size(random));
        let attempt = Attempt {
            plain: plain.clone(),
            poison: None,
        };
        world.ledger.records().attempts.insert(slice, attempt);
        world.interrupted().push((object, slice));
        let key = world.slice_key(slice);
        let (client, length) = (self.life.client, plain.len());
        world
            .ledger
            .note(&format!("{client} writes {slice}, {length} bytes"));
        let written = self.store.write(object, slice, &key, plain).await;
        world.interrupted().retain(|(id, _)| *id != object);
        let stored = match written {
            Ok(stored) => stored,
            Err(error) => {
                world.ledger.count("writes_refused");
                world
                    .ledger
                    .note(&format!("{client} fails to write: {error}"));
                return Ended::Failed;
            }
        };
        self.check_returned(&stored);
        let tries = random.between(1, TRIES);
        match self.commit(&stored, tries).await {
            true => {
                self.store.committed(object);
                let mut records = world.ledger.records();
                records.committed.insert(slice);
                records.operations += 1;
                Ended::Done
            }
            false => {
                self.store.abandoned(object);
                world.ledger.count("commits_given_up");
                Ended::Failed
            }
        }
    }

    /// Checks a returned write: these clouds have acknowledged its shards.
    fn check_returned(&self, stored: &Stored) {
        let world = &self.world;
        let object = stored.object.id;
        let wanted = usize::from(world.policy.write_quorum());
        let claimed: Vec<_> = (0u8..)
            .zip(&stored.object.shards)
            .filter(|(_, shard)| shard.acknowledged)
            .collect();
        let clouds: BTreeSet<_> = claimed.iter().map(|(_, shard)| shard.cloud).collect();
        if clouds.len() < wanted {
            let count = clouds.len();
            world.ledger.violation(format!(
                "object {object}: its write returned with {count} acknowledgements of {wanted}"
            ));
        }
        for (index, shard) in claimed {
            let key = (object, index, shard.attempt);
            if !world.ledger.records().acknowledged.contains(&key) {
                world.ledger.violation(format!(
                    "object {object}, shard {index}: reported as acknowledged, but was not"
                ));
            }
            let honest = !world.liars.contains(&shard.cloud.0);
            if honest && !world.is_good((object, stored.object.class), index, shard) {
                world.ledger.violation(format!(
                    "object {object}, shard {index}: acknowledged by an honest cloud, not there"
                ));
            }
        }
    }

    /// Removes a committed slice from the file.
    pub(super) async fn remove(&self, random: &mut Random) {
        let Some(page) = self.content().await else {
            return;
        };
        let Some(listed) = random.pick(&page.extents) else {
            return;
        };
        self.remove_listed(listed).await;
    }

    /// Removes a slice, if it is in the file.
    async fn remove_slice(&self, slice: SliceId) {
        let page = self.content().await;
        let extents = page.map(|page| page.extents).unwrap_or_default();
        if let Some(listed) = extents.iter().find(|it| it.extent.slice == slice) {
            self.remove_listed(listed).await;
        }
    }

    async fn remove_listed(&self, listed: &ListedExtent) {
        let world = &self.world;
        let slice = listed.extent.slice;
        world.ledger.records().removed.insert(slice);
        let step = Step::Commit(Commit {
            inode: world.servers.file,
            expected: None,
            objects: Vec::new(),
            slices: Vec::new(),
            content: NewContent::Hole {
                offset: listed.offset,
                length: u64::from(listed.extent.length),
            },
            size: None,
            mtime: None,
        });
        let removed = self.client.step("remove", Credentials::root(), TIME, step);
        if removed.await.is_ok() {
            world.ledger.count("slices_removed");
            let client = self.life.client;
            world.ledger.note(&format!("{client} removes {slice}"));
        }
    }

    async fn commit(&self, stored: &Stored, tries: u64) -> bool {
        let slice = stored.slice;
        let extent = NewExtent {
            offset: self.world.next_offset(),
            slice: slice.id,
            slice_offset: 0,
            length: slice.length,
        };
        let step = Step::Commit(Commit {
            inode: self.world.servers.file,
            expected: None,
            objects: vec![stored.object.clone()],
            slices: vec![slice.into_new(super::metadata::row_key())],
            content: NewContent::Extents(vec![extent]),
            size: None,
            mtime: None,
        });
        for _ in 0..tries {
            let credentials = Credentials::root();
            let committed = self.client.step("commit", credentials, TIME, step.clone());
            if committed.await.is_ok() {
                return true;
            }
            if self.is_committed(stored).await {
                self.world.ledger.count("commits_found_done");
                return true;
            }
            tokio::time::sleep(BETWEEN_TRIES).await;
        }
        false
    }

    /// Whether a commit was executed whose answer was lost.
    async fn is_committed(&self, stored: &Stored) -> bool {
        if stored.object.class == ObjectClass::PACK {
            // The pack may have been committed for another slice of it.
            let Some(page) = self.content().await else {
                return false;
            };
            return page.slices.iter().any(|(id, _)| *id == stored.slice.id);
        }
        let question = Question::Object(stored.object.id);
        let asked = self.client.ask("commit", Credentials::root(), question);
        matches!(asked.await, Ok(QueryResult::Object(_)))
    }

    /// Writes a pack, and commits one or two of its slices concurrently. The others are never
    /// committed, which usually leaves the pack sparse.
    pub(super) async fn write_pack(&self, random: &mut Random) {
        let world = &self.world;
        let (mut ids, mut slices) = (Vec::new(), Vec::new());
        for _ in 0..random.between(2, 6) {
            let Ok(id) = self.client.allocate().await else {
                return;
            };
            let slice = id.slice();
            let plain = world.content(random.next(), random.between(1, 30_000) as usize);
            let attempt = Attempt {
                plain: plain.clone(),
                poison: None,
            };
            world.ledger.records().attempts.insert(slice, attempt);
            slices.push(PlainSlice {
                id: slice,
                key: world.slice_key(slice),
                plain,
            });
            ids.push(id);
        }
        let Some(object) = ids.first().map(AllocatedId::object) else {
            return;
        };
        let (client, count) = (self.life.client, slices.len());
        world
            .ledger
            .note(&format!("{client} packs {count} slices into {object}"));
        let written = self
            .store
            .write_slices(object, ObjectClass::PACK, slices)
            .await;
        let (new, slices) = match written {
            Ok(written) => written,
            Err(error) => {
                world.ledger.count("writes_refused");
                world
                    .ledger
                    .note(&format!("{client} fails to pack: {error}"));
                return;
            }
        };
        let mut stored: Vec<Stored> = slices
            .into_iter()
            .map(|slice| Stored {
                object: new.clone(),
                slice,
            })
            .collect();
        let spare = stored.split_off((random.between(1, 2) as usize).min(stored.len()));
        if let Some(one) = stored.first() {
            self.check_returned(one);
        }
        let tries = random.between(1, TRIES);
        let mut any = false;
        let both = async {
            let one = async |stored: Option<&Stored>| match stored {
                Some(stored) => self.commit(stored, tries).await,
                None => false,
            };
            tokio::join!(one(stored.first()), one(stored.get(1)))
        };
        let (first, second) = both.await;
        for (stored, is_committed) in stored.iter().zip([first, second]) {
            if is_committed {
                any = true;
                world.ledger.records().committed.insert(stored.slice.id);
                world.ledger.records().operations += 1;
            }
        }
        match any {
            true => {
                self.store.committed(object);
                world.ledger.count("packs_committed");
                if world.reconciles
                    && let Some(spare) = spare.first()
                {
                    self.revive(&stored, spare).await;
                }
            }
            false => {
                self.store.abandoned(object);
                world.ledger.count("commits_given_up");
            }
        }
    }

    /// Removes all slices of a pack, waits until a collector would delete it if it could not come
    /// back to life, and commits another slice of it.
    async fn revive(&self, dead: &[Stored], spare: &Stored) {
        for stored in dead {
            self.remove_slice(stored.slice.id).await;
        }
        tokio::time::sleep(2 * super::collecting::GRACE).await;
        if self.commit(spare, TRIES).await {
            let mut records = self.world.ledger.records();
            records.committed.insert(spare.slice.id);
            records.operations += 1;
            records.counters.count("packs_revived");
        }
    }

    /// Moves the live slices out of sparse packs.
    pub(super) async fn compact(&self) -> Ended {
        let eager = Compaction {
            bytes_per_second: None,
            dead_bytes_min: 1,
            ..Compaction::default()
        };
        let ledger = &self.world.ledger;
        match self.store.compact(&eager).await {
            Ok(done) => {
                ledger.count("compactions");
                ledger.note(&format!("{} compacts: {done:?}", self.life.client));
                Ended::Done
            }
            Err(error) => {
                ledger.note(&format!("{} fails to compact: {error}", self.life.client));
                Ended::Failed
            }
        }
    }

    /// Checks that evidence convicts only clouds that lie, and none of our writers.
    pub(super) async fn judge_evidence(&self) {
        let ledger = &self.world.ledger;
        let Ok(evidence) = self.store.evidence(None).await else {
            return;
        };
        for cloud in evidence {
            let index = cloud.index;
            let lies = self.world.liars.contains(&index.0);
            for one in cloud.kept {
                let (verdict, object) = (one.evidence.verdict(), one.evidence.object);
                match verdict {
                    Verdict::Cloud if lies => ledger.count("clouds_convicted"),
                    Verdict::Undecided => ledger.count("faults_undecided"),
                    Verdict::Cloud | Verdict::Writer => ledger.violation(format!(
                        "object {object} on cloud {index}: {verdict:?} is blamed wrongly"
                    )),
                }
            }
        }
    }

    /// The file's content, by the metadata.
    pub(super) async fn content(&self) -> Option<ContentPage> {
        for _ in 0..TRIES {
            let question = Question::Content {
                inode: self.world.servers.file,
                from: 0,
                to: u64::MAX,
                limit: EXTENT_PAGE_MAX,
            };
            let asked = self.client.ask("read", Credentials::root(), question);
            if let Ok(QueryResult::Content(page)) = asked.await {
                return Some(page);
            }
            tokio::time::sleep(BETWEEN_TRIES).await;
        }
        None
    }

    /// Reads one of the slices, whole or in part.
    pub(super) async fn read_something(&self, random: &mut Random) -> Ended {
        let Some(page) = self.content().await else {
            return Ended::Failed;
        };
        let Some(listed) = random.pick(&page.extents) else {
            return Ended::Done;
        };
        let length = listed.extent.length;
        let range = match random.chance(1, 2) {
            true => 0..length,
            false => {
                let start = random.below(u64::from(length)) as u32;
                start..start + random.between(1, u64::from(length - start)) as u32
            }
        };
        self.read(&page, listed.extent.slice, range).await
    }

    /// Reads a range of a slice, by the rows of `page`, and judges the result.
    pub(super) async fn read(
        &self,
        page: &ContentPage,
        slice: SliceId,
        range: std::ops::Range<u32>,
    ) -> Ended {
        let ledger = &self.world.ledger;
        let row = page.slices.iter().find(|(id, _)| *id == slice);
        let Some((_, row)) = row else {
            return Ended::Failed;
        };
        let object = page.objects.iter().find(|(id, _)| *id == row.object);
        let Some((id, object)) = object else {
            return Ended::Failed;
        };
        let object = match StoredObject::of_row(*id, object) {
            Ok(object) => object,
            Err(error) => {
                ledger.violation(format!("a row that no honest server gives: {error}"));
                return Ended::Failed;
            }
        };
        let sealed = SealedSlice::of_row(slice, row);
        let key = self.world.slice_key(slice);
        let (client, span) = (self.life.client, range.clone());
        ledger.note(&format!("{client} reads {slice} {span:?}"));
        let found = self.store.read(&object, &sealed, &key, span).await;
        let Some(attempt) = ledger.records().attempts.get(&slice).cloned() else {
            ledger.violation(format!("slice {slice}: committed and never written"));
            return Ended::Failed;
        };
        match &found {
            Ok(_) => ledger.note(&format!("{client} has read {slice}")),
            Err(error) => ledger.note(&format!("{client} fails to read: {error}")),
        }
        ledger.records().operations += 1;
        self.judge(slice, &attempt, range, found)
    }

    fn judge(
        &self,
        slice: SliceId,
        attempt: &Attempt,
        range: std::ops::Range<u32>,
        found: Result<Bytes, BlockError>,
    ) -> Ended {
        let ledger = &self.world.ledger;
        let expected = attempt.plain.get(range.start as usize..range.end as usize);
        match (found, attempt.poison) {
            (Ok(bytes), poison) => {
                // No reader may get anything of a poisoned slice, whichever clouds answer.
                if poison.is_some() {
                    ledger.violation(format!("slice {slice}: poisoned, and was read"));
                } else if expected != Some(&bytes[..]) {
                    ledger.violation(format!("slice {slice}: other bytes than were committed"));
                }
                Ended::Done
            }
            (Err(error), None) => {
                let of_clouds = [BlockErrorKind::Io, BlockErrorKind::Unreachable];
                if !of_clouds.contains(&error.kind()) || error.writer().is_some() {
                    ledger.violation(format!(
                        "slice {slice}: its honest writer, or the metadata, is blamed: {error}"
                    ));
                }
                Ended::Failed
            }
            (Err(error), Some((_, writer))) => match error.writer() {
                Some(named) if named.principal == Some(writer) => {
                    ledger.count("poison_named");
                    Ended::Done
                }
                Some(_) => {
                    ledger.violation(format!("slice {slice}: another writer is blamed: {error}"));
                    Ended::Done
                }
                None => Ended::Failed,
            },
        }
    }
}

/// From some hundred bytes to several cells of each shard; small sizes are more frequent.
fn draw_size(random: &mut Random) -> usize {
    let most = match random.below(10) {
        0..5 => 4_000,
        5..8 => 70_000,
        _ => 400_000,
    };
    random.between(1, most) as usize
}
