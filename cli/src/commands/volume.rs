//! `quorumfs volume create`: a volume's genesis, its first key, its recovery kit, its clouds.
//!
//! The results are in the state directory: the genesis (public, for every replica), the key of the
//! first principal, the configuration that opens the volume from here, and the recovery kit, which
//! belongs on paper. The configuration is written last: a directory that has one is complete.

use super::key;
use crate::arguments::{General, LockSetting, VolumeCreateArguments};
use crate::clouds::{self, NamedCloud};
use crate::configuration::files::{CONFIGURATION, GENESIS, HEADING, KEY, RECOVERY_KIT};
use crate::configuration::{
    self, CacheSection, CloudSection, DataSection, LimitsSection, ReplicaSection,
    VolumeConfiguration, VolumeSection,
};
use crate::directory::{self, StateDirectory};
use crate::exit::Exit;
use crate::explain::{block_failure, key_failure, store_failure, volume_failure};
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use crate::unlock::{self, Sources};
use crate::values::{apply_values, credentials_file, named, public_key, replica};
use quorumfs_backends::{Deadline, ObjectName, ObjectStore};
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::identity::{ReplicaId, Time};
use quorumfs_gateway::blocks::{Cloud, CloudKeys, Named, ShareStore};
use quorumfs_gateway::keys::Passphrase;
use quorumfs_gateway::volume::{Founding, NewCloud, NewVolume};
use quorumfs_metadata::genesis::TRASH_SECONDS;
use quorumfs_metadata::identity::{Gid, ObjectClass, ObjectId, ShardIndex, Uid};
use quorumfs_metadata::placement::Policy;
use quorumfs_metadata::row::{Assertable, ReplicaInfo};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The properties of a new volume.
#[derive(Debug, Clone)]
pub(crate) struct VolumePlan {
    replicas: Vec<ReplicaSection>,
    clouds: Vec<CloudSection>,
    failures: u16,
    liars: u16,
    authentication: Authentication,
    faulty_clouds: u8,
    data_shards: u8,
    lock: LockSetting,
    data: DataSection,
    cache: CacheSection,
    /// The passphrase for the key, if any.
    passphrase: Option<Passphrase>,
    /// The owner of the root directory.
    owner: (Uid, Gid),
    /// How long what is removed stays in the trash, in seconds.
    trash_seconds: u64,
}

impl VolumePlan {
    /// One replica and one cloud may be faulty; two shards rebuild the content.
    pub(crate) fn preset(replicas: Vec<ReplicaSection>, clouds: Vec<CloudSection>) -> Self {
        Self {
            replicas,
            clouds,
            failures: 1,
            liars: 1,
            authentication: Authentication::Sig,
            faulty_clouds: 1,
            data_shards: 2,
            lock: LockSetting::Clouds,
            data: DataSection::default(),
            // The demonstration has to read from the clouds.
            cache: CacheSection::none(),
            passphrase: None,
            owner: creator(),
            trash_seconds: TRASH_SECONDS,
        }
    }

    fn of(state: &StateDirectory, arguments: &VolumeCreateArguments) -> CommandResult<Self> {
        let clouds = arguments.clouds.iter().map(|text| named(text));
        let mut clouds: Vec<_> = clouds.collect::<CommandResult<_>>()?;
        let file = |path: &str| credentials_file(state, path);
        let (option, texts) = ("--cloud-credentials", &arguments.cloud_credentials);
        apply_values(&mut clouds, option, texts, |cloud, path| {
            cloud.credentials = Some(file(path)?);
            Ok(())
        })?;
        let (option, texts) = ("--reader-credentials", &arguments.reader_credentials);
        apply_values(&mut clouds, option, texts, |cloud, path| {
            cloud.reader_credentials = Some(file(path)?);
            Ok(())
        })?;
        let (option, texts) = ("--collector-credentials", &arguments.collector_credentials);
        apply_values(&mut clouds, option, texts, |cloud, path| {
            cloud.collector_credentials = Some(file(path)?);
            Ok(())
        })?;
        apply_values(
            &mut clouds,
            "--cloud-domain",
            &arguments.cloud_domains,
            |cloud, domain| {
                cloud.domain = Some(domain.to_string());
                Ok(())
            },
        )?;
        Ok(Self {
            replicas: arguments
                .replicas
                .iter()
                .map(|text| replica(text))
                .collect::<CommandResult<_>>()?,
            clouds,
            failures: arguments.failures,
            liars: arguments.liars,
            authentication: arguments.authentication.into(),
            faulty_clouds: arguments.faulty_clouds,
            data_shards: arguments.data_shards,
            lock: arguments.lock,
            data: DataSection {
                compression: arguments.compression,
                ..DataSection::default()
            },
            cache: CacheSection::default(),
            passphrase: arguments.protect.then(new_passphrase).transpose()?,
            owner: arguments.owner.unwrap_or_else(creator),
            trash_seconds: arguments.trash.seconds(),
        })
    }
}

