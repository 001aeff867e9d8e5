//! `quota` and `quota set`: usage and limits of the volume and its users.

use super::opened::Opened;
use super::trash_report::TrashReport;
use crate::arguments::{General, QuotaArguments, QuotaCommand, QuotaSetArguments};
use crate::exit::Exit;
use crate::explain::vfs_failure;
use crate::failure::CommandResult;
use crate::output::Output;
use quorumfs_gateway::metadata::MetadataClient;
use quorumfs_metadata::identity::Uid;
use quorumfs_metadata::operation::QuotaOf;
use quorumfs_metadata::row::{Amount, Limit, RealmQuota};
use serde::{Deserialize, Serialize};

/// From this part of a limit on, `status` warns.
const WORTH_TELLING_PER_CENT: u128 = 90;

/// Usage and limits of the volume or a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Used {
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_limit: Option<u64>,
    files: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    files_limit: Option<u64>,
}

impl Used {
    fn of(used: &Amount, limit: &Limit) -> Self {
        Self {
            bytes: used.bytes,
            bytes_limit: limit.bytes,
            files: used.inodes,
            files_limit: limit.inodes,
        }
    }

    /// Those of the realm.
    pub(crate) fn of_realm(realm: &RealmQuota) -> Self {
        Self::of(&realm.used, &realm.limit)
    }

    fn text(&self) -> String {
        let of = |limit: Option<String>| limit.map_or_else(String::new, |it| format!(" of {it}"));
        format!(
            "{}{}, {} files{}",
            human(self.bytes),
            of(self.bytes_limit.map(human)),
            self.files,
            of(self.files_limit.map(|files| files.to_string())),
        )
    }

    /// What `status` adds when a limit is nearly reached.
    pub(crate) fn warning(&self) -> Option<String> {
        let nearly = |used: u64, limit: Option<u64>| {
            let used = u128::from(used).saturating_mul(100);
            limit.is_some_and(|limit| {
                used > u128::from(limit).saturating_mul(WORTH_TELLING_PER_CENT)
            })
        };
        let near = nearly(self.bytes, self.bytes_limit) || nearly(self.files, self.files_limit);
        near.then(|| format!("; THE QUOTA IS NEARLY FULL: {}", self.text()))
    }
}

/// A size in the largest unit that it fills.
fn human(bytes: u64) -> String {
    const UNITS: [(&str, u32); 5] = [
        ("PiB", 50),
        ("TiB", 40),
        ("GiB", 30),
        ("MiB", 20),
        ("KiB", 10),
    ];
    let fits = UNITS.iter().find(|(_, bits)| bytes >> bits > 0);
    match fits {
        None => format!("{bytes} bytes"),
        Some((unit, bits)) => format!("{:.1} {unit}", bytes as f64 / (1_u64 << bits) as f64),
    }
}

#[derive(Serialize)]
struct VolumeLine {
    #[serde(flatten)]
    used: Used,
    #[serde(skip_serializing_if = "Option::is_none")]
    default_bytes_limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    default_files_limit: Option<u64>,
}

impl VolumeLine {
    fn text(&self) -> String {
        let mut text = format!("volume     {}", self.used.text());
        let (bytes, files) = (self.default_bytes_limit, self.default_files_limit);
        let limits = [
            bytes.map(human),
            files.map(|files| format!("{files} files")),
        ];
        let limits: Vec<_> = limits.into_iter().flatten().collect();
        if !limits.is_empty() {
            let limits = limits.join(", ");
            text.push_str(&format!("\nby default {limits} for each user"));
        }
        text
    }
}

#[derive(Serialize)]
struct UserLine {
    uid: u32,
    #[serde(flatten)]
    used: Used,
    /// Whether the limits are the user's own, and not the default ones.
    own_limit: bool,
}

impl UserLine {
    fn text(&self) -> String {
        let own = if self.own_limit {
            " (a limit of its own)"
        } else {
            ""
        };
        format!("uid {:<6} {}{own}", self.uid, self.used.text())
    }
}

/// Shows quotas, or sets one.
pub(crate) async fn run(
    general: &General,
    arguments: &QuotaArguments,
    output: Output,
) -> CommandResult {
    let (opened, outcome) = match &arguments.command {
        None => {
            let opened = Opened::to_read(general).await?;
            let shown = show(opened.metadata(), output).await;
            (opened, shown)
        }
        Some(QuotaCommand::Set(set_arguments)) => {
            let opened = Opened::for_a_command(general).await?;
            let set = set(opened.metadata(), set_arguments, output).await;
            (opened, set)
        }
    };
    let closed = opened.close().await;
    outcome?;
    closed.map(|()| Exit::Success)
}

