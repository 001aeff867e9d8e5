//! Who the principals of the volume are, as this machine has learned: two files in the state
//! directory, so that the volume can be opened without the replicas.
//!
//! Each file has a title and one signed entry a line, in hexadecimal digits. Nothing in them is
//! secret, and nothing is believed that is not signed. The credentials of clouds that an
//! administrator has given this principal lie next to them, opened, each in a file of its own.

use super::successor;
use crate::clouds::given_credentials;
use crate::directory::{self, StateDirectory};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use quorumfs_gateway::volume::{KnownPeople, Volume};
use quorumfs_metadata::people::SignedPeopleChange;
use quorumfs_metadata::row::Row;
use std::fs;
use std::io::ErrorKind;

/// The file of changes that administrators made.
const PEOPLE: &str = "volume.people";
const TITLE: &str = "quorumfs people 1";

/// What this state directory knows.
pub(super) fn known(state: &StateDirectory) -> CommandResult<KnownPeople> {
    Ok(KnownPeople {
        successions: successor::known(state)?,
        changes: changes(state)?,
    })
}

fn changes(state: &StateDirectory) -> CommandResult<Vec<SignedPeopleChange>> {
    let path = state.join(PEOPLE);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Failure::file("read", &path, &error)),
    };
    parse(&text).ok_or_else(|| {
        let message = format!("{} is damaged", path.display());
        Failure::new(Exit::Damaged, message).hint(
            "copy it from another machine that has the volume, or remove it: the owner asks the \
             replicas again, and a person who was invited needs a new invitation",
        )
    })
}

fn parse(text: &str) -> Option<Vec<SignedPeopleChange>> {
    let mut lines = text.lines();
    if lines.next()? != TITLE {
        return None;
    }
    let change = |line| SignedPeopleChange::from_bytes(&successor::bytes(line)?).ok();
    lines.map(change).collect()
}

/// Stores these changes.
pub(super) fn keep(state: &StateDirectory, changes: &[SignedPeopleChange]) -> CommandResult<()> {
    let mut text = format!("{TITLE}\n");
    for signed in changes {
        let digits = signed.to_bytes().into_iter();
        text.extend(digits.map(|byte| format!("{byte:02x}")));
        text.push('\n');
    }
    directory::replace(&state.join(PEOPLE), text.as_bytes())
}

/// Stores what a volume has learned, if it differs from what is stored. Without that, the next
/// command asks the replicas again.
pub(super) fn keep_learned(state: &StateDirectory, volume: &Volume) {
    let learned = volume.people_changes();
    if changes(state).is_ok_and(|stored| stored == learned) {
        return;
    }
    if let Err(failure) = keep(state, &learned) {
        tracing::warn!(%failure, "what was learned of the volume's people was not stored");
    }
}

/// Stores the credentials of clouds that this principal was given, and removes those that it has no
/// more. It is to be called once the volume's clouds are known.
pub(super) fn keep_given(state: &StateDirectory, volume: &Volume) -> CommandResult<()> {
    let given = volume.own_credentials_of_clouds();
    for known in volume.known_clouds() {
        let index = known.cloud.index;
        let path = given_credentials(state.path(), index.0);
        match given.get(&index) {
            Some(Ok(credentials)) => {
                if fs::read(&path).is_ok_and(|stored| stored == **credentials) {
                    continue;
                }
                if let Some(directory) = path.parent() {
                    directory::create_private(directory)?;
                }
                directory::replace(&path, credentials)?;
            }
            Some(Err(error)) => {
                let cloud = &known.cloud.name;
                tracing::warn!(%error, cloud, "credentials that were given do not open");
            }
            None if path.exists() => {
                let removed = fs::remove_file(&path);
                removed.map_err(|error| Failure::file("remove", &path, &error))?;
            }
            None => {}
        }
    }
    Ok(())
}
