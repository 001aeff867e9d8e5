//! A service in this process, clouds in directories that can be set to lie, and a line to the
//! service that can lose and forge.

#![allow(unreachable_pub)]

use crate::common::new_volume;
use async_trait::async_trait;
use bytes::Bytes;
use quorumfs_backends::ObjectStore;
use quorumfs_backends::faulty::{Faulty, Plan};
use quorumfs_backends::local::LocalStore;
use quorumfs_backends::marker::Marker;
use quorumfs_bft::identity::{PublicKey, Signature, Time};
use quorumfs_gateway::blocks::{BlockConfig, BlockStore, Cloud, ShareStore, Timeouts};
use quorumfs_gateway::keys::{CloudSecret, KeyFile};
use quorumfs_gateway::metadata::{Embedded, MetadataClient, MetadataError, Transport};
use quorumfs_gateway::vfs::{CloudSlices, FileSystem, Packing, VfsOptions};
use quorumfs_gateway::volume::{Created, Founding, KnownPeople, Volume, VolumeError, create};
use quorumfs_metadata::Metadata;
use quorumfs_metadata::identity::{CloudIndex, RealmEpoch, RealmId, VolumeId};
use quorumfs_metadata::reply::{Answer, QueryResult};
use quorumfs_metadata::row::{Believe, Epoch, Lock, SignedBy};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub const NOW: Time = Time(5);
/// Bytes of a share as it is stored: a header and one cell.
pub const STORED_BYTES: u64 = 83 + 32;

/// Four directories behind decorators that make them lie, and a service.
pub struct World {
    pub created: Created,
    pub embedded: Arc<Embedded<Metadata>>,
    pub directory: tempfile::TempDir,
    /// How far the service's clock is ahead, in nanoseconds.
    ahead: Arc<AtomicU64>,
}

fn clouds<'a>(
    directory: &Path,
    volume: VolumeId,
    secrets: impl Iterator<Item = (CloudIndex, &'a CloudSecret)>,
) -> (Vec<Cloud>, Vec<Arc<Faulty>>) {
    let cloud = |(index, secret): (CloudIndex, &CloudSecret)| {
        let marker = Marker {
            volume: volume.0,
            cloud: u16::from(index.0),
        };
        let path = directory.join(index.to_string());
        if !path.exists() {
            LocalStore::create(&path, marker).unwrap();
        }
        let store = Arc::new(LocalStore::attach(&path, marker));
        let faulty = Arc::new(Faulty::new(store, Plan::honest(), 7));
        let cloud = Cloud {
            index,
            store: faulty.clone() as Arc<dyn ObjectStore>,
            secret: secret.clone(),
            read_price: 0,
        };
        (cloud, faulty)
    };
    secrets.map(cloud).unzip()
}

/// A client with its own faults of the clouds.
pub struct Gateway {
    pub volume: Arc<Volume>,
    pub metadata: Arc<MetadataClient>,
    pub blocks: BlockStore,
    pub shares: ShareStore,
    pub faulty: Vec<Arc<Faulty>>,
}

impl World {
    pub async fn new(lock: Lock) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let created = match lock {
            Lock::Members => create(new_volume()).unwrap(),
            Lock::MembersAndClouds => {
                let mut founding = Founding::begin(new_volume()).unwrap();
                let (volume, policy) = (founding.volume(), founding.policy());
                let (clouds, _) = clouds(directory.path(), volume, founding.clouds());
                let store = ShareStore::new(volume, policy, &clouds).unwrap();
                let placed = founding.lock_with_clouds(&store).await.unwrap();
                assert_eq!(placed.confirmed.len(), 4);
                founding.finish().unwrap()
            }
        };
        let ahead = Arc::new(AtomicU64::new(0));
        let offset = ahead.clone();
        let clock = move || {
            let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            clock.as_nanos() as u64 + offset.load(Ordering::Relaxed)
        };
        Self {
            embedded: Embedded::with_clock(Metadata, &created.genesis, clock).unwrap(),
            created,
            directory,
            ahead,
        }
    }

    /// Lets time pass at the service.
    pub fn pass(&self, nanos: u64) {
        self.ahead.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Opened, and without the keys that need the servers or the clouds.
    fn gateway_over(&self, wrap: impl FnOnce(Box<dyn Transport>) -> Arc<dyn Transport>) -> Gateway {
        let volume = Volume::open(&self.created.genesis, &self.created.owner).unwrap();
        self.gateway_of(volume, wrap)
    }

    /// With another principal's key, over servers that take it for the owner's.
    pub fn gateway_with(&self, key: &KeyFile, people: &KnownPeople) -> Gateway {
        let volume = Volume::open_after(&self.created.genesis, people, key).unwrap();
        self.gateway_of(volume, Arc::from)
    }

    fn gateway_of(
        &self,
        volume: Volume,
        wrap: impl FnOnce(Box<dyn Transport>) -> Arc<dyn Transport>,
    ) -> Gateway {
        let secrets = volume.clouds().map(|(cloud, secret)| (cloud.index, secret));
        let (clouds, faulty) = clouds(self.directory.path(), volume.id(), secrets);
        let session = self
            .embedded
            .open_session(self.created.owner.principal.id().signing)
            .unwrap();
        let transport = wrap(Box::new(session));
        let metadata = Arc::new(MetadataClient::new(transport, volume.own_credentials()));
        let config = BlockConfig {
            timeouts: Timeouts {
                hedge_max: Duration::from_millis(50),
                ..Timeouts::default()
            },
            ..BlockConfig::new(volume.id(), volume.policy())
        };
        let blocks = BlockStore::open(config, &clouds, metadata.clone()).unwrap();
        Gateway {
            shares: blocks.shares().unwrap(),
            volume: Arc::new(volume),
            metadata,
            blocks,
            faulty,
        }
    }

    pub fn gateway(&self) -> Gateway {
        self.gateway_over(Arc::from)
    }

    /// The file with a cloud's share.
    pub fn share_file(&self, cloud: u8) -> PathBuf {
        let mut found = Vec::new();
        for place in std::fs::read_dir(self.directory.path().join(cloud.to_string())).unwrap() {
            let Ok(files) = std::fs::read_dir(place.unwrap().path()) else {
                continue;
            };
            let files = files.map(|file| file.unwrap().path());
            found.extend(files.filter(|path| path.metadata().unwrap().len() == STORED_BYTES));
        }
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }
}

