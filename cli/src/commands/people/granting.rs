//! What is granted to a person: its role as rights, its user number, its end.

use super::shown::role_name;
use crate::arguments::RoleSetting;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use quorumfs_bft::identity::Time;
use quorumfs_gateway::volume::Person;
use quorumfs_metadata::identity::{Gid, Uid};
use quorumfs_metadata::row::{Assertable, Rights};
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The number of the first user that `invite` gives, as on most machines.
pub(super) const FIRST_UID: u32 = 1000;

impl RoleSetting {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Administer => "administer",
        }
    }
}

/// The rights of a role. Its own group comes first, with the number of the user.
pub(super) fn rights(role: RoleSetting, uid: u32, groups: Vec<Gid>) -> Rights {
    let administers = role == RoleSetting::Administer;
    let gids = std::iter::once(Gid(uid)).chain(groups);
    Rights {
        uids: Assertable::Only(vec![Uid(uid)]),
        gids: Assertable::Only(gids.collect()),
        mount: role != RoleSetting::Read,
        reconcile: administers,
        administer: administers,
    }
}

pub(super) fn role_of(rights: &Rights) -> RoleSetting {
    match role_name(rights) {
        "administer" => RoleSetting::Administer,
        "write" => RoleSetting::Write,
        _ => RoleSetting::Read,
    }
}

/// The first user number behind [`FIRST_UID`] that no person of the volume has or had: the files of
/// one that was removed are not the next one's.
pub(super) fn next_uid(taken: &BTreeSet<u32>) -> CommandResult<u32> {
    let mut free = (FIRST_UID.saturating_add(1)..u32::MAX).filter(|uid| !taken.contains(uid));
    let free = free.next();
    free.ok_or_else(|| Failure::new(Exit::Usage, "no user number is free").hint("name one: --uid"))
}

/// Whether a person's time is over, by this machine's clock.
pub(in crate::commands) fn has_ended(person: &Person) -> bool {
    let end = person.statement.expires;
    end.is_some_and(|end| u128::from(end.0) <= now().as_nanos())
}

pub(super) fn now() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}

/// So much time from now on.
pub(in crate::commands) fn after(time: Duration) -> Time {
    let end = now().saturating_add(time).as_nanos();
    Time(u64::try_from(end).unwrap_or(u64::MAX))
}
