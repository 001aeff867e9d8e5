//! `volume rekey` and `volume epochs`: new keys, and how much is sealed under each.
//!
//! A new epoch reads and writes no content: new content is sealed under its key, and existing
//! content stays under its old key until it is overwritten. The servers count how much that is,
//! slice by slice. Names are sealed anew at once.

use super::ago::seconds_ago;
use super::opened::{Access, Configured, Opened};
use super::reseal::{self, ResealLine};
use crate::arguments::{General, LockSetting, VolumeRekeyArguments};
use crate::exit::Exit;
use crate::explain::{block_failure, vfs_failure, volume_failure};
use crate::failure::CommandResult;
use crate::output::Output;
use quorumfs_bft::identity::Time;
use quorumfs_metadata::identity::RealmEpoch;
use quorumfs_metadata::reply::SealedUnder;
use quorumfs_metadata::row::{Epoch, Lock};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// The name of a lock.
const fn name_of(lock: Lock) -> &'static str {
    match lock {
        Lock::Members => "members",
        Lock::MembersAndClouds => "clouds",
    }
}

#[derive(Serialize)]
struct EpochLine {
    number: u32,
    lock: &'static str,
    /// Seconds since 1970.
    since: u64,
    /// The clouds that were seen to hold their share before anything was sealed.
    shares_confirmed: Vec<String>,
    /// Whether new content is sealed under it.
    current: bool,
    slices: u64,
    bytes: u64,
}

impl EpochLine {
    fn text(&self) -> String {
        let since = seconds_ago(self.since);
        let takes = match self.shares_confirmed.as_slice() {
            [] => "a member's key".to_owned(),
            clouds => format!("a member's key and shares (seen on {})", clouds.join(", ")),
        };
        let current = if self.current { ", current" } else { "" };
        format!(
            "epoch {}{current}, begun {since}: takes {takes}; {} slices, {:.1} MiB",
            self.number,
            self.slices,
            self.bytes as f64 / f64::from(1 << 20),
        )
    }
}

/// Lists the epochs.
pub(crate) async fn run(general: &General, output: Output) -> CommandResult {
    let configured = Configured::read(general)?;
    let opened = Opened::open(&configured, Access::Reading).await?;
    let listed = list(&configured, &opened, output).await;
    let closed = opened.close().await;
    listed?;
    closed.map(|()| Exit::Success)
}

async fn list(configured: &Configured, opened: &Opened, output: Output) -> CommandResult<()> {
    let counted = count(opened).await?;
    let epochs = all_epochs(opened).await?;
    let newest = epochs.last_key_value().map(|(number, _)| *number);
    for (number, epoch) in &epochs {
        let confirmed = epoch.shares.iter().flat_map(|shares| &shares.confirmed);
        let named = confirmed.filter_map(|cloud| configured.clouds().get(usize::from(cloud.0)));
        let (slices, bytes) = counted.get(number).copied().unwrap_or_default();
        let line = EpochLine {
            number: number.0,
            lock: name_of(epoch.lock),
            since: epoch.begun.0 / 1_000_000_000,
            shares_confirmed: named.map(|cloud| cloud.name.clone()).collect(),
            current: Some(*number) == newest,
            slices,
            bytes,
        };
        output.record("epoch", &line, EpochLine::text)?;
    }
    let old = counted
        .iter()
        .filter(|(number, _)| Some(**number) != newest);
    let old: u64 = old.map(|(_, (_, bytes))| bytes).sum();
    let names = NamesLine {
        directories: old_directories(opened).await?,
    };
    output.record("names", &names, NamesLine::text)?;
    if old > 0 {
        output.print_text(&format!(
            "{:.1} MiB are sealed under old keys: past holders of those can still read that, \
             until it is overwritten.",
            old as f64 / f64::from(1 << 20)
        ))?;
    }
    Ok(())
}

/// Directories with names under older epochs.
#[derive(Serialize)]
struct NamesLine {
    directories: u64,
}

impl NamesLine {
    fn text(&self) -> String {
        match self.directories {
            0 => String::new(),
            count => format!(
                "{count} directories have names under old keys: `quorumfs volume reseal` seals \
                 them anew."
            ),
        }
    }
}

async fn old_directories(opened: &Opened) -> CommandResult<u64> {
    let (mut count, mut after) = (0_u64, None);
    loop {
        let piece = opened.metadata().old_names(after).await;
        let (found, next) = piece.map_err(|error| vfs_failure(&error))?;
        let with_names = found.iter().filter(|it| it.entries > 0);
        count = count.saturating_add(with_names.count() as u64);
        match next {
            Some(next) => after = Some(next),
            None => return Ok(count),
        }
    }
}

