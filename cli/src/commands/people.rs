//! `people`: who may use the volume.
//!
//! An administrator admits a guest by two public keys, and gives it a file; both are public. See
//! `join` for the other side, and [`quorumfs_gateway::keys::JoinKey`] for what is handed over.

mod granting;
mod removing;
mod setting;
mod shown;

use super::known_people;
use super::opened::{Access, Configured, Opened};
use crate::arguments::{
    General, PeopleCommand, PeopleCredentialsArguments, PeopleGroupArguments, PeopleInviteArguments,
};
use crate::directory;
use crate::exit::Exit;
use crate::explain::{block_failure, volume_failure};
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
pub(super) use granting::{after, has_ended};
use granting::{next_uid, now, rights};
use quorumfs_gateway::blocks::ShareStore;
use quorumfs_gateway::keys::{PrincipalId as PublicKeys, SignedCard, VolumeCard};
use quorumfs_gateway::volume::{Grant, Person, Volume};
use quorumfs_metadata::identity::{CloudIndex, Gid};
use quorumfs_metadata::limits::{LABEL_BYTES_MAX, SEALED_CREDENTIALS_BYTES_MAX};
use quorumfs_metadata::row::{Assertable, Row};
use quorumfs_metadata::statement::Statement;
use serde::Serialize;
use shown::{Invited, PersonLine};
pub(super) use shown::{harmless, role_name};
use std::fs;
use std::io::{BufRead, IsTerminal, Write, stderr, stdin};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The longest file with credentials of a cloud; sealing adds 96 bytes.
const CREDENTIALS_BYTES_MAX: usize = SEALED_CREDENTIALS_BYTES_MAX - 96;

/// Runs the command.
pub(crate) async fn run(
    general: &General,
    command: &PeopleCommand,
    output: Output,
) -> CommandResult {
    let configured = Configured::read(general)?;
    let access = match command {
        PeopleCommand::Ls => Access::Reading,
        _ => Access::Command,
    };
    let invited = match command {
        PeopleCommand::Invite(arguments) => Some(asked_line(arguments)?),
        _ => None,
    };
    let opened = Opened::open(&configured, access).await?;
    let people = People {
        configured: &configured,
        opened: &opened,
        output,
    };
    let done = people.run(command, invited).await;
    known_people::keep_learned(configured.state(), opened.volume());
    let closed = opened.close().await;
    let exit = done?;
    closed.map(|()| exit)
}

/// The guest's keys: from the argument, or from standard input.
fn asked_line(arguments: &PeopleInviteArguments) -> CommandResult<PublicKeys> {
    let line = match &arguments.line {
        Some(line) => line.clone(),
        None => {
            if stdin().is_terminal() {
                let name = &arguments.name;
                let mut stderr = stderr();
                let _ = write!(
                    stderr,
                    "{name} types `quorumfs join`; paste the line that it prints:\n> "
                );
                let _ = stderr.flush();
            }
            let mut line = String::new();
            let read = stdin().lock().read_line(&mut line);
            read.map_err(|error| Failure::new(Exit::Usage, format!("no line was read: {error}")))?;
            line
        }
    };
    PublicKeys::from_join_line(&line).map_err(|error| {
        Failure::new(Exit::Usage, error.to_string())
            .hint("copy the whole line that begins with `qfs-join-1:` from the guest's terminal")
    })
}

/// Asks on the terminal whether the keys are the right ones.
fn confirm(arguments: &PeopleInviteArguments, keys: &PublicKeys) -> CommandResult<()> {
    if arguments.yes {
        return Ok(());
    }
    let fingerprint = keys.fingerprint();
    if !stdin().is_terminal() {
        let message = "no terminal to ask whether the fingerprint is the right one";
        return Err(Failure::new(Exit::Usage, message).hint(format!(
            "compare {fingerprint} with what `quorumfs join` shows, then use --yes"
        )));
    }
    let mut stderr = stderr();
    let _ = write!(
        stderr,
        "Admit \"{}\" (fingerprint {fingerprint}; compare with what `quorumfs join` shows)? \
         [yes/no] ",
        arguments.name
    );
    let _ = stderr.flush();
    let mut answer = String::new();
    let _ = stdin().lock().read_line(&mut answer);
    match answer.trim() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::new(Exit::Usage, "not admitted")),
    }
}

struct People<'a> {
    configured: &'a Configured,
    opened: &'a Opened,
    output: Output,
}

