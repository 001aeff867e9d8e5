//! `quorumfs cluster`: who the metadata replicas are, and how that changes.
//!
//! A change is an operation like any other, ordered by the replicas and asked for with an
//! administrator's key: the volume's owner, unless others were entrusted. A new replica is admitted
//! first and told everything; once it says itself that it holds a checkpoint, it may vote. What is
//! typed here does both and waits in between, so that it can be typed again if it was cut short:
//! what has been done already is not done twice.

use super::explain::client_failure;
use super::members::{self, Role};
use super::opened::Configured;
use super::volume::{public_key, replica};
use crate::arguments::{
    ClusterAddArguments, ClusterCommand, ClusterRemoveArguments, ClusterReplaceArguments, General,
    NewReplica,
};
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{Epoch, Incarnation, PublicKey};
use quorumfs_bft::membership::{Command, Member, Membership};
use quorumfs_bft_runtime::client::{Administered, Client, ClientError};
use quorumfs_bft_runtime::server::first_incarnation;
use serde::Serialize;
use std::time::{Duration, Instant};

/// How often a new replica is asked for that cannot vote yet.
const AGAIN: Duration = Duration::from_secs(1);

/// Does what was typed.
pub(crate) async fn run(general: &General, command: ClusterCommand, output: Output) -> Outcome {
    let configured = Configured::read(general)?;
    if let ClusterCommand::Status(_) = command {
        return status(&configured, output).await;
    }
    let cluster = Cluster::open(&configured, output).await?;
    let done = cluster.change(&command).await;
    let closed = cluster.client.close().await;
    done?;
    closed.map_err(|error| client_failure(&error))?;
    Ok(Exit::Success)
}

/// The membership and its settings.
#[derive(Debug, Serialize)]
struct Settings {
    epoch: u64,
    /// The last batch of the epoch before.
    from: u64,
    u: u16,
    r: u16,
    voters: usize,
    /// How many of them it takes to order anything.
    needed: u16,
    behaviour_version: u32,
    checkpoint_interval: u64,
    administrators: Vec<String>,
}

impl Settings {
    fn of(membership: &Membership) -> Self {
        let administrators = membership.administrators.iter();
        Self {
            epoch: membership.epoch.0,
            from: membership.from.0,
            u: membership.model.up(),
            r: membership.model.right(),
            voters: membership.voters.len(),
            needed: membership.model.medium(),
            behaviour_version: membership.behaviour_version,
            checkpoint_interval: membership.checkpoint_interval,
            administrators: administrators.map(ToString::to_string).collect(),
        }
    }

    fn text(&self) -> String {
        format!(
            "Epoch {}, since batch {}: {} replicas vote; {} may fail (u), {} of them may lie (r); \
             {} are needed.",
            self.epoch, self.from, self.voters, self.u, self.r, self.needed
        )
    }
}

async fn status(configured: &Configured, output: Output) -> Outcome {
    let standing = configured.standing().await?;
    let membership = standing.membership.clone();
    let replicas = members::of(configured, standing);
    output.record("cluster", &Settings::of(&membership), Settings::text)?;
    for replica in &replicas {
        output.record("replica", replica, |it| it.text_with_key())?;
    }
    let voting = replicas.iter().filter(|replica| replica.votes()).count();
    Ok(if voting < usize::from(membership.model.medium()) {
        Exit::QuorumUnreachable
    } else if voting < membership.voters.len() {
        Exit::Degraded
    } else {
        Exit::Success
    })
}

/// What was done.
#[derive(Debug, Serialize)]
struct Change {
    change: &'static str,
    /// The epoch that began with it.
    epoch: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    replica: Option<String>,
}

/// A session in which changes are asked for.
struct Cluster<'a> {
    configured: &'a Configured,
    client: Client,
    output: Output,
}

impl<'a> Cluster<'a> {
    async fn open(configured: &'a Configured, output: Output) -> Outcome<Self> {
        let client = configured.connect().await?;
        Ok(Self {
            configured,
            client,
            output,
        })
    }

