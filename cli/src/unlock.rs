//! The one way from a key file to a key.
//!
//! A key file whose secret is sealed takes a passphrase. It comes from the first of these that
//! there is, and if that one is wrong the command fails and says which it was, so that nobody has
//! to guess why:
//!
//! ```text
//! systemd's credential quorumfs.passphrase   $CREDENTIALS_DIRECTORY
//! the kernel's keyring                       put there by `quorumfs key unlock`
//! a file of mode 0600                        QUORUMFS_PASSPHRASE_FILE, or `passphrase_file`
//! what a program prints                      `passphrase_command`
//! the terminal                               if standard input is one
//! ```
//!
//! What always holds: a passphrase is never an argument nor the value of a variable, where others
//! could see it; it is wiped when it is not needed any more; and nobody else opens a key file.
//!
//! | Module | What it holds |
//! |---|---|
//! | `source` | where a passphrase comes from |
//! | `keyring` | the kernel's memory, for as long as was said |
//! | `program` | somebody else's program that knows it |
//! | `terminal` | asking, without showing what is typed |

mod keyring;
mod program;
mod source;
mod terminal;

pub(crate) use keyring::{forget, keep};
pub(crate) use source::{Source, Sources, handed_over, read_file};

use crate::commands::key_failure;
use crate::configuration::VolumeConfiguration;
use crate::directory::StateDirectory;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use quorumfs_gateway::keys::{
    KeyError, KeyFile, Passphrase, SealedKey, StoredKey, clear_replacement,
};
use std::path::{Path, PathBuf};

/// The lock that whoever changes a key file holds.
pub(crate) const LOCK: &str = "key.lock";
/// How often a person may mistype.
const ATTEMPTS: usize = 3;

/// A key, and the passphrase that opened it if it took one.
#[derive(Debug)]
pub(crate) struct Unlocked {
    /// The key.
    pub(crate) key: KeyFile,
    /// What opened it, for a process of our own that has to open it again.
    pub(crate) passphrase: Option<Passphrase>,
}

/// The key file that a configuration names.
pub(crate) fn path_of(state: &StateDirectory, configuration: &VolumeConfiguration) -> PathBuf {
    state.join(&configuration.volume.key)
}

/// Opens the volume's key, with the passphrase that another process handed over if it did.
pub(crate) fn open(
    state: &StateDirectory,
    configuration: &VolumeConfiguration,
    handed: Option<Passphrase>,
) -> Outcome<Unlocked> {
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

/// Opens a sealed key with the passphrase that is found.
pub(crate) fn unseal(sealed: &SealedKey, sources: &Sources) -> Outcome<Unlocked> {
    let mut left = ATTEMPTS;
    loop {
        left = left.saturating_sub(1);
        let (passphrase, source) = sources.passphrase()?;
        let opened = opened(sealed, passphrase, &source);
        let again = matches!(source, Source::Terminal) && left > 0;
        match opened {
            Err(failure) if again && failure.exit == Exit::WrongKey => terminal::say("Wrong."),
            other => return other,
        }
    }
}

fn opened(sealed: &SealedKey, passphrase: Passphrase, source: &Source) -> Outcome<Unlocked> {
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
pub(crate) fn ask_twice() -> Outcome<Passphrase> {
    if !terminal::is_there() {
        let message = "there is no terminal to ask for a new passphrase on";
        return Err(Failure::new(Exit::Usage, message)
            .hint("name a file of mode 0600 that holds it with --from FILE"));
    }
    let first = terminal::ask("New passphrase: ")?;
    if terminal::ask("Once more: ")? == first {
        return Ok(first);
    }
    let failure = Failure::new(Exit::Usage, "the two are not the same");
    Err(failure.hint("nothing was changed; try again"))
}

/// Clears away what somebody who died while changing the key file left beside it.
fn clear(state: &StateDirectory, path: &Path) {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".new");
    if !path.with_file_name(name).exists() {
        return;
    }
    // Whoever holds the lock is at it right now.
    if let Ok(_lock) = state.lock_as(LOCK, "key command")
        && let Err(error) = clear_replacement(path)
    {
        tracing::warn!(%error, "what is left of a change of the key file stays");
    }
}
