//! What lies where in the demo's state directory, and how it is made at the first start.
//!
//! The demo sets itself up by the same functions as `replica init` and `volume create`; nothing in
//! it is only for show. Loopback ports are chosen anew at a start if somebody else has taken one:
//! addresses are configuration, keys are identity.

use crate::commands::{replica, volume};
use crate::configuration::{self, ReplicaConfiguration, ReplicaSection, VolumeConfiguration};
use crate::directory::{self, Lock, StateDirectory};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

const REPLICAS: usize = 4;
const CLOUDS: [&str; 4] = ["a", "b", "c", "d"];

/// The demo's state, ready to be started.
#[derive(Debug)]
pub(crate) struct Demo {
    /// The directory of everything, which is the volume's at the same time.
    pub(crate) state: StateDirectory,
    /// Where it will be mounted.
    pub(crate) mount: PathBuf,
    /// The replicas' own directories.
    pub(crate) replicas: Vec<StateDirectory>,
    /// The clouds' directories.
    pub(crate) clouds: Vec<PathBuf>,
    /// Whether this start made it.
    pub(crate) is_new: bool,
    _lock: Lock,
}

impl Demo {
    /// Finds the demo in `state`, or makes it.
    pub(crate) fn open(state: &StateDirectory, mount: Option<&Path>) -> Outcome<Self> {
        state.create()?;
        let lock = state.lock_as("demo.lock", "demo")?;
        directory::create_private(&state.join("log"))?;
        let replicas = (0..REPLICAS)
            .map(|number| StateDirectory::find(Some(&state.join(format!("replicas/{number}"))), ""))
            .collect::<Outcome<Vec<_>>>()?;
        let clouds: Vec<_> = CLOUDS
            .iter()
            .map(|name| state.join(format!("clouds/{name}")))
            .collect();
        let is_new = !state.join(volume::CONFIGURATION).exists();
        if is_new {
            create(state, &replicas, &clouds)?;
        }
        renew_addresses(state, &replicas)?;
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
            is_new,
            _lock: lock,
        })
    }

    /// The volume's genesis.
    pub(crate) fn genesis(&self) -> PathBuf {
        self.state.join(volume::GENESIS)
    }

    /// Where a child's log goes.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.state.join(format!("log/{name}.log"))
    }
}

/// Makes the four replicas and the volume. An attempt that was cut short left no configuration of
/// the volume, which is written last; its remains are made anew.
fn create(state: &StateDirectory, replicas: &[StateDirectory], clouds: &[PathBuf]) -> Outcome<()> {
    for remains in [
        "replicas",
        volume::KEY,
        volume::GENESIS,
        volume::RECOVERY_KIT,
        "clouds",
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
    let addresses = free_addresses(replicas.len())?;
    let mut sections = Vec::new();
    for (replica, address) in replicas.iter().zip(addresses) {
        let key = replica::initialise(replica, address)?;
        sections.push(ReplicaSection {
            address,
            key: key.to_string(),
        });
    }
    let named = CLOUDS.iter().zip(clouds);
    let clouds = named
        .map(|(name, path)| volume::cloud(name, path))
        .collect();
    volume::create(state, &volume::Plan::preset(sections, clouds)).map(drop)
}

/// Gives the replicas ports that are free now, if those of last time are not.
fn renew_addresses(state: &StateDirectory, replicas: &[StateDirectory]) -> Outcome<()> {
    let path = state.join(volume::CONFIGURATION);
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
    let free = |section: &ReplicaSection| TcpListener::bind(section.address).is_ok();
    if !volume.replica.iter().all(free) {
        let addresses = free_addresses(replicas.len())?;
        for (section, address) in volume.replica.iter_mut().zip(addresses) {
            section.address = address;
        }
        configuration::write(&path, &volume, volume::HEADING)?;
    }
    for (replica, section) in replicas.iter().zip(&volume.replica) {
        let path = replica.join(replica::CONFIGURATION);
        let mut own: ReplicaConfiguration = configuration::read(&path, "replica")?;
        if own.listen != section.address || own.replica != volume.replica {
            own.listen = section.address;
            own.replica.clone_from(&volume.replica);
            configuration::write(&path, &own, replica::HEADING)?;
        }
    }
    Ok(())
}

/// Loopback ports that nobody uses now, all different.
fn free_addresses(count: usize) -> Outcome<Vec<SocketAddr>> {
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listeners: std::io::Result<Vec<_>> = (0..count).map(|_| TcpListener::bind(local)).collect();
    listeners
        .and_then(|all| all.iter().map(TcpListener::local_addr).collect())
        .map_err(|error| Failure::new(Exit::Error, format!("no free port on loopback: {error}")))
}

/// How somebody in this directory would type the name of this program.
pub(crate) fn program_for_people() -> String {
    let program = std::env::current_exe().unwrap_or_else(|_| "quorumfs".into());
    let here = std::env::current_dir().unwrap_or_default();
    program
        .strip_prefix(&here)
        .unwrap_or(&program)
        .display()
        .to_string()
}
