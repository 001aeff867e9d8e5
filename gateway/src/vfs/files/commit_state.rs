//! How far the commit of a file has come.
//!
//! ```text
//!                 depart, set aside
//!          ┌──────────────────────────────┐
//!        Idle                         Departed {runs, attributes} ◄─┐ a part was committed:
//!          └──────────────────────────────┘ └───────────────────────┘ fewer runs
//!            arrive, cut, put back, give up
//! ```
//!
//! What has departed is not changed any more: it goes to the clouds, an operation names it, and
//! until that is certain callers see it, beneath what was written since. While a commit is `Idle`
//! nothing has departed, so there is no run that is frozen for no reason. Only the holder of the
//! node's [`content`](super::node::Node::change) moves it.

use super::dirty::FrozenRuns;
use super::node::Pending;

/// See the module.
#[derive(Debug, Default)]
pub(super) enum CommitState {
    /// Nothing has departed.
    #[default]
    Idle,
    /// Runs and attributes are on their way, or an operation with them was sent.
    Departed {
        runs: FrozenRuns,
        attributes: Pending,
    },
}

/// What has departed of a file that is idle.
static NO_RUNS: FrozenRuns = FrozenRuns::NONE;

impl CommitState {
    /// Runs that have departed and are not committed yet.
    pub(super) fn runs(&self) -> &FrozenRuns {
        match self {
            Self::Idle => &NO_RUNS,
            Self::Departed { runs, .. } => runs,
        }
    }

    /// Attributes that have departed.
    pub(super) fn attributes(&self) -> Pending {
        match self {
            Self::Idle => Pending::default(),
            Self::Departed { attributes, .. } => *attributes,
        }
    }

    /// The runs up to `until` are committed.
    pub(super) fn committed_until(&mut self, until: u64) {
        if let Self::Departed { runs, .. } = self {
            runs.remove_until(until);
        }
    }

    /// The commit has ended; returns the runs that it has not committed.
    pub(super) fn end(&mut self) -> FrozenRuns {
        match std::mem::take(self) {
            Self::Idle => FrozenRuns::default(),
            Self::Departed { runs, .. } => runs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use quorumfs_metadata::attributes::Mode;

    #[test]
    fn what_has_departed_is_seen_until_it_is_committed_and_comes_back_if_not() {
        let mut commit = CommitState::default();
        assert!(commit.runs().is_empty() && commit.attributes().is_empty());
        let (mut runs, mode) = (FrozenRuns::default(), Some(Mode(0o600)));
        runs.insert(0, Bytes::from_static(b"first"));
        runs.insert(8, Bytes::from_static(b"second"));
        let attributes = Pending {
            mode,
            ..Pending::default()
        };
        commit = CommitState::Departed { runs, attributes };
        assert_eq!(
            (commit.runs().bytes(), commit.attributes().mode),
            (11, mode)
        );
        commit.committed_until(5);
        assert_eq!(commit.runs().bytes(), 6);
        let rest = commit.end();
        assert_eq!((rest.bytes(), rest.end()), (6, 14));
        assert!(commit.runs().is_empty() && commit.attributes().is_empty());
        assert!(commit.end().is_empty(), "it has ended already");
    }
}