impl Gateway {
    pub async fn refresh(&self) -> Result<RealmEpoch, VolumeError> {
        self.volume
            .refresh(&self.metadata, Some(&self.shares))
            .await
    }

    pub async fn rekey(&self, lock: Lock) -> Result<RealmEpoch, VolumeError> {
        let (volume, clouds) = (&self.volume, &self.shares);
        let done = volume.rekey(&self.metadata, clouds, lock, NOW).await?;
        Ok(done.number)
    }

    pub fn file_system(&self) -> FileSystem {
        let (volume, blocks) = (self.volume.clone(), self.blocks.clone());
        let slices = CloudSlices::new(volume.clone(), blocks, Packing::THRIFTY);
        let options = VfsOptions::default();
        FileSystem::new(volume, self.metadata.clone(), Arc::new(slices), options)
    }
}

/// The fault of the operation that begins an epoch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    NotSent,
    AnswerLost,
}

pub struct Line {
    pub inner: Box<dyn Transport>,
    pub fate: Mutex<Option<Fate>>,
    /// How answers about the realm are changed.
    pub lie: AtomicU8,
    pub old: Mutex<Option<Answer>>,
}

pub const HONEST: u8 = 0;
pub const OLD: u8 = 1;
pub const WITHOUT_LOCK: u8 = 2;
pub const OTHER_DIGEST: u8 = 3;
pub const OTHER_PREVIOUS: u8 = 4;
pub const OTHER_NUMBER: u8 = 5;
pub const NO_MEMBER: u8 = 6;
pub const SIGNED_SECRET: u8 = 7;
pub const OTHER_POLICY: u8 = 8;
pub const BELIEVING: u8 = 9;
pub const WITH_PARENT: u8 = 10;

fn is_beginning(operation: &[u8]) -> bool {
    use quorumfs_metadata::operation::Operation;
    matches!(
        Operation::from_bytes(operation),
        Ok(Operation::BeginEpoch(_))
    )
}

#[async_trait]
impl Transport for Line {
    async fn execute(&self, operation: Bytes) -> Result<Bytes, MetadataError> {
        let fate = match is_beginning(&operation) {
            true => self.fate.lock().unwrap().take(),
            false => None,
        };
        let lost = || MetadataError::OutcomeUnknown {
            reason: "set to lose it".into(),
        };
        match fate {
            None => self.inner.execute(operation).await,
            Some(Fate::NotSent) => Err(lost()),
            Some(Fate::AnswerLost) => {
                self.inner.execute(operation).await?;
                Err(lost())
            }
        }
    }

    async fn query(&self, query: Bytes) -> Result<Bytes, MetadataError> {
        let bytes = self.inner.query(query).await?;
        let mut answer = Answer::from_bytes(&bytes).unwrap();
        if let Ok(QueryResult::CloudSecrets(rows)) = &mut answer.0
            && self.lie.load(Ordering::Relaxed) == SIGNED_SECRET
        {
            rows[0].1.signed = Some(SignedBy {
                signer: PublicKey([1; 32]),
                signature: Signature([2; 64]),
            });
            return Ok(answer.to_bytes().into());
        }
        let Ok(QueryResult::Realm {
            realm,
            epochs,
            member,
            ..
        }) = &mut answer.0
        else {
            return Ok(bytes);
        };
        let newest: &mut Epoch = &mut epochs.last_mut().unwrap().1;
        match self.lie.load(Ordering::Relaxed) {
            HONEST => *self.old.lock().unwrap() = Some(answer.clone()),
            OLD => return Ok(self.old.lock().unwrap().as_ref().unwrap().to_bytes().into()),
            WITHOUT_LOCK => (newest.lock, newest.shares) = (Lock::Members, None),
            OTHER_DIGEST => newest.shares.as_mut().unwrap().places[0].digest.0[0] ^= 1,
            OTHER_PREVIOUS => newest.previous[0] ^= 1,
            OTHER_POLICY => realm.policy_epoch = 1,
            BELIEVING => realm.believe = Believe::Members,
            WITH_PARENT => realm.parent = Some(RealmId(1)),
            OTHER_NUMBER => {
                realm.epoch.0 += 1;
                let newest = newest.clone();
                epochs.push((realm.epoch, newest));
                member.as_mut().unwrap().epoch = realm.epoch;
            }
            _ => *member = None,
        }
        Ok(answer.to_bytes().into())
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

impl World {
    pub fn gateway_on_a_line(&self) -> (Gateway, Arc<Line>) {
        let mut line = None;
        let gateway = self.gateway_over(|inner| {
            let made = Arc::new(Line {
                inner,
                fate: Mutex::default(),
                lie: AtomicU8::new(HONEST),
                old: Mutex::default(),
            });
            line = Some(made.clone());
            made
        });
        (gateway, line.unwrap())
    }
}
