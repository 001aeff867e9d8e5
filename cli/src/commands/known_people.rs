//! Who the principals of the volume are, as this machine has learned: two files in the state
//! directory, so that the volume can be opened without the replicas.
//!
//! The credentials of clouds that an administrator has given this principal lie next to them,
//! opened, each in a file of its own.

use super::signed_lines::SignedLines;
use super::successor;
use crate::clouds::given_credentials;
use crate::directory::{self, StateDirectory};
use crate::failure::{CommandResult, Failure};
use quorumfs_gateway::volume::{KnownPeople, Volume};
use quorumfs_metadata::people::SignedPeopleChange;
use std::fs;

/// The file of changes that administrators made.
const PEOPLE: SignedLines = SignedLines {
    file: "volume.people",
    title: "quorumfs people 1",
    hint: "copy it from another machine that has the volume, or remove it: the owner asks the \
           replicas again, and a person who was invited needs a new invitation",
};

/// What this state directory knows.
pub(super) fn known(state: &StateDirectory) -> CommandResult<KnownPeople> {
    Ok(KnownPeople {
        successions: successor::known(state)?,
        changes: changes(state)?,
    })
}

fn changes(state: &StateDirectory) -> CommandResult<Vec<SignedPeopleChange>> {
    PEOPLE.read(state)
}

/// Stores these changes.
pub(super) fn keep(state: &StateDirectory, changes: &[SignedPeopleChange]) -> CommandResult<()> {
    PEOPLE.write(state, changes)
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