/// The user who runs this.
fn creator() -> (Uid, Gid) {
    let uid = rustix::process::geteuid().as_raw();
    (Uid(uid), Gid(rustix::process::getegid().as_raw()))
}

/// The passphrase for the key of a new volume.
pub(super) fn new_passphrase() -> CommandResult<Passphrase> {
    let sources = Sources::here();
    if sources.are_automatic() {
        return Ok(sources.passphrase()?.0);
    }
    unlock::ask_twice()
}

/// The created volume.
#[derive(Debug, Serialize)]
pub(crate) struct Created {
    volume: String,
    #[serde(serialize_with = "crate::output::paths::serialize")]
    state: PathBuf,
    #[serde(serialize_with = "crate::output::paths::serialize")]
    genesis: PathBuf,
    #[serde(serialize_with = "crate::output::paths::serialize")]
    recovery_kit: PathBuf,
    /// Properties of the clouds' buckets that have consequences.
    notices: Vec<String>,
}

/// Runs the command.
pub(crate) async fn run(
    general: &General,
    arguments: &VolumeCreateArguments,
    output: Output,
) -> CommandResult {
    let state = StateDirectory::find(general.state.as_deref(), "volume")?;
    state.create()?;
    let created = create(&state, &VolumePlan::of(&state, arguments)?).await?;
    // Later commands need it unless it is the default.
    let named = general.state.as_ref().map_or(String::new(), |_| {
        format!(" --state {}", created.state.display())
    });
    output.record("volume", &created, |created| {
        let notices = created.notices.iter().map(|it| format!("Note: {it}.\n"));
        format!(
            "Created volume {}.\n{}\n\
             Next:\n  \
             1. Give every replica {} and start it, with the --state that it has:\n       \
             quorumfs replica run --genesis {}\n  \
             2. Print {}, keep it offline, delete it here.\n     \
             Without it or the key in {}, the volume can never be read.\n  \
             3. quorumfs mount{named} DIR",
            created.volume,
            notices.collect::<String>(),
            created.genesis.display(),
            created.genesis.display(),
            created.recovery_kit.display(),
            created.state.display(),
        )
    })?;
    Ok(Exit::Success)
}

/// The parts of a volume that were made so far. Clouds with the marker of a volume that does not
/// exist would refuse the next attempt for good, so a failure removes these parts.
#[derive(Debug, Default)]
struct Begun {
    files: Vec<PathBuf>,
    clouds: Vec<Arc<dyn ObjectStore>>,
    /// The shares that may have been put there, by cloud.
    shares: Vec<ObjectName>,
    notices: Vec<String>,
}

fn of_cloud(cloud: &NamedCloud, failure: Failure) -> Failure {
    let message = format!("cloud `{}`: {}", cloud.name, failure.message);
    Failure { message, ..failure }
}

/// Properties of the cloud's bucket that have consequences; nothing if it does not report them.
async fn notices(cloud: &NamedCloud) -> Vec<String> {
    let Ok(Some(store)) = cloud.attach_remote(clouds::Role::Writer).await else {
        return Vec::new();
    };
    let container = store.container(Deadline::after(FOUND_WITHIN)).await;
    let container = container.unwrap_or_default();
    let notice = |what: &str| format!("cloud `{}`: {what}", cloud.name);
    let mut notices = Vec::new();
    if container.locked == Some(true) {
        notices.push(notice(clouds::LOCKED));
    }
    if container.versioned == Some(true) {
        notices.push(notice(clouds::VERSIONED));
    }
    notices
}

