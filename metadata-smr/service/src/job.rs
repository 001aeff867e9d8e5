//! Jobs: background work that one process of the volume does at a time.
//!
//! A session takes a job for a bounded time, and takes it again before the time is over. A job is
//! free once its holder's time is over, the holder gave it back, or its session has ended. Jobs
//! only save work: what is ordered for them is safe whichever and however many sessions do it. So
//! they run on the agreed time, which goes on in a cluster without work, and not on the lease
//! clock.

use crate::change::{Asker, Change};
use crate::content;
use crate::error::Error;
use crate::limits::JOB_SECONDS_MAX;
use crate::reply::Done;
use crate::row::{Job, JobHolder, key};
use crate::rows::{Outcome, Rows, decode, require};
use quorumfs_bft::identity::{Nanos, SessionId};

/// The number of kinds of jobs, at most.
const JOBS_MAX: usize = 256;

/// Takes a job, or keeps it.
pub(crate) fn take(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    job: Job,
    seconds: u32,
) -> Outcome<Done> {
    require(asker.rights.reconcile, Error::NoRight)?;
    require((1..=JOB_SECONDS_MAX).contains(&seconds), Error::Invalid)?;
    let session = asker.caller.session;
    let now = change.time();
    if let Some(holder) = change.find::<JobHolder>(&key::job(job))? {
        let is_free = holder.session == session || holder.until <= now;
        let until = holder.until;
        let by = holder.session;
        require(is_free, Error::JobTaken { by, until })?;
    }
    let until = now.plus(Nanos::from_secs(u64::from(seconds)));
    change.put(key::job(job), &JobHolder { session, until })?;
    if job == Job::Collection {
        content::release_expired(change)?;
    }
    Ok(Done::JobTaken { until, now })
}

/// Gives a job back; no effect if another session has it.
pub(crate) fn release(change: &mut Change<'_, '_>, asker: &Asker, job: Job) -> Outcome<Done> {
    let holder = change.find::<JobHolder>(&key::job(job))?;
    if holder.is_some_and(|holder| holder.session == asker.caller.session) {
        change.delete(key::job(job))?;
    }
    Ok(Done::JobReleased)
}

/// Gives back all jobs of a session that ends.
pub(crate) fn release_all(change: &mut Change<'_, '_>, session: SessionId) -> Outcome<()> {
    let prefix = key::jobs();
    for (row_key, bytes) in change.scan(&prefix, &prefix, JOBS_MAX)? {
        let holder: JobHolder = decode(&row_key, &bytes)?;
        if holder.session == session {
            change.delete(row_key.to_vec())?;
        }
    }
    Ok(())
}
