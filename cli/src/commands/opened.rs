//! A volume as commands use it: configured, and opened.
//!
//! [`Configured`] holds the files of the state directory, trusted as far as they are signed; it can
//! ask replicas and clouds for their state, whatever that is. [`Opened`] is a session with the
//! replicas and a file system over it.

mod backing_up;
mod client;
mod collecting;
mod costs;
mod file_system;
mod following;
mod held;
mod host;
mod known_clouds;
mod resealing;

use super::cost::{CostBasis, Spending};
use super::disk_cache::{CacheReport, MountCache};
use super::journal::WaitingReport;
use super::known_people;
use super::local_lock::{self, MountedSessions};
use super::memory::{self, Memory};
use super::shown::{self, Shown, ShownBefore};
use super::warmup::WarmedPiece;
use crate::arguments::{General, TakeoverFrom};
use crate::clouds::{self, NamedCloud, Role};
use crate::configuration::files::CONFIGURATION;
use crate::configuration::{self, TierSetting, VolumeConfiguration};
use crate::directory::StateDirectory;
use crate::exit::Exit;
use crate::explain::{block_failure, client_failure, vfs_failure, volume_failure};
use crate::failure::{CommandResult, Failure};
use crate::unlock::{self, Unlocked};
use bytes::Bytes;
use client::client_config;
pub(super) use costs::basis_now;
use file_system::FileSystemOver;
use following::Attachment;
use held::{allowed, not_mounted};
use quorumfs_backends::StoreError;
use quorumfs_bft::identity::{PublicKey, Sequence, SessionId};
use quorumfs_bft::membership::{self, Membership};
use quorumfs_bft_runtime::client::{
    Client, ClientConfig, ClusterStatus, Observer, cluster_status, observe_replicas,
};
use quorumfs_gateway::blocks::{BlockConfig, BlockStatus, BlockStore, Compaction, Draining};
use quorumfs_gateway::keys::{KeyFile, Passphrase};
use quorumfs_gateway::memory::MemoryBudget;
use quorumfs_gateway::metadata::{MetadataClient, MountMode, Ordered};
use quorumfs_gateway::vfs::{CloudSlices, FileSystem, InodeId, Packing};
use quorumfs_gateway::volume::Volume;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The files of the state directory.
#[derive(Debug)]
pub(crate) struct Configured {
    state: StateDirectory,
    configuration: VolumeConfiguration,
    volume: Arc<Volume>,
    /// The signed genesis, and the key.
    genesis: Bytes,
    key: KeyFile,
    client: ClientConfig,
    budget: MemoryBudget,
    clouds: Vec<NamedCloud>,
    memory: Memory,
    held: MountedSessions,
    shown: ShownBefore,
    costs: CostBasis,
    /// The key is not the one in the state directory.
    is_guest: bool,
}

/// The purpose of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// One command that writes nothing, for which a reader's credentials suffice.
    Reading,
    /// One command.
    Command,
    /// A mount of the realm.
    Mount {
        /// Whose mounts lose it.
        takeover: Option<TakeoverFrom>,
        /// Whether others may mount it meanwhile.
        mode: MountMode,
    },
    /// A process that deletes what nothing needs.
    Reconciler {
        /// The grace of a service, which does it in the background; `None`: one command.
        serves: Option<Duration>,
    },
}

impl Configured {
    /// Reads and checks everything that can be checked without a server.
    pub(crate) fn read(general: &General) -> CommandResult<Self> {
        Ok(Self::read_with(general, None)?.0)
    }

    /// The same with the passphrase that another process handed over, if any; also returns the
    /// passphrase that it used, if any.
    pub(crate) fn read_with(
        general: &General,
        handed: Option<Passphrase>,
    ) -> CommandResult<(Self, Option<Passphrase>)> {
        let state = StateDirectory::find(general.state.as_deref(), "volume")?;
        let configuration: VolumeConfiguration =
            configuration::read(&state.join(CONFIGURATION), "volume")?;
        let path = state.join(&configuration.volume.genesis);
        let genesis = fs::read(&path).map_err(|error| {
            Failure::file("read", &path, &error)
                .hint("take the genesis from a replica's directory or from the recovery kit")
        })?;
        let Unlocked { key, passphrase } = unlock::open(&state, &configuration, handed)?;
        let configured = Self::of(state, configuration, &genesis, &key)?;
        Ok((configured, passphrase))
    }

