//! One behaviour over every backend, against real servers on loopback, which the tests start and
//! stop. The drivers hide the differences between providers (codes, pages, conditional puts,
//! special cases), so every cloud gets the same requests here.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use bytes::Bytes;
use quorumfs_backends::emulators::{Emulator, Server};
use quorumfs_backends::location::{Access, Location};
use quorumfs_backends::marker::Marker;
use quorumfs_backends::remote::{Limits, Pace, RetryPolicy};
use quorumfs_backends::{Deadline, ObjectName, ObjectStore, StoreErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const CONTAINER: &str = "quorumfs-suite";
const MARKER: Marker = Marker {
    volume: [5; 16],
    cloud: 3,
};

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

fn name(number: u32) -> ObjectName {
    ObjectName::parse(&format!(
        "{:02x}/{:032x}",
        number % 256,
        u64::from(number) * 7919
    ))
    .unwrap()
}

fn body(length: usize, seed: u8) -> Bytes {
    (0..length)
        .map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed))
        .collect()
}

/// A cloud of some kind, with the resources that keep it running.
struct Cloud {
    directory: tempfile::TempDir,
    emulator: Option<Emulator>,
}

impl Cloud {
    async fn local() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            emulator: None,
        }
    }

    async fn of(server: Server) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let emulator = Emulator::start(server, directory.path()).await.unwrap();
        let cloud = Self {
            directory,
            emulator: Some(emulator),
        };
        let location = cloud.location(CONTAINER, "");
        let credentials = cloud.credentials();
        location
            .create_container(credentials.as_deref())
            .await
            .unwrap();
        // Once more: an existing container is no failure.
        location
            .create_container(credentials.as_deref())
            .await
            .unwrap();
        cloud
    }

    fn location(&self, container: &str, prefix: &str) -> Location {
        let text = match &self.emulator {
            Some(emulator) => emulator.location(container, prefix),
            None => self.directory.path().join(container).display().to_string(),
        };
        text.parse().unwrap()
    }

    fn credentials(&self) -> Option<PathBuf> {
        self.emulator.as_ref().and_then(Emulator::credentials)
    }

    async fn store(&self, container: &str, prefix: &str) -> Arc<dyn ObjectStore> {
        let credentials = self.credentials();
        open(
            &self.location(container, prefix),
            credentials.as_deref(),
            MARKER,
        )
        .await
    }
}

async fn open(
    location: &Location,
    credentials: Option<&Path>,
    marker: Marker,
) -> Arc<dyn ObjectStore> {
    let access = Access {
        marker,
        credentials: credentials.map(Path::to_path_buf),
        collector: None,
        signer: None,
        retry_policy: RetryPolicy::default(),
        limits: Limits::default(),
        shared: Arc::new(Pace::new(Limits::default())),
    };
    location.attach(&access).await.unwrap()
}

async fn stores_and_returns_objects(store: &dyn ObjectStore) {
    let long = body(3 << 20, 1);
    for (number, bytes) in [(1, Bytes::new()), (2, body(1, 2)), (3, long.clone())] {
        let receipt = store
            .put_if_absent(&name(number), bytes.clone(), soon())
            .await
            .unwrap();
        let receipt = receipt.expect("every backend returns a receipt");
        assert!(
            receipt.is_for(&bytes),
            "{receipt} for {} bytes",
            bytes.len()
        );
        assert!(!receipt.is_for(b"anything else"), "{receipt}");
        let length = bytes.len() as u64;
        assert_eq!(
            store.head(&name(number), soon()).await.unwrap().length,
            length
        );
        assert_eq!(
            store.get(&name(number), length, soon()).await.unwrap(),
            bytes
        );
    }
    for range in [
        0..1,
        0..65_552,
        1_000_000..1_000_001,
        (3 << 20) - 10..3 << 20,
    ] {
        let part = store
            .get_range(&name(3), range.clone(), soon())
            .await
            .unwrap();
        assert_eq!(part, long[range.start as usize..range.end as usize]);
    }
    assert!(
        store
            .get_range(&name(3), 7..7, soon())
            .await
            .unwrap()
            .is_empty()
    );
    // An object longer than expected, and ranges beyond its end.
    let error = store.get(&name(3), 1000, soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Corrupt, "{error}");
    for range in [(3 << 20) - 10..(3 << 20) + 1, 4 << 20..5 << 20] {
        let error = store.get_range(&name(3), range, soon()).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Corrupt, "{error}");
    }
}

