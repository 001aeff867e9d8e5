//! Directories in which many names are looked up.
//!
//! A program that copies a tree looks up every name before creating it. After a few lookups in one
//! directory within a second, listing it whole is cheaper than more lookups; a directory that does
//! not fit one page is not listed again for a while.

use quorumfs_metadata::identity::InodeId;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::MutexGuard as AsyncGuard;
use tokio::time::Instant;

/// Lookups in one directory within [`WINDOW`] before it is listed.
const QUESTIONS: u32 = 3;
/// Lookups within this time count together.
const WINDOW: Duration = Duration::from_secs(2);
/// How long a large directory is not listed.
const LARGE_FOR: Duration = Duration::from_secs(30);
/// Directories whose lookups are counted.
const DIRECTORIES_MAX: usize = 4096;
/// Listings of different directories that may run in parallel.
const LOCKS: usize = 16;

#[derive(Debug, Clone, Copy)]
struct LookupHistory {
    since: Instant,
    questions: u32,
    large_until: Option<Instant>,
}

/// See the module.
#[derive(Debug, Default)]
pub(in crate::vfs) struct Lookups {
    asked: Mutex<HashMap<InodeId, LookupHistory>>,
    locks: [tokio::sync::Mutex<()>; LOCKS],
    any: tokio::sync::Mutex<()>,
}

impl Lookups {
    fn asked(&self) -> MutexGuard<'_, HashMap<InodeId, LookupHistory>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An unknown name of `directory` is looked up; returns whether to list the directory.
    pub(in crate::vfs) fn wants_whole(&self, directory: InodeId) -> bool {
        let now = Instant::now();
        let mut asked = self.asked();
        if asked.len() >= DIRECTORIES_MAX {
            asked.clear();
        }
        let fresh = LookupHistory {
            since: now,
            questions: 0,
            large_until: None,
        };
        let entry = asked.entry(directory).or_insert(fresh);
        if now.duration_since(entry.since) > WINDOW {
            entry.since = now;
            // Directories with many lookups before will have many again.
            entry.questions = entry.questions.min(QUESTIONS) / 2;
        }
        entry.questions = entry.questions.saturating_add(1);
        entry.questions >= QUESTIONS && entry.large_until.is_none_or(|until| until < now)
    }

    /// Waits for its turn to list `directory`.
    pub(in crate::vfs) async fn listing(&self, directory: InodeId) -> AsyncGuard<'_, ()> {
        let at = usize::try_from(directory.0 % LOCKS as u64).unwrap_or(0);
        self.locks.get(at).unwrap_or(&self.any).lock().await
    }

    /// `directory` was listed; `whole` if it fitted one page.
    pub(in crate::vfs) fn listed(&self, directory: InodeId, whole: bool) {
        let now = Instant::now();
        let large_until = if whole {
            None
        } else {
            now.checked_add(LARGE_FOR)
        };
        // The next unknown name is looked up alone, unless many follow again.
        let entry = LookupHistory {
            since: now,
            questions: 1,
            large_until,
        };
        self.asked().insert(directory, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_listed_after_a_few_questions_and_a_large_one_only_once() {
        let lookups = Lookups::default();
        let (small, large) = (InodeId(5), InodeId(6));
        assert_eq!(
            [(); 3].map(|()| lookups.wants_whole(small)),
            [false, false, true]
        );
        lookups.listed(small, true);
        assert_eq!([(); 2].map(|()| lookups.wants_whole(small)), [false, true]);
        assert_eq!(
            [(); 3].map(|()| lookups.wants_whole(large)),
            [false, false, true]
        );
        lookups.listed(large, false);
        assert!((0..10).all(|_| !lookups.wants_whole(large)));
    }
}