    /// The same volume and directory with another key, which leaves nothing of its own there.
    pub(super) fn read_as(general: &General, key: &KeyFile, genesis: &[u8]) -> CommandResult<Self> {
        let state = StateDirectory::find(general.state.as_deref(), "volume")?;
        let configuration = configuration::read(&state.join(CONFIGURATION), "volume")?;
        let mut configured = Self::of(state, configuration, genesis, key)?;
        configured.is_guest = true;
        Ok(configured)
    }

    fn of(
        state: StateDirectory,
        configuration: VolumeConfiguration,
        genesis: &[u8],
        key: &KeyFile,
    ) -> CommandResult<Self> {
        let people = known_people::known(&state)?;
        let volume = Volume::open_after(genesis, &people, key);
        let volume = volume.map_err(|error| volume_failure(&error))?;
        known_clouds::recall(&state, &volume);
        let mut client = client_config(&configuration, &volume, &state.join(CONFIGURATION))?;
        let memory = Memory {
            path: state.join(memory::FILE),
            cluster: volume.id(),
        };
        let held = MountedSessions::new(state.join(local_lock::FILE), volume.id());
        client.known = memory.recall();
        let shown = ShownBefore::new(state.join(shown::FILE), volume.id());
        client.shown = shown.recall().sequence;
        let clouds = clouds::of_volume(&configuration, state.path(), &volume)?;
        let costs = costs::basis(&configuration, state.path(), &clouds, &volume)?;
        let budget = configuration.data.memory()?;
        configuration.cache.check()?;
        configuration.journal.check()?;
        Ok(Self {
            clouds,
            budget,
            state,
            configuration,
            volume: Arc::new(volume),
            genesis: Bytes::copy_from_slice(genesis),
            key: key.clone(),
            client,
            memory,
            held,
            shown,
            costs,
            is_guest: false,
        })
    }

    /// The same, with another tier if one is given.
    pub(crate) fn at_tier(mut self, tier: Option<TierSetting>) -> Self {
        self.configuration.mount.tier = tier.unwrap_or(self.configuration.mount.tier);
        self
    }

    /// The signed genesis.
    pub(super) fn genesis(&self) -> &[u8] {
        &self.genesis
    }

    /// The state directory.
    pub(crate) fn state(&self) -> &StateDirectory {
        &self.state
    }

    /// The sessions of this state directory that may have the volume mounted.
    pub(crate) fn mounted_sessions(&self) -> Vec<SessionId> {
        self.held.recall()
    }

    /// The volume.
    pub(crate) fn volume(&self) -> &Volume {
        &self.volume
    }

    /// The memory budget of a mount or a command.
    pub(crate) fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    /// The configuration.
    pub(crate) fn configuration(&self) -> &VolumeConfiguration {
        &self.configuration
    }

    /// All clouds that the volume ever had, as far as this machine knows, in the order of their
    /// numbers.
    pub(crate) fn clouds(&self) -> &[NamedCloud] {
        &self.clouds
    }

    /// How many clouds reading a complete object needs, and how many writing one needs.
    pub(crate) fn clouds_needed(&self) -> (usize, usize) {
        let policy = self.volume.policy();
        (
            usize::from(policy.data()),
            usize::from(policy.write_quorum()),
        )
    }

    /// Asks every member of the cluster for its state, and stores the membership.
    pub(crate) async fn standing(&self) -> CommandResult<ClusterStatus> {
        let standing = cluster_status(&self.client).await;
        let standing = standing.map_err(|error| client_failure(&error))?;
        self.remember(&standing.membership);
        Ok(standing)
    }

    /// Opens a session as this volume's principal, for the administration of the cluster.
    pub(crate) async fn connect(&self) -> CommandResult<Client> {
        let client = Client::connect(self.client.clone()).await;
        let client = client.map_err(|error| client_failure(&error))?;
        self.remember(&client.membership());
        self.shown.keep(Shown {
            sequence: client.shown(),
            ..Shown::default()
        });
        Ok(client)
    }

