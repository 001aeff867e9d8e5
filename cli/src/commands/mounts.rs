//! `mounts`: which sessions have the volume mounted.

use super::ago::seconds_ago;
use super::opened::{Access, Configured, Opened};
use crate::arguments::General;
use crate::exit::Exit;
use crate::explain::vfs_failure;
use crate::failure::CommandResult;
use crate::output::Output;
use quorumfs_metadata::row::{Mount, MountMode};
use serde::Serialize;

/// One mount.
#[derive(Serialize)]
struct MountLine {
    /// What the machine calls itself, which no one checks.
    host: String,
    /// The key of its principal.
    principal: String,
    /// The principal's name, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    session: u64,
    /// Since when, in seconds since 1970, by the agreed clock.
    since: u64,
    /// Whether others may mount the volume too.
    mode: &'static str,
    /// Whether another mount waits for this one to share the volume.
    recalled: bool,
    /// Whether it is of this state directory.
    here: bool,
}

impl MountLine {
    fn of(mount: &Mount, name: Option<String>, here: bool) -> Self {
        Self {
            host: mount.label.clone(),
            principal: mount.principal.to_string(),
            name,
            session: mount.session.0,
            since: mount.since.0 / 1_000_000_000,
            mode: mode_name(mount.mode),
            recalled: mount.recall.is_some(),
            here,
        }
    }

    fn text(&self) -> String {
        let host = host_name(&self.host);
        let host = host.as_deref().unwrap_or("a machine without a name");
        let (since, session) = (seconds_ago(self.since), self.session);
        let key = || self.principal.chars().take(16).collect();
        let principal: String = self.name.as_deref().and_then(host_name).unwrap_or_else(key);
        let mode = match self.recalled {
            true => format!("{}, asked to share", self.mode),
            false => self.mode.to_owned(),
        };
        let here = if self.here {
            ", this state directory's"
        } else {
            ""
        };
        format!("{host}  mounted {since}, {mode}, session {session} of {principal}{here}")
    }
}

/// What a machine calls itself, if it has a name, safe on a terminal.
pub(in crate::commands) fn host_name(label: &str) -> Option<String> {
    let shown: String = label.chars().filter(|it| !it.is_control()).collect();
    (!shown.is_empty()).then_some(shown)
}

/// The word for a mode.
pub(super) const fn mode_name(mode: MountMode) -> &'static str {
    match mode {
        MountMode::Exclusive => "exclusive",
        MountMode::Alone => "alone",
        MountMode::Shared => "shared",
    }
}

/// Shows all mounts.
pub(crate) async fn run(general: &General, output: Output) -> CommandResult {
    let configured = Configured::read(general)?;
    let opened = Opened::open(&configured, Access::Reading).await?;
    let asked = opened.metadata().mounts().await;
    let own = configured.mounted_sessions();
    let closed = opened.close().await;
    let mounts = asked.map_err(|error| vfs_failure(&error))?;
    for mount in &mounts {
        let (_, name) = opened.volume().present_key(&mount.principal);
        let line = MountLine::of(mount, name, own.contains(&mount.session));
        output.record("mount", &line, MountLine::text)?;
    }
    output.record(
        "mounts",
        &Mounts {
            count: mounts.len(),
        },
        Mounts::text,
    )?;
    closed?;
    Ok(Exit::Success)
}

/// How many there are.
#[derive(Serialize)]
struct Mounts {
    count: usize,
}

impl Mounts {
    fn text(&self) -> String {
        match self.count {
            0 => "The volume is not mounted.".to_owned(),
            1 => "1 mount".to_owned(),
            count => format!("{count} mounts"),
        }
    }
}
