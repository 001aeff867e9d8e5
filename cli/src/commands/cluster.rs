//! `quorumfs cluster`: the membership of the metadata replicas, and changes to it.
//!
//! A change is an operation like any other, ordered by the replicas and signed with an
//! administrator's key: the volume's owner, unless others were entrusted. A new replica is admitted
//! first and receives everything; once it reports that it holds a checkpoint, it may vote. A
//! command does both and waits in between, and after an interruption it can be repeated: steps that
//! are done already are not done twice. That is why a leaving replica is named by its key: its
//! number may be another's by then.

mod lead;

use super::cluster_plan;
use super::members::{self, Role};
use super::opened::Configured;
use crate::arguments::{
    ClusterAddArguments, ClusterCommand, ClusterRemoveArguments, ClusterReplaceArguments, General,
    NewReplica,
};
use crate::exit::Exit;
use crate::explain::client_failure;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use crate::values::{place, public_key, replica};
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{Epoch, Incarnation, PublicKey};
use quorumfs_bft::membership::{Command, Member, Membership};
use quorumfs_bft_runtime::client::{Administered, Client, ClientError};
use quorumfs_bft_runtime::server::first_incarnation;
use quorumfs_gateway::volume::Volume;
use serde::Serialize;
use std::fmt::{self, Write as _};
use std::time::{Duration, Instant};

/// How often to ask again for a new replica that cannot vote yet.
const AGAIN: Duration = Duration::from_secs(1);

/// Runs the command.
pub(crate) async fn run(
    general: &General,
    command: ClusterCommand,
    output: Output,
) -> CommandResult {
    if let ClusterCommand::Plan(arguments) = &command {
        return cluster_plan::run(arguments, output);
    }
    let configured = Configured::read(general)?;
    if let ClusterCommand::Status = command {
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
    /// The last batch of the previous epoch.
    from: u64,
    u: u16,
    r: u16,
    voters: usize,
    /// The size of a quorum.
    needed: u16,
    behaviour_version: u32,
    checkpoint_interval: u64,
    /// Their present keys: the membership lists the first key of an owner that was replaced.
    administrators: Vec<String>,
    #[serde(skip)]
    labels: Vec<Option<String>>,
}

impl Settings {
    fn of(volume: &Volume, membership: &Membership) -> Self {
        let administrators = membership.administrators.iter();
        let (administrators, labels): (Vec<_>, Vec<_>) =
            administrators.map(|key| volume.present_key(key)).unzip();
        Self {
            epoch: membership.epoch.0,
            from: membership.from.0,
            u: membership.model.up(),
            r: membership.model.right(),
            voters: membership.voters.len(),
            needed: membership.model.medium(),
            behaviour_version: membership.behaviour_version,
            checkpoint_interval: membership.checkpoint_interval,
            administrators: administrators.iter().map(ToString::to_string).collect(),
            labels,
        }
    }

    fn text(&self) -> String {
        let mut text = format!(
            "Membership epoch {}, since batch {}: {} replicas vote; {} may fail (u), {} of them \
             may lie (r); a quorum is {}.\nAdministrators:",
            self.epoch, self.from, self.voters, self.u, self.r, self.needed
        );
        for (key, label) in self.administrators.iter().zip(&self.labels) {
            let label = label.as_deref().unwrap_or("not a principal of the volume");
            let _ = write!(text, "\n  {key}  {label}");
        }
        text
    }
}

async fn status(configured: &Configured, output: Output) -> CommandResult {
    let standing = configured.standing().await?;
    let membership = standing.membership.clone();
    let replicas = members::of(configured, standing);
    output.record(
        "cluster",
        &Settings::of(configured.volume(), &membership),
        Settings::text,
    )?;
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

/// The change.
#[derive(Debug, Serialize)]
struct ChangeLine {
    change: &'static str,
    /// The epoch that it began.
    epoch: u64,
    #[serde(flatten)]
    object: Object,
}

/// The subject of a change.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Object {
    Replica(String),
    Administrators(Vec<String>),
    Version(u32),
}

impl Object {
    fn replica(key: &PublicKey) -> Self {
        Self::Replica(key.to_string())
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replica(key) => f.write_str(key),
            Self::Administrators(keys) => f.write_str(&keys.join(", ")),
            Self::Version(version) => write!(f, "{version}"),
        }
    }
}

/// The result if nothing had to change.
#[derive(Debug, Serialize)]
struct Unchanged {
    #[serde(flatten)]
    object: Object,
}

/// A session that asks for changes.
struct Cluster<'a> {
    configured: &'a Configured,
    client: Client,
    output: Output,
}

