//! The servers' programs: where they are, how they are started, what they take.

use super::EmulatorError;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

const S3_ACCESS: &str = "quorumfs-test";
const S3_SECRET: &str = "quorumfs-test-secret";
/// Azurite's own account, which is no secret: it is in its documentation.
const AZURE_ACCOUNT: &str = "devstoreaccount1";
const AZURE_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A server of a provider's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Server {
    /// S3 over a directory.
    Versitygw,
    /// S3, as many run it themselves.
    Minio,
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
    pub(super) environment: Vec<(&'static str, &'static str)>,
}

impl Server {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Versitygw, Self::Minio, Self::Azurite, Self::FakeGcs];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Versitygw => "versitygw",
            Self::Minio => "minio",
            Self::Azurite => "azurite-blob",
            Self::FakeGcs => "fake-gcs-server",
        }
    }

    pub(super) fn ready_path(self) -> &'static str {
        match self {
            // It is not ready for S3 when it says that it is ready: whatever S3 answers, but 503.
            Self::Minio => "/quorumfs-is-there",
            Self::FakeGcs => "/storage/v1/b?project=test",
            Self::Versitygw | Self::Azurite => "/",
        }
    }

    pub(super) fn command(
        self,
        address: SocketAddr,
        data: &Path,
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
        let data = data.as_os_str().to_os_string();
        let text = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let (mut arguments, environment) = match self {
            Self::Versitygw => {
                let keys = ["--access", S3_ACCESS, "--secret", S3_SECRET];
                let rest = ["--port", &place, "posix"];
                (text(&[&keys[..], &rest[..]].concat()), Vec::new())
            }
            Self::Minio => (
                text(&[
                    "server",
                    "--quiet",
                    "--address",
                    &place,
                    "--console-address",
                    "127.0.0.1:0",
                ]),
                vec![
                    ("MINIO_ROOT_USER", S3_ACCESS),
                    ("MINIO_ROOT_PASSWORD", S3_SECRET),
                    ("MINIO_BROWSER", "off"),
                    ("MINIO_UPDATE", "off"),
                ],
            ),
            Self::Azurite => (
                text(&[
                    "--blobHost",
                    &host,
                    "--blobPort",
                    &port,
                    "--silent",
                    "--disableTelemetry",
                    "--location",
                ]),
                Vec::new(),
            ),
            Self::FakeGcs => (
                text(&[
                    "-scheme",
                    "http",
                    "-host",
                    &host,
                    "-port",
                    &port,
                    // Without a port: the SDK leaves it out of the Host header.
                    "-public-host",
                    &host,
                    "-backend",
                    "filesystem",
                    "-log-level",
                    "warn",
                    "-filesystem-root",
                ]),
                Vec::new(),
            ),
        };
        arguments.push(data);
        Ok(ServerCommand {
            program,
            arguments,
            environment,
        })
    }

    pub(super) fn credentials(self, address: SocketAddr) -> Option<String> {
        match self {
            Self::Versitygw | Self::Minio => Some(format!(
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
            Self::Minio => {
                format!("s3://{container}{below}?endpoint=http://{address}&preset=minio")
            }
            Self::Azurite => format!(
                "azure://{AZURE_ACCOUNT}/{container}{below}\
                 ?endpoint=http://{address}/{AZURE_ACCOUNT}"
            ),
            Self::FakeGcs => format!("gs://{container}{below}?endpoint=http://{address}"),
        }
    }
}
