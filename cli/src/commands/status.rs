//! `quorumfs status`: who leads, who votes, which clouds answer, what waits, what is tolerated.
//!
//! Replicas and clouds are asked directly, so that this works while nothing else does; the running
//! mount, if there is one, adds its counters. What a replica says about itself may be a lie: the
//! view and the sequence of the summary are the highest that r + 1 replicas claim at least, of
//! which one is correct.

use super::mount::{CloudReport, Report};
use super::opened::Configured;
use crate::arguments::General;
use crate::control::{self, Question};
use crate::exit::Exit;
use crate::failure::Outcome;
use crate::output::Output;
use quorumfs_backends::StoreError;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::metrics::{ReplicaStatus, Voting};
use serde::Serialize;

/// One replica.
#[derive(Debug, Serialize)]
struct Replica {
    id: u16,
    address: String,
    answers: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(flatten)]
    said: Option<Said>,
}

/// What it says about itself.
#[derive(Debug, Serialize)]
struct Said {
    view: u64,
    leader: u16,
    active: bool,
    voting: bool,
    /// The last sequence that it executed.
    committed: u64,
    /// The sequence of its newest durable root.
    durable: u64,
    stable: u64,
    /// The checkpoint whose state it is taking over.
    #[serde(skip_serializing_if = "Option::is_none")]
    transfer: Option<u64>,
    /// Whose votes are in the certificate of `committed`.
    certificate: Vec<u16>,
    sessions: u32,
    waiting: u32,
}

impl Replica {
    fn of(id: u16, address: String, answer: Result<ReplicaStatus, String>) -> Self {
        let (said, problem) = match answer {
            Ok(said) => (Some(said), None),
            Err(problem) => (None, Some(problem)),
        };
        Self {
            id,
            address,
            answers: said.is_some(),
            problem,
            state: said.as_ref().map(|said| match said.voting {
                Voting::Voting => "voting",
                Voting::Lost => "lost",
                Voting::Poisoned => "poisoned",
                Voting::Diverged => "diverged",
                Voting::Abstaining => "abstaining",
                Voting::Observing => "observing",
            }),
            said: said.map(|said| Said {
                view: said.view.0,
                leader: said.leader.0,
                active: said.active,
                voting: said.voting == Voting::Voting,
                committed: said.sequence.0,
                durable: said.durable.0,
                stable: said.stable.0,
                transfer: said.transfer.map(|sequence| sequence.0),
                certificate: said.signers.iter().map(|signer| signer.0).collect(),
                sessions: said.sessions,
                waiting: said.waiting,
            }),
        }
    }

    fn votes(&self) -> bool {
        self.said.as_ref().is_some_and(|said| said.voting)
    }

    fn text(&self) -> String {
        let (id, address) = (self.id, &self.address);
        match (&self.said, &self.problem) {
            (Some(said), _) => {
                let state = match self.state {
                    Some("voting") => "votes".to_string(),
                    Some("lost") => {
                        "FOLLOWS (its log was lost; it asks the others to be taken up again)"
                            .to_string()
                    }
                    other => other.unwrap_or_default().to_uppercase(),
                };
                let (view, committed) = (said.view, said.committed);
                let catching_up = said.transfer.map_or_else(String::new, |sequence| {
                    format!("; takes the state after batch {sequence} over from the others")
                });
                format!(
                    "  replica {id}  {address}  view {view}  sequence {committed}  \
                     {state}{catching_up}"
                )
            }
            (None, problem) => {
                format!(
                    "  replica {id}  {address}  DOWN: {}",
                    problem.as_deref().unwrap_or("?")
                )
            }
        }
    }
}

/// Everything together.
#[derive(Debug, Serialize)]
struct Summary {
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
    clouds_needed_to_read: usize,
    clouds_needed_to_write: usize,
    mounted: bool,
    health: &'static str,
}

impl Summary {
    fn text(&self) -> String {
        let health = match self.health {
            "good" => "All is well.".to_string(),
            "degraded" => "It works; what is missing is being tolerated.".to_string(),
            "no quorum" => format!(
                "NOTHING CAN BE DONE: {} of {} replicas vote, {} are needed. Start the others.",
                self.replicas_voting, self.replicas, self.replicas_needed
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
                format!("\nReplica {leader} leads view {view}, at sequence {sequence}. {health}")
            }
            _ => format!("\n{health}"),
        }
    }

