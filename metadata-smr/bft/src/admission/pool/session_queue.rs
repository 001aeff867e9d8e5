//! The pending requests of one session.
//!
//! Each lane has a few requests, sorted by number; a bit for each lane says whether it has one to
//! choose. Lanes are served in turn, as sessions are: the next one is the lane after the one that
//! was served last, so that a lane with a small number that is never empty does not delay the
//! others when a batch is full. A *proposed* request is not chosen again, unless the view that it
//! was proposed in ends.

use super::queue::Handle;
use crate::identity::{ConnectionId, Digest, Lane, ReplicaId, RequestNumber};
use crate::service::Credit;
use crate::wire::limits::{LANE_AHEAD_MAX, LANES_MAX};
use std::collections::BTreeMap;

/// One bit for each lane.
type Lanes = u64;
const _: () = assert!(LANES_MAX as u32 <= Lanes::BITS, "every lane has a bit");

/// A request that a peer has forwarded and that has no other place.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForwardedRequest {
    lane: Lane,
    number: RequestNumber,
    pub(super) digest: Digest,
    proposed: bool,
}

pub(super) const fn forwarded_request(
    lane: Lane,
    number: RequestNumber,
    digest: Digest,
) -> ForwardedRequest {
    ForwardedRequest {
        lane,
        number,
        digest,
        proposed: false,
    }
}

/// A request of a lane.
#[derive(Clone, Copy, Debug, Default)]
struct LaneRequest {
    number: RequestNumber,
    handle: Handle,
    length: u32,
    proposed: bool,
}

/// The requests of a lane, by number. They are few, so they are stored in the lane itself.
#[derive(Clone, Copy, Debug, Default)]
struct LaneQueue {
    held: [LaneRequest; LANE_AHEAD_MAX as usize],
    count: usize,
}

impl LaneQueue {
    fn held(&self) -> &[LaneRequest] {
        self.held.get(..self.count).unwrap_or_default()
    }

    fn requests_mut(&mut self) -> &mut [LaneRequest] {
        self.held.get_mut(..self.count).unwrap_or_default()
    }

    /// Inserts a request; the caller has checked that there is space.
    fn insert(&mut self, one: LaneRequest) {
        let at = self.held().partition_point(|it| it.number < one.number);
        if let Some(rest) = self.held.get_mut(at..=self.count) {
            rest.rotate_right(1);
            if let Some(place) = rest.first_mut() {
                *place = one;
            }
            self.count += 1;
        }
    }

    fn remove(&mut self, at: usize) -> Option<LaneRequest> {
        let rest = self.held.get_mut(at..self.count)?;
        let gone = *rest.first()?;
        rest.rotate_left(1);
        self.count -= 1;
        Some(gone)
    }
}

/// A choice for a batch.
#[derive(Clone, Copy, Debug)]
pub(super) enum Choice {
    /// The next request of a lane.
    Lane(Lane, Handle),
    /// Another request.
    Other(Digest),
}

/// The pending requests of one session.
#[derive(Clone, Debug)]
pub(super) struct SessionQueue {
    /// The requests that peers have forwarded and that have no other place, one for each peer.
    pub(super) forwarded: BTreeMap<ReplicaId, ForwardedRequest>,
    pub(super) credit: Credit,
    pub(super) close: Option<Digest>,
    /// Whether closing has been proposed.
    pub(super) closing: bool,
    pub(super) connections: Vec<ConnectionId>,
    /// Its place among the sessions that have pending requests.
    pub(super) place: Option<u64>,
    bytes: usize,
    /// The requests of each lane, by number.
    lanes: Vec<LaneQueue>,
    /// The lanes that have a request to choose.
    ready: Lanes,
    /// The lane that was served last.
    turn: Option<Lane>,
}

const fn bit(lane: Lane) -> Lanes {
    if (lane.0 as u32) < Lanes::BITS {
        1 << lane.0
    } else {
        0
    }
}

impl SessionQueue {
    pub(super) fn new(credit: Credit, connections: Vec<ConnectionId>) -> Self {
        Self {
            forwarded: BTreeMap::new(),
            credit,
            close: None,
            closing: false,
            connections,
            place: None,
            bytes: 0,
            lanes: vec![LaneQueue::default(); usize::from(credit.lanes.min(LANES_MAX))],
            ready: 0,
            turn: None,
        }
    }

    /// Whether there is a request to choose.
    pub(super) fn has_work(&self) -> bool {
        self.ready != 0 || self.may_close() || self.forwarded.values().any(|it| !it.proposed)
    }

    const fn may_close(&self) -> bool {
        self.close.is_some() && !self.closing
    }

    /// All requests pending in its lanes.
    pub(super) fn handles(&self) -> impl Iterator<Item = Handle> {
        let held = self.lanes.iter().flat_map(LaneQueue::held);
        held.map(|held| held.handle)
    }

    /// All other pending requests.
    pub(super) fn others(&self) -> impl Iterator<Item = Digest> {
        let forwarded = self.forwarded.values().map(|it| it.digest);
        self.close.into_iter().chain(forwarded)
    }

    fn lane(&self, lane: Lane) -> &[LaneRequest] {
        self.lanes
            .get(usize::from(lane.0))
            .map_or(&[], LaneQueue::held)
    }

    /// The request pending under this number.
    pub(super) fn get(&self, lane: Lane, number: RequestNumber) -> Option<Handle> {
        let mut held = self.lane(lane).iter();
        held.find(|it| it.number == number).map(|it| it.handle)
    }

