//! Roles: which principals may order and ask what.
//!
//! Keys decide what can be read, and servers hold none; but names' places, sizes, times and owners
//! are plain to them. So a principal that is no *member* of the realm, because the present key
//! epoch was begun without it, is told no more than who may read the realm, and changes nothing. A
//! member has a *role*, which follows from its rights:
//!
//! * Every *principal* may learn what it takes to become a member, and give up what its sessions
//!   hold.
//! * Every *member* may ask everything else, mount with others, hold what it has open, take shared
//!   locks, and have further machines.
//! * A member that *writes* may order everything else.
//!
//! A caller that is no principal is refused everything, unless its key is that of an invitation
//! ([`crate::invitations`]).
//!
//! This comes before the ordinary checks and replaces none of them: rights that one operation
//! needs, credentials, modes and lists decide as ever.
//!
//! What always holds: a new operation or question does not compile before it is classified here. A
//! reader's mount writes nothing: no time of access either.

use crate::error::Error;
use crate::identity::{PrincipalId, RealmId};
use crate::locks::LockKind;
use crate::operation::{LockRequest, LockWish, Operation, Step};
use crate::query::Question;
use crate::row::{MemberRole, Rights, key};
use crate::rows::{Outcome, Rows, require};

/// The realm whose members are asked about: a volume has one.
const REALM: RealmId = RealmId::ROOT;

/// Whom an operation or a question is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Needs {
    /// Every principal.
    Principal,
    /// A member of the realm, in any role.
    Member,
    /// A member that may write.
    Writer,
}

impl Needs {
    /// Whom an operation is for.
    pub(crate) fn of_operation(operation: &Operation) -> Self {
        match operation {
            Operation::CloseAllocation { .. }
            | Operation::UnmountRealm { .. }
            | Operation::ReleaseJob { .. }
            | Operation::StopWaiting(_)
            | Operation::EndInvitation { .. } => Self::Principal,
            // For the key of an invitation, which no principal has.
            Operation::AnswerInvitation { .. } => Self::Principal,
            // The root's word, which no administrator may prevent.
            Operation::Succeed(_) => Self::Principal,
            // Until a recovery is finished a volume has no members.
            Operation::Load { .. } | Operation::FinishLoading { .. } => Self::Principal,
            Operation::Compound(compound) => {
                let releases = |step: &Step| matches!(step, Step::Release { .. });
                match compound.steps.iter().all(releases) {
                    true => Self::Member,
                    false => Self::Writer,
                }
            }
            Operation::MountRealm { .. } | Operation::Claim { .. } => Self::Member,
            // A member has machines of its own; what else there is administrators change.
            Operation::InviteMachine(_) | Operation::ChangePeople(_) => Self::Member,
            Operation::Lock(request) => Self::of_lock(request),
            Operation::Allocate { .. }
            | Operation::ConfirmPlaced { .. }
            | Operation::ReplacePlacement { .. }
            | Operation::WithdrawPlaced { .. }
            | Operation::MoveSlices { .. }
            | Operation::Testify { .. }
            | Operation::BeginEpoch(_)
            | Operation::SetQuota(_)
            | Operation::Forget { .. }
            | Operation::TakeJob { .. }
            | Operation::Retain { .. }
            | Operation::Release { .. }
            | Operation::Narrow { .. }
            | Operation::KeepTrash(_)
            | Operation::RelieveTrash { .. }
            | Operation::ChangeClouds(_)
            | Operation::MoveShards { .. }
            | Operation::RetireCloud { .. }
            | Operation::EndLocks(_)
            | Operation::ResealNames(_)
            | Operation::ResealSlices(_)
            | Operation::Share(_)
            | Operation::EndShare(_)
            | Operation::ForgetShare(_) => Self::Writer,
        }
    }

    /// A reader keeps writers off what it reads, and no other readers.
    fn of_lock(request: &LockRequest) -> Self {
        match (request.wish, request.kind) {
            (LockWish::Unlock, _) => Self::Member,
            (LockWish::Shared, LockKind::Ranges | LockKind::Whole) => Self::Member,
            (LockWish::Shared, LockKind::Appends) | (LockWish::Exclusive, _) => Self::Writer,
        }
    }

    /// Whom a question is for.
    pub(crate) const fn of_question(question: &Question) -> Self {
        match question {
            Question::WhoAmI
            | Question::Volume
            | Question::Realm(_)
            | Question::Epochs { .. }
            | Question::Members(_)
            | Question::Successions
            | Question::CloudChanges { .. }
            | Question::CloudSecrets
            | Question::People { .. }
            | Question::Invitation(_) => Self::Principal,
            Question::Lookup(_)
            | Question::Attributes(_)
            | Question::Access { .. }
            | Question::Directory { .. }
            | Question::Symlink(_)
            | Question::Content { .. }
            | Question::Usage(_)
            | Question::Object(_)
            | Question::UnderReplicated { .. }
            | Question::Unreferenced { .. }
            | Question::Orphans { .. }
            | Question::Objects { .. }
            | Question::SparsePacks { .. }
            | Question::PackedSlices { .. }
            | Question::Principal(_)
            | Question::Evidence(_)
            | Question::SlicesByEpoch { .. }
            | Question::NamesByEpoch { .. }
            | Question::NamesToReseal { .. }
            | Question::SlicesToReseal { .. }
            | Question::Extended(_)
            | Question::Quota { .. }
            | Question::Quotas { .. }
            | Question::Mounted(_)
            | Question::Fates { .. }
            | Question::Retained
            | Question::Trash { .. }
            | Question::TrashedIn { .. }
            | Question::Trashed(_)
            | Question::TrashSize(_)
            | Question::News { .. }
            | Question::Mounts(_)
            | Question::Lock { .. }
            | Question::Locks { .. }
            | Question::Shares { .. }
            | Question::ShareOfToken(_) => Self::Member,
        }
    }

    /// Refuses a principal that it is not for.
    pub(crate) fn require(
        self,
        rows: &impl Rows,
        principal: &PrincipalId,
        rights: &Rights,
    ) -> Outcome<()> {
        if self >= Self::Member {
            require(is_member(rows, principal)?, Error::NotMember)?;
        }
        let may = self < Self::Writer || rights.role() != MemberRole::Read;
        require(may, Error::NoRight)
    }
}

/// Whether a principal is a member in the present key epoch.
pub(crate) fn is_member(rows: &impl Rows, principal: &PrincipalId) -> Outcome<bool> {
    rows.has(&key::member(REALM, principal))
}
