//! The layout of the demo's state directory, and its creation at the first start.
//!
//! The demo sets itself up with the same functions as `replica init` and `volume create`; nothing
//! in it is only for show. A loopback port is chosen anew at a start if another process has taken
//! it: addresses are configuration, keys are identity.

use super::places::{self, DemoCloud};
use crate::arguments::DemoClouds;
use crate::commands::{replica, volume};
use crate::configuration::files;
use crate::configuration::{self, ReplicaConfiguration, ReplicaSection, VolumeConfiguration};
use crate::directory::{self, Lock, StateDirectory};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use quorumfs_backends::loopback::free_addresses;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

const REPLICAS: usize = 4;

/// The demo's state, ready to be started.
#[derive(Debug)]
pub(crate) struct Demo {
    /// The directory of everything, which is the volume's state directory too.
    pub(crate) state: StateDirectory,
    /// Its mount point.
    pub(crate) mount: PathBuf,
    /// The replicas' own directories.
    pub(crate) replicas: Vec<StateDirectory>,
    /// The clouds.
    pub(crate) clouds: Vec<DemoCloud>,
    /// Whether this start created it.
    pub(crate) is_new: bool,
    _lock: Lock,
}

impl Demo {
    /// Finds the demo in `state`, or makes it over such clouds; servers run when this returns.
    pub(crate) async fn open(
        state: &StateDirectory,
        mount: Option<&Path>,
        wanted: Option<DemoClouds>,
    ) -> CommandResult<Self> {
        state.create()?;
        let lock = state.lock_as("demo.lock", "demo")?;
        directory::create_private(&state.join("log"))?;
        let replicas = (0..REPLICAS)
            .map(|number| StateDirectory::find(Some(&state.join(format!("replicas/{number}"))), ""))
            .collect::<CommandResult<Vec<_>>>()?;
        let path = state.join(files::CONFIGURATION);
        let before: Option<VolumeConfiguration> = match path.exists() {
            true => Some(configuration::read(&path, "volume")?),
            false => None,
        };
        let known = before.as_ref().map(places::known);
        if let (Some(known), Some(wanted)) = (known, wanted)
            && known != wanted
        {
            let message = format!("the demo in {} has other clouds", state.path().display());
            return Err(Failure::new(Exit::Held, message)
                .hint("start it without --clouds, or make another one with --state"));
        }
        let kind = known.or(wanted).unwrap_or(DemoClouds::Directories);
        if before.is_none() {
            remove_remains(state)?;
        }
        let clouds = places::prepare(state, kind, before.as_ref()).await?;
        if before.is_none() {
            create(state, &replicas, &clouds).await?;
        }
        renew_addresses(state, &replicas, &clouds).await?;
        let mount = match mount {
            Some(mount) => mount.to_path_buf(),
            None => state.join("mnt"),
        };
        let mount = std::path::absolute(&mount)
            .map_err(|error| Failure::file("use the mount point", &mount, &error))?;
        if fs::symlink_metadata(&mount)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        {
            directory::create_private(&mount)?;
        }
        Ok(Self {
            state: state.clone(),
            mount,
            replicas,
            clouds,
            is_new: before.is_none(),
            _lock: lock,
        })
    }

    /// The volume's genesis.
    pub(crate) fn genesis(&self) -> PathBuf {
        self.state.join(files::GENESIS)
    }

    /// Ends the clouds' servers.
    pub(crate) async fn end(&self) {
        for cloud in &self.clouds {
            cloud.end().await;
        }
    }

    /// The path of a child's log.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.state.join(format!("log/{name}.log"))
    }
}

/// An interrupted attempt left no configuration of the volume, which is written last; its remains
/// are removed.
fn remove_remains(state: &StateDirectory) -> CommandResult<()> {
    for remains in [
        "replicas",
        files::KEY,
        files::GENESIS,
        files::RECOVERY_KIT,
        "clouds",
        "emulators",
    ] {
        let path = state.join(remains);
        let removed = if path.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        match removed {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Failure::file("remove", &path, &error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Makes the four replicas and the volume.
async fn create(
    state: &StateDirectory,
    replicas: &[StateDirectory],
    places: &[DemoCloud],
) -> CommandResult<()> {
    let addresses = free_addresses(replicas.len()).map_err(no_port)?;
    let mut sections = Vec::new();
    for (replica, address) in replicas.iter().zip(addresses) {
        let key = replica::initialise(replica, address)?;
        sections.push(ReplicaSection {
            address: address.into(),
            key: key.to_string(),
        });
    }
    let mut clouds = Vec::new();
    for place in places {
        place.create_container(state).await?;
        clouds.push(place.section(state).await);
    }
    let plan = volume::VolumePlan::preset(sections, clouds);
    volume::create(state, &plan).await.map(drop)
}

/// Gives the replicas unused ports, if those of last time are taken, and stores the addresses of
/// the clouds' servers.
async fn renew_addresses(
    state: &StateDirectory,
    replicas: &[StateDirectory],
    places: &[DemoCloud],
) -> CommandResult<()> {
    let path = state.join(files::CONFIGURATION);
    let mut volume: VolumeConfiguration = configuration::read(&path, "volume")?;
    if volume.replica.len() != replicas.len() {
        let message = format!(
            "{} does not name {} replicas",
            path.display(),
            replicas.len()
        );
        return Err(Failure::new(Exit::Usage, message)
            .hint("it is not the demo's; use another directory with --state"));
    }
    let before = volume.clone();
    let free = |section: &ReplicaSection| TcpListener::bind(section.address.as_str()).is_ok();
    if !volume.replica.iter().all(free) {
        let addresses = free_addresses(replicas.len()).map_err(no_port)?;
        for (section, address) in volume.replica.iter_mut().zip(addresses) {
            section.address = address.into();
        }
    }
    for (section, place) in volume.cloud.iter_mut().zip(places) {
        section.location = place.section(state).await.location;
    }
    if volume != before {
        configuration::write(&path, &volume, files::HEADING)?;
    }
    for (replica, section) in replicas.iter().zip(&volume.replica) {
        let path = replica.join(replica::CONFIGURATION);
        let mut own: ReplicaConfiguration = configuration::read(&path, "replica")?;
        // A demo's replicas are on loopback, by number.
        let listen = section.address.as_str().parse().unwrap_or(own.listen);
        if own.listen != listen || own.replica != volume.replica {
            own.listen = listen;
            own.replica.clone_from(&volume.replica);
            configuration::write(&path, &own, replica::HEADING)?;
        }
    }
    Ok(())
}

fn no_port(error: std::io::Error) -> Failure {
    Failure::new(Exit::Error, format!("no free port on loopback: {error}"))
}

/// The name of this program as a user in this directory would type it.
pub(crate) fn program_for_people() -> String {
    let program = std::env::current_exe().unwrap_or_else(|_| "quorumfs".into());
    let here = std::env::current_dir().unwrap_or_default();
    program
        .strip_prefix(&here)
        .unwrap_or(&program)
        .display()
        .to_string()
}