impl<'a> Cluster<'a> {
    async fn open(configured: &'a Configured, output: Output) -> CommandResult<Self> {
        let client = configured.connect().await?;
        Ok(Self {
            configured,
            client,
            output,
        })
    }

    async fn change(&self, command: &ClusterCommand) -> CommandResult<()> {
        let now = self.show().await?;
        let me = self.configured.principal();
        if !self.configured.volume().administers() && !now.administrators.contains(&me) {
            let failure = Failure::new(
                Exit::WrongKey,
                "only an administrator may change the membership, and this is another key",
            );
            return Err(failure.hint("`quorumfs cluster status` lists the administrators"));
        }
        match command {
            ClusterCommand::Status | ClusterCommand::Plan(_) => Ok(()),
            ClusterCommand::Add(arguments) => self.add(&now, arguments).await,
            ClusterCommand::Replace(arguments) => self.replace(&now, arguments).await,
            ClusterCommand::Remove(arguments) => self.remove(&now, arguments).await,
            ClusterCommand::Move(arguments) => {
                let address = place(&arguments.address)?;
                let member = find(&now, &arguments.replica)?;
                let (key, object) = (member.key, Object::replica(&member.key));
                if member.address == address.as_str().as_bytes() {
                    return self.unchanged(object, "It is there already.");
                }
                let address = address.to_string().into();
                self.ask("moved", object, Command::Move { key, address })
                    .await
            }
            ClusterCommand::Lead(arguments) => self.lead(&now, arguments).await,
            ClusterCommand::Entrust(arguments) => {
                let keys = arguments.administrators.iter();
                let administrators: Vec<_> = keys
                    .map(|it| administrator_key(it))
                    .collect::<CommandResult<_>>()?;
                may_entrust(&administrators, &self.configured.principal())?;
                let keys = administrators.iter().map(ToString::to_string);
                let object = Object::Administrators(keys.collect());
                if now.administrators == administrators {
                    return self.unchanged(object, "They are entrusted already.");
                }
                self.ask("entrusted", object, Command::Entrust { administrators })
                    .await
            }
            ClusterCommand::Behave(arguments) => {
                let version = arguments.version;
                let object = Object::Version(version);
                if now.behaviour_version == version {
                    return self.unchanged(object, "It is the behaviour already.");
                }
                self.ask("behaviour", object, Command::Behave { version })
                    .await
            }
        }
    }

    async fn add(&self, now: &Membership, arguments: &ClusterAddArguments) -> CommandResult<()> {
        let new = New::of(&arguments.new)?;
        if new.votes(now) {
            return self.unchanged(Object::replica(&new.key), VOTES);
        }
        let voters = now.voters.len() + 1;
        let (up, right) = arguments.model.over(now.model);
        if !arguments.learner {
            check(up, right, voters)?;
        }
        let admitted = self.admit(now, &new).await?;
        let key = new.key;
        if arguments.learner {
            return match admitted {
                true => Ok(()),
                false => self.unchanged(Object::replica(&key), "It receives everything already."),
            };
        }
        self.vote("added", &new, Command::Promote { key, up, right })
            .await
    }

