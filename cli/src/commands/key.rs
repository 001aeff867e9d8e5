//! `quorumfs key`: the key that opens a volume here, and the passphrase that protects it.
//!
//! Only this machine is involved. Before the sealed form replaces the other, the key is opened once
//! with its new passphrase, since a key that cannot be opened any more would be lost.

use crate::arguments::{General, KeyCommand, KeyProtectArguments, KeyUnlockArguments};
use crate::configuration::files::{CONFIGURATION, RECOVERY_KIT};
use crate::configuration::{self, VolumeConfiguration};
use crate::directory::StateDirectory;
use crate::exit::Exit;
use crate::explain::key_failure;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use crate::unlock::{self, Sources};
use quorumfs_gateway::keys::{Cost, KeyError, KeyFile, Passphrase, SealedKey, StoredKey};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// Runs the command.
pub(crate) fn run(general: &General, command: &KeyCommand, output: Output) -> CommandResult {
    let place = KeyPlace::find(general)?;
    match command {
        KeyCommand::Status => place.show(output)?,
        KeyCommand::Protect(arguments) => protect(&place, arguments, output)?,
        KeyCommand::Unprotect => unprotect(&place, output)?,
        KeyCommand::Unlock(arguments) => keep(&place, arguments, output)?,
        KeyCommand::Lock => lock(&place, output)?,
    }
    Ok(Exit::Success)
}

/// A key file and its surroundings.
struct KeyPlace {
    state: StateDirectory,
    configuration: VolumeConfiguration,
    path: PathBuf,
}

/// The state of a key.
#[derive(Serialize)]
struct KeyReport {
    path: PathBuf,
    volume: String,
    principal: String,
    /// Whether it needs a passphrase.
    protected: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    argon2id: Option<Argon2idReport>,
    /// The source that would give the passphrase now.
    #[serde(skip_serializing_if = "Option::is_none")]
    passphrase_from: Option<&'static str>,
    #[serde(skip)]
    source: Option<String>,
    /// A recovery kit in the same directory, which makes the key unnecessary.
    #[serde(skip_serializing_if = "Option::is_none")]
    recovery_kit: Option<PathBuf>,
}

#[derive(Serialize)]
struct Argon2idReport {
    memory_kib: u32,
    passes: u32,
    lanes: u32,
}

impl KeyReport {
    fn text(&self) -> String {
        let how = match (&self.argon2id, &self.source) {
            (None, _) => "NOT PROTECTED: any reader of this file can read the volume; \
                          `quorumfs key protect` seals it"
                .to_string(),
            (Some(_), None) => "protected by a passphrase, and no source here gives it".into(),
            (Some(_), Some(source)) => {
                format!("protected by a passphrase, given by {source}")
            }
        };
        let kit = self.recovery_kit.as_ref().map_or_else(String::new, |kit| {
            format!(
                "\nTHE RECOVERY KIT IS HERE: {} opens everything; print it and delete it",
                kit.display()
            )
        });
        format!("{}: {how}.{kit}", self.path.display())
    }
}

impl KeyPlace {
    fn find(general: &General) -> CommandResult<Self> {
        let state = StateDirectory::find(general.state.as_deref(), "volume")?;
        let configuration: VolumeConfiguration =
            configuration::read(&state.join(CONFIGURATION), "volume")?;
        let path = unlock::path_of(&state, &configuration);
        Ok(Self {
            state,
            configuration,
            path,
        })
    }

    fn load(&self) -> CommandResult<StoredKey> {
        StoredKey::load(&self.path).map_err(|error| key_failure(&error))
    }

    fn sources(&self, stored: &StoredKey) -> Sources {
        Sources::of(&self.state, &self.configuration, stored.volume())
    }

    fn show(&self, output: Output) -> CommandResult<()> {
        let stored = self.load()?;
        let cost = match &stored {
            StoredKey::Plain(_) => None,
            StoredKey::Sealed(sealed) => Some(sealed.cost()),
        };
        let source = cost.and_then(|_| self.sources(&stored).first());
        let kit = self.state.join(RECOVERY_KIT);
        let report = KeyReport {
            path: self.path.clone(),
            volume: stored.volume().to_string(),
            principal: stored.signing().to_string(),
            protected: cost.is_some(),
            argon2id: cost.map(|cost| Argon2idReport {
                memory_kib: cost.memory_kib,
                passes: cost.passes,
                lanes: cost.lanes,
            }),
            passphrase_from: source.as_ref().map(unlock::Source::name),
            source: source.as_ref().map(unlock::Source::text),
            recovery_kit: kit.exists().then_some(kit),
        };
        output.record("key", &report, KeyReport::text)
    }
}

