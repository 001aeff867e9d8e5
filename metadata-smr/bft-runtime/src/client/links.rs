//! A client's connections: one to every replica, dialed for ever.

use super::machine::Machine;
use super::{ClientConfig, ClientError, StatusError, Task, Unreachable};
use crate::limits;
use crate::link::LinkError;
use crate::link::connection::Greeted;
use crate::link::dial::{Backoff, Dialer};
use crate::link::frame::{Frame, Kind as FrameKind};
use crate::link::hello::{Refusal, Role};
use crate::link::outbox::{Bounds, Outbox};
use crate::replica_links::LinkState;
use crate::tls::{Identity, TlsError};
use bytes::Bytes;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::client::Event;
use quorumfs_bft::identity::{ClusterId, Epoch, Group, ReplicaId, View};
use quorumfs_bft::metrics::ReplicaStatus;
use quorumfs_bft::wire::frame::{Envelope, Header, encode};
use quorumfs_bft::wire::limits::FRAME_BYTES_MAX;
use quorumfs_bft::wire::message::{Kind, Message, StatusQuery};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

const BOUNDS: Bounds = Bounds {
    frames_max: limits::CLIENT_OUTBOX_FRAMES_MAX,
    frames_away_max: limits::AWAY_OUTBOX_FRAMES_MAX,
    bytes_max: limits::CLIENT_OUTBOX_BYTES_MAX,
};

/// Questions for a status that wait for one replica; beyond it the oldest goes unanswered.
const QUESTIONS_MAX: usize = 64;

/// One replica, from a client's side.
#[derive(Debug)]
struct Link {
    replica: ReplicaId,
    address: SocketAddr,
    cluster: ClusterId,
    outbox: Arc<Outbox>,
    state: LinkState,
    /// The reason is of a kind that dialing again will not cure.
    hopeless: AtomicBool,
    /// Whether there is a connection.
    connected: watch::Sender<bool>,
    nonce: AtomicU64,
    questions: Mutex<BTreeMap<u64, oneshot::Sender<ReplicaStatus>>>,
}

/// The links before they dial.
pub(crate) struct Prepared {
    links: Vec<(Arc<Link>, Dialer)>,
}

/// All links of a client.
#[derive(Debug)]
pub(crate) struct Links {
    links: Vec<Arc<Link>>,
    _tasks: Vec<Task>,
}

impl Links {
    /// Lays out the links, and their outboxes for whoever sends.
    pub(crate) fn prepare(
        config: &ClientConfig,
        identity: &Identity,
    ) -> Result<(Prepared, BTreeMap<ReplicaId, Arc<Outbox>>), ClientError> {
        let mut links = Vec::new();
        for member in &config.replicas {
            let connector = identity
                .connector(member.key)
                .map_err(|error| ClientError::Configuration(error.to_string()))?;
            let link = Arc::new(Link {
                replica: member.id,
                address: member.address,
                cluster: config.cluster,
                outbox: Arc::new(Outbox::new(BOUNDS)),
                state: LinkState::default(),
                hopeless: AtomicBool::new(false),
                connected: watch::Sender::new(false),
                nonce: AtomicU64::new(0),
                questions: Mutex::default(),
            });
            link.state.set(Some("not dialed yet".to_owned()));
            let dialer = Dialer {
                wanted: member.id,
                address: member.address,
                connector,
                cluster: config.cluster,
                role: Role::Client,
                authentication: Authentication::Sig,
            };
            links.push((link, dialer));
        }
        let outboxes = links
            .iter()
            .map(|(link, _)| (link.replica, link.outbox.clone()))
            .collect();
        Ok((Prepared { links }, outboxes))
    }

    /// Links that dialing again will not bring about.
    pub(crate) fn hopeless(&self) -> usize {
        let hopeless = |link: &&Arc<Link>| link.hopeless.load(Ordering::Relaxed);
        self.links.iter().filter(hopeless).count()
    }

    /// Who is not connected, and why.
    pub(crate) fn unreachable(&self) -> Vec<Unreachable> {
        let unreachable = |link: &Arc<Link>| {
            Some(Unreachable {
                replica: link.replica,
                address: link.address,
                reason: link.state.unreachable()?,
            })
        };
        self.links.iter().filter_map(unreachable).collect()
    }

    /// Asks every replica for its status, all at once.
    pub(crate) async fn ask_status(
        &self,
        deadline: Duration,
    ) -> Vec<(ReplicaId, Result<ReplicaStatus, StatusError>)> {
        let mut asked = Vec::new();
        for link in &self.links {
            let link = link.clone();
            asked.push((
                link.replica,
                tokio::spawn(async move { link.ask_status(deadline).await }),
            ));
        }
        let mut answers = Vec::new();
        for (replica, answer) in asked {
            let answer = answer
                .await
                .unwrap_or_else(|error| Err(StatusError::Unreachable(error.to_string())));
            answers.push((replica, answer));
        }
        answers
    }
}