    async fn replace(
        &self,
        now: &Membership,
        arguments: &ClusterReplaceArguments,
    ) -> CommandResult<()> {
        let new = New::of(&arguments.new)?;
        if new.votes(now) {
            return self.unchanged(Object::replica(&new.key), VOTES);
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
        self.output.print_text(RETIRED)
    }

    async fn remove(
        &self,
        now: &Membership,
        arguments: &ClusterRemoveArguments,
    ) -> CommandResult<()> {
        let retired = public_key(&arguments.replica).ok();
        if let Some(key) = retired.filter(|key| now.retired.contains(key)) {
            return self.unchanged(Object::replica(&key), "It no longer votes.");
        }
        let member = leaving(now, &arguments.replica)?;
        let key = member.key;
        let object = Object::replica(&key);
        match Role::of(now, member) {
            Role::Retired => self.unchanged(object, "It no longer votes."),
            Role::Learner => {
                self.ask("dismissed", object, Command::Dismiss { key })
                    .await
            }
            Role::Voter => {
                let (up, right) = arguments.model.over(now.model);
                check(up, right, now.voters.len() - 1)?;
                self.ask("removed", object, Command::Remove { key, up, right })
                    .await?;
                self.output.print_text(RETIRED)
            }
        }
    }

    /// Admits a replica, which then receives everything; returns whether it was new.
    async fn admit(&self, now: &Membership, new: &New) -> CommandResult<bool> {
        if now.retired.contains(&new.key) {
            let message = format!("the replica at {} voted once and was retired", new.address);
            return Err(Failure::new(Exit::Usage, message)
                .hint("a retired key is never accepted again: make another with `replica init`"));
        }
        if now.members().any(|it| it.key == new.key) {
            return Ok(false);
        }
        let admit = Command::Admit {
            key: new.key,
            incarnation: new.incarnation,
            address: new.address.clone().into(),
        };
        let object = Object::replica(&new.key);
        self.ask("admitted", object, admit).await.map(|()| true)
    }

    /// Makes a learner a voter, once it has caught up.
    async fn vote(&self, what: &'static str, new: &New, command: Command) -> CommandResult<()> {
        let began = Instant::now();
        let mut waiting = false;
        loop {
            let refused = match self.client.administer(command.clone()).await {
                Ok(Administered::Begins(epoch)) => {
                    return self.begun(what, Object::replica(&new.key), epoch).await;
                }
                Ok(other) => return Err(unexpected_answer(&other)),
                Err(ClientError::CommandRefused {
                    reason,
                    passes: true,
                }) => reason,
                Err(error) => return Err(client_failure(&error)),
            };
            if began.elapsed() > new.within {
                let message = format!(
                    "the new replica at {} does not vote after {} s: {refused}",
                    new.address,
                    new.within.as_secs()
                );
                return Err(Failure::new(Exit::Error, message).hint(
                    "it receives everything already: check that it runs and is reachable \
                     there, then repeat the command",
                ));
            }
            if !waiting {
                waiting = true;
                self.output.print_text(&format!(
                    "Waiting until the replica at {} has caught up; it has to run \
                     (`quorumfs replica run --join --genesis FILE`).",
                    new.address
                ))?;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn ask(&self, what: &'static str, object: Object, command: Command) -> CommandResult<()> {
        match self.client.administer(command).await {
            Ok(Administered::Begins(epoch)) => self.begun(what, object, epoch).await,
            Ok(other) => Err(unexpected_answer(&other)),
            Err(error) => Err(client_failure(&error)),
        }
    }

    /// The change is made for good; prints it once the epoch has begun.
    async fn begun(&self, what: &'static str, object: Object, epoch: Epoch) -> CommandResult<()> {
        // An operation of the new epoch is answered once the epoch has begun.
        self.show().await?;
        self.configured.remember(&self.client.membership());
        let change = ChangeLine {
            change: what,
            epoch: epoch.0,
            object,
        };
        self.output.record("change", &change, |change| {
            format!(
                "Membership epoch {}: {} {}",
                change.epoch, change.change, change.object
            )
        })
    }

    /// Prints that there is nothing to do.
    fn unchanged(&self, object: Object, words: &str) -> CommandResult<()> {
        let unchanged = Unchanged { object };
        let text = |_: &Unchanged| words.to_owned();
        self.output.record("unchanged", &unchanged, text)
    }

    async fn show(&self) -> CommandResult<Membership> {
        match self.client.administer(Command::Show).await {
            Ok(Administered::Shown(membership)) => Ok(*membership),
            Ok(other) => Err(unexpected_answer(&other)),
            Err(error) => Err(client_failure(&error)),
        }
    }
}

const LIST: &str = "`quorumfs cluster status` lists them";
const VOTES: &str = "It votes already.";
const RETIRED: &str = "If the old one still runs, keep it running until `quorumfs cluster status` \
                       says that it may be switched off. Then destroy its key.";
/// The fewest digits of a key that may stand for it.
const DIGITS_MIN: usize = 8;

fn unexpected_answer(answer: &Administered) -> Failure {
    Failure::new(
        Exit::NewerFormat,
        format!("the replicas answered {answer:?}"),
    )
    .hint("they may run a newer quorumfs than this one")
}

/// A replica that is to join.
struct New {
    key: PublicKey,
    incarnation: Incarnation,
    address: String,
    within: Duration,
}

impl New {
    fn of(arguments: &NewReplica) -> CommandResult<Self> {
        let section = replica(&arguments.place)?;
        let key = public_key(&section.key)?;
        let incarnation = match &arguments.incarnation {
            Some(digits) => digits.parse().map_err(|error| {
                Failure::new(
                    Exit::Usage,
                    format!("`{digits}` is no incarnation: {error}"),
                )
                .hint("`quorumfs replica init --again` printed it")
            })?,
            None => first_incarnation(&key),
        };
        Ok(Self {
            key,
            incarnation,
            address: section.address.to_string(),
            within: Duration::from_secs(arguments.within),
        })
    }

    fn votes(&self, now: &Membership) -> bool {
        now.voters.iter().any(|it| it.key == self.key)
    }
}

/// A member, by its number in this epoch or its key.
fn find<'a>(membership: &'a Membership, text: &str) -> CommandResult<&'a Member> {
    let Ok(number) = text.parse::<u16>() else {
        return by_key(membership, text);
    };
    let member = membership.members().nth(number.into());
    member.ok_or_else(|| no_such_member(text))
}

/// A member that is to leave. The numbers behind a leaving member move up, so a number that is
/// typed again would remove another one.
fn leaving<'a>(membership: &'a Membership, text: &str) -> CommandResult<&'a Member> {
    if text.parse::<u16>().is_err() {
        return by_key(membership, text);
    }
    let key = find(membership, text)?.key;
    let message = format!("the number {text} may mean another replica if this is repeated");
    Err(Failure::new(Exit::Usage, message)
        .hint(format!("name it by its key: quorumfs cluster remove {key}")))
}

