//! What becomes of bytes that waited when the process ended: in place, or to the rescue.
//!
//! They go where they were written to if nobody else has changed the file since: it is as it was
//! when we last heard of it, or it is what an operation of ours may have made of it whose end we do
//! not know. To write the same bytes to the same places once more changes nothing then. In every
//! other case somebody else may have written something newer there, and they must not go over it;
//! but they were promised to be kept. So they go to a file of their own.
//!
//! The version decides, because it rises with every change. The time alone would not do: whoever
//! unpacks another archive over the file may give it the same one. It only tells an operation of
//! ours from somebody else's that came in its place.

use super::ledger::Orderings;
use super::record::Ground;

/// What becomes of waiting bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// They go where they were written to.
    InPlace,
    /// They go to a file of their own.
    Rescue(Reason),
}

/// Why not in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// The file was deleted.
    Deleted,
    /// Somebody else changed it.
    Changed,
    /// The journal does not say what they rest on: a part of it is gone.
    Groundless,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Deleted => "the file was deleted",
            Self::Changed => "somebody else changed the file since",
            Self::Groundless => "a part of the journal is gone",
        })
    }
}

/// What becomes of bytes that rest on `ground`, on an inode that is as `now` says, if it is there
/// at all.
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
