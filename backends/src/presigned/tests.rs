//! Presigned URLs from stores to the reader, at servers of the providers' protocols.

use super::*;
use crate::emulators::{Emulator, Server};
use crate::error::{Operation, StoreError, StoreErrorKind};
use crate::faulty::{Faulty, Plan};
use crate::local::LocalStore;
use crate::location::{Access, Location};
use crate::marker::Marker;
use crate::name::ObjectName;
use crate::remote::{Limits, Pace, RetryPolicy};
use crate::shaped::{Shape, Shaped};
use crate::store::{Deadline, ObjectStore};
use crate::unusable::Unusable;
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

const MARKER: Marker = Marker {
    volume: [5; 16],
    cloud: 2,
};
const HOUR: Duration = Duration::from_secs(3_600);

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(30))
}

fn name(text: &str) -> ObjectName {
    ObjectName::parse(text).unwrap()
}

/// A running server with two objects, `00/x` and `00/y`.
struct Served {
    _directory: TempDir,
    _emulator: Emulator,
    store: Arc<dyn ObjectStore>,
    reader: PresignedReader,
}

async fn served(server: Server) -> Served {
    let directory = tempfile::tempdir().unwrap();
    let emulator = Emulator::start(server, directory.path()).await.unwrap();
    let location = emulator.location("box", "my vol/a%20b");
    let location: Location = location.parse().unwrap();
    let credentials = emulator.credentials();
    let created = location.create_container(credentials.as_deref()).await;
    created.unwrap();
    let access = Access {
        marker: MARKER,
        credentials,
        collector: None,
        signer: None,
        retry_policy: RetryPolicy::default(),
        limits: Limits::default(),
        shared: Arc::new(Pace::new(Limits::default())),
    };
    let store = location.attach(&access).await.unwrap();
    store.found(soon()).await.unwrap();
    for (object, body) in [("00/x", "the object"), ("00/y", "another")] {
        let (object, body) = (name(object), Bytes::from(body));
        let put = store.put_if_absent(&object, body, soon()).await;
        put.unwrap();
    }
    Served {
        _directory: directory,
        _emulator: emulator,
        store,
        reader: PresignedReader::with_loopback().unwrap(),
    }
}

impl Served {
    async fn sign(&self, object: &str, valid_for: Duration) -> PresignedUrl {
        let signed = self.store.presign(&name(object), valid_for, soon()).await;
        signed.unwrap()
    }

    async fn read(&self, url: &str) -> Result<Bytes, StoreError> {
        self.reader.get(url, None, 100, soon()).await
    }

    async fn kind_of_refusal(&self, url: &str) -> StoreErrorKind {
        let error = self.read(url).await.unwrap_err();
        assert!(!error.to_string().contains("00/"), "{error}");
        error.kind
    }

    /// Reads an object by its URL, all of it and parts.
    async fn read_all_and_parts(&self) {
        let traffic = self.store.traffic();
        let before = unix_seconds(SystemTime::now());
        let signed = self.sign("00/x", HOUR).await;
        let after = unix_seconds(SystemTime::now());
        let hour = HOUR.as_secs();
        assert!((before + hour..=after + hour).contains(&signed.expires));
        assert!(!signed.may_end_earlier);
        assert_eq!(self.store.traffic(), traffic, "a signature is no request");
        assert_eq!(self.read(&signed.url).await.unwrap(), "the object");
        let part = |range| self.reader.get(&signed.url, Some(range), 100, soon());
        assert_eq!(part(4..7).await.unwrap(), "obj");
        assert_eq!(part(0..10).await.unwrap(), "the object");
        let beyond = part(4..11).await.unwrap_err();
        assert_eq!(beyond.kind, StoreErrorKind::Corrupt, "{beyond}");
        let behind = part(10..12).await.unwrap_err();
        assert_eq!(behind.kind, StoreErrorKind::Corrupt, "{behind}");
        let small = self.reader.get(&signed.url, None, 9, soon()).await;
        assert_eq!(small.unwrap_err().kind, StoreErrorKind::Corrupt);
        let missing = self.sign("00/missing", HOUR).await;
        let kind = self.kind_of_refusal(&missing.url).await;
        assert_eq!(kind, StoreErrorKind::NotFound);
        let strict = PresignedReader::new().unwrap();
        let refused = strict.get(&signed.url, None, 100, soon()).await;
        assert_eq!(refused.unwrap_err().kind, StoreErrorKind::Unsupported);
    }

