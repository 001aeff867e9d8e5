//! A volume with its metadata in memory, over clouds behind links of a stated shape.

use super::DataSetting;
use crate::failure::{BenchResult, failed};
use quorumfs_backends::location::{Access, Location};
use quorumfs_backends::marker::Marker;
use quorumfs_backends::remote::{Limits, Pace, RetryPolicy};
use quorumfs_backends::shaped::Shaped;
use quorumfs_backends::{Deadline, ObjectStore};
use quorumfs_bft::identity::{PublicKey, ReplicaId, Time};
use quorumfs_gateway::blocks::{BlockConfig, BlockStore, Cloud};
use quorumfs_gateway::memory::MemoryPlan;
use quorumfs_gateway::metadata::{Embedded, MetadataClient, MountMode, Takeover};
use quorumfs_gateway::vfs::{CloudSlices, FileSystem, Packing};
use quorumfs_gateway::volume::{Created, NewCloud, NewVolume, Volume, create};
use quorumfs_metadata::Metadata;
use quorumfs_metadata::identity::{Gid, Uid};
use quorumfs_metadata::row::{Assertable, ReplicaInfo};
use std::sync::Arc;
use std::time::Duration;

/// How long preparing or emptying a cloud may take.
const FOUND_WITHIN: Duration = Duration::from_secs(30);
/// Names in one page of a listing.
const PAGE: usize = 1000;

/// See the module documentation.
pub(super) struct BenchVolume {
    created: Created,
    volume: Arc<Volume>,
    embedded: Arc<Embedded<Metadata>>,
    /// The clouds without their links.
    pub(super) bare: Vec<Arc<dyn ObjectStore>>,
    pub(super) clouds: Vec<Arc<Shaped>>,
    /// The clouds' default place.
    _directory: tempfile::TempDir,
}

/// A mount: a file system with nothing in its caches.
pub(super) struct BenchMount {
    pub(super) fs: FileSystem,
    pub(super) blocks: BlockStore,
}

impl BenchVolume {
    /// Creates a volume.
    pub(super) async fn found(setting: &DataSetting, places: &[String]) -> BenchResult<Self> {
        let directory = tempfile::tempdir();
        let directory = directory.map_err(|error| failed("make a directory", &error))?;
        let n = u16::from(setting.policy.clouds());
        let created = create(NewVolume {
            up: 0,
            right: 0,
            authentication: Default::default(),
            replicas: vec![ReplicaInfo {
                id: ReplicaId(0),
                key: PublicKey([1; 32]),
                address: "127.0.0.1:1".into(),
            }],
            clouds: (0..n)
                .map(|number| NewCloud {
                    kind: "bench".into(),
                    failure_domain: format!("domain {number}"),
                    name: format!("cloud {number}"),
                })
                .collect(),
            policy: setting.policy,
            // What is removed is freed at once.
            trash_seconds: 0,
            owner_label: "bench".into(),
            root_owner: (Uid::ROOT, Gid(0)),
            owner_uids: Assertable::Any,
            owner_gids: Assertable::Any,
            created: Time(1),
        });
        let created = created.map_err(|error| failed("make a volume", &error))?;
        let volume = Volume::open(&created.genesis, &created.owner);
        let volume = Arc::new(volume.map_err(|error| failed("open the volume", &error))?);
        let embedded = Embedded::new(Metadata, &created.genesis);
        let embedded = embedded.map_err(|error| failed("start the metadata", &error))?;
        let shared = Arc::new(Pace::new(Limits {
            connections: 1024,
            ..Limits::default()
        }));
        let mut world = Self {
            created,
            volume,
            embedded,
            bare: Vec::new(),
            clouds: Vec::new(),
            _directory: directory,
        };
        for (number, shape) in (0..n).zip(&setting.shapes) {
            let place = places.get(usize::from(number));
            let location: Location = match place {
                Some(place) => place
                    .parse()
                    .map_err(|error: _| failed("use a cloud", &error))?,
                None => Location::Local(world._directory.path().join(number.to_string())),
            };
            let access = Access {
                marker: Marker {
                    volume: world.volume.id().0,
                    cloud: number,
                },
                credentials: None,
                collector: None,
                signer: None,
                retry_policy: RetryPolicy::default(),
                limits: Limits {
                    connections: 256,
                    ..Limits::default()
                },
                shared: Arc::clone(&shared),
            };
            let store = location.attach(&access).await;
            let store = store.map_err(|error| failed("use a cloud", &error))?;
            let founded = store.found(Deadline::after(FOUND_WITHIN)).await;
            founded.map_err(|error| failed("use a cloud", &error))?;
            world.bare.push(Arc::clone(&store));
            world.clouds.push(Arc::new(Shaped::new(store, *shape)));
        }
        Ok(world)
    }

