//! The servers' programs: their paths, command lines and credentials.

use super::EmulatorError;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

const S3_ACCESS: &str = "quorumfs-test";
const S3_SECRET: &str = "quorumfs-test-secret";
/// Azurite's own account, which its documentation publishes: it is no secret.
const AZURE_ACCOUNT: &str = "devstoreaccount1";
const AZURE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Where a server's data lies below its directory; versitygw keeps accounts and old versions there.
pub(super) const DATA: &str = "data";
const ACCOUNTS: &str = "accounts";
const VERSIONS: &str = "versions";

/// A server of a provider's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Server {
    /// S3 over a directory.
    Versitygw,
    /// Azure Blob Storage.
    Azurite,
    /// Google Cloud Storage.
    FakeGcs,
}

/// Where `scripts/setup` puts the servers: `QUORUMFS_EMULATORS`, else below the user's cache.
#[must_use]
pub fn programs() -> PathBuf {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(path) = variable("QUORUMFS_EMULATORS") {
        return PathBuf::from(path);
    }
    let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || variable("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = cache.or_else(home).unwrap_or_else(std::env::temp_dir);
    cache.join("quorumfs/emulators")
}

/// How a server is started.
pub(super) struct ServerCommand {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
}

impl Server {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Versitygw, Self::Azurite, Self::FakeGcs];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Versitygw => "versitygw",
            Self::Azurite => "azurite-blob",
            Self::FakeGcs => "fake-gcs-server",
        }
    }

    /// The directories that it needs below its own before it starts.
    pub(super) fn directories(self) -> &'static [&'static str] {
        match self {
            Self::Versitygw => &[DATA, ACCOUNTS, VERSIONS],
            Self::Azurite | Self::FakeGcs => &[DATA],
        }
    }

    pub(super) fn ready_path(self) -> &'static str {
        match self {
            Self::FakeGcs => "/storage/v1/b?project=test",
            Self::Versitygw | Self::Azurite => "/",
        }
    }

    pub(super) fn command(
        self,
        address: SocketAddr,
        directory: &Path,
    ) -> Result<ServerCommand, EmulatorError> {
        let program = programs().join("bin").join(self.name());
        if !program.exists() {
            return Err(EmulatorError::Missing {
                program: self.name(),
                path: program,
            });
        }
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        let place = address.to_string();
        let text = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let mut arguments = match self {
            Self::Versitygw => {
                let mut words = text(&["--access", S3_ACCESS, "--secret", S3_SECRET]);
                words.extend(text(&["--port", &place, "--iam-dir"]));
                words.push(directory.join(ACCOUNTS).into());
                words.extend(text(&["posix", "--versioning-dir"]));
                words.push(directory.join(VERSIONS).into());
                words
            }
            Self::Azurite => text(&[
                "--blobHost",
                &host,
                "--blobPort",
                &port,
                "--silent",
                "--disableTelemetry",
                "--location",
            ]),
            Self::FakeGcs => text(&[
                "-scheme",
                "http",
                "-host",
                &host,
                "-port",
                &port,
                // Without a port: the SDK omits it from the Host header.
                "-public-host",
                &host,
                "-backend",
                "filesystem",
                "-log-level",
                "warn",
                "-filesystem-root",
            ]),
        };
        arguments.push(directory.join(DATA).into());
        Ok(ServerCommand { program, arguments })
    }

    pub(super) fn credentials(self, address: SocketAddr) -> Option<String> {
        match self {
            Self::Versitygw => Some(format!(
                "[default]\naws_access_key_id = {S3_ACCESS}\naws_secret_access_key = {S3_SECRET}\n"
            )),
            Self::Azurite => Some(format!(
                "DefaultEndpointsProtocol=http;AccountName={AZURE_ACCOUNT};\
                 AccountKey={AZURE_KEY};BlobEndpoint=http://{address}/{AZURE_ACCOUNT};\n"
            )),
            Self::FakeGcs => None,
        }
    }

    pub(super) fn location(self, address: SocketAddr, container: &str, prefix: &str) -> String {
        let below = match prefix {
            "" => String::new(),
            prefix => format!("/{prefix}"),
        };
        match self {
            Self::Versitygw => {
                format!("s3://{container}{below}?endpoint=http://{address}&region=us-east-1")
            }
            Self::Azurite => format!(
                "azure://{AZURE_ACCOUNT}/{container}{below}\
                 ?endpoint=http://{address}/{AZURE_ACCOUNT}"
            ),
            Self::FakeGcs => format!("gs://{container}{below}?endpoint=http://{address}"),
        }
    }
}
