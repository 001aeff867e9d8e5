//! What waits of one session.
//!
//! Requests lie by lane and number. Lanes are served in turn, as sessions are: the next one is the
//! lane after the one that was served last, so that a lane with a small number that is never empty
//! does not keep the others waiting when a batch is full. What has been proposed is set aside and
//! not chosen again, unless the view that it was proposed in ends.

use crate::identity::{ConnectionId, Digest, Lane, ReplicaId, RequestNumber};
use crate::service::Credit;
use crate::wire::limits::LANE_AHEAD_MAX;
use std::collections::BTreeMap;
use std::ops::Bound;

/// A request that a peer has forwarded and that has no other place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shelved {
    lane: Lane,
    number: RequestNumber,
    pub(super) digest: Digest,
    flies: bool,
}

pub(super) const fn shelved_of(lane: Lane, number: RequestNumber, digest: Digest) -> Shelved {
    Shelved {
        lane,
        number,
        digest,
        flies: false,
    }
}

/// What waits of one session.
#[derive(Clone, Debug)]
pub(super) struct SessionQueue {
    /// What peers have forwarded in vain, one request each.
    pub(super) shelf: BTreeMap<ReplicaId, Shelved>,
    pub(super) credit: Credit,
    pub(super) close: Option<Digest>,
    /// Whether closing has been proposed.
    pub(super) closing: bool,
    pub(super) connections: Vec<ConnectionId>,
    /// Its place among the sessions for which something waits.
    pub(super) place: Option<u64>,
    bytes: usize,
    /// What may be chosen; only lanes for which there is something.
    lanes: BTreeMap<Lane, BTreeMap<RequestNumber, (Digest, usize)>>,
    /// What has been proposed.
    flying: BTreeMap<(Lane, RequestNumber), (Digest, usize)>,
    /// The lane that was served last.
    turn: Option<Lane>,
}

impl SessionQueue {
    pub(super) const fn new(credit: Credit, connections: Vec<ConnectionId>) -> Self {
        Self {
            shelf: BTreeMap::new(),
            credit,
            close: None,
            closing: false,
            connections,
            place: None,
            bytes: 0,
            lanes: BTreeMap::new(),
            flying: BTreeMap::new(),
            turn: None,
        }
    }

    /// Whether there is something to choose.
    pub(super) fn has_work(&self) -> bool {
        !self.lanes.is_empty() || self.may_close() || self.shelf.values().any(|it| !it.flies)
    }

    const fn may_close(&self) -> bool {
        self.close.is_some() && !self.closing
    }

    /// All that waits.
    pub(super) fn digests(&self) -> impl Iterator<Item = &Digest> {
        let requests = self.lanes.values().flat_map(BTreeMap::values);
        let all = requests.chain(self.flying.values());
        let all = all.map(|(digest, _)| digest).chain(&self.close);
        all.chain(self.shelf.values().map(|it| &it.digest))
    }

    /// The request that waits under this number.
    pub(super) fn get(&self, lane: Lane, number: RequestNumber) -> Option<Digest> {
        let waits = self.lanes.get(&lane).and_then(|it| it.get(&number));
        let (digest, _) = waits.or_else(|| self.flying.get(&(lane, number)))?;
        Some(*digest)
    }

    /// Takes a request of `length` bytes in if there is room within the session's credit. Requests
    /// of its lane with higher numbers give way to it, since they cannot run before it has: these
    /// are returned. `None` if there is no room even so.
    pub(super) fn insert(
        &mut self,
        lane: Lane,
        number: RequestNumber,
        digest: Digest,
        length: usize,
    ) -> Option<Vec<Digest>> {
        let credit = self.credit.bytes as usize;
        let mut bytes = self.bytes.saturating_add(length);
        let mut give_way = Vec::new();
        let waiting = self.lanes.get(&lane);
        let flying = (lane, RequestNumber(0))..=(lane, RequestNumber(u64::MAX));
        let mut count = waiting.map_or(0, BTreeMap::len) + self.flying.range(flying).count();
        let later = waiting.into_iter().flat_map(|it| it.range(number..).rev());
        for (later, (_, length)) in later {
            if (count as u64) < LANE_AHEAD_MAX && bytes <= credit {
                break;
            }
            count -= 1;
            bytes = bytes.saturating_sub(*length);
            give_way.push(*later);
        }
        if count as u64 >= LANE_AHEAD_MAX {
            return None;
        }
        if bytes > credit {
            return None;
        }
        let gone = give_way
            .into_iter()
            .filter_map(|later| self.remove(lane, later));
        let gone = gone.collect();
        let waiting = self.lanes.entry(lane).or_default();
        waiting.insert(number, (digest, length));
        self.bytes = self.bytes.saturating_add(length);
        Some(gone)
    }

