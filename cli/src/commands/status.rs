//! `quorumfs status`: the leader, the voters, the clouds that answer, pending data, tolerated
//! faults.
//!
//! Replicas and clouds are asked directly, so that this works while nothing else does; the running
//! mount, if there is one, adds its counters. The view and the sequence of the summary are the
//! least that a correct replica has reached ([`super::members`]).

use super::backup::RecoveryPointReport;
use super::cloud_report::CloudReport;
use super::journal::QueuedReport;
use super::members::{self, ReplicaLine, vouched};
use super::mount_report::MountReport;
use super::opened::Configured;
use super::trash_report::TrashReport;
use crate::arguments::{General, StatusArguments};
use crate::control::{self, Question};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use quorumfs_backends::StoreError;
use quorumfs_bft::membership::Membership;
use quorumfs_gateway::metadata::{MetadataClient, Ordered};
use quorumfs_metadata::identity::CloudIndex;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// How long a mount may take to report its state.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// What follows where another replica leads than the first in the order.
const RETURNS: &str = " Replica 0 is the first to lead: it leads again when it has been well for a \
                       minute and nothing waits, or after longer if it was lost several times; \
                       `quorumfs cluster lead 0` does not wait.";

/// The overall state.
#[derive(Debug, Serialize)]
struct Summary {
    epoch: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    view: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<u64>,
    replicas: usize,
    replicas_voting: usize,
    replicas_needed: usize,
    clouds: usize,
    clouds_usable: usize,
    clouds_taking_writes: usize,
    clouds_needed_to_read: usize,
    clouds_needed_to_write: usize,
    mounted: bool,
    /// Whether a mount that runs from here reports its state.
    mount_answers: bool,
    /// Why a trial request was not answered, although enough replicas report that they vote.
    #[serde(skip_serializing_if = "Option::is_none")]
    trial_failed: Option<String>,
    /// The exit code of that, if an answer came.
    #[serde(skip)]
    refused: Option<Exit>,
    /// Whether too few clouds take writes because they are full.
    #[serde(skip)]
    full: bool,
    health: &'static str,
}

impl Summary {
    fn text(&self) -> String {
        let health = match self.health {
            "good" => "All is well.".to_string(),
            "mount silent" => "THE MOUNT DOES NOT ANSWER: look into its log; if it hangs, \
                               `quorumfs umount --force DIR` frees the directory."
                .to_string(),
            "degraded" => "It works; the missing parts are tolerated.".to_string(),
            "no quorum" => format!(
                "NOTHING CAN BE DONE: {} of {} replicas vote, {} are needed. Start the others.",
                self.replicas_voting, self.replicas, self.replicas_needed
            ),
            "no answer" => format!(
                "NOTHING CAN BE DONE: {} of {} replicas report that they vote, and a trial \
                 request was not answered ({}). Check whether the replicas reach each other: each \
                 one's log says to which it is connected.",
                self.replicas_voting,
                self.replicas,
                self.trial_failed.as_deref().unwrap_or_default()
            ),
            "refused" => format!(
                "NOTHING CAN BE DONE FROM HERE: {}.",
                self.trial_failed.as_deref().unwrap_or_default()
            ),
            "no writes" => format!(
                "NOTHING CAN BE WRITTEN: {} of {} clouds take writes, {} are needed. Existing data \
                 can be read.",
                self.clouds_taking_writes, self.clouds, self.clouds_needed_to_write
            ),
            _ => format!(
                "TOO FEW CLOUDS: {} of {} can be used; reading needs {}, writing {}.",
                self.clouds_usable,
                self.clouds,
                self.clouds_needed_to_read,
                self.clouds_needed_to_write
            ),
        };
        match (self.leader, self.view, self.sequence) {
            (Some(leader), Some(view), Some(sequence)) => {
                let returns = match leader {
                    0 => "",
                    _ => RETURNS,
                };
                format!(
                    "\nReplica {leader} leads view {view}, at sequence {sequence}.{returns} \
                     {health}"
                )
            }
            _ => format!("\n{health}"),
        }
    }

