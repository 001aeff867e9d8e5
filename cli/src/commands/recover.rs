//! `volume recover`: makes an owner's state directory from the recovery kit, on a machine that
//! never had one.
//!
//! The kit has the genesis, the principal `recovery`, which may do all that the owner may (the
//! membership of the cluster too), and the places of the clouds. The providers issue credentials of
//! the clouds again; the replicas are asked in the usual way. So the result is a state directory
//! like that of `volume create`, for another principal. This command asks no server: `status` shows
//! which ones answer.
//!
//! If all replicas are lost, the metadata come from a backup on the clouds, and new replicas take
//! them over ([`anew`]).

mod anew;

use super::key;
use super::volume::{new_passphrase, refuse_what_is_there};
use crate::arguments::{General, VolumeRecoverArguments};
use crate::configuration::files::{CONFIGURATION, GENESIS, HEADING, KEY};
use crate::configuration::{
    self, CloudSection, ReplicaSection, VolumeConfiguration, VolumeSection,
};
use crate::directory::{self, StateDirectory};
use crate::exit::Exit;
use crate::explain::{key_failure, volume_failure};
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use crate::values::{apply_values, cloud, credentials_file, named, refuse_other_clouds, replica};
use quorumfs_gateway::keys::{KeyFile, RecoveryKit};
use quorumfs_gateway::volume::Volume;
use quorumfs_metadata::genesis::Genesis;
use serde::Serialize;
use std::fs::File;
use std::io::{Read, stdin};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// More than the length of any kit.
const KIT_BYTES_MAX: u64 = 4 << 20;

#[derive(Serialize)]
struct Recovered {
    volume: String,
    #[serde(serialize_with = "crate::output::paths::serialize")]
    state: PathBuf,
    clouds: Vec<String>,
}

/// Recovers what the arguments ask for.
pub(crate) async fn run(
    general: &General,
    arguments: &VolumeRecoverArguments,
    output: Output,
) -> CommandResult {
    let kit = read(&arguments.kit)?;
    let kit = RecoveryKit::from_text(&kit).map_err(|error| key_failure(&error))?;
    if arguments.new_replicas.is_empty() {
        return make_directory(general, arguments, &kit, output);
    }
    anew::run(general, arguments, &kit, output).await
}

/// The key in the kit.
fn kit_key(kit: &RecoveryKit) -> KeyFile {
    KeyFile {
        root: kit.root.public(),
        principal: kit.recovery.clone(),
    }
}

/// Makes the directory.
fn make_directory(
    general: &General,
    arguments: &VolumeRecoverArguments,
    kit: &RecoveryKit,
    output: Output,
) -> CommandResult {
    let key = kit_key(kit);
    let volume = Volume::open(&kit.genesis, &key).map_err(|error| volume_failure(&error))?;
    let section = VolumeSection {
        genesis: GENESIS.into(),
        key: KEY.into(),
    };
    let replicas = replicas(volume.genesis(), &arguments.replicas)?;
    let state = StateDirectory::find(general.state.as_deref(), "volume")?;
    let clouds = clouds(&state, volume.genesis(), kit, arguments)?;
    let value = VolumeConfiguration::usual(section, replicas, clouds);
    let passphrase = arguments.protect.then(new_passphrase).transpose()?;
    state.create()?;
    refuse_what_is_there(&state)?;
    directory::replace(&state.join(GENESIS), &kit.genesis)?;
    let saved = match &passphrase {
        None => key.save(&state.join(KEY)),
        Some(passphrase) => key::seal(&key, passphrase)?.save(&state.join(KEY)),
    };
    saved.map_err(|error| key_failure(&error))?;
    configuration::write(&state.join(CONFIGURATION), &value, HEADING)?;
    let recovered = Recovered {
        volume: volume.id().to_string(),
        state: state.path().to_path_buf(),
        clouds: value.cloud.into_iter().map(|it| it.name).collect(),
    };
    let named = general.state.as_ref().map_or(String::new(), |_| {
        format!(" --state {}", recovered.state.display())
    });
    output.record("recovered", &recovered, |recovered| {
        format!(
            "Made the state directory {} of volume {}.\n\
             Next:\n  \
             1. Put the kit away again. The key in this directory has the same rights.\n  \
             2. Give the clouds {} credentials, where they need some (docs/CLOUDS.md).\n  \
             3. quorumfs status{named}\n\
             If all replicas are lost, the same command with --new-replica brings the metadata\n\
             back from their newest backup on the clouds.",
            recovered.state.display(),
            recovered.volume,
            recovered.clouds.join(", "),
        )
    })?;
    Ok(Exit::Success)
}

