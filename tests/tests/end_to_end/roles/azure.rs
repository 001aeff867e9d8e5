//! Azure's SAS tokens distinguish creating from overwriting, so that every limit holds without
//! retention; a writer's token cannot list, so that founding a cloud needs a collector.

use super::{assert_holds, assert_levels, finding, noise, put, summary};
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use quorumfs_backends::emulators::{Emulator, Server};
use quorumfs_tests::harness::Cluster;
use std::fs;
use std::path::Path;

const ACCOUNT: &str = "devstoreaccount1";
const VERSION: &str = "2022-11-02";
const END: &str = "2099-01-01T00:00:00Z";

/// A token for objects and containers of the account with these permissions.
fn token(connection: &str, permissions: &str) -> String {
    let key = connection.split_once("AccountKey=").unwrap().1;
    let key = STANDARD.decode(key.split_once(';').unwrap().0).unwrap();
    let signed = format!("{ACCOUNT}\n{permissions}\nb\nco\n\n{END}\n\nhttps,http\n{VERSION}\n\n");
    let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
    let signature = STANDARD.encode(hmac::sign(&key, signed.as_bytes()));
    let escaped = |text: &str| {
        let text = text
            .replace('%', "%25")
            .replace('+', "%2B")
            .replace('/', "%2F");
        text.replace('=', "%3D")
            .replace(':', "%3A")
            .replace(',', "%2C")
    };
    format!(
        "sv={VERSION}&ss=b&srt=co&sp={permissions}&se={}&spr=https,http&sig={}",
        escaped(END),
        escaped(&signature)
    )
}

fn write(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn a_token_that_may_create_and_not_write_overwrites_nothing() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let started = Emulator::start(Server::Azurite, directory.path());
    let mut azurite = runtime.block_on(started).unwrap();
    let whole = azurite.credentials().unwrap();
    let connection = fs::read_to_string(&whole).unwrap();
    let location = azurite.location("some-container", "below");
    let created = location
        .parse::<quorumfs_backends::location::Location>()
        .unwrap();
    let created = created.create_container(Some(&whole));
    runtime.block_on(created).unwrap();
    let [writer, reader, collector] = [("writer", "rc"), ("reader", "r"), ("collector", "dl")]
        .map(|(role, may)| write(directory.path(), role, &token(&connection, may)));

    let mut cluster = Cluster::prepare_with(|cluster| {
        let directories = [1, 2, 3].map(|index| cluster.cloud(index));
        let mut clouds = vec![format!("a={location}")];
        for (name, directory) in ["b", "c", "d"].into_iter().zip(directories) {
            clouds.push(format!("{name}={}", directory.display()));
        }
        cluster
            .create_over(&cluster.volume(), &clouds)
            .args(["--cloud-credentials", &format!("a={writer}")])
            .args(["--reader-credentials", &format!("a={reader}")])
            .args(["--collector-credentials", &format!("a={collector}")])
    });
    cluster.start();
    let files = [("one", noise(1, 300_000))];
    put(&cluster, "one", &files[0].1).ok();
    fs::rename(cluster.cloud(1), cluster.cloud(1).with_extension("away")).unwrap();
    fs::rename(cluster.cloud(2), cluster.cloud(2).with_extension("away")).unwrap();
    assert_holds(&cluster, &files);
    fs::rename(cluster.cloud(1).with_extension("away"), cluster.cloud(1)).unwrap();
    fs::rename(cluster.cloud(2).with_extension("away"), cluster.cloud(2)).unwrap();

    // The collector's token was for founding, and is not stored where the volume is mounted.
    let well = cluster.quorumfs().run_with(["doctor", "--no-list"]).ok();
    assert_eq!(summary(&well)["too_much"], 0, "{well:?}");
    let limits = [
        ("creates", "ok"),
        ("gets", "ok"),
        ("overwrites", "ok"),
        ("deletes", "ok"),
        ("lists", "ok"),
    ];
    assert_levels(&well, "a", "writer", &limits);
    let limits = [
        ("creates", "ok"),
        ("gets", "ok"),
        ("overwrites", "ok"),
        ("deletes", "ok"),
    ];
    assert_levels(&well, "a", "reader", &limits);
    let trial = finding(&well, "a", None, "trial");
    assert!(
        trial["text"]
            .as_str()
            .unwrap()
            .contains("of the trial stay"),
        "{trial}"
    );

    super::configure(&cluster, "a", "collector_credentials", &collector);
    let well = cluster.quorumfs().run_with(["doctor"]).ok();
    let limits = [
        ("lists", "ok"),
        ("deletes", "ok"),
        ("gets", "ok"),
        ("creates", "ok"),
    ];
    assert_levels(&well, "a", "collector", &limits);
    let trial = finding(&well, "a", None, "trial");
    assert!(
        trial["text"].as_str().unwrap().contains("deleted"),
        "{trial}"
    );

    super::configure(&cluster, "a", "credentials", &whole.display().to_string());
    let found = cluster.quorumfs().run_with(["doctor"]);
    assert_eq!(found.code, Some(17), "{found:?}");
    let limits = [("overwrites", "too_much"), ("deletes", "too_much")];
    assert_levels(&found, "a", "writer", &limits);
    runtime.block_on(azurite.stop());
}
