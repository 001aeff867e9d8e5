//! `join`: becoming a principal of another's volume, on a machine of one's own.
//!
//! ```text
//! quorumfs join               join.key; prints a line for an administrator
//! quorumfs join home.volume   the key, the genesis, who the principals are, the configuration
//! ```
//!
//! With `--as-me`, both steps are one on each machine, and the replicas carry between them: see
//! `machine`.
//!
//! The second step asks no server: it verifies the file as far as it is signed, and that the key
//! here was admitted. Interrupted at any point, the same command goes on.

use super::known_people;
use super::machine;
use super::machine_answer;
use super::people::harmless;
use super::volume::{new_passphrase, refuse_what_is_there};
use super::{key, successor};
use crate::arguments::{General, JoinArguments};
use crate::configuration::files::{CONFIGURATION, GENESIS, HEADING, KEY};
use crate::configuration::{self, CloudSection, VolumeConfiguration, VolumeSection};
use crate::directory::{self, StateDirectory};
use crate::exit::Exit;
use crate::explain::{key_failure, volume_failure};
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use crate::values::{apply_values, cloud, credentials_file, named, refuse_other_clouds, replica};
use quorumfs_bft::identity::PublicKey;
use quorumfs_gateway::keys::{JoinKey, KeyFile, SignedCard, VolumeCard};
use quorumfs_gateway::volume::{KnownPeople, Volume};
use quorumfs_metadata::identity::PrincipalId;
use quorumfs_metadata::people::SignedPeopleChange;
use quorumfs_metadata::row::Row;
use quorumfs_metadata::succession::SignedSuccession;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{Read, stdin};
use std::path::{Path, PathBuf};

/// The guest's key until it knows its volume.
const JOIN_KEY: &str = "join.key";
/// More than the length of any card.
const CARD_BYTES_MAX: u64 = 512 << 20;

/// What an administrator needs.
#[derive(Serialize)]
struct Asking {
    line: String,
    fingerprint: String,
}

impl Asking {
    fn text(&self) -> String {
        format!(
            "Give this line to an administrator of the volume:\n\n  {}\n\n\
             They type `quorumfs people invite NAME` and paste it. Compare the fingerprint with \
             what\nthey see: {}\n\
             They give you a file. Then: quorumfs join FILE",
            self.line, self.fingerprint
        )
    }
}

#[derive(Serialize)]
struct Joined {
    volume: String,
    /// By which people recognise the volume.
    fingerprint: String,
    name: String,
    role: &'static str,
    #[serde(serialize_with = "crate::output::paths::serialize")]
    state: PathBuf,
    clouds: Vec<String>,
    /// Of these the administrator has given credentials.
    given: Vec<String>,
}

impl Joined {
    fn credentials_text(&self) -> String {
        let lacking: Vec<_> = self
            .clouds
            .iter()
            .filter(|it| !self.given.contains(it))
            .collect();
        let lacking: Vec<_> = lacking.into_iter().map(String::as_str).collect();
        match lacking.as_slice() {
            [] => "You were given credentials of all clouds.".to_owned(),
            clouds => format!(
                "Give the clouds {} credentials, where they need some (docs/CLOUDS.md).",
                harmless(&clouds.join(", "))
            ),
        }
    }
}

/// Runs the command.
pub(crate) async fn run(
    general: &General,
    arguments: &JoinArguments,
    output: Output,
) -> CommandResult {
    let state = StateDirectory::find(general.state.as_deref(), "volume")?;
    match &arguments.file {
        _ if arguments.as_me => join_as_me(general, &state, arguments, output).await,
        None => ask(&state, output),
        Some(file) => join(general, &state, file, arguments, output),
    }
}

/// One side or the other of adding a machine: the state directory says which.
async fn join_as_me(
    general: &General,
    state: &StateDirectory,
    arguments: &JoinArguments,
    output: Output,
) -> CommandResult {
    if arguments.file.is_none() && state.join(KEY).exists() {
        return machine::invite(general, arguments, output).await;
    }
    refuse_a_volume(state)?;
    let line = machine_answer::asked_line(arguments)?;
    let guest = guest_key(state)?;
    let card = machine_answer::answer(&line, &guest, arguments, output).await?;
    become_member(general, state, (card, guest), arguments, output)
}