fn protect(place: &KeyPlace, arguments: &KeyProtectArguments, output: Output) -> CommandResult<()> {
    let _lock = place.state.lock_as(unlock::LOCK, "key command")?;
    let stored = place.load()?;
    let sources = place.sources(&stored);
    let was_sealed = matches!(stored, StoredKey::Sealed(_));
    let volume = stored.volume();
    let key = open(stored, &sources)?;
    let automatic = sources.without_keyring();
    let passphrase = match &arguments.from {
        Some(path) => unlock::read_file(path)?,
        // These sources give the old one.
        None if !was_sealed && automatic.are_automatic() => automatic.passphrase()?.0,
        None => unlock::ask_twice()?,
    };
    let sealed = seal(&key, &passphrase)?;
    sealed
        .replace(&place.path)
        .map_err(|error| key_failure(&error))?;
    unlock::forget(volume)?;
    place.show(output)
}

/// Seals a key, and makes sure that it can be opened again.
pub(super) fn seal(key: &KeyFile, passphrase: &Passphrase) -> CommandResult<SealedKey> {
    let failed = |error: KeyError| key_failure(&error);
    let sealed = SealedKey::seal(key, passphrase, Cost::USUAL).map_err(failed)?;
    let opened = sealed.open(passphrase).map_err(failed)?;
    if opened.principal.id() != key.principal.id() {
        return Err(failed(KeyError::WrongPassphrase));
    }
    Ok(sealed)
}

fn unprotect(place: &KeyPlace, output: Output) -> CommandResult<()> {
    let _lock = place.state.lock_as(unlock::LOCK, "key command")?;
    let stored = place.load()?;
    let (volume, sources) = (stored.volume(), place.sources(&stored));
    if matches!(stored, StoredKey::Sealed(_)) {
        let key = open(stored, &sources)?;
        key.replace(&place.path)
            .map_err(|error| key_failure(&error))?;
        unlock::forget(volume)?;
    }
    place.show(output)
}

fn open(stored: StoredKey, sources: &Sources) -> CommandResult<KeyFile> {
    match stored {
        StoredKey::Plain(key) => Ok(key),
        StoredKey::Sealed(sealed) => Ok(unlock::unseal(&sealed, sources)?.key),
    }
}

#[derive(Serialize)]
struct UnlockedLine {
    volume: String,
    seconds: u32,
}

fn keep(place: &KeyPlace, arguments: &KeyUnlockArguments, output: Output) -> CommandResult<()> {
    let stored = place.load()?;
    let sources = place.sources(&stored).without_keyring();
    let StoredKey::Sealed(sealed) = &stored else {
        let message = format!("{} is not protected", place.path.display());
        return Err(Failure::new(Exit::Usage, message).hint("`quorumfs key protect` protects it"));
    };
    let unlocked = unlock::unseal(sealed, &sources)?;
    let kept = UnlockedLine {
        volume: stored.volume().to_string(),
        seconds: arguments.seconds,
    };
    if let Some(passphrase) = &unlocked.passphrase {
        let time = Duration::from_secs(arguments.seconds.into());
        unlock::keep(stored.volume(), passphrase, time)?;
    }
    output.record("unlocked", &kept, |kept| {
        let seconds = kept.seconds;
        format!("Unlocked for {seconds} s, or until `quorumfs key lock`.")
    })
}

#[derive(Serialize)]
struct Locked {
    volume: String,
    /// Whether there was anything to forget.
    forgotten: bool,
}

fn lock(place: &KeyPlace, output: Output) -> CommandResult<()> {
    let volume = place.load()?.volume();
    let locked = Locked {
        volume: volume.to_string(),
        forgotten: unlock::forget(volume)?,
    };
    output.record("locked", &locked, |locked| {
        let what = if locked.forgotten {
            "Locked. Mounts stay mounted."
        } else {
            "It was not unlocked."
        };
        what.to_string()
    })
}
