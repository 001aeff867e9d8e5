//! The real metadata service in this process, over a connection that sometimes fails.
//!
//! A call may be late, may fail before or after it was executed, and operations of the block store
//! may be executed twice, which its interface to the metadata allows.

use super::ledger::Ledger;
use super::wire::Life;
use super::world::World;
use async_trait::async_trait;
use bytes::Bytes;
use quorumfs_bft::identity::PublicKey;
use quorumfs_bft_simulator::random::Random;
use quorumfs_gateway::metadata::{
    Embedded, EmbeddedSession, MetadataClient, MetadataError, Transport,
};
use quorumfs_metadata::Metadata;
use quorumfs_metadata::attributes::{Credentials, Mode, Timestamp};
use quorumfs_metadata::identity::{
    CloudIndex, Gid, InodeId, PrincipalNumber, RealmEpoch, RealmId, Uid,
};
use quorumfs_metadata::operation::{Create, NewInode, Operation, Step};
use quorumfs_metadata::placement::Policy;
use quorumfs_metadata::query::{Query, Question};
use quorumfs_metadata::reply::{Answer, QueryResult, StepDone};
use quorumfs_metadata::row::{Cloud, Rights, SliceKey, SliceSalt};
use quorumfs_metadata::simulation::{ordinary, place, principal, sign, unsigned_genesis};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The secret of the owner's key.
pub(super) const OWNER_SEED: [u8; 32] = [1; 32];
/// The owner's key. Only its signatures of changes of the clouds are verified here.
pub(super) const OWNER: PublicKey = PublicKey([
    0x8a, 0x88, 0xe3, 0xdd, 0x74, 0x09, 0xf1, 0x95, 0xfd, 0x52, 0xdb, 0x2d, 0x3c, 0xba, 0x5d, 0x72,
    0xca, 0x67, 0x09, 0xbf, 0x1d, 0x94, 0x12, 0x1b, 0xf3, 0x74, 0x88, 0x01, 0xb4, 0x0f, 0x6f, 0x5c,
]);
/// The key of an ordinary user, and of a malicious one.
pub(super) const USER: PublicKey = PublicKey([2; 32]);
/// The user's number in rows: principals are numbered as the genesis lists them.
pub(super) const USER_NUMBER: PrincipalNumber = PrincipalNumber(1);
/// The ids that the user may act as.
pub(super) const USER_IDS: (Uid, Gid) = (Uid(1000), Gid(1000));
/// The time in all requests of gateways.
pub(super) const TIME: Timestamp = Timestamp {
    seconds: 1_700_000_000,
    nanos: 0,
};

/// A service with a volume of one file, which every principal may write.
pub(super) struct Servers {
    pub(super) embedded: Arc<Embedded<Metadata>>,
    pub(super) file: InodeId,
    /// A session of the judges.
    auditor: EmbeddedSession<Metadata>,
}

impl Servers {
    pub(super) async fn new(policy: Policy) -> Result<Self, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let principals = vec![
            principal(OWNER, Rights::all()),
            principal(USER, ordinary(USER_IDS.0, USER_IDS.1)),
        ];
        let mut genesis = unsigned_genesis(principals, (1, 1, 4)).map_err(|e| text(&e))?;
        genesis.policy = policy;
        genesis.clouds = (0..policy.clouds())
            .map(|index| Cloud {
                index: CloudIndex(index),
                kind: "local".to_owned(),
                failure_domain: format!("domain-{index}"),
                name: format!("cloud-{index}"),
            })
            .collect();
        let began = Instant::now();
        let created = genesis.created.0;
        let clock = move || {
            let elapsed = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            created.saturating_add(elapsed)
        };
        let embedded =
            Embedded::with_clock(Metadata, &sign(&genesis), clock).map_err(|e| text(&e))?;
        let session = embedded.open_session(OWNER).map_err(|e| text(&e))?;
        let client = MetadataClient::new(Arc::new(session), Credentials::root());
        let step = Step::Create(Create {
            place: place(InodeId::ROOT, "file"),
            kind: NewInode::File,
            mode: Mode(0o666),
            umask: Mode(0),
            exclusive: true,
            number: None,
        });
        let created = client.step("create", Credentials::root(), TIME, step).await;
        let file = match created.map_err(|e| text(&e))? {
            StepDone::Created { inode, .. } => inode.inode,
            other => return Err(format!("the file was not created: {other:?}")),
        };
        client.close().await;
        let auditor = embedded.open_session(OWNER).map_err(|e| text(&e))?;
        Ok(Self {
            embedded,
            file,
            auditor,
        })
    }
}

