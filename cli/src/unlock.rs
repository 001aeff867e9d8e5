//! Opening a key file.
//!
//! A key file whose secret is sealed needs a passphrase. It comes from the first of these sources
//! that exists. If it is wrong, the command fails and names the source, so that the reason is
//! plain:
//!
//! ```text
//! systemd's credential quorumfs.passphrase   $CREDENTIALS_DIRECTORY
//! the kernel's keyring                       put there by `quorumfs key unlock`
//! a file of mode 0600                        QUORUMFS_PASSPHRASE_FILE, or `passphrase_file`
//! the output of a program                    `passphrase_command`
//! the terminal                               if standard input is one
//! ```
//!
//! Invariants: a passphrase is never an argument nor the value of a variable, where others could
//! see it; it is wiped when it is no longer needed; and no other module opens a key file.
//!
//! | Module | What it holds |
//! |---|---|
//! | `source` | the source of a passphrase |
//! | `keyring` | the kernel's keyring, for a limited time |
//! | `program` | a program that prints the passphrase |
//! | `terminal` | asking, without showing what is typed |

mod keyring;
mod program;
mod source;
mod terminal;

pub(crate) use keyring::{forget, keep};
pub(crate) use source::{Source, Sources, handed_over, read_file};

use crate::configuration::VolumeConfiguration;
use crate::directory::StateDirectory;
use crate::exit::Exit;
use crate::explain::key_failure;
use crate::failure::{CommandResult, Failure};
use quorumfs_gateway::keys::{
    KeyError, KeyFile, Passphrase, SealedKey, StoredKey, clear_replacement,
};
use std::path::{Path, PathBuf};

/// The lock for changing a key file.
pub(crate) const LOCK: &str = "key.lock";
/// How often a person may mistype.
const ATTEMPTS: usize = 3;

/// A key, and the passphrase that opened it, if any.
#[derive(Debug)]
pub(crate) struct Unlocked {
    /// The key.
    pub(crate) key: KeyFile,
    /// The passphrase, for a process of our own that has to open the key again.
    pub(crate) passphrase: Option<Passphrase>,
}

/// The key file that a configuration names.
pub(crate) fn path_of(state: &StateDirectory, configuration: &VolumeConfiguration) -> PathBuf {
    state.join(&configuration.volume.key)
}

/// Opens the volume's key, with the passphrase that another process handed over, if any.
pub(crate) fn open(
    state: &StateDirectory,
    configuration: &VolumeConfiguration,
    handed: Option<Passphrase>,
) -> CommandResult<Unlocked> {
    let path = path_of(state, configuration);
    clear(state, &path);
    match StoredKey::load(&path).map_err(|error| key_failure(&error))? {
        StoredKey::Plain(key) => Ok(Unlocked {
            key,
            passphrase: None,
        }),
        StoredKey::Sealed(sealed) => match handed {
            Some(passphrase) => opened(&sealed, passphrase, &Source::Terminal),
            None => unseal(&sealed, &Sources::of(state, configuration, sealed.volume())),
        },
    }
}

/// Opens a sealed key with the passphrase of the first source.
pub(crate) fn unseal(sealed: &SealedKey, sources: &Sources) -> CommandResult<Unlocked> {
    let mut left = ATTEMPTS;
    loop {
        left = left.saturating_sub(1);
        let (passphrase, source) = sources.passphrase()?;
        let opened = opened(sealed, passphrase, &source);
        let again = matches!(source, Source::Terminal) && left > 0;
        match opened {
            Err(failure) if again && failure.exit == Exit::WrongKey => terminal::print("Wrong."),
            other => return other,
        }
    }
}

fn opened(sealed: &SealedKey, passphrase: Passphrase, source: &Source) -> CommandResult<Unlocked> {
    match sealed.open(&passphrase) {
        Ok(key) => Ok(Unlocked {
            key,
            passphrase: Some(passphrase),
        }),
        Err(error @ KeyError::WrongPassphrase) => {
            Err(key_failure(&error).hint(source.what_if_wrong()))
        }
        Err(error) => Err(key_failure(&error)),
    }
}

/// A new passphrase from a person, who types it twice.
pub(crate) fn ask_twice() -> CommandResult<Passphrase> {
    if !terminal::is_there() {
        let message = "there is no terminal to ask for a new passphrase on";
        return Err(Failure::new(Exit::Usage, message)
            .hint("name a file of mode 0600 that holds it with --from FILE"));
    }
    let first = terminal::ask("New passphrase: ")?;
    if terminal::ask("Once more: ")? == first {
        return Ok(first);
    }
    let failure = Failure::new(Exit::Usage, "the two passphrases differ");
    Err(failure.hint("nothing was changed; try again"))
}

/// Removes the temporary file that a killed change of the key file left.
fn clear(state: &StateDirectory, path: &Path) {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".new");
    if !path.with_file_name(name).exists() {
        return;
    }
    // The holder of the lock is using it right now.
    if let Ok(_lock) = state.lock_as(LOCK, "key command")
        && let Err(error) = clear_replacement(path)
    {
        tracing::warn!(%error, "the remains of a change of the key file could not be removed");
    }
}