impl Prepared {
    /// Begins to dial; what comes in goes to the machine.
    pub(crate) fn start(self, machine: Option<Arc<Machine>>) -> Links {
        let mut tasks = Vec::new();
        let mut links = Vec::new();
        for (link, dialer) in self.links {
            links.push(link.clone());
            let keeping = keep(link, dialer, machine.clone());
            tasks.push(Task(tokio::spawn(keeping)));
        }
        Links {
            links,
            _tasks: tasks,
        }
    }
}

/// Keeps one connection, for ever.
async fn keep(link: Arc<Link>, dialer: Dialer, machine: Option<Arc<Machine>>) {
    let mut backoff = Backoff::default();
    loop {
        let error = match dialer.dial().await {
            Ok(greeted) => {
                backoff.reset();
                link.hopeless.store(false, Ordering::Relaxed);
                link.state.set(None);
                link.outbox.set_connected(true);
                link.connected.send_replace(true);
                let replica = link.replica;
                if let Some(machine) = &machine {
                    machine.step(Event::Connected { replica });
                }
                let error = link.talk(greeted, machine.as_deref()).await;
                link.connected.send_replace(false);
                link.outbox.set_connected(false);
                link.state.set(Some(error.to_string()));
                if let Some(machine) = &machine {
                    machine.step(Event::Disconnected { replica });
                }
                error
            }
            Err(error) => error,
        };
        tracing::debug!(replica = %link.replica, %error, "not connected");
        link.hopeless.store(is_hopeless(&error), Ordering::Relaxed);
        link.state.set(Some(error.to_string()));
        backoff.pause().await;
    }
}

/// Whether only somebody who changes a configuration can help.
fn is_hopeless(error: &LinkError) -> bool {
    match error {
        LinkError::WrongCluster { .. } | LinkError::Tls(TlsError::WrongKey { .. }) => true,
        LinkError::Refused(refusal) => match refusal {
            Refusal::WrongCluster
            | Refusal::Version
            | Refusal::NotThatReplica
            | Refusal::NotMe
            | Refusal::Authentication => true,
            // These pass by themselves.
            Refusal::Full | Refusal::FullForPrincipal | Refusal::Blacklisted => false,
        },
        _ => false,
    }
}

impl Link {
    async fn talk(&self, greeted: Greeted, machine: Option<&Machine>) -> LinkError {
        let (mut reader, mut writing) = greeted.start(self.outbox.clone(), FRAME_BYTES_MAX);
        let reading = async {
            loop {
                match reader.next().await {
                    Ok(frame) if frame.kind == FrameKind::Message => {
                        self.hear(frame.payload, machine);
                    }
                    Ok(_) => return LinkError::Malformed("a second greeting"),
                    Err(error) => return error,
                }
            }
        };
        tokio::select! {
            error = reading => error,
            error = writing.ended() => error,
        }
    }

    fn hear(&self, frame: Bytes, machine: Option<&Machine>) {
        if frame.get(..8).and_then(Kind::of_tag) == Some(Kind::StatusAnswer) {
            self.hear_status(frame);
        } else if let Some(machine) = machine {
            let from = self.replica;
            machine.step(Event::Received { from, frame });
        }
    }

    fn questions(
        &self,
    ) -> std::sync::MutexGuard<'_, BTreeMap<u64, oneshot::Sender<ReplicaStatus>>> {
        self.questions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn hear_status(&self, frame: Bytes) {
        let Ok(envelope) = Envelope::decode(frame) else {
            return;
        };
        if let Message::StatusAnswer(answer) = envelope.message()
            && let Some(asker) = self.questions().remove(&answer.nonce)
        {
            let _ = asker.send(answer.status.clone());
        }
    }

    async fn ask_status(&self, deadline: Duration) -> Result<ReplicaStatus, StatusError> {
        let asking = async {
            let mut connected = self.connected.subscribe();
            if connected.wait_for(|connected| *connected).await.is_err() {
                return None;
            }
            let nonce = self.nonce.fetch_add(1, Ordering::Relaxed);
            let (sender, receiver) = oneshot::channel();
            {
                let mut questions = self.questions();
                while questions.len() >= QUESTIONS_MAX {
                    questions.pop_first();
                }
                questions.insert(nonce, sender);
            }
            let header = Header {
                cluster: self.cluster,
                epoch: Epoch(0),
                group: Group(0),
                view: View(0),
            };
            let question = encode(header, &Message::StatusQuery(StatusQuery { nonce }));
            self.outbox.push(Frame::message(question));
            receiver.await.ok()
        };
        match tokio::time::timeout(deadline, asking).await {
            Ok(Some(status)) => Ok(status),
            _ => Err(match self.state.unreachable() {
                Some(reason) => StatusError::Unreachable(reason),
                None => StatusError::Silent(deadline),
            }),
        }
    }
}