async fn reports_missing_objects(store: &dyn ObjectStore) {
    let missing = name(99);
    let kinds = [
        store.get(&missing, 10, soon()).await.unwrap_err().kind,
        store
            .get_range(&missing, 0..10, soon())
            .await
            .unwrap_err()
            .kind,
        store.head(&missing, soon()).await.unwrap_err().kind,
    ];
    assert_eq!(kinds, [StoreErrorKind::NotFound; 3]);
    store.delete(&missing, soon()).await.unwrap();
}

async fn creates_only(store: &Arc<dyn ObjectStore>) {
    let taken = name(200);
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..16 {
        let (store, taken) = (Arc::clone(store), taken.clone());
        writers.spawn(async move {
            let put = store
                .put_if_absent(&taken, body(2000, writer), soon())
                .await;
            (writer, put)
        });
    }
    let mut won = Vec::new();
    while let Some(done) = writers.join_next().await {
        match done.unwrap() {
            (writer, Ok(_)) => won.push(writer),
            (_, Err(error)) => assert_eq!(error.kind, StoreErrorKind::AlreadyExists, "{error}"),
        }
    }
    assert_eq!(won.len(), 1, "writers {won:?} of one name");
    assert_eq!(
        store.get(&taken, 2000, soon()).await.unwrap(),
        body(2000, won[0])
    );
    store.delete(&taken, soon()).await.unwrap();
    let error = store.head(&taken, soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::NotFound);
}

async fn lists_in_order_and_in_pages(store: &Arc<dyn ObjectStore>) {
    let mut expected: Vec<ObjectName> = (300..340).map(name).collect();
    for name in &expected {
        store
            .put_if_absent(name, body(10, 0), soon())
            .await
            .unwrap();
    }
    expected.extend((1..4).map(name));
    expected.sort();
    let mut found = Vec::new();
    loop {
        let page = store.list("", found.last(), 7, soon()).await.unwrap();
        assert!(page.names.len() <= 7);
        found.extend(page.names);
        if !page.more {
            break;
        }
        assert!(found.len() <= expected.len());
    }
    assert_eq!(found, expected);
    let place = &expected[0].as_str()[..3];
    let below = store.list(place, None, 100, soon()).await.unwrap();
    assert!(!below.names.is_empty());
    assert!(
        below
            .names
            .iter()
            .all(|name| name.as_str().starts_with(place))
    );
    for name in (300..340).map(name) {
        store.delete(&name, soon()).await.unwrap();
    }
    let left = store.list("", None, 100, soon()).await.unwrap();
    assert_eq!((left.names.len(), left.more), (3, false));
}

/// Two volumes in one bucket, under prefixes of which one begins with the other.
async fn keeps_prefixes_apart(cloud: &Cloud) {
    let other = Marker {
        volume: [6; 16],
        ..MARKER
    };
    let credentials = cloud.credentials();
    let one = cloud.location(CONTAINER, "two");
    let store = open(&one, credentials.as_deref(), other).await;
    store.found(soon()).await.unwrap();
    let long = cloud.store(CONTAINER, "two-more").await;
    long.found(soon()).await.unwrap();
    long.put_if_absent(&name(1), body(5, 5), soon())
        .await
        .unwrap();
    assert!(
        store
            .list("", None, 10, soon())
            .await
            .unwrap()
            .names
            .is_empty()
    );
    assert!(store.head(&name(1), soon()).await.is_err());
    store.give_back(soon()).await.unwrap();
    long.check(soon()).await.unwrap();
}

/// The marker of a cloud, and requests that are refused because of it.
async fn checks_the_marker(cloud: &Cloud) {
    let store = cloud.store(CONTAINER, "volume").await;
    let error = store.check(soon()).await.unwrap_err();
    assert!(
        matches!(
            error.kind,
            StoreErrorKind::Foreign | StoreErrorKind::Unavailable
        ),
        "{error}"
    );
    store.found(soon()).await.unwrap();
    store.check(soon()).await.unwrap();
    store.found(soon()).await.unwrap();
    let other = Marker { cloud: 2, ..MARKER };
    let credentials = cloud.credentials();
    let location = cloud.location(CONTAINER, "volume");
    let foreign = open(&location, credentials.as_deref(), other).await;
    for error in [
        foreign.found(soon()).await.unwrap_err(),
        foreign.check(soon()).await.unwrap_err(),
        foreign
            .put_if_absent(&name(1), body(1, 1), soon())
            .await
            .unwrap_err(),
    ] {
        assert_eq!(error.kind, StoreErrorKind::Foreign, "{error}");
    }
}