pub(super) fn read(path: &Path) -> CommandResult<Zeroizing<String>> {
    let mut text = Zeroizing::new(String::new());
    let read = if path == Path::new("-") {
        stdin().take(KIT_BYTES_MAX).read_to_string(&mut text)
    } else {
        File::open(path).and_then(|file| file.take(KIT_BYTES_MAX).read_to_string(&mut text))
    };
    read.map_err(|error| Failure::file("read the recovery kit", path, &error))?;
    Ok(text)
}

/// The replicas of the genesis, each at its current address.
fn replicas(genesis: &Genesis, moved: &[String]) -> CommandResult<Vec<ReplicaSection>> {
    let moved: Vec<_> = moved
        .iter()
        .map(|it| replica(it))
        .collect::<CommandResult<_>>()?;
    let mut sections = Vec::new();
    for first in &genesis.replicas {
        let key = first.key.to_string();
        let now = moved.iter().find(|it| it.key == key);
        let section = match now {
            Some(now) => now.clone(),
            None => replica(&format!("{key}@{}", first.address))?,
        };
        sections.push(section);
    }
    let stranger = |it: &&ReplicaSection| !sections.iter().any(|known| known.key == it.key);
    if let Some(stranger) = moved.iter().find(stranger) {
        let message = format!("the volume did not begin with the replica {}", stranger.key);
        return Err(Failure::new(Exit::Usage, message)
            .hint("leave it out: the other replicas lead to those that joined later"));
    }
    Ok(sections)
}

/// The clouds of the genesis and those that were added, each at its place by the kit or the command
/// line.
fn clouds(
    state: &StateDirectory,
    genesis: &Genesis,
    kit: &RecoveryKit,
    arguments: &VolumeRecoverArguments,
) -> CommandResult<Vec<CloudSection>> {
    let moved: Vec<_> = arguments
        .clouds
        .iter()
        .map(|it| named(it))
        .collect::<CommandResult<_>>()?;
    let mut sections = Vec::new();
    let founding = genesis.clouds.iter().map(|cloud| (cloud, None));
    let added = kit.changed.iter().flat_map(|changed| &changed.added);
    let added = added.map(|(cloud, _)| (cloud, Some(cloud.index.0)));
    for (first, index) in founding.chain(added) {
        let moved = moved.iter().find(|it| it.name == first.name).cloned();
        let printed = || {
            let place = kit.clouds.iter().find(|(name, _)| *name == first.name);
            place.map(|(name, location)| cloud(name, location))
        };
        let mut section = moved.or_else(printed).ok_or_else(|| {
            let message = format!("the kit does not say where the cloud `{}` is", first.name);
            Failure::new(Exit::Usage, message).hint("give its place with --cloud NAME=LOCATION")
        })?;
        section.index = index;
        section.domain = Some(first.failure_domain.clone());
        sections.push(section);
    }
    refuse_other_clouds(&moved, &sections)?;
    let option = "--cloud-credentials";
    apply_values(
        &mut sections,
        option,
        &arguments.cloud_credentials,
        |cloud, path| {
            cloud.credentials = Some(credentials_file(state, path)?);
            Ok(())
        },
    )?;
    apply_values(
        &mut sections,
        "--collector-credentials",
        &arguments.collector_credentials,
        |cloud, path| {
            cloud.collector_credentials = Some(credentials_file(state, path)?);
            Ok(())
        },
    )?;
    Ok(sections)
}