    /// Takes a request out.
    pub(super) fn remove(&mut self, lane: Lane, number: RequestNumber) -> Option<Digest> {
        let waits = self.take(lane, number);
        let (digest, length) = waits.or_else(|| self.flying.remove(&(lane, number)))?;
        self.bytes = self.bytes.saturating_sub(length);
        Some(digest)
    }

    fn take(&mut self, lane: Lane, number: RequestNumber) -> Option<(Digest, usize)> {
        let waiting = self.lanes.get_mut(&lane)?;
        let taken = waiting.remove(&number)?;
        if waiting.is_empty() {
            self.lanes.remove(&lane);
        }
        Some(taken)
    }

    /// It has been proposed.
    pub(super) fn fly(&mut self, lane: Lane, number: RequestNumber, digest: &Digest) {
        for shelved in self.shelf.values_mut().filter(|it| it.digest == *digest) {
            shelved.flies = true;
        }
        if self.get(lane, number).as_ref() != Some(digest) {
            return;
        }
        if let Some(taken) = self.take(lane, number) {
            self.flying.insert((lane, number), taken);
        }
    }

    /// What was proposed may be chosen again.
    pub(super) fn land(&mut self) {
        self.closing = false;
        self.shelf.values_mut().for_each(|it| it.flies = false);
        for ((lane, number), taken) in std::mem::take(&mut self.flying) {
            self.lanes.entry(lane).or_default().insert(number, taken);
        }
    }

    /// Takes out all requests of a lane up to this number.
    pub(super) fn remove_up_to(&mut self, lane: Lane, number: RequestNumber) -> Vec<Digest> {
        let waiting = self.lanes.get(&lane).into_iter();
        let waiting = waiting.flat_map(|waiting| waiting.range(..=number).map(|(it, _)| *it));
        let flying = (lane, RequestNumber(0))..=(lane, number);
        let flying = self.flying.range(flying).map(|((_, it), _)| *it);
        let done: Vec<RequestNumber> = waiting.chain(flying).collect();
        let removed = done
            .into_iter()
            .filter_map(|number| self.remove(lane, number));
        let mut removed: Vec<Digest> = removed.collect();
        self.shelf.retain(|_, it| {
            let over = it.lane == lane && it.number <= number;
            removed.extend(over.then_some(it.digest));
            !over
        });
        removed
    }

    /// The request to choose next for a batch that has `chosen` of this session already: of each
    /// lane the smallest number, once. Closing comes when nothing else waits.
    pub(super) fn next(&self, chosen: usize) -> Option<(Option<Lane>, Digest)> {
        let shelved = self.shelf.values().find(|it| !it.flies && chosen == 0);
        if let Some(shelved) = shelved {
            return Some((None, shelved.digest));
        }
        if self.lanes.is_empty() {
            let close = self.close.filter(|_| chosen == 0 && self.may_close());
            return close.map(|digest| (None, digest));
        }
        if chosen >= self.lanes.len() {
            return None;
        }
        let after = self.turn.map_or(Bound::Unbounded, Bound::Excluded);
        let mut later = self.lanes.range((after, Bound::Unbounded));
        let (lane, waiting) = later.next().or_else(|| self.lanes.iter().next())?;
        let (digest, _) = waiting.values().next()?;
        Some((Some(*lane), *digest))
    }

    /// A request of this lane was chosen.
    pub(super) fn served(&mut self, lane: Option<Lane>) {
        self.turn = lane.or(self.turn);
    }
}
