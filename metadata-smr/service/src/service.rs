//! The metadata as a [`Service`]: decodes, admits, executes, answers.
//!
//! Nothing that a client can send makes it panic or stop: undecodable bytes, fenced sessions,
//! missing rights and failing steps lead to answers. Only this replica's own store can stop it.

use crate::accessed::accessed;
use crate::answer;
use crate::attributes::Credentials;
use crate::change::{Asker, Change};
use crate::codec::DecodeError;
use crate::content;
use crate::epoch;
use crate::error::{Error, FailedAt, OperationError};
use crate::extended;
use crate::fleet;
use crate::genesis::SignedGenesis;
use crate::grave;
use crate::identity::VolumeIncarnation;
use crate::install::install;
use crate::invitations;
use crate::job;
use crate::limits::{PRECONDITIONS_MAX, STEPS_MAX};
use crate::load;
use crate::locks;
use crate::log;
use crate::mount;
use crate::namespace;
use crate::operation::{Compound, EntryPlace, Operation, Precondition, Step};
use crate::people;
use crate::permission::assert_credentials;
use crate::query::{Query, Question};
use crate::quota;
use crate::reap;
use crate::reply::{Answer, Done, Response, StepDone};
use crate::roles::Needs;
use crate::row::key;
use crate::rows::{Halt, Outcome, Reading, Rows, require};
use crate::session;
use crate::set_acl::set_acl;
use crate::set_attributes::set_attributes;
use crate::share;
use crate::succession;
use crate::trash;
use bytes::Bytes;
use quorumfs_bft::identity::{PublicKey, SessionId, Time};
use quorumfs_bft::service::{Caller, Context, Credit, Service};
use quorumfs_bft::state::{StateError, Txn, View};

/// The replicated metadata of one volume.
#[derive(Clone, Copy, Debug, Default)]
pub struct Metadata;

/// Principals whose time is over go first, since each begins a piece while there is room, and
/// shares likewise. Then come locks, since others wait for them. The bells come last, since a tick
/// may have something to tell.
fn tick(change: &mut Change<'_, '_>) -> Outcome<()> {
    people::tick(change)?;
    invitations::tick(change)?;
    share::tick(change)?;
    locks::tick(change)?;
    reap::tick(change)?;
    trash::tick(change)?;
    grave::tick(change)?;
    log::append(change)?;
    log::tick(change)
}

/// Why an operation failed, and in which part of it.
type Failed = (FailedAt, Halt);

impl Service for Metadata {
    fn genesis(&self, txn: &mut Txn<'_>, genesis: &[u8]) -> Result<(), StateError> {
        let (signed, genesis) =
            SignedGenesis::from_bytes(genesis).map_err(|error| StateError::Damaged {
                place: "genesis".to_string(),
                reason: error.to_string(),
            })?;
        let context = Context {
            sequence: quorumfs_bft::identity::Sequence(0),
            time: genesis.created,
            lease_clock: Time(0),
            behaviour_version: 0,
            short_of_space: false,
        };
        let mut change = Change::unbounded(txn, &context);
        never_refused(install(&mut change, &signed, &genesis))
    }

    fn sessions_begin_after(&self, genesis: &[u8]) -> SessionId {
        let incarnation = SignedGenesis::from_bytes(genesis)
            .map_or(VolumeIncarnation(0), |(_, genesis)| genesis.incarnation);
        SessionId(incarnation.first_id())
    }

    fn open_session(
        &self,
        txn: &mut Txn<'_>,
        context: &Context,
        caller: &Caller,
    ) -> Result<Option<Credit>, StateError> {
        never_refused(session::open(&mut Change::unbounded(txn, context), caller))
    }

    fn may_open(&self, view: &View<'_>, principal: &PublicKey) -> Result<bool, StateError> {
        never_refused(session::may_open(&Reading(*view), principal))
    }

    fn administers(
        &self,
        view: &View<'_>,
        principal: &PublicKey,
    ) -> Result<Option<bool>, StateError> {
        never_refused(succession::administers(&Reading(*view), principal))
    }

    /// A member that may reconcile: it backs the metadata up, for all of the volume.
    fn may_copy(&self, view: &View<'_>, principal: &PublicKey) -> Result<bool, StateError> {
        never_refused(session::may_copy(&Reading(*view), principal))
    }

