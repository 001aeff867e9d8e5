//! The replicas of a bench: processes of this program, and faults in them.
//!
//! Replicas that are down never receive their setting; their ports refuse. One that hangs was
//! stopped by a signal: its sockets stay open and take data until their buffers are full.

use super::protocol::{BenchRole, Hello, ReplicaSetting, Sample, line};
use super::replica::CLUSTER;
use crate::failure::{BenchFailure, BenchResult, failed};
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{ClusterId, Incarnation, ReplicaId};
use quorumfs_bft_runtime::client::Member;
use quorumfs_bft_runtime::unsigned;
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// How long a replica may take to answer a line.
const PATIENCE: Duration = Duration::from_secs(30);

/// The configuration of the replicas of a bench.
#[derive(Clone, Debug)]
pub(super) struct ClusterPlan {
    pub(super) model: FaultModel,
    pub(super) durability: String,
    pub(super) reply_bytes: u32,
    /// Whether anything is signed.
    pub(super) signed: bool,
    /// Whether votes are authenticated by the channels.
    pub(super) channels: bool,
    /// How many of the last ones are down from the start.
    pub(super) down: u16,
    /// The roles of the first ones; `others` is that of the rest.
    pub(super) parts: Vec<BenchRole>,
    pub(super) others: BenchRole,
    /// Processes in addition to the replicas, which know all of them.
    pub(super) additional: Vec<BenchRole>,
    /// Additional durable writes a second of each replica's process.
    pub(super) flushes: u32,
    /// The round trip to each replica, in milliseconds; none: there is no delay.
    pub(super) round_trips_ms: Vec<u64>,
}

impl ClusterPlan {
    pub(super) fn cluster(&self) -> ClusterId {
        if self.signed {
            CLUSTER
        } else {
            unsigned::CLUSTER
        }
    }
}

/// A replica's process; killed when dropped.
struct ReplicaProcess {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    /// It has ended or hangs.
    gone: bool,
    attacks: bool,
    last: Sample,
}

impl ReplicaProcess {
    fn spawn() -> BenchResult<Self> {
        let describe = |error: std::io::Error| failed("start a replica's process", &error);
        let program = std::env::current_exe().map_err(describe)?;
        let mut process = Command::new(program)
            .arg("smr-replica")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(describe)?;
        let (input, output) = process
            .stdin
            .take()
            .zip(process.stdout.take())
            .ok_or_else(|| failed("start a replica's process", &"no pipes"))?;
        Ok(Self {
            process,
            input,
            output: BufReader::new(output).lines(),
            gone: false,
            attacks: false,
            last: Sample::default(),
        })
    }

    async fn send_line(&mut self, text: &str) -> BenchResult {
        let written = self.input.write_all(text.as_bytes()).await;
        written.map_err(|error| failed("write to a replica", &error))
    }

    async fn receive_line<T: DeserializeOwned>(&mut self) -> BenchResult<T> {
        let silent = || {
            BenchFailure::new("a replica of the bench ended or hangs")
                .hint("its messages are above")
        };
        let line = tokio::time::timeout(PATIENCE, self.output.next_line()).await;
        let line = line.map_err(|_| silent())?;
        let line = line.map_err(|error| failed("read from a replica", &error))?;
        let line = line.ok_or_else(silent)?;
        serde_json::from_str(&line).map_err(|error| failed("understand a replica", &error))
    }

    async fn sample(&mut self) -> BenchResult<Sample> {
        if !self.gone {
            self.send_line("\n").await?;
            self.last = self.receive_line().await?;
        }
        Ok(self.last)
    }

    fn signal(&mut self, signal: Signal) -> BenchResult {
        let number = self.process.id().and_then(|id| i32::try_from(id).ok());
        let Some(process) = number.and_then(Pid::from_raw) else {
            return Err(failed("signal a replica", &"it has ended"));
        };
        self.gone = true;
        kill_process(process, signal).map_err(|error| failed("signal a replica", &error))
    }

    async fn stop(mut self) -> BenchResult {
        if self.gone {
            // It may be unable to notice the end of its input.
            let killed = self.process.kill().await;
            return killed.map_err(|error| failed("stop a replica", &error));
        }
        drop(self.input);
        match tokio::time::timeout(PATIENCE, self.process.wait()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(failed("wait for a replica", &error)),
            Err(_) => Err(failed("stop a replica", &"it did not end in time")),
        }
    }
}