    /// Makes space within the session's credit for a request of `length` bytes whose number is not
    /// there. Requests of its lane with higher numbers that have not been proposed give way to it,
    /// since they cannot run before it: these are returned. `None` if there is not enough space
    /// even so.
    pub(super) fn make_room(
        &mut self,
        lane: Lane,
        number: RequestNumber,
        length: usize,
    ) -> Option<Vec<Handle>> {
        let credit = self.credit.bytes as usize;
        let queue = self.lanes.get_mut(usize::from(lane.0))?;
        let (mut count, mut bytes) = (queue.count, self.bytes.saturating_add(length));
        let mut give_way = Vec::new();
        for later in queue.held().iter().rev() {
            if ((count as u64) < LANE_AHEAD_MAX && bytes <= credit) || later.number < number {
                break;
            }
            if !later.proposed {
                count -= 1;
                bytes = bytes.saturating_sub(later.length as usize);
                give_way.push(later.handle);
            }
        }
        if count as u64 >= LANE_AHEAD_MAX || bytes > credit {
            return None;
        }
        if !give_way.is_empty() {
            for gone in &give_way {
                let at = queue.held().iter().position(|it| it.handle == *gone);
                at.and_then(|at| queue.remove(at));
            }
            self.bytes = bytes.saturating_sub(length);
            self.note_ready(lane);
        }
        Some(give_way)
    }

    /// Inserts a request that space was made for.
    pub(super) fn insert(
        &mut self,
        lane: Lane,
        number: RequestNumber,
        (handle, length): (Handle, usize),
        proposed: bool,
    ) {
        if let Some(queue) = self.lanes.get_mut(usize::from(lane.0)) {
            queue.insert(LaneRequest {
                number,
                handle,
                length: u32::try_from(length).unwrap_or(u32::MAX),
                proposed,
            });
            self.bytes = self.bytes.saturating_add(length);
            self.note_ready(lane);
        }
    }

    fn note_ready(&mut self, lane: Lane) {
        match self.lane(lane).iter().any(|it| !it.proposed) {
            true => self.ready |= bit(lane),
            false => self.ready &= !bit(lane),
        }
    }

    /// Removes a request.
    pub(super) fn remove(&mut self, lane: Lane, number: RequestNumber) -> Option<Handle> {
        let queue = self.lanes.get_mut(usize::from(lane.0))?;
        let at = queue.held().iter().position(|it| it.number == number)?;
        let gone = queue.remove(at)?;
        self.bytes = self.bytes.saturating_sub(gone.length as usize);
        self.note_ready(lane);
        Some(gone.handle)
    }

    /// Marks a request of a lane as proposed.
    pub(super) fn mark_proposed(&mut self, lane: Lane, handle: Handle) {
        let queue = self.lanes.get_mut(usize::from(lane.0));
        let mut held = queue.into_iter().flat_map(LaneQueue::requests_mut);
        let held = held.find(|it| it.handle == handle);
        if let Some(held) = held {
            held.proposed = true;
            self.note_ready(lane);
        }
    }

    /// Marks a forwarded request as proposed.
    pub(super) fn mark_forwarded_proposed(&mut self, digest: &Digest) {
        for request in self
            .forwarded
            .values_mut()
            .filter(|it| it.digest == *digest)
        {
            request.proposed = true;
        }
    }

    /// Allows proposed requests to be chosen again.
    pub(super) fn release_proposed(&mut self) {
        self.closing = false;
        self.forwarded
            .values_mut()
            .for_each(|it| it.proposed = false);
        for (queue, lane) in self.lanes.iter_mut().zip(0..) {
            queue
                .requests_mut()
                .iter_mut()
                .for_each(|it| it.proposed = false);
            if queue.count > 0 {
                self.ready |= bit(Lane(lane));
            }
        }
    }

    /// Removes all requests of a lane up to this number and calls `gone` for each.
    pub(super) fn remove_up_to(
        &mut self,
        lane: Lane,
        number: RequestNumber,
        mut gone: impl FnMut(Handle),
    ) {
        if let Some(queue) = self.lanes.get_mut(usize::from(lane.0)) {
            while queue.held().first().is_some_and(|it| it.number <= number)
                && let Some(over) = queue.remove(0)
            {
                self.bytes = self.bytes.saturating_sub(over.length as usize);
                gone(over.handle);
            }
            self.note_ready(lane);
        }
    }

    /// Removes the forwarded requests of a lane up to this number.
    pub(super) fn remove_forwarded_up_to(
        &mut self,
        lane: Lane,
        number: RequestNumber,
    ) -> Vec<Digest> {
        let mut removed = Vec::new();
        self.forwarded.retain(|_, it| {
            let over = it.lane == lane && it.number <= number;
            removed.extend(over.then_some(it.digest));
            !over
        });
        removed
    }

    /// The request to choose next for a batch that has `chosen` of this session already: of each
    /// lane the smallest number, once. Closing comes when no other request is pending.
    pub(super) fn next(&self, chosen: usize) -> Option<Choice> {
        let request = self
            .forwarded
            .values()
            .find(|it| !it.proposed && chosen == 0);
        if let Some(request) = request {
            return Some(Choice::Other(request.digest));
        }
        if self.ready == 0 {
            let close = self.close.filter(|_| chosen == 0 && self.may_close());
            return close.map(Choice::Other);
        }
        if chosen >= self.ready.count_ones() as usize {
            return None;
        }
        let passed = self.turn.map_or(0, |turn| bit(turn) | (bit(turn) - 1));
        let later = match self.ready & !passed {
            0 => self.ready,
            later => later,
        };
        let lane = Lane(u16::try_from(later.trailing_zeros()).ok()?);
        let held = self.lane(lane).iter().find(|it| !it.proposed)?;
        Some(Choice::Lane(lane, held.handle))
    }

    /// Notes that a request of this lane was chosen.
    pub(super) const fn served(&mut self, lane: Lane) {
        self.turn = Some(lane);
    }
}
