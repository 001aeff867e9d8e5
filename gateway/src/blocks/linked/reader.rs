//! Reading slices of linked objects.
//!
//! An object is fetched whole: k shards at once, and another one for each that is bad, missing or
//! late, but never more than k + f at a time. Servers that failed or were late are asked last from
//! then on, so that one that is away costs its time once. A try that may succeed later is made
//! again. Objects that were rebuilt recently are kept, because small files lie in one object
//! together.
//!
//! The maker of a link chooses all numbers, so each has a bound before anything is allocated.

use super::object::LinkedObject;
use crate::blocks::clouds::Workers;
use crate::blocks::object::{
    BlockError, Code, Failures, PlainBuffers, Rebuilt, SealedSlice, SliceCipher, StoredObject,
    check_whole, open_whole,
};
use crate::blocks::read::RebuiltCache;
use crate::keys::{Sealing, SliceKey};
use async_trait::async_trait;
use bytes::Bytes;
use quorumfs_backends::{Deadline, StoreError, StoreErrorKind};
use quorumfs_metadata::identity::{ObjectId, VolumeId};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;

/// How long a shard may take, apart from its bytes.
const GET_WITHIN: Duration = Duration::from_secs(60);
/// The slowest share of a connection that is waited for: a dozen shards are on their way at once.
const BYTES_PER_SECOND_MIN: u64 = 8 << 10;
/// How long to wait for an answer before another cloud is asked as well, apart from its bytes.
const HEDGE_AFTER: Duration = Duration::from_secs(3);
/// Below this, another cloud may be faster.
const HEDGE_BYTES_PER_SECOND: u64 = 128 << 10;
/// How often a shard is asked for that a server may give later.
const TRIES: u32 = 3;
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Bytes of rebuilt objects that are kept.
const KEPT_BYTES_MAX: usize = 64 << 20;
/// Servers of which it is remembered that they failed.
const SERVERS_MAX: usize = 256;
const BUFFER_BYTES_MAX: usize = 64 << 20;
const HOST_CHARACTERS_MAX: usize = 100;

/// Gets what lies at a URL, without an account.
#[async_trait]
pub trait UrlReader: Send + Sync + fmt::Debug {
    /// Gets all of it: at most `length_max` bytes.
    ///
    /// # Errors
    /// `Denied` if the URL is not valid any more, `NotFound` if there is nothing; and as a store's.
    async fn get(
        &self,
        url: &str,
        length_max: u64,
        deadline: Deadline,
    ) -> Result<Bytes, StoreError>;
}

/// A linked object could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LinkedError {
    /// Fewer than k good shards were found.
    #[error(
        "object {object}: only {good} of the {wanted} good shards that are needed were \
         found:{failures}"
    )]
    TooFewShards {
        /// The object.
        object: ObjectId,
        /// The number of good shards.
        good: usize,
        /// k.
        wanted: usize,
        /// More clouds than may lie say that the link is not valid any more, or that there is
        /// nothing.
        ended: bool,
        /// The answers of the others, one line each.
        failures: Failures,
    },
    /// The link contradicts itself, or its bytes do not open with its keys.
    #[error(transparent)]
    Block(#[from] BlockError),
}

/// What one cloud answered.
enum ShardAnswer {
    Good(Vec<u8>),
    Bad(String),
    Failed(StoreError),
}

/// Reads linked objects.
#[derive(Debug)]
pub struct LinkedReader {
    http: Arc<dyn UrlReader>,
    rebuilt: RebuiltCache,
    buffers: PlainBuffers,
    workers: Workers,
    /// How often each server failed or was late.
    failures: Mutex<BTreeMap<String, u32>>,
}

impl LinkedReader {
    /// A reader that asks by `http`.
    #[must_use]
    pub fn new(http: Arc<dyn UrlReader>) -> Self {
        Self {
            http,
            rebuilt: RebuiltCache::new(KEPT_BYTES_MAX),
            buffers: PlainBuffers::new(BUFFER_BYTES_MAX),
            workers: Workers::default(),
            failures: Mutex::default(),
        }
    }

    fn failures(&self) -> MutexGuard<'_, BTreeMap<String, u32>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A server failed, or was late.
    fn failed(&self, url: &str) {
        let mut failures = self.failures();
        if failures.len() < SERVERS_MAX {
            let count = failures.entry(host_of(url)).or_default();
            *count = count.saturating_add(1);
        }
    }

    /// Reads a whole slice of an object of `volume`.
    ///
    /// # Errors
    /// `TooFewShards`; or `Block`, if the link contradicts itself or the key is another one's.
    pub async fn read(
        &self,
        volume: VolumeId,
        object: &Arc<LinkedObject>,
        slice: SealedSlice,
        key: &SliceKey,
    ) -> Result<Bytes, LinkedError> {
        let wrong = |reason| BlockError::Row {
            object: object.id,
            reason,
        };
        object.check(&slice).map_err(wrong)?;
        let cipher = SliceCipher::of(key, volume, &slice, Sealing::On)?;
        let cell = self.rebuilt.cell(object.id);
        let rebuilt = cell.get_or_try_init(|| self.gather(object)).await.cloned();
        drop(cell);
        self.rebuilt.bound();
        let (rebuilt, buffers) = (rebuilt?, self.buffers.clone());
        let opened = move || {
            let begin = u64::from(slice.offset);
            let cells = rebuilt.cells(begin..begin + u64::from(slice.sealed_length));
            open_whole(cells, &slice, cipher, buffers)
        };
        Ok(self.workers.run(opened).await??)
    }

