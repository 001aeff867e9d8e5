//! `quorumfs replica init` and `replica run`: one metadata server.
//!
//! `init` makes a key and prints its public half, for `volume create`. `run` takes the volume's
//! genesis at its first start, stores it, and refuses any other afterwards: a replica's state
//! belongs to one cluster.

use crate::arguments::{General, ReplicaInitArguments, ReplicaRunArguments};
use crate::configuration::{self, DurabilitySetting, ReplicaConfiguration, VERSION};
use crate::directory::{self, StateDirectory};
use crate::exit::Exit;
use crate::explain::{key_file_failure, volume_failure};
use crate::failure::{CommandResult, Failure};
use crate::notify;
use crate::output::Output;
use crate::stop::Stop;
use crate::values::{place, public_key};
use quorumfs_bft::identity::{PublicKey, ReplicaId};
use quorumfs_bft::state::StateError;
use quorumfs_bft_runtime::client::Member;
use quorumfs_bft_runtime::disk::DiskError;
use quorumfs_bft_runtime::event_loop::Ending;
use quorumfs_bft_runtime::keys::{KeyError, NodeKey};
use quorumfs_bft_runtime::server::{
    RecordingConfig, ReplicaConfig, ReplicaServer, ServerError, first_incarnation,
};
use quorumfs_gateway::volume::VolumeError;
use quorumfs_metadata::Metadata;
use quorumfs_metadata::genesis::{Genesis, SignedGenesis};
use serde::Serialize;
use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// The configuration's file.
pub(crate) const CONFIGURATION: &str = "replica.toml";
/// The first lines of the configuration.
pub(crate) const HEADING: &str = "A metadata replica of quorumfs.\n\
    Paths are relative to this file. There are no secrets in it.";
const KEY: &str = "replica.key";
const GENESIS: &str = "volume.genesis";
const DATA: &str = "data";
/// The name of the service in a recording, for its replay.
const SERVICE: &str = "metadata";

#[derive(Serialize)]
struct Initialised {
    key: String,
    listen: SocketAddr,
    /// The address at which others reach it.
    address: String,
    /// The id of the disk, if it was made anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    incarnation: Option<String>,
    #[serde(skip)]
    again: bool,
}

/// Prepares a replica.
pub(crate) fn init(
    general: &General,
    arguments: &ReplicaInitArguments,
    output: Output,
) -> CommandResult {
    let state = StateDirectory::find(general.state.as_deref(), "replica")?;
    let reached = arguments.address.as_deref().map(place).transpose()?;
    let mut record = match arguments.listen {
        Some(listen) if !arguments.again => {
            if reached.is_none() && listen.ip().is_unspecified() {
                let message = format!(
                    "{listen} is only for listening: others cannot reach the replica there"
                );
                return Err(
                    Failure::new(Exit::Usage, message).hint("give theirs: --address HOST:PORT")
                );
            }
            Initialised {
                key: initialise(&state, listen)?.to_string(),
                listen,
                address: listen.to_string(),
                incarnation: None,
                again: false,
            }
        }
        listen => initialise_again(&state, listen)?,
    };
    if let Some(reached) = reached {
        record.address = reached.to_string();
    }
    output.record("replica", &record, |record| {
        let (place, key, address) = (state.path().display(), &record.key, &record.address);
        match &record.incarnation {
            None if arguments.quiet => format!("{key}@{address}"),
            None if record.again => format!(
                "Wrote {CONFIGURATION} in {place} again; key and disk are there. Start the replica \
                 as usual."
            ),
            None => format!(
                "Prepared a replica in {place}.\n\n  \
                   quorumfs volume create  --replica {key}@{address}\n  \
                   quorumfs cluster add    {key}@{address}"
            ),
            Some(incarnation) => format!(
                "Made another disk for the replica in {place}. Start it as usual: it asks the \
                 others to admit it again.\nIf it is not a member yet: quorumfs cluster \
                 add {key}@{address} --incarnation {incarnation}"
            ),
        }
    })?;
    Ok(Exit::Success)
}