async fn the_suite(cloud: &Cloud) {
    checks_the_marker(cloud).await;
    let store = cloud.store(CONTAINER, "volume").await;
    stores_and_returns_objects(store.as_ref()).await;
    reports_missing_objects(store.as_ref()).await;
    creates_only(&store).await;
    lists_in_order_and_in_pages(&store).await;
    let error = store.give_back(soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Foreign, "{error}");
}

/// Faults that only a server across a network can have, and that are distinguished.
async fn the_suite_of_servers(mut cloud: Cloud) {
    the_suite(&cloud).await;
    keeps_prefixes_apart(&cloud).await;
    let store = cloud.store(CONTAINER, "volume").await;
    let traffic = store.traffic();
    store.get(&name(3), 3 << 20, soon()).await.unwrap();
    let after = store.traffic();
    assert_eq!(after.gets, traffic.gets + 2, "the marker and the object");
    assert!(after.bytes_received >= traffic.bytes_received + (3 << 20));

    let nowhere = cloud.store("no-such-bucket-here", "").await;
    for error in [
        nowhere.check(soon()).await.unwrap_err(),
        nowhere.found(soon()).await.unwrap_err(),
    ] {
        assert_eq!(error.kind, StoreErrorKind::NoContainer, "{error}");
        assert!(error.to_string().contains("no-such-bucket-here"), "{error}");
    }

    // Frozen: the deadline ends the wait. Stopped: an error at once. Restarted: as before.
    let emulator = cloud.emulator.as_mut().unwrap();
    emulator.freeze().await;
    let begin = Instant::now();
    let error = store
        .get(&name(3), 3 << 20, Deadline::after(Duration::from_secs(2)))
        .await
        .unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Timeout, "{error}");
    assert!(begin.elapsed() < Duration::from_secs(4));
    emulator.thaw();
    store.get(&name(3), 3 << 20, soon()).await.unwrap();
    match emulator.server() {
        // Azurite stores writes only every few seconds.
        Server::Azurite => emulator.stop().await,
        _ => emulator.kill().await,
    }
    let error = store.get(&name(3), 3 << 20, soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    emulator.start_again().await.unwrap();
    assert_eq!(
        store.get(&name(3), 3 << 20, soon()).await.unwrap(),
        body(3 << 20, 1)
    );
    emulator.stop().await;
}

/// Credentials that are wrong in a way that the server detects.
async fn refuses_wrong_credentials(cloud: &Cloud, wrong: &str) {
    let path = cloud.directory.path().join("wrong");
    std::fs::write(&path, wrong).unwrap();
    let location = cloud.location(CONTAINER, "volume");
    let store = open(&location, Some(&path), MARKER).await;
    let error = store.check(soon()).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Denied, "{error}");
    let text = error.to_string();
    assert!(text.contains("credentials"), "{text}");
    assert!(!text.contains("not-the-secret"), "{text}");
}

const WRONG_AWS: &str =
    "[default]\naws_access_key_id = quorumfs-test\naws_secret_access_key = not-the-secret-at-all\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_behaves() {
    the_suite(&Cloud::local().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3_by_versitygw_behaves() {
    let cloud = Cloud::of(Server::Versitygw).await;
    refuses_wrong_credentials(&cloud, WRONG_AWS).await;
    the_suite_of_servers(cloud).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn azure_by_azurite_behaves() {
    let cloud = Cloud::of(Server::Azurite).await;
    let address = cloud.emulator.as_ref().unwrap().address();
    let account = "devstoreaccount1";
    let wrong = format!(
        "DefaultEndpointsProtocol=http;AccountName={account};AccountKey=bm90LXRoZS1zZWNyZXQ=;\
         BlobEndpoint=http://{address}/{account};"
    );
    refuses_wrong_credentials(&cloud, &wrong).await;
    the_suite_of_servers(cloud).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn google_by_fake_gcs_behaves() {
    the_suite_of_servers(Cloud::of(Server::FakeGcs).await).await;
}
