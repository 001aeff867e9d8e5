//! The meaning of an untrusted certificate.
//!
//! Every provider's client trusts the certificates of the system, or of the file that
//! `SSL_CERT_FILE` names, and reports any other as little more than "invalid peer certificate".
//! Such a cloud is reachable and waiting does not help: the service uses a private authority, or
//! another server answers in its place.

use super::Refusal;
use crate::error::StoreErrorKind;

/// The beginning of rustls's message, in every client.
const INVALID: &str = "invalid peer certificate: ";

/// The refusal for a failed connection with this text, if a certificate was the reason.
pub(crate) fn refusal(words: &str) -> Option<Refusal> {
    let (_, reason) = words.split_once(INVALID)?;
    let does = |what: &str| reason.contains(what);
    let remedy = if does("UnknownIssuer") || does("CaUsedAsEndEntity") {
        "no authority that this machine trusts has signed it; if the service has a private one, \
         add it to the system's (`update-ca-certificates`, `update-ca-trust`), or name a PEM \
         file with it and all others that are needed in SSL_CERT_FILE"
    } else if does("not valid for name") || does("NotValidForName") {
        "it is for another name: correct the endpoint, or the service's certificate"
    } else if does("expired") || does("not valid yet") || does("Expired") || does("NotValidYet") {
        "renew it at the service, or set this machine's clock"
    } else {
        "check which server is at that address"
    };
    let detail = format!("the certificate of the service is not trusted ({reason}): {remedy}");
    Some(Refusal::new(StoreErrorKind::Other, detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::location::{Access, Location};
    use crate::marker::Marker;
    use crate::remote::{Limits, Pace, RetryPolicy};
    use crate::store::Deadline;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::net::TcpListener;

    #[test]
    fn an_error_of_a_private_authority_names_the_certificate_variable() {
        let before = "error sending request: client error (Connect): ";
        for (reason, says) in [
            ("UnknownIssuer", "SSL_CERT_FILE"),
            ("Other(OtherError(CaUsedAsEndEntity))", "SSL_CERT_FILE"),
            (
                "certificate not valid for name \"a\"; it is for \"b\"",
                "another name",
            ),
            ("certificate expired: verification time 2", "clock"),
            ("BadEncoding", "check which server"),
        ] {
            let refusal = refusal(&format!("{before}{INVALID}{reason}")).unwrap();
            assert!(refusal.detail.contains(says), "{refusal}");
            assert_eq!(refusal.kind, StoreErrorKind::Other);
        }
        assert_eq!(refusal("connection refused"), None);
    }

    /// A service with a self-signed certificate; returns its port.
    async fn served() -> u16 {
        let names = vec!["localhost".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.unwrap())
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = acceptor.accept(stream).await;
            }
        });
        port
    }

    #[tokio::test]
    async fn a_service_with_an_authority_of_its_own_is_not_called_out_of_reach() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let keys = "[default]\naws_access_key_id=a\naws_secret_access_key=b\n";
        let endpoint = format!("endpoint=https://localhost:{}", served().await);
        for (place, credentials) in [
            (format!("s3://bucket?{endpoint}"), file("s3", keys)),
            (
                format!("azure://me/box?{endpoint}"),
                file("azure", "c2VjcmV0"),
            ),
        ] {
            let access = Access {
                marker: Marker {
                    volume: [3; 16],
                    cloud: 0,
                },
                credentials: Some(credentials),
                collector: None,
                signer: None,
                retry_policy: RetryPolicy::default(),
                limits: Limits::default(),
                shared: Arc::new(Pace::new(Limits::default())),
            };
            let location: Location = place.parse().unwrap();
            let store = location.attach(&access).await.unwrap();
            let soon = Deadline::after(Duration::from_secs(20));
            let error = store.check(soon).await.unwrap_err().to_string();
            assert!(error.contains("SSL_CERT_FILE"), "{error}");
            assert!(!error.contains("reachable"), "{error}");
            assert_eq!(store.traffic().retries, 0, "waiting does not help");
        }
    }
}