impl People<'_> {
    async fn run(&self, command: &PeopleCommand, invited: Option<PublicKeys>) -> CommandResult {
        let (volume, metadata) = (self.opened.volume(), self.opened.metadata());
        let learned = volume.learn_people(metadata).await;
        learned.map_err(|error| volume_failure(&error))?;
        match (command, invited) {
            (PeopleCommand::Invite(arguments), Some(keys)) => self.invite(arguments, &keys).await,
            (PeopleCommand::Set(arguments), _) => self.set(arguments).await,
            (PeopleCommand::Remove(arguments), _) => self.remove(arguments).await,
            (PeopleCommand::Credentials(arguments), _) => self.credentials(arguments).await,
            (PeopleCommand::Group(arguments), _) => self.name_group(arguments).await,
            (PeopleCommand::Ls | PeopleCommand::Invite(_), _) => self.list().await,
        }
    }

    fn clouds(&self) -> CommandResult<ShareStore> {
        let clouds = self.opened.blocks().shares();
        clouds.map_err(|error| block_failure(&error))
    }

    async fn list(&self) -> CommandResult {
        let (volume, metadata) = (self.opened.volume(), self.opened.metadata());
        let members = volume.members(metadata).await;
        let members = members.map_err(|error| volume_failure(&error))?;
        let (people, groups) = (volume.people(), volume.groups());
        let me = volume.principal().id().signing;
        for person in &people {
            let key = person.statement.key;
            let line = PersonLine::of(person, &people, &groups, now())
                .here(key == me)
                .given(self.names_of(&volume.given_clouds(&key)))
                .member(members.contains(&key));
            self.output.record("person", &line, PersonLine::text)?;
        }
        Ok(Exit::Success)
    }

    fn names_of(&self, clouds: &[CloudIndex]) -> Vec<String> {
        let known = self.opened.volume().known_clouds().into_iter();
        let named = known.filter(|it| clouds.contains(&it.cloud.index));
        named.map(|it| it.cloud.name).collect()
    }

    async fn invite(&self, arguments: &PeopleInviteArguments, keys: &PublicKeys) -> CommandResult {
        let volume = self.opened.volume();
        let path = card_path(arguments)?;
        let present = self.present();
        if let Some(known) = present.iter().find(|it| it.statement.key == keys.signing) {
            let known = &known.statement;
            return self.invite_again(known, arguments, keys, &path).await;
        }
        self.check_name(&arguments.name)?;
        let uid = match arguments.uid {
            Some(uid) => uid,
            None => next_uid(&volume.user_numbers())?,
        };
        let groups = self.groups(&arguments.groups)?;
        let grant = Grant {
            label: arguments.name.clone(),
            rights: rights(arguments.role, uid, groups),
            expires: arguments.expires.map(after),
        };
        let given = self.read_credentials(&arguments.cloud_credentials)?;
        confirm(arguments, keys)?;
        let clouds = self.clouds()?;
        let admitted = volume.admit(self.opened.metadata(), &clouds, keys, grant);
        admitted.await.map_err(|error| {
            volume_failure(&error).or_hint("the same command again goes on from here")
        })?;
        let as_what = (arguments.role.name(), uid);
        self.hand_over(keys, &given, as_what, path).await
    }

    /// The same key was admitted under this name before, perhaps by a command that was interrupted:
    /// it gets its credentials and its file.
    async fn invite_again(
        &self,
        known: &Statement,
        arguments: &PeopleInviteArguments,
        keys: &PublicKeys,
        path: &Path,
    ) -> CommandResult {
        if known.label != arguments.name {
            let name = harmless(&known.label);
            let message = format!("this key is admitted already, as \"{name}\"");
            return Err(Failure::new(Exit::Usage, message)
                .hint("invite it under that name, and its file is made again"));
        }
        let given = self.read_credentials(&arguments.cloud_credentials)?;
        let uid = match &known.rights.uids {
            Assertable::Only(uids) => uids.first().map_or(0, |uid| uid.0),
            Assertable::Any => 0,
        };
        let as_what = (role_name(&known.rights), uid);
        self.hand_over(keys, &given, as_what, path.to_owned()).await
    }

    /// Gives an admitted guest its credentials, and makes its file.
    async fn hand_over(
        &self,
        keys: &PublicKeys,
        given: &[(CloudIndex, Zeroizing<Vec<u8>>)],
        (role, uid): (&'static str, u32),
        path: PathBuf,
    ) -> CommandResult {
        let volume = self.opened.volume();
        for (cloud, credentials) in given {
            self.give(keys, *cloud, Some(credentials)).await?;
        }
        let card = volume_card(self.configured, volume);
        let card = SignedCard::of(card, volume.principal());
        directory::replace(&path, card.to_text().as_bytes())?;
        let mut people = volume.people().into_iter();
        let person = people.find(|it| it.statement.key == keys.signing);
        let invited = Invited {
            name: person.map_or_else(String::new, |it| it.statement.label),
            role,
            uid,
            fingerprint: keys.fingerprint(),
            volume_fingerprint: volume.lineage().root.fingerprint(),
            file: path,
        };
        self.output.record("invited", &invited, Invited::text)?;
        Ok(Exit::Success)
    }

    /// The people whose time is not over.
    fn present(&self) -> Vec<Person> {
        let mut people = self.opened.volume().people();
        people.retain(|it| !has_ended(it));
        people
    }

    /// A name is one that no one has, and can be shown.
    fn check_name(&self, name: &str) -> CommandResult<()> {
        let fits = (1..=LABEL_BYTES_MAX).contains(&name.len());
        if !fits || harmless(name) != name || name.trim() != name {
            let message =
                format!("a name has 1 to {LABEL_BYTES_MAX} bytes and no control characters");
            return Err(Failure::new(Exit::Usage, message));
        }
        let people = self.present();
        if people.iter().any(|it| it.statement.label == name) {
            let message = format!("\"{name}\" is a name that someone has already");
            return Err(Failure::new(Exit::Usage, message).hint("`quorumfs people ls` shows all"));
        }
        Ok(())
    }

    /// The person of a name; one whose time is not over comes first.
    fn find(&self, name: &str) -> CommandResult<Person> {
        let mut people = self.opened.volume().people();
        people.retain(|it| it.statement.label == name);
        people.sort_by_key(has_ended);
        people.into_iter().next().ok_or_else(|| {
            let message = format!("no one here is called \"{name}\"");
            Failure::new(Exit::Usage, message).hint("`quorumfs people ls` shows all")
        })
    }

    /// One that can be changed: its time is not over.
    fn find_lasting(&self, name: &str) -> CommandResult<Person> {
        let person = self.find_other(name)?;
        if has_ended(&person) {
            let message = format!("the time of \"{name}\" is over");
            return Err(Failure::new(Exit::Usage, message)
                .hint("invite the person again, with the same line if you like"));
        }
        Ok(person)
    }

    /// One whom an administrator has admitted, and who is not this one.
    fn find_other(&self, name: &str) -> CommandResult<Person> {
        let person = self.find(name)?;
        let refused = |message: String, hint: &str| Failure::new(Exit::Usage, message).hint(hint);
        if person.statement.key == self.opened.volume().principal().id().signing {
            let message = format!("\"{name}\" is the one whose key this command uses");
            return Err(refused(message, "another administrator can do it"));
        }
        if person.stated_by.is_none() {
            let message = format!("\"{name}\" was there when the volume was made");
            return Err(refused(
                message,
                "a lost or stolen owner's key is replaced with the recovery kit: \
                 `quorumfs volume rekey --replace-owner`",
            ));
        }
        Ok(person)
    }

    /// The clouds and the content of files, of `CLOUD=FILE` each.
    fn read_credentials(
        &self,
        given: &[String],
    ) -> CommandResult<Vec<(CloudIndex, Zeroizing<Vec<u8>>)>> {
        let read = |text: &String| {
            let (cloud, file) = text.split_once('=').ok_or_else(|| {
                let message = format!("`{text}` is not CLOUD=FILE");
                Failure::new(Exit::Usage, message)
            })?;
            let path = Path::new(file);
            let read = fs::read(path).map(Zeroizing::new);
            let read = read.map_err(|error| Failure::file("read", path, &error))?;
            if read.is_empty() || read.len() > CREDENTIALS_BYTES_MAX {
                let message = format!(
                    "{file} has {} bytes; credentials have 1 to {CREDENTIALS_BYTES_MAX}",
                    read.len()
                );
                return Err(Failure::new(Exit::Usage, message));
            }
            Ok((self.cloud(cloud)?, read))
        };
        given.iter().map(read).collect()
    }

    fn cloud(&self, name: &str) -> CommandResult<CloudIndex> {
        let known = self.opened.volume().known_clouds();
        let found = known.iter().find(|it| it.cloud.name == name);
        found.map(|it| it.cloud.index).ok_or_else(|| {
            let names: Vec<_> = known.iter().map(|it| it.cloud.name.as_str()).collect();
            Failure::new(Exit::Usage, format!("the volume has no cloud `{name}`"))
                .hint(format!("its clouds are {}", names.join(", ")))
        })
    }

    async fn give(
        &self,
        to: &PublicKeys,
        cloud: CloudIndex,
        credentials: Option<&[u8]>,
    ) -> CommandResult<()> {
        let given = (cloud, credentials);
        let volume = self.opened.volume();
        let given = volume.give_credentials(self.opened.metadata(), to, given);
        given.await.map_err(|error| volume_failure(&error))
    }

    async fn credentials(&self, arguments: &PeopleCredentialsArguments) -> CommandResult {
        let statement = self.find_lasting(&arguments.name)?.statement;
        // Those of a person are for all machines, those of a machine for it alone.
        let mut all = match self.opened.volume().machines().contains_key(&statement.key) {
            true => Vec::new(),
            false => self.machines_of(&statement)?,
        };
        let me = self.opened.volume().principal().id().signing;
        if all.iter().any(|it| it.key == me) {
            let message = "this machine is one of the person's, and no one changes itself";
            return Err(Failure::new(Exit::Usage, message).hint("another administrator can do it"));
        }
        all.insert(0, statement);
        let keys: Vec<_> = all.iter().map(keys_of).collect();
        let given = self.read_credentials(&arguments.given)?;
        let without = arguments.without.iter().map(|name| self.cloud(name));
        let without: Vec<_> = without.collect::<CommandResult<_>>()?;
        for keys in &keys {
            for (cloud, credentials) in &given {
                self.give(keys, *cloud, Some(credentials)).await?;
            }
            for cloud in &without {
                self.give(keys, *cloud, None).await?;
            }
        }
        self.list().await
    }

    async fn name_group(&self, arguments: &PeopleGroupArguments) -> CommandResult {
        let volume = self.opened.volume();
        let name = arguments.name.clone().unwrap_or_default();
        if name.parse::<u32>().is_ok() || harmless(&name) != name {
            let message = "a group's name is no number and has no control characters";
            return Err(Failure::new(Exit::Usage, message));
        }
        let taken = volume.groups().into_iter();
        let mut taken = taken.filter(|(gid, it)| *it == name && gid.0 != arguments.gid);
        if let Some((gid, _)) = taken.next().filter(|_| !name.is_empty()) {
            let message = format!("group {} is called \"{name}\" already", gid.0);
            return Err(Failure::new(Exit::Usage, message));
        }
        let metadata = self.opened.metadata();
        let named = volume.name_group(metadata, Gid(arguments.gid), name.clone());
        named.await.map_err(|error| volume_failure(&error))?;
        let line = GroupLine {
            gid: arguments.gid,
            name,
        };
        self.output.record("group", &line, GroupLine::text)?;
        Ok(Exit::Success)
    }

    /// The numbers of groups that are given by number or name.
    fn groups(&self, given: &[String]) -> CommandResult<Vec<Gid>> {
        let names = self.opened.volume().groups();
        let number = |text: &String| {
            let by_name = || names.iter().find(|(_, name)| *name == text);
            let number = text.parse().ok().map(Gid);
            number
                .or_else(|| by_name().map(|(gid, _)| *gid))
                .ok_or_else(|| {
                    let message = format!("there is no group \"{text}\"");
                    Failure::new(Exit::Usage, message)
                        .hint("name one with `quorumfs people group N NAME`, or give its number")
                })
        };
        given.iter().map(number).collect()
    }
}

