//! `cloud add`, `cloud replace`, `cloud drain`, `cloud ls`: providers come and go.
//!
//! ```text
//! add       the place marked and proved as `doctor` does ─► signed, ordered ─► in quorumfs.toml
//! replace   signed, ordered: new data goes to NEW at once
//!           ─► with the second lock, a new key epoch: OLD's share opens nothing any more
//!           ─► OLD's data moves, here with --wait, else by mounts and `quorumfs reconcile`
//! ```
//!
//! Each command can be interrupted at any point, and goes on when it is run again.

mod report;

use super::doctor;
use super::epochs;
use super::opened::{Access, Configured, Opened};
use crate::arguments::{
    CloudAddArguments, CloudDrainArguments, CloudReplaceArguments, General, MovingArguments,
    VolumeRekeyArguments,
};
use crate::clouds::{self, NamedCloud, soon};
use crate::configuration::files::CONFIGURATION;
use crate::configuration::{self, CloudSection, VolumeConfiguration};
use crate::directory;
use crate::exit::Exit;
use crate::explain::{store_failure, volume_failure};
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use crate::stop::Stop;
use crate::values::{self, credentials_file};
use quorumfs_backends::StoreErrorKind;
use quorumfs_gateway::blocks::{Draining, PlacementError};
use quorumfs_gateway::volume::{AddedCloud, KnownCloud, VolumeError};
use quorumfs_metadata::fleet::{CloudChange, CloudState, CloudStep};
use quorumfs_metadata::identity::CloudIndex;
use report::{AddedLine, CloudLine, DrainLine, ReplacedLine};
use serde::Serialize;
use std::fs;
use std::num::NonZeroU64;
use std::time::Duration;

/// How many times a change is signed anew because another was quicker.
const TRIES: usize = 4;
/// The pause between two looks while another process moves the data, or something is stuck.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Opens the volume, does something, and closes it.
pub(super) async fn with_volume<T>(
    general: &General,
    access: Access,
    work: impl AsyncFnOnce(&Configured, &Opened) -> CommandResult<T>,
) -> CommandResult<T> {
    let configured = Configured::read(general)?;
    let opened = Opened::open(&configured, access).await?;
    let done = work(&configured, &opened).await;
    let closed = opened.close().await;
    let done = done?;
    closed.map(|()| done)
}

fn may_administer(opened: &Opened) -> CommandResult<()> {
    if opened.volume().administers() {
        return Ok(());
    }
    let message = "the key here may not change the volume's clouds";
    Err(Failure::new(Exit::WrongKey, message).hint("use the owner's state directory"))
}

/// The cloud of this name.
fn known(opened: &Opened, name: &str) -> CommandResult<KnownCloud> {
    let all = opened.volume().known_clouds();
    let names: Vec<_> = all.iter().map(|it| it.cloud.name.clone()).collect();
    let found = all.into_iter().find(|it| it.cloud.name == name);
    found.ok_or_else(|| {
        Failure::new(Exit::Usage, format!("the volume has no cloud `{name}`")).hint(format!(
            "it has {}; `quorumfs cloud add` adds one",
            names.join(", ")
        ))
    })
}

