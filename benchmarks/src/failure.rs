//! Why a measurement failed, what to do about it, and the exit code: 1, for a setting that makes no
//! sense 2 as for what the command line refuses, and 130 after a signal.

use std::fmt;
use std::path::Path;

/// A measurement failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BenchFailure {
    /// The exit code.
    pub(crate) code: u8,
    /// What failed, and where.
    pub(crate) message: String,
    /// What to do about it.
    pub(crate) hint: Option<String>,
}

impl BenchFailure {
    /// A failure without a hint.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            code: 1,
            message: message.into(),
            hint: None,
        }
    }

    /// The setting makes no sense.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self {
            code: 2,
            ..Self::new(message)
        }
    }

    /// A signal asked for the end.
    pub(crate) fn cancelled() -> Self {
        Self {
            code: 130,
            ..Self::new("cancelled")
        }
    }

    /// The same failure with a hint.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// An error with its causes, or the failure itself if it is one.
    pub(crate) fn caused(error: anyhow::Error) -> Self {
        let message = format!("{error:#}");
        error.downcast().unwrap_or_else(|_| Self::new(message))
    }

    /// A system call on a path failed.
    pub(crate) fn file(doing: &str, path: &Path, error: &std::io::Error) -> Self {
        failed(&format!("{doing} {}", path.display()), error)
    }
}

impl std::error::Error for BenchFailure {}

impl fmt::Display for BenchFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// A step of the measurement itself failed.
pub(crate) fn failed(doing: &str, error: &dyn fmt::Display) -> BenchFailure {
    BenchFailure::new(format!("cannot {doing}: {error}"))
}

/// The result of a measurement or a part of it.
pub(crate) type BenchResult<T = ()> = Result<T, BenchFailure>;
