//! Reading by URLs from clouds of which one lies, fails, hangs or answers late, and from too many.

use super::*;
use crate::blocks::object::Sealer;
use crate::blocks::{Compression, LinkedShard};
use crate::keys::{CloudSecret, Secret};
use quorumfs_backends::Operation;
use quorumfs_bft::identity::ClusterId;
use quorumfs_metadata::identity::{AllocationId, SliceId};
use quorumfs_metadata::placement::Policy;

const VOLUME: VolumeId = ClusterId([1; 16]);
const CLOUDS: usize = 4;

/// What a cloud does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conduct {
    Good,
    /// Flips a bit of each answer.
    Lies,
    Fails(StoreErrorKind),
    /// Never answers.
    Hangs,
    /// Is overloaded at the first question.
    FailsOnce,
}

#[derive(Debug)]
struct ScriptedClouds {
    bodies: Vec<Bytes>,
    conduct: Mutex<[Conduct; CLOUDS]>,
    asked: Mutex<Vec<usize>>,
}

fn url(cloud: usize) -> String {
    format!("https://cloud-{cloud}.example/object?signature=secret")
}

#[async_trait]
impl UrlReader for ScriptedClouds {
    async fn get(&self, url: &str, most: u64, _: Deadline) -> Result<Bytes, StoreError> {
        let cloud = (0..CLOUDS).find(|cloud| url == super::tests::url(*cloud));
        let cloud = cloud.unwrap();
        self.asked.lock().unwrap().push(cloud);
        let failed = |kind| StoreError {
            kind,
            operation: Operation::Get,
            cloud: host_of(url),
            object: None,
            detail: "no".to_owned(),
        };
        let conduct = self.conduct.lock().unwrap()[cloud];
        match conduct {
            Conduct::Good => {}
            Conduct::Lies => {
                let mut body = self.bodies[cloud].to_vec();
                let middle = body.len() / 2;
                body[middle] ^= 1;
                return Ok(body.into());
            }
            Conduct::Fails(kind) => return Err(failed(kind)),
            Conduct::Hangs => std::future::pending().await,
            Conduct::FailsOnce => {
                self.conduct.lock().unwrap()[cloud] = Conduct::Good;
                return Err(failed(StoreErrorKind::Throttled));
            }
        }
        assert!(self.bodies[cloud].len() as u64 <= most);
        Ok(self.bodies[cloud].clone())
    }
}

/// A slice that is linked at all clouds.
struct Linked {
    object: Arc<LinkedObject>,
    slice: SealedSlice,
    key: SliceKey,
    plain: Vec<u8>,
    clouds: Arc<ScriptedClouds>,
}

fn id(counter: u32) -> ObjectId {
    ObjectId {
        allocation: AllocationId(1),
        counter,
    }
}

fn linked(counter: u32, compression: Compression) -> Linked {
    let policy = Policy::new(4, 1, 2, 4).unwrap();
    let secrets = [0; CLOUDS].map(|it| CloudSecret::from_secret(Secret::from_bytes([it; 32])));
    let sealer = Sealer::new(VOLUME, policy, &secrets).unwrap();
    let key = SliceKey::from_secret(Secret::from_bytes([9; 32]));
    let plain: Vec<u8> = (0..200_000_u32).map(|it| (it % 200) as u8).collect();
    let slice = SliceId {
        allocation: AllocationId(1),
        counter,
    };
    let sealer = sealer.compressing(compression);
    let sealed = sealer.seal_slice(id(counter), slice, &key, &plain);
    let (slice, shards) = sealed.unwrap();
    let of_cloud = |(cloud, (body, digest)): (usize, &(Bytes, _))| LinkedShard {
        digest: *digest,
        header: body[..83].try_into().unwrap(),
        url: Some(url(cloud)),
    };
    Linked {
        object: Arc::new(LinkedObject {
            id: id(counter),
            policy,
            length: slice.sealed_length,
            shards: shards.iter().enumerate().map(of_cloud).collect(),
        }),
        slice,
        key,
        plain,
        clouds: Arc::new(ScriptedClouds {
            bodies: shards.into_iter().map(|(body, _)| body).collect(),
            conduct: Mutex::new([Conduct::Good; CLOUDS]),
            asked: Mutex::default(),
        }),
    }
}