    fn exit(&self) -> Exit {
        match self.health {
            "good" => Exit::Success,
            "degraded" => Exit::Degraded,
            "mount silent" => Exit::Error,
            "no quorum" | "no answer" => Exit::QuorumUnreachable,
            "refused" => self.refused.unwrap_or(Exit::Error),
            "no writes" if self.full => Exit::NoSpace,
            _ => Exit::CloudsUnreachable,
        }
    }
}

/// Asks all servers and the mount, and prints their answers.
pub(crate) async fn run(
    general: &General,
    arguments: &StatusArguments,
    output: Output,
) -> CommandResult {
    let configured = Configured::read(general)?;
    let (standing, clouds, keeping, report, trial) = tokio::join!(
        configured.standing(),
        configured.ask_clouds(),
        configured.ask_keeping(),
        ask_mount(&configured),
        try_order(&configured),
    );
    let (known, trial) = match trial {
        Ok(known) => (known, None),
        Err(failure) => (VolumeFacts::default(), Some(failure)),
    };
    let silent = report.as_ref().err().cloned();
    let mut report = report.unwrap_or_default();
    let standing = standing?;
    let membership = standing.membership.clone();
    let replicas = members::of(&configured, standing);
    let mut clouds = merge(&configured, clouds, report.as_ref());
    for (cloud, keeps) in clouds.iter_mut().zip(keeping) {
        cloud.keeps_deleted = keeps.map(str::to_owned);
    }
    let found = StatusFindings {
        reported: report.is_some(),
        answers: silent.is_none(),
        trial,
    };
    let summary = summarise(&configured, &membership, (&replicas, &clouds), found);

    let queue = report
        .as_mut()
        .map(|report| std::mem::take(&mut report.waiting.queue));
    let queue = queue.unwrap_or_default();
    output.print_text("Metadata")?;
    for replica in &replicas {
        output.record("replica", replica, ReplicaLine::text)?;
    }
    output.print_text("Clouds")?;
    for cloud in &clouds {
        output.record("cloud", cloud, CloudReport::text)?;
    }
    match (&report, &silent) {
        (Some(report), _) => {
            output.record("mount", report, MountReport::text)?;
            if arguments.queue {
                for file in &queue {
                    output.record("queued", file, QueuedReport::text)?;
                }
            }
        }
        (None, Some(failure)) => output.print_text(&format!("Mount\n  {failure}"))?,
        (None, None) => output.print_text("Not mounted from here.")?,
    }
    if let Some(point) = &known.recovery_point {
        output.record("recovery_point", point, RecoveryPointReport::text)?;
    }
    if let Some(trash) = &known.trash {
        output.record("trash", trash, TrashReport::text)?;
    }
    output.record("summary", &summary, Summary::text)?;
    Ok(summary.exit())
}

/// What the servers say of the volume.
#[derive(Default)]
struct VolumeFacts {
    recovery_point: Option<RecoveryPointReport>,
    trash: Option<TrashReport>,
}

/// Whether the cluster orders requests: opens a session, asks what the servers know of the volume,
/// and ends it. The replicas' own reports do not show that they reach each other.
async fn try_order(configured: &Configured) -> CommandResult<VolumeFacts> {
    let tried = async {
        let client = configured.connect().await?;
        let session = Arc::new(Ordered::new(client.clone()));
        let own = configured.volume().own_credentials();
        let metadata = MetadataClient::new(session, own);
        let known = VolumeFacts {
            recovery_point: RecoveryPointReport::of(&metadata).await,
            trash: TrashReport::ask(&metadata).await,
        };
        // A failure to end it says nothing new; it ends by itself later.
        let _ = client.close().await;
        Ok(known)
    };
    let answer = tokio::time::timeout(ANSWERS_WITHIN, tried).await;
    answer.unwrap_or_else(|_| {
        let message = format!("no answer for {} s", ANSWERS_WITHIN.as_secs());
        Err(Failure::new(Exit::QuorumUnreachable, message))
    })
}

/// Further findings.
struct StatusFindings {
    /// A mount reported its state.
    reported: bool,
    /// There is no mount, or it answered.
    answers: bool,
    trial: Option<Failure>,
}

