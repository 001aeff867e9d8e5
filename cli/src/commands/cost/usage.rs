//! The requests and the traffic of the last months, counted by all processes of a state directory.
//!
//! One small file, `usage`: JSON with the counts of each month and cloud. A process adds what is
//! new since it last did, under a lock, and replaces the file whole. So processes that run at the
//! same time add up, a crash leaves the old file or the new one, and a killed process loses what it
//! counted in its last minute. Of the months only the newest are kept. A cloud is named by its
//! number in the volume, which no other cloud gets: clouds may come and go.
//!
//! A file that is damaged, or of another volume, is begun anew: it decides about nothing but what
//! `cost` shows and when a budget is reached.

use crate::directory;
use crate::failure::{CommandResult, Failure};
use quorumfs_backends::Traffic;
use quorumfs_bft::identity::ClusterId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

/// The file in a volume's state directory.
pub(super) const FILE: &str = "usage";
/// The version of its format.
const VERSION: u32 = 1;
/// The most months that it has.
const MONTHS_MAX: usize = 24;
/// A longer file is none of ours: it is not read.
const BYTES_MAX: u64 = 4 << 20;

/// What was counted of one cloud.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CountedUse {
    /// Puts.
    pub(crate) puts: u64,
    /// Gets.
    pub(crate) gets: u64,
    /// Questions for a length.
    pub(crate) heads: u64,
    /// Pages of listings.
    pub(crate) lists: u64,
    /// Deletions.
    pub(crate) deletes: u64,
    /// Bytes of objects that were sent.
    pub(crate) bytes_sent: u64,
    /// Bytes of objects that were received.
    pub(crate) bytes_received: u64,
}

impl CountedUse {
    /// What was counted after `before`.
    pub(super) fn since(now: &Traffic, before: &Traffic) -> Self {
        Self {
            puts: now.puts.saturating_sub(before.puts),
            gets: now.gets.saturating_sub(before.gets),
            heads: now.heads.saturating_sub(before.heads),
            lists: now.lists.saturating_sub(before.lists),
            deletes: now.deletes.saturating_sub(before.deletes),
            bytes_sent: now.bytes_sent.saturating_sub(before.bytes_sent),
            bytes_received: now.bytes_received.saturating_sub(before.bytes_received),
        }
    }

    fn add(&mut self, more: &Self) {
        self.puts = self.puts.saturating_add(more.puts);
        self.gets = self.gets.saturating_add(more.gets);
        self.heads = self.heads.saturating_add(more.heads);
        self.lists = self.lists.saturating_add(more.lists);
        self.deletes = self.deletes.saturating_add(more.deletes);
        self.bytes_sent = self.bytes_sent.saturating_add(more.bytes_sent);
        self.bytes_received = self.bytes_received.saturating_add(more.bytes_received);
    }
}

/// The counts of a month: by the number of the cloud.
pub(super) type MonthCounts = BTreeMap<u16, CountedUse>;

#[derive(Default, Serialize, Deserialize)]
struct UsageText {
    version: u32,
    volume: String,
    months: BTreeMap<String, MonthCounts>,
}

/// The file, and the volume that it is about.
#[derive(Clone, Debug)]
pub(super) struct UsageFile {
    path: PathBuf,
    volume: String,
}

impl UsageFile {
    pub(super) fn new(path: PathBuf, volume: ClusterId) -> Self {
        let digits = volume.0.iter().map(|byte| format!("{byte:02x}"));
        Self {
            path,
            volume: digits.collect(),
        }
    }

    /// The counts of the newest months.
    pub(super) fn recall(&self) -> BTreeMap<String, MonthCounts> {
        let path = self.path.display();
        let read = fs::metadata(&self.path).and_then(|it| match it.len() {
            0..=BYTES_MAX => fs::read(&self.path),
            _ => Err(ErrorKind::FileTooLarge.into()),
        });
        match read.map(|bytes| serde_json::from_slice::<UsageText>(&bytes)) {
            Ok(Ok(text)) if text.version == VERSION && text.volume == self.volume => text.months,
            Ok(_) => {
                tracing::warn!(%path, "damaged or about another volume: counting begins anew");
                BTreeMap::new()
            }
            Err(error) if error.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => {
                tracing::warn!(%path, %error, "cannot be read: counting begins anew");
                BTreeMap::new()
            }
        }
    }

    /// Adds counts to those of a month.
    pub(super) fn add(&self, month: &str, counts: &MonthCounts) -> CommandResult<()> {
        if counts
            .values()
            .all(|counted| *counted == CountedUse::default())
        {
            return Ok(());
        }
        let _alone = directory::lock_for(&self.path)?;
        let mut months = self.recall();
        let stored = months.entry(month.to_owned()).or_default();
        for (cloud, counted) in counts {
            stored.entry(*cloud).or_default().add(counted);
        }
        while months.len() > MONTHS_MAX {
            months.pop_first();
        }
        let text = UsageText {
            version: VERSION,
            volume: self.volume.clone(),
            months,
        };
        let bytes = serde_json::to_vec(&text)
            .map_err(|error| Failure::file("write", &self.path, &error.into()))?;
        directory::replace(&self.path, &bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(puts: u64) -> MonthCounts {
        let counted = CountedUse {
            puts,
            bytes_sent: puts * 10,
            ..CountedUse::default()
        };
        BTreeMap::from([(0, counted), (3, counted)])
    }

    fn file(directory: &tempfile::TempDir) -> UsageFile {
        UsageFile::new(directory.path().join(FILE), ClusterId([1; 16]))
    }

    #[test]
    fn processes_of_one_directory_add_up() {
        let directory = tempfile::tempdir().unwrap();
        let file = file(&directory);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        file.add("2026-11", &counted(1)).unwrap();
                    }
                });
            }
        });
        assert_eq!(
            file.recall(),
            BTreeMap::from([("2026-11".into(), counted(80))])
        );
    }

    #[test]
    fn the_newest_months_are_kept_and_what_is_damaged_is_begun_anew() {
        let directory = tempfile::tempdir().unwrap();
        let file = file(&directory);
        for month in 0..30 {
            let name = format!("{}-{:02}", 2024 + month / 12, month % 12 + 1);
            file.add(&name, &counted(1)).unwrap();
        }
        let months = file.recall();
        assert_eq!(months.len(), MONTHS_MAX);
        assert_eq!(months.keys().next().unwrap(), "2024-07");
        let other = UsageFile::new(file.path.clone(), ClusterId([2; 16]));
        assert!(other.recall().is_empty());
        for rubbish in [&b"rubbish"[..], b"", b"{}", b"{\"version\":1}"] {
            fs::write(&file.path, rubbish).unwrap();
            assert!(file.recall().is_empty());
        }
        file.add("2026-11", &counted(2)).unwrap();
        assert_eq!(file.recall().len(), 1);
        file.add("2026-12", &counted(0)).unwrap();
        assert_eq!(file.recall().len(), 1, "nothing is not written");
    }

    #[test]
    fn only_what_is_new_is_counted() {
        let of = |puts| Traffic {
            puts,
            bytes_sent: puts * 5,
            ..Traffic::default()
        };
        let new = CountedUse::since(&of(9), &of(4));
        assert_eq!((new.puts, new.bytes_sent, new.gets), (5, 25, 0));
    }
}
