//! The demo's clouds: directories, or servers of three providers' protocols and a directory.
//!
//! Servers run as children of the demo on loopback and store their data below the state directory.
//! This module stops, freezes and restores a cloud of either kind: a directory is stopped by moving
//! it away.

use crate::arguments::DemoClouds;
use crate::configuration::{CloudSection, VolumeConfiguration};
use crate::directory::StateDirectory;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::values;
use quorumfs_backends::emulators::{Emulator, EmulatorError, Server};
use quorumfs_backends::location::Location;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use tokio::sync::Mutex;

const DIRECTORIES: [&str; 4] = ["a", "b", "c", "d"];
/// The servers; a directory is the fourth cloud.
const SERVERS: [(&str, Server); 3] = [
    ("s3", Server::Versitygw),
    ("azure", Server::Azurite),
    ("google", Server::FakeGcs),
];
const LOCAL: &str = "local";
/// The bucket or container of each server.
const CONTAINER: &str = "quorumfs-demo";
/// The prefix of the volume's keys in it.
const PREFIX: &str = "volume";

/// One cloud.
#[derive(Debug)]
pub(crate) struct DemoCloud {
    /// Its name.
    pub(crate) name: &'static str,
    kind: CloudHost,
}

#[derive(Debug)]
enum CloudHost {
    Directory(PathBuf),
    Server(Box<Mutex<Emulator>>),
}

fn failure(error: &EmulatorError) -> Failure {
    Failure::new(Exit::Error, error.to_string())
}

/// The kind of this demo's clouds, from its configuration.
pub(crate) fn known(configuration: &VolumeConfiguration) -> DemoClouds {
    let served = |cloud: &CloudSection| cloud.location.contains("://");
    match configuration.cloud.iter().any(served) {
        true => DemoClouds::Emulators,
        false => DemoClouds::Directories,
    }
}

fn directory(state: &StateDirectory, name: &'static str) -> DemoCloud {
    let kind = CloudHost::Directory(state.join(format!("clouds/{name}")));
    DemoCloud { name, kind }
}

/// Makes or finds the clouds; servers run when this returns.
pub(crate) async fn prepare(
    state: &StateDirectory,
    clouds: DemoClouds,
    before: Option<&VolumeConfiguration>,
) -> CommandResult<Vec<DemoCloud>> {
    if clouds == DemoClouds::Directories {
        return Ok(DIRECTORIES.map(|name| directory(state, name)).into());
    }
    let mut places = Vec::new();
    for (name, server) in SERVERS {
        let own = state.join(format!("emulators/{name}"));
        let address = before.and_then(|before| free_address_of(before, name));
        let started = match address {
            Some(address) => Emulator::start_at(server, &own, address).await,
            None => Emulator::start(server, &own).await,
        };
        let emulator = started.map_err(|error| failure(&error))?;
        let kind = CloudHost::Server(Box::new(Mutex::new(emulator)));
        places.push(DemoCloud { name, kind });
    }
    places.push(directory(state, LOCAL));
    Ok(places)
}

/// The address of a server last time, if no other process uses it now.
fn free_address_of(before: &VolumeConfiguration, name: &str) -> Option<SocketAddr> {
    let section = before.cloud.iter().find(|cloud| cloud.name == name)?;
    let location: Location = section.location.parse().ok()?;
    let address = location.failure_domain()?.parse().ok()?;
    TcpListener::bind(address).is_ok().then_some(address)
}

impl DemoCloud {
    /// Its part of the volume's configuration.
    pub(crate) async fn section(&self, state: &StateDirectory) -> CloudSection {
        let relative = |path: &Path| {
            path.strip_prefix(state.path())
                .unwrap_or(path)
                .to_path_buf()
        };
        match &self.kind {
            CloudHost::Directory(path) => {
                values::cloud(self.name, &relative(path).display().to_string())
            }
            CloudHost::Server(emulator) => {
                let emulator = emulator.lock().await;
                let mut section = values::cloud(self.name, &emulator.location(CONTAINER, PREFIX));
                section.credentials = emulator.credentials().map(|path| relative(&path));
                section
            }
        }
    }

    /// Makes the bucket or container of the volume.
    pub(crate) async fn create_container(&self, state: &StateDirectory) -> CommandResult<()> {
        if matches!(self.kind, CloudHost::Directory(_)) {
            return Ok(());
        }
        let section = self.section(state).await;
        let location = crate::clouds::location(&section, state.path())?;
        let credentials = section.credentials.map(|path| state.join(path));
        let created = location.create_container(credentials.as_deref()).await;
        created.map_err(|error| crate::explain::store_failure(&error))
    }

    /// The place of its data, for people.
    pub(crate) async fn data(&self) -> PathBuf {
        match &self.kind {
            CloudHost::Directory(path) => path.clone(),
            CloudHost::Server(emulator) => emulator.lock().await.data(),
        }
    }

    /// Whether it can be frozen: a directory cannot.
    pub(crate) fn freezes(&self) -> bool {
        matches!(self.kind, CloudHost::Server(_))
    }

    /// Makes it stop answering without ending.
    pub(crate) async fn freeze(&self) {
        if let CloudHost::Server(emulator) = &self.kind {
            emulator.lock().await.freeze().await;
        }
    }

    /// Makes it answer again.
    pub(crate) async fn thaw(&self) {
        if let CloudHost::Server(emulator) = &self.kind {
            emulator.lock().await.thaw();
        }
    }

    /// Makes it unreachable: a server is stopped, a directory moved away.
    pub(crate) async fn stop(&self) -> CommandResult<()> {
        match &self.kind {
            CloudHost::Server(emulator) => {
                emulator.lock().await.stop().await;
                Ok(())
            }
            CloudHost::Directory(path) => moved(path, &away(path)),
        }
    }

    /// Makes it reachable as before.
    pub(crate) async fn start_again(&self) -> CommandResult<()> {
        match &self.kind {
            CloudHost::Server(emulator) => {
                let started = emulator.lock().await.start_again().await;
                started.map_err(|error| failure(&error))
            }
            // A gateway must not recreate a missing cloud.
            CloudHost::Directory(path) if path.exists() => {
                let message = format!("{} came back by itself while it was away", path.display());
                Err(Failure::new(Exit::Error, message))
            }
            CloudHost::Directory(path) => moved(&away(path), path),
        }
    }

    /// Ends its server, if it has one.
    pub(crate) async fn end(&self) {
        if let CloudHost::Server(emulator) = &self.kind {
            emulator.lock().await.stop().await;
        }
    }
}

fn away(path: &Path) -> PathBuf {
    path.with_extension("away")
}

fn moved(from: &Path, to: &Path) -> CommandResult<()> {
    fs::rename(from, to).map_err(|error| Failure::file("move", from, &error))
}
