//! Attackers, as separate processes: what each sends, as fast as it can.
//!
//! They are what the cluster allows any process to be: holders of a key with a session, strangers
//! under ever new keys, or one of the replicas. Attacks that need secrets of others are not tried
//! here.

use super::protocol::{Attack, ReplicaSetting};
use crate::failure::{BenchResult, failed};
use bytes::Bytes;
use quorumfs_bft::authentication::{Authentication, Signer};
use quorumfs_bft::identity::{
    Digest, Epoch, Group, Lane, ReplicaId, RequestNumber, Sequence, SessionId, Signature, Time,
    View,
};
use quorumfs_bft::wire::limits::REQUEST_BYTES_MAX;
use quorumfs_bft::wire::message::{
    Ballot, FetchCommitted, Message, OpenSession, Outcome as Came, Request, RequestOperation,
    StatusQuery,
};
use quorumfs_bft::wire::{Envelope, Header, Unsigned, encode};
use quorumfs_bft_runtime::client::Member;
use quorumfs_bft_runtime::keys::NodeKey;
use quorumfs_bft_runtime::link::connection::{FrameReader, Greeted};
use quorumfs_bft_runtime::link::dial::{Backoff, Dialer};
use quorumfs_bft_runtime::link::frame::Frame;
use quorumfs_bft_runtime::link::hello::Role;
use quorumfs_bft_runtime::link::outbox::{Bounds, Outbox};
use quorumfs_bft_runtime::tls::Identity;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::task::JoinSet;

/// Connections of a flooding client to each replica.
const CONNECTIONS: usize = 4;
/// Frames that may wait on one connection.
const WAITING: usize = 512;
const BOUNDS: Bounds = Bounds {
    frames_max: 2 * WAITING,
    frames_away_max: 16,
    bytes_max: 16 << 20,
};
const FRAME_MAX: usize = 40 << 20;
/// Nearly as much as a request may be.
const HUGE: usize = REQUEST_BYTES_MAX - 1024;

/// Running attackers; they stop when this is dropped.
pub(super) struct Attackers {
    sent: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

/// One attacker's view of the cluster.
#[derive(Clone)]
struct Target {
    header: Header,
    member: Member,
    role: Role,
    sent: Arc<AtomicU64>,
}

impl Target {
    async fn dial(&self, identity: &Identity) -> Option<Greeted> {
        let dialer = Dialer {
            wanted: self.member.id,
            addresses: vec![self.member.address.clone()],
            connector: identity.connector(self.member.key).ok()?,
            cluster: self.header.cluster,
            role: self.role,
            authentication: Authentication::Sig,
            process: 0,
        };
        dialer.dial().await.ok()
    }

    /// Sends the same frames repeatedly, and reconnects when it is disconnected.
    async fn flood(self, identity: Arc<Identity>, frames: Vec<Bytes>) {
        let mut backoff = Backoff::default();
        loop {
            if let Some(greeted) = self.dial(&identity).await {
                backoff.reset();
                let outbox = outbox();
                let (mut reader, mut writing) = greeted.start(outbox.clone(), FRAME_MAX);
                tokio::select! {
                    () = self.push(&outbox, &frames) => {}
                    () = drain(&mut reader) => {}
                    _ = writing.ended() => {}
                }
            }
            backoff.pause().await;
        }
    }