    async fn change(&self, command: &ClusterCommand) -> Outcome<()> {
        let now = self.show().await?;
        if !now.administrators.contains(&self.configured.principal()) {
            let failure = Failure::new(
                Exit::WrongKey,
                "only an administrator may change who the replicas are, and this key is none",
            );
            return Err(failure.hint("`quorumfs cluster status --json` lists the administrators"));
        }
        match command {
            ClusterCommand::Status(_) => Ok(()),
            ClusterCommand::Add(arguments) => self.add(&now, arguments).await,
            ClusterCommand::Replace(arguments) => self.replace(&now, arguments).await,
            ClusterCommand::Remove(arguments) => self.remove(&now, arguments).await,
            ClusterCommand::Entrust(arguments) => {
                let keys = arguments.administrators.iter();
                let administrators: Vec<_> =
                    keys.map(|it| public_key(it)).collect::<Outcome<_>>()?;
                self.ask("entrusted", None, Command::Entrust { administrators })
                    .await
            }
            ClusterCommand::Behave(arguments) => {
                let version = arguments.version;
                self.ask("behaviour", None, Command::Behave { version })
                    .await
            }
        }
    }

    async fn add(&self, now: &Membership, arguments: &ClusterAddArguments) -> Outcome<()> {
        let new = New::of(&arguments.new)?;
        let voters = now.voters.len() + 1;
        let (up, right) = arguments.model.over(now.model);
        if !arguments.learner {
            check(up, right, voters)?;
        }
        self.admit(now, &new).await?;
        if arguments.learner {
            return Ok(());
        }
        let key = new.key;
        self.vote("added", &new, Command::Promote { key, up, right })
            .await
    }

    async fn replace(&self, now: &Membership, arguments: &ClusterReplaceArguments) -> Outcome<()> {
        let new = New::of(&arguments.new)?;
        if now.voters.iter().any(|it| it.key == new.key) {
            return self.output.say("It votes already.");
        }
        let out = find(now, &arguments.old)?;
        if Role::of(now, out) != Role::Voter {
            let message = format!("replica {} does not vote", arguments.old);
            return Err(Failure::new(Exit::Usage, message).hint(LIST));
        }
        let out = out.key;
        self.admit(now, &new).await?;
        let into = new.key;
        self.vote("replaced", &new, Command::Replace { out, into })
            .await?;
        self.output.say(RETIRED)
    }

    async fn remove(&self, now: &Membership, arguments: &ClusterRemoveArguments) -> Outcome<()> {
        let member = find(now, &arguments.replica)?;
        let key = member.key;
        match Role::of(now, member) {
            Role::Retired => self.output.say("It does not vote any more."),
            Role::Learner => {
                self.ask("dismissed", Some(key), Command::Dismiss { key })
                    .await
            }
            Role::Voter => {
                let (up, right) = arguments.model.over(now.model);
                check(up, right, now.voters.len() - 1)?;
                self.ask("removed", Some(key), Command::Remove { key, up, right })
                    .await?;
                self.output.say(RETIRED)
            }
        }
    }

    /// Lets a replica be told everything, unless it is already.
    async fn admit(&self, now: &Membership, new: &New) -> Outcome<()> {
        if now.retired.contains(&new.key) {
            let message = format!("the replica at {} voted once and was retired", new.address);
            return Err(Failure::new(Exit::Usage, message)
                .hint("a retired key is never taken again: make it another with `replica init`"));
        }
        if now.members().any(|it| it.key == new.key) {
            return Ok(());
        }
        let admit = Command::Admit {
            key: new.key,
            incarnation: new.incarnation,
            address: new.address.clone().into(),
        };
        self.ask("admitted", Some(new.key), admit).await
    }

