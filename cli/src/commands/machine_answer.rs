//! `join --as-me LINE`: the second machine's side of what `machine` describes.

use crate::arguments::JoinArguments;
use crate::exit::Exit;
use crate::explain::{client_failure, key_failure, vfs_failure};
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use crate::values::place;
use quorumfs_bft_runtime::client::{Client, ClientConfig, Member};
use quorumfs_bft_runtime::keys::NodeKey;
use quorumfs_bft_runtime::server::first_incarnation;
use quorumfs_gateway::keys::{
    JoinKey, MachineAnswer, MachineLine, Principal, SignedCard, VolumeCard,
};
use quorumfs_gateway::metadata::{MetadataClient, Ordered};
use quorumfs_gateway::vfs::VfsError;
use quorumfs_metadata::attributes::Credentials;
use quorumfs_metadata::identity::PrincipalId;
use quorumfs_metadata::limits::MACHINE_NAME_BYTES_MAX;
use quorumfs_metadata::people::{PeopleStep, SignedPeopleChange, is_machine_name};
use quorumfs_metadata::row::Row;
use rustix::io::Errno;
use serde::Serialize;
use std::fs;
use std::io::{BufRead, IsTerminal, Write, stderr, stdin};
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroizing;

/// How often it looks whether it was added.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long connecting with an invitation's key may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(15);

/// This machine has answered.
#[derive(Serialize)]
struct Answered {
    name: String,
    fingerprint: String,
}

impl Answered {
    fn text(&self) -> String {
        format!(
            "This machine, \"{}\", has the fingerprint {}\n\
             Compare it with what the other machine shows, and say yes there. Waiting for that …",
            self.name, self.fingerprint
        )
    }
}

/// The line that was pasted: from the argument, or from standard input.
pub(super) fn asked_line(arguments: &JoinArguments) -> CommandResult<MachineLine> {
    let text = match arguments.file.as_deref().and_then(|it| it.to_str()) {
        Some(text) if text != "-" => text.to_owned(),
        _ => {
            if stdin().is_terminal() {
                let mut stderr = stderr();
                let _ = write!(
                    stderr,
                    "Type `quorumfs join --as-me` on your machine that has the volume; paste the \
                     line that it prints:\n> "
                );
                let _ = stderr.flush();
            }
            let mut text = String::new();
            let read = stdin().lock().read_line(&mut text);
            read.map_err(|error| Failure::new(Exit::Usage, format!("no line was read: {error}")))?;
            let line = text.trim();
            // The whole command may have been pasted.
            line.rsplit(' ').next().unwrap_or_default().to_owned()
        }
    };
    MachineLine::from_text(&text).map_err(|error| {
        Failure::new(Exit::Usage, error.to_string()).hint(
            "type `quorumfs join --as-me` on your machine that has the volume, and copy the whole \
             line that begins with `qfs-machine-1:`",
        )
    })
}

