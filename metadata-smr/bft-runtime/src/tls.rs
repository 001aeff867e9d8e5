//! Mutual TLS 1.3 between nodes that identify each other by key.
//!
//! There is no certificate authority. A node's certificate is self-signed with its own Ed25519 key
//! and contains nothing but that key; the peer extracts the key, compares it with the expected one,
//! and relies on the handshake's signature for the proof that the other end holds the secret.
//! Names, validity periods and extensions are ignored: nothing depends on them.
//!
//! # Invariants
//!
//! * TLS 1.3 and Ed25519 only; both sides present a certificate.
//! * A dialer names the key that it expects. It learns of a mismatch before it has shown its own
//!   certificate, and reports both keys.
//! * An acceptor takes any Ed25519 key and passes it to its caller, which decides what it may do.
//! * No session is resumed: every connection proves possession of the key anew.
//! * The cryptographic provider is passed explicitly; the process's default is neither read nor
//!   set, so that a program that uses this library keeps its own choice.
//!
//! # What can go wrong
//!
//! A wrong key gives [`TlsError::WrongKey`] at the dialer and an alert at the acceptor. An
//! unreadable certificate, or one for another kind of key, fails the handshake.

use crate::keys::{KeyError, NodeKey};
use crate::link::socket::Socket;
use quorumfs_bft::identity::PublicKey;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, OtherError};
use rustls::{PeerIncompatible, SignatureScheme};
use std::sync::Arc;
use tokio::net::TcpStream;

/// The bytes before the key in the SubjectPublicKeyInfo of an Ed25519 key (RFC 8410).
const ED25519_SPKI: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// The name in every certificate; it is never checked.
const NAME: &str = "quorumfs.invalid";

/// A failure to secure a connection.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The node's own key cannot be made into a certificate.
    #[error("cannot make a certificate for this node's own key: {0}")]
    Certificate(String),
    /// The node's own key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The TLS library refuses the configuration.
    #[error("cannot configure TLS: {0}")]
    Configuration(#[from] rustls::Error),
    /// The peer proved to hold another key.
    #[error(
        "the peer has the key {found}, but {expected} is expected there: \
         compare the configured keys and addresses"
    )]
    WrongKey {
        /// The configured key.
        expected: PublicKey,
        /// The key in the peer's certificate.
        found: PublicKey,
    },
    /// The handshake failed in another way.
    #[error("the TLS handshake failed: {0}")]
    Handshake(std::io::Error),
    /// The peer's certificate is not for an Ed25519 key.
    #[error("the peer's certificate is not for an Ed25519 key")]
    NotEd25519,
}

/// A node's certificate and the secrets to use it at both ends.
#[derive(Clone)]
pub struct Identity {
    key: PublicKey,
    provider: Arc<CryptoProvider>,
    certificate: CertificateDer<'static>,
    secret: Arc<NodeKey>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity({:?})", self.key)
    }
}

impl Identity {
    /// The identity of the holder of `key`.
    ///
    /// # Errors
    /// If no certificate can be made for it.
    pub fn new(key: Arc<NodeKey>) -> Result<Self, TlsError> {
        let refused = |error: rcgen::Error| TlsError::Certificate(error.to_string());
        let pkcs8 = key.pkcs8()?;
        let pair = rcgen::KeyPair::from_pkcs8_der_and_sign_algo(
            &PrivatePkcs8KeyDer::from(pkcs8.as_slice()),
            &rcgen::PKCS_ED25519,
        )
        .map_err(refused)?;
        let certificate = rcgen::CertificateParams::new(vec![NAME.to_owned()])
            .and_then(|parameters| parameters.self_signed(&pair))
            .map_err(refused)?;
        Ok(Self {
            key: key.public(),
            provider: Arc::new(rustls::crypto::aws_lc_rs::default_provider()),
            certificate: certificate.der().clone(),
            secret: key,
        })
    }

    /// The key that peers pin.
    #[must_use]
    pub fn key(&self) -> PublicKey {
        self.key
    }

