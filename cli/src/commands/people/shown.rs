//! What `people` shows.

use super::super::epochs::RekeyLine;
use super::super::reseal::ResealLine;
use quorumfs_gateway::keys::PrincipalId as PublicKeys;
use quorumfs_gateway::volume::Person;
use quorumfs_metadata::identity::Gid;
use quorumfs_metadata::row::{Assertable, MemberRole, Rights};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

const DAY: u64 = 24 * 60 * 60;

/// The word for what a principal may do.
pub(in crate::commands) const fn role_name(rights: &Rights) -> &'static str {
    match rights.role() {
        MemberRole::Read => "read",
        MemberRole::Write => "write",
        MemberRole::Administer => "administer",
    }
}

/// A name that others chose, safe on a terminal: without characters that move the cursor, colour
/// the text or turn its direction.
pub(in crate::commands) fn harmless(name: &str) -> String {
    let turns = |it: char| {
        let marks = ['\u{200e}', '\u{200f}'].contains(&it);
        marks || ('\u{202a}'..='\u{202e}').contains(&it) || ('\u{2066}'..='\u{2069}').contains(&it)
    };
    let shown = name.chars().map(|it| match it.is_control() || turns(it) {
        true => '\u{fffd}',
        false => it,
    });
    shown.collect()
}

/// One person.
#[derive(Serialize)]
pub(super) struct PersonLine {
    name: String,
    role: &'static str,
    /// The user for whom it acts; none: for every user.
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    groups: Vec<String>,
    fingerprint: String,
    key: String,
    /// When it ends, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
    #[serde(skip)]
    expires_in: Option<u64>,
    /// Who admitted it; none: it was there when the volume was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    admitted_by: Option<String>,
    /// The clouds of which it was given credentials.
    credentials: Vec<String>,
    /// Whether it has the current keys.
    member: bool,
    /// Whether it is this state directory's.
    here: bool,
}

impl PersonLine {
    pub(super) fn of(
        person: &Person,
        people: &[Person],
        groups: &BTreeMap<Gid, String>,
        now: Duration,
    ) -> Self {
        let statement = &person.statement;
        let rights = &statement.rights;
        let keys = PublicKeys {
            signing: statement.key,
            wrapping: statement.wrapping_key.into(),
        };
        let name_of = |gid: &Gid| match groups.get(gid) {
            Some(name) => harmless(name),
            None => gid.0.to_string(),
        };
        let by = person.stated_by.map(|by| {
            let known = people.iter().find(|it| it.statement.key == by);
            known.map_or_else(|| by.to_string(), |it| harmless(&it.statement.label))
        });
        let expires = statement.expires.map(|time| time.0 / 1_000_000_000);
        Self {
            name: harmless(&statement.label),
            role: role_name(rights),
            uid: match &rights.uids {
                Assertable::Any => None,
                Assertable::Only(uids) => uids.first().map(|uid| uid.0),
            },
            groups: match &rights.gids {
                Assertable::Any => Vec::new(),
                Assertable::Only(gids) => gids.iter().skip(1).map(name_of).collect(),
            },
            fingerprint: keys.fingerprint(),
            key: statement.key.to_string(),
            expires,
            expires_in: expires.map(|at| at.saturating_sub(now.as_secs())),
            admitted_by: by,
            credentials: Vec::new(),
            member: true,
            here: false,
        }
    }

    pub(super) fn here(mut self, here: bool) -> Self {
        self.here = here;
        self
    }

    pub(super) fn given(mut self, clouds: Vec<String>) -> Self {
        self.credentials = clouds.iter().map(|it| harmless(it)).collect();
        self
    }