/// The name of this machine: the given one, or that of the host.
fn name_here(arguments: &JoinArguments) -> CommandResult<String> {
    if let Some(name) = &arguments.name {
        return match is_machine_name(name) {
            true => Ok(name.clone()),
            false => {
                let message = format!(
                    "a machine's name has 1 to {MACHINE_NAME_BYTES_MAX} letters, digits, `.`, `_` \
                     and `-`"
                );
                Err(Failure::new(Exit::Usage, message))
            }
        };
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim().split('.').next().unwrap_or_default();
    let plain = host.chars().filter(|it| is_machine_name(&it.to_string()));
    let name: String = plain.take(MACHINE_NAME_BYTES_MAX).collect();
    Ok(if name.is_empty() {
        "machine".into()
    } else {
        name
    })
}

/// Answers the invitation of a line, and waits until this machine is a principal. What it has to
/// know of the volume is verified as far as the line says.
pub(super) async fn answer(
    line: &MachineLine,
    guest: &JoinKey,
    arguments: &JoinArguments,
    output: Output,
) -> CommandResult<VolumeCard> {
    let name = name_here(arguments)?;
    let client = connect(line).await?;
    let session = Arc::new(Ordered::new(client));
    let metadata = MetadataClient::new(session, Credentials::root());
    let joined = answer_over(&metadata, line, (guest, &name), output).await;
    metadata.close().await;
    joined
}

/// A session with an invitation's key.
async fn connect(line: &MachineLine) -> CommandResult<Client> {
    let mut members = Vec::new();
    for replica in &line.replicas {
        members.push(Member {
            id: replica.id,
            key: replica.key,
            incarnation: first_incarnation(&replica.key),
            address: place(&replica.address)?,
        });
    }
    let seed = Zeroizing::new(*line.invitation.signing_secret().expose());
    let key = NodeKey::from_seed(seed);
    let key = key.map_err(|error| Failure::new(Exit::WrongKey, error.to_string()))?;
    let mut config = ClientConfig::new(line.root.volume(), line.model, members, Arc::new(key));
    config.connect_deadline = CONNECT_WITHIN;
    Client::connect(config).await.map_err(|error| {
        let failure = client_failure(&error);
        match failure.exit {
            Exit::WrongKey => ended(),
            _ => failure,
        }
    })
}

fn ended() -> Failure {
    let message = "the line is no longer valid: it has expired, was revoked, or was replaced by \
                   another one";
    Failure::new(Exit::WrongKey, message)
        .hint("type `quorumfs join --as-me` on the other machine again, for another line")
}

async fn answer_over(
    metadata: &MetadataClient,
    line: &MachineLine,
    (guest, name): (&JoinKey, &str),
    output: Output,
) -> CommandResult<VolumeCard> {
    let key = line.invitation.id().signing;
    let invitation = metadata.invitation(key).await;
    let invitation = invitation.map_err(|error| vfs_failure(&error))?;
    let card = card_in(line, &invitation.ok_or_else(ended)?.card)?;
    let own = &guest.principal;
    let answered = metadata.answer_invitation(MachineAnswer::of(own, name, &line.invitation));
    answered.await.map_err(|error| answer_failure(&error))?;
    let shown = Answered {
        name: name.to_owned(),
        fingerprint: own.id().fingerprint(),
    };
    output.record("answered", &shown, Answered::text)?;
    let mut people: Vec<SignedPeopleChange> = Vec::new();
    loop {
        let after = u32::try_from(people.len()).unwrap_or(u32::MAX);
        let more = metadata.people(after).await;
        let more = more.map_err(|error| answer_failure(&error))?;
        people.extend(more.unwrap_or_default());
        if people.iter().any(|change| adds(change, (&line.by, own))) {
            let people = people.iter().map(Row::to_bytes).collect();
            return Ok(VolumeCard { people, ..card });
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Whether a change of the one that invites makes a principal of this machine. What it is worth is
/// verified later.
fn adds(change: &SignedPeopleChange, (by, own): (&PrincipalId, &Principal)) -> bool {
    if change.signed.signer != *by {
        return false;
    }
    let step = change.decoded().map(|change| change.step);
    matches!(step, Some(PeopleStep::AddMachine(added)) if added.statement.key == own.id().signing)
}

/// The card of an invitation, if the line's key signed it, and it is of the line's volume.
fn card_in(line: &MachineLine, bytes: &[u8]) -> CommandResult<VolumeCard> {
    let text = String::from_utf8_lossy(bytes);
    let signed = SignedCard::from_text(&text).map_err(|error| key_failure(&error))?;
    let is_meant = signed.signer == line.invitation.id().signing && signed.card.root == line.root;
    match is_meant {
        true => Ok(signed.card),
        false => {
            let message = "the replicas show another volume than the line names";
            Err(Failure::new(Exit::WrongKey, message)
                .hint("type `quorumfs join --as-me` on the other machine again, for another line"))
        }
    }
}

fn answer_failure(error: &VfsError) -> Failure {
    match error.errno() {
        Errno::AGAIN => {
            let message = "another machine has answered with this line already";
            Failure::new(Exit::WrongKey, message).hint(
                "if that is none of yours, say no on the other machine: someone else has seen the \
                 line; then type `quorumfs join --as-me` there again",
            )
        }
        Errno::STALE => ended(),
        _ => vfs_failure(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_host_is_one_of_a_machine() {
        let name = name_here(&JoinArguments::default()).unwrap();
        assert!(is_machine_name(&name), "{name}");
    }
}
