//! The position of a scrub, in the state directory, for the next one.
//!
//! `scrub.position` is one object of JSON: the scrub's options, the object after which it goes on,
//! and the findings so far. It is a hint: if it is missing or invalid, the scrub begins anew.

use crate::directory::{self, StateDirectory};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use quorumfs_gateway::blocks::ScrubReport;
use quorumfs_metadata::identity::ObjectId;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::PathBuf;

const FILE: &str = "scrub.position";

/// The options of a scrub. Only one with equal options goes on where another stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Wanted {
    pub(super) cloud: Option<u8>,
    pub(super) per_million: Option<u32>,
    pub(super) repair: bool,
}

/// Findings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counts {
    pub(super) objects: u64,
    pub(super) good: u64,
    pub(super) found: u64,
    pub(super) restored: u64,
    pub(super) unreachable: u64,
    pub(super) lost: u64,
    #[serde(default)]
    pub(super) poisoned: u64,
    pub(super) bytes: u64,
}

#[derive(Serialize, Deserialize)]
struct SavedPosition {
    v: u32,
    wanted: Wanted,
    after: String,
    counts: Counts,
}

/// The position of a scrub.
#[derive(Debug)]
pub(super) struct Position {
    path: PathBuf,
    wanted: Wanted,
    /// The findings of earlier ones.
    pub(super) before: Counts,
    /// The object after which it goes on.
    pub(super) after: Option<ObjectId>,
    kept: Option<ObjectId>,
}

/// An object's id in digits.
pub(super) fn digits(object: ObjectId) -> String {
    let bytes = object.to_be_bytes();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn object(digits: &str) -> Option<ObjectId> {
    let number = u128::from_str_radix(digits, 16).ok()?;
    let bytes = number.to_be_bytes();
    let (_, id) = bytes.split_last_chunk::<12>()?;
    (digits.len() == 24).then(|| ObjectId::from_be_bytes(id))?
}

impl Position {
    /// Where the last one with the same options was stopped, or the beginning.
    pub(super) fn find(state: &StateDirectory, wanted: Wanted) -> Self {
        let path = state.join(FILE);
        let kept: Option<SavedPosition> = fs::read(&path)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .filter(|kept: &SavedPosition| kept.v == 1 && kept.wanted == wanted);
        let found = kept.and_then(|kept| Some((object(&kept.after)?, kept.counts)));
        let (after, before) = found.map_or((None, Counts::default()), |(id, it)| (Some(id), it));
        Self {
            path,
            wanted,
            before,
            after,
            kept: after,
        }
    }

    /// The findings, with those of earlier ones.
    pub(super) fn counts(&self, report: &ScrubReport) -> Counts {
        Counts {
            objects: self.before.objects + report.objects,
            good: self.before.good + report.good(),
            found: self.before.found + report.found(),
            restored: self.before.restored + report.restored,
            unreachable: self.before.unreachable + report.unreachable(),
            lost: self.before.lost + report.lost,
            poisoned: self.before.poisoned + report.poisoned,
            bytes: self.before.bytes + report.bytes,
        }
    }

    /// Stores the position, if it has moved, and the findings up to there.
    pub(super) fn keep(&mut self, report: &ScrubReport) -> CommandResult<()> {
        let Some(after) = report.position.filter(|it| self.kept != Some(*it)) else {
            return Ok(());
        };
        let kept = SavedPosition {
            v: 1,
            wanted: self.wanted,
            after: digits(after),
            counts: self.counts(report.at_position.as_deref().unwrap_or(report)),
        };
        let text = serde_json::to_vec(&kept)
            .map_err(|error| Failure::new(Exit::Error, format!("cannot encode: {error}")))?;
        directory::replace(&self.path, &text)?;
        self.kept = Some(after);
        Ok(())
    }

    /// The scrub is complete: the next one begins anew.
    pub(super) fn forget(&self) -> CommandResult<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Failure::file("remove", &self.path, &error))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_metadata::identity::AllocationId;

    #[test]
    fn a_scrub_goes_on_where_one_like_it_stopped_and_no_other_does() {
        let directory = tempfile::tempdir().unwrap();
        let state = StateDirectory::find(Some(directory.path()), "volume").unwrap();
        let wanted = Wanted {
            cloud: Some(2),
            per_million: Some(10_000),
            repair: true,
        };
        let mut first = Position::find(&state, wanted);
        assert_eq!(first.after, None);
        let id = ObjectId {
            allocation: AllocationId(0x0102_0304_0506_0708),
            counter: 9,
        };
        let report = ScrubReport {
            position: Some(id),
            objects: 64,
            restored: 3,
            ..ScrubReport::default()
        };
        let ahead = ScrubReport {
            objects: 70,
            at_position: Some(Box::new(report.clone())),
            ..report.clone()
        };
        first.keep(&ahead).unwrap();
        let second = Position::find(&state, wanted);
        assert_eq!((second.after, second.before.objects), (Some(id), 64));
        assert_eq!(second.counts(&report).restored, 6);
        let full = Wanted {
            per_million: None,
            ..wanted
        };
        assert_eq!(Position::find(&state, full).after, None);
        fs::write(directory.path().join(FILE), b"{\"v\":1").unwrap();
        assert_eq!(Position::find(&state, wanted).after, None);
        second.forget().unwrap();
        second.forget().unwrap();
    }
}
