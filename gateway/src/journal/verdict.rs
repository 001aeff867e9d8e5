//! The fate of waiting bytes after a crash: written in place, or rescued.
//!
//! They are written in place if no other client has changed the file since. That is so if the file
//! is as it was last known, or as an unanswered operation of this mount may have left it; writing
//! the same bytes to the same places again then changes nothing. In every other case another client
//! may have written newer bytes there, which must not be overwritten; but the waiting bytes were
//! promised to be kept. So they go to a file of their own.
//!
//! The version decides, because it rises with every change. The time alone is not enough: unpacking
//! another archive over the file may give it the same one. It only tells this mount's operation
//! from another client's in its place.

use super::ledger::Orderings;
use super::record::Ground;

/// The fate of waiting bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// They are written in place.
    InPlace,
    /// They are written to a file of their own.
    Rescue(Reason),
}

/// Why they are not written in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// The file was deleted.
    Deleted,
    /// Another client changed the file.
    Changed,
    /// The journal has no ground for them: a part of it is lost.
    Groundless,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Deleted => "the file was deleted",
            Self::Changed => "another client has changed the file since",
            Self::Groundless => "a part of the journal is lost",
        })
    }
}

/// The fate of bytes that rest on `ground`, for an inode with the state `now`, or `None` if it does
/// not exist.
pub(super) fn verdict(
    ground: Option<Ground>,
    orderings: &Orderings,
    now: Option<Ground>,
) -> Verdict {
    let Some(ground) = ground else {
        return Verdict::Rescue(Reason::Groundless);
    };
    let Some(now) = now else {
        return Verdict::Rescue(Reason::Deleted);
    };
    let ours = orderings.since.is_some_and(|since| now.version > since)
        && (now.mtime == ground.mtime || orderings.mtimes.contains(&now.mtime));
    if now.version == ground.version || ours {
        Verdict::InPlace
    } else {
        Verdict::Rescue(Reason::Changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_metadata::attributes::Timestamp;
    use quorumfs_metadata::identity::InodeVersion;

    fn at(version: u64, seconds: i64) -> Ground {
        Ground {
            version: InodeVersion(version),
            mtime: Timestamp { seconds, nanos: 0 },
        }
    }

    #[test]
    fn bytes_go_in_place_only_if_no_other_client_can_have_changed_the_file() {
        let none = Orderings::default();
        let ours = Orderings {
            since: Some(InodeVersion(5)),
            mtimes: [at(0, 70).mtime].into(),
        };
        let rescue = Verdict::Rescue;
        let of = |orderings: &Orderings, now| verdict(Some(at(5, 50)), orderings, now);
        assert_eq!(of(&none, Some(at(5, 50))), Verdict::InPlace);
        assert_eq!(of(&none, Some(at(6, 50))), rescue(Reason::Changed));
        assert_eq!(of(&none, Some(at(6, 70))), rescue(Reason::Changed));
        assert_eq!(of(&ours, Some(at(5, 50))), Verdict::InPlace);
        assert_eq!(of(&ours, Some(at(6, 70))), Verdict::InPlace, "all of it");
        assert_eq!(of(&ours, Some(at(6, 50))), Verdict::InPlace, "a part");
        assert_eq!(of(&ours, Some(at(6, 60))), rescue(Reason::Changed));
        assert_eq!(of(&ours, None), rescue(Reason::Deleted));
        assert_eq!(
            verdict(None, &ours, Some(at(5, 50))),
            rescue(Reason::Groundless)
        );
    }
}
