//! The requests of the batches that a slot knows.
//!
//! Usually a slot sees one proposal, and all its requests wait here when it comes: then they are in
//! a *list* in the proposal's order, looked up once and passed on as a whole. Where some are
//! missing, or views have failed and several batches are known, the requests are in a map by
//! digest, and those of a batch are looked up one by one.
//!
//! What always holds: a list belongs to the batch whose requests it has, each and in order, or to
//! none yet; what is in the list is not in the map.

use crate::identity::Digest;
use crate::wire::Envelope;
use crate::wire::message::Batch;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Requests of batches.
#[derive(Clone, Debug, Default)]
pub struct Bodies {
    list: Vec<Arc<Envelope>>,
    /// The batch that the list belongs to.
    batch: Option<Digest>,
    /// Whether the whole list waited here, and was set aside with its proposal.
    waited: bool,
    others: BTreeMap<Digest, Arc<Envelope>>,
    /// The total length of all bodies.
    bytes: usize,
}

fn same(list: &[Arc<Envelope>], batch: &Batch) -> bool {
    let digests = list.iter().map(|body| body.digest_ref());
    digests.eq(&batch.requests)
}

impl Bodies {
    /// The total length of all bodies in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.list.len() + self.others.len()
    }

    /// Whether all bodies of the proposal waited here when it was accepted.
    #[must_use]
    pub const fn waited(&self) -> bool {
        self.waited
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, digest: &Digest) -> Option<&Arc<Envelope>> {
        let listed = || self.list.iter().find(|it| it.digest_ref() == digest);
        self.others.get(digest).or_else(listed)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Envelope>> {
        self.list.iter().chain(self.others.values())
    }

    /// Keeps a body.
    pub fn keep(&mut self, body: &Arc<Envelope>) {
        let listed = self
            .list
            .iter()
            .any(|it| it.digest_ref() == body.digest_ref());
        if !listed {
            let before = self.others.insert(body.digest(), Arc::clone(body));
            self.bytes += before.map_or_else(|| body.frame().len(), |_| 0);
        }
    }

    /// Keeps the bodies of a batch that is about to be proposed. They waited here.
    pub fn keep_list(&mut self, bodies: Vec<Arc<Envelope>>) {
        self.unlist();
        self.bytes += bodies.iter().map(|body| body.frame().len()).sum::<usize>();
        self.list = bodies;
        self.waited = true;
    }

    /// Moves the list into the map.
    fn unlist(&mut self) {
        self.batch = None;
        self.waited = false;
        for body in std::mem::take(&mut self.list) {
            let length = body.frame().len();
            if self.others.insert(body.digest(), body).is_some() {
                self.bytes -= length;
            }
        }
    }

    /// This batch is proposed. If the list is another batch's, it is moved into the map.
    pub fn belong_to(&mut self, digest: &Digest, batch: &Batch) {
        if self.batch.as_ref() == Some(digest) {
            return;
        }
        match same(&self.list, batch) {
            true => self.batch = Some(*digest),
            false => self.unlist(),
        }
    }

    /// Finds the bodies of a batch by `find` or here. Those found in neither place are `missing`.
    pub(super) fn gather<'a>(
        &mut self,
        batch: &Batch,
        mut find: impl FnMut(&Digest) -> Option<&'a Arc<Envelope>>,
        missing: &mut BTreeSet<Digest>,
    ) {
        self.unlist();
        let known = !self.others.is_empty();
        let mut list = Vec::with_capacity(batch.requests.len());
        for digest in &batch.requests {
            match find(digest) {
                Some(body) => list.push(Arc::clone(body)),
                None if known && self.others.contains_key(digest) => {}
                None => {
                    missing.insert(*digest);
                }
            }
        }
        if !known && list.len() == batch.requests.len() {
            self.keep_list(list);
        } else {
            list.iter().for_each(|body| self.keep(body));
        }
    }

    /// The bodies of `batch`, which has this digest, in order, if all are here.
    #[must_use]
    pub fn of(&self, digest: &Digest, batch: &Batch) -> Option<Vec<Arc<Envelope>>> {
        if self.batch.as_ref() == Some(digest) {
            return Some(self.list.clone());
        }
        let requests = batch.requests.iter();
        requests.map(|digest| self.get(digest).cloned()).collect()
    }

    /// The same; bodies that only this batch needs are removed.
    pub fn take(&mut self, digest: &Digest, batch: &Batch) -> Option<Vec<Arc<Envelope>>> {
        if self.batch.as_ref() != Some(digest) {
            return self.of(digest, batch);
        }
        let list = std::mem::take(&mut self.list);
        self.bytes -= list.iter().map(|body| body.frame().len()).sum::<usize>();
        self.batch = None;
        self.waited = false;
        Some(list)
    }

    /// The bodies of `batch` that are here, in order.
    pub fn those_of<'a>(
        &'a self,
        digest: &Digest,
        batch: &'a Batch,
    ) -> impl Iterator<Item = &'a Arc<Envelope>> {
        let (list, requests): (&[_], &[_]) = match self.batch.as_ref() == Some(digest) {
            true => (&self.list, &[]),
            false => (&[], &batch.requests),
        };
        list.iter()
            .chain(requests.iter().filter_map(|it| self.get(it)))
    }

    /// Forgets bodies that are in none of these batches.
    pub(super) fn keep_only<'a>(&mut self, batches: impl Iterator<Item = &'a Batch>) {
        self.unlist();
        if self.others.is_empty() {
            return;
        }
        let keep: BTreeSet<&Digest> = batches.flat_map(|it| &it.requests).collect();
        self.others.retain(|digest, _| keep.contains(digest));
        self.bytes = self.others.values().map(|body| body.frame().len()).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Sequence, Time};
    use crate::wire::message::Message;
    use crate::wire::samples::body;

    fn batch(bodies: &[&Arc<Envelope>]) -> Batch {
        Batch {
            sequence: Sequence(1),
            time: Time(1),
            previous: Digest::default(),
            behaviour_version: 1,
            tick: false,
            requests: bodies.iter().map(|body| body.digest()).collect(),
        }
    }

    fn sessions(bodies: &[Arc<Envelope>]) -> Vec<u64> {
        let session = |body: &Arc<Envelope>| match body.message() {
            Message::CloseSession(close) => close.session.0,
            _ => 0,
        };
        bodies.iter().map(session).collect()
    }

    const NAME: Digest = Digest([1; 32]);
    const OTHER: Digest = Digest([2; 32]);

    #[test]
    fn bodies_that_all_wait_are_listed_and_others_are_found_once_they_come() {
        let (one, two, three) = (body(1), body(2), body(3));
        let whole = batch(&[&two, &one]);
        let mut missing = BTreeSet::new();
        let mut bodies = Bodies::default();
        let waiting = [&one, &two];
        let find = |digest: &Digest| waiting.into_iter().find(|it| it.digest_ref() == digest);
        bodies.gather(&whole, find, &mut missing);
        bodies.belong_to(&NAME, &whole);
        assert!(missing.is_empty() && bodies.waited() && bodies.count() == 2);
        assert_eq!(
            sessions(&bodies.of(&NAME, &whole).expect("all are here")),
            [2, 1]
        );

        let wider = batch(&[&three, &one]);
        bodies.gather(&wider, find, &mut missing);
        bodies.belong_to(&OTHER, &wider);
        assert!(missing.contains(three.digest_ref()) && missing.len() == 1);
        assert!(bodies.of(&OTHER, &wider).is_none() && !bodies.waited());
        assert_eq!(bodies.those_of(&OTHER, &wider).count(), 1);
        bodies.keep(&three);
        assert_eq!(
            sessions(&bodies.of(&OTHER, &wider).expect("it came")),
            [3, 1]
        );
        assert_eq!(
            sessions(&bodies.of(&NAME, &whole).expect("they stay")),
            [2, 1]
        );
        let length = one.frame().len();
        assert_eq!((bodies.count(), bodies.bytes()), (3, 3 * length));
        bodies.keep_only([&wider].into_iter());
        assert_eq!((bodies.count(), bodies.bytes()), (2, 2 * length));
        assert!(bodies.of(&NAME, &whole).is_none());
    }

    #[test]
    fn a_list_of_another_batch_than_the_proposed_one_is_no_list() {
        let (one, two) = (body(1), body(2));
        let mut bodies = Bodies::default();
        bodies.keep_list(vec![Arc::clone(&one), Arc::clone(&two)]);
        let other = batch(&[&two]);
        bodies.belong_to(&OTHER, &other);
        assert_eq!(
            sessions(&bodies.of(&OTHER, &other).expect("it is here")),
            [2]
        );
        assert!(bodies.get(one.digest_ref()).is_some() && !bodies.waited());
    }
}
