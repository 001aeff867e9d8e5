//! What one twin can be made to do wrong, to prove that it is found.

use super::step::{Moment, Operation};
use clap::ValueEnum;

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Defect {
    /// `chmod` is answered and not done.
    DropsAChmod,
    /// Of a file that is cut, one byte too many goes.
    CutsOneByteShort,
    /// An access control list is answered and not kept.
    ForgetsAnAcl,
    /// What a rename names first and second is taken the wrong way round.
    SwapsARename,
    /// A write is one byte further than it should be.
    WritesOneByteOff,
    /// The nanoseconds of a time that is set are lost.
    RoundsATime,
    /// An attribute that is removed stays.
    KeepsAnAttribute,
    /// Nobody's umask counts.
    ForgetsTheUmask,
    /// A link is a symbolic one.
    LinksBySymlink,
    /// Owners are as they were.
    KeepsTheOwner,
    /// What is mapped is not written.
    DropsWhatIsMapped,
    /// Holes are not punched.
    PunchesNoHole,
}

impl Defect {
    /// What is done in the place of an operation; nothing if it is only answered.
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
