//! Capsules that are ordered, end and expire, while a collector forgets what no file needs.
//!
//! Some manifests name objects that are not needed or do not exist, some ends are missing, over or
//! too far. Allocations are closed now and then, so that there is something to forget.

use super::shards::Shards;
use super::{Call, Chance};
use crate::attributes::Credentials;
use crate::identity::{InodeId, ShareId};
use crate::limits::CAPSULE_SECONDS_MAX;
use crate::operation::{ChangeShare, NewShare, NewShareWith, Operation};
use crate::query::{Query, Question, SharesOf};
use crate::reply::{Done, Response};
use crate::row::Job;
use crate::simulation::model::capsule_place;
use quorumfs_bft::identity::{Nanos, Time};

/// How long most capsules last at most, of those that do not last too long.
const LASTING: u64 = 100_000_000_000;

/// What is known of capsules.
#[derive(Clone, Debug, Default)]
pub(super) struct Capsules {
    /// The latest agreed time that an answer told.
    now: Time,
    last: u64,
}

impl Capsules {
    /// The next call.
    pub(super) fn next(&self, shards: &mut Shards, chance: Chance<'_>) -> Call {
        let ending = ChangeShare {
            credentials: Credentials::root(),
            id: ShareId(self.last.saturating_sub(chance(4))),
        };
        let drawn = chance(14);
        let operation = match drawn {
            _ if self.now == Time(0) => tell_the_time(),
            0 => tell_the_time(),
            1..4 => self.ordered(shards, chance),
            4 => Operation::EndShare(ending),
            5 => Operation::ForgetShare(ending),
            6..9 => {
                let objects = (0..=chance(16)).map(|_| shards.any(chance)).collect();
                Operation::Forget { objects }
            }
            9 => match shards.close() {
                Some(allocation) => Operation::CloseAllocation { allocation },
                None => tell_the_time(),
            },
            _ => {
                let question = match drawn {
                    10 => Question::Shares {
                        of: SharesOf::All,
                        after: None,
                        limit: 64,
                    },
                    _ => Question::Unreferenced {
                        after: None,
                        limit: 256,
                    },
                };
                let credentials = Credentials::root();
                let query = Query {
                    credentials,
                    question,
                };
                return Call::Query(query.to_bytes());
            }
        };
        Call::Execute(operation.to_bytes())
    }

    fn ordered(&self, shards: &Shards, chance: Chance<'_>) -> Operation {
        let objects = match chance(20) {
            0 => 0,
            1 => 9,
            2..6 => 2,
            _ => 1,
        };
        let manifest = (0..objects).map(|_| shards.newest(chance)).collect();
        let expires = match chance(16) {
            0 => None,
            1 => {
                let longest = Nanos::from_secs(CAPSULE_SECONDS_MAX);
                Some(self.now.plus(longest).plus(Nanos(LASTING)))
            }
            2 => Some(self.now),
            _ => Some(self.now.plus(Nanos(chance(LASTING)))),
        };
        Operation::Share(NewShare {
            credentials: Credentials::root(),
            inode: InodeId::ROOT,
            with: NewShareWith::Capsule { manifest },
            expires,
            place: capsule_place(),
        })
    }

    /// Learns from a reply.
    pub(super) fn learn(&mut self, answer: &[u8]) {
        match Response::from_bytes(answer) {
            Ok(Response(Ok(Done::JobTaken { now, .. }))) => self.now = now,
            Ok(Response(Ok(Done::Shared { id }))) => self.last = id.0,
            _ => {}
        }
    }
}

/// Its answer has the agreed time.
fn tell_the_time() -> Operation {
    Operation::TakeJob {
        job: Job::Collection,
        seconds: 1,
    }
}
