//! Planted defects of one twin, to prove that the comparison finds them.

use super::step::{Moment, Operation};
use clap::ValueEnum;

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Defect {
    /// `chmod` succeeds without an effect.
    DropsAChmod,
    /// A truncated file loses one byte too many.
    CutsOneByteShort,
    /// Setting an access control list succeeds without an effect.
    ForgetsAnAcl,
    /// The two names of a rename are swapped.
    SwapsARename,
    /// A write is one byte too far.
    WritesOneByteOff,
    /// The nanoseconds of a time that is set are lost.
    RoundsATime,
    /// A removed attribute stays.
    KeepsAnAttribute,
    /// The umask is ignored.
    ForgetsTheUmask,
    /// A hard link becomes a symbolic one.
    LinksBySymlink,
    /// Changing the owner has no effect.
    KeepsTheOwner,
    /// Writes to a mapping are lost.
    DropsWhatIsMapped,
    /// Holes are not punched.
    PunchesNoHole,
}

impl Defect {
    /// The operation that replaces this one; `None` if it succeeds without an effect.
    #[must_use]
    pub fn change(self, operation: &Operation) -> Option<Operation> {
        use Operation as O;
        let mut changed = operation.clone();
        match (self, &mut changed) {
            (Self::DropsAChmod, O::Chmod { .. } | O::ChmodOpen { .. })
            | (Self::ForgetsAnAcl, O::SetAcl { .. })
            | (Self::KeepsAnAttribute, O::RemoveAttribute { .. })
            | (Self::KeepsTheOwner, O::Chown { .. } | O::ChownOpen { .. }) => return None,
            (Self::CutsOneByteShort, O::SetLength { length, .. } | O::Truncate { length, .. }) => {
                *length = length.saturating_sub(1);
            }
            (Self::SwapsARename, O::Rename { from, to, .. }) => std::mem::swap(from, to),
            (Self::WritesOneByteOff, O::WriteAt { offset, .. }) => {
                *offset = offset.saturating_add(1);
            }
            (
                Self::RoundsATime,
                O::SetTimes {
                    modified: Moment::At(_, nanos),
                    ..
                },
            ) => *nanos = 0,
            (Self::ForgetsTheUmask, O::Umask { mode }) => *mode = 0,
            (Self::LinksBySymlink, O::Link { from, to, .. }) => {
                let (target, path) = (from.clone(), to.clone());
                changed = O::MakeSymlink { target, path };
            }
            (Self::DropsWhatIsMapped, O::Map { length, .. }) => *length = 0,
            (Self::PunchesNoHole, O::Allocate { flags, length, .. }) if *flags & 2 != 0 => {
                *length = 1;
            }
            _ => {}
        }
        Some(changed)
    }
}