    fn close_session(
        &self,
        txn: &mut Txn<'_>,
        context: &Context,
        caller: &Caller,
    ) -> Result<(), StateError> {
        let mut change = Change::unbounded(txn, context);
        never_refused(session::close(&mut change, caller.session))
    }

    fn execute(
        &self,
        txn: &mut Txn<'_>,
        context: &Context,
        caller: &Caller,
        operation: &[u8],
    ) -> Result<Bytes, StateError> {
        if context.short_of_space {
            never_refused(trash::relieve(&mut Change::unbounded(txn, context)))?;
        }
        let savepoint = txn.savepoint();
        let mut change = Change::bounded(txn, context);
        let response = match execute(&mut change, caller, operation) {
            Ok(done) => Response(Ok(done)),
            Err((at, Halt::Refused(error))) => {
                txn.rollback(savepoint);
                Response(Err(OperationError { at, error }))
            }
            Err((_, Halt::State(error))) => return Err(error),
        };
        Ok(Bytes::from(response.to_bytes()))
    }

    fn read(&self, view: &View<'_>, caller: &Caller, query: &[u8]) -> Result<Bytes, StateError> {
        let rows = Reading(*view);
        let found = Query::from_bytes(query)
            .map_err(|error| Halt::Refused(undecodable(&error)))
            .and_then(|query| answer::answer(&rows, caller, &query));
        let answer = match found {
            Ok(found) => Answer(Ok(found)),
            Err(Halt::Refused(error)) => Answer(Err(error)),
            Err(Halt::State(error)) => return Err(error),
        };
        Ok(Bytes::from(answer.to_bytes()))
    }

    /// A query about an inode's attributes, extended ones too, a directory's entries or a file's
    /// content can be watched by any session that would get an answer: the inode's row covers all
    /// of these. It does not cover the attributes of the entries, which are other inodes. A session
    /// that has a realm mounted can watch for news of it: the bell's row.
    fn watch(
        &self,
        view: &View<'_>,
        caller: &Caller,
        watch: &[u8],
    ) -> Result<Option<Vec<Bytes>>, StateError> {
        let Ok(query) = Query::from_bytes(watch) else {
            return Ok(None);
        };
        let row_key = match &query.question {
            Question::Attributes(inode)
            | Question::Directory { inode, .. }
            | Question::Content { inode, .. }
            | Question::Extended(inode) => key::inode(*inode),
            Question::News { realm, .. } => key::bell(*realm),
            _ => return Ok(None),
        };
        match answer::answer(&Reading(*view), caller, &query) {
            Ok(_) => Ok(Some(vec![row_key.into()])),
            Err(Halt::Refused(_)) => Ok(None),
            Err(Halt::State(error)) => Err(error),
        }
    }

    fn next_deadline(&self, view: &View<'_>) -> Result<Option<Time>, StateError> {
        let rows = Reading(*view);
        let reaping = never_refused(reap::next_deadline(&rows))?;
        let purging = never_refused(trash::next_deadline(&rows))?;
        let expiring = never_refused(grave::next_deadline(&rows))?;
        let ringing = never_refused(log::next_deadline(&rows))?;
        let waiting = never_refused(locks::next_deadline(&rows))?;
        let leaving = never_refused(people::next_deadline(&rows))?;
        let ending = never_refused(share::next_deadline(&rows))?;
        let inviting = never_refused(invitations::next_deadline(&rows))?;
        let all = [
            reaping, purging, expiring, ringing, waiting, leaving, ending, inviting,
        ];
        Ok(all.into_iter().flatten().min())
    }

    fn tick(&self, txn: &mut Txn<'_>, context: &Context) -> Result<(), StateError> {
        let mut change = Change::unbounded(txn, context);
        never_refused(tick(&mut change))
    }
}

/// Work of the service itself is never refused: a refusal means that rows contradict each other.
fn never_refused<T>(outcome: Outcome<T>) -> Result<T, StateError> {
    outcome.map_err(|halt| match halt {
        Halt::State(error) => error,
        Halt::Refused(error) => StateError::Damaged {
            place: "metadata rows".to_string(),
            reason: error.to_string(),
        },
    })
}

fn undecodable(error: &DecodeError) -> Error {
    match error {
        DecodeError::Version { .. } => Error::NewerVersion,
        _ => Error::Malformed,
    }
}

