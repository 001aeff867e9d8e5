//! `volume rekey --replace-owner`: replaces the owner's key, by the recovery kit.
//!
//! ```text
//! principal.key.next   the new key, before any request to the servers
//!    │ session of the kit's principal: signed by the root, ordered
//! volume.successions   the ordered succession, signed
//! host.key             sealed for the new key
//! principal.key        becomes the new key
//!    └─ a new key epoch, which the old key does not open
//! ```
//!
//! Invariant: once the succession is ordered, the old key is refused everywhere; the new one is on
//! this machine's disk before that, sealed under the old one's passphrase if it has one.
//! Interrupted at any point, the same command goes on with the key that it began with.
//!
//! What can go wrong: *the old key is used on other machines too*. It is refused there as well;
//! copy `principal.key` and `volume.successions` to them. *It was used to read*: content that it
//! could read it can still read, as long as the clouds' credentials that were stored with it are
//! valid (docs/THREAT_MODEL.md).

use super::epochs::{self, RekeyLine};
use super::key;
use super::opened::{Access, Configured, Opened};
use super::recover;
use super::reseal::{self, ResealLine};
use super::signed_lines::SignedLines;
use crate::arguments::{General, VolumeRekeyArguments};
use crate::directory::StateDirectory;
use crate::exit::Exit;
use crate::explain::{block_failure, key_failure, volume_failure};
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use crate::unlock::{self, LOCK};
use quorumfs_gateway::keys::{
    HostKey, KeyFile, Passphrase, Principal, RecoveryKit, StoredKey, VolumeRoot,
};
use quorumfs_metadata::succession::SignedSuccession;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// The file of replaced principals in the state directory.
const SUCCESSIONS: SignedLines = SignedLines {
    file: "volume.successions",
    title: "quorumfs successions 1",
    hint: "copy it from where the owner's key was replaced, or from another machine",
};

#[derive(Serialize)]
struct Replaced {
    volume: String,
    old: String,
    new: String,
    dry_run: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    rekey: Option<RekeyLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    names: Option<ResealLine>,
}

impl Replaced {
    fn text(&self) -> String {
        let (old, new) = (&self.old, &self.new);
        let (Some(rekey), Some(names)) = (&self.rekey, &self.names) else {
            return format!(
                "The owner's key {old} would be replaced by another, and a new key epoch begun. \
                 Nothing was done."
            );
        };
        format!(
            "The owner's key is now {new}. The old one, {old}, is refused from now on.\n\
             {}\n{}\n\
             Still to do:\n  \
             1. Put the kit away again.\n  \
             2. Copy principal.key and volume.successions to machines that have copies of the \
             old key.\n     Add those again that were added with it (`quorumfs join --as-me`): \
             they are refused too.\n  \
             3. Revoke the clouds' credentials that were stored with the old key\n     \
             (docs/CLOUDS.md): until then older content can be read with both.",
            rekey.text(),
            names.text()
        )
    }
}

/// Runs the command.
pub(crate) async fn run(
    general: &General,
    arguments: &VolumeRekeyArguments,
    output: Output,
) -> CommandResult {
    let kit = arguments.kit.as_deref().unwrap_or(Path::new("-"));
    let kit = RecoveryKit::from_text(&recover::read(kit)?).map_err(|error| key_failure(&error))?;
    let (before, passphrase) = Configured::read_with(general, None)?;
    let recovery = KeyFile {
        root: kit.root.public(),
        principal: kit.recovery.clone(),
    };
    if before.volume().id() != recovery.volume() {
        let message = "the kit is of another volume than this state directory";
        return Err(Failure::new(Exit::WrongKey, message).hint("name its state with --state"));
    }
    let mut replaced = Replaced {
        volume: recovery.volume().to_string(),
        old: before
            .volume()
            .owner()
            .map_or_else(String::new, |key| key.to_string()),
        new: String::new(),
        dry_run: arguments.dry_run,
        rekey: None,
        names: None,
    };
    if arguments.dry_run {
        output.record("replaced", &replaced, Replaced::text)?;
        return Ok(Exit::Success);
    }
    let mounted = before.state().lock("mount");
    let _alone = mounted.map_err(|failure| failure.hint("unmount it first: `quorumfs umount`"))?;
    let locked = before.state().lock_as(LOCK, "key command")?;
    if !New::next_to(&before).exists() && lacks_epoch(&before).await {
        // An earlier try came as far as this: the key that it made is installed.
        replaced.new = before.principal().to_string();
    } else {
        let new = New::made(&before, &recovery, passphrase.as_ref())?;
        replaced.new = new.key.principal.id().signing.to_string();
        let guest = Configured::read_as(general, &recovery, &kit.genesis)?;
        let successions = order(&guest, &kit.root, &new.key.principal).await?;
        replaced.old = guest
            .volume()
            .replaced()
            .map_or(replaced.old, |it| it.to_string());
        new.keep(&before, &successions)?;
    }
    drop(locked);
    let (rekey, names) = rekey(general, arguments, passphrase, output).await?;
    let exit = names.exit_after(rekey.exit());
    replaced.rekey = Some(rekey);
    replaced.names = Some(names);
    output.record("replaced", &replaced, Replaced::text)?;
    Ok(exit)
}

/// Whether the key here replaced the owner's, and no key epoch has begun since.
async fn lacks_epoch(before: &Configured) -> bool {
    let Some(since) = before.volume().succeeded_in() else {
        return false;
    };
    // If it opens nothing, it was itself replaced.
    let Ok(opened) = Opened::open(before, Access::Command).await else {
        return false;
    };
    let current = opened.volume().current_epoch();
    let _ = opened.close().await;
    current == Some(since)
}