    /// Sees that the server refuses a URL for another object, with another end, and after its end.
    async fn see_the_signature_enforced(&self, end: (&str, &str)) {
        let signed = self.sign("00/x", HOUR).await;
        let other = signed
            .url
            .replace("00%2Fx", "00%2Fy")
            .replace("00/x", "00/y");
        assert_ne!(other, signed.url);
        let (from, to) = end;
        let later = signed.url.replace(from, to);
        assert_ne!(later, signed.url);
        let (place, _) = signed.url.split_once('?').unwrap();
        for altered in [&other, &later] {
            let kind = self.kind_of_refusal(altered).await;
            assert_eq!(kind, StoreErrorKind::Denied);
        }
        assert!(self.read(place).await.is_err(), "nothing is public");
        let short = self.sign("00/x", Duration::from_secs(1)).await;
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        let kind = self.kind_of_refusal(&short.url).await;
        assert_eq!(kind, StoreErrorKind::Denied);
        assert_eq!(self.read(&signed.url).await.unwrap(), "the object");
    }
}

#[tokio::test]
async fn versitygw_answers_its_presigned_urls_and_no_others() {
    let served = served(Server::Versitygw).await;
    served.read_all_and_parts().await;
    let end = ("X-Amz-Expires=3600", "X-Amz-Expires=7200");
    served.see_the_signature_enforced(end).await;
}

#[tokio::test]
async fn azurite_answers_its_presigned_urls_and_no_others() {
    let served = served(Server::Azurite).await;
    served.read_all_and_parts().await;
    let year = |seconds: u64| format!("se={}", 1970 + seconds / 31_556_952);
    let this = year(unix_seconds(SystemTime::now()) + HOUR.as_secs());
    served.see_the_signature_enforced((&this, "se=2999")).await;
}

/// It verifies no signature, so there is nothing more to see.
#[tokio::test]
async fn fake_gcs_answers_its_urls() {
    served(Server::FakeGcs).await.read_all_and_parts().await;
}

#[tokio::test]
async fn a_directory_makes_no_urls_and_says_what_does() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cloud");
    LocalStore::create(&path, MARKER).unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(LocalStore::open(&path, MARKER).unwrap());
    let shaped = Shaped::new(Arc::clone(&store), Shape::default());
    let faulty = Faulty::new(Arc::clone(&store), Plan::honest(), 1);
    let stores: [&dyn ObjectStore; 3] = [&*store, &shaped, &faulty];
    for store in stores {
        let error = store
            .presign(&name("00/x"), HOUR, soon())
            .await
            .unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Unsupported);
        assert_eq!(error.operation, Operation::Presign);
        assert!(error.detail.contains("`quorumfs serve`"), "{error}");
        assert!(!error.kind.concerns_the_cloud() && !error.kind.is_transient());
    }
}

#[tokio::test]
async fn an_unusable_cloud_gives_its_own_reason() {
    let error = StoreError {
        kind: StoreErrorKind::Denied,
        operation: Operation::Open,
        cloud: "cloud 0".to_owned(),
        object: None,
        detail: "it has no credentials".to_owned(),
    };
    let unusable = Unusable::new(error);
    let refused = unusable.presign(&name("00/x"), HOUR, soon()).await;
    assert_eq!(refused.unwrap_err().detail, "it has no credentials");
}

/// A store that signs, to see that decorators ask it.
#[tokio::test]
async fn decorators_ask_the_store_that_they_wrap() {
    let served = served(Server::Versitygw).await;
    let shaped = Shaped::new(Arc::clone(&served.store), Shape::default());
    let faulty = Faulty::new(Arc::clone(&served.store), Plan::honest(), 1);
    let stores: [&dyn ObjectStore; 2] = [&shaped, &faulty];
    for store in stores {
        let signed = store.presign(&name("00/y"), HOUR, soon()).await.unwrap();
        assert_eq!(served.read(&signed.url).await.unwrap(), "another");
    }
}
