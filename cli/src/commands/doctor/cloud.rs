//! One cloud: whether it is there and ours, how fast it is, and whether each role's limits hold.
//!
//! ```text
//!  usual role    marker ── clock ── bucket: versions, retention
//!  writer        creates the object of the trial
//!  reader        gets it; must not create, overwrite, delete
//!  writer        gets it; must not overwrite, delete
//!  collector     lists; must not get, create, overwrite; deletes the objects of the trial
//! ```
//!
//! Nothing is put where the marker is not right. A limit holds only if the attempt to exceed it was
//! refused: the object of an attempt exists, and is made anew if a role with too many rights
//! deleted it.

use super::finding::{Finding, Level};
use super::limits::{Ended, judge, judge_clock};
use crate::clouds::{LOCKED, NamedCloud, Role, VERSIONED};
use crate::exit::Exit;
use crate::explain::store_exit;
use bytes::Bytes;
use quorumfs_backends::location::Location;
use quorumfs_backends::remote::{Attempt, Container, RemoteStore};
use quorumfs_backends::{Deadline, ObjectName, StoreError};
use std::time::{Duration, Instant};

/// How long one attempt may take.
const WITHIN: Duration = Duration::from_secs(10);
/// The size of the object.
const BODY_BYTES: usize = 64;

fn soon() -> Deadline {
    Deadline::after(WITHIN)
}

/// What to check.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    pub(super) no_list: bool,
    pub(super) dry_run: bool,
}

/// Checks one cloud.
pub(super) async fn examine(cloud: &NamedCloud, scope: Scope) -> Vec<Finding> {
    let mut findings = Vec::new();
    let store = cloud.store(cloud.usual()).await;
    let begun = Instant::now();
    if let Err(error) = store.check(soon()).await {
        findings.push(unusable(&cloud.name, &error).of(cloud.usual()));
        // A wrong clock may be the reason.
        if let Ok(Some(store)) = cloud.attach_remote(cloud.usual()).await {
            findings.extend(clock(&cloud.name, &store).await);
        }
        return findings;
    }
    let text = format!("{} is there, and this volume's", cloud.location);
    findings.push(Finding::new(Level::Ok, &cloud.name, "marker", text).took(begun.elapsed()));
    if matches!(cloud.location, Location::Local(_)) {
        let text =
            "a directory has no roles: a process that may write there may overwrite and delete";
        findings.push(Finding::new(
            Level::Warning,
            &cloud.name,
            "roles",
            text.to_owned(),
        ));
        return findings;
    }
    let mut trial = match Trial::begin(cloud, scope).await {
        Ok(trial) => trial,
        Err(finding) => {
            findings.push(finding);
            return findings;
        }
    };
    trial.look().await;
    if !scope.dry_run {
        trial.run().await;
    }
    findings.extend(trial.findings);
    findings
}

/// An unusable cloud.
fn unusable(cloud: &str, error: &StoreError) -> Finding {
    let exit = match store_exit(error.kind) {
        Exit::Error => Exit::CloudsUnreachable,
        exit => exit,
    };
    Finding::new(Level::Problem, cloud, "marker", error.to_string()).exit(exit)
}

async fn clock(cloud: &str, store: &RemoteStore) -> Option<Finding> {
    let ahead = store.clock_ahead(soon()).await.ok().flatten()?;
    Some(judge_clock(cloud, ahead))
}

/// The meaning of the bucket's settings.
fn bucket(cloud: &str, container: Container) -> Vec<Finding> {
    let find = |level, check, text: &str| Finding::new(level, cloud, check, text.to_owned());
    let locked = match container.locked {
        Some(true) => find(Level::Ok, "retention", LOCKED),
        Some(false) => find(
            Level::Ok,
            "retention",
            "its bucket has no retention: only the limits of its credentials protect it",
        ),
        None => find(
            Level::Warning,
            "retention",
            "its bucket does not tell these credentials whether it has a retention",
        ),
    };
    let versioned = match container.versioned {
        Some(true) => find(Level::Ok, "versions", VERSIONED),
        Some(false) => find(Level::Ok, "versions", "its bucket keeps no old versions"),
        None => find(
            Level::Warning,
            "versions",
            "its bucket does not tell these credentials whether it keeps old versions",
        ),
    };
    vec![locked, versioned]
}

/// The attempts at one cloud.
struct Trial<'a> {
    cloud: &'a NamedCloud,
    scope: Scope,
    reader: Option<RemoteStore>,
    writer: RemoteStore,
    collector: Option<RemoteStore>,
    container: Container,
    name: ObjectName,
    body: Bytes,
    findings: Vec<Finding>,
}

impl<'a> Trial<'a> {
    async fn begin(cloud: &'a NamedCloud, scope: Scope) -> Result<Self, Finding> {
        let failed = |role: Role, error: StoreError| unusable(&cloud.name, &error).of(role);
        let attach = async |role: Role| {
            if cloud.credentials(role).is_none() && role != Role::Writer {
                return Ok(None);
            }
            let store = cloud.attach_remote(role).await;
            store.map_err(|error| failed(role, error))
        };
        let none = || {
            let text = "it is a directory".to_owned();
            Finding::new(Level::Problem, &cloud.name, "roles", text)
        };
        let name = random_name(&cloud.name)?;
        let mut body = Bytes::from(name.as_str().repeat(2));
        body.truncate(BODY_BYTES);
        Ok(Self {
            cloud,
            scope,
            reader: attach(Role::Reader).await?,
            writer: attach(Role::Writer).await?.ok_or_else(none)?,
            collector: attach(Role::Collector).await?,
            container: Container::default(),
            body,
            name,
            findings: Vec::new(),
        })
    }