/// Orders the succession.
async fn order(
    guest: &Configured,
    root: &VolumeRoot,
    successor: &Principal,
) -> CommandResult<Vec<SignedSuccession>> {
    let opened = Opened::open(guest, Access::Command).await?;
    let done = async {
        let clouds = opened.blocks().shares();
        let clouds = clouds.map_err(|error| block_failure(&error))?;
        let (volume, metadata) = (opened.volume(), opened.metadata());
        let replaced = volume.replace_owner(metadata, &clouds, root, successor);
        replaced.await.map_err(|error| volume_failure(&error))?;
        Ok(volume.successions())
    };
    let done = done.await;
    let closed = opened.close().await;
    let successions = done?;
    closed?;
    Ok(successions)
}

/// Begins a key epoch with the new key.
async fn rekey(
    general: &General,
    arguments: &VolumeRekeyArguments,
    passphrase: Option<Passphrase>,
    output: Output,
) -> CommandResult<(RekeyLine, ResealLine)> {
    let (configured, _) = Configured::read_with(general, passphrase)?;
    let begun = async {
        let opened = Opened::open(&configured, Access::Command).await?;
        let begun = match drop_machines(&opened).await {
            Ok(()) => epochs::begin(&configured, &opened, arguments).await,
            Err(failure) => Err(failure),
        };
        let done = match begun {
            Ok(line) => reseal::reseal(&opened, output)
                .await
                .map(|names| (line, names)),
            Err(failure) => Err(failure),
        };
        let closed = opened.close().await;
        let done = done?;
        closed?;
        Ok(done)
    };
    begun.await.map_err(|failure: Failure| {
        failure.or_hint("the key is replaced; `quorumfs volume rekey` begins the new key epoch")
    })
}

/// Has the replicas refuse the machines that were added with keys that were replaced: a thief of
/// such a key may have added one.
async fn drop_machines(opened: &Opened) -> CommandResult<()> {
    let (volume, metadata) = (opened.volume(), opened.metadata());
    let learned = volume.learn_people(metadata).await;
    learned.map_err(|error| volume_failure(&error))?;
    for (machine, of) in volume.machines() {
        let (present, _) = volume.present_key(&of);
        if present != of {
            let dropped = volume.drop_machine(metadata, machine).await;
            dropped.map_err(|error| volume_failure(&error))?;
        }
    }
    Ok(())
}

/// The new key, not yet installed.
struct New {
    key: KeyFile,
    stored: StoredKey,
    next: PathBuf,
    path: PathBuf,
}

impl New {
    /// Where a new key is stored until it is installed.
    fn next_to(before: &Configured) -> PathBuf {
        let path = unlock::path_of(before.state(), before.configuration());
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(".next");
        path.with_file_name(name)
    }

    /// The key that an earlier try left, or a new one.
    fn made(
        before: &Configured,
        recovery: &KeyFile,
        passphrase: Option<&Passphrase>,
    ) -> CommandResult<Self> {
        let failed = |error| key_failure(&error);
        let path = unlock::path_of(before.state(), before.configuration());
        let next = Self::next_to(before);
        if !next.exists() {
            let key = KeyFile {
                root: recovery.root,
                principal: Principal::random().map_err(failed)?,
            };
            match passphrase {
                None => key.save(&next),
                Some(passphrase) => key::seal(&key, passphrase)?.save(&next),
            }
            .map_err(failed)?;
        }
        let mut stored = StoredKey::load(&next).map_err(failed)?;
        if let (StoredKey::Plain(key), Some(passphrase)) = (&stored, passphrase) {
            // Left by a try from before the key here was protected.
            let sealed = key::seal(key, passphrase)?;
            sealed.replace(&next).map_err(failed)?;
            stored = StoredKey::Sealed(sealed);
        }
        let key = match (&stored, passphrase) {
            (StoredKey::Plain(key), _) => key.clone(),
            (StoredKey::Sealed(sealed), Some(passphrase)) => {
                sealed.open(passphrase).map_err(failed)?
            }
            (StoredKey::Sealed(_), None) => {
                let message = format!("{} is sealed, and the key here is not", next.display());
                return Err(Failure::new(Exit::WrongKey, message)
                    .hint("it was left by an earlier try; move it away to begin anew"));
            }
        };
        Ok(Self {
            key,
            stored,
            next,
            path,
        })
    }

    /// Installs it in place of the old one, with the proof that it is the owner's.
    fn keep(&self, before: &Configured, successions: &[SignedSuccession]) -> CommandResult<()> {
        let failed = |error| key_failure(&error);
        let state = before.state();
        keep(state, successions)?;
        let (volume, new) = (before.volume(), &self.key.principal);
        let host_key = before.host_key_path();
        // The journal sealed under it may hold unique data: without it this goes no further.
        let handed_over = HostKey::hand_over(&host_key, volume.id(), volume.principal(), new);
        handed_over.map_err(|error| {
            key_failure(&error).or_hint(
                "the old key is refused already; once this is mended, the same command goes on \
                 with the new one",
            )
        })?;
        match &self.stored {
            StoredKey::Plain(key) => key.replace(&self.path),
            StoredKey::Sealed(key) => key.replace(&self.path),
        }
        .map_err(failed)?;
        let removed = fs::remove_file(&self.next);
        removed.map_err(|error| Failure::file("remove", &self.next, &error))
    }
}

/// Stores these successions, if there are any.
pub(super) fn keep(state: &StateDirectory, successions: &[SignedSuccession]) -> CommandResult<()> {
    if successions.is_empty() {
        return Ok(());
    }
    SUCCESSIONS.write(state, successions)
}

/// The successions that this state directory knows.
pub(super) fn known(state: &StateDirectory) -> CommandResult<Vec<SignedSuccession>> {
    SUCCESSIONS.read(state)
}