    /// The shards that have a URL: those of servers that never failed first, data first.
    fn candidates(&self, object: &LinkedObject) -> VecDeque<(usize, String)> {
        let failures = self.failures();
        let shards = object.shards.iter().enumerate();
        let mut linked: Vec<_> = shards
            .filter_map(|(shard, it)| Some((shard, it.url.clone()?)))
            .collect();
        linked.sort_by_cached_key(|(shard, url)| {
            let count = failures.get(&host_of(url)).copied();
            (count.unwrap_or_default(), *shard)
        });
        linked.into()
    }

    async fn gather(&self, object: &Arc<LinkedObject>) -> Result<Arc<Rebuilt>, LinkedError> {
        let stored = Arc::new(object.stored()?);
        let wanted = usize::from(object.policy.data());
        let at_once = usize::from(object.policy.write_quorum());
        let mut candidates = self.candidates(object);
        let mut payloads: Vec<Option<Vec<u8>>> = vec![None; object.shards.len()];
        let (mut good, mut refused, mut failures) = (0, 0, Vec::new());
        let (mut fetches, mut awaited) = (JoinSet::new(), BTreeMap::new());
        let mut launch = |fetches: &mut JoinSet<_>, awaited: &mut BTreeMap<usize, String>| {
            if fetches.len() >= at_once {
                return;
            }
            if let Some((shard, url)) = candidates.pop_front() {
                awaited.insert(shard, url.clone());
                let (http, both) = (
                    Arc::clone(&self.http),
                    (Arc::clone(object), Arc::clone(&stored)),
                );
                fetches.spawn(async move { (shard, fetch(http, both, (shard, url)).await) });
            }
        };
        for _ in 0..wanted {
            launch(&mut fetches, &mut awaited);
        }
        let bytes = stored.layout().stored_length(0);
        let hedge = HEDGE_AFTER + Duration::from_secs(bytes / HEDGE_BYTES_PER_SECOND);
        while good < wanted {
            let done = match tokio::time::timeout(hedge, fetches.join_next()).await {
                Ok(Some(done)) => done,
                Ok(None) => {
                    return Err(LinkedError::TooFewShards {
                        object: object.id,
                        good,
                        wanted,
                        ended: refused > usize::from(object.policy.faulty()),
                        failures: Failures(failures),
                    });
                }
                Err(_late) => {
                    awaited.values().for_each(|url| self.failed(url));
                    launch(&mut fetches, &mut awaited);
                    continue;
                }
            };
            let Ok((shard, answer)) = done else {
                failures.push("a task was lost; this is a defect".to_owned());
                launch(&mut fetches, &mut awaited);
                continue;
            };
            let url = awaited.remove(&shard).unwrap_or_default();
            match answer {
                ShardAnswer::Good(payload) => {
                    if let Some(place) = payloads.get_mut(shard) {
                        *place = Some(payload);
                    }
                    good += 1;
                    continue;
                }
                ShardAnswer::Bad(failure) => failures.push(failure),
                ShardAnswer::Failed(error) => {
                    let gone = [StoreErrorKind::Denied, StoreErrorKind::NotFound];
                    refused += usize::from(gone.contains(&error.kind));
                    failures.push(error.to_string());
                }
            }
            self.failed(&url);
            launch(&mut fetches, &mut awaited);
        }
        fetches.abort_all();
        let object = Arc::clone(object);
        let rebuild = move || {
            let code = Code::new(object.policy)?;
            let rebuilt = Rebuilt::new(&stored, &code, &object.headers(), payloads, false)?;
            match rebuilt.wrong_parity.first() {
                None => Ok(Arc::new(rebuilt.without_parity())),
                Some(shard) => Err(BlockError::WrittenWrong {
                    object: object.id,
                    writer: stored.writer(),
                    shard: *shard,
                }),
            }
        };
        Ok(self.workers.run(rebuild).await??)
    }
}

async fn fetch(
    http: Arc<dyn UrlReader>,
    (object, stored): (Arc<LinkedObject>, Arc<StoredObject>),
    (shard, url): (usize, String),
) -> ShardAnswer {
    let layout = stored.layout();
    let length = layout.stored_length(shard as u64);
    let patience = GET_WITHIN + Duration::from_secs(length / BYTES_PER_SECOND_MIN);
    let mut tries = 1;
    let body = loop {
        let answer = http.get(&url, length, Deadline::after(patience));
        match answer.await {
            Ok(body) => break body,
            Err(error) if error.kind.is_transient() && tries < TRIES => {
                tokio::time::sleep(TRY_AGAIN_AFTER * tries).await;
                tries += 1;
            }
            Err(error) => return ShardAnswer::Failed(error),
        }
    };
    let checked = object
        .shards
        .get(shard)
        .and_then(|it| check_whole(layout, shard as u64, &it.header, &it.digest, &body));
    match checked {
        Some(payload) => ShardAnswer::Good(payload),
        None => ShardAnswer::Bad(format!(
            "{}: answered with bytes that are not the shard's",
            host_of(&url)
        )),
    }
}

/// The server of a URL, for messages: the rest of it is a secret, and a stranger chose all of it.
fn host_of(url: &str) -> String {
    let behind = url.split_once("://").map_or("", |(_, behind)| behind);
    let host = behind
        .split(['/', '?', '#', '\\'])
        .next()
        .unwrap_or_default();
    let host = host.rsplit('@').next().unwrap_or_default();
    let is_shown = |it: &char| it.is_ascii_alphanumeric() || ".-:[]".contains(*it);
    host.chars()
        .filter(is_shown)
        .take(HOST_CHARACTERS_MAX)
        .collect()
}

#[cfg(test)]
mod tests;
