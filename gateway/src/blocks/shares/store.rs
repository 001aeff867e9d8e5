//! The store of shares: placing, fetching, checking and restoring them.

use super::ShareError;
use crate::blocks::clouds::{Cloud, Clouds, Exchange, Link, Timeouts, put_whole};
use crate::blocks::object::{
    BlockError, Buffers, Failures, HEADER_BYTES, Header, HeaderBytes, Layout, Named, ShardFault,
    assemble, check_whole,
};
use crate::keys::{KeyError, Secret, Share, SharedSecret};
use async_recursion::async_recursion as boxed;
use bytes::Bytes;
use quorumfs_backends::StoreErrorKind;
use quorumfs_bft::identity::Digest;
use quorumfs_metadata::identity::{CloudIndex, ObjectClass, ObjectId, ShardIndex, VolumeId};
use quorumfs_metadata::placement::Policy;
use quorumfs_metadata::row::{SharePlace, Shares};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use zeroize::Zeroizing;

/// Bytes of a share.
const SHARE_BYTES: u32 = 32;
/// Bytes of a stored share: a header and a cell, whose path is empty.
pub(in crate::blocks) const STORED_BYTES: u64 = HEADER_BYTES + SHARE_BYTES as u64;
/// The most names of a share on its cloud.
const NAMES_MAX: u8 = 4;
/// How long unreachable clouds are waited for.
const OUTAGE_PATIENCE: Duration = Duration::from_secs(5);
/// The pause between two tries.
const OUTAGE_PAUSE: Duration = Duration::from_millis(500);
/// How long clouds beyond the required ones are waited for.
const REST_WITHIN: Duration = Duration::from_secs(3);

/// The state of a stored share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShareState {
    /// It is present and has its digest.
    Good,
    /// The cloud has none.
    Missing,
    /// The cloud has other bytes.
    Damaged,
    /// The cloud could not be asked.
    Unreachable {
        /// The reason.
        reason: String,
    },
}

impl ShareState {
    /// Whether it has to be put again.
    #[must_use]
    pub const fn wants_repair(&self) -> bool {
        matches!(self, Self::Missing | Self::Damaged)
    }
}

/// The stored bytes of a secret's shares.
#[derive(Debug)]
pub struct SealedShares {
    object: ObjectId,
    bodies: Vec<(CloudIndex, Bytes)>,
    /// Their places and digests.
    pub places: Vec<SharePlace>,
}

/// The result of putting shares.
#[derive(Debug)]
pub struct PlacedShares {
    /// Clouds whose share was read back, in order.
    pub confirmed: Vec<CloudIndex>,
    /// The faults of the others.
    pub failures: Failures,
}

/// The volume's clouds as holders of shares. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ShareStore {
    volume: VolumeId,
    policy: Policy,
    /// The clouds that get a share of a new secret, by index.
    active: Vec<Arc<Link>>,
    /// All clouds that may hold a share of some secret, by index.
    links: Vec<Arc<Link>>,
}

impl ShareStore {
    /// Uses clouds that no block store has open.
    ///
    /// # Errors
    /// If the clouds do not fit the policy.
    pub fn new(volume: VolumeId, policy: Policy, clouds: &[Cloud]) -> Result<Self, BlockError> {
        let suspensions = Arc::new(Notify::new());
        let link = |cloud| Arc::new(Link::new(cloud, Timeouts::default(), &suspensions));
        let links: Vec<Arc<Link>> = clouds.iter().map(link).collect();
        let fits = (0..).zip(&links).all(|(index, link)| link.index.0 == index);
        if !fits {
            let reason = "shares take the volume's clouds, all and in order".to_owned();
            return Err(BlockError::Configuration { reason });
        }
        Self::over(volume, policy, links.clone(), links)
    }

    /// Uses the clouds of a block store, with its health records: new shares lie on those that
    /// take new shards, and shares of before on any of them.
    pub(in crate::blocks) fn of(clouds: &Clouds) -> Result<Self, BlockError> {
        let config = clouds.config();
        let attached = clouds.attached();
        let mut active: Vec<Arc<Link>> = attached.active().cloned().collect();
        active.sort_by_key(|link| link.index);
        let links = attached.links().to_vec();
        Self::over(config.volume, config.policy, active, links)
    }