    pub(super) fn member(mut self, member: bool) -> Self {
        self.member = member;
        self
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!("{}  may {}", self.name, self.role);
        match self.uid {
            Some(uid) => text.push_str(&format!(" as user {uid}")),
            None => text.push_str(" as any user"),
        }
        if !self.groups.is_empty() {
            text.push_str(&format!(", groups {}", self.groups.join(", ")));
        }
        match self.expires_in {
            None => {}
            Some(0) => text.push_str(", expired"),
            Some(left) if left < DAY => text.push_str(", ends within a day"),
            Some(left) => text.push_str(&format!(", ends in {} days", left.div_ceil(DAY))),
        }
        if let Some(by) = &self.admitted_by {
            text.push_str(&format!(", admitted by {by}"));
        }
        if !self.credentials.is_empty() {
            text.push_str(&format!(", credentials of {}", self.credentials.join(", ")));
        }
        text.push_str(&format!(", fingerprint {}", self.fingerprint));
        if !self.member {
            text.push_str(", without the current keys");
        }
        if self.here {
            text.push_str(" (you)");
        }
        text
    }
}

/// A person was admitted.
#[derive(Serialize)]
pub(super) struct Invited {
    pub(super) name: String,
    pub(super) role: &'static str,
    pub(super) uid: u32,
    pub(super) fingerprint: String,
    pub(super) volume_fingerprint: String,
    #[serde(serialize_with = "crate::output::paths::serialize")]
    pub(super) file: PathBuf,
}

impl Invited {
    pub(super) fn text(&self) -> String {
        let file = self.file.display();
        format!(
            "\"{}\" may {} as user {}.\n\
             Next:\n  \
             1. Give {file} to \"{0}\": it is not secret. There: quorumfs join FILE\n  \
             2. Compare the volume's fingerprint with what is shown there: {}\n  \
             3. Make \"{0}\" credentials of the clouds, if they need some (docs/CLOUDS.md), and \
             hand them over\n     sealed: quorumfs people credentials {0} CLOUD=FILE",
            self.name, self.role, self.uid, self.volume_fingerprint
        )
    }
}

/// A person was removed.
#[derive(Serialize)]
pub(super) struct Removed {
    pub(super) name: String,
    /// Whether it is one of the person's machines, and the others stay.
    pub(super) is_machine: bool,
    /// The clouds for which it may have credentials.
    pub(super) clouds: Vec<String>,
    pub(super) rekey: RekeyLine,
    pub(super) names: ResealLine,
}

impl Removed {
    pub(super) fn text(&self) -> String {
        let others = match self.is_machine {
            true => " Other machines of the person may have the same ones: give them new ones.",
            false => "",
        };
        format!(
            "\"{}\" is refused from now on.\n{}\n{}\n\
             Still to do: revoke the credentials that \"{0}\" has at {} (docs/CLOUDS.md). Until \
             then it can read there what was written before.{others}",
            self.name,
            self.rekey.text(),
            self.names.text(),
            self.clouds.join(", ")
        )
    }
}

/// A member has removed a machine of its own.
#[derive(Serialize)]
pub(super) struct MachineRemoved {
    pub(super) name: String,
    /// The clouds for which it may have credentials.
    pub(super) clouds: Vec<String>,
}

impl MachineRemoved {
    pub(super) fn text(&self) -> String {
        format!(
            "\"{}\" is refused from now on.\n\
             Still to do, if it was lost or stolen: ask an administrator to type `quorumfs volume \
             rekey`,\nso that it cannot read what is written from then on, and to revoke the \
             credentials that it has\nat {} (docs/CLOUDS.md). Your other machines may have the \
             same ones.",
            self.name,
            self.clouds.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_neither_colour_nor_turn_the_text() {
        for plain in ["bob", "Zoë", "名前", "a b"] {
            assert_eq!(harmless(plain), plain);
        }
        for hostile in [
            "a\u{1b}[31m",
            "a\nb",
            "a\u{202e}b",
            "a\u{2066}b",
            "a\u{200f}",
        ] {
            let shown = harmless(hostile);
            assert!(shown.contains('\u{fffd}'), "{shown:?}");
            assert_eq!(harmless(&shown), shown);
        }
    }
}
