//! HTTPS, with a certificate of the operator's.

use super::Site;
use quorumfs_tests::harness::HttpAnswer;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use std::fs;
use std::io::{Read, Write};
use std::sync::Arc;

#[test]
fn with_a_certificate_links_are_served_over_https_alone() {
    let directory = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let paths = ["certificate.pem", "key.pem"].map(|it| directory.path().join(it));
    fs::write(&paths[0], made.cert.pem()).unwrap();
    fs::write(&paths[1], made.signing_key.serialize_pem()).unwrap();
    let [certificate, key] = paths.each_ref().map(|it| it.to_str().unwrap());
    let site = Site::start_with(&["--certificate", certificate, "--certificate-key", key]);
    let file = site.share("/Photos/notes.txt", &[]);

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
    let name = ServerName::try_from("localhost").unwrap();
    let client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut secured = rustls::StreamOwned::new(client, site.gateway().connect());
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        file.target
    );
    secured.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    secured.read_to_end(&mut bytes).unwrap();
    let answer = HttpAnswer::read(&bytes[..]);
    assert_eq!(
        (answer.status(), answer.text().as_str()),
        (200, "the notes")
    );
    let plain = site.get(&file.target);
    assert!(
        !plain.text().contains("notes") && plain.status() == 0,
        "{plain:?}"
    );
}