    /// Makes a learner a voter, once it has caught up.
    async fn vote(&self, what: &'static str, new: &New, command: Command) -> Outcome<()> {
        let began = Instant::now();
        let mut waiting = false;
        loop {
            let refused = match self.client.administer(command.clone()).await {
                Ok(Administered::Begins(epoch)) => {
                    return self.begun(what, Some(new.key), epoch).await;
                }
                Ok(other) => return Err(misunderstood(&other)),
                Err(ClientError::CommandRefused { reason }) => reason,
                Err(error) => return Err(client_failure(&error)),
            };
            if began.elapsed() > new.within {
                let message = format!(
                    "the new replica at {} does not vote after {} s: {refused}",
                    new.address,
                    new.within.as_secs()
                );
                return Err(Failure::new(Exit::Error, message).hint(
                    "it is told everything already: look whether it runs and is reached there, \
                     then ask again",
                ));
            }
            if !waiting {
                waiting = true;
                self.output.say(&format!(
                    "Waiting until the replica at {} has caught up; it has to run \
                     (`quorumfs replica run --join --genesis FILE`).",
                    new.address
                ))?;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn ask(
        &self,
        what: &'static str,
        replica: Option<PublicKey>,
        command: Command,
    ) -> Outcome<()> {
        match self.client.administer(command).await {
            Ok(Administered::Begins(epoch)) => self.begun(what, replica, epoch).await,
            Ok(other) => Err(misunderstood(&other)),
            Err(error) => Err(client_failure(&error)),
        }
    }

    /// The change is made for good; says so once the epoch has begun.
    async fn begun(
        &self,
        what: &'static str,
        replica: Option<PublicKey>,
        epoch: Epoch,
    ) -> Outcome<()> {
        // An operation of the new epoch is answered when there is one.
        self.show().await?;
        self.configured.remember(&self.client.membership());
        let change = Change {
            change: what,
            epoch: epoch.0,
            replica: replica.map(|key| key.to_string()),
        };
        self.output.record("change", &change, |change| {
            let whom = change.replica.as_deref().unwrap_or_default();
            format!("Epoch {}: {} {whom}", change.epoch, change.change)
        })
    }

    async fn show(&self) -> Outcome<Membership> {
        match self.client.administer(Command::Show).await {
            Ok(Administered::Shown(membership)) => Ok(*membership),
            Ok(other) => Err(misunderstood(&other)),
            Err(error) => Err(client_failure(&error)),
        }
    }
}

const LIST: &str = "`quorumfs cluster status` lists them";
const RETIRED: &str = "Keep the old one running until `quorumfs cluster status` says that it may \
                       be switched off; then destroy its key.";

fn misunderstood(answer: &Administered) -> Failure {
    Failure::new(
        Exit::NewerFormat,
        format!("the replicas answered {answer:?}"),
    )
    .hint("they may run a newer quorumfs than this one")
}

/// A replica that is to become one of them.
struct New {
    key: PublicKey,
    incarnation: Incarnation,
    address: String,
    within: Duration,
}

impl New {
    fn of(arguments: &NewReplica) -> Outcome<Self> {
        let section = replica(&arguments.place)?;
        let key = public_key(&section.key)?;
        let incarnation = match &arguments.incarnation {
            Some(digits) => incarnation(digits)?,
            None => first_incarnation(&key),
        };
        Ok(Self {
            key,
            incarnation,
            address: section.address.to_string(),
            within: Duration::from_secs(arguments.within),
        })
    }
}

fn incarnation(digits: &str) -> Outcome<Incarnation> {
    let number = u128::from_str_radix(digits, 16).ok();
    let number = number.filter(|_| digits.len() == 32 && !digits.starts_with('+'));
    let number = number.ok_or_else(|| {
        Failure::new(Exit::Usage, format!("`{digits}` is no incarnation"))
            .hint("it is 32 hexadecimal digits; `quorumfs replica init --again` printed it")
    })?;
    Ok(Incarnation(number.to_be_bytes()))
}

/// A member, by its number in this epoch or its key.
fn find<'a>(membership: &'a Membership, text: &str) -> Outcome<&'a Member> {
    let member = match text.parse::<u16>() {
        Ok(number) => membership.members().nth(number.into()),
        Err(_) => {
            let key = public_key(text)?;
            membership.members().find(|it| it.key == key)
        }
    };
    member
        .ok_or_else(|| Failure::new(Exit::Usage, format!("there is no replica {text}")).hint(LIST))
}

/// Refuses numbers that cannot work before anything is asked for.
fn check(up: u16, right: u16, voters: usize) -> Outcome<()> {
    let count = u16::try_from(voters).unwrap_or(u16::MAX);
    match FaultModel::new(up, right, count) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::new(
            Exit::Usage,
            format!("with {voters} voters, u = {up} and r = {right}: {error}"),
        )
        .hint("choose others with --failures and --liars; nothing was changed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incarnation_is_what_it_prints() {
        let digits = "00112233445566778899aabbccddeeff";
        assert_eq!(incarnation(digits).unwrap().to_string(), digits);
        for wrong in ["", "+0112233445566778899aabbccddeeff", "0011", "xyz"] {
            assert_eq!(incarnation(wrong).unwrap_err().exit, Exit::Usage, "{wrong}");
        }
    }

    #[test]
    fn members_are_found_by_number_and_key() {
        let model = FaultModel::new(1, 1, 4).unwrap();
        let membership = Membership::unnamed(model);
        let second = membership.voters[1].key;
        assert_eq!(find(&membership, "1").unwrap().key, second);
        assert_eq!(find(&membership, &second.to_string()).unwrap().key, second);
        assert!(find(&membership, "4").is_err());
        assert!(find(&membership, "one").is_err());
    }
}
