//! Every operation and every question of every kind of principal, as every user: refused for the
//! right reason, or let through to its ordinary checks.
//!
//! What each needs is said here once more, from the documentation and not from the code: a new
//! operation, step or question does not compile before it is classified in both places.

use super::harness::TestService;
use super::people::coming::epoch_with;
use super::people::world::*;
use crate::attributes::Credentials;
use crate::error::Error;
use crate::identity::*;
use crate::locks::LockKind;
use crate::operation::{LockWish, Operation, Step, Takeover};
use crate::people::PeopleStep;
use crate::query::{Query, Question, SharesOf};
use crate::row::{MemberRole, MountMode, Rights};
use borsh::BorshDeserialize;
use quorumfs_bft::identity::{Nanos, SessionId};
use quorumfs_bft::service::Caller;
use std::collections::BTreeSet;

mod readers;
mod samples;
mod versions;

/// The kinds of callers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CallerKind {
    /// Its key was never a principal's.
    Outsider,
    /// Likewise, and it names another one's session.
    Impostor,
    Dismissed,
    Expired,
    /// A writer until the present key epoch was begun without it.
    LeftOut,
    Reader,
    /// It may mount.
    Writer,
    /// It may reconcile.
    Keeper,
    /// Admitted by another one, as every user.
    Administrator,
    /// Of the genesis.
    Founder,
}

const KINDS: [CallerKind; 10] = [
    CallerKind::Outsider,
    CallerKind::Impostor,
    CallerKind::Dismissed,
    CallerKind::Expired,
    CallerKind::LeftOut,
    CallerKind::Reader,
    CallerKind::Writer,
    CallerKind::Keeper,
    CallerKind::Administrator,
    CallerKind::Founder,
];

impl CallerKind {
    /// Its rights, while it is a principal.
    fn rights(self) -> Rights {
        match self {
            Self::Reader => rights_of(MemberRole::Read),
            Self::Keeper => Rights {
                mount: false,
                reconcile: true,
                ..rights_of(MemberRole::Write)
            },
            Self::Administrator | Self::Founder => Rights::all(),
            _ => rights_of(MemberRole::Write),
        }
    }

    /// A world with a caller of this kind.
    fn caller(self) -> (PeopleWorld, Caller) {
        let mut world = PeopleWorld::new();
        let caller = |session, seed| Caller {
            session: SessionId(session),
            principal: id(seed),
        };
        match self {
            Self::Outsider => return (world, caller(999, BOB)),
            Self::Impostor => {
                let session = world.owner.session.0;
                return (world, caller(session, BOB));
            }
            Self::Founder => {
                let founder = world.service.open(id(RECOVERY));
                return (world, founder);
            }
            _ => {}
        }
        let mut statement = statement(BOB, MemberRole::Write);
        statement.rights = self.rights();
        let ends = world.service.now().plus(Nanos(10_000_000_000));
        statement.expires = (self == Self::Expired).then_some(ends);
        world.change(PeopleStep::Admit(statement)).unwrap();
        let bob = world.service.open(id(BOB));
        match self {
            Self::Dismissed => {
                world.change(dismissing(BOB)).unwrap();
            }
            Self::Expired => {
                world.service.wait(10);
                world.service.drain();
            }
            Self::LeftOut => {
                let begin = Operation::BeginEpoch(epoch_with(&world, &[]));
                let owner = world.owner;
                world.service.run(&owner, &begin).unwrap();
            }
            _ => {}
        }
        (world, bob)
    }
}

/// Which principals something is for, by their role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Party {
    All,
    Members,
    Writers,
}

/// The right that something needs beyond the role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Right {
    None,
    Mount,
    Reconcile,
    Administer,
    /// To reconcile, or to act for the superuser.
    Relieve,
    /// To administer or to reconcile.
    Reseal,
}

impl Right {
    fn is_among(self, rights: &Rights) -> bool {
        match self {
            Self::None => true,
            Self::Mount => rights.mount,
            Self::Reconcile => rights.reconcile,
            Self::Administer => rights.administer,
            Self::Relieve => rights.reconcile || rights.uids.contains(&Uid::ROOT),
            Self::Reseal => rights.reconcile || rights.administer,
        }
    }
}

fn of_step(step: &Step) -> Party {
    match step {
        Step::Release { .. } => Party::Members,
        Step::Create(_)
        | Step::Link { .. }
        | Step::Unlink(_)
        | Step::RemoveDirectory(_)
        | Step::Rename(_)
        | Step::SetAttributes(_)
        | Step::Commit(_)
        | Step::SetExtended(_)
        | Step::RemoveExtended(_)
        | Step::SetAcl(_)
        | Step::Accessed(_)
        | Step::Restore(_)
        | Step::Purge(_)
        | Step::BeginReseal { .. } => Party::Writers,
    }
}