    fn over(
        volume: VolumeId,
        policy: Policy,
        active: Vec<Arc<Link>>,
        links: Vec<Arc<Link>>,
    ) -> Result<Self, BlockError> {
        let (clouds, faulty) = (policy.clouds(), policy.faulty());
        // A share is a whole object of its own: one data shard, no coding.
        let policy = Policy::new(clouds, faulty, 1, clouds).map_err(|error| {
            let reason = error.to_string();
            BlockError::Configuration { reason }
        })?;
        if active.len() != usize::from(clouds) {
            let reason = "shares take as many clouds as the policy spreads over".to_owned();
            return Err(BlockError::Configuration { reason });
        }
        Ok(Self {
            volume,
            policy,
            active,
            links,
        })
    }

    /// The clouds that hold the shares of a secret.
    fn holders<'a>(&'a self, shares: &'a Shares) -> impl Iterator<Item = &'a Arc<Link>> {
        let holds = |link: &&Arc<Link>| shares.digest(link.index).is_some();
        self.links.iter().filter(holds)
    }

    fn layout() -> Layout {
        Layout::new(SHARE_BYTES, 1)
    }

    fn header(&self, link: &Link, object: ObjectId) -> HeaderBytes {
        let header = Header {
            volume: self.volume,
            object,
            cloud: link.index,
            class: ObjectClass::SHARE,
            shard: ShardIndex(link.index.0),
            policy: self.policy,
            length: SHARE_BYTES,
        };
        header.encode(&link.keys)
    }

    fn seal_one(&self, link: &Link, object: ObjectId, share: &Share) -> (Bytes, Digest) {
        let header = self.header(link, object);
        let index = u64::from(link.index.0);
        let buffers = Buffers::new(0);
        let made = assemble(Self::layout(), index, &header, share.expose(), &buffers);
        (made.body, made.digest)
    }

    /// The share in a cloud's answer, if its digest proves it.
    fn open_one(
        &self,
        link: &Link,
        object: ObjectId,
        digest: &Digest,
        body: &[u8],
    ) -> Option<Share> {
        let header = self.header(link, object);
        let index = u64::from(link.index.0);
        let payload = check_whole(Self::layout(), index, &header, digest, body)?;
        let payload = Zeroizing::new(payload);
        let bytes: [u8; 32] = payload.as_slice().try_into().ok()?;
        Some(Secret::from_bytes(bytes))
    }

    #[cfg(test)]
    pub(in crate::blocks) fn seal_at(
        &self,
        cloud: usize,
        object: ObjectId,
        share: &Share,
    ) -> Option<(Bytes, Digest)> {
        let link = self.links.get(cloud)?;
        Some(self.seal_one(link, object, share))
    }

    #[cfg(test)]
    pub(in crate::blocks) fn open_at(
        &self,
        cloud: usize,
        object: ObjectId,
        digest: &Digest,
        body: &[u8],
    ) -> Option<Share> {
        self.open_one(self.links.get(cloud)?, object, digest, body)
    }

    /// Seals a secret's shares, to be stored under an id that was never used before.
    ///
    /// # Errors
    /// If there is no randomness.
    pub fn seal(&self, object: ObjectId, secret: &SharedSecret) -> Result<SealedShares, KeyError> {
        let places = self.active.iter().map(|link| link.index.0);
        let shares = secret.split(places, self.policy.faulty())?;
        let made = self.active.iter().zip(&shares);
        let (bodies, places) = made
            .map(|(link, share)| {
                let (body, digest) = self.seal_one(link, object, share);
                let cloud = link.index;
                ((cloud, body), SharePlace { cloud, digest })
            })
            .unzip();
        Ok(SealedShares {
            object,
            bodies,
            places,
        })
    }

    /// Puts shares and reads each one back. Returns once all clouds have answered, or some time
    /// after n − f have.
    ///
    /// # Errors
    /// If fewer than n − f clouds hold theirs. The shares that were put remain as garbage.
    #[boxed]
    pub async fn place(&self, shares: &SealedShares) -> Result<PlacedShares, ShareError> {
        let wanted = usize::from(Shares::wanted(&self.policy));
        let mut puts = JoinSet::new();
        for (link, (_, body)) in self.active.iter().zip(&shares.bodies) {
            let (link, body, object) = (Arc::clone(link), body.clone(), shares.object);
            puts.spawn(async move { (link.index, put(&link, object, &body).await) });
        }
        let (mut confirmed, mut faults) = (Vec::new(), Vec::new());
        let mut rest: Option<Instant> = None;
        loop {
            let until = rest.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
            match tokio::time::timeout_at(until, puts.join_next()).await {
                Ok(Some(Ok((cloud, Ok(()))))) => confirmed.push(cloud),
                Ok(Some(Ok((_, Err(fault))))) => faults.push(fault.to_string()),
                Ok(Some(Err(_))) => faults.push(ShardFault::Defect.to_string()),
                Ok(None) => break,
                Err(_) => {
                    faults.push("the others have not answered yet".to_owned());
                    break;
                }
            }
            if confirmed.len() >= wanted {
                rest.get_or_insert_with(|| Instant::now() + REST_WITHIN);
            }
        }
        confirmed.sort_unstable();
        let failures = Failures(faults);
        if confirmed.len() < wanted {
            return Err(ShareError::TooFewPlaced {
                confirmed: confirmed.len(),
                wanted,
                failures,
            });
        }
        Ok(PlacedShares {
            confirmed,
            failures,
        })
    }

