//! `quorumfs volume create`: a volume's genesis, its first key, its recovery kit, its clouds.
//!
//! What comes out lies in the state directory: the genesis (public, for every replica), the key of
//! the first principal, the configuration that opens the volume from here, and the recovery kit,
//! which belongs on paper. The configuration is written last: a directory that has one is whole.

use super::explain::{key_failure, store_failure, volume_failure};
use crate::arguments::{General, VolumeCreateArguments};
use crate::configuration::{
    self, CloudSection, MountSection, ReplicaSection, VERSION, VolumeConfiguration, VolumeSection,
};
use crate::directory::{self, StateDirectory};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use quorumfs_backends::local::LocalStore;
use quorumfs_backends::marker::Marker;
use quorumfs_bft::identity::{PublicKey, ReplicaId, Time};
use quorumfs_gateway::volume::{self as gateway, NewCloud, NewVolume};
use quorumfs_metadata::identity::VolumeId;
use quorumfs_metadata::placement::Policy;
use quorumfs_metadata::row::{Assertable, ReplicaInfo};
use serde::Serialize;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The configuration's file.
pub(crate) const CONFIGURATION: &str = "quorumfs.toml";
/// The genesis' file.
pub(crate) const GENESIS: &str = "volume.genesis";
/// The first principal's key file.
pub(crate) const KEY: &str = "principal.key";
/// The recovery kit's file.
pub(crate) const RECOVERY_KIT: &str = "recovery-kit.txt";
/// What the configuration begins with.
pub(crate) const HEADING: &str = "A quorumfs volume, as it is opened from this machine.\n\
    Paths are relative to this file. There are no secrets in it.";

/// What a volume shall be.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    replicas: Vec<ReplicaSection>,
    clouds: Vec<CloudSection>,
    failures: u16,
    liars: u16,
    faulty_clouds: u8,
    data_shards: u8,
}

impl Plan {
    /// One replica and one cloud may be faulty; two shards give the content back.
    pub(crate) fn preset(replicas: Vec<ReplicaSection>, clouds: Vec<CloudSection>) -> Self {
        Self {
            replicas,
            clouds,
            failures: 1,
            liars: 1,
            faulty_clouds: 1,
            data_shards: 2,
        }
    }

    fn of(arguments: &VolumeCreateArguments) -> Outcome<Self> {
        Ok(Self {
            replicas: arguments
                .replicas
                .iter()
                .map(|text| replica(text))
                .collect::<Outcome<_>>()?,
            clouds: arguments
                .clouds
                .iter()
                .map(|text| named(text))
                .collect::<Outcome<_>>()?,
            failures: arguments.failures,
            liars: arguments.liars,
            faulty_clouds: arguments.faulty_clouds,
            data_shards: arguments.data_shards,
        })
    }
}

/// A cloud's part of the configuration.
pub(crate) fn cloud(name: &str, directory: &Path) -> CloudSection {
    CloudSection {
        name: name.to_string(),
        directory: directory.to_path_buf(),
    }
}

/// A replica's key and address, as people pass them on.
pub(crate) fn replica(text: &str) -> Outcome<ReplicaSection> {
    let wrong = || {
        Failure::new(Exit::Usage, format!("`{text}` is not KEY@ADDRESS:PORT"))
            .hint("`quorumfs replica init` printed it, like 4f…c2@192.0.2.7:7000")
    };
    let (key, address) = text.split_once('@').ok_or_else(wrong)?;
    let address: SocketAddr = address.parse().map_err(|_| wrong())?;
    Ok(ReplicaSection {
        address,
        key: key.to_string(),
    })
}

fn named(text: &str) -> Outcome<CloudSection> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            let path = std::path::absolute(path)
                .map_err(|error| Failure::file("use the cloud", path.as_ref(), &error))?;
            Ok(cloud(name, &path))
        }
        _ => Err(
            Failure::new(Exit::Usage, format!("`{text}` is not NAME=DIR"))
                .hint("name each cloud, like --cloud first=/mnt/first"),
        ),
    }
}

/// What was created.
#[derive(Debug, Serialize)]
pub(crate) struct Created {
    volume: String,
    state: PathBuf,
    genesis: PathBuf,
    recovery_kit: PathBuf,
}

/// Creates what the arguments say.
pub(crate) fn run(general: &General, arguments: &VolumeCreateArguments, output: Output) -> Outcome {
    let state = StateDirectory::find(general.state.as_deref(), "volume")?;
    state.create()?;
    let created = create(&state, &Plan::of(arguments)?)?;
    output.record("volume", &created, |created| {
        format!(
            "Created volume {}.\n\n\
             Next:\n  \
             1. Give every replica {} and start it:\n       \
             quorumfs replica run --genesis {}\n  \
             2. Print {}, keep it offline, delete it here.\n     \
             Without it or the key in {}, nobody can ever read the volume.\n  \
             3. quorumfs mount DIR",
            created.volume,
            created.genesis.display(),
            created.genesis.display(),
            created.recovery_kit.display(),
            created.state.display(),
        )
    })?;
    Ok(Exit::Success)
}