/// The running processes, and their addresses.
pub(super) struct BenchCluster {
    replicas: Vec<ReplicaProcess>,
    additional: Vec<ReplicaProcess>,
    pub(super) members: Vec<Member>,
}

impl BenchCluster {
    /// Starts them with disks below `place`.
    pub(super) async fn start(plan: &ClusterPlan, place: &Path) -> BenchResult<Self> {
        let count = plan.model.replicas();
        let (mut replicas, mut additional) = (Vec::new(), Vec::new());
        for _ in 0..count {
            replicas.push(ReplicaProcess::spawn()?);
        }
        for _ in &plan.additional {
            additional.push(ReplicaProcess::spawn()?);
        }
        let (mut hellos, mut members) = (Vec::new(), Vec::new());
        for (number, replica) in (0..).zip(&mut replicas) {
            let hello: Hello = replica.receive_line().await?;
            members.push(Member {
                id: ReplicaId(number),
                key: hello.key()?,
                incarnation: Incarnation::default(),
                address: hello.address.into(),
            });
            hellos.push(hello);
        }
        for one in &mut additional {
            let _: Hello = one.receive_line().await?;
        }
        let setting = |number, part| ReplicaSetting {
            replica: number,
            up: plan.model.up(),
            right: plan.model.right(),
            members: hellos.clone(),
            signed: plan.signed,
            channels: plan.channels,
            durability: plan.durability.clone(),
            reply_bytes: plan.reply_bytes,
            directory: place.join(number.to_string()),
            flushes: plan.flushes,
            round_trips_ms: plan.round_trips_ms.clone(),
            part,
        };
        for (number, replica) in (0..).zip(&mut replicas) {
            if number >= count.saturating_sub(plan.down) {
                replica.signal(Signal::KILL)?;
                continue;
            }
            let part = plan.parts.get(usize::from(number)).unwrap_or(&plan.others);
            let setting = setting(number, *part);
            replica.attacks = matches!(part, BenchRole::Attacker(_));
            replica.send_line(&line(&setting)?).await?;
        }
        for replica in replicas.iter_mut().filter(|it| !it.gone) {
            replica.last = replica.receive_line().await?;
        }
        for (one, (number, part)) in additional.iter_mut().zip((count..).zip(&plan.additional)) {
            one.send_line(&line(&setting(number, *part))?).await?;
            one.last = one.receive_line().await?;
        }
        Ok(Self {
            replicas,
            additional,
            members,
        })
    }

    /// The replicas' counters: the sum of their processor times, and the rest from the replica that
    /// is furthest.
    pub(super) async fn sample(&mut self) -> BenchResult<Sample> {
        let mut all = Sample::default();
        for replica in self.replicas.iter_mut().filter(|it| !it.attacks) {
            let one = replica.sample().await?;
            let seconds = all.processor_seconds + one.processor_seconds;
            let view = all.view.max(one.view);
            let flushes = all.flushes + one.flushes;
            if one.batches >= all.batches {
                all = one;
            }
            (all.processor_seconds, all.view, all.flushes) = (seconds, view, flushes);
        }
        Ok(all)
    }

    /// The attackers' counters, in sum.
    pub(super) async fn sample_attackers(&mut self) -> BenchResult<Sample> {
        let mut all = Sample::default();
        let replicas = self.replicas.iter_mut().filter(|it| it.attacks);
        for one in replicas.chain(&mut self.additional) {
            let one = one.sample().await?;
            all.processor_seconds += one.processor_seconds;
            all.operations += one.operations;
        }
        Ok(all)
    }

    /// Stops the last `count` replicas by a signal, with their sockets open.
    pub(super) async fn hang(&mut self, count: u16) -> BenchResult {
        let running = self.replicas.iter_mut().rev().filter(|it| !it.gone);
        for replica in running.take(count.into()) {
            replica.sample().await?;
            replica.signal(Signal::STOP)?;
        }
        Ok(())
    }

    /// Kills the leader of the newest view.
    pub(super) async fn kill_leader(&mut self) -> BenchResult {
        let view = self.sample().await?.view;
        let count = self.replicas.len().max(1) as u64;
        let leader = usize::try_from(view % count).unwrap_or_default();
        match self.replicas.get_mut(leader) {
            Some(replica) => replica.signal(Signal::KILL),
            None => Ok(()),
        }
    }

    pub(super) async fn stop(self) -> BenchResult {
        for process in self.additional.into_iter().chain(self.replicas) {
            process.stop().await?;
        }
        Ok(())
    }
}
