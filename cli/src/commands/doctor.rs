//! `quorumfs doctor`: whether everything that a volume needs is there, and whether the limits hold
//! that protect it from stolen credentials.
//!
//! - [`machine`]: the requirements on this machine.
//! - [`cloud`]: one cloud, and attempts to do there what must be refused.
//! - [`limits`]: what each role may do, and what a deviation means.
//! - [`plan`]: whether the replicas answer as fast from here as a table of round trips says.
//! - [`compare`]: what a difference between the two means.
//! - [`finding`]: one line each, and the overall exit code.
//!
//! Every finding is printed at once; nothing is repaired.

mod cloud;
mod compare;
mod finding;
mod limits;
mod machine;
mod plan;

use super::members::{self, ReplicaLine};
use super::opened::Configured;
use crate::arguments::{DoctorArguments, General};
use crate::clouds::NamedCloud;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use cloud::Scope;
use finding::{Finding, Level};
use plan::PlannedPlacement;
use quorumfs_bft::authentication::Authentication;
use quorumfs_bft::membership::Membership;
use serde::Serialize;
use tokio::task::JoinSet;

/// The overall result.
#[derive(Serialize)]
struct DoctorSummary {
    ok: usize,
    warnings: usize,
    problems: usize,
    too_much: usize,
}

impl DoctorSummary {
    fn of(findings: &[Finding]) -> Self {
        let count = |level| findings.iter().filter(|it| it.level == level).count();
        Self {
            ok: count(Level::Ok),
            warnings: count(Level::Warning),
            problems: count(Level::Problem),
            too_much: count(Level::TooMuch),
        }
    }

    fn text(&self) -> String {
        match (self.problems, self.too_much) {
            (0, 0) => "\nAll is well.".to_owned(),
            (problems, 0) => format!("\n{problems} problems."),
            (problems, too_much) => format!(
                "\n{problems} problems; {too_much} LIMITS DO NOT HOLD: a thief of these \
                 credentials can do more than this machine needs."
            ),
        }
    }
}

/// Runs the command.
pub(crate) async fn run(
    general: &General,
    arguments: &DoctorArguments,
    output: Output,
) -> CommandResult {
    let planned = PlannedPlacement::read(arguments)?;
    let mut findings = Vec::new();
    let mut report = |found: Vec<Finding>| -> CommandResult<()> {
        for finding in found {
            output.record("finding", &finding, Finding::line)?;
            findings.push(finding);
        }
        Ok(())
    };
    let everything = arguments.cloud.is_none();
    if everything {
        report(machine::mounting())?;
    }
    let configured = Configured::read(general)?;
    if everything {
        let text = "the configuration is readable, and the key opens the volume".to_owned();
        report(vec![Finding::new(
            Level::Ok,
            "machine",
            "configuration",
            text,
        )])?;
        report(machine::memory(configured.budget()).into_iter().collect())?;
        report(replicas(&configured).await)?;
        if let Some(planned) = &planned {
            report(planned.compare(&configured).await?)?;
        }
    }
    let clouds: Vec<&NamedCloud> = match &arguments.cloud {
        Some(name) => vec![super::cloud::named(&configured, name)?.1],
        None => configured.clouds().iter().collect(),
    };
    report(machine::credentials(&clouds))?;
    let scope = Scope {
        no_list: arguments.no_list,
        dry_run: arguments.dry_run,
    };
    let mut looking = JoinSet::new();
    for (index, cloud) in clouds.into_iter().cloned().enumerate() {
        looking.spawn(async move { (index, cloud::examine(&cloud, scope).await) });
    }
    let mut found = Vec::new();
    while let Some(looked) = looking.join_next().await {
        found.extend(looked);
    }
    found.sort_by_key(|(index, _)| *index);
    for (_, found) in found {
        report(found)?;
    }
    output.record("doctor", &DoctorSummary::of(&findings), DoctorSummary::text)?;
    Ok(finding::exit(&findings))
}

/// Proves that a place works as a cloud, with the credentials of each role.
pub(super) async fn prove(named: &NamedCloud, output: Output) -> CommandResult<()> {
    let scope = Scope {
        no_list: false,
        dry_run: false,
    };
    let found = cloud::examine(named, scope).await;
    for finding in &found {
        output.record("finding", finding, Finding::line)?;
    }
    match found.iter().find(|it| it.level == Level::Problem) {
        None => Ok(()),
        Some(problem) => {
            let message = format!("cloud `{}` cannot be used: {}", named.name, problem.text);
            Err(Failure::new(problem.exit, message))
        }
    }
}

/// Whether enough replicas vote.
async fn replicas(configured: &Configured) -> Vec<Finding> {
    let find = |level, text| Finding::new(level, "replicas", "quorum", text);
    let down = |text| {
        find(Level::Problem, text)
            .exit(Exit::QuorumUnreachable)
            .remedy("start the others; `quorumfs status` shows which they are")
    };
    let standing = match configured.standing().await {
        Ok(standing) => standing,
        Err(failure) => return vec![down(failure.message)],
    };
    let membership = standing.membership.clone();
    let replicas = members::of(configured, standing);
    let voting = replicas.iter().filter(|it| ReplicaLine::votes(it)).count();
    let needed = usize::from(membership.model.medium());
    let voters = membership.voters.len();
    let text = format!("{voting} of {voters} vote, {needed} are needed");
    let quorum = if voting < needed {
        down(text)
    } else if voting < voters {
        find(Level::Warning, text).remedy("`quorumfs status` shows which are missing")
    } else {
        find(Level::Ok, text)
    };
    let forgetful = replicas.iter().filter(|it| it.may_forget()).count();
    vec![
        quorum,
        authentication(configured),
        durability(forgetful, &membership),
    ]
}

/// How the replicas authenticate votes.
fn authentication(configured: &Configured) -> Finding {
    let text = match configured.volume().genesis().authentication() {
        Authentication::Sig => "votes are signed",
        Authentication::Mac => {
            "votes are believed because of the connections that they come through: less processor \
             time, and no proof of them for others"
        }
    };
    Finding::new(Level::Ok, "replicas", "authentication", text.to_owned())
}

/// Whether a loss of power can make more replicas forget than may fail.
fn durability(forgetful: usize, membership: &Membership) -> Finding {
    let find = |level, text| Finding::new(level, "replicas", "durability", text);
    let tolerated = usize::from(membership.model.up());
    match forgetful {
        0 => find(Level::Ok, "what they promise is on their disks".to_owned()),
        some if some <= tolerated => {
            let text = format!("{some} may forget what it promised when the power fails");
            find(Level::Ok, text)
        }
        some => {
            let text = format!(
                "{some} replicas may forget what they promised if they lose power together; \
                 {tolerated} may"
            );
            find(Level::Warning, text).remedy(
                "set `durability = \"strict\"` in replica.toml of those that share a power \
                 supply, and restart them one by one",
            )
        }
    }
}