/// Slices and bytes under each epoch.
async fn count(opened: &Opened) -> CommandResult<BTreeMap<RealmEpoch, (u64, u64)>> {
    let mut counted: BTreeMap<RealmEpoch, (u64, u64)> = BTreeMap::new();
    let mut after = None;
    loop {
        let piece = opened.metadata().count_by_epoch(after).await;
        let (epochs, next) = piece.map_err(|error| vfs_failure(&error))?;
        for SealedUnder {
            epoch,
            slices,
            bytes,
        } in epochs
        {
            let sum = counted.entry(epoch).or_default();
            *sum = (sum.0.saturating_add(slices), sum.1.saturating_add(bytes));
        }
        match next {
            Some(next) => after = Some(next),
            None => return Ok(counted),
        }
    }
}

async fn all_epochs(opened: &Opened) -> CommandResult<BTreeMap<RealmEpoch, Epoch>> {
    let mut all = BTreeMap::new();
    let mut before = RealmEpoch(u32::MAX);
    while before > RealmEpoch(0) {
        let piece = opened.metadata().epochs_before(before).await;
        let piece = piece.map_err(|error| vfs_failure(&error))?;
        let Some((first, _)) = piece.first_key_value() else {
            break;
        };
        before = *first;
        all.extend(piece);
    }
    Ok(all)
}

#[derive(Serialize)]
pub(super) struct RekeyLine {
    pub(super) number: u32,
    lock: &'static str,
    dry_run: bool,
    shares_confirmed: Vec<String>,
    /// The errors of the clouds that were not seen to hold theirs.
    pub(super) failures: Vec<String>,
}

impl RekeyLine {
    pub(super) const fn exit(&self) -> Exit {
        match self.failures.is_empty() {
            true => Exit::Success,
            false => Exit::Degraded,
        }
    }

    pub(super) fn text(&self) -> String {
        let takes = match self.lock {
            "clouds" => "a member's key and f + 1 clouds",
            _ => "a member's key alone",
        };
        let number = self.number;
        if self.dry_run {
            return format!(
                "Key epoch {number} would begin: reading new content would require {takes}. \
                 Nothing was done."
            );
        }
        let mut text = format!(
            "Key epoch {number} has begun: reading new content requires {takes}. Mounts \
             switch to it within a minute.\n\
             Existing content stays under its keys; see `quorumfs volume epochs`."
        );
        if !self.shares_confirmed.is_empty() {
            text.push_str("\nShares of its key were seen on ");
            text.push_str(&self.shares_confirmed.join(", "));
            text.push('.');
        }
        for failure in &self.failures {
            text.push_str("\nMissing, until `quorumfs scrub`: ");
            text.push_str(failure);
        }
        text
    }
}

/// Begins a new epoch.
pub(crate) async fn rekey(
    general: &General,
    arguments: &VolumeRekeyArguments,
    output: Output,
) -> CommandResult {
    let configured = Configured::read(general)?;
    let opened = Opened::open(&configured, Access::Command).await?;
    let done = begin_and_reseal(&configured, &opened, arguments, output).await;
    let closed = opened.close().await;
    let exit = done?;
    closed.map(|()| exit)
}

async fn begin_and_reseal(
    configured: &Configured,
    opened: &Opened,
    arguments: &VolumeRekeyArguments,
    output: Output,
) -> CommandResult {
    let line = begin(configured, opened, arguments).await?;
    output.record("rekey", &line, RekeyLine::text)?;
    if line.dry_run {
        return Ok(Exit::Success);
    }
    let names = reseal::reseal(opened, output).await?;
    output.record("resealed", &names, ResealLine::text)?;
    Ok(names.exit_after(line.exit()))
}

/// Begins a new epoch.
pub(super) async fn begin(
    configured: &Configured,
    opened: &Opened,
    arguments: &VolumeRekeyArguments,
) -> CommandResult<RekeyLine> {
    let volume = opened.volume();
    let lock = match (arguments.lock, volume.current_shares()) {
        (Some(LockSetting::Members), _) | (None, None) => Lock::Members,
        (Some(LockSetting::Clouds), _) | (None, Some(_)) => Lock::MembersAndClouds,
    };
    let current = volume.current_epoch().unwrap_or_default();
    if arguments.dry_run {
        return Ok(RekeyLine {
            number: current.0.saturating_add(1),
            lock: name_of(lock),
            dry_run: true,
            shares_confirmed: Vec::new(),
            failures: Vec::new(),
        });
    }
    let clouds = opened.blocks().shares();
    let clouds = clouds.map_err(|error| block_failure(&error))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = now.unwrap_or_default().as_nanos();
    let begun = Time(u64::try_from(nanos).unwrap_or_default());
    let done = volume.rekey(opened.metadata(), &clouds, lock, begun).await;
    let done = done.map_err(|error| volume_failure(&error))?;
    let seen = |index: u8| configured.clouds().get(usize::from(index));
    let confirmed = done.confirmed.iter().filter_map(|cloud| seen(cloud.0));
    Ok(RekeyLine {
        number: done.number.0,
        lock: name_of(done.lock),
        dry_run: false,
        shares_confirmed: confirmed.map(|cloud| cloud.name.clone()).collect(),
        failures: done.failures.0,
    })
}