/// Adds a cloud.
pub(super) async fn add(
    general: &General,
    arguments: &CloudAddArguments,
    output: Output,
) -> CommandResult {
    with_volume(general, Access::Command, async |configured, opened| {
        may_administer(opened)?;
        let mut section = section(configured, arguments)?;
        let all = opened.volume().known_clouds();
        if let Some(there) = all.iter().find(|it| it.cloud.name == arguments.name) {
            if there.location.as_deref() != Some(section.location.as_str()) {
                let message = format!("the volume has or had a cloud `{}`", arguments.name);
                return Err(Failure::new(Exit::Held, message).hint("choose another name"));
            }
            // An earlier try came as far as the order.
            section.index = Some(there.cloud.index.0);
            describe(configured, &section)?;
            let line = AddedLine::of(&there.cloud, false);
            output.record("added", &line, AddedLine::text)?;
            return Ok(Exit::Success);
        }
        let next = opened.volume().next_cloud();
        let (index, secret) = next.map_err(|error| volume_failure(&error))?;
        section.index = Some(index.0);
        let base = configured.state().path();
        let location = clouds::location(&section, base)?;
        let new = AddedCloud {
            index,
            kind: location.kind().name().to_owned(),
            failure_domain: clouds::failure_domain(&section, &location),
            name: section.name.clone(),
            secret,
            location: section.location.clone(),
        };
        let limits = &configured.configuration().limits;
        let volume = opened.volume().id();
        let place = clouds::named(std::slice::from_ref(&section), limits, base, volume)?;
        let place = place
            .first()
            .ok_or_else(|| Failure::new(Exit::Error, "no cloud"))?;
        let is_new = mark(place).await?;
        let added = async {
            doctor::prove(place, output).await?;
            let added = opened.volume().add_cloud(opened.metadata(), &new).await;
            added.map_err(|error| volume_failure(&error))
        };
        if let Err(failure) = added.await {
            // Without an answer it may have been added.
            if is_new && failure.exit != Exit::QuorumUnreachable {
                give_back(place).await;
            }
            return Err(failure);
        }
        opened.follow_clouds().await?;
        section.collector_credentials = None;
        describe(configured, &section)?;
        let all = opened.volume().known_clouds();
        let added = all.iter().find(|it| it.cloud.index == index);
        let cloud = added.map(|it| it.cloud.clone());
        let cloud = cloud.ok_or_else(|| Failure::new(Exit::Error, "the cloud is not known"))?;
        let line = AddedLine::of(&cloud, true);
        output.record("added", &line, AddedLine::text)?;
        Ok(Exit::Success)
    })
    .await
}

/// The new cloud's part of the configuration.
fn section(configured: &Configured, arguments: &CloudAddArguments) -> CommandResult<CloudSection> {
    let text = format!("{}={}", arguments.name, arguments.location);
    let file = |path: &Option<String>| {
        let path = path.as_deref();
        path.map(|path| credentials_file(configured.state(), path))
            .transpose()
    };
    Ok(CloudSection {
        credentials: file(&arguments.credentials)?,
        reader_credentials: file(&arguments.reader_credentials)?,
        collector_credentials: file(&arguments.collector_credentials)?,
        domain: arguments.domain.clone(),
        ..values::named(&text)?
    })
}

/// Makes a cloud of this volume of a place; returns whether it was none before.
async fn mark(place: &NamedCloud) -> CommandResult<bool> {
    let store = place.attach_to_found().await?;
    if store.check(soon()).await.is_ok() {
        return Ok(false);
    }
    store.found(soon()).await.map_err(|error| {
        let failure = store_failure(&error);
        match error.kind {
            StoreErrorKind::Foreign => failure.hint(
                "only an empty place is added; name another one, or remove its content first. \
                 Nothing was written",
            ),
            _ => failure.or_hint("nothing was written and nothing was ordered"),
        }
    })?;
    Ok(true)
}

async fn give_back(place: &NamedCloud) {
    if let Ok(store) = place.attach_to_found().await
        && let Err(error) = store.give_back(soon()).await
    {
        tracing::warn!(%error, "a place stays marked for a cloud that was not added");
    }
}

/// Adds a section to `quorumfs.toml`, unless the cloud has one.
fn describe(configured: &Configured, section: &CloudSection) -> CommandResult<()> {
    #[derive(Serialize)]
    struct Sections<'a> {
        cloud: [&'a CloudSection; 1],
    }
    let path = configured.state().join(CONFIGURATION);
    let before: VolumeConfiguration = configuration::read(&path, "volume")?;
    let mut listed = clouds::sections_of(&before).map(|(index, _)| index);
    if section
        .index
        .is_some_and(|index| listed.any(|it| it == index))
    {
        return Ok(());
    }
    let cloud = [section];
    let added = toml::to_string(&Sections { cloud })
        .map_err(|error| Failure::new(Exit::Error, format!("cannot encode: {error}")))?;
    let text = fs::read_to_string(&path).map_err(|error| Failure::file("read", &path, &error))?;
    let text = format!("{}\n\n{added}", text.trim_end());
    // What this program could not read again is not written.
    let _: VolumeConfiguration = configuration::parse(&text, &path)?;
    directory::replace(&path, text.as_bytes())
}

