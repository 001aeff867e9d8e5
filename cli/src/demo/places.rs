//! The demo's clouds: directories, or servers of three providers' protocols and a directory.
//!
//! Servers run as children of the demo on loopback and keep their data below the state directory,
//! as everything does. A cloud is stopped, frozen and brought back here, whatever it is: a
//! directory is stopped by being moved away.

use crate::arguments::DemoClouds;
use crate::commands::volume;
use crate::configuration::{CloudSection, VolumeConfiguration};
use crate::directory::StateDirectory;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use quorumfs_backends::emulators::{Emulator, EmulatorError, Server};
use quorumfs_backends::location::Location;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use tokio::sync::Mutex;

const DIRECTORIES: [&str; 4] = ["a", "b", "c", "d"];
/// The servers, and the directory that is the fourth cloud beside them.
const SERVERS: [(&str, Server); 3] = [
    ("s3", Server::Versitygw),
    ("azure", Server::Azurite),
    ("google", Server::FakeGcs),
];
const BESIDE: &str = "local";
/// The bucket or container of each server.
const CONTAINER: &str = "quorumfs-demo";
/// What the volume's keys begin with in it.
const PREFIX: &str = "volume";

/// One cloud.
#[derive(Debug)]
pub(crate) struct Place {
    /// What it is called.
    pub(crate) name: &'static str,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Directory(PathBuf),
    Server(Box<Mutex<Emulator>>),
}

fn failure(error: &EmulatorError) -> Failure {
    Failure::new(Exit::Error, error.to_string())
}

/// What the clouds of this demo are, if it was made before.
pub(crate) fn known(configuration: &VolumeConfiguration) -> DemoClouds {
    let served = |cloud: &CloudSection| cloud.location.contains("://");
    match configuration.cloud.iter().any(served) {
        true => DemoClouds::Emulators,
        false => DemoClouds::Directories,
    }
}

fn directory(state: &StateDirectory, name: &'static str) -> Place {
    let kind = Kind::Directory(state.join(format!("clouds/{name}")));
    Place { name, kind }
}

/// Makes or finds the clouds; servers run when this returns.
pub(crate) async fn prepare(
    state: &StateDirectory,
    clouds: DemoClouds,
    before: Option<&VolumeConfiguration>,
) -> Outcome<Vec<Place>> {
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
        let kind = Kind::Server(Box::new(Mutex::new(emulator)));
        places.push(Place { name, kind });
    }
    places.push(directory(state, BESIDE));
    Ok(places)
}

/// Where a server listened last time, if nobody else does now.
fn free_address_of(before: &VolumeConfiguration, name: &str) -> Option<SocketAddr> {
    let section = before.cloud.iter().find(|cloud| cloud.name == name)?;
    let location: Location = section.location.parse().ok()?;
    let address = location.failure_domain()?.parse().ok()?;
    TcpListener::bind(address).is_ok().then_some(address)
}

impl Place {
    /// Its part of the volume's configuration.
    pub(crate) async fn section(&self, state: &StateDirectory) -> CloudSection {
        let relative = |path: &Path| {
            path.strip_prefix(state.path())
                .unwrap_or(path)
                .to_path_buf()
        };
        match &self.kind {
            Kind::Directory(path) => {
                volume::cloud(self.name, &relative(path).display().to_string())
            }
            Kind::Server(emulator) => {
                let emulator = emulator.lock().await;
                let mut section = volume::cloud(self.name, &emulator.location(CONTAINER, PREFIX));
                section.credentials = emulator.credentials().map(|path| relative(&path));
                section
            }
        }
    }

    /// Makes the bucket or container that the volume is to lie in.
    pub(crate) async fn create_container(&self, state: &StateDirectory) -> Outcome<()> {
        if matches!(self.kind, Kind::Directory(_)) {
            return Ok(());
        }
        let section = self.section(state).await;
        let location = crate::clouds::location(&section, state.path())?;
        let credentials = section.credentials.map(|path| state.join(path));
        let created = location.create_container(credentials.as_deref()).await;
        created.map_err(|error| crate::commands::store_failure(&error))
    }

    /// Where its data lies, for people.
    pub(crate) async fn data(&self) -> PathBuf {
        match &self.kind {
            Kind::Directory(path) => path.clone(),
            Kind::Server(emulator) => emulator.lock().await.data(),
        }
    }

    /// Whether it can be frozen: a directory cannot.
    pub(crate) fn freezes(&self) -> bool {
        matches!(self.kind, Kind::Server(_))
    }

    /// Lets it stop answering without ending.
    pub(crate) async fn freeze(&self) {
        if let Kind::Server(emulator) = &self.kind {
            emulator.lock().await.freeze().await;
        }
    }

    /// Lets it answer again.
    pub(crate) async fn thaw(&self) {
        if let Kind::Server(emulator) = &self.kind {
            emulator.lock().await.thaw();
        }
    }

    /// Takes it out of reach: a server is stopped, a directory moved away.
    pub(crate) async fn stop(&self) -> Outcome<()> {
        match &self.kind {
            Kind::Server(emulator) => {
                emulator.lock().await.stop().await;
                Ok(())
            }
            Kind::Directory(path) => moved(path, &away(path)),
        }
    }

    /// Brings it back as it was.
    pub(crate) async fn start_again(&self) -> Outcome<()> {
        match &self.kind {
            Kind::Server(emulator) => {
                let started = emulator.lock().await.start_again().await;
                started.map_err(|error| failure(&error))
            }
            // A gateway must not make up a cloud that is gone.
            Kind::Directory(path) if path.exists() => {
                let message = format!("{} came back by itself while it was away", path.display());
                Err(Failure::new(Exit::Error, message))
            }
            Kind::Directory(path) => moved(&away(path), path),
        }
    }

    /// Ends its server, if it has one.
    pub(crate) async fn end(&self) {
        if let Kind::Server(emulator) = &self.kind {
            emulator.lock().await.stop().await;
        }
    }
}

fn away(path: &Path) -> PathBuf {
    path.with_extension("away")
}

fn moved(from: &Path, to: &Path) -> Outcome<()> {
    fs::rename(from, to).map_err(|error| Failure::file("move", from, &error))
}