async fn show(metadata: &MetadataClient, output: Output) -> CommandResult<()> {
    let mut after = None;
    loop {
        let page = metadata.quotas(after).await;
        let (realm, users, more) = page.map_err(|error| vfs_failure(&error))?;
        if after.is_none() {
            let line = VolumeLine {
                used: Used::of_realm(&realm),
                default_bytes_limit: realm.default.bytes,
                default_files_limit: realm.default.inodes,
            };
            output.record("quota_volume", &line, VolumeLine::text)?;
            let trash = TrashReport::of(metadata).await;
            let trash = trash.map_err(|error| vfs_failure(&error))?;
            output.record("trash", &trash, TrashReport::text)?;
        }
        for (uid, user) in &users {
            let limit = match *uid {
                Uid::ROOT => Limit::default(),
                _ => user.limit.unwrap_or(realm.default),
            };
            let line = UserLine {
                uid: uid.0,
                used: Used::of(&user.used, &limit),
                own_limit: user.limit.is_some(),
            };
            output.record("quota_user", &line, UserLine::text)?;
        }
        after = users.last().map(|(uid, _)| *uid);
        if !more || after.is_none() {
            return Ok(());
        }
    }
}

#[derive(Serialize)]
struct SetLine {
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    default: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_limit: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    files_limit: Option<u64>,
    /// The user no longer has limits of his own.
    inherits: bool,
}

impl SetLine {
    fn text(&self) -> String {
        let whose = match (self.uid, self.default) {
            (Some(uid), _) => format!("User {uid}"),
            (None, true) => "Each user without a limit of his own".to_owned(),
            (None, false) => "The volume".to_owned(),
        };
        if self.inherits {
            return format!("{whose} no longer has limits of his own; the default ones apply.");
        }
        match (self.bytes_limit.map(human), self.files_limit) {
            (None, None) => format!("{whose} has no limit."),
            (Some(bytes), None) => format!("{whose} may have {bytes}."),
            (None, Some(files)) => format!("{whose} may have {files} files."),
            (Some(bytes), Some(files)) => format!("{whose} may have {bytes} in {files} files."),
        }
    }
}

async fn set(
    metadata: &MetadataClient,
    arguments: &QuotaSetArguments,
    output: Output,
) -> CommandResult<()> {
    let of = match (arguments.uid, arguments.default) {
        (Some(uid), _) => QuotaOf::User(Uid(uid)),
        (None, true) => QuotaOf::Default,
        (None, false) => QuotaOf::Realm,
    };
    let asked = metadata.quota(Uid(arguments.uid.unwrap_or_default())).await;
    let (realm, user) = asked.map_err(|error| vfs_failure(&error))?;
    let before = match of {
        QuotaOf::Realm => realm.limit,
        QuotaOf::Default => realm.default,
        // A limit that is not named stays the default one for a user without limits of his own.
        QuotaOf::User(_) => user.limit.unwrap_or(realm.default),
    };
    let limit = if arguments.no_limit {
        Limit::default()
    } else {
        Limit {
            bytes: arguments.bytes.map_or(before.bytes, |setting| setting.0),
            inodes: arguments.files.map_or(before.inodes, |setting| setting.0),
        }
    };
    let set = metadata.set_quota(of, (!arguments.inherit).then_some(limit));
    set.await.map_err(|error| vfs_failure(&error))?;
    let line = SetLine {
        uid: arguments.uid,
        default: arguments.default,
        bytes_limit: limit.bytes.filter(|_| !arguments.inherit),
        files_limit: limit.inodes.filter(|_| !arguments.inherit),
        inherits: arguments.inherit,
    };
    output.record("quota_set", &line, SetLine::text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_tells_from_nine_tenths_of_a_limit_on() {
        let of = |bytes, limit, files, most| Used {
            bytes,
            bytes_limit: limit,
            files,
            files_limit: most,
        };
        assert_eq!(of(u64::MAX, None, u64::MAX, None).warning(), None);
        assert_eq!(of(90, Some(100), 0, Some(100)).warning(), None);
        assert!(of(91, Some(100), 0, None).warning().is_some());
        assert!(of(0, None, 91, Some(100)).warning().is_some());
        let text = of(3 << 30, Some(u64::MAX), 2, Some(2)).warning().unwrap();
        assert!(
            text.contains("3.0 GiB of 16384.0 PiB, 2 files of 2"),
            "{text}"
        );
    }
}
