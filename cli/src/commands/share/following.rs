//! What is reported of a walk over a tree, and how it is stopped.

use super::super::files::{CommandProgress, Summary, refused};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use quorumfs_gateway::vfs::{Settled, Settling};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Follows walks.
pub(super) struct Follow {
    output: Output,
    stopped: AtomicBool,
}

/// A walk that is followed.
pub(super) struct Followed<'f> {
    follow: &'f Follow,
    progress: CommandProgress,
    /// Why nothing more can be reported.
    broken: Option<Failure>,
}

pub(super) fn stopped() -> Failure {
    Failure::new(Exit::Cancelled, "stopped").hint("the same command again goes on from here")
}

impl Follow {
    pub(super) const fn new(output: Output) -> Self {
        Self {
            output,
            stopped: AtomicBool::new(false),
        }
    }

    /// Walks end soon.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Follows a walk.
    pub(super) fn begin(&self) -> Followed<'_> {
        Followed {
            follow: self,
            progress: CommandProgress::new(self.output),
            broken: None,
        }
    }
}

impl Followed<'_> {
    /// Something failed that is no part of the tree.
    pub(super) fn failed(&mut self, path: &Path, failure: Failure) -> CommandResult<()> {
        self.progress.failed(path, failure)
    }

    /// The walk has ended: whether it came to its end, and how it is reported.
    pub(super) fn end(
        mut self,
        complete: bool,
        people: impl FnOnce(&Summary) -> String,
    ) -> CommandResult {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        if !complete && self.follow.stopped.load(Ordering::Relaxed) {
            self.progress.report_all()?;
            return Err(stopped());
        }
        self.progress.end(people)
    }
}

impl Settling for Followed<'_> {
    fn settled(&mut self, path: &Path, what: Settled) -> bool {
        let reported = match what {
            Settled::Set => {
                self.progress.done(0);
                Ok(())
            }
            Settled::Unchanged => {
                self.progress.skipped();
                Ok(())
            }
            Settled::Foreign(uid) => {
                let message = format!(
                    "{} belongs to user {uid}, and only that user can share it or end that",
                    path.display()
                );
                self.progress
                    .failed(path, Failure::new(Exit::Path, message))
            }
            Settled::Failed(error) => self.progress.failed(path, refused(path, &error)),
        };
        if let Err(failure) = reported {
            self.broken = Some(failure);
            return false;
        }
        !self.follow.stopped.load(Ordering::Relaxed)
    }
}