/// Replaces a cloud by another.
pub(super) async fn replace(
    general: &General,
    arguments: &CloudReplaceArguments,
    output: Output,
) -> CommandResult {
    with_volume(general, Access::Command, async |configured, opened| {
        may_administer(opened)?;
        let (old, new) = (
            known(opened, &arguments.old)?,
            known(opened, &arguments.new)?,
        );
        exchange(configured, opened, (&old, &new), output).await?;
        finish(opened, &arguments.moving, output).await
    })
    .await
}

/// Replaces a cloud by a spare.
pub(super) async fn drain(
    general: &General,
    arguments: &CloudDrainArguments,
    output: Output,
) -> CommandResult {
    with_volume(general, Access::Command, async |configured, opened| {
        may_administer(opened)?;
        let old = known(opened, &arguments.name)?;
        if old.state == CloudState::Active {
            let new = spare_for(opened, old.cloud.index)?;
            exchange(configured, opened, (&old, &new), output).await?;
        } else if old.state == CloudState::Spare {
            let message = format!("cloud `{}` holds nothing: it is a spare", old.cloud.name);
            return Err(Failure::new(Exit::Usage, message));
        } else {
            rekey_off_replaced(configured, opened).await?;
        }
        finish(opened, &arguments.moving, output).await
    })
    .await
}

/// A spare that may take the place of a cloud.
fn spare_for(opened: &Opened, old: CloudIndex) -> CommandResult<KnownCloud> {
    let all = opened.volume().known_clouds();
    let clouds = all.iter().map(|it| (it.cloud.index, it.cloud.clone()));
    let clouds: std::collections::BTreeMap<_, _> = clouds.collect();
    let fits = |it: &&KnownCloud| {
        let new = it.cloud.index;
        let change = CloudChange {
            volume: opened.volume().id(),
            number: 0,
            epoch: opened.volume().current_epoch().unwrap_or_default(),
            step: CloudStep::Replace { old, new },
        };
        let mut fleet = opened.volume().fleet();
        it.state == CloudState::Spare && fleet.apply(&mut clouds.clone(), &change).is_ok()
    };
    all.iter().find(fits).cloned().ok_or_else(|| {
        let message = "the volume has no spare that could take its place";
        Failure::new(Exit::Usage, message).hint(
            "add one with `quorumfs cloud add`; its failure domain must differ from those of the \
             other clouds",
        )
    })
}

/// Orders the replacement, and a new key epoch if the second lock has a share on the old cloud.
async fn exchange(
    configured: &Configured,
    opened: &Opened,
    (old, new): (&KnownCloud, &KnownCloud),
    output: Output,
) -> CommandResult<()> {
    let is_done = old.state != CloudState::Active && new.state == CloudState::Active;
    if !is_done {
        check_new(opened, new).await?;
        order_replacement(opened, old.cloud.index, new.cloud.index).await?;
    }
    let rekeyed = rekey_off_replaced(configured, opened).await?;
    let line = ReplacedLine {
        old: old.cloud.name.clone(),
        new: new.cloud.name.clone(),
        ordered: !is_done,
        key_epoch: rekeyed,
    };
    output.record("replaced", &line, ReplacedLine::text)
}

/// Refuses a cloud that cannot be used from here.
async fn check_new(opened: &Opened, new: &KnownCloud) -> CommandResult<()> {
    let named = opened.named_clouds()?;
    let place = named.iter().find(|it| it.index == new.cloud.index.0);
    let place = place.ok_or_else(|| Failure::new(Exit::Error, "the cloud is not known"))?;
    let checked = place.store(place.usual()).await.check(soon()).await;
    checked.map_err(|error| {
        store_failure(&error)
            .or_hint("nothing was changed; `quorumfs doctor --cloud` shows what is missing")
    })
}

async fn order_replacement(opened: &Opened, old: CloudIndex, new: CloudIndex) -> CommandResult<()> {
    let volume = opened.volume();
    for turn in 1.. {
        match volume.replace_cloud(opened.metadata(), old, new).await {
            Ok(()) => break,
            Err(VolumeError::Metadata(error)) if turn < TRIES && error.is_out_of_date() => {
                // Another change or key epoch was quicker.
                let learned = volume.learn_clouds(opened.metadata()).await;
                learned.map_err(|error| volume_failure(&error))?;
            }
            Err(error) => return Err(volume_failure(&error)),
        }
    }
    opened.use_clouds().await
}