    /// The same where the servers may have gone back in time.
    pub(super) async fn connect_at_any_state(&self) -> CommandResult<Client> {
        let mut config = self.client.clone();
        // The servers may not know the stored membership any more.
        (config.shown, config.known) = (Sequence(0), None);
        let client = Client::connect(config).await;
        client.map_err(|error| client_failure(&error))
    }

    /// The state that the servers have shown this state directory.
    pub(super) fn shown_before(&self) -> &ShownBefore {
        &self.shown
    }

    /// The key that opens this volume here.
    pub(crate) fn principal(&self) -> PublicKey {
        self.client.principal.public()
    }

    /// A member's address: from the membership, if it was admitted or moved; else from the
    /// configuration.
    pub(crate) fn address_of(&self, member: &membership::Member) -> String {
        let configured = self.client.replicas.iter().find(|it| it.key == member.key);
        match configured {
            Some(configured) if member.address.is_empty() => configured.address.to_string(),
            _ => String::from_utf8_lossy(&member.address).into_owned(),
        }
    }

    /// Stores the membership for the next command.
    pub(super) fn remember(&self, membership: &Membership) {
        self.memory.keep(membership);
    }

    /// Asks every replica to report its state whenever it changes.
    pub(crate) fn observe_replicas(&self) -> CommandResult<Observer> {
        observe_replicas(self.client.clone()).map_err(|error| client_failure(&error))
    }

    /// Checks every cloud.
    pub(crate) async fn ask_clouds(&self) -> Vec<(String, Result<(), StoreError>)> {
        let mut looking = tokio::task::JoinSet::new();
        for (index, cloud) in self.clouds.iter().cloned().enumerate() {
            looking.spawn(async move {
                let found = cloud.store(cloud.usual()).await.check(clouds::soon()).await;
                (index, cloud.name, found)
            });
        }
        let mut found = Vec::new();
        while let Some(looked) = looking.join_next().await {
            found.extend(looked);
        }
        found.sort_by_key(|(index, _, _)| *index);
        found
            .into_iter()
            .map(|(_, name, found)| (name, found))
            .collect()
    }
}

/// How long opening a session may take: two changes of dead leaders, with a margin.
const CONNECT_WITHIN: Duration = Duration::from_secs(15);
/// How long the end of a session waits until its objects are on all of their clouds. The next
/// process that opens the volume completes the rest.
const DRAIN_WITHIN: Duration = Duration::from_secs(10);
/// How long the end waits until the clouds' faults are reported.
const REPORTED_WITHIN: Duration = Duration::from_secs(3);

/// How often a mount stores the membership: one that is killed has stored it too.
const REMEMBERED_EVERY: Duration = Duration::from_secs(10);

/// A session with the replicas, and the file system over it and the clouds.
#[derive(Debug)]
pub(crate) struct Opened {
    volume: Arc<Volume>,
    file_system: FileSystem,
    tier: TierSetting,
    /// The damage of the journal, if any.
    journal_damage: Option<String>,
    metadata: Arc<MetadataClient>,
    blocks: BlockStore,
    disk_cache: MountCache,
    budget: MemoryBudget,
    access: Access,
    /// The session's client, and where its membership is stored.
    client: Client,
    memory: Memory,
    held: MountedSessions,
    shown: ShownBefore,
    spending: Spending,
    attachment: Attachment,
}

impl Opened {
    /// Opens the volume that the state directory describes, for one command.
    pub(crate) async fn for_a_command(general: &General) -> CommandResult<Self> {
        Self::open(&Configured::read(general)?, Access::Command).await
    }

    /// The same for a command that writes nothing.
    pub(crate) async fn to_read(general: &General) -> CommandResult<Self> {
        Self::open(&Configured::read(general)?, Access::Reading).await
    }