/// A member, by its key or the beginning of it.
fn by_key<'a>(membership: &'a Membership, text: &str) -> CommandResult<&'a Member> {
    if text.len() < DIGITS_MIN {
        let message = format!("`{text}` is neither a number nor enough of a key");
        return Err(Failure::new(Exit::Usage, message).hint(format!(
            "type at least {DIGITS_MIN} digits of the key; {LIST}"
        )));
    }
    let begins = text.to_ascii_lowercase();
    let mut found = membership
        .members()
        .filter(|it| it.key.to_string().starts_with(&begins));
    match (found.next(), found.next()) {
        (Some(member), None) => Ok(member),
        (Some(_), Some(_)) => {
            let message = format!("several replicas have keys that begin with {text}");
            Err(Failure::new(Exit::Usage, message).hint("type more digits of the key"))
        }
        (None, _) => Err(no_such_member(text)),
    }
}

fn no_such_member(text: &str) -> Failure {
    Failure::new(Exit::Usage, format!("there is no replica {text}")).hint(LIST)
}

/// An administrator's public key, as people pass it on.
fn administrator_key(digits: &str) -> CommandResult<PublicKey> {
    digits.parse().map_err(|_| {
        let message = format!("`{digits}` is not a public key");
        Failure::new(Exit::Usage, message).hint(
            "it is 64 hexadecimal digits; `quorumfs cluster status` lists the administrators' keys",
        )
    })
}

/// Refuses a list without the asking administrator: mistyped, it would leave no administrator.
fn may_entrust(administrators: &[PublicKey], own: &PublicKey) -> CommandResult<()> {
    if administrators.contains(own) {
        return Ok(());
    }
    let message = "the list lacks your own key, which could then no longer change anything";
    Err(Failure::new(Exit::Usage, message).hint(format!(
        "add {own} to it; once another key has proved to work, its holder can remove this one"
    )))
}

/// Refuses impossible numbers before anything is asked for.
fn check(up: u16, right: u16, voters: usize) -> CommandResult<()> {
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
    fn members_are_found_by_number_and_key_and_go_by_key_only() {
        let model = FaultModel::new(1, 1, 4).unwrap();
        let mut membership = Membership::unnamed(model);
        membership.voters[1].key = PublicKey([0x11; 32]);
        let second = membership.voters[1].key;
        let digits = second.to_string();
        assert_eq!(find(&membership, "1").unwrap().key, second);
        for name in [&digits, &digits[..8]] {
            assert_eq!(find(&membership, name).unwrap().key, second);
            assert_eq!(leaving(&membership, name).unwrap().key, second);
        }
        let number = leaving(&membership, "1").unwrap_err();
        assert!(number.hint.unwrap().contains(&digits));
        for wrong in ["4", "one", &digits[..7], "ffffffff", &format!("{digits}1")] {
            assert!(find(&membership, wrong).is_err(), "{wrong}");
            assert!(leaving(&membership, wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_administrator_is_not_left_out_by_mistake() {
        let (own, other) = (PublicKey([1; 32]), PublicKey([2; 32]));
        assert_eq!(may_entrust(&[other, own], &own), Ok(()));
        assert_eq!(may_entrust(&[other], &own).unwrap_err().exit, Exit::Usage);
    }

    #[test]
    fn what_a_change_is_about_is_said() {
        let object = Object::Administrators(vec!["one".to_owned(), "two".to_owned()]);
        assert_eq!(object.to_string(), "one, two");
        let line = crate::output::encode("unchanged", &Unchanged { object }).unwrap();
        assert!(line.contains(r#""administrators":["one","two"]"#), "{line}");
    }
}