impl Linked {
    fn reader(&self, conduct: &[(usize, Conduct)]) -> LinkedReader {
        for (cloud, conduct) in conduct {
            self.clouds.conduct.lock().unwrap()[*cloud] = *conduct;
        }
        LinkedReader::new(Arc::clone(&self.clouds) as Arc<dyn UrlReader>)
    }

    async fn read(&self, reader: &LinkedReader) -> Result<Bytes, LinkedError> {
        let read = reader.read(VOLUME, &self.object, self.slice, &self.key);
        read.await
    }

    fn asked(&self) -> Vec<usize> {
        std::mem::take(&mut self.clouds.asked.lock().unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn the_content_comes_whatever_any_one_cloud_does() {
    let conducts = [
        Conduct::Good,
        Conduct::Lies,
        Conduct::Fails(StoreErrorKind::Denied),
        Conduct::Fails(StoreErrorKind::Unavailable),
        Conduct::Hangs,
        Conduct::FailsOnce,
    ];
    for compression in [Compression::Off, Compression::Zstd] {
        for conduct in conducts {
            for cloud in 0..CLOUDS {
                let linked = linked(2, compression);
                let reader = linked.reader(&[(cloud, conduct)]);
                let read = linked.read(&reader).await.unwrap();
                assert!(read == linked.plain, "{conduct:?} at {cloud}");
                assert!(linked.asked().len() <= 6);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_failed_or_was_late_is_asked_last_from_then_on() {
    for conduct in [Conduct::Hangs, Conduct::Lies] {
        let first = linked(2, Compression::Off);
        let reader = first.reader(&[(0, conduct)]);
        first.read(&reader).await.unwrap();
        assert!(first.asked().contains(&0));
        let next = Linked {
            object: Arc::new(LinkedObject {
                id: id(3),
                ..LinkedObject::clone(&first.object)
            }),
            slice: SealedSlice {
                object: id(3),
                ..first.slice
            },
            ..first
        };
        let began = tokio::time::Instant::now();
        next.read(&reader).await.unwrap();
        assert!(!next.asked().contains(&0), "{conduct:?}");
        assert!(began.elapsed() < HEDGE_AFTER);
    }
}

#[tokio::test(start_paused = true)]
async fn too_few_clouds_are_an_error_that_tells_an_end_from_an_outage() {
    let gone = Conduct::Fails(StoreErrorKind::Denied);
    let away = Conduct::Fails(StoreErrorKind::Unavailable);
    for (second, third, ended) in [
        (gone, gone, true),
        (gone, away, false),
        (Conduct::Lies, away, false),
        (Conduct::Lies, gone, false),
    ] {
        let linked = linked(2, Compression::Off);
        let reader = linked.reader(&[(0, away), (1, second), (2, third)]);
        let error = linked.read(&reader).await.unwrap_err();
        let LinkedError::TooFewShards {
            good, ended: said, ..
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!((*good, *said), (1, ended), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn another_key_opens_nothing_and_other_sizes_are_refused_before_a_question() {
    let linked = linked(2, Compression::Off);
    let reader = linked.reader(&[]);
    let other = SliceKey::from_secret(Secret::from_bytes([8; 32]));
    let read = reader.read(VOLUME, &linked.object, linked.slice, &other);
    assert!(matches!(
        read.await,
        Err(LinkedError::Block(BlockError::Forged { .. }))
    ));
    linked.asked();
    let longer = SealedSlice {
        length: u32::MAX,
        ..linked.slice
    };
    let read = reader.read(VOLUME, &linked.object, longer, &linked.key);
    assert!(matches!(
        read.await,
        Err(LinkedError::Block(BlockError::Row { .. }))
    ));
    assert!(linked.asked().is_empty());
}

#[test]
fn a_host_is_shown_without_the_rest_of_its_url_and_cannot_forge_a_line() {
    assert_eq!(host_of("https://a.example:443/x?sig=1"), "a.example:443");
    assert_eq!(host_of("https://user:word@a.example/x"), "a.example");
    assert_eq!(
        host_of("https://a.example\\\n hint: run this/x"),
        "a.example"
    );
    assert_eq!(host_of("https://a\u{1b}[31m.example"), "a[31m.example");
    assert_eq!(host_of(&format!("https://{}/", "a".repeat(500))).len(), 100);
    assert_eq!(host_of("no url"), "");
}
