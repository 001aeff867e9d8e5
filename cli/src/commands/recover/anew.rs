//! `volume recover --new-replica`: the volume goes on after all of its replicas are lost.
//!
//! ```text
//! 1 the newest backup on the clouds, its rows proved and spooled in the state directory
//! 2 a genesis of the next incarnation, for the new replicas; a record of it on the clouds
//! 3 the new replicas are started, with that genesis, by an operator
//! 4 the rows are loaded; then the volume is in use again
//! ```
//!
//! The command goes on where it was stopped: the spool is complete or not there, the genesis is
//! made once, and the replicas know which rows they have.

use super::{clouds, kit_key};
use crate::arguments::{General, VolumeRecoverArguments};
use crate::clouds::{NamedCloud, named};
use crate::commands::opened::Configured;
use crate::commands::volume::{new_passphrase, refuse_what_is_there};
use crate::commands::{key, shown};
use crate::configuration::files::{CONFIGURATION, GENESIS, HEADING, KEY};
use crate::configuration::{self, LimitsSection, VolumeConfiguration, VolumeSection};
use crate::directory::{self, StateDirectory};
use crate::exit::Exit;
use crate::explain::{block_failure, key_failure, recovery_failure, volume_failure};
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use crate::stop::Stop;
use crate::values::{public_key, replica};
use quorumfs_bft::identity::{ReplicaId, Time};
use quorumfs_bft_runtime::client::Client;
use quorumfs_gateway::backup::{
    RecoveryPoint, Spool, begin_incarnation, clouds_alone, find_points, load_rows,
    next_incarnation, spool_rows,
};
use quorumfs_gateway::blocks::{BlockStore, Cloud};
use quorumfs_gateway::keys::{KeyFile, RecoveryKit};
use quorumfs_gateway::metadata::{MetadataClient, Ordered};
use quorumfs_gateway::volume::{NewServers, Volume, recovered_genesis};
use quorumfs_metadata::row::ReplicaInfo;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// The proved rows, in the state directory, until they are loaded.
const SPOOL: &str = "recovery.rows";
/// How many points are tried.
const POINTS_MAX: usize = 8;
/// The interval of progress lines.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// The pause between two tries to reach the new replicas.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct FoundLine {
    incarnation: u8,
    sequence: u64,
    seconds: u64,
    rows: u64,
    /// Clouds that could not be asked.
    failures: Vec<String>,
}

#[derive(Serialize)]
struct ProgressLine {
    rows: u64,
    /// `read` or `loaded`.
    done: &'static str,
}

#[derive(Serialize)]
struct PreparedLine {
    volume: String,
    incarnation: u8,
    #[serde(serialize_with = "crate::output::paths::serialize")]
    genesis: PathBuf,
}

#[derive(Serialize)]
struct RecoveredLine {
    volume: String,
    incarnation: u8,
    rows: u64,
    #[serde(serialize_with = "crate::output::paths::serialize")]
    state: PathBuf,
}

/// Says from time to time how many rows are done.
fn progress(done: &'static str, output: Output) -> impl Fn(u64) + Sync {
    let last = Mutex::new(Instant::now());
    move |rows| {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.elapsed() >= PROGRESS_EVERY {
            *last = Instant::now();
            let line = ProgressLine { rows, done };
            output.announce("progress", &line, |line| {
                format!("{} rows {} so far", line.rows, line.done)
            });
        }
    }
}

/// Recovers the volume.
pub(super) async fn run(
    general: &General,
    arguments: &VolumeRecoverArguments,
    kit: &RecoveryKit,
    output: Output,
) -> CommandResult {
    let state = StateDirectory::find(general.state.as_deref(), "volume")?;
    let spool = Spool::at(state.join(SPOOL));
    let mut stop = Stop::of_a_command()?;
    let work = async {
        if !(spool.exists() && state.join(CONFIGURATION).exists()) {
            prepare(&state, arguments, kit, &spool, output).await?;
        }
        load(general, &state, arguments, &spool, output).await
    };
    tokio::select! {
        done = work => done,
        () = stop.wanted() => Err(Failure::new(Exit::Cancelled, "stopped")
            .hint("the same command goes on where this one stopped")),
    }
}

