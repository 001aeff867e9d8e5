//! `quorumfs-bench smr-replica`: one replica of a service that does nothing, or its replacement.
//!
//! It receives everything on its standard input and stops when that ends, so nothing is left behind
//! however the bench ends.

use super::attackers::Attackers;
use super::baseline::Baseline;
use super::byzantine::{ByzantineCore, Habit};
use super::distance::DistantCore;
use super::flushing;
use super::protocol::{Attack, BenchRole, Hello, ReplicaSetting, Sample, line};
use crate::failure::{BenchFailure, BenchResult, failed};
use crate::processor::process_seconds;
use bytes::Bytes;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::identity::{ClusterId, Incarnation, Nanos, Now, ReplicaId, SessionId};
use quorumfs_bft::service::{Caller, Context, Credit, Service};
use quorumfs_bft::state::{StateError, Txn, View};
use quorumfs_bft::step::Effects;
use quorumfs_bft_runtime::event_loop::Core;
use quorumfs_bft_runtime::keys::NodeKey;
use quorumfs_bft_runtime::server::{ReplicaConfig, ReplicaHandle, ReplicaServer, Start};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// The cluster of every bench: it lives for one run, on loopback, under keys of its own.
pub(super) const CLUSTER: ClusterId = ClusterId(*b"quorumfs-bench\0\0");

/// Answers everything with the same bytes and stores nothing.
pub(super) struct Null {
    answer: Bytes,
}

impl Null {
    pub(super) fn answering(bytes: usize) -> Self {
        Self {
            answer: vec![0; bytes].into(),
        }
    }
}

impl Service for Null {
    fn open_session(
        &self,
        _: &mut Txn<'_>,
        _: &Context,
        _: &Caller,
    ) -> Result<Option<Credit>, StateError> {
        Ok(Some(Credit {
            lanes: 64,
            bytes: 64 << 20,
        }))
    }

    fn execute(
        &self,
        _: &mut Txn<'_>,
        _: &Context,
        _: &Caller,
        _: &[u8],
    ) -> Result<Bytes, StateError> {
        Ok(self.answer.clone())
    }

    fn read(&self, _: &View<'_>, _: &Caller, _: &[u8]) -> Result<Bytes, StateError> {
        Ok(self.answer.clone())
    }
}

/// Runs until standard input ends.
pub(crate) async fn run() -> BenchResult {
    let key = Arc::new(NodeKey::generate().map_err(|error| failed("make a key", &error))?);
    let socket = TcpListener::bind(("127.0.0.1", 0))
        .await
        .map_err(|error| failed("listen on loopback", &error))?;
    let address = socket
        .local_addr()
        .map_err(|error| failed("listen on loopback", &error))?;
    print_line(&Hello {
        address,
        key: key.public().to_string(),
    })?;
    let mut input = lines_of_input();
    let Some(text) = input.recv().await else {
        return Ok(());
    };
    let setting: ReplicaSetting =
        serde_json::from_str(&text).map_err(|error| failed("read the setting", &error))?;
    if let BenchRole::Attacker(attack) = setting.part {
        drop(socket);
        return attack_until_told(&setting, attack, key, input).await;
    }
    let handle = start(&setting, key, socket).await?;
    let flushes = match setting.flushes {
        0 => None,
        rate => Some(flushing::begin(&setting.directory, rate)?),
    };
    loop {
        let status = handle.status().map(|status| status.replica);
        print_line(&Sample {
            processor_seconds: process_seconds(),
            view: status.as_ref().map_or(0, |it| it.view.0),
            batches: status.as_ref().map_or(0, |it| it.counters.batches),
            requests: status.as_ref().map_or(0, |it| it.counters.requests),
            operations: status.as_ref().map_or(0, |it| it.counters.operations),
            flushes: flushes.as_ref().map_or(0, |it| it.load(Ordering::Relaxed)),
        })?;
        if input.recv().await.is_none() {
            break;
        }
    }
    handle.shutdown().await;
    Ok(())
}

async fn start(
    setting: &ReplicaSetting,
    key: Arc<NodeKey>,
    socket: TcpListener,
) -> BenchResult<ReplicaHandle> {
    let fault_model = setting.fault_model()?;
    let durability = setting
        .durability
        .parse()
        .map_err(|error: String| BenchFailure::usage(error))?;
    let describe = |error| failed("start a replica", &error);
    let created = ReplicaServer::initialise_as(&setting.directory, Incarnation::default());
    created.map_err(|error| describe(error.to_string()))?;
    let config = ReplicaConfig {
        id: Some(ReplicaId(setting.replica)),
        cluster: setting.cluster(),
        fault_model,
        replicas: setting.replicas()?,
        administrators: Vec::new(),
        key,
        listen: None,
        directory: setting.directory.clone(),
        free_bytes_min: 0,
        durability,
        genesis: Bytes::new(),
        authentication: match setting.channels {
            true => Authentication::Mac,
            false => Authentication::Sig,
        },
        recording: None,
    };
    let answer = setting.reply_bytes as usize;
    let (part, ways) = (setting.part, setting.ways());
    let service = Null::answering(answer);
    let started = if part == BenchRole::Correct && ways.is_none() {
        // As it is installed, without anything around it.
        ReplicaServer::start_on(config, service, socket).await
    } else {
        let make = move |start: Start, now: Now, effects: &mut Effects| {
            let core: Box<dyn Core> = match part {
                BenchRole::Baseline => {
                    let (context, me) = (start.config.context(), start.config.replica);
                    Box::new(Baseline::new(context, me, answer))
                }
                part => {
                    let core = start.replica(Box::new(service), now, effects)?;
                    match habit(part) {
                        Some(habit) => Box::new(ByzantineCore::new(core, habit)),
                        None => core,
                    }
                }
            };
            let core: Box<dyn Core> = match ways {
                Some(ways) => Box::new(DistantCore::new(core, ways)),
                None => core,
            };
            Ok(core)
        };
        ReplicaServer::start_core_on(config, make, socket).await
    };
    started.map_err(|error| describe(error.to_string()))
}

fn habit(part: BenchRole) -> Option<Habit> {
    match part {
        BenchRole::SlowLeader(millis) => Some(Habit::Slow(Nanos::from_millis(millis))),
        BenchRole::UnfairLeader(session) => Some(Habit::Unfair(SessionId(session))),
        BenchRole::Correct | BenchRole::Baseline | BenchRole::Attacker(_) => None,
    }
}

/// Attacks until standard input ends.
async fn attack_until_told(
    setting: &ReplicaSetting,
    attack: Attack,
    key: Arc<NodeKey>,
    mut input: mpsc::Receiver<String>,
) -> BenchResult {
    let attackers = Attackers::start(setting, attack, key).await?;
    loop {
        print_line(&Sample {
            processor_seconds: process_seconds(),
            operations: attackers.sent(),
            ..Sample::default()
        })?;
        if input.recv().await.is_none() {
            return Ok(());
        }
    }
}

/// Lines of standard input until it ends. A separate thread reads them, because a blocking read
/// would otherwise keep the runtime from shutting down.
fn lines_of_input() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

fn print_line<T: serde::Serialize>(value: &T) -> BenchResult {
    let mut output = std::io::stdout().lock();
    let written = output.write_all(line(value)?.as_bytes());
    written
        .and_then(|()| output.flush())
        .map_err(|error| failed("write to standard output", &error))
}