/// An error if the state directory is a volume's. What an interrupted `join` has left there, which
/// has a guest's key and no other, is replaced.
fn refuse_a_volume(state: &StateDirectory) -> CommandResult<()> {
    let goes_on = state.join(JOIN_KEY).exists() && !state.join(KEY).exists();
    match goes_on {
        true => Ok(()),
        false => refuse_what_is_there(state),
    }
}

/// The guest's key: a new one, if there is none.
fn guest_key(state: &StateDirectory) -> CommandResult<JoinKey> {
    state.create()?;
    let path = state.join(JOIN_KEY);
    if !path.exists() {
        let key = JoinKey::random().and_then(|key| key.save(&path));
        key.map_err(|error| key_failure(&error))?;
    }
    JoinKey::load(&path).map_err(|error| key_failure(&error))
}

/// Makes the guest's key, if there is none, and shows its line.
fn ask(state: &StateDirectory, output: Output) -> CommandResult {
    refuse_a_volume(state)?;
    let key = guest_key(state)?;
    let asking = Asking {
        line: key.line(),
        fingerprint: key.principal.id().fingerprint(),
    };
    output.record("join", &asking, Asking::text)?;
    Ok(Exit::Success)
}

fn read_card(path: &Path) -> CommandResult<SignedCard> {
    let mut text = String::new();
    let read = if path == Path::new("-") {
        stdin().take(CARD_BYTES_MAX).read_to_string(&mut text)
    } else {
        File::open(path).and_then(|file| file.take(CARD_BYTES_MAX).read_to_string(&mut text))
    };
    read.map_err(|error| Failure::file("read the volume's file", path, &error))?;
    SignedCard::from_text(&text).map_err(|error| key_failure(&error))
}

/// Who the principals are, by the card.
fn people(card: &VolumeCard) -> CommandResult<KnownPeople> {
    let damaged = || {
        let message = "the volume's file names its people in a way that this program cannot read";
        Failure::new(Exit::Damaged, message).hint("ask for the file again, or update this program")
    };
    let successions = card.successions.iter();
    let successions = successions.map(|bytes| SignedSuccession::from_bytes(bytes).ok());
    let changes = card.people.iter();
    let changes = changes.map(|bytes| SignedPeopleChange::from_bytes(bytes).ok());
    Ok(KnownPeople {
        successions: successions.collect::<Option<_>>().ok_or_else(damaged)?,
        changes: changes.collect::<Option<_>>().ok_or_else(damaged)?,
    })
}

fn join(
    general: &General,
    state: &StateDirectory,
    file: &Path,
    arguments: &JoinArguments,
    output: Output,
) -> CommandResult {
    let SignedCard { card, signer, .. } = read_card(file)?;
    let path = state.join(JOIN_KEY);
    if !path.exists() {
        let message = format!("there is no key of a guest in {}", state.path().display());
        return Err(Failure::new(Exit::Usage, message).hint(
            "type `quorumfs join` first, and give the line that it prints to an administrator",
        ));
    }
    let guest = JoinKey::load(&path).map_err(|error| key_failure(&error))?;
    let signed = Some(signer);
    become_member_by(general, state, (card, guest, signed), arguments, output)
}

/// Makes the guest a principal's machine with a card that is trusted.
fn become_member(
    general: &General,
    state: &StateDirectory,
    (card, guest): (VolumeCard, JoinKey),
    arguments: &JoinArguments,
    output: Output,
) -> CommandResult {
    become_member_by(general, state, (card, guest, None), arguments, output)
}

