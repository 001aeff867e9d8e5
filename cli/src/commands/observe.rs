//! `quorumfs observe`: follows the replicas' state.
//!
//! Two kinds of lines: a *fact* is true of a correct replica, or of n − u replicas alike; a
//! *report* is what one replica says about itself, which may be a lie. It goes on until it is
//! interrupted, or until its output is no longer read: `quorumfs observe | head`.

use super::opened::Configured;
use crate::arguments::{General, ObserveArguments};
use crate::exit::Exit;
use crate::failure::CommandResult;
use crate::output::{self, Output};
use crate::stop::Stop;
use quorumfs_bft::observer::{Fact, Observation, Report};
use quorumfs_bft_runtime::client::ObserverItem;
use serde::Serialize;
use std::time::Duration;

/// How often to check whether the output is still read: a cluster may be quiet.
const LOOK: Duration = Duration::from_secs(1);

/// A statement of a quorum, or the state that a correct replica has reached.
#[derive(Debug, Default, Serialize)]
struct FactRecord {
    fact: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    view: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    active: Option<bool>,
}

impl FactRecord {
    fn of(fact: Fact) -> Self {
        let (mut sequence, mut epoch, mut view) = (None, None, None);
        let name = match fact {
            Fact::Epoch(number) => {
                epoch = Some(number.0);
                "epoch"
            }
            Fact::View(number) => {
                view = Some(number.0);
                "view"
            }
            Fact::Executed(number) => {
                sequence = Some(number.0);
                "executed"
            }
            Fact::Stable(number) => {
                sequence = Some(number.0);
                "stable"
            }
        };
        Self {
            fact: name,
            sequence,
            epoch,
            view,
            ..Self::default()
        }
    }

    fn text(&self) -> String {
        let number = self.sequence.or(self.epoch).or(self.view);
        match (self.fact, self.leader, self.active, number) {
            ("active", Some(leader), Some(active), Some(view)) => {
                let doing = if active { "leads" } else { "is to lead" };
                format!("quorum     replica {leader} {doing} view {view}")
            }
            (fact, _, _, number) => format!("quorum     {fact} {}", number.unwrap_or_default()),
        }
    }
}

/// One replica's report.
#[derive(Debug, Serialize)]
struct ReportRecord {
    replica: u16,
    silent: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    missed: Option<u64>,
    #[serde(flatten)]
    reported: Option<ReportedState>,
}

#[derive(Debug, Serialize)]
struct ReportedState {
    epoch: u64,
    view: u64,
    leader: u16,
    active: bool,
    executed: u64,
    stable: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    transfer: Option<u64>,
    voting: &'static str,
}

impl ReportedState {
    fn of(report: &Report) -> Self {
        Self {
            epoch: report.epoch.0,
            view: report.view.0,
            leader: report.leader.0,
            active: report.active,
            executed: report.executed.0,
            stable: report.stable.0,
            transfer: report.transfer.map(|sequence| sequence.0),
            voting: report.voting.name(),
        }
    }
}

impl ReportRecord {
    fn text(&self) -> String {
        let replica = self.replica;
        let Some(reported) = &self.reported else {
            return format!("replica {replica}  is silent");
        };
        let between = if reported.active { "" } else { " (not begun)" };
        let transfer = reported.transfer.map_or_else(String::new, |sequence| {
            format!("  fetches the state after {sequence}")
        });
        format!(
            "replica {replica}  view {}{between}  executed {}  stable {}  {}{transfer}",
            reported.view, reported.executed, reported.stable, reported.voting
        )
    }
}

fn print(event: ObserverItem, quorum_only: bool, output: Output) -> CommandResult<()> {
    let ObserverItem::Observation(observation) = event else {
        return Ok(());
    };
    let report = match observation {
        Observation::Fact(fact) => {
            return output.record("fact", &FactRecord::of(fact), FactRecord::text);
        }
        Observation::Activity(activity) => {
            let record = FactRecord {
                fact: "active",
                epoch: Some(activity.epoch.0),
                view: Some(activity.view.0),
                leader: Some(activity.leader.0),
                active: Some(activity.active),
                ..FactRecord::default()
            };
            return output.record("fact", &record, FactRecord::text);
        }
        Observation::Single {
            replica,
            missed,
            report,
        } => ReportRecord {
            replica: replica.0,
            silent: false,
            missed: Some(missed),
            reported: Some(ReportedState::of(&report)),
        },
        Observation::Silent { replica } => ReportRecord {
            replica: replica.0,
            silent: true,
            missed: None,
            reported: None,
        },
    };
    match quorum_only {
        true => Ok(()),
        false => output.record("report", &report, ReportRecord::text),
    }
}

/// Prints events until it is interrupted, or its output is no longer read.
pub(crate) async fn run(
    general: &General,
    arguments: &ObserveArguments,
    output: Output,
) -> CommandResult {
    let configured = Configured::read(general)?;
    let mut stop = Stop::of_a_command()?;
    let mut observer = configured.observe_replicas()?;
    let over = async {
        match arguments.seconds {
            Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(over);
    let mut looks = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            _ = looks.tick() => if !output::is_read() {
                return Ok(Exit::Success);
            },
            event = observer.next() => match event {
                Some(event) => print(event, arguments.quorum_only, output)?,
                None => return Ok(Exit::Success),
            },
            () = &mut over => return Ok(Exit::Success),
            () = stop.wanted() => return Ok(Exit::Success),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_bft::identity::{Epoch, ReplicaId, Sequence, View};

    #[test]
    fn a_fact_and_a_report_are_told_apart() {
        let fact = FactRecord::of(Fact::Executed(Sequence(7)));
        let line = crate::output::encode("fact", &fact).unwrap();
        assert_eq!(
            line,
            r#"{"v":1,"type":"fact","fact":"executed","sequence":7}"#
        );
        assert_eq!(fact.text(), "quorum     executed 7");
        let report = Report {
            epoch: Epoch(0),
            view: View(3),
            leader: ReplicaId(3),
            active: false,
            executed: Sequence(7),
            stable: Sequence(0),
            transfer: Some(Sequence(5)),
            voting: quorumfs_bft::metrics::Voting::Abstaining,
        };
        let record = ReportRecord {
            replica: 2,
            silent: false,
            missed: Some(0),
            reported: Some(ReportedState::of(&report)),
        };
        let text = record.text();
        assert!(text.starts_with("replica 2  view 3 (not begun)  executed 7"));
        assert!(text.ends_with("abstaining  fetches the state after 5"));
    }
}