impl Servers {
    /// What a client without failures is answered.
    pub(super) async fn look(&self, question: Question) -> Option<QueryResult> {
        let query = Query {
            credentials: Credentials::root(),
            question,
        };
        let answer = self.auditor.query(query.to_bytes().into()).await.ok()?;
        let answer = Answer::from_bytes(&answer).ok()?;
        answer.0.ok()
    }
}

/// How many calls in a thousand fail in each way.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailureRate {
    pub(super) per_mille: u64,
}

/// One session's connection.
pub(super) struct Connection {
    pub(super) session: EmbeddedSession<Metadata>,
    pub(super) life: Arc<Life>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) random: Mutex<Random>,
    pub(super) failure_rate: FailureRate,
    /// Judges what is ordered; only where there are collectors.
    pub(super) judge: Option<Arc<World>>,
}

impl Connection {
    fn draw(&self) -> (Duration, u64) {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let late = Duration::from_micros(random.between(200, 8000));
        (late, random.below(1000))
    }

    async fn executed(&self, operation: Bytes) -> Result<Bytes, MetadataError> {
        let (late, draw) = self.draw();
        tokio::time::sleep(late).await;
        let each = self.failure_rate.per_mille;
        if draw < each {
            self.ledger.fault("metadata_not_executed");
            return Err(MetadataError::NotExecuted {
                reason: "a simulated failure".to_owned(),
            });
        }
        let decoded = Operation::from_bytes(&operation);
        if let (Some(world), Ok(Operation::Forget { objects })) = (&self.judge, &decoded) {
            for object in objects {
                super::collecting::judge_forget(world, *object).await;
            }
        }
        let repeats = matches!(
            decoded,
            Ok(Operation::ConfirmPlaced { .. }
                | Operation::Forget { .. }
                | Operation::ReplacePlacement { .. }
                | Operation::WithdrawPlaced { .. }
                | Operation::Testify { .. }
                | Operation::MoveSlices { .. }
                | Operation::MoveShards { .. }
                | Operation::ChangeClouds(_))
        );
        if repeats && draw < 4 * each {
            self.ledger.fault("metadata_repeated");
            let _ = self.session.execute(operation.clone()).await;
        }
        let answer = self.session.execute(operation).await?;
        tokio::time::sleep(late).await;
        if draw >= 1000 - each {
            self.ledger.fault("metadata_answer_lost");
            return Err(MetadataError::OutcomeUnknown {
                reason: "a simulated loss of the answer".to_owned(),
            });
        }
        Ok(answer)
    }

    async fn answered(&self, query: Bytes) -> Result<Bytes, MetadataError> {
        let (late, draw) = self.draw();
        tokio::time::sleep(late).await;
        if draw < self.failure_rate.per_mille {
            self.ledger.fault("metadata_not_executed");
            return Err(MetadataError::NotExecuted {
                reason: "a simulated failure".to_owned(),
            });
        }
        self.session.query(query).await
    }
}

#[async_trait]
impl Transport for Connection {
    async fn execute(&self, operation: Bytes) -> Result<Bytes, MetadataError> {
        let result = self.life.bound(self.executed(operation)).await;
        let outcome = if result.is_ok() { "answered" } else { "failed" };
        let client = self.life.client;
        self.ledger.note(&format!("{client} orders: {outcome}"));
        result
    }

    async fn query(&self, query: Bytes) -> Result<Bytes, MetadataError> {
        self.life.bound(self.answered(query)).await
    }

    async fn close(&self) {
        self.session.close().await;
    }
}

/// The key in a slice's row, which is not read here.
pub(super) fn row_key() -> SliceKey {
    SliceKey::Derived {
        realm: RealmId::ROOT,
        epoch: RealmEpoch(0),
        salt: SliceSalt::default(),
    }
}