/// Everything up to the start of the new replicas.
async fn prepare(
    state: &StateDirectory,
    arguments: &VolumeRecoverArguments,
    kit: &RecoveryKit,
    spool: &Spool,
    output: Output,
) -> CommandResult<()> {
    let key = kit_key(kit);
    let volume = Volume::open(&kit.genesis, &key).map_err(|error| volume_failure(&error))?;
    let sections = clouds(state, volume.genesis(), kit, arguments)?;
    let passphrase = arguments.protect.then(new_passphrase).transpose()?;
    state.create()?;
    refuse_what_is_there(state)?;
    let places = named(
        &sections,
        &LimitsSection::default(),
        state.path(),
        volume.id(),
    )?;
    let blocks = open(&volume, kit, &places).await?;
    let prepared = async {
        let (point, was) = newest(&blocks, &key, spool, output).await?;
        let store = blocks.backups();
        let incarnation = next_incarnation(&store, &kit.root, point.incarnation).await;
        let incarnation = incarnation.map_err(|error| recovery_failure(&error))?;
        let by = kit.recovery.id().signing;
        let servers = servers(arguments)?;
        let genesis = recovered_genesis(&kit.root, was.genesis(), incarnation, by, servers);
        let genesis = genesis.map_err(|error| volume_failure(&error))?;
        let begun = begin_incarnation(&store, &kit.root, incarnation, &genesis).await;
        begun.map_err(|error| recovery_failure(&error))?;
        Ok((incarnation, genesis))
    };
    let prepared = prepared.await;
    blocks.shutdown();
    let (incarnation, genesis) = prepared?;
    directory::replace(&state.join(GENESIS), &genesis)?;
    let saved = match &passphrase {
        None => key.save(&state.join(KEY)),
        Some(passphrase) => key::seal(&key, passphrase)?.save(&state.join(KEY)),
    };
    saved.map_err(|error| key_failure(&error))?;
    let section = VolumeSection {
        genesis: GENESIS.into(),
        key: KEY.into(),
    };
    let replicas = arguments.new_replicas.iter().map(|text| replica(text));
    let replicas = replicas.collect::<CommandResult<_>>()?;
    let value = VolumeConfiguration::usual(section, replicas, sections);
    configuration::write(&state.join(CONFIGURATION), &value, HEADING)?;
    let line = PreparedLine {
        volume: volume.id().to_string(),
        incarnation: incarnation.0,
        genesis: state.join(GENESIS),
    };
    output.record("prepared", &line, |line| {
        format!(
            "Incarnation {} of volume {} begins. Give every new replica {} and start it, with the \
             --state that it has:\n  quorumfs replica run --genesis {}\n\
             This command waits for them and then loads the metadata.",
            line.incarnation,
            line.volume,
            line.genesis.display(),
            line.genesis.display(),
        )
    })
}

/// The clouds that the kit knows, opened without servers.
async fn open(
    volume: &Volume,
    kit: &RecoveryKit,
    places: &[NamedCloud],
) -> CommandResult<BlockStore> {
    let mut clouds = Vec::new();
    let added = kit.changed.iter().flat_map(|changed| &changed.added);
    let known = volume.clouds().chain(added.map(|(cloud, it)| (cloud, it)));
    for ((cloud, secret), place) in known.zip(places) {
        clouds.push(Cloud {
            index: cloud.index,
            store: place.store_to_collect().await,
            secret: secret.clone(),
            read_price: 0,
        });
    }
    let fleet = kit.changed.as_ref().map(|changed| changed.fleet.clone());
    clouds_alone(volume, &clouds, fleet).map_err(|error| block_failure(&error))
}