    /// Fetches the secret from the fastest clouds that have a share.
    ///
    /// # Errors
    /// If fewer than f + 1 good shares are found; names the clouds, or the format if more than f
    /// clouds hold a newer one.
    #[boxed]
    pub async fn fetch(&self, shares: &Shares) -> Result<SharedSecret, ShareError> {
        let found = self.gather(shares).await?;
        // There are enough of them, each of another cloud.
        SharedSecret::join(&found).ok_or(ShareError::WrittenWrong {
            cloud: CloudIndex(0),
        })
    }

    /// The secret, from shares that were fetched before; `None` unless there are f + 1, each of
    /// another cloud and with its digest.
    #[must_use]
    pub fn join(&self, shares: &Shares, found: &[(u8, Share)]) -> Option<SharedSecret> {
        let mut seen = BTreeSet::new();
        let good = found.iter().all(|(index, share)| {
            let wanted = shares.digest(CloudIndex(*index));
            let link = self.links.iter().find(|link| link.index.0 == *index);
            let made = link.map(|link| {
                let (_, digest) = self.seal_one(link, shares.object, share);
                digest
            });
            seen.insert(*index) && made.is_some() && made == wanted
        });
        let enough = found.len() == usize::from(shares.threshold);
        (good && enough)
            .then(|| SharedSecret::join(found))
            .flatten()
    }

    /// f + 1 proved shares, each with its cloud's index. Unreachable clouds are waited for briefly.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch).
    pub async fn gather(&self, shares: &Shares) -> Result<Vec<(u8, Share)>, ShareError> {
        let began = Instant::now();
        loop {
            match self.gather_now(shares).await {
                Err(ShareError::TooFew { passing: true, .. })
                    if began.elapsed() + OUTAGE_PAUSE < OUTAGE_PATIENCE =>
                {
                    tokio::time::sleep(OUTAGE_PAUSE).await;
                }
                gathered => return gathered,
            }
        }
    }

    #[boxed]
    async fn gather_now(&self, shares: &Shares) -> Result<Vec<(u8, Share)>, ShareError> {
        let wanted = usize::from(shares.threshold);
        let mut order: Vec<&Arc<Link>> = self.holders(shares).collect();
        order.sort_by_cached_key(|link| {
            let exchange = Exchange::Get(STORED_BYTES);
            (
                link.health.is_suspended(),
                link.burden(exchange),
                link.index,
            )
        });
        let mut rest: VecDeque<_> = order.into_iter().cloned().collect();
        let (mut found, mut faults) = (Vec::new(), Vec::new());
        let mut gets = JoinSet::new();
        let mut late = Instant::now();
        loop {
            while found.len() + gets.len() < wanted
                && self.launch(&mut gets, &mut rest, shares, &mut late)
            {}
            if found.len() >= wanted || gets.is_empty() {
                break;
            }
            tokio::select! {
                biased;
                done = gets.join_next() => match done {
                    Some(Ok((cloud, Ok(share)))) => found.push((cloud, share)),
                    Some(Ok((_, Err(fault)))) => faults.push(fault),
                    _ => faults.push(ShardFault::Defect),
                },
                () = tokio::time::sleep_until(late), if !rest.is_empty() => {
                    self.launch(&mut gets, &mut rest, shares, &mut late);
                }
            }
        }
        for fault in &faults {
            tracing::warn!(%fault, "one cloud did not give its share of the key");
        }
        if found.len() < wanted {
            // A newer format counts only if more clouds claim it than may lie.
            let newer: Vec<u16> = faults.iter().filter_map(ShardFault::newer).collect();
            if let Some(format) = newer.iter().copied().min()
                && newer.len() >= wanted
            {
                return Err(ShareError::NewerFormat { format });
            }
            let passing = faults.iter().filter(|fault| fault.is_passing()).count();
            return Err(ShareError::TooFew {
                good: found.len(),
                wanted,
                passing: found.len() + passing >= wanted,
                failures: Failures(faults.iter().map(ToString::to_string).collect()),
            });
        }
        Ok(found)
    }