impl Begun {
    /// Makes a cloud of a place that is empty or does not exist.
    async fn cloud(&mut self, cloud: &NamedCloud) -> CommandResult<()> {
        let store = cloud.attach_to_found().await?;
        let soon = Deadline::after(FOUND_WITHIN);
        store
            .found(soon)
            .await
            .map_err(|error| of_cloud(cloud, store_failure(&error)))?;
        self.clouds.push(store);
        self.notices.extend(notices(cloud).await);
        Ok(())
    }

    /// Makes the second lock: puts a share of a secret on each cloud.
    async fn lock(&mut self, founding: &mut Founding) -> CommandResult<()> {
        let mut clouds = Vec::new();
        for ((index, secret), store) in founding.clouds().zip(&self.clouds) {
            let named = Named {
                object: ObjectId::FOUNDING,
                class: ObjectClass::SHARE,
                shard: ShardIndex(index.0),
                attempt: 0,
                generation: 0,
            };
            let name = CloudKeys::derive(secret).name(&named);
            self.shares
                .push(name.map_err(|error| block_failure(&error))?);
            clouds.push(Cloud {
                index,
                store: Arc::clone(store),
                secret: secret.clone(),
                read_price: 0,
            });
        }
        let store = ShareStore::new(founding.volume(), founding.policy(), &clouds);
        let store = store.map_err(|error| block_failure(&error))?;
        let placed = founding.lock_with_clouds(&store).await;
        let placed = placed.map_err(|error| volume_failure(&error))?;
        for failure in placed.failures.0 {
            let what = "a cloud has no share of the volume's key yet, which `quorumfs scrub` mends";
            self.notices.push(format!("{what}: {failure}"));
        }
        Ok(())
    }

    async fn take_back(self) {
        for (cloud, share) in self.clouds.iter().zip(&self.shares) {
            // If it exists and cannot be deleted, neither can the marker, and that is logged.
            let _ = cloud.delete(share, Deadline::after(FOUND_WITHIN)).await;
        }
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
        for cloud in &self.clouds {
            if let Err(error) = cloud.give_back(Deadline::after(FOUND_WITHIN)).await {
                tracing::warn!(%error, "a cloud stays marked for a volume that was not created");
            }
        }
    }
}

/// How long making a cloud of a place may take.
const FOUND_WITHIN: Duration = Duration::from_secs(30);

/// An error if a state directory exists already, or has a file of one.
pub(super) fn refuse_what_is_there(state: &StateDirectory) -> CommandResult<()> {
    if state.join(CONFIGURATION).exists() {
        let message = format!("there is a volume already in {}", state.path().display());
        return Err(Failure::new(Exit::Held, message)
            .hint("nothing was changed; use another directory with --state"));
    }
    for path in [GENESIS, RECOVERY_KIT, KEY].map(|name| state.join(name)) {
        if path.exists() {
            let message = format!("{} exists already", path.display());
            return Err(Failure::new(Exit::Held, message)
                .hint("nothing was changed; move it away or name another directory with --state"));
        }
    }
    Ok(())
}

/// Creates a volume: the clouds first, the configuration last; all of it or nothing.
pub(crate) async fn create(state: &StateDirectory, plan: &VolumePlan) -> CommandResult<Created> {
    refuse_what_is_there(state)?;
    let mut begun = Begun::default();
    let made = make(state, plan, &mut begun).await;
    if made.is_err() {
        begun.take_back().await;
    }
    made
}