fn of_operation(operation: &Operation) -> (Party, Right) {
    use Party::{All, Members, Writers};
    use Right::{Administer, Mount, None, Reconcile, Relieve};
    match operation {
        Operation::Compound(compound) => {
            let mut steps = compound.steps.iter();
            match steps.all(|step| of_step(step) == Members) {
                true => (Members, None),
                false => (Writers, None),
            }
        }
        Operation::MountRealm { takeover, mode, .. } => match (takeover, mode) {
            (Takeover::Refused | Takeover::OfUnresponsive, MountMode::Shared) => (Members, None),
            _ => (Members, Mount),
        },
        Operation::Claim { .. } => (Members, None),
        Operation::Lock(request) => match (request.wish, request.kind) {
            (LockWish::Unlock, _) => (Members, None),
            (LockWish::Exclusive, _) | (_, LockKind::Appends) => (Writers, None),
            (LockWish::Shared, _) => (Members, None),
        },
        Operation::CloseAllocation { .. }
        | Operation::UnmountRealm { .. }
        | Operation::ReleaseJob { .. }
        | Operation::StopWaiting(_)
        | Operation::Load { .. }
        | Operation::FinishLoading { .. } => (All, None),
        Operation::Succeed(_) => (All, Administer),
        Operation::ConfirmPlaced { checked, .. } if !checked.is_empty() => (Writers, Reconcile),
        Operation::Allocate { .. }
        | Operation::ConfirmPlaced { .. }
        | Operation::ReplacePlacement { .. }
        | Operation::WithdrawPlaced { .. }
        | Operation::EndLocks(_)
        | Operation::Share(_)
        | Operation::EndShare(_)
        | Operation::ForgetShare(_) => (Writers, None),
        Operation::InviteMachine(_) => (Members, None),
        // The key of no principal is an invitation's.
        Operation::AnswerInvitation { .. } | Operation::EndInvitation { .. } => (All, None),
        Operation::ChangePeople(ordered)
            if ordered.signed.decoded().unwrap().step.is_of_machines() =>
        {
            (Members, None)
        }
        Operation::MoveSlices { .. }
        | Operation::Testify { .. }
        | Operation::Forget { .. }
        | Operation::TakeJob { .. }
        | Operation::Retain { .. }
        | Operation::Release { .. }
        | Operation::Narrow { .. }
        | Operation::MoveShards { .. }
        | Operation::ResealSlices(_)
        | Operation::RetireCloud { .. } => (Writers, Reconcile),
        Operation::RelieveTrash { .. } => (Writers, Relieve),
        Operation::BeginEpoch(_)
        | Operation::SetQuota(_)
        | Operation::KeepTrash(_)
        | Operation::ChangeClouds(_)
        | Operation::ChangePeople(_) => (Writers, Administer),
        Operation::ResealNames(_) => (Writers, Right::Reseal),
    }
}

/// On whose behalf an operation is, if it says.
fn credentials_of(operation: &Operation) -> Option<&Credentials> {
    match operation {
        Operation::Compound(compound) => Some(&compound.credentials),
        Operation::EndLocks(end) => Some(&end.credentials),
        Operation::Share(new) => Some(&new.credentials),
        Operation::EndShare(asked) | Operation::ForgetShare(asked) => Some(&asked.credentials),
        _ => None,
    }
}

fn of_question(question: &Question) -> (Party, Right) {
    use Party::{All, Members};
    use Right::{Administer, None, Reconcile};
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
        | Question::Invitation(_) => (All, None),
        Question::Quota { uid, .. } if *uid != BOBS.0 => (Members, Administer),
        Question::Quotas { .. } => (Members, Administer),
        Question::Shares {
            of: SharesOf::All, ..
        } => (Members, Administer),
        Question::Fates { .. } => (Members, Reconcile),
        Question::NamesToReseal { .. } => (Members, Right::Reseal),
        Question::SlicesToReseal { .. } => (Members, Reconcile),
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
        | Question::Extended(_)
        | Question::Quota { .. }
        | Question::Mounted(_)
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
        | Question::ShareOfToken(_) => (Members, None),
    }
}