/// The same with one that this key has signed, if it has to be an administrator's.
fn become_member_by(
    general: &General,
    state: &StateDirectory,
    (card, guest, signer): (VolumeCard, JoinKey, Option<PublicKey>),
    arguments: &JoinArguments,
    output: Output,
) -> CommandResult {
    let path = state.join(JOIN_KEY);
    let key = KeyFile {
        principal: guest.principal,
        root: card.root,
    };
    let known = people(&card)?;
    let volume = Volume::open_after(&card.genesis, &known, &key).map_err(|error| {
        volume_failure(&error).or_hint(
            "the file may be older than your admission, or be made for another guest: ask for a \
             new one",
        )
    })?;
    let me = key.principal.id().signing;
    if !volume.people().iter().any(|it| it.statement.key == me) {
        let message = "this key was admitted, and was removed again";
        return Err(Failure::new(Exit::WrongKey, message)
            .hint("remove join.key from the state directory, and begin again"));
    }
    let administers = |key: PublicKey| volume.administrators().iter().any(|it| it.key == key);
    if !signer.is_none_or(administers) {
        let message = "no administrator of the volume has signed the file";
        return Err(Failure::new(Exit::WrongKey, message)
            .hint("it says where the clouds are, which no one else may say: ask for it again"));
    }
    let section = VolumeSection {
        genesis: GENESIS.into(),
        key: KEY.into(),
    };
    let replicas = card.replicas.iter().map(|it| replica(it));
    let replicas = replicas.collect::<CommandResult<_>>()?;
    let clouds = clouds(state, &volume, &card, arguments)?;
    let value = VolumeConfiguration::usual(section, replicas, clouds);
    refuse_a_volume(state)?;
    let passphrase = arguments.protect.then(new_passphrase).transpose()?;
    directory::replace(&state.join(GENESIS), &card.genesis)?;
    successor::keep(state, &known.successions)?;
    known_people::keep(state, &known.changes)?;
    known_people::keep_given(state, &volume)?;
    configuration::write(&state.join(CONFIGURATION), &value, HEADING)?;
    // The key comes last: with it the directory is a volume's.
    let saved = match &passphrase {
        None => key.save(&state.join(KEY)),
        Some(passphrase) => key::seal(&key, passphrase)?.save(&state.join(KEY)),
    };
    saved.map_err(|error| key_failure(&error))?;
    fs::remove_file(&path).map_err(|error| Failure::file("remove", &path, &error))?;
    let person = volume
        .people()
        .into_iter()
        .find(|it| it.statement.key == me);
    let person = person.map(|person| person.statement);
    let joined = Joined {
        volume: volume.id().to_string(),
        fingerprint: card.root.fingerprint(),
        name: person
            .as_ref()
            .map_or_else(String::new, |it| harmless(&it.label)),
        role: person.map_or("", |it| super::people::role_name(&it.rights)),
        state: state.path().to_path_buf(),
        given: given_names(&volume, &me),
        clouds: value.cloud.into_iter().map(|it| it.name).collect(),
    };
    let named = general.state.as_ref().map_or(String::new(), |_| {
        format!(" --state {}", joined.state.display())
    });
    output.record("joined", &joined, |joined| {
        format!(
            "You are \"{}\" in volume {}, and may {}.\n\
             Compare the volume's fingerprint with what the administrator sees: {}\n\
             Next:\n  \
             1. {}\n  \
             2. quorumfs ls /{named}",
            joined.name,
            joined.volume,
            joined.role,
            joined.fingerprint,
            joined.credentials_text(),
        )
    })?;
    Ok(Exit::Success)
}

fn given_names(volume: &Volume, me: &PrincipalId) -> Vec<String> {
    let given = volume.given_clouds(me);
    let known = volume.known_clouds().into_iter();
    let given = known.filter(|it| given.contains(&it.cloud.index));
    given.map(|it| it.cloud.name).collect()
}

/// The clouds, each at its place by the card or the command line.
fn clouds(
    state: &StateDirectory,
    volume: &Volume,
    card: &VolumeCard,
    arguments: &JoinArguments,
) -> CommandResult<Vec<CloudSection>> {
    let moved: Vec<_> = arguments
        .clouds
        .iter()
        .map(|it| named(it))
        .collect::<CommandResult<_>>()?;
    let mut sections = Vec::new();
    // Clouds that were added later, and their places, come from the replicas.
    for founding in &volume.genesis().clouds {
        let moved = moved.iter().find(|it| it.name == founding.name).cloned();
        let by_card = || {
            let place = card.clouds.iter().find(|(name, _)| *name == founding.name);
            place.map(|(name, location)| cloud(name, location))
        };
        let mut section = moved.or_else(by_card).ok_or_else(|| {
            let message = format!(
                "the file does not say where the cloud `{}` is",
                founding.name
            );
            Failure::new(Exit::Usage, message).hint("give its place with --cloud NAME=LOCATION")
        })?;
        section.domain = Some(founding.failure_domain.clone());
        sections.push(section);
    }
    refuse_other_clouds(&moved, &sections)?;
    apply_values(
        &mut sections,
        "--cloud-credentials",
        &arguments.cloud_credentials,
        |cloud, path| {
            cloud.credentials = Some(credentials_file(state, path)?);
            Ok(())
        },
    )?;
    Ok(sections)
}
