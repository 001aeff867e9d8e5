//! A gateway in the test's own process, composed from the libraries as the program does it, for
//! settings that the command line does not offer: no sealing, short deadlines, a runtime that can
//! be blocked.

use super::cluster::Cluster;
use quorumfs_backends::local::LocalStore;
use quorumfs_backends::marker::Marker;
use quorumfs_bft_runtime::client::{Client, ClientConfig, Member};
use quorumfs_bft_runtime::keys::NodeKey;
use quorumfs_bft_runtime::server::first_incarnation;
use quorumfs_fuse::{MountConfig, Mounted, mount};
use quorumfs_gateway::blocks::{BlockConfig, BlockStore, Cloud, ShareStore};
use quorumfs_gateway::keys::{KeyFile, Sealing, SliceKey};
use quorumfs_gateway::metadata::{MetadataClient, MountMode, Ordered, Takeover};
use quorumfs_gateway::vfs::{CloudSlices, FileSystem, Packing, VfsOptions};
use quorumfs_gateway::volume::Volume;
use quorumfs_metadata::identity::InodeId;
use quorumfs_metadata::limits::EXTENT_PAGE_MAX;
use quorumfs_metadata::query::Question;
use quorumfs_metadata::reply::QueryResult;
use quorumfs_metadata::row;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

const DRAIN_WITHIN: Duration = Duration::from_secs(30);

/// A volume mounted by this process; unmounted when dropped.
#[derive(Debug)]
pub struct Gateway {
    /// The runtime that serves the mount.
    pub runtime: Runtime,
    /// The mount.
    pub mounted: Mounted,
    file_system: FileSystem,
    metadata: Arc<MetadataClient>,
    blocks: BlockStore,
    point: PathBuf,
}

impl Gateway {
    /// Mounts the cluster's volume; requests may take as long as `deadline`.
    ///
    /// # Panics
    /// If it cannot be mounted.
    #[must_use]
    pub fn mount(cluster: &Cluster, sealing: Sealing, deadline: Duration) -> Self {
        super::require_fuse();
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let genesis = std::fs::read(cluster.volume().join("volume.genesis")).unwrap();
        let key = KeyFile::load(&cluster.volume().join("principal.key")).unwrap();
        let volume = Arc::new(Volume::open(&genesis, &key).unwrap().with_sealing(sealing));
        let point = cluster.mount_point();
        let mut config = MountConfig::new(point.clone());
        config.deadline = deadline;
        let (metadata, blocks, file_system, mounted) = runtime.block_on(async {
            let client = Client::connect(client_config(cluster, &volume))
                .await
                .unwrap();
            let session = Arc::new(Ordered::new(client));
            let metadata = Arc::new(MetadataClient::new(session, volume.own_credentials()));
            metadata
                .mount(Takeover::OfAny, MountMode::Exclusive)
                .await
                .unwrap();
            let mut config_of_blocks = BlockConfig::new(volume.id(), volume.policy());
            config_of_blocks.sealing = sealing;
            let clouds = clouds(cluster, &volume);
            let blocks = BlockStore::open(config_of_blocks, &clouds, metadata.clone()).unwrap();
            let shares = blocks.shares().unwrap();
            volume.refresh(&metadata, Some(&shares)).await.unwrap();
            let packing = Packing::PROMPT;
            let slices = Arc::new(CloudSlices::new(volume.clone(), blocks.clone(), packing));
            let options = VfsOptions::default();
            let file_system = FileSystem::new(volume.clone(), metadata.clone(), slices, options);
            let mounted = mount(file_system.clone(), config).await.unwrap();
            (metadata, blocks, file_system, mounted)
        });
        Self {
            runtime,
            mounted,
            file_system,
            metadata,
            blocks,
            point,
        }
    }

    /// The mount point.
    #[must_use]
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Commits everything, unmounts, and ends the session.
    ///
    /// # Panics
    /// If that fails.
    pub fn unmount(self) {
        self.runtime.block_on(async {
            self.mounted.unmount().await.unwrap();
            assert!(self.blocks.drain(DRAIN_WITHIN).await.is_complete());
            self.metadata.unmount().await.unwrap();
            self.file_system.shutdown().await.unwrap();
            self.blocks.shutdown();
        });
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // A failed test leaves nothing mounted; the rest is harmless once it is unmounted.
        if super::is_mounted(&self.point) {
            self.mounted.abort();
            let flags = rustix::mount::UnmountFlags::DETACH;
            let _ = rustix::mount::unmount(&self.point, flags);
        }
    }
}

fn client_config(cluster: &Cluster, volume: &Volume) -> ClientConfig {
    let genesis = volume.genesis();
    let members = genesis.replicas.iter().zip(&cluster.addresses);
    let members = members.map(|(replica, address)| Member {
        id: replica.id,
        key: replica.key,
        incarnation: first_incarnation(&replica.key),
        address: (*address).into(),
    });
    let seed = *volume.principal().signing_secret().expose();
    let principal = NodeKey::from_seed(seed.into()).unwrap();
    let model = genesis.fault_model().unwrap();
    let mut config = ClientConfig::new(volume.id(), model, members.collect(), Arc::new(principal));
    config.connect_deadline = Duration::from_secs(30);
    config
}

/// The cluster's volume with the keys of its first key epoch, unlocked with the clouds' shares.
///
/// # Panics
/// If the key is not the owner's, or the clouds do not unlock it.
#[must_use]
pub fn unlocked(cluster: &Cluster, key: &KeyFile) -> Volume {
    let genesis = std::fs::read(cluster.volume().join("volume.genesis")).unwrap();
    let volume = Volume::open(&genesis, key).unwrap();
    let clouds = clouds(cluster, &volume);
    let shares = ShareStore::new(volume.id(), volume.policy(), &clouds).unwrap();
    let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(volume.unlock(&shares)).unwrap();
    volume
}

/// Asks the servers for the keys of all slices of the volume's inodes from 1 to `inodes`.
///
/// # Panics
/// If the servers do not answer.
#[must_use]
pub fn slice_keys(cluster: &Cluster, volume: &Volume, inodes: u64) -> Vec<SliceKey> {
    let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(client_config(cluster, volume)).await;
        let session = Arc::new(Ordered::new(client.unwrap()));
        let metadata = MetadataClient::new(session, volume.own_credentials());
        let mut keys = Vec::new();
        for inode in (1..=inodes).map(InodeId) {
            let (from, to) = (0, u64::MAX);
            let limit = EXTENT_PAGE_MAX;
            let question = Question::Content {
                inode,
                from,
                to,
                limit,
            };
            let found = metadata.ask("read", volume.own_credentials(), question);
            // Directories, and numbers that no file has.
            let Ok(QueryResult::Content(page)) = found.await else {
                continue;
            };
            for (slice, row) in page.slices {
                if let Some(row::SliceKey::Derived { epoch, salt, .. }) = row.key() {
                    keys.push(volume.slice_key(*epoch, slice, salt).unwrap());
                }
            }
        }
        metadata.close().await;
        keys
    })
}

fn clouds(cluster: &Cluster, volume: &Volume) -> Vec<Cloud> {
    let clouds = volume.clouds().enumerate();
    clouds
        .map(|(index, (cloud, secret))| {
            let marker = Marker {
                volume: volume.id().0,
                cloud: u16::from(cloud.index.0),
            };
            Cloud {
                index: cloud.index,
                store: Arc::new(LocalStore::attach(&cluster.cloud(index), marker)),
                secret: secret.clone(),
                read_price: 0,
            }
        })
        .collect()
}