/// The report of a mount that runs from here.
async fn ask_mount(configured: &Configured) -> CommandResult<Option<MountReport>> {
    let asked = control::ask::<MountReport>(configured.state(), Question::Status);
    let answer = tokio::time::timeout(ANSWERS_WITHIN, asked).await;
    let answer = answer.unwrap_or_else(|_| {
        let message = format!("it has not answered for {} s", ANSWERS_WITHIN.as_secs());
        Err(Failure::new(Exit::Error, message))
    });
    // No process listens; but a mount that begins, ends, or lost its socket holds the lock.
    let lock = || configured.state().lock("mount");
    match answer {
        Ok(None) if lock().is_err_and(|failure| failure.exit == Exit::Held) => {
            let message = "it is starting or ending, or its control.sock was removed";
            Err(Failure::new(Exit::Error, message))
        }
        answer => answer,
    }
}

/// A cloud's current state, with the mount's counters.
fn merge(
    configured: &Configured,
    found: Vec<(String, Result<(), StoreError>)>,
    report: Option<&MountReport>,
) -> Vec<CloudReport> {
    let merged = found.into_iter().enumerate().map(|(index, (name, found))| {
        let counted = report.and_then(|report| report.clouds.get(index));
        let mut cloud = counted.cloned().unwrap_or_default();
        cloud.index = index;
        let number = u8::try_from(index).unwrap_or(u8::MAX);
        let state = configured.volume().fleet().state(CloudIndex(number));
        if cloud.state.is_empty() {
            cloud.state = state.name().to_owned();
        }
        cloud.name = name;
        cloud.usable = found.is_ok();
        cloud.problem = found.err().map(|error| error.to_string());
        cloud
    });
    merged.collect()
}

fn summarise(
    configured: &Configured,
    membership: &Membership,
    (replicas, clouds): (&[ReplicaLine], &[CloudReport]),
    found: StatusFindings,
) -> Summary {
    let voting = replicas.iter().filter(|replica| replica.votes()).count();
    // Spares and replaced clouds are not needed.
    let active: Vec<&CloudReport> = clouds.iter().filter(|it| it.is_active()).collect();
    let usable = active.iter().filter(|cloud| cloud.usable).count();
    let taking_writes = active.iter().filter(|cloud| cloud.takes_writes());
    let taking_writes = taking_writes.count();
    let (to_read, to_write) = configured.clouds_needed();
    let needed = usize::from(membership.model.medium());
    let voters = membership.voters.len();
    let view = vouched(replicas, membership, |reported| reported.view);
    let (trial_failed, refused) = match found.trial.filter(|_| voting >= needed) {
        Some(failure) if failure.exit == Exit::QuorumUnreachable => (Some(failure.message), None),
        Some(failure) => {
            let hint = failure
                .hint
                .map_or_else(String::new, |hint| format!("; {hint}"));
            (Some(failure.message + &hint), Some(failure.exit))
        }
        None => (None, None),
    };
    let health = if voting < needed {
        "no quorum"
    } else if refused.is_some() {
        "refused"
    } else if trial_failed.is_some() {
        "no answer"
    } else if usable < to_write {
        "too few clouds"
    } else if taking_writes < to_write {
        "no writes"
    } else if !found.answers {
        "mount silent"
    } else if voting < voters || taking_writes < active.len() {
        "degraded"
    } else {
        "good"
    };
    Summary {
        epoch: membership.epoch.0,
        view,
        leader: members::leader(replicas, membership),
        sequence: vouched(replicas, membership, |reported| reported.committed),
        replicas: voters,
        replicas_voting: voting,
        replicas_needed: needed,
        clouds: active.len(),
        clouds_usable: usable,
        clouds_taking_writes: taking_writes,
        clouds_needed_to_read: to_read,
        clouds_needed_to_write: to_write,
        mounted: found.reported || !found.answers,
        mount_answers: found.answers,
        trial_failed,
        refused,
        full: active.iter().any(|cloud| cloud.full),
        health,
    }
}
