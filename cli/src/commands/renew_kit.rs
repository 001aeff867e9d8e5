//! `volume renew-kit`: a recovery kit that knows the volume's present clouds.
//!
//! The root's secret and the principal `recovery` are in the kit alone, so the old one is needed.
//! What is new comes from the volume as it is: its genesis, its clouds and their secrets, which
//! every client verifies. The old kit goes on opening the volume, as long as no more than f clouds
//! were replaced after it was made.

use super::fleet::with_volume;
use super::opened::{Access, Configured, Opened};
use super::recover;
use crate::arguments::{General, RenewKitArguments};
use crate::configuration::files::{GENESIS, RECOVERY_KIT};
use crate::directory;
use crate::exit::Exit;
use crate::explain::key_failure;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use quorumfs_gateway::keys::{ChangedClouds, RecoveryKit};
use serde::Serialize;
use std::fs;
use std::path::PathBuf;

#[derive(Serialize)]
struct RenewedLine {
    volume: String,
    #[serde(serialize_with = "crate::output::paths::serialize")]
    recovery_kit: PathBuf,
    clouds: Vec<String>,
}

impl RenewedLine {
    fn text(&self) -> String {
        format!(
            "Wrote {}, which knows the clouds {}.\n\
             Print it, keep it offline, and delete the file. Destroy the old print: it still opens \
             the volume.",
            self.recovery_kit.display(),
            self.clouds.join(", "),
        )
    }
}

/// Runs the command.
pub(crate) async fn run(
    general: &General,
    arguments: &RenewKitArguments,
    output: Output,
) -> CommandResult {
    let old = recover::read(&arguments.kit)?;
    let old = RecoveryKit::from_text(&old).map_err(|error| key_failure(&error))?;
    with_volume(general, Access::Reading, async |configured, opened| {
        let line = renew(configured, opened, arguments, &old)?;
        output.record("renewed", &line, RenewedLine::text)?;
        Ok(Exit::Success)
    })
    .await
}

fn renew(
    configured: &Configured,
    opened: &Opened,
    arguments: &RenewKitArguments,
    old: &RecoveryKit,
) -> CommandResult<RenewedLine> {
    let volume = opened.volume();
    if volume.id() != old.root.volume() {
        let message = "the kit is of another volume than this state directory";
        return Err(Failure::new(Exit::WrongKey, message).hint("name its state with --state"));
    }
    let state = configured.state();
    let genesis = state.join(GENESIS);
    let genesis =
        fs::read(&genesis).map_err(|error| Failure::file("read the genesis", &genesis, &error))?;
    let named = opened.named_clouds()?;
    let clouds = named
        .iter()
        .map(|it| (it.name.clone(), it.location.to_string()));
    let (fleet, founding) = (volume.fleet(), volume.genesis().clouds.len());
    let added = volume.known_clouds().into_iter().skip(founding);
    let changed = ChangedClouds {
        added: added.map(|it| (it.cloud, it.secret)).collect(),
        fleet,
    };
    let kit = RecoveryKit {
        genesis,
        clouds: clouds.collect(),
        changed: (changed.fleet.changes > 0).then_some(changed),
        ..old.clone()
    };
    let to = arguments.to.clone();
    let to = to.unwrap_or_else(|| state.join(RECOVERY_KIT));
    let text = kit.to_text();
    match fs::canonicalize(&to) {
        Err(_) => directory::write_secret(&to, text.as_bytes())?,
        Ok(there) if fs::canonicalize(&arguments.kit).is_ok_and(|kit| kit == there) => {
            directory::replace(&to, text.as_bytes())?;
        }
        Ok(_) => {
            let message = format!("{} exists, and is not the present kit", to.display());
            return Err(Failure::new(Exit::Usage, message)
                .hint("move it away, or name another file with --to; nothing was written"));
        }
    }
    Ok(RenewedLine {
        volume: volume.id().to_string(),
        recovery_kit: to,
        clouds: kit.clouds.into_iter().map(|(name, _)| name).collect(),
    })
}
