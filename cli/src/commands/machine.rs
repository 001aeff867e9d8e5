//! `join --as-me`: a further machine of the same person, with one paste.
//!
//! ```text
//! first machine: quorumfs join --as-me          second machine: quorumfs join --as-me LINE
//!   makes an invitation, prints LINE ─── paste ───► reads the invitation, makes its own key
//!   shows the fingerprint, asks      ◄─ replicas ── leaves its public keys there
//!   states the machine, signed       ── replicas ─► has what the first machine has
//! ```
//!
//! Which side this is, the state directory says: one that has a volume invites. No key leaves its
//! machine; what the second one gets is wrapped for its key. The line is valid for some minutes
//! and once ([`quorumfs_gateway::keys::MachineLine`]).
//!
//! Interrupted, the first machine revokes its invitation; the second one goes on with the same
//! line, while that lasts.

use super::known_people;
use super::opened::{Access, Configured, Opened};
use super::people::{harmless, role_name, volume_card};
use crate::arguments::{General, JoinArguments};
use crate::clouds::Role;
use crate::exit::Exit;
use crate::explain::{block_failure, key_failure, vfs_failure, volume_failure};
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use crate::stop::Stop;
use quorumfs_gateway::keys::{MachineAnswer, MachineLine, SignedCard, VolumeCard};
use quorumfs_gateway::metadata::MetadataClient;
use quorumfs_gateway::volume::Person;
use quorumfs_metadata::identity::{CloudIndex, PrincipalId};
use quorumfs_metadata::limits::{
    INVITATION_CARD_BYTES_MAX, MACHINE_NAME_BYTES_MAX, PEOPLE_CHANGE_BYTES_MAX,
    SEALED_CREDENTIALS_BYTES_MAX,
};
use quorumfs_metadata::operation::InviteMachine;
use quorumfs_metadata::row::ReplicaInfo;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, IsTerminal, Write, stderr, stdin};
use std::time::Duration;
use zeroize::Zeroizing;

/// How long an invitation lasts.
const LASTS: Duration = Duration::from_secs(15 * 60);
/// How often each side looks what the other has done.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// What sealing adds to credentials, and what a change has besides them at most.
const SEALING_BYTES: usize = 96;
const STATEMENT_BYTES_MAX: usize = 8 << 10;

/// The line that is to be pasted.
#[derive(Serialize)]
struct Inviting {
    line: String,
    /// How long it is valid.
    seconds: u64,
}

impl Inviting {
    fn text(&self) -> String {
        format!(
            "Type this on the other machine, within {} minutes:\n\n  \
             quorumfs join --as-me {}\n\n\
             Show the line to no one else. Waiting for that machine …",
            self.seconds / 60,
            self.line
        )
    }
}

/// A machine that was added.
#[derive(Serialize)]
struct Added {
    name: String,
    role: &'static str,
    fingerprint: String,
    volume_fingerprint: String,
    /// The clouds of which it was given credentials.
    given: Vec<String>,
    /// The clouds of which this machine has no credentials in a file that could be given.
    lacking: Vec<String>,
}

impl Added {
    fn text(&self) -> String {
        let lacking = match self.lacking.as_slice() {
            [] => String::new(),
            clouds => format!(
                "\nOf the clouds {} it was given no credentials: if they need some, they are \
                 in their\nprovider's usual place here, or too long (docs/CLOUDS.md).",
                clouds.join(", ")
            ),
        };
        format!(
            "\"{}\" may {} now, as you may.\n\
             Compare the volume's fingerprint with what is shown there: {}{lacking}\n\
             If that machine is lost: quorumfs people remove {0}",
            self.name, self.role, self.volume_fingerprint
        )
    }
}

/// Invites a further machine, and adds it once it has answered.
pub(super) async fn invite(
    general: &General,
    arguments: &JoinArguments,
    output: Output,
) -> CommandResult {
    let configured = Configured::read(general)?;
    let opened = Opened::open(&configured, Access::Reading).await?;
    let added = invite_over(&configured, &opened, arguments, output).await;
    known_people::keep_learned(configured.state(), opened.volume());
    let closed = opened.close().await;
    let exit = added?;
    closed.map(|()| exit)
}