/// The newest point whose rows are proved, in the spool.
async fn newest(
    blocks: &BlockStore,
    key: &KeyFile,
    spool: &Spool,
    output: Output,
) -> CommandResult<(RecoveryPoint, Volume)> {
    let found = find_points(blocks, key, POINTS_MAX).await;
    let found = found.map_err(|error| recovery_failure(&error))?;
    for (point, error) in &found.unopened {
        tracing::warn!(%point, %error, "a recovery point does not open; an older one is tried");
    }
    let mut last = None;
    for point in found.points {
        match spool_rows(blocks, &point, spool, &progress("read", output)).await {
            Ok(rows) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                let taken = Duration::from_nanos(point.0.taken.0);
                let line = FoundLine {
                    incarnation: point.0.incarnation.0,
                    sequence: point.0.sequence.0,
                    seconds: now.unwrap_or_default().saturating_sub(taken).as_secs(),
                    rows,
                    failures: found.failures,
                };
                output.record("found", &line, |line| {
                    let failures = line.failures.iter();
                    let failures = failures.map(|it| format!("Note: not asked: {it}.\n"));
                    format!(
                        "{}Found a backup of {} s ago, as of operation {}: {} rows, all proved.",
                        failures.collect::<String>(),
                        line.seconds,
                        line.sequence,
                        line.rows
                    )
                })?;
                return Ok(point);
            }
            Err(error) => {
                let sequence = point.0.sequence;
                tracing::warn!(%sequence, %error, "a backup cannot be used; an older one is tried");
                last.get_or_insert(error);
            }
        }
    }
    let failure = last.map(|error| recovery_failure(&error));
    Err(failure.unwrap_or_else(|| Failure::new(Exit::Error, "there is no backup")))
}

fn servers(arguments: &VolumeRecoverArguments) -> CommandResult<NewServers> {
    let replicas = (0..).zip(&arguments.new_replicas).map(|(number, text)| {
        let section = replica(text)?;
        Ok(ReplicaInfo {
            id: ReplicaId(number),
            key: public_key(&section.key)?,
            address: section.address.to_string(),
        })
    });
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Ok(NewServers {
        up: arguments.failures,
        right: arguments.liars,
        replicas: replicas.collect::<CommandResult<_>>()?,
        created: Time(u64::try_from(now.as_nanos()).unwrap_or_default()),
    })
}

/// Loads the rows into the new replicas, once they run.
async fn load(
    general: &General,
    state: &StateDirectory,
    arguments: &VolumeRecoverArguments,
    spool: &Spool,
    output: Output,
) -> CommandResult {
    let configured = Configured::read(general)?;
    let client = reach(&configured, arguments.wait).await?;
    let volume = configured.volume();
    let session = Arc::new(Ordered::new(client.clone()));
    let metadata = MetadataClient::new(session, volume.own_credentials());
    let loaded = load_rows(&metadata, spool, &progress("loaded", output)).await;
    metadata.close().await;
    let loaded = loaded.map_err(|error| recovery_failure(&error))?;
    // The new servers count their operations anew.
    configured.shown_before().keep(shown::Shown {
        sequence: client.shown(),
        ..shown::Shown::default()
    });
    spool.remove().map_err(|error| recovery_failure(&error))?;
    let line = RecoveredLine {
        volume: volume.id().to_string(),
        incarnation: volume.genesis().incarnation.0,
        rows: loaded.rows,
        state: state.path().to_path_buf(),
    };
    output.record("recovered", &line, |line| {
        format!(
            "Recovered volume {} as incarnation {}: {} rows loaded.\n\
             Next:\n  \
             1. quorumfs status --state {}\n  \
             2. Put the kit away again. The key in this directory has the same rights.\n  \
             3. On every other machine, replace the genesis and the replicas in quorumfs.toml by \
             this\n     directory's; what was written there and not committed is lost.",
            line.volume,
            line.incarnation,
            line.rows,
            line.state.display(),
        )
    })?;
    Ok(Exit::Success)
}

/// A session with the new replicas, as soon as enough of them run.
async fn reach(configured: &Configured, patience: Duration) -> CommandResult<Client> {
    let deadline = Instant::now() + patience;
    loop {
        match configured.connect().await {
            Ok(client) => return Ok(client),
            Err(failure)
                if failure.exit == Exit::QuorumUnreachable && Instant::now() < deadline =>
            {
                tokio::time::sleep(PAUSE).await;
            }
            Err(failure) => return Err(failure),
        }
    }
}