    /// Asks the next cloud, if there is one, and returns when the request is late.
    fn launch(
        &self,
        gets: &mut JoinSet<(u8, Result<Share, ShardFault>)>,
        rest: &mut VecDeque<Arc<Link>>,
        shares: &Shares,
        late: &mut Instant,
    ) -> bool {
        let Some(link) = rest.pop_front() else {
            return false;
        };
        let exchange = Exchange::Get(STORED_BYTES);
        *late = Instant::now() + link.health.hedge_delay(exchange);
        let (store, object) = (self.clone(), shares.object);
        let digest = shares.digest(link.index);
        gets.spawn(async move {
            let found = store.get(&link, object, digest).await;
            (link.index.0, found)
        });
        true
    }

    /// A cloud's share, under any of its names.
    async fn get(
        &self,
        link: &Link,
        object: ObjectId,
        digest: Option<Digest>,
    ) -> Result<Share, ShardFault> {
        let digest = digest.ok_or(ShardFault::Defect)?;
        let mut damaged = None;
        for attempt in 0..NAMES_MAX {
            let named = named(link, object, attempt);
            match link.get(&named, STORED_BYTES).await {
                Ok(body) => match self.open_one(link, object, &digest, &body) {
                    Some(share) => return Ok(share),
                    None => {
                        link.refused.add(1);
                        damaged = Some(link.refuse(&named, &body));
                    }
                },
                Err(ShardFault::Store(error)) if error.kind == StoreErrorKind::Corrupt => {
                    damaged = Some(ShardFault::Store(error));
                }
                Err(ShardFault::Store(error)) if error.kind == StoreErrorKind::NotFound => {
                    return Err(damaged.unwrap_or(ShardFault::Store(error)));
                }
                Err(fault) => return Err(fault),
            }
        }
        Err(damaged.unwrap_or(ShardFault::Defect))
    }

    /// Checks every share, or one cloud's.
    #[boxed]
    pub async fn look(
        &self,
        shares: &Shares,
        only: Option<CloudIndex>,
    ) -> Vec<(CloudIndex, ShareState)> {
        let is_wanted = |link: &&Arc<Link>| only.is_none_or(|cloud| cloud == link.index);
        let looks = self.holders(shares).filter(is_wanted).map(async |link| {
            let digest = shares.digest(link.index);
            let state = match self.get(link, shares.object, digest).await {
                Ok(_) => ShareState::Good,
                Err(ShardFault::Store(error)) if error.kind == StoreErrorKind::NotFound => {
                    ShareState::Missing
                }
                // Only the administrator that began the epoch could have written a newer format
                // there.
                Err(fault) if fault.is_refused() => ShareState::Damaged,
                Err(fault) => ShareState::Unreachable {
                    reason: fault.to_string(),
                },
            };
            (link.index, state)
        });
        futures_util::future::join_all(looks).await
    }

    /// Makes shares again from f + 1 others and puts them back.
    ///
    /// # Errors
    /// If there are fewer than f + 1 good shares, or they are not of one secret. A cloud that
    /// refuses its share is no error: it is missing from the answer.
    #[boxed]
    pub async fn restore(
        &self,
        shares: &Shares,
        clouds: &[CloudIndex],
    ) -> Result<Vec<CloudIndex>, ShareError> {
        if clouds.is_empty() {
            return Ok(Vec::new());
        }
        let good = self.gather(shares).await?;
        let mut restored = Vec::new();
        for link in self.holders(shares).filter(|it| clouds.contains(&it.index)) {
            let wrong = ShareError::WrittenWrong { cloud: link.index };
            let share = SharedSecret::share_of(&good, link.index.0).ok_or(wrong.clone())?;
            let (body, digest) = self.seal_one(link, shares.object, &share);
            if shares.digest(link.index) != Some(digest) {
                return Err(wrong);
            }
            match put(link, shares.object, &body).await {
                Ok(()) => restored.push(link.index),
                Err(fault) => tracing::warn!(%fault, "a cloud refused its share of the key"),
            }
        }
        Ok(restored)
    }
}

fn named(link: &Link, object: ObjectId, attempt: u8) -> Named {
    Named {
        object,
        class: ObjectClass::SHARE,
        shard: ShardIndex(link.index.0),
        attempt,
        generation: 0,
    }
}

/// Puts a share under the first of its names that is free or holds it already, and reads it back.
async fn put(link: &Link, object: ObjectId, body: &Bytes) -> Result<(), ShardFault> {
    let names = (0..NAMES_MAX).map(|attempt| named(link, object, attempt));
    put_whole(link, names, body, true).await
}