    fn store(&self, role: Role) -> Option<&RemoteStore> {
        match role {
            Role::Reader => self.reader.as_ref(),
            Role::Writer => Some(&self.writer),
            Role::Collector => self.collector.as_ref(),
        }
    }

    /// Checks that need no attempt.
    async fn look(&mut self) {
        let looking = self.store(self.cloud.usual()).unwrap_or(&self.writer);
        let mut findings: Vec<_> = clock(&self.cloud.name, looking).await.into_iter().collect();
        for role in [Role::Writer, Role::Reader, Role::Collector] {
            let Some(store) = self.store(role) else {
                continue;
            };
            let settings = store.container(soon()).await.unwrap_or_default();
            let known = self.container;
            self.container = Container {
                versioned: known.versioned.or(settings.versioned),
                locked: known.locked.or(settings.locked),
            };
        }
        findings.extend(bucket(&self.cloud.name, self.container));
        self.findings.extend(findings);
    }

    /// Tries one operation and judges the result; returns whether it succeeded.
    async fn attempt(&mut self, role: Role, attempt: Attempt, name: &ObjectName) -> bool {
        let Some(store) = self.store(role) else {
            return false;
        };
        let begun = Instant::now();
        let tried = store.attempt(attempt, name, &self.body, soon()).await;
        let took = begun.elapsed();
        let ended = match tried {
            Ok(()) => Ended::Done,
            Err(error) => Ended::Refused(error.kind, error.to_string()),
        };
        let done = ended == Ended::Done;
        let retained = self.container.locked == Some(true);
        let (cloud, no_list) = (&self.cloud.name, self.scope.no_list);
        let finding = judge(cloud, role, attempt, no_list, retained, &ended);
        let timed = |finding: Finding| if done { finding.took(took) } else { finding };
        self.findings.extend(finding.map(timed));
        done
    }

    async fn run(&mut self) {
        let name = self.name.clone();
        if !self.attempt(Role::Writer, Attempt::Create, &name).await {
            // Without an object no limit can be proved.
            return;
        }
        let mut there = vec![name.clone()];
        for role in [Role::Reader, Role::Writer, Role::Collector] {
            if self.store(role).is_none() {
                continue;
            }
            let (first, second) = match role {
                Role::Collector => (Attempt::List, Attempt::Get),
                Role::Reader | Role::Writer => (Attempt::Get, Attempt::List),
            };
            if !self.attempt(role, first, &name).await {
                // Wrong credentials are refused everything, which proves nothing.
                continue;
            }
            self.attempt(role, second, &name).await;
            // An existing object of another role would be a refusal that proves nothing.
            let other = match random_name(&self.cloud.name) {
                Ok(other) => other,
                Err(finding) => {
                    self.findings.push(finding);
                    break;
                }
            };
            if role != Role::Writer && self.attempt(role, Attempt::Create, &other).await {
                there.push(other);
            }
            self.attempt(role, Attempt::Overwrite, &name).await;
            if role == Role::Collector {
                continue;
            }
            if self.attempt(role, Attempt::Delete, &name).await {
                let again = self
                    .writer
                    .attempt(Attempt::Create, &name, &self.body, soon());
                if again.await.is_err() {
                    there.retain(|it| *it != name);
                    break;
                }
            }
        }
        self.clean_up(there).await;
    }

    /// Deletes the objects of the trial, with the first credentials that may.
    async fn clean_up(&mut self, there: Vec<ObjectName>) {
        let mut left = Vec::new();
        for name in there {
            if self.collector.is_some() {
                if !self.attempt(Role::Collector, Attempt::Delete, &name).await {
                    left.push(name);
                }
                continue;
            }
            let deleted = self
                .writer
                .attempt(Attempt::Delete, &name, &self.body, soon());
            if deleted.await.is_err() {
                left.push(name);
            }
        }
        let text = match (left.first(), self.container.versioned) {
            (None, Some(true)) => {
                "the objects of the trial are deleted again, and its bucket keeps them as \
                 old versions"
                    .to_owned()
            }
            (None, _) => "the objects of the trial are deleted again".to_owned(),
            (Some(first), _) => format!(
                "objects of the trial stay: {} of {BODY_BYTES} bytes, {first}; no credentials here \
                 may delete them now, and the collector may do so at any time",
                left.len()
            ),
        };
        let finding = Finding::new(Level::Ok, &self.cloud.name, "trial", text);
        self.findings.push(finding);
    }
}

/// An unused name of the form of the volume's objects.
fn random_name(cloud: &str) -> Result<ObjectName, Finding> {
    let mut random = [0; 17];
    let failed = |text: String| Finding::new(Level::Problem, cloud, "trial", text);
    getrandom::fill(&mut random).map_err(|error| failed(format!("no randomness: {error}")))?;
    let mut text = String::new();
    for (at, byte) in random.iter().enumerate() {
        let separator = if at == 1 { "/" } else { "" };
        text.push_str(&format!("{separator}{byte:02x}"));
    }
    ObjectName::parse(&text).map_err(|error| failed(error.to_string()))
}
