//! How a share is shown.

use super::super::files::date;
use super::super::people::harmless;
use quorumfs_bft::identity::Time;
use quorumfs_gateway::vfs::{KnownShare, SharedPlace};
use quorumfs_metadata::identity::PrincipalNumber;
use quorumfs_metadata::row::ShareWith;
use serde::Serialize;
use std::collections::BTreeMap;

/// One share.
#[derive(Serialize)]
pub(super) struct ShareLine {
    id: u64,
    /// Where it was when it was shared; none: the caller may not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// The person; none: it is shared by a link.
    #[serde(skip_serializing_if = "Option::is_none")]
    with: Option<String>,
    /// What the person may do.
    role: &'static str,
    /// The user who shares.
    uid: u32,
    /// The person who shared it last.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    /// Whether it is shared by a capsule: a link that needs no server.
    capsule: bool,
    /// When it ends by itself, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
    /// Whether it has ended, and its access is still to be taken back.
    ended: bool,
    /// Whether what is shared exists, outside of the trash.
    exists: bool,
    /// Whether it is not found at its path any more.
    pub(super) moved: bool,
    /// Whether it is shared with this command's person.
    pub(super) with_me: bool,
}

/// The principals that a share names.
pub(super) fn numbers(known: &KnownShare) -> Vec<PrincipalNumber> {
    match &known.share.with {
        ShareWith::Person { principal, .. } => vec![known.share.by, *principal],
        ShareWith::Link { .. } | ShareWith::Capsule { .. } => vec![known.share.by],
    }
}

/// A path as people read it.
pub(super) fn path_of(place: &SharedPlace) -> String {
    harmless(&format!("/{}", String::from_utf8_lossy(&place.path)))
}

fn seconds(time: Time) -> u64 {
    time.0 / 1_000_000_000
}

impl ShareLine {
    pub(super) fn of(known: &KnownShare, names: &BTreeMap<PrincipalNumber, String>) -> Self {
        let share = &known.share;
        let name = |number: &PrincipalNumber| {
            let found = names.get(number).cloned();
            found.unwrap_or_else(|| format!("principal {number}"))
        };
        let (with, role) = match &share.with {
            ShareWith::Person {
                principal, writes, ..
            } => (
                Some(name(principal)),
                if *writes { "write" } else { "read" },
            ),
            ShareWith::Link { .. } | ShareWith::Capsule { .. } => (None, "read"),
        };
        Self {
            id: known.id.0,
            path: known.place.as_ref().map(path_of),
            with,
            role,
            uid: share.uid.0,
            by: Some(name(&share.by)),
            capsule: matches!(share.with, ShareWith::Capsule { .. }),
            expires: share.expires.map(seconds),
            ended: share.ended,
            exists: known.exists,
            moved: false,
            with_me: false,
        }
    }

    /// A share that was just ordered.
    pub(super) fn begun(known: &KnownShare, name: &str) -> Self {
        let names = numbers(known).into_iter();
        let names = names.map(|number| (number, name.to_owned())).collect();
        Self {
            by: None,
            ..Self::of(known, &names)
        }
    }

    pub(super) fn text(&self) -> String {
        let path = self.path.as_deref().unwrap_or("something");
        let with = match &self.with {
            Some(name) => format!("with \"{name}\", who may {} it", self.role),
            None if self.capsule => "by a capsule".to_owned(),
            None => "by a link".to_owned(),
        };
        let mut text = format!("{}  {path}  {with}", self.id);
        if let Some(by) = &self.by {
            text.push_str(&format!(", by \"{by}\" as user {}", self.uid));
        }
        if let Some(at) = self.expires {
            let at = date(i64::try_from(at).unwrap_or(i64::MAX));
            text.push_str(&format!(", until {at} UTC"));
        }
        if self.ended {
            text.push_str("; it has ended, and its access is still to be taken back");
        }
        if !self.exists {
            text.push_str("; it was removed");
        } else if self.moved {
            text.push_str("; it was moved, or is out of your reach");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_metadata::identity::{InodeId, RealmEpoch, ShareId, Uid};
    use quorumfs_metadata::row::{Sealed, Share};

    fn known() -> KnownShare {
        KnownShare {
            id: ShareId(7),
            exists: true,
            place: Some(SharedPlace {
                parent: InodeId::ROOT,
                path: b"Photos/\x1b[31m2024".to_vec(),
            }),
            share: Share {
                by: PrincipalNumber(0),
                uid: Uid(1000),
                inode: InodeId(9),
                with: ShareWith::Person {
                    principal: PrincipalNumber(4),
                    uid: Uid(1003),
                    writes: false,
                    through: Vec::new(),
                },
                expires: Some(Time(951_827_696_000_000_000)),
                created: Time(1),
                ended: false,
                place: Sealed {
                    epoch: RealmEpoch(0),
                    bytes: Vec::new(),
                },
            },
        }
    }

    #[test]
    fn a_share_is_shown_on_a_line_that_moves_no_cursor() {
        let names = [(PrincipalNumber(4), "bob".to_owned())]
            .into_iter()
            .collect();
        let mut line = ShareLine::of(&known(), &names);
        assert_eq!(
            line.text(),
            "7  /Photos/\u{fffd}[31m2024  with \"bob\", who may read it, by \"principal 0\" as \
             user 1000, until 2000-02-29 12:34 UTC"
        );
        line.ended = true;
        line.moved = true;
        assert!(line.text().contains("; it has ended, and"));
        assert!(
            line.text()
                .ends_with("; it was moved, or is out of your reach")
        );
        line.exists = false;
        assert!(line.text().ends_with("; it was removed"));
        let begun = ShareLine::begun(&known(), "bob").text();
        assert!(
            begun.contains("with \"bob\", who may read it, until"),
            "{begun}"
        );
        let mut link = known();
        link.share.with = ShareWith::Link { token: [1; 32] };
        assert!(ShareLine::of(&link, &names).text().contains("by a link"));
    }
}
