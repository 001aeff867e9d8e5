//! Calls of several clients that share the realm.
//!
//! An inode that loses its last name while there is another mount waits in the grave for a minute.
//! The model knows neither the time nor the mounts, so an inode without a name may or may not be
//! there: the answer to a call that names it says so.

use super::Model;
use super::news::{MountEvent, Told};
use crate::error::Error;
use crate::identity::InodeId;
use crate::operation::{Compound, Operation};
use crate::query::{Query, Question};
use crate::reply::{Answer, Done, QueryResult, Response};
use crate::row::Mount;
use crate::simulation::workload::mounts::client_of;

impl Model {
    /// A model of a service whose clients share the realm. It has no trash, and judges nothing that
    /// depends on the order of changes which are independent: so a search for an order sees that
    /// two of them lead to one state.
    #[must_use]
    pub fn shared() -> Self {
        Self {
            is_shared: true,
            ..Self::default()
        }
    }

    /// As [`Self::shared`], for a known order: it also judges the news.
    #[must_use]
    pub fn shared_in_order() -> Self {
        Self {
            keeps_events: true,
            ..Self::shared()
        }
    }

    /// The states that an operation of a client may lead to with this answer; `None` is a lost
    /// answer.
    #[must_use]
    pub fn after(&self, client: usize, operation: &[u8], answer: Option<&[u8]>) -> Vec<Self> {
        let response = match answer.map(Response::from_bytes) {
            None => None,
            Some(Ok(response)) => Some(response),
            Some(Err(_)) => return Vec::new(),
        };
        let mut next = self.clone();
        match Operation::from_bytes(operation) {
            Ok(Operation::Compound(compound)) => {
                self.after_compound(client, &compound, response.as_ref())
            }
            Ok(Operation::MountRealm { .. }) => {
                let possible = match response {
                    None => {
                        next.happened(MountEvent::Left { client });
                        true
                    }
                    Some(Response(Ok(Done::Mounted { position, .. }))) => {
                        next.mounts_at(client, position)
                    }
                    Some(Response(Ok(Done::Recalled(mount)))) => {
                        next.is_recalled(&mount);
                        true
                    }
                    Some(Response(Err(refusal))) => {
                        matches!(refusal.error, Error::LimitReached | Error::Mounted { .. })
                    }
                    Some(_) => false,
                };
                possible.then_some(next).into_iter().collect()
            }
            Ok(
                Operation::Lock(_)
                | Operation::StopWaiting(_)
                | Operation::EndLocks(_)
                | Operation::TakeJob { .. },
            ) => {
                // Another judge knows which answers about locks are possible.
                let possible = match response {
                    Some(Response(Ok(Done::JobTaken { now, .. }))) => {
                        let batch = next.batch;
                        next.happened(MountEvent::Clock { now, batch });
                        true
                    }
                    None | Some(Response(Err(_))) => true,
                    Some(Response(Ok(done))) => matches!(
                        done,
                        Done::Locked
                            | Done::Blocked(_)
                            | Done::StoppedWaiting
                            | Done::LocksEnded { .. }
                    ),
                };
                possible.then_some(next).into_iter().collect()
            }
            Ok(Operation::UnmountRealm { .. }) => {
                next.happened(MountEvent::Left { client });
                let possible = match response {
                    None | Some(Response(Ok(Done::Unmounted))) => true,
                    Some(Response(Err(refusal))) => refusal.error == Error::NotMounted,
                    Some(_) => false,
                };
                possible.then_some(next).into_iter().collect()
            }
            _ => next
                .execute(operation, answer)
                .then_some(next)
                .into_iter()
                .collect(),
        }
    }

    fn after_compound(
        &self,
        client: usize,
        compound: &Compound,
        response: Option<&Response>,
    ) -> Vec<Self> {
        let mut exhumed = self.clone();
        if let Some(Response(Err(refusal))) = response
            && let Error::Stale(inode) = refusal.error
        {
            exhumed.buried.remove(&inode);
        }
        exhumed.exhume();
        let mut possible = Vec::new();
        for mut next in [exhumed, self.clone()] {
            let first_new = next.next;
            let predicted = next.compound(compound);
            if response.is_some_and(|response| !next.agrees(&predicted, response)) {
                continue;
            }
            next.bury();
            if let Ok(shown) = &predicted {
                next.changes((client, response.is_some()), compound, shown, first_new);
            }
            if !possible.contains(&next) {
                possible.push(next);
            }
            // An answer leaves no doubt.
            if response.is_some() {
                break;
            }
        }
        possible
    }

    /// Whether the answer to a query of a client is possible.
    #[must_use]
    pub fn answers(&self, client: usize, query: &[u8], answer: &[u8]) -> bool {
        let (Ok(asked), Ok(Answer(found))) = (Query::from_bytes(query), Answer::from_bytes(answer))
        else {
            return false;
        };
        match (&asked.question, found) {
            (Question::News { .. }, Err(error)) => error == Error::NotMounted,
            (
                Question::News { .. },
                Ok(QueryResult::News {
                    recalled: false, ..
                }),
            ) if !self.may_be_unrecalled(client) => false,
            (
                Question::News { after, .. },
                Ok(QueryResult::News {
                    position,
                    gap,
                    inodes,
                    more,
                    ..
                }),
            ) => match after {
                Some(after) if !gap => {
                    let (after, inodes) = (*after, inodes.as_slice());
                    let told = Told {
                        after,
                        position,
                        inodes,
                        more,
                    };
                    self.may_tell(client, &told)
                }
                after => gap && after.is_none() && inodes.is_empty(),
            },
            (Question::Lock { .. }, found) => match found {
                Ok(QueryResult::Lock(_)) => true,
                Ok(_) => false,
                Err(_) => true,
            },
            _ => {
                let exhumed = || {
                    let mut exhumed = self.clone();
                    exhumed.exhume();
                    exhumed
                };
                self.read(query, answer)
                    || (!self.buried.is_empty() && exhumed().read(query, answer))
            }
        }
    }

    /// A mount was recalled, which says whose it is.
    fn is_recalled(&mut self, mount: &Mount) {
        if let Some(client) = client_of(&mount.label) {
            self.happened(MountEvent::Recalled { client });
        }
    }

    /// Puts the inodes in the grave back among the others, where they stay without a name.
    fn exhume(&mut self) {
        self.keeps_nameless = true;
        self.inodes.append(&mut self.buried);
    }

    /// Takes inodes without a name away.
    fn bury(&mut self) {
        if !self.keeps_nameless {
            return;
        }
        self.keeps_nameless = false;
        let nameless = self.inodes.iter().filter(|(_, inode)| inode.links == 0);
        let nameless: Vec<InodeId> = nameless.map(|(inode, _)| *inode).collect();
        for inode in nameless {
            if let Some(row) = self.inodes.remove(&inode) {
                self.buried.insert(inode, row);
            }
        }
    }
}