/// The refusal that a caller has to get, if it is not let through.
fn refusal(
    kind: CallerKind,
    (party, right): (Party, Right),
    who: Option<&Credentials>,
) -> Option<Error> {
    let gone = [
        CallerKind::Outsider,
        CallerKind::Impostor,
        CallerKind::Dismissed,
        CallerKind::Expired,
    ];
    let rights = kind.rights();
    if gone.contains(&kind) {
        return Some(Error::NoSession);
    }
    if kind == CallerKind::LeftOut && party != Party::All {
        return Some(Error::NotMember);
    }
    let role = kind == CallerKind::Reader && party == Party::Writers;
    let speaks = who.is_none_or(|who| rights.may_assert(who));
    let refused = role || !right.is_among(&rights) || !speaks;
    refused.then_some(Error::NoRight)
}

/// Whether an error is that of an ordinary check.
fn is_ordinary(error: &Error) -> bool {
    !matches!(
        error,
        Error::NoSession | Error::NotMember | Error::NoRight | Error::Fenced { .. }
    )
}

fn users() -> [Credentials; 2] {
    [bob(), Credentials::root()]
}

/// The variants that some samples have, by the first bytes of their encoding; fails if there is
/// one more.
fn variants<T: BorshDeserialize>(samples: &[Vec<u8>]) -> usize {
    let seen: BTreeSet<u8> = samples.iter().map(|bytes| bytes[0]).collect();
    let count = seen.len() as u8;
    assert_eq!(seen, (0..count).collect(), "a variant without a sample");
    let more = borsh::from_slice::<T>(&[count]).map(|_| ());
    let text = more.unwrap_err().to_string();
    assert!(
        text.contains("variant"),
        "variant {count} has no sample: {text}"
    );
    seen.len()
}

fn encoded<T: borsh::BorshSerialize>(samples: &[T]) -> Vec<Vec<u8>> {
    samples
        .iter()
        .map(|it| borsh::to_vec(it).unwrap())
        .collect()
}

#[test]
fn the_samples_have_every_variant() {
    let operations = samples::operations(&bob());
    assert!(variants::<Operation>(&encoded(&operations)) >= 31);
    assert!(variants::<Step>(&encoded(&samples::steps())) >= 14);
    assert!(variants::<Question>(&encoded(&samples::questions())) >= 40);
}

#[test]
fn every_operation_is_refused_for_the_right_reason_or_let_through() {
    let mut through = 0;
    for kind in KINDS {
        for who in users() {
            for operation in samples::operations(&who) {
                let (mut world, caller) = kind.caller();
                let root = world.service.root();
                let said = credentials_of(&operation);
                let expected = refusal(kind, of_operation(&operation), said);
                let done = world.service.run(&caller, &operation);
                let found = done.as_ref().err().map(|refusal| &refusal.error);
                let shown = format!("{kind:?} as {:?}: {operation:?}: {done:?}", who.uid);
                match &expected {
                    Some(expected) => assert_eq!(found, Some(expected), "{shown}"),
                    None => assert!(found.is_none_or(is_ordinary), "{shown}"),
                }
                through += usize::from(expected.is_none());
                if found.is_some() {
                    assert_eq!(world.service.root(), root, "{shown}");
                }
            }
        }
    }
    assert!(through > 300, "{through} were let through");
}

#[test]
fn every_question_is_refused_for_the_right_reason_or_let_through() {
    let mut through = 0;
    for kind in KINDS {
        let (mut world, caller) = kind.caller();
        for who in users() {
            for question in samples::questions() {
                let needs = of_question(&question);
                // What every principal may ask, it may ask in any name.
                let in_whose_name = (needs.0 != Party::All).then_some(&who);
                let expected = refusal(kind, needs, in_whose_name);
                let answer = world.service.ask_as(&caller, who.clone(), question.clone());
                let shown = format!("{kind:?} as {:?}: {question:?}: {answer:?}", who.uid);
                match expected {
                    Some(expected) => assert_eq!(answer, Err(expected), "{shown}"),
                    None => assert!(answer.as_ref().err().is_none_or(is_ordinary), "{shown}"),
                }
                through += usize::from(answer.is_ok());
                let is_watched = watched(&world.service, &caller, &who, question);
                assert!(!is_watched || answer.is_ok(), "watched: {shown}");
            }
        }
    }
    assert!(through > 150, "{through} were answered");
}

/// Whether the caller would be told of changes of the answer.
fn watched(world: &TestService, caller: &Caller, who: &Credentials, question: Question) -> bool {
    use quorumfs_bft::service::Service;
    let query = Query {
        credentials: who.clone(),
        question,
    };
    let view = world.space.view(quorumfs_bft::state::Area::Service);
    let watched = crate::Metadata.watch(&view, caller, &query.to_bytes());
    watched.unwrap().is_some()
}