async fn invite_over(
    configured: &Configured,
    opened: &Opened,
    arguments: &JoinArguments,
    output: Output,
) -> CommandResult {
    let (volume, metadata) = (opened.volume(), opened.metadata());
    let learned = volume.learn_people(metadata).await;
    learned.map_err(|error| volume_failure(&error))?;
    let line = line_of(configured, opened)?;
    let key = line.invitation.id().signing;
    // Who the people are the other machine asks the replicas.
    let card = VolumeCard {
        people: Vec::new(),
        ..volume_card(configured, volume)
    };
    let card = SignedCard::of(card, &line.invitation)
        .to_text()
        .into_bytes();
    if card.len() > INVITATION_CARD_BYTES_MAX {
        let message = "what a machine has to know of this volume is too long for an invitation";
        return Err(Failure::new(Exit::Error, message).hint(
            "ask an administrator to invite the machine: `quorumfs join` there, and \
             `quorumfs people invite`",
        ));
    }
    let mut stop = Stop::of_a_command()?;
    let seconds = LASTS.as_secs();
    let wish = InviteMachine { key, seconds, card };
    let invited = metadata.invite_machine(wish).await;
    invited.map_err(|error| vfs_failure(&error))?;
    let inviting = Inviting {
        line: line.to_text(),
        seconds,
    };
    output.record("machine_line", &inviting, Inviting::text)?;
    let answered = async {
        let bytes = answer_of(metadata, key).await?;
        let answer = MachineAnswer::verified(&bytes, &key);
        let answer = answer.map_err(|error| key_failure(&error))?;
        // It waits for the terminal, and an interrupt has to come through.
        let (yes, asked) = (arguments.yes, answer.clone());
        let confirmed = tokio::task::spawn_blocking(move || confirm(yes, &asked));
        let confirmed = confirmed.await;
        confirmed.map_err(|error| Failure::new(Exit::Error, error.to_string()))??;
        Ok::<_, Failure>(answer)
    };
    let answered = tokio::select! {
        answered = answered => answered,
        () = stop.wanted() => {
            let message = "interrupted: no machine was added, and the line is no longer valid";
            Err(Failure::new(Exit::Error, message))
        }
    };
    let added = match answered {
        Ok(answer) => add(configured, opened, &answer).await,
        Err(failure) => Err(failure),
    };
    match added {
        Ok(added) => {
            output.record("machine", &added, Added::text)?;
            Ok(Exit::Success)
        }
        Err(failure) => {
            // It ends by itself too.
            let _ = metadata.end_invitation(key).await;
            Err(failure)
        }
    }
}

fn line_of(configured: &Configured, opened: &Opened) -> CommandResult<MachineLine> {
    let volume = opened.volume();
    let genesis = volume.genesis();
    let damaged = |error: String| Failure::new(Exit::Damaged, format!("the genesis: {error}"));
    let model = genesis
        .fault_model()
        .map_err(|error| damaged(error.to_string()))?;
    let sections = configured.configuration().replica.iter();
    let replicas = sections.zip(&genesis.replicas).map(|(section, replica)| {
        let address = section.address.to_string();
        ReplicaInfo {
            address,
            ..replica.clone()
        }
    });
    let by = volume.principal().id().signing;
    let line = MachineLine::new((by, volume.lineage().root), model, replicas.collect());
    line.map_err(|error| key_failure(&error))
}

