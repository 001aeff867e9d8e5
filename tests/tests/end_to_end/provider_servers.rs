//! Servers of three providers on loopback, and their places for a volume.

#![allow(clippy::unwrap_used)]

use quorumfs_backends::emulators::{Emulator, Server};
use quorumfs_backends::location::Location;
use quorumfs_tests::harness::Cluster;
use std::fs;
use std::path::{Path, PathBuf};
use tokio::runtime::Runtime;

const CONTAINER: &str = "people";

/// A provider's server, its place, and the file with credentials for it. It is stopped when this is
/// dropped.
pub(super) struct Provider {
    emulator: Emulator,
    runtime: Runtime,
    pub(super) argument: String,
    pub(super) credentials: Option<PathBuf>,
}

impl Provider {
    /// One of each, with their data below a directory.
    pub(super) fn three(disks: &Path) -> Vec<Self> {
        let servers = [
            ("aws", Server::Versitygw),
            ("azure", Server::Azurite),
            ("google", Server::FakeGcs),
        ];
        let start = |(name, server)| Self::start(name, server, &disks.join(name));
        servers.map(start).into()
    }

    /// One server.
    pub(super) fn start(name: &str, server: Server, directory: &Path) -> Self {
        let runtime = Runtime::new().unwrap();
        fs::create_dir(directory).unwrap();
        let started = Emulator::start(server, directory);
        let emulator = runtime.block_on(started).unwrap();
        let text = emulator.location(CONTAINER, "volume");
        let location: Location = text.parse().unwrap();
        let credentials = emulator.credentials();
        let created = location.create_container(credentials.as_deref());
        runtime.block_on(created).unwrap();
        Self {
            argument: format!("{name}={text}"),
            credentials: credentials.clone(),
            emulator,
            runtime,
        }
    }

    /// `--cloud-credentials NAME=FILE` for each that wants any.
    pub(super) fn given_by(providers: &[Self]) -> Vec<String> {
        providers.iter().filter_map(Self::given).flatten().collect()
    }

    /// A volume over some of them and a directory next to their data.
    pub(super) fn with_a_directory(providers: &[Self], disks: &Path) -> Cluster {
        Cluster::prepare_with(|cluster| {
            let mut clouds: Vec<_> = providers.iter().map(|it| it.argument.clone()).collect();
            clouds.push(format!("disk={}", disks.join("disk").display()));
            let create = cluster.create_over(&cluster.volume(), &clouds);
            create.args(Self::given_by(providers))
        })
    }

    fn given(&self) -> Option<[String; 2]> {
        let file = self.credentials.as_ref()?;
        let (name, _) = self.argument.split_once('=')?;
        let given = format!("{name}={}", file.display());
        Some(["--cloud-credentials".to_owned(), given])
    }

    /// The server's data.
    pub(super) fn data(&self) -> PathBuf {
        self.emulator.data()
    }

    /// Stops the server.
    pub(super) fn stop(&mut self) {
        self.runtime.block_on(self.emulator.stop());
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.stop();
    }
}
