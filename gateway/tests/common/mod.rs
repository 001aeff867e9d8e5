//! A file system over a service in this process and slices in memory.

#![allow(unreachable_pub)]
#![allow(dead_code, clippy::unwrap_used, clippy::indexing_slicing)]

use async_trait::async_trait;
use bytes::Bytes;
use quorumfs_bft::identity::{Digest, PublicKey, ReplicaId, Time};
use quorumfs_gateway::metadata::{AllocatedId, Embedded, EmbeddedSession, MetadataClient};
use quorumfs_gateway::vfs::{
    Caller, FileSystem, SliceStore, StoredSlice, VfsError, VfsOptions, WrittenSlice,
};
use quorumfs_gateway::volume::{Created, NewCloud, NewVolume, Volume, create};
use quorumfs_metadata::Metadata;
use quorumfs_metadata::identity::{CloudIndex, Codec, ObjectClass, ObjectId, RealmEpoch, SliceId};
use quorumfs_metadata::operation::{NewObject, NewSlice};
use quorumfs_metadata::placement::{Policy, Shard};
use quorumfs_metadata::row::{Assertable, ReplicaInfo, SliceKey};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Slices in memory, which can be told to fail.
#[derive(Default)]
pub struct MemorySlices {
    slices: Mutex<HashMap<SliceId, Bytes>>,
    pub failing: AtomicBool,
    /// How long a write takes, in milliseconds.
    pub delay: AtomicU32,
    pub writes: AtomicU32,
    pub reads: AtomicU32,
    pub committed: AtomicU32,
    pub abandoned: AtomicU32,
}

#[async_trait]
impl SliceStore for MemorySlices {
    async fn write(&self, id: &AllocatedId, plain: Bytes) -> Result<WrittenSlice, VfsError> {
        let delay = self.delay.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(delay.into())).await;
        if self.failing.load(Ordering::Relaxed) {
            return Err(VfsError::Data {
                kind: quorumfs_gateway::blocks::BlockErrorKind::Io,
                doing: "a write",
                reason: "told to fail".into(),
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
            key: SliceKey::Derived(RealmEpoch(0)),
        };
        Ok(WrittenSlice { object, slice })
    }

    async fn read(&self, stored: &StoredSlice, range: Range<u32>) -> Result<Bytes, VfsError> {
        tokio::task::yield_now().await;
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
}

/// A volume whose servers and clouds live in this process.
pub struct World {
    pub created: Created,
    pub volume: Arc<Volume>,
    pub embedded: Arc<Embedded<Metadata>>,
    pub slices: Arc<MemorySlices>,
}

pub fn new_volume() -> NewVolume {
    NewVolume {
        up: 1,
        right: 1,
        replicas: (0..4)
            .map(|number| ReplicaInfo {
                id: ReplicaId(number),
                key: PublicKey([number as u8 + 1; 32]),
                address: format!("127.0.0.1:{}", 7000 + number),
            })
            .collect(),
        clouds: (0..4)
            .map(|number| NewCloud {
                kind: "local".into(),
                failure_domain: format!("domain {number}"),
                name: format!("cloud {number}"),
            })
            .collect(),
        policy: Policy::new(4, 1, 2, 4).unwrap(),
        owner_label: "owner".into(),
        owner_uids: Assertable::Any,
        owner_gids: Assertable::Any,
        created: Time(1),
    }
}

impl World {
    pub fn new() -> Self {
        let created = create(new_volume()).unwrap();
        let volume = Arc::new(Volume::open(&created.genesis, &created.owner).unwrap());
        let embedded = Embedded::new(Metadata, &created.genesis).unwrap();
        Self {
            created,
            volume,
            embedded,
            slices: Arc::default(),
        }
    }

    pub fn session(&self) -> EmbeddedSession<Metadata> {
        self.embedded
            .open_session(self.created.owner.principal.id().signing)
            .unwrap()
    }

    /// A file system over a session of its own that does not mount.
    pub fn beside(&self, options: VfsOptions) -> FileSystem {
        let own = self.volume.own_credentials();
        let client = Arc::new(MetadataClient::new(Arc::new(self.session()), own));
        FileSystem::new(self.volume.clone(), client, self.slices.clone(), options)
    }

    /// A file system over a new mount session, taking over from an older one.
    pub async fn mount(&self, options: VfsOptions) -> FileSystem {
        let own = self.volume.own_credentials();
        let client = Arc::new(MetadataClient::new(Arc::new(self.session()), own));
        client.mount(true).await.unwrap();
        FileSystem::new(self.volume.clone(), client, self.slices.clone(), options)
    }
}

pub fn root() -> Caller {
    Caller::user(0, 0, vec![])
}