    fn secret(&self) -> Result<rustls::pki_types::PrivateKeyDer<'static>, TlsError> {
        let pkcs8 = self.secret.pkcs8()?;
        Ok(PrivatePkcs8KeyDer::from(pkcs8.to_vec()).into())
    }

    /// A connector to a peer that must hold `expected`.
    ///
    /// # Errors
    /// If the TLS library refuses the configuration.
    pub fn connector(&self, expected: PublicKey) -> Result<Connector, TlsError> {
        let verifier = Arc::new(Pinned {
            expected: Some(expected),
            algorithms: self.provider.signature_verification_algorithms,
        });
        let mut config = rustls::ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_auth_cert(vec![self.certificate.clone()], self.secret()?)?;
        config.resumption = rustls::client::Resumption::disabled();
        config.enable_sni = false;
        let name =
            ServerName::try_from(NAME).map_err(|error| TlsError::Certificate(error.to_string()))?;
        Ok(Connector {
            expected,
            name,
            inner: tokio_rustls::TlsConnector::from(Arc::new(config)),
        })
    }

    /// An acceptor of peers that hold any Ed25519 key.
    ///
    /// # Errors
    /// If the TLS library refuses the configuration.
    pub fn acceptor(&self) -> Result<Acceptor, TlsError> {
        let verifier = Arc::new(Pinned {
            expected: None,
            algorithms: self.provider.signature_verification_algorithms,
        });
        let mut config = rustls::ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![self.certificate.clone()], self.secret()?)?;
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        Ok(Acceptor {
            inner: tokio_rustls::TlsAcceptor::from(Arc::new(config)),
        })
    }
}

/// A secured connection, opened by either side.
pub type SecuredStream = tokio_rustls::TlsStream<Socket>;

/// Dials one peer.
#[derive(Clone)]
pub struct Connector {
    expected: PublicKey,
    name: ServerName<'static>,
    inner: tokio_rustls::TlsConnector,
}

impl Connector {
    /// Secures an open connection.
    ///
    /// # Errors
    /// If the peer holds another key or the handshake fails.
    pub async fn secure(&self, stream: TcpStream) -> Result<SecuredStream, TlsError> {
        let socket = Socket::from(stream);
        match self.inner.connect(self.name.clone(), socket).await {
            Ok(stream) => Ok(stream.into()),
            Err(error) => Err(explain(error)),
        }
    }

    /// The key that the peer must hold.
    #[must_use]
    pub fn expected(&self) -> PublicKey {
        self.expected
    }
}

/// Accepts peers.
#[derive(Clone)]
pub struct Acceptor {
    inner: tokio_rustls::TlsAcceptor,
}

impl Acceptor {
    /// Secures an accepted connection and returns the peer's key.
    ///
    /// # Errors
    /// If the handshake fails or the peer's key is not an Ed25519 key.
    pub async fn secure(&self, stream: TcpStream) -> Result<(SecuredStream, PublicKey), TlsError> {
        let socket = Socket::from(stream);
        let stream = self.inner.accept(socket).await.map_err(explain)?;
        let certificate = stream
            .get_ref()
            .1
            .peer_certificates()
            .and_then(<[_]>::first)
            .ok_or(TlsError::NotEd25519)?;
        let key = key_of(certificate).map_err(|_| TlsError::NotEd25519)?;
        Ok((stream.into(), key))
    }
}