async fn make(
    state: &StateDirectory,
    plan: &VolumePlan,
    begun: &mut Begun,
) -> CommandResult<Created> {
    let new = plan.to_new_volume(state.path())?;
    let mut founding = Founding::begin(new).map_err(|error| volume_failure(&error))?;
    let volume = founding.volume();
    let limits = LimitsSection::default();
    for cloud in clouds::named(&plan.clouds, &limits, state.path(), volume)? {
        begun.cloud(&cloud).await?;
    }
    if plan.lock == LockSetting::Clouds {
        begun.lock(&mut founding).await?;
    }
    let created = founding.finish().map_err(|error| volume_failure(&error))?;
    let (genesis, kit, key) = (
        state.join(GENESIS),
        state.join(RECOVERY_KIT),
        state.join(KEY),
    );
    begun.files = vec![genesis.clone(), kit.clone(), key.clone()];
    directory::replace(&genesis, &created.genesis)?;
    let saved = match &plan.passphrase {
        None => created.owner.save(&key),
        Some(passphrase) => key::seal(&created.owner, passphrase)?.save(&key),
    };
    saved.map_err(|error| key_failure(&error))?;
    let mut page = created.recovery_kit;
    let places = plan.clouds.iter();
    page.clouds = places
        .map(|cloud| (cloud.name.clone(), cloud.location.clone()))
        .collect();
    directory::write_secret(&kit, page.to_text().as_bytes())?;
    let volume_section = VolumeSection {
        genesis: GENESIS.into(),
        key: KEY.into(),
    };
    let clouds = plan.clouds.iter().map(without_collector).collect();
    let value = VolumeConfiguration {
        data: plan.data,
        cache: plan.cache.clone(),
        ..VolumeConfiguration::usual(volume_section, plan.replicas.clone(), clouds)
    };
    configuration::write(&state.join(CONFIGURATION), &value, HEADING)?;
    Ok(Created {
        volume: volume.to_string(),
        state: state.path().to_path_buf(),
        genesis,
        recovery_kit: kit,
        notices: std::mem::take(&mut begun.notices),
    })
}

/// The credentials of a machine that mounts: it never deletes, and so has none that could.
fn without_collector(section: &CloudSection) -> CloudSection {
    CloudSection {
        collector_credentials: None,
        ..section.clone()
    }
}

impl VolumePlan {
    fn clouds_that_would_do(&self) -> String {
        let (faulty, data) = (self.faulty_clouds, self.data_shards);
        let least = usize::from(faulty) * 2 + usize::from(data);
        format!(
            "with {faulty} that may be faulty and {data} that rebuild the content, at least \
             {least} are needed: name more with --cloud, or choose other --faulty-clouds or \
             --data-shards"
        )
    }

    fn to_new_volume(&self, base: &Path) -> CommandResult<NewVolume> {
        let replicas = self.replicas.iter().enumerate().map(|(number, section)| {
            let number = u16::try_from(number).map_err(|_| too_many("replicas"))?;
            let address = section.address.to_string();
            Ok(ReplicaInfo {
                id: ReplicaId(number),
                key: public_key(&section.key)?,
                address,
            })
        });
        let mut clouds: Vec<NewCloud> = Vec::new();
        for section in &self.clouds {
            let location = clouds::location(section, base)?;
            let failure_domain = clouds::failure_domain(section, &location);
            if let Some(other) = clouds.iter().find(|it| it.failure_domain == failure_domain) {
                let message = format!(
                    "the clouds `{}` and `{}` fail together: both are {failure_domain}'s",
                    other.name, section.name
                );
                return Err(Failure::new(Exit::Usage, message).hint(
                    "choose a cloud of another provider; or, if you know better, state its failure \
                     domain with --cloud-domain NAME=WHO",
                ));
            }
            if clouds.iter().any(|it| it.name == section.name) {
                let message = format!("two clouds are called `{}`", section.name);
                return Err(Failure::new(Exit::Usage, message).hint("give each a name of its own"));
            }
            clouds.push(NewCloud {
                kind: location.kind().name().to_string(),
                failure_domain,
                name: section.name.clone(),
            });
        }
        let count = u8::try_from(self.clouds.len()).map_err(|_| too_many("clouds"))?;
        let policy =
            Policy::new(count, self.faulty_clouds, self.data_shards, count).map_err(|error| {
                Failure::new(
                    Exit::Usage,
                    format!("the clouds cannot work together: {error}"),
                )
                .hint(self.clouds_that_would_do())
            })?;
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Ok(NewVolume {
            up: self.failures,
            right: self.liars,
            replicas: replicas.collect::<CommandResult<_>>()?,
            clouds,
            policy,
            authentication: self.authentication,
            trash_seconds: self.trash_seconds,
            owner_label: "owner".to_string(),
            root_owner: self.owner,
            owner_uids: Assertable::Any,
            owner_gids: Assertable::Any,
            created: Time(u64::try_from(now.as_nanos()).unwrap_or_default()),
        })
    }
}

fn too_many(what: &str) -> Failure {
    Failure::new(Exit::Usage, format!("there are too many {what}"))
}
