//! The sources of a passphrase.

use super::{keyring, program, terminal};
use crate::configuration::VolumeConfiguration;
use crate::directory::StateDirectory;
use crate::exit::Exit;
use crate::explain::key_failure;
use crate::failure::{CommandResult, Failure};
use quorumfs_bft::identity::ClusterId;
use quorumfs_gateway::keys::{PASSPHRASE_BYTES_MAX, Passphrase};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The name of systemd's credential, in units and in `$CREDENTIALS_DIRECTORY`.
const CREDENTIAL: &str = "quorumfs.passphrase";
/// The variable that names a file; never the passphrase.
const FILE_VARIABLE: &str = "QUORUMFS_PASSPHRASE_FILE";

/// A source of a passphrase.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// systemd's credential.
    Credential(PathBuf),
    /// The kernel's keyring.
    Keyring,
    /// A file.
    File(PathBuf),
    /// A program and its arguments.
    Program(Vec<String>),
    /// A person.
    Terminal,
}

impl Source {
    /// Its name for scripts.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Credential(_) => "credential",
            Self::Keyring => "keyring",
            Self::File(_) => "file",
            Self::Program(_) => "command",
            Self::Terminal => "terminal",
        }
    }

    /// Its name for people.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Credential(path) => format!("systemd's credential {}", path.display()),
            Self::Keyring => "the kernel's keyring".into(),
            Self::File(path) => format!("the file {}", path.display()),
            Self::Program(words) => format!("the command `{}`", words.join(" ")),
            Self::Terminal => "the terminal".into(),
        }
    }

    /// The hint if its passphrase is wrong.
    pub(super) fn what_if_wrong(&self) -> String {
        match self {
            Self::Keyring => "it came from the kernel's keyring: `quorumfs key lock` removes it, \
                              `quorumfs key unlock` asks for another"
                .into(),
            Self::Terminal => "try again; if it is lost, use the recovery kit".into(),
            other => format!("it came from {}: put the right one there", other.text()),
        }
    }
}

/// The configured sources of one volume.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    volume: Option<ClusterId>,
    credential: Option<PathBuf>,
    file: Option<PathBuf>,
    program: Vec<String>,
}

impl Sources {
    /// For a volume that is configured.
    pub(crate) fn of(
        state: &StateDirectory,
        configuration: &VolumeConfiguration,
        volume: ClusterId,
    ) -> Self {
        let here = Self::here();
        let written = configuration.keys.passphrase_file.as_ref();
        Self {
            volume: Some(volume),
            file: here.file.or_else(|| Some(state.join(written?))),
            program: configuration.keys.passphrase_command.clone(),
            ..here
        }
    }

    /// Those given to this process alone.
    pub(crate) fn here() -> Self {
        let named = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let credential = named("CREDENTIALS_DIRECTORY")
            .map(|directory| Path::new(&directory).join(CREDENTIAL))
            .filter(|path| path.exists());
        Self {
            volume: None,
            credential,
            file: named(FILE_VARIABLE).map(PathBuf::from),
            program: Vec::new(),
        }
    }

    /// The same without the kernel's keyring, whose passphrase may be out of date.
    pub(crate) fn without_keyring(self) -> Self {
        Self {
            volume: None,
            ..self
        }
    }

    /// Whether a source other than the terminal exists.
    pub(crate) fn are_automatic(&self) -> bool {
        self.credential.is_some() || self.file.is_some() || !self.program.is_empty()
    }

    /// The first source, without asking it.
    pub(crate) fn first(&self) -> Option<Source> {
        if let Some(path) = &self.credential {
            return Some(Source::Credential(path.clone()));
        }
        if self.volume.is_some_and(keyring::is_kept) {
            return Some(Source::Keyring);
        }
        if let Some(path) = &self.file {
            return Some(Source::File(path.clone()));
        }
        if !self.program.is_empty() {
            return Some(Source::Program(self.program.clone()));
        }
        terminal::is_there().then_some(Source::Terminal)
    }

    /// A passphrase from the first source.
    pub(crate) fn passphrase(&self) -> CommandResult<(Passphrase, Source)> {
        let source = self.first().ok_or_else(no_source)?;
        let passphrase = match &source {
            Source::Credential(path) => read(path)?,
            Source::Keyring => match self.volume.and_then(keyring::recall) {
                Some(passphrase) => passphrase,
                // It expired meanwhile.
                None => return self.clone().without_keyring().passphrase(),
            },
            Source::File(path) => read_file(path)?,
            Source::Program(words) => program::passphrase(words)?,
            Source::Terminal => terminal::ask("Passphrase: ")?,
        };
        Ok((passphrase, source))
    }
}

fn no_source() -> Failure {
    let message = "the key file is protected by a passphrase, and no source of it exists here";
    Failure::new(Exit::WrongKey, message).hint(format!(
        "`quorumfs key unlock` on a terminal puts it into the kernel's keyring; or name a file of \
         mode 0600 with {FILE_VARIABLE}, or `passphrase_file` or `passphrase_command` under [keys] \
         in quorumfs.toml; or have systemd load the credential {CREDENTIAL}"
    ))
}

/// A passphrase in a file that other users cannot read.
pub(crate) fn read_file(path: &Path) -> CommandResult<Passphrase> {
    let found = std::fs::metadata(path).map_err(|error| cannot_read(path, &error))?;
    let mode = found.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        let shown = path.display();
        let message = format!(
            "{shown} may be read or written by others (mode {mode:04o}), so it is not used"
        );
        return Err(Failure::new(Exit::WrongKey, message).hint(format!(
            "`chmod 600 {shown}`, and consider whether others know the passphrase by now"
        )));
    }
    read(path)
}

/// A passphrase in a file. systemd controls access to its credentials, with access control lists in
/// addition to modes.
fn read(path: &Path) -> CommandResult<Passphrase> {
    let file = File::open(path).map_err(|error| cannot_read(path, &error))?;
    bounded(file)
        .map_err(|error| cannot_read(path, &error))
        .and_then(taken)
}

/// The passphrase that another process of ours hands over through a pipe.
pub(crate) fn handed_over(pipe: impl Read) -> CommandResult<Passphrase> {
    bounded(pipe)
        .map_err(|error| Failure::file("read", "standard input".as_ref(), &error))
        .and_then(taken)
}

/// All input up to a limit, in memory of which no copies remain.
pub(super) fn bounded(from: impl Read) -> std::io::Result<Zeroizing<Vec<u8>>> {
    // Space for the end of a line, and one more byte to notice too much.
    let most = PASSPHRASE_BYTES_MAX + 3;
    let mut bytes = Zeroizing::new(Vec::with_capacity(most));
    from.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

pub(super) fn taken(bytes: Zeroizing<Vec<u8>>) -> CommandResult<Passphrase> {
    Passphrase::from_bytes(bytes).map_err(|error| key_failure(&error))
}

fn cannot_read(path: &Path, error: &std::io::Error) -> Failure {
    let failure = Failure::file("read the passphrase in", path, error);
    Failure {
        exit: Exit::WrongKey,
        ..failure
    }
}