fn execute(change: &mut Change<'_, '_>, caller: &Caller, bytes: &[u8]) -> Result<Done, Failed> {
    let whole = |halt: Halt| (FailedAt::Operation, halt);
    let operation =
        Operation::from_bytes(bytes).map_err(|error| whole(Halt::Refused(undecodable(&error))))?;
    let asker = match Asker::admit(change, caller) {
        Ok(asker) => asker,
        Err(refusal) => {
            let done = invitations::execute_as_guest(change, caller, &operation, refusal);
            return done.map_err(whole);
        }
    };
    Needs::of_operation(&operation)
        .require(change, &caller.principal, &asker.rights)
        .map_err(whole)?;
    change.act_for(caller.session);
    let done = match &operation {
        Operation::Compound(compound) => {
            let steps = execute_compound(change, &asker, compound)?;
            content::settle_dropped(change).map_err(whole)?;
            Done::Compound(steps)
        }
        other => execute_other(change, &asker, other).map_err(whole)?,
    };
    log::append(change).map_err(whole)?;
    Ok(done)
}

fn execute_other(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    operation: &Operation,
) -> Outcome<Done> {
    match operation {
        // Handled by the caller, which knows the steps.
        Operation::Compound(_) => Err(Error::Malformed.into()),
        Operation::Allocate { count } => session::allocate(change, asker, *count),
        Operation::CloseAllocation { allocation } => {
            session::close_allocation(change, asker, *allocation)
        }
        Operation::MountRealm {
            realm,
            takeover,
            mode,
            label,
        } => mount::mount(change, asker, *realm, (*takeover, *mode, label)),
        Operation::UnmountRealm { realm } => mount::unmount(change, asker, *realm),
        Operation::ConfirmPlaced { shards, checked } => {
            let completed = content::confirm(change, asker, shards)?;
            content::mark_checked(change, asker, checked)?;
            Ok(Done::Confirmed { completed })
        }
        Operation::ReplacePlacement {
            shard,
            acknowledged,
        } => {
            content::replace(change, asker, shard, *acknowledged)?;
            Ok(Done::Replaced)
        }
        Operation::WithdrawPlaced { shards } => {
            let shards = content::withdraw(change, asker, shards)?;
            Ok(Done::Withdrawn { shards })
        }
        Operation::MoveSlices {
            realm,
            objects,
            moves,
        } => {
            let slices = content::move_slices(change, asker, *realm, objects, moves)?;
            Ok(Done::Moved { slices })
        }
        Operation::Forget { objects } => {
            let objects = content::forget(change, asker, objects)?;
            Ok(Done::Forgotten { objects })
        }
        Operation::TakeJob { job, seconds } => job::take(change, asker, *job, *seconds),
        Operation::ReleaseJob { job } => job::release(change, asker, *job),
        Operation::Retain {
            kind,
            open,
            seconds,
        } => content::retain(change, asker, *kind, *open, *seconds),
        Operation::Release { number } => content::release(change, asker, *number),
        Operation::Narrow { number, to } => content::narrow(change, asker, *number, *to),
        Operation::Load { after, rows } => load::load(change, asker, after, rows),
        Operation::FinishLoading { principals } => load::finish(change, asker, principals),
        Operation::ChangeClouds(ordered) => fleet::change_clouds(change, asker, ordered),
        Operation::MoveShards { moves, after } => {
            let shards = content::move_shards(change, asker, moves, *after)?;
            Ok(Done::ShardsMoved { shards })
        }
        Operation::RetireCloud { cloud } => fleet::retire(change, asker, *cloud),
        Operation::Succeed(succeed) => succession::succeed(change, asker, succeed),
        Operation::Testify { cloud, findings } => {
            let findings = content::testify(change, asker, *cloud, findings)?;
            Ok(Done::Testified { findings })
        }
        Operation::BeginEpoch(begin) => epoch::begin(change, asker, begin),
        Operation::SetQuota(set) => quota::set(change, asker, set),
        Operation::KeepTrash(set) => trash::keep_for(change, asker, set),
        Operation::RelieveTrash { realm } => trash::relieve_a_cloud(change, asker, *realm),
        Operation::Claim { inodes } => grave::claim(change, asker, inodes),
        Operation::Lock(request) => locks::lock(change, asker, request),
        Operation::StopWaiting(stop) => locks::stop_waiting(change, asker, stop),
        Operation::EndLocks(end) => locks::end(change, asker, end),
        Operation::ChangePeople(ordered) => people::change_people(change, asker, ordered),
        Operation::ResealNames(names) => namespace::reseal(change, asker, names),
        Operation::ResealSlices(reseal) => {
            let slices = content::reseal_slices(change, asker, reseal)?;
            Ok(Done::SlicesResealed { slices })
        }
        Operation::Share(new) => share::share(change, asker, new),
        Operation::EndShare(asked) => share::end(change, asker, asked),
        Operation::ForgetShare(asked) => share::forget(change, asker, asked),
        Operation::InviteMachine(wish) => invitations::invite(change, asker, wish),
        // A principal's key is no invitation's.
        Operation::AnswerInvitation { .. } => Err(Error::NotFound.into()),
        Operation::EndInvitation { key } => invitations::end(change, asker, key),
    }
}