    async fn push(&self, outbox: &Outbox, frames: &[Bytes]) {
        let longest = frames.iter().map(Bytes::len).max().unwrap_or_default();
        let most = WAITING.min(BOUNDS.bytes_max / longest.max(1) / 2);
        loop {
            while outbox.waiting() < most {
                for frame in frames {
                    outbox.push(Frame::message(frame.clone()));
                }
                self.sent.fetch_add(frames.len() as u64, Ordering::Relaxed);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Sends one bad signature under each of many keys.
    async fn spoil(self) {
        loop {
            if self.spoil_once().await.is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }

    async fn spoil_once(&self) -> Option<()> {
        let key = Arc::new(NodeKey::generate().ok()?);
        let opening = Message::OpenSession(opening(&key, &key));
        let spoiled = Unsigned::new(self.header, opening).with_signature(Signature([7; 64]));
        let identity = Identity::new(key).ok()?;
        let greeted = self.dial(&identity).await?;
        let outbox = outbox();
        let (mut reader, _writing) = greeted.start(outbox.clone(), FRAME_MAX);
        outbox.push(Frame::message(spoiled.frame().clone()));
        self.sent.fetch_add(1, Ordering::Relaxed);
        // Until it is disconnected.
        let _ = tokio::time::timeout(Duration::from_secs(1), drain(&mut reader)).await;
        Some(())
    }
}

fn outbox() -> Arc<Outbox> {
    let outbox = Arc::new(Outbox::new(BOUNDS));
    outbox.set_connected(true);
    outbox
}

async fn drain(reader: &mut FrameReader) {
    while reader.next().await.is_ok() {}
}

fn opening(principal: &NodeKey, session: &NodeKey) -> OpenSession {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let nanos = now.unwrap_or_default().as_nanos();
    OpenSession {
        principal: principal.public_key(),
        session_key: session.public_key(),
        lanes: 1,
        time: Time(u64::try_from(nanos).unwrap_or(u64::MAX)),
    }
}

impl Attackers {
    /// Starts them.
    pub(super) async fn start(
        setting: &ReplicaSetting,
        attack: Attack,
        key: Arc<NodeKey>,
    ) -> BenchResult<Self> {
        let me = ReplicaId(setting.replica);
        let role = match attack {
            Attack::Votes | Attack::Fetches => Role::Replica(me),
            _ => Role::Client,
        };
        let sent = Arc::new(AtomicU64::new(0));
        let header = Header {
            cluster: setting.cluster(),
            epoch: Epoch(0),
            group: Group(0),
            view: View(0),
        };
        let mut targets = Vec::new();
        for member in setting.replicas()? {
            if member.id != me {
                targets.push(Target {
                    header,
                    member,
                    role,
                    sent: sent.clone(),
                });
            }
        }
        let identity = Identity::new(key.clone());
        let identity = Arc::new(identity.map_err(|error| failed("make a certificate", &error))?);
        let frames = match attack {
            Attack::Requests => vec![ask(&targets, &identity, &key, 0).await?],
            Attack::Huge => vec![ask(&targets, &identity, &key, HUGE).await?],
            Attack::Questions => {
                let question = Message::StatusQuery(StatusQuery { nonce: 1 });
                vec![encode(header, &question)]
            }
            Attack::BadSignatures => Vec::new(),
            Attack::Votes => {
                // For a sequence far ahead, so that it never becomes stale.
                let vote = Message::Commit(Ballot {
                    sequence: Sequence(u64::MAX / 2),
                    digest: Digest::default(),
                    signer: me,
                });
                vec![Unsigned::new(header, vote).sign(&*key).frame().clone()]
            }
            Attack::Fetches => {
                let fetch = |from| {
                    let from = Sequence(from);
                    encode(header, &Message::FetchCommitted(FetchCommitted { from }))
                };
                (1..=64).map(fetch).collect()
            }
        };
        let mut tasks = JoinSet::new();
        for target in targets {
            let copies = match attack {
                Attack::Votes | Attack::Fetches => 1,
                _ => CONNECTIONS,
            };
            for _ in 0..copies {
                let target = target.clone();
                if attack == Attack::BadSignatures {
                    tasks.spawn(target.spoil());
                } else {
                    tasks.spawn(target.flood(identity.clone(), frames.clone()));
                }
            }
        }
        Ok(Self {
            sent,
            _tasks: tasks,
        })
    }

    /// Frames sent so far.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

/// Opens a session in the usual way and returns the frame of its first request.
async fn ask(
    targets: &[Target],
    identity: &Identity,
    key: &NodeKey,
    bytes: usize,
) -> BenchResult<Bytes> {
    let describe = |what: &str| failed("open an attacker's session", &what);
    let session = NodeKey::generate().map_err(|error| failed("make a key", &error))?;
    let (mut links, mut opened) = (Vec::new(), None);
    let header = targets.first().map(|target| target.header);
    let header = header.ok_or_else(|| describe("there are no replicas"))?;
    let opening = Unsigned::new(header, Message::OpenSession(opening(key, &session))).sign(key);
    for target in targets {
        let greeted = target.dial(identity).await;
        let outbox = outbox();
        let greeted = greeted.ok_or_else(|| describe("no connection"))?;
        let (reader, writing) = greeted.start(outbox.clone(), FRAME_MAX);
        outbox.push(Frame::message(opening.frame().clone()));
        links.push((reader, writing, outbox));
    }
    for (reader, _, _) in &mut links {
        let next = tokio::time::timeout(Duration::from_secs(10), reader.next()).await;
        let frame = next.map_err(|_| describe("no answer"))?;
        let frame = frame.map_err(|error| describe(&error.to_string()))?;
        let envelope = Envelope::decode(frame.payload);
        let envelope = envelope.map_err(|error| describe(&error.to_string()))?;
        if let Message::Reply(reply) = envelope.message()
            && let Came::SessionOpened { session, .. } = reply.outcome
        {
            opened = Some(session);
        }
    }
    let id: SessionId = opened.ok_or_else(|| describe("refused"))?;
    let request = Message::Request(Request {
        session: id,
        lane: Lane(0),
        number: RequestNumber(1),
        operations: vec![RequestOperation::Execute(vec![7; bytes].into())],
    });
    Ok(Unsigned::new(header, request)
        .sign(&session)
        .frame()
        .clone())
}