/// Finds our own error inside the TLS library's.
fn explain(error: std::io::Error) -> TlsError {
    let mismatch = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>())
        .and_then(|inner| match inner {
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(cause))) => {
                cause.downcast_ref::<Mismatch>()
            }
            _ => None,
        });
    match mismatch {
        Some(mismatch) => TlsError::WrongKey {
            expected: mismatch.expected,
            found: mismatch.found,
        },
        None => TlsError::Handshake(error),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the peer's key is {found}, expected is {expected}")]
struct Mismatch {
    expected: PublicKey,
    found: PublicKey,
}

/// The Ed25519 key in a certificate.
fn key_of(certificate: &CertificateDer<'_>) -> Result<PublicKey, rustls::Error> {
    let parsed = ParsedCertificate::try_from(certificate)?;
    let spki = parsed.subject_public_key_info();
    spki.strip_prefix(&ED25519_SPKI)
        .and_then(|key| <[u8; 32]>::try_from(key).ok())
        .map(PublicKey)
        .ok_or(rustls::Error::InvalidCertificate(
            CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext {
                signature_algorithm_id: Vec::new(),
                public_key_algorithm_id: spki.to_vec(),
            },
        ))
}

/// Checks a peer's certificate by the key in it and nothing else.
#[derive(Debug)]
struct Pinned {
    expected: Option<PublicKey>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Pinned {
    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        let found = key_of(certificate)?;
        match self.expected {
            Some(expected) if expected != found => Err(rustls::Error::InvalidCertificate(
                CertificateError::Other(OtherError(Arc::new(Mismatch { expected, found }))),
            )),
            _ => Ok(()),
        }
    }

    fn check_handshake(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        if signature.scheme != SignatureScheme::ED25519 {
            return Err(PeerIncompatible::NoSignatureSchemesInCommon.into());
        }
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }
}

fn never_tls12() -> rustls::Error {
    rustls::Error::General("TLS 1.2 is not supported".to_owned())
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(end_entity)
            .map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(never_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.check_handshake(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(end_entity)
            .map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(never_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.check_handshake(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity::new(Arc::new(NodeKey::generate().expect("randomness"))).expect("identity")
    }

    async fn handshake(
        server: &Identity,
        client: &Identity,
        expected: PublicKey,
    ) -> (Result<SecuredStream, TlsError>, Result<PublicKey, TlsError>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("bind");
        let address = listener.local_addr().expect("address");
        let acceptor = server.acceptor().expect("acceptor");
        let connector = client.connector(expected).expect("connector");
        let accepting = async {
            let (stream, _) = listener.accept().await.expect("accept");
            acceptor.secure(stream).await.map(|(_, key)| key)
        };
        let dialing = async {
            let stream = TcpStream::connect(address).await.expect("connect");
            connector.secure(stream).await
        };
        tokio::join!(dialing, accepting)
    }

    #[tokio::test]
    async fn both_sides_learn_each_others_key() {
        let (server, client) = (identity(), identity());
        let (dialed, accepted) = handshake(&server, &client, server.key()).await;
        let dialed = dialed.expect("dialed");
        assert_eq!(accepted.expect("accepted"), client.key());
        let version = dialed.get_ref().1.protocol_version();
        assert_eq!(version, Some(rustls::ProtocolVersion::TLSv1_3));
    }

    #[tokio::test]
    async fn a_wrong_key_is_named_and_refused() {
        let (server, client, other) = (identity(), identity(), identity());
        let (dialed, accepted) = handshake(&server, &client, other.key()).await;
        match dialed.err() {
            Some(TlsError::WrongKey { expected, found }) => {
                assert_eq!((expected, found), (other.key(), server.key()));
            }
            other => panic!("{other:?}"),
        }
        assert!(accepted.is_err());
    }

    #[tokio::test]
    async fn a_stolen_certificate_without_its_key_is_refused() {
        // The thief shows the victim's certificate and signs with a key of its own.
        let (victim, thief, client) = (identity(), identity(), identity());
        let config = rustls::ServerConfig::builder_with_provider(thief.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("versions")
            .with_client_cert_verifier(Arc::new(Pinned {
                expected: None,
                algorithms: thief.provider.signature_verification_algorithms,
            }));
        let signing = thief
            .provider
            .key_provider
            .load_private_key(thief.secret().expect("secret"))
            .expect("key");
        let certified = rustls::sign::CertifiedKey::new(vec![victim.certificate.clone()], signing);
        let config =
            config.with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(certified)));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("bind");
        let address = listener.local_addr().expect("address");
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let connector = client.connector(victim.key()).expect("connector");
        let (dialed, _) = tokio::join!(
            async {
                let stream = TcpStream::connect(address).await.expect("connect");
                connector.secure(stream).await
            },
            async {
                let (stream, _) = listener.accept().await.expect("accept");
                acceptor.accept(stream).await.map(|_| ())
            }
        );
        assert!(matches!(dialed, Err(TlsError::Handshake(_))));
    }

    #[tokio::test]
    async fn a_peer_without_a_certificate_is_refused() {
        let (server, client) = (identity(), identity());
        let config = rustls::ClientConfig::builder_with_provider(client.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Pinned {
                expected: None,
                algorithms: client.provider.signature_verification_algorithms,
            }))
            .with_no_client_auth();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("bind");
        let address = listener.local_addr().expect("address");
        let acceptor = server.acceptor().expect("acceptor");
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let (_, accepted) = tokio::join!(
            async {
                let stream = TcpStream::connect(address).await.expect("connect");
                connector
                    .connect(ServerName::try_from(NAME).expect("name"), stream)
                    .await
                    .map(|_| ())
            },
            async {
                let (stream, _) = listener.accept().await.expect("accept");
                acceptor.secure(stream).await.map(|_| ())
            }
        );
        assert!(accepted.is_err());
    }
}