/// What the invited machine answers.
async fn answer_of(metadata: &MetadataClient, key: PrincipalId) -> CommandResult<Vec<u8>> {
    loop {
        let invitation = metadata.invitation(key).await;
        let invitation = invitation.map_err(|error| vfs_failure(&error))?;
        match invitation {
            None => {
                let message = "no machine has answered in time, or another line was made meanwhile";
                return Err(Failure::new(Exit::Error, message)
                    .hint("type `quorumfs join --as-me` again, for another line"));
            }
            Some(listed) => {
                if let Some(answer) = listed.answer {
                    return Ok(answer);
                }
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Asks on the terminal whether this is the machine that is meant.
fn confirm(yes: bool, answer: &MachineAnswer) -> CommandResult<()> {
    if yes {
        return Ok(());
    }
    let (name, fingerprint) = (&answer.name, answer.keys.fingerprint());
    if !stdin().is_terminal() {
        let message = format!(
            "\"{name}\" has answered, and there is no terminal to ask whether its fingerprint is \
             {fingerprint}"
        );
        return Err(Failure::new(Exit::Usage, message)
            .hint("use --yes, if no one else can have seen the line"));
    }
    let mut stderr = stderr();
    let _ = write!(
        stderr,
        "Add the machine \"{name}\" (fingerprint {fingerprint}; compare with what it shows)? \
         [yes/no] "
    );
    let _ = stderr.flush();
    let mut reply = String::new();
    let _ = stdin().lock().read_line(&mut reply);
    match reply.trim() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::new(Exit::Usage, "not added")),
    }
}

/// States the machine, with the credentials that this one has.
async fn add(
    configured: &Configured,
    opened: &Opened,
    answer: &MachineAnswer,
) -> CommandResult<Added> {
    let (volume, metadata) = (opened.volume(), opened.metadata());
    let clouds = opened.blocks().shares();
    let clouds = clouds.map_err(|error| block_failure(&error))?;
    let (credentials, lacking) = credentials_here(configured)?;
    let me = volume.principal().id().signing;
    let machines = volume.machines();
    let person = |key: &PrincipalId| machines.get(key).copied().unwrap_or(*key);
    let key = answer.keys.signing;
    let is_there = volume.people().iter().any(|it| it.statement.key == key);
    if is_there && person(&key) == person(&me) {
        // It was added with an earlier line.
        return Ok(added_machine(opened, answer, &credentials, lacking));
    }
    let name = free_name(&volume.people(), me, &answer.name);
    let machine = (&answer.keys, name.as_str());
    let added = volume.add_machine(metadata, &clouds, machine, &credentials);
    added.await.map_err(|error| {
        volume_failure(&error).or_hint("`quorumfs people ls` shows whether the machine was added")
    })?;
    Ok(added_machine(opened, answer, &credentials, lacking))
}

fn added_machine(
    opened: &Opened,
    answer: &MachineAnswer,
    credentials: &BTreeMap<CloudIndex, Zeroizing<Vec<u8>>>,
    lacking: Vec<String>,
) -> Added {
    let volume = opened.volume();
    let people = volume.people().into_iter();
    let mut statements = people.map(|person| person.statement);
    let statement = statements.find(|it| it.key == answer.keys.signing);
    let known = volume.known_clouds().into_iter();
    let given = known.filter(|it| credentials.contains_key(&it.cloud.index));
    Added {
        name: statement
            .as_ref()
            .map_or_else(String::new, |it| harmless(&it.label)),
        role: statement.map_or("", |it| role_name(&it.rights)),
        fingerprint: answer.keys.fingerprint(),
        volume_fingerprint: volume.lineage().root.fingerprint(),
        given: given.map(|it| it.cloud.name).collect(),
        lacking,
    }
}

/// The name of a machine, with a number behind it if the person has one of that name.
fn free_name(people: &[Person], me: PrincipalId, wanted: &str) -> String {
    let mine = people.iter().find(|it| it.statement.key == me);
    let mine = mine.map_or("", |it| it.statement.label.as_str());
    let is_taken = |name: &str| {
        let ends = format!("@{name}");
        let mut labels = people.iter().map(|it| it.statement.label.as_str());
        labels.any(|label| {
            let person = label.strip_suffix(ends.as_str());
            person.is_some_and(|person| mine == person || mine.starts_with(&format!("{person}@")))
        })
    };
    let numbered = |number: u32| {
        let end = format!("-{number}");
        let length = MACHINE_NAME_BYTES_MAX.saturating_sub(end.len());
        let begin: String = wanted.chars().take(length).collect();
        format!("{begin}{end}")
    };
    match is_taken(wanted) {
        false => wanted.to_owned(),
        true => (2..)
            .map(numbered)
            .find(|name| !is_taken(name))
            .unwrap_or_else(|| wanted.to_owned()),
    }
}

/// The credentials of clouds that this machine has in files, as far as they fit in one change; and
/// the names of the other clouds that are not directories.
type Here = (BTreeMap<CloudIndex, Zeroizing<Vec<u8>>>, Vec<String>);

fn credentials_here(configured: &Configured) -> CommandResult<Here> {
    let (mut found, mut lacking) = (BTreeMap::new(), Vec::new());
    let mut space = PEOPLE_CHANGE_BYTES_MAX.saturating_sub(STATEMENT_BYTES_MAX);
    for cloud in configured.clouds() {
        let file = cloud.credentials(Role::Writer);
        let file = file.or_else(|| cloud.credentials(Role::Reader));
        let Some(file) = file else {
            if !cloud.is_a_directory() {
                lacking.push(cloud.name.clone());
            }
            continue;
        };
        let read = fs::read(file).map(Zeroizing::new);
        let read = read.map_err(|error| Failure::file("read", file, &error))?;
        let sealed = read.len().saturating_add(SEALING_BYTES);
        if read.is_empty() || sealed > SEALED_CREDENTIALS_BYTES_MAX || sealed > space {
            lacking.push(cloud.name.clone());
            continue;
        }
        space = space.saturating_sub(sealed);
        found.insert(CloudIndex(cloud.index), read);
    }
    Ok((found, lacking))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_metadata::people::is_machine_name;
    use quorumfs_metadata::row::Rights;
    use quorumfs_metadata::statement::Statement;

    fn person(label: &str, seed: u8) -> Person {
        Person {
            statement: Statement {
                key: quorumfs_bft::identity::PublicKey([seed; 32]),
                wrapping_key: [0; 32],
                label: label.into(),
                rights: Rights::all(),
                expires: None,
                cloud_secrets: Vec::new(),
            },
            stated_by: None,
        }
    }

    #[test]
    fn two_machines_of_a_person_have_different_names() {
        let people = [
            person("bob", 1),
            person("bob@laptop", 2),
            person("eve@tablet", 3),
        ];
        for me in [1, 2] {
            let free = |name: &str| free_name(&people, people[me - 1].statement.key, name);
            assert_eq!(free("laptop"), "laptop-2");
            assert_eq!(free("tablet"), "tablet");
            assert_eq!(free("lap"), "lap");
        }
        let long = "x".repeat(MACHINE_NAME_BYTES_MAX);
        let people = [person("bob", 1), person(&format!("bob@{long}"), 2)];
        let free = free_name(&people, people[0].statement.key, &long);
        assert!(is_machine_name(&free) && free.ends_with("-2"), "{free}");
    }
}