/// Makes another disk for a replica that has lost its own. It does not vote until the others have
/// admitted it again, since it has lost the record of its promises. If the configuration is lost,
/// or was never written, the key and the address are enough to write it.
fn initialise_again(
    state: &StateDirectory,
    listen: Option<SocketAddr>,
) -> CommandResult<Initialised> {
    let path = state.join(CONFIGURATION);
    let (configuration, lost) = match (path.exists(), listen) {
        (false, Some(listen)) => (first_configuration(listen), true),
        (false, None) if state.join(KEY).exists() => {
            let message = format!(
                "there is a key in {}, and no {CONFIGURATION}",
                state.path().display()
            );
            return Err(Failure::new(Exit::NoVolume, message)
                .hint("give the address at which it listens: --listen ADDRESS:PORT"));
        }
        _ => (configuration::read(&path, "replica")?, false),
    };
    if listen.is_some_and(|listen| listen != configuration.listen) {
        let message = format!(
            "the address in {} is {}",
            path.display(),
            configuration.listen
        );
        return Err(Failure::new(Exit::Usage, message)
            .hint("leave --listen out, or change it there; nothing was changed"));
    }
    let key = state.join(&configuration.key);
    let key = NodeKey::load(&key).map_err(|error| key_failure(&error))?;
    let _lock = state.lock("replica")?;
    let made = ReplicaServer::initialise(&state.join(DATA));
    let incarnation = match made {
        Ok(incarnation) => Some(incarnation.to_string()),
        Err(ServerError::Disk(DiskError::AlreadyInitialised { .. })) if lost => None,
        Err(ServerError::Disk(DiskError::AlreadyInitialised { path })) => {
            let message = format!("there is a disk already in {}", path.display());
            return Err(Failure::new(Exit::Held, message)
                .hint("nothing was changed; if it is damaged beyond use, move it away first"));
        }
        Err(other) => return Err(server_failure(&other)),
    };
    if lost {
        configuration::write(&path, &configuration, HEADING)?;
    }
    Ok(Initialised {
        key: key.public().to_string(),
        listen: configuration.listen,
        address: match configuration.listen.ip().is_unspecified() {
            true => format!("HOST:{}", configuration.listen.port()),
            false => configuration.listen.to_string(),
        },
        incarnation,
        again: true,
    })
}

fn first_configuration(listen: SocketAddr) -> ReplicaConfiguration {
    ReplicaConfiguration {
        version: VERSION,
        listen,
        key: KEY.into(),
        free_space_floor_mib: configuration::replica_floor(),
        durability: DurabilitySetting::Strict,
        replica: Vec::new(),
    }
}

/// Makes a replica's key and configuration.
pub(crate) fn initialise(state: &StateDirectory, listen: SocketAddr) -> CommandResult<PublicKey> {
    state.create()?;
    let (configuration, path) = (state.join(CONFIGURATION), state.join(KEY));
    if configuration.exists() || path.exists() {
        let message = format!("there is a replica already in {}", state.path().display());
        return Err(Failure::new(Exit::Held, message).hint(
            "nothing was changed; --again makes another disk for it if its own is lost; \
                 --state DIR makes another replica",
        ));
    }
    let key = NodeKey::generate().map_err(|error| key_failure(&error))?;
    key.store(&path).map_err(|error| key_failure(&error))?;
    // Only now: a replica whose data have vanished must not be taken for its former self.
    let first = first_incarnation(&key.public());
    let created = ReplicaServer::initialise_as(&state.join(DATA), first);
    created.map_err(|error| server_failure(&error))?;
    configuration::write(&configuration, &first_configuration(listen), HEADING)?;
    Ok(key.public())
}

fn key_failure(error: &KeyError) -> Failure {
    let exit = match error {
        KeyError::Io {
            doing,
            path,
            source,
        } => return key_file_failure(&format!("{doing} the key file"), path, source),
        KeyError::Randomness(_) => Exit::Error,
        KeyError::Exists { .. } => Exit::Held,
        _ => Exit::WrongKey,
    };
    Failure::new(exit, error.to_string())
}

#[derive(Serialize)]
struct Ready {
    /// Its number in the genesis; a replica that joined later has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    replica: Option<u16>,
    listen: SocketAddr,
    pid: u32,
}