    fn exit(&self) -> Exit {
        match self.health {
            "good" => Exit::Success,
            "degraded" => Exit::Degraded,
            "no quorum" => Exit::QuorumUnreachable,
            _ => Exit::CloudsUnreachable,
        }
    }
}

/// The highest value that `vouchers` of these reach at least.
fn vouched(mut values: Vec<u64>, vouchers: usize) -> Option<u64> {
    values.sort_unstable_by(|left, right| right.cmp(left));
    values.get(vouchers.checked_sub(1)?).copied()
}

/// Asks everybody and prints what they say.
pub(crate) async fn run(general: &General, output: Output) -> Outcome {
    let configured = Configured::read(general)?;
    let model = configured.fault_model();
    let (replicas, clouds, report) = tokio::join!(
        configured.ask_replicas(),
        configured.ask_clouds(),
        control::ask::<Report>(configured.state(), Question::Status),
    );
    let report = report.unwrap_or_else(|failure| {
        tracing::warn!(%failure, "the mount does not answer");
        None
    });
    let replicas: Vec<_> = replicas?
        .into_iter()
        .map(|(id, address, answer)| Replica::of(id.0, address.to_string(), answer))
        .collect();
    let clouds = merge(clouds, report.as_ref());
    let summary = summarise(&configured, model, &replicas, &clouds, report.is_some());

    output.say("Metadata")?;
    for replica in &replicas {
        output.record("replica", replica, Replica::text)?;
    }
    output.say("Clouds")?;
    for cloud in &clouds {
        output.record("cloud", cloud, CloudReport::text)?;
    }
    match &report {
        Some(report) => output.record("mount", report, Report::text)?,
        None => output.say("Not mounted from here.")?,
    }
    output.record("summary", &summary, Summary::text)?;
    Ok(summary.exit())
}

/// A cloud as we found it now, with what the mount has counted.
fn merge(
    found: Vec<(String, Result<(), StoreError>)>,
    report: Option<&Report>,
) -> Vec<CloudReport> {
    let merged = found.into_iter().enumerate().map(|(index, (name, found))| {
        let counted = report.and_then(|report| report.clouds.get(index));
        let mut cloud = counted.cloned().unwrap_or_default();
        cloud.index = index;
        cloud.name = name;
        cloud.usable = found.is_ok();
        cloud.problem = found.err().map(|error| error.to_string());
        cloud
    });
    merged.collect()
}

fn summarise(
    configured: &Configured,
    model: FaultModel,
    replicas: &[Replica],
    clouds: &[CloudReport],
    mounted: bool,
) -> Summary {
    let voting = replicas.iter().filter(|replica| replica.votes()).count();
    let usable = clouds.iter().filter(|cloud| cloud.usable).count();
    let (to_read, to_write) = configured.clouds_needed();
    let needed = usize::from(model.medium());
    let said = |of: fn(&Said) -> u64| -> Vec<u64> {
        replicas
            .iter()
            .filter_map(|replica| replica.said.as_ref().map(of))
            .collect()
    };
    let vouchers = usize::from(model.small());
    let view = vouched(said(|said| said.view), vouchers);
    let health = if voting < needed {
        "no quorum"
    } else if usable < to_write {
        "too few clouds"
    } else if voting < replicas.len() || usable < clouds.len() {
        "degraded"
    } else {
        "good"
    };
    Summary {
        view,
        leader: view.map(|view| view % (replicas.len().max(1) as u64)),
        sequence: vouched(said(|said| said.committed), vouchers),
        replicas: replicas.len(),
        replicas_voting: voting,
        replicas_needed: needed,
        clouds: clouds.len(),
        clouds_usable: usable,
        clouds_needed_to_read: to_read,
        clouds_needed_to_write: to_write,
        mounted,
        health,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_liar_does_not_decide_the_view() {
        assert_eq!(vouched(vec![3, 3, 3, 900], 2), Some(3));
        assert_eq!(vouched(vec![0, 4, 4, 4], 2), Some(4));
        assert_eq!(vouched(vec![4], 2), None);
        assert_eq!(vouched(vec![7, 8], 0), None);
    }
}