    /// Mounts it, independent of earlier mounts.
    pub(super) async fn mount(&self, setting: &DataSetting) -> BenchResult<BenchMount> {
        self.mount_for(setting, Packing::PROMPT).await
    }

    /// Mounts it for work of a kind.
    pub(super) async fn mount_for(
        &self,
        setting: &DataSetting,
        packing: Packing,
    ) -> BenchResult<BenchMount> {
        let session = self
            .embedded
            .open_session(self.created.owner.principal.id().signing)
            .map_err(|error| failed("open a session", &error))?;
        let own = self.volume.own_credentials();
        let metadata = Arc::new(MetadataClient::new(Arc::new(session), own));
        let mounted = metadata.mount(Takeover::OfAny, MountMode::Exclusive).await;
        mounted.map_err(|error| failed("mount", &error))?;
        let secrets = self.volume.clouds().zip(&self.clouds).zip(&setting.prices);
        let clouds: Vec<Cloud> = secrets
            .map(|(((cloud, secret), store), price)| Cloud {
                index: cloud.index,
                store: Arc::clone(store) as _,
                secret: secret.clone(),
                read_price: *price,
            })
            .collect();
        let plan = MemoryPlan::of(setting.memory_bytes);
        let config = BlockConfig {
            preference: setting.preference,
            ..plan.blocks(BlockConfig::new(self.volume.id(), setting.policy))
        };
        let blocks = BlockStore::open(config, &clouds, metadata.clone());
        let blocks = blocks.map_err(|error| failed("open the block store", &error))?;
        let slices = Arc::new(CloudSlices::new(
            self.volume.clone(),
            blocks.clone(),
            packing,
        ));
        let options = plan.vfs();
        let fs = FileSystem::new(self.volume.clone(), metadata, slices, options);
        Ok(BenchMount { fs, blocks })
    }

    /// Deletes all objects and the markers.
    pub(super) async fn give_back(&self) -> BenchResult {
        for store in &self.bare {
            empty(store.as_ref()).await?;
            let given = store.give_back(Deadline::after(FOUND_WITHIN)).await;
            given.map_err(|error| failed("use a cloud", &error))?;
        }
        Ok(())
    }
}

/// Deletes all objects of a cloud; returns how many bytes they had.
pub(super) async fn empty(store: &dyn ObjectStore) -> BenchResult<u64> {
    let mut bytes = 0;
    for prefix in 0..=255_u8 {
        let prefix = format!("{prefix:02x}");
        loop {
            let soon = || Deadline::after(FOUND_WITHIN);
            let page = store.list(&prefix, None, PAGE, soon()).await;
            let page = page.map_err(|error| failed("use a cloud", &error))?;
            for name in &page.names {
                let info = store.head(name, soon()).await;
                bytes += info.map_or(0, |info| info.length);
                let deleted = store.delete(name, soon()).await;
                deleted.map_err(|error| failed("use a cloud", &error))?;
            }
            if !page.more {
                break;
            }
        }
    }
    Ok(bytes)
}
