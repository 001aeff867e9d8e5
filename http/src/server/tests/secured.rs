//! HTTPS.

use super::*;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};

#[tokio::test]
async fn a_certificate_makes_it_https() {
    let directory = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let paths = ["certificate", "key"].map(|it| directory.path().join(it));
    std::fs::write(&paths[0], made.cert.pem()).unwrap();
    std::fs::write(&paths[1], made.signing_key.serialize_pem()).unwrap();
    let files = TlsFiles::load(&paths[0], &paths[1]).unwrap();
    let limits = ServingLimits {
        handshake_within: Duration::from_millis(300),
        ..ServingLimits::default()
    };
    let ran = run_with(limits, false, Some(files)).await;
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(&paths[0]).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from("localhost").unwrap();
    let mut secured = connector.connect(name, ran.connect().await).await.unwrap();
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        folder("long")
    );
    secured.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    secured.read_to_end(&mut bytes).await.unwrap();
    assert_eq!(Answered::of(&bytes).body.len(), LONG_BYTES);
    // Neither plain HTTP nor silence is served.
    let plain = ran.get("/", "").await;
    assert!(!plain.head.contains("http/1.1"), "{}", plain.head);
    let began = Instant::now();
    ran.send("").await;
    assert!(began.elapsed() < Duration::from_secs(3));
    ran.stop().await;
}
