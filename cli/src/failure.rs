//! A failure of a command: what failed and where, what to do about it, and the exit code.
//!
//! The crates below have their own typed errors; here, for people and scripts, each becomes one
//! sentence, one hint and one number. A failure never carries a secret.

use crate::exit::Exit;
use std::fmt;
use std::path::Path;

/// A command failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The exit code.
    pub(crate) exit: Exit,
    /// What failed, and where.
    pub(crate) message: String,
    /// What to do about it.
    pub(crate) hint: Option<String>,
    /// Whether it may pass by itself: servers or clouds do not answer now.
    pub(crate) passes: bool,
}

impl Failure {
    /// A failure without a hint.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            hint: None,
            passes: exit == Exit::QuorumUnreachable,
        }
    }

    /// The same failure, marked as passing by itself or not.
    pub(crate) const fn passing(mut self, passes: bool) -> Self {
        self.passes = passes;
        self
    }

    /// The same failure with a hint.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same failure with this hint if it has none yet.
    pub(crate) fn or_hint(self, hint: impl Into<String>) -> Self {
        match self.hint {
            Some(_) => self,
            None => self.hint(hint),
        }
    }

    /// A system call on a path failed.
    pub(crate) fn file(doing: &str, path: &Path, error: &std::io::Error) -> Self {
        use std::io::ErrorKind;
        let message = format!("cannot {doing} {}: {error}", path.display());
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                Self::new(Exit::NoSpace, message).hint("free some space there, then try again")
            }
            ErrorKind::ReadOnlyFilesystem => Self::new(Exit::Error, message)
                .hint("that file system is read-only; remount it or use another directory"),
            ErrorKind::PermissionDenied => Self::new(Exit::Error, message)
                .hint("run this as the user who owns that path, or use another one"),
            _ => Self::new(Exit::Error, message),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// The result of a command or a part of it.
pub(crate) type CommandResult<T = Exit> = Result<T, Failure>;