/// Runs a replica until it is stopped, or its disk fails.
pub(crate) async fn run(
    general: &General,
    arguments: &ReplicaRunArguments,
    output: Output,
) -> CommandResult {
    let mut stop = Stop::of_a_daemon(arguments.supervised)?;
    let state = StateDirectory::find(general.state.as_deref(), "replica")?;
    let path = state.join(CONFIGURATION);
    let configuration: ReplicaConfiguration = configuration::read(&path, "replica")?;
    let _lock = state.lock("replica")?;
    let key =
        NodeKey::load(&state.join(&configuration.key)).map_err(|error| key_failure(&error))?;
    let (given, joins) = (arguments.genesis.as_deref(), arguments.join);
    let (bytes, genesis) = genesis(&state, given, key.public(), joins)?;
    let mut config = server_config(&state, &configuration, key, bytes, &genesis)?;
    config.recording = arguments.record.clone().map(|directory| RecordingConfig {
        directory,
        bytes_max: arguments.record_bytes,
        service: SERVICE.to_owned(),
    });
    let id = config.id;
    let started = ReplicaServer::start(config, Metadata).await;
    let handle = started.map_err(|error| server_failure(&error))?;
    let ready = Ready {
        replica: id.map(|id| id.0),
        listen: handle.address(),
        pid: std::process::id(),
    };
    output.announce("ready", &ready, |ready| match id {
        Some(id) => format!("This is replica {id}; it listens on {}.", ready.listen),
        None => format!(
            "It listens on {}. If it is not a member yet, `quorumfs cluster add` or \
             `replace` makes it one.",
            ready.listen
        ),
    });
    notify::ready(&format!("Listening on {}", ready.listen));
    let ending = tokio::select! {
        ending = handle.ended() => ending,
        () = stop.wanted() => {
            notify::stopping("Writing the rest to the disk");
            handle.shutdown().await
        }
    };
    match ending {
        Ending::Stopped => Ok(Exit::Success),
        Ending::Poisoned(reason) => Err(stopped(Exit::Error, &state, id, &reason)),
        Ending::DiskFull(reason) => Err(stopped(Exit::NoSpace, &state, id, &reason)),
        Ending::DuplicateProcess => {
            let reason = "another process with its key is connected to the others";
            Err(stopped(Exit::Held, &state, id, reason).hint(
                "no two processes may share a key: stop the other one (a copy of this directory, a \
                 replaced machine), then start this one again",
            ))
        }
    }
}

fn stopped(exit: Exit, state: &StateDirectory, id: Option<ReplicaId>, reason: &str) -> Failure {
    let name = id.map_or("the replica".to_owned(), |id| format!("replica {id}"));
    let place = state.path().display();
    Failure::new(exit, format!("{name} in {place} stopped: {reason}"))
        .hint("the others go on without it; mend the cause, then start it again")
}

fn server_config(
    state: &StateDirectory,
    configuration: &ReplicaConfiguration,
    key: NodeKey,
    bytes: Vec<u8>,
    genesis: &Genesis,
) -> CommandResult<ReplicaConfig> {
    let public = key.public();
    let me = genesis
        .replicas
        .iter()
        .find(|replica| replica.key == public);
    let id = me.map(|replica| replica.id);
    let mut replicas = Vec::new();
    for replica in &genesis.replicas {
        let moved = configuration
            .replica
            .iter()
            .find(|section| public_key(&section.key).ok() == Some(replica.key));
        let address = match moved {
            Some(section) => section.address.clone(),
            None => replica.address.parse().map_err(|_| {
                let (id, address) = (replica.id, &replica.address);
                let message = format!("the genesis gives replica {id} the address `{address}`");
                Failure::new(Exit::Usage, message)
                    .hint("give its HOST:PORT under [[replica]] in replica.toml")
            })?,
        };
        replicas.push(Member {
            id: replica.id,
            key: replica.key,
            incarnation: first_incarnation(&replica.key),
            address,
        });
    }
    let fault_model = genesis
        .fault_model()
        .map_err(|error| Failure::new(Exit::Damaged, format!("the genesis: {error}")))?;
    // The owner, and the principal of the recovery kit.
    let administer = genesis.principals.iter().filter(|it| it.rights.administer);
    Ok(ReplicaConfig {
        id,
        cluster: genesis.volume,
        fault_model,
        replicas,
        administrators: administer.map(|it| it.key).collect(),
        key: Arc::new(key),
        listen: Some(configuration.listen),
        directory: state.join(DATA),
        free_bytes_min: configuration.free_space_floor(),
        durability: configuration.durability.into(),
        genesis: bytes.into(),
        authentication: genesis.authentication(),
        recording: None,
    })
}

fn not_a_member(state: &StateDirectory) -> Failure {
    let message = format!(
        "the replica in {} is not one of those that this volume began with",
        state.path().display()
    );
    Failure::new(Exit::WrongCluster, message).hint(
        "use the genesis that was made with its key, or --join if `quorumfs cluster` will \
         add it to the others",
    )
}