/// Begins a key epoch without shares on replaced clouds, if the newest one has such shares; returns
/// its number.
async fn rekey_off_replaced(
    configured: &Configured,
    opened: &Opened,
) -> CommandResult<Option<u32>> {
    let volume = opened.volume();
    for turn in 1.. {
        let fleet = volume.fleet();
        let shares = volume.current_shares();
        let places = shares.iter().flat_map(|shares| &shares.places);
        let mut former = places.filter(|it| fleet.state(it.cloud) != CloudState::Active);
        if former.next().is_none() {
            return Ok(None);
        }
        let same = VolumeRekeyArguments {
            lock: None,
            replace_owner: false,
            kit: None,
            dry_run: false,
        };
        match epochs::begin(configured, opened, &same).await {
            Ok(begun) => return Ok(Some(begun.number)),
            Err(failure) if turn < TRIES && failure.exit == Exit::Held => {
                // Another client was quicker. Perhaps its key epoch will do.
            }
            Err(failure) => {
                return Err(failure.or_hint(
                    "the cloud is replaced, and its share of the key is not yet: run the same \
                     command again",
                ));
            }
        }
    }
    Ok(None)
}

/// Moves the data if that is wanted; otherwise says who does.
async fn finish(opened: &Opened, moving: &MovingArguments, output: Output) -> CommandResult {
    if moving.wait {
        return wait(opened, moving, output).await;
    }
    let drainage = opened.blocks().drainage().await;
    let drainage = drainage.map_err(|error| not_ordered(&error))?;
    let line = DrainLine::of(opened, &drainage);
    output.record("drain", &line, DrainLine::text)?;
    if !drainage.finished {
        output.print_text(
            "Mounts and `quorumfs reconcile` move it in the background; `quorumfs cloud ls` shows \
             how far it is.",
        )?;
    }
    Ok(Exit::Success)
}

async fn wait(opened: &Opened, moving: &MovingArguments, output: Output) -> CommandResult {
    let mib = moving.rate.map(|rate| u64::from(rate.get()) << 20);
    let draining = Draining {
        bytes_per_second: mib.and_then(NonZeroU64::new),
        ..Draining::default()
    };
    let mut stop = Stop::of_a_command()?;
    let work = async {
        loop {
            let drainage = opened.blocks().drain_clouds(&draining).await;
            let drainage = drainage.map_err(|error| not_ordered(&error))?;
            let line = DrainLine::of(opened, &drainage);
            output.record("drain", &line, DrainLine::text)?;
            if drainage.finished {
                // The next command knows at once which clouds are retired.
                opened.follow_clouds().await?;
                return Ok(Exit::Success);
            }
            if !drainage.holding.is_empty() {
                let message = "a replaced cloud holds a share of the newest key";
                return Err(Failure::new(Exit::Degraded, message)
                    .hint("begin another key epoch with `quorumfs volume rekey`"));
            }
            tokio::time::sleep(LOOK_EVERY).await;
            opened.follow_clouds().await?;
        }
    };
    tokio::select! {
        done = work => done,
        () = stop.wanted() => {
            Err(Failure::new(Exit::Cancelled, "stopped")
                .hint("what has moved stays there; the same command goes on with the rest"))
        }
    }
}

fn not_ordered(error: &PlacementError) -> Failure {
    Failure::new(Exit::QuorumUnreachable, error.to_string())
        .hint("bring the metadata replicas back; the same command goes on where this one stopped")
}

/// Lists the clouds.
pub(super) async fn list(general: &General, output: Output) -> CommandResult {
    with_volume(general, Access::Reading, async |configured, opened| {
        for known in opened.volume().known_clouds() {
            let here = clouds::sections_of(configured.configuration());
            let is_here = here
                .map(|(index, _)| index)
                .any(|it| it == known.cloud.index.0);
            let line = CloudLine::of(&known, is_here);
            output.record("cloud", &line, CloudLine::text)?;
        }
        let drainage = opened.blocks().drainage().await;
        let drainage = drainage.map_err(|error| not_ordered(&error))?;
        if !drainage.finished {
            let line = DrainLine::of(opened, &drainage);
            output.record("drain", &line, DrainLine::text)?;
        }
        Ok(Exit::Success)
    })
    .await
}
