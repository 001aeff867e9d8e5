//! The commands for clouds, and `cloud adopt`: an emptied place, or an empty one in its stead,
//! becomes a cloud of this volume again.
//!
//! Every operation refuses a cloud without its marker, for it may be the wrong disk or a foreign
//! bucket. Only a person can decide that the place is right; the marker is written into empty
//! places alone. `scrub` restores the cloud's content.

use super::evidence;
use super::fleet;
use super::opened::Configured;
use crate::arguments::{CloudAdoptArguments, CloudCommand, General};
use crate::clouds::{NamedCloud, soon};
use crate::exit::Exit;
use crate::explain::store_failure;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use quorumfs_backends::StoreErrorKind;
use serde::Serialize;

#[derive(Serialize)]
struct Adopted<'a> {
    name: &'a str,
    /// Whether the marker had to be written.
    written: bool,
}

/// Runs the command.
pub(crate) async fn run(general: &General, command: CloudCommand, output: Output) -> CommandResult {
    match command {
        CloudCommand::Add(arguments) => fleet::add(general, &arguments, output).await,
        CloudCommand::Replace(arguments) => fleet::replace(general, &arguments, output).await,
        CloudCommand::Drain(arguments) => fleet::drain(general, &arguments, output).await,
        CloudCommand::Ls => fleet::list(general, output).await,
        CloudCommand::Adopt(arguments) => adopt(general, &arguments, output).await,
        CloudCommand::Evidence(arguments) => evidence::run(general, &arguments, output).await,
    }
}

/// The cloud of this name, and its number.
pub(super) fn named<'a>(
    configured: &'a Configured,
    name: &str,
) -> CommandResult<(u8, &'a NamedCloud)> {
    let mut clouds = configured.clouds().iter().map(|it| (it.index, it));
    clouds.find(|(_, it)| it.name == name).ok_or_else(|| {
        let known: Vec<_> = configured
            .clouds()
            .iter()
            .map(|it| it.name.as_str())
            .collect();
        let message = format!("this volume has no cloud `{name}`");
        Failure::new(Exit::Usage, message).hint(format!("it has {}", known.join(", ")))
    })
}

async fn adopt(
    general: &General,
    arguments: &CloudAdoptArguments,
    output: Output,
) -> CommandResult {
    let configured = Configured::read(general)?;
    let (_, cloud) = named(&configured, &arguments.name)?;
    let store = cloud.attach_to_found().await?;
    let name = cloud.name.as_str();
    let written = match store.check(soon()).await {
        Ok(()) => false,
        Err(error) if error.kind == StoreErrorKind::Foreign => {
            store.found(soon()).await.map_err(|error| {
                let failure = store_failure(&error);
                match error.kind {
                    StoreErrorKind::Foreign => failure.hint(
                        "only an empty place is adopted; if its content may go, remove that \
                         first. Nothing was written",
                    ),
                    _ => failure,
                }
            })?;
            true
        }
        Err(error) => {
            return Err(store_failure(&error).or_hint(
                "a place is adopted only if it exists and is empty; nothing was written",
            ));
        }
    };
    output.record("adopted", &Adopted { name, written }, |_| match written {
        true => format!(
            "`{name}` is a cloud of this volume again; fill it with `quorumfs scrub --cloud {name}`"
        ),
        false => format!("`{name}` is a cloud of this volume already; nothing was written"),
    })?;
    Ok(Exit::Success)
}