    /// Opens a session and, for a mount, mounts the realm.
    pub(crate) async fn open(configured: &Configured, access: Access) -> CommandResult<Self> {
        let volume = &configured.volume;
        let client = configured.connect().await?;
        let session = Arc::new(Ordered::new(client.clone()));
        let metadata = Arc::new(MetadataClient::new(session, volume.own_credentials()));
        let known = configured.shown.recall();
        volume.epoch_shown_before(known.epoch);
        if let Some(allocation) = known.allocation {
            metadata.allocated_before(allocation);
        }
        let held = &configured.held;
        let access = match allowed(configured, &metadata, access).await {
            Ok(access) => access,
            Err(failure) => {
                metadata.close().await;
                return Err(failure);
            }
        };
        if let Access::Mount { takeover, mode } = access
            && let Err(error) = held.mount(&client, &metadata, takeover, mode).await
        {
            let others = metadata.mounts().await.unwrap_or_default();
            metadata.close().await;
            return Err(not_mounted(&error, mode, &others));
        }
        let role = match access {
            _ if volume.is_reader() => Role::Reader,
            Access::Reading => Role::Reader,
            Access::Command | Access::Mount { .. } | Access::Reconciler { .. } => Role::Writer,
        };
        let collection = configured.collection(access);
        let deletes = collection.is_some() || matches!(access, Access::Reconciler { .. });
        let attachment = Attachment::new(configured, role, deletes);
        let learned = async {
            let learned = volume.learn_clouds(&metadata).await;
            learned.map_err(|error| volume_failure(&error))?;
            attachment.remember(volume);
            attachment.keep_given(volume);
            attachment.attach(volume, &BTreeSet::new()).await
        };
        let clouds = match learned.await {
            Ok(clouds) => clouds,
            Err(failure) => {
                metadata.close().await;
                return Err(failure);
            }
        };
        let plan = configured.budget.plan();
        let reader = |cloud: &NamedCloud| cloud.credentials(Role::Reader).is_some();
        let config = BlockConfig {
            lineage: Some(volume.lineage()),
            compaction: access.works_in_the_background().then(Compaction::default),
            collection,
            draining: access.works_in_the_background().then(Draining::default),
            preference: configured.configuration.data.prefer.into(),
            compression: configured.configuration.data.compression.into(),
            restores: role != Role::Reader || !configured.clouds.iter().any(reader),
            ..plan.blocks(BlockConfig::new(volume.id(), volume.policy()))
        };
        let fleet = volume.fleet();
        let blocks = match BlockStore::open_with(config, &clouds, fleet, metadata.clone()) {
            Ok(blocks) => blocks,
            Err(error) => {
                metadata.close().await;
                return Err(block_failure(&error));
            }
        };
        configured.keep_shares(access);
        let unlocked = async {
            let clouds = blocks.shares().map_err(|error| block_failure(&error))?;
            let newest = volume.refresh(&metadata, Some(&clouds)).await;
            newest.map_err(|error| volume_failure(&error))
        };
        if let Err(failure) = unlocked.await {
            metadata.close().await;
            blocks.shutdown();
            return Err(failure);
        }
        let packing = match access {
            Access::Reading | Access::Command | Access::Reconciler { .. } => Packing::THRIFTY,
            Access::Mount { .. } => Packing::PROMPT,
        };
        let disk_cache = match access {
            Access::Reading | Access::Command | Access::Reconciler { .. } => MountCache::Off,
            Access::Mount { .. } => MountCache::open(configured, volume, plan),
        };
        let slices = Arc::new(CloudSlices::new(volume.clone(), blocks.clone(), packing));
        let slices = disk_cache.before(slices);
        let files = FileSystemOver {
            configured,
            metadata: metadata.clone(),
            slices,
            access,
        };
        let (file_system, journal_damage) = match files.open().await {
            Ok(opened) => opened,
            Err(failure) => {
                metadata.close().await;
                blocks.shutdown();
                disk_cache.close().await;
                return Err(failure);
            }
        };
        Ok(Self {
            spending: Spending::begin(configured, volume, &blocks, &metadata).await,
            volume: volume.clone(),
            file_system,
            tier: configured.configuration.mount.tier,
            journal_damage,
            metadata,
            blocks,
            disk_cache,
            budget: configured.budget.clone(),
            access,
            client,
            memory: configured.memory.clone(),
            held: configured.held.clone(),
            shown: configured.shown.clone(),
            attachment,
        })
    }