/// A replica that cannot start.
fn server_failure(error: &ServerError) -> Failure {
    let exit = match error {
        ServerError::Configuration { .. } => Exit::Usage,
        ServerError::WrongKey { .. } => Exit::WrongKey,
        ServerError::Listen { .. } => Exit::Held,
        ServerError::State { source, .. } => state_exit(source),
        ServerError::Disk(error) => match error {
            DiskError::Full { .. } => Exit::NoSpace,
            DiskError::Locked { .. } | DiskError::AlreadyInitialised { .. } => Exit::Held,
            DiskError::NotInitialised { .. } => Exit::NoVolume,
            DiskError::Format { .. } => Exit::NewerFormat,
            DiskError::State(source) => state_exit(source),
            DiskError::Nameless { .. } => Exit::Damaged,
            _ => Exit::Error,
        },
        _ => Exit::Error,
    };
    let failure = Failure::new(exit, error.to_string());
    match error {
        ServerError::Disk(DiskError::Format { path, found, .. }) if is_no_format(found) => {
            damaged_format(path)
        }
        ServerError::Disk(DiskError::NotInitialised { .. } | DiskError::Nameless { .. }) => {
            failure.hint("`quorumfs replica init --again` makes another disk for the same key")
        }
        _ => failure,
    }
}

/// Whether a format file does not hold the name of a format.
fn is_no_format(found: &str) -> bool {
    found.trim().parse::<u32>().is_err()
}

/// A format file that is empty or damaged: no release wrote that.
fn damaged_format(path: &Path) -> Failure {
    let shown = path.display();
    let message = match fs::metadata(path) {
        Ok(file) if file.len() == 0 => {
            format!("{shown} is empty, as a crash or a full disk may leave it")
        }
        _ => format!("{shown} is damaged: it does not name the disk's format"),
    };
    Failure::new(Exit::Damaged, message).hint(
        "move the data directory away; `quorumfs replica init --again` makes another disk for the \
         same key, with which the others admit it again",
    )
}

const fn state_exit(error: &StateError) -> Exit {
    match error {
        StateError::Newer { .. } | StateError::NewerJournal => Exit::NewerFormat,
        _ => Exit::Damaged,
    }
}

/// The genesis that this replica was started with before, or is started with now.
fn genesis(
    state: &StateDirectory,
    given: Option<&Path>,
    me: PublicKey,
    joins: bool,
) -> CommandResult<(Vec<u8>, Genesis)> {
    let path = state.join(GENESIS);
    let kept = match fs::read(&path) {
        Ok(bytes) => Some(bytes),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(Failure::file("read", &path, &error)),
    };
    let given = match given {
        Some(given) => Some(fs::read(given).map_err(|error| Failure::file("read", given, &error))?),
        None => None,
    };
    let decode = |bytes: &[u8]| {
        let decoded = SignedGenesis::from_bytes(bytes).map_err(VolumeError::from);
        decoded
            .map(|(_, genesis)| genesis)
            .map_err(|error| volume_failure(&error))
    };
    match (kept, given) {
        (Some(kept), Some(given)) if kept != given => {
            let message = format!(
                "the replica in {} belongs to another cluster than this genesis",
                state.path().display()
            );
            Err(Failure::new(Exit::WrongCluster, message)
                .hint("start it without --genesis, or use a fresh directory with --state"))
        }
        (Some(kept), _) => {
            let genesis = decode(&kept)?;
            Ok((kept, genesis))
        }
        (None, Some(given)) => {
            let genesis = decode(&given)?;
            // Not stored before it is known to be ours.
            let from_the_start = genesis.replicas.iter().any(|replica| replica.key == me);
            if !from_the_start && !joins {
                return Err(not_a_member(state));
            }
            directory::replace(&path, &given)?;
            Ok((given, genesis))
        }
        (None, None) => {
            let message = format!(
                "the replica in {} has no volume yet",
                state.path().display()
            );
            Err(Failure::new(Exit::NoVolume, message)
                .hint("start it once with --genesis FILE, which `quorumfs volume create` made"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_that_is_empty_or_damaged_is_no_other_releases() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("format");
        let failure_of = |found: &str, content: &str| {
            fs::write(&path, content).unwrap();
            server_failure(&ServerError::Disk(DiskError::Format {
                path: path.clone(),
                found: found.to_owned(),
                known: 1,
            }))
        };
        for (found, content, exit, says) in [
            ("unknown", "", Exit::Damaged, "is empty"),
            ("unknown", "?", Exit::Damaged, "is damaged"),
            ("2", "quorumfs disk 2", Exit::NewerFormat, "has format 2"),
        ] {
            let failure = failure_of(found, content);
            assert_eq!(failure.exit, exit);
            assert!(failure.message.contains(says), "{failure}");
        }
    }
}