/// What was made so far of a volume; taken back when dropped, unless it was kept. Clouds that carry
/// the mark of a volume that does not exist would refuse the next attempt for good.
#[derive(Debug, Default)]
struct Begun {
    files: Vec<PathBuf>,
    clouds: Vec<PathBuf>,
}

impl Begun {
    /// Makes a cloud of a directory that is empty or not there; its content is ours then.
    fn cloud(&mut self, directory: &Path, marker: Marker) -> Outcome<()> {
        let empty = fs::read_dir(directory).map_or(true, |mut entries| entries.next().is_none());
        if empty {
            self.clouds.push(directory.to_path_buf());
        }
        LocalStore::create(directory, marker).map_err(|error| store_failure(&error))
    }

    fn keep(mut self) {
        self.files.clear();
        self.clouds.clear();
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
        for cloud in &self.clouds {
            for entry in fs::read_dir(cloud).into_iter().flatten().flatten() {
                let path = entry.path();
                let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
            }
        }
    }
}

/// Creates a volume: the clouds first, the configuration last; all of it or nothing.
pub(crate) fn create(state: &StateDirectory, plan: &Plan) -> Outcome<Created> {
    let configuration = state.join(CONFIGURATION);
    if configuration.exists() {
        let message = format!("there is a volume already in {}", state.path().display());
        return Err(Failure::new(Exit::Held, message)
            .hint("nothing was changed; use another directory with --state"));
    }
    let created = gateway::create(plan.to_new_volume()?).map_err(|error| volume_failure(&error))?;
    let volume = created.owner.volume();
    let (genesis, kit, key) = (
        state.join(GENESIS),
        state.join(RECOVERY_KIT),
        state.join(KEY),
    );
    for path in [&genesis, &kit, &key] {
        if path.exists() {
            let message = format!("{} is in the way", path.display());
            return Err(Failure::new(Exit::Held, message)
                .hint("nothing was changed; move it away or name another directory with --state"));
        }
    }
    let mut begun = Begun::default();
    for (index, cloud) in plan.clouds.iter().enumerate() {
        let index = u16::try_from(index).map_err(|_| too_many("clouds"))?;
        begun.cloud(&cloud.directory, marker(volume, index))?;
    }
    begun.files = vec![genesis.clone(), kit.clone(), key.clone()];
    directory::replace(&genesis, &created.genesis)?;
    created
        .owner
        .save(&key)
        .map_err(|error| key_failure(&error))?;
    directory::write_secret(&kit, created.recovery_kit.to_text().as_bytes())?;
    let value = VolumeConfiguration {
        version: VERSION,
        volume: VolumeSection {
            genesis: GENESIS.into(),
            key: KEY.into(),
        },
        mount: MountSection::default(),
        replica: plan.replicas.clone(),
        cloud: plan.clouds.clone(),
    };
    configuration::write(&configuration, &value, HEADING)?;
    begun.keep();
    Ok(Created {
        volume: volume.to_string(),
        state: state.path().to_path_buf(),
        genesis,
        recovery_kit: kit,
    })
}

impl Plan {
    fn clouds_that_would_do(&self) -> String {
        let (faulty, data) = (self.faulty_clouds, self.data_shards);
        let least = usize::from(faulty) * 2 + usize::from(data);
        format!(
            "with {faulty} that may be faulty and {data} that give the content back it takes at \
             least {least}: name more with --cloud, or choose other --faulty-clouds, --data-shards"
        )
    }

    fn to_new_volume(&self) -> Outcome<NewVolume> {
        let replicas = self.replicas.iter().enumerate().map(|(number, section)| {
            let number = u16::try_from(number).map_err(|_| too_many("replicas"))?;
            let address = section.address.to_string();
            Ok(ReplicaInfo {
                id: ReplicaId(number),
                key: public_key(&section.key)?,
                address,
            })
        });
        let clouds = self.clouds.iter().map(|cloud| NewCloud {
            kind: "local".to_string(),
            failure_domain: cloud.name.clone(),
            name: cloud.name.clone(),
        });
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
            replicas: replicas.collect::<Outcome<_>>()?,
            clouds: clouds.collect(),
            policy,
            owner_label: "owner".to_string(),
            owner_uids: Assertable::Any,
            owner_gids: Assertable::Any,
            created: Time(u64::try_from(now.as_nanos()).unwrap_or_default()),
        })
    }
}

/// The marker of a cloud of this volume.
pub(crate) fn marker(volume: VolumeId, cloud: u16) -> Marker {
    Marker {
        volume: volume.0,
        incarnation: 0,
        cloud,
    }
}

/// A replica's public key, as people pass it on.
pub(crate) fn public_key(digits: &str) -> Outcome<PublicKey> {
    digits.parse().map_err(|_| {
        Failure::new(
            Exit::Usage,
            format!("`{digits}` is not the public key of a replica"),
        )
        .hint("it is 64 hexadecimal digits; `quorumfs replica init` printed it")
    })
}

fn too_many(what: &str) -> Failure {
    Failure::new(Exit::Usage, format!("there are too many {what}"))
}