fn execute_compound(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    compound: &Compound,
) -> Result<Vec<StepDone>, Failed> {
    admit_compound(asker, compound).map_err(|halt| (FailedAt::Operation, halt))?;
    for (index, precondition) in (0_u16..).zip(&compound.preconditions) {
        check_precondition(change, precondition)
            .map_err(|halt| (FailedAt::Precondition(index), halt))?;
    }
    // Content waiting in a gateway is shown with its time of change, which must stay the same.
    let may_wait = |step: &Step| matches!(step, Step::Commit(_) | Step::SetAttributes(_));
    if compound.steps.iter().all(may_wait) {
        change.done_at(compound.time);
    }
    let mut done = Vec::with_capacity(compound.steps.len());
    for (index, step) in (0_u16..).zip(&compound.steps) {
        let result = execute_step(change, asker, compound, step);
        let settled = result.and_then(|done| quota::settle(change).map(|()| done));
        done.push(settled.map_err(|halt| (FailedAt::Step(index), halt))?);
    }
    Ok(done)
}

fn admit_compound(asker: &Asker, compound: &Compound) -> Outcome<()> {
    let limit = PRECONDITIONS_MAX as u32;
    let fits = compound.preconditions.len() <= PRECONDITIONS_MAX;
    require(fits, Error::TooMany { limit })?;
    let limit = STEPS_MAX as u32;
    require(compound.steps.len() <= STEPS_MAX, Error::TooMany { limit })?;
    require(compound.time.is_valid(), Error::Invalid)?;
    Ok(assert_credentials(&asker.rights, &compound.credentials)?)
}

fn check_precondition(change: &Change<'_, '_>, precondition: &Precondition) -> Outcome<()> {
    let entry = |place: &EntryPlace| {
        let parent = change.directory(place.parent)?;
        let found = namespace::lookup(change, &parent, place)?;
        Ok::<_, Halt>(found.map(|found| found.entry.inode))
    };
    match precondition {
        Precondition::Absent(place) => require(entry(place)?.is_none(), Error::Exists),
        Precondition::Entry { place, inode } => match entry(place)? {
            None => Err(Error::NotFound.into()),
            Some(found) => require(found == *inode, Error::Changed),
        },
        Precondition::Unchanged {
            inode,
            version,
            ctime,
        } => {
            let row = change.inode(*inode)?;
            let unchanged = version.is_none_or(|version| version == row.version)
                && ctime.is_none_or(|ctime| ctime == row.ctime);
            require(unchanged, Error::Changed)
        }
    }
}

fn execute_step(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    compound: &Compound,
    step: &Step,
) -> Outcome<StepDone> {
    let who: &Credentials = &compound.credentials;
    let time = compound.time;
    match step {
        Step::Create(step) => namespace::create(change, who, time, step),
        Step::Link { inode, place } => namespace::link(change, who, time, *inode, place),
        Step::Unlink(step) => namespace::unlink(change, asker, who, time, step),
        Step::RemoveDirectory(step) => namespace::remove_directory(change, asker, who, time, step),
        Step::Rename(step) => namespace::rename(change, asker, who, time, step),
        Step::SetAttributes(step) => set_attributes(change, asker, who, time, step),
        Step::Commit(step) => content::commit(change, asker, step),
        Step::Release { inode } => namespace::release(change, asker, *inode),
        Step::SetExtended(step) => extended::set(change, who, step),
        Step::SetAcl(step) => set_acl(change, who, step),
        Step::RemoveExtended(place) => extended::remove(change, who, place),
        Step::Accessed(read) => accessed(change, asker, read),
        Step::Restore(step) => namespace::restore(change, who, time, step),
        Step::Purge(inodes) => trash::purge(change, who, inodes),
        Step::BeginReseal { directory } => namespace::begin_reseal(change, who, *directory),
    }
}