    /// The volume, with all keys that its principal has.
    pub(crate) fn volume(&self) -> &Volume {
        &self.volume
    }

    /// The session.
    pub(crate) fn metadata(&self) -> &MetadataClient {
        &self.metadata
    }

    /// The file system.
    pub(crate) fn file_system(&self) -> &FileSystem {
        &self.file_system
    }

    /// The data that waits to be committed, of a mount on `point`.
    pub(crate) async fn waiting(&self, point: &Path) -> WaitingReport {
        let (tier, damage) = (self.tier.name(), self.journal_damage.as_ref());
        WaitingReport::of(&self.file_system, point, tier, damage).await
    }

    /// The block store under it.
    pub(crate) fn blocks(&self) -> &BlockStore {
        &self.blocks
    }

    /// The condition of the clouds.
    pub(crate) fn block_status(&self) -> BlockStatus {
        self.blocks.status()
    }

    /// The memory budget.
    pub(crate) fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    /// What the clouds cost.
    pub(crate) fn spending(&self) -> &Spending {
        &self.spending
    }

    /// The condition of the disk cache, if one is configured.
    pub(crate) fn cache_report(&self) -> Option<CacheReport> {
        self.disk_cache.report()
    }

    /// Brings a part of a file into the disk cache.
    pub(crate) async fn warm(&self, inode: u64, offset: u64, length: u64) -> WarmedPiece {
        let range = offset..offset.saturating_add(length);
        match self.file_system.warm(InodeId(inode), range).await {
            Ok(warmed) => WarmedPiece::Done {
                present: warmed.present,
                brought: warmed.brought,
                refused: warmed.refused,
            },
            Err(error) => WarmedPiece::Failed {
                message: error.to_string(),
            },
        }
    }

    /// Stores what the servers have shown for the next command.
    fn keep_shown(&self) {
        self.shown.keep(Shown {
            sequence: self.client.shown(),
            epoch: self.volume.current_epoch().unwrap_or_default(),
            allocation: self.metadata.newest_allocation(),
        });
    }

    /// Stores the membership whenever it changes, and what the servers have shown; and follows
    /// changes of the volume's clouds.
    pub(crate) async fn remember(&self) {
        let mut known = self.client.membership().epoch;
        loop {
            tokio::time::sleep(REMEMBERED_EVERY).await;
            let membership = self.client.membership();
            if membership.epoch > known {
                known = membership.epoch;
                self.memory.keep(&membership);
            }
            self.keep_shown();
            if let Err(failure) = self.follow_people().await {
                tracing::warn!(%failure, "changes of the volume's people could not be followed");
            }
            if let Err(failure) = self.follow_clouds().await {
                tracing::warn!(%failure, "changes of the volume's clouds could not be followed");
            }
        }
    }

    /// Commits pending data, lets shards that are on their way arrive, and ends the session.
    pub(crate) async fn close(&self) -> CommandResult<()> {
        self.memory.keep(&self.client.membership());
        let synced = self.file_system.sync_all().await;
        if self.blocks.status().counters.objects_written > 0 {
            let drained = self.blocks.drain(DRAIN_WITHIN).await;
            if !drained.is_complete() {
                tracing::info!(
                    lacking = drained.lacking,
                    "some objects are not on all clouds yet"
                );
            }
        }
        // Observed faults are reported, if that can be done quickly.
        let reported = tokio::time::timeout(REPORTED_WITHIN, self.blocks.testify()).await;
        if reported.is_err() {
            tracing::info!("faults of clouds are not reported; they will be found again");
        }
        // What could not be committed is tried once more, and the mount keeps its locks until then:
        // they end with the session.
        let gives_back = synced.is_ok() && !self.metadata.is_fenced();
        if matches!(self.access, Access::Mount { .. }) && gives_back {
            match self.metadata.unmount().await {
                Ok(()) => self.held.forget(),
                Err(error) => tracing::warn!(%error, "the mount was not given back"),
            }
        }
        let ended = self.file_system.shutdown().await;
        self.keep_shown();
        self.spending.keep();
        self.blocks.shutdown();
        self.disk_cache.close().await;
        synced.and(ended).map_err(|error| vfs_failure(&error))
    }
}