#[derive(Serialize)]
struct GroupLine {
    gid: u32,
    name: String,
}

impl GroupLine {
    fn text(&self) -> String {
        match self.name.is_empty() {
            true => format!("Group {} has no name now.", self.gid),
            false => format!("Group {} is called \"{}\".", self.gid, self.name),
        }
    }
}

fn keys_of(statement: &Statement) -> PublicKeys {
    PublicKeys {
        signing: statement.key,
        wrapping: statement.wrapping_key.into(),
    }
}

/// What a guest needs to find and verify the volume.
pub(super) fn volume_card(configured: &Configured, volume: &Volume) -> VolumeCard {
    let sections = &configured.configuration().cloud;
    let clouds = sections
        .iter()
        .map(|it| (it.name.clone(), it.location.clone()));
    let replicas = configured.configuration().replica.iter();
    VolumeCard {
        root: volume.lineage().root,
        genesis: configured.genesis().to_vec(),
        successions: volume.successions().iter().map(Row::to_bytes).collect(),
        people: volume.people_changes().iter().map(Row::to_bytes).collect(),
        replicas: replicas
            .map(|it| format!("{}@{}", it.key, it.address))
            .collect(),
        clouds: clouds.collect(),
    }
}

/// The file for a guest, which must not be there.
fn card_path(arguments: &PeopleInviteArguments) -> CommandResult<PathBuf> {
    let path = arguments.file.clone();
    let path = path.unwrap_or_else(|| PathBuf::from(format!("{}.volume", arguments.name)));
    let path =
        std::path::absolute(&path).map_err(|error| Failure::file("use the file", &path, &error))?;
    if path.exists() {
        let message = format!("{} is there already", path.display());
        return Err(Failure::new(Exit::Usage, message).hint("name another file with --file"));
    }
    Ok(path)
}
