//! The certificate of a server, and its renewal.
//!
//! Certificates are renewed every few weeks by other programs, which write new files. The files are
//! looked at each minute and read again when either has changed, so that the server need not be
//! started again. If the new ones are not right, the server says so and goes on with the old ones.
//! TLS 1.3 alone is spoken, as everywhere in this project.

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A certificate or its key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsFilesError {
    /// A file cannot be read, or has nothing of the kind in it.
    #[error("{path} has no usable {what}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// What it should have.
        what: &'static str,
        /// What went wrong.
        reason: String,
    },
    /// The certificate and the key do not belong together, or are of no known kind.
    #[error("the certificate and the key cannot be used together: {0}")]
    Unusable(#[from] rustls::Error),
}

/// When each file was written.
type Stamp = [Option<SystemTime>; 2];

/// A certificate and its key, in files.
pub struct TlsFiles {
    certificate: PathBuf,
    key: PathBuf,
    current: Mutex<(TlsAcceptor, Stamp)>,
}

impl TlsFiles {
    /// Reads them: PEM, the server's own certificate first and then its chain.
    ///
    /// # Errors
    /// If they cannot be used.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsFilesError> {
        let stamp = stamp(certificate, key);
        let acceptor = read(certificate, key)?;
        Ok(Self {
            certificate: certificate.to_path_buf(),
            key: key.to_path_buf(),
            current: Mutex::new((acceptor, stamp)),
        })
    }

    /// Reads them again if they have changed.
    pub(super) fn renew(&self) {
        let stamp = stamp(&self.certificate, &self.key);
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.1 == stamp {
            return;
        }
        current.1 = stamp;
        match read(&self.certificate, &self.key) {
            Ok(acceptor) => {
                current.0 = acceptor;
                tracing::info!("the certificate was renewed");
            }
            Err(error) => tracing::warn!(%error, "the old certificate is still used"),
        }
    }

    /// Secures a connection.
    pub(super) async fn accept<IO>(&self, stream: IO) -> std::io::Result<TlsStream<IO>>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let acceptor = {
            let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
            current.0.clone()
        };
        acceptor.accept(stream).await
    }
}

fn stamp(certificate: &Path, key: &Path) -> Stamp {
    [certificate, key].map(|path| fs::metadata(path).and_then(|it| it.modified()).ok())
}

fn read(certificate: &Path, key: &Path) -> Result<TlsAcceptor, TlsFilesError> {
    let unusable = |path: &Path, what: &'static str, reason: String| TlsFilesError::File {
        path: path.to_path_buf(),
        what,
        reason,
    };
    let wrong =
        |error: &dyn std::fmt::Display| unusable(certificate, "certificate", error.to_string());
    let mut chain = Vec::new();
    for one in CertificateDer::pem_file_iter(certificate).map_err(|error| wrong(&error))? {
        chain.push(one.map_err(|error| wrong(&error))?);
    }
    if chain.is_empty() {
        return Err(wrong(&"there is none in it"));
    }
    let key = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| unusable(key, "private key", error.to_string()))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(directory: &Path, name: &str) -> (PathBuf, PathBuf) {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let paths = ["certificate", "key"].map(|it| directory.join(format!("{name}.{it}")));
        fs::write(&paths[0], made.cert.pem()).unwrap();
        fs::write(&paths[1], made.signing_key.serialize_pem()).unwrap();
        let [certificate, key] = paths;
        (certificate, key)
    }

    #[test]
    fn a_certificate_is_used_with_its_own_key_only() {
        let directory = tempfile::tempdir().unwrap();
        let (certificate, key) = made(directory.path(), "a");
        let (_, other) = made(directory.path(), "b");
        assert!(TlsFiles::load(&certificate, &key).is_ok());
        let text = |result: Result<TlsFiles, TlsFilesError>| result.err().unwrap().to_string();
        assert!(text(TlsFiles::load(&certificate, &other)).contains("together"));
        assert!(text(TlsFiles::load(&key, &key)).contains("no usable certificate"));
        assert!(text(TlsFiles::load(&certificate, &certificate)).contains("no usable private key"));
        let absent = directory.path().join("absent");
        assert!(text(TlsFiles::load(&absent, &key)).contains("absent"));
    }

    #[test]
    fn a_renewed_certificate_is_used_and_a_wrong_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let (certificate, key) = made(directory.path(), "a");
        let (next, next_key) = made(directory.path(), "b");
        let files = TlsFiles::load(&certificate, &key).unwrap();
        let config = || Arc::as_ptr(files.current.lock().unwrap().0.config());
        let renew = || {
            let earlier = SystemTime::UNIX_EPOCH;
            files.current.lock().unwrap().1 = [Some(earlier); 2];
            files.renew();
        };
        let before = config();
        fs::write(&certificate, "half a file").unwrap();
        renew();
        assert_eq!(config(), before);
        fs::copy(&next, &certificate).unwrap();
        fs::copy(&next_key, &key).unwrap();
        renew();
        assert_ne!(config(), before);
        let renewed = config();
        files.renew();
        assert_eq!(config(), renewed);
    }
}
