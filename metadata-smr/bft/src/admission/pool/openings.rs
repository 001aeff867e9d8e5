//! Pending attempts to open a session.
//!
//! Any process can make a key pair and sign an attempt with it, so attempts that cost nothing must
//! not obstruct the others. Principals that the service would accept at present are *welcome*: they
//! share a capacity, with a few places for each, and are served in turn, each principal's attempts
//! by arrival. Neither a principal nor a session key that its owner chose decides the order: a
//! principal's place is counted from when it began to wait or was last served.
//!
//! All others are *strangers*. They have a small capacity of their own and enter the order one at a
//! time, at a fixed pace, because only the order can refuse them such that r + 1 replicas say the
//! same. A leader does not have to order them: it is not suspected for letting them wait.

use crate::identity::{ConnectionId, Digest, Monotonic, PublicKey};
use crate::wire::limits::{
    OPEN_CONNECTIONS_MAX, OPENS_PER_PRINCIPAL_MAX, OPENS_STRANGERS_MAX, OPENS_WAITING_MAX,
    STRANGER_INTERVAL,
};
use std::collections::BTreeMap;

/// A principal and the key of one of its sessions.
pub(super) type Name = (PublicKey, PublicKey);

#[derive(Clone, Debug)]
struct Opening {
    digest: Digest,
    connections: Vec<ConnectionId>,
    arrival: u64,
    welcome: bool,
    /// Whether it has been proposed.
    proposed: bool,
}

/// The result of offering an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It is pending now. Contains the attempt that gave way to it, if one did.
    New(Option<Digest>),
    /// It was pending as a stranger's and is welcome now.
    Welcomed,
    Known,
    Busy,
    Conflict,
}

/// Attempts to open a session.
#[derive(Clone, Debug, Default)]
pub(super) struct Openings {
    waiting: BTreeMap<Name, Opening>,
    /// The places of principals that have a welcome attempt pending; the smallest is next.
    places: BTreeMap<PublicKey, u64>,
    count: u64,
    /// When a stranger last entered the order.
    stranger: Option<Monotonic>,
}

impl Openings {
    /// Accepts an attempt, if there is capacity.
    pub(super) fn offer(
        &mut self,
        name: Name,
        digest: Digest,
        from: Option<ConnectionId>,
        welcome: bool,
    ) -> Taken {
        let Some(opening) = self.waiting.get_mut(&name) else {
            let gone = match self.make_room(&name.0, welcome) {
                Ok(gone) => gone,
                Err(Full) => return Taken::Busy,
            };
            let opening = Opening {
                digest,
                connections: from.into_iter().collect(),
                arrival: self.next(),
                welcome,
                proposed: false,
            };
            self.waiting.insert(name, opening);
            self.give_place(name.0, welcome);
            return Taken::New(gone);
        };
        if let Some(from) = from {
            super::remember(&mut opening.connections, from, OPEN_CONNECTIONS_MAX);
        }
        if opening.digest != digest {
            return Taken::Conflict;
        }
        let changes = welcome && !opening.welcome;
        if changes && matches!(self.make_room(&name.0, true), Ok(None)) {
            if let Some(opening) = self.waiting.get_mut(&name) {
                opening.welcome = true;
            }
            self.give_place(name.0, true);
            return Taken::Welcomed;
        }
        Taken::Known
    }

    fn next(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    fn give_place(&mut self, principal: PublicKey, welcome: bool) {
        let place = self.next();
        if welcome {
            self.places.entry(principal).or_insert(place);
        }
    }

    /// The number of welcome attempts of each principal.
    fn welcome(&self) -> BTreeMap<PublicKey, usize> {
        let mut held = BTreeMap::new();
        for ((principal, _), _) in self.waiting.iter().filter(|(_, it)| it.welcome) {
            *held.entry(*principal).or_default() += 1;
        }
        held
    }

    /// Whether there is capacity for one more, and the attempt that gives way. When the capacity is
    /// used up, the principal with the most attempts loses its newest to a principal with fewer by
    /// two at least.
    fn make_room(&mut self, principal: &PublicKey, welcome: bool) -> Result<Option<Digest>, Full> {
        let held = self.welcome();
        let taken: usize = held.values().sum();
        if !welcome {
            let strangers = self.waiting.len().saturating_sub(taken);
            return if strangers < OPENS_STRANGERS_MAX {
                Ok(None)
            } else {
                Err(Full)
            };
        }
        let own = held.get(principal).copied().unwrap_or(0);
        if own >= OPENS_PER_PRINCIPAL_MAX {
            return Err(Full);
        }
        if taken < OPENS_WAITING_MAX {
            return Ok(None);
        }
        let (richest, most) = held.into_iter().max_by_key(|(_, held)| *held).ok_or(Full)?;
        if most < own + 2 {
            return Err(Full);
        }
        let theirs = self
            .waiting
            .iter()
            .filter(|((whose, _), it)| *whose == richest && it.welcome);
        let newest = theirs.max_by_key(|(_, opening)| opening.arrival);
        let (name, digest) = newest.map(|(name, it)| (*name, it.digest)).ok_or(Full)?;
        self.remove(&name);
        Ok(Some(digest))
    }

    /// Removes an attempt and returns it, with the connections that wait for it.
    pub(super) fn remove(&mut self, name: &Name) -> Option<(Digest, Vec<ConnectionId>)> {
        let opening = self.waiting.remove(name)?;
        let mut others = self.waiting.iter();
        if !others.any(|((whose, _), it)| *whose == name.0 && it.welcome) {
            self.places.remove(&name.0);
        }
        Some((opening.digest, opening.connections))
    }

    /// The attempt pending under this name.
    pub(super) fn digest(&self, name: &Name) -> Option<Digest> {
        self.waiting.get(name).map(|opening| opening.digest)
    }

    /// Marks it as proposed.
    pub(super) fn mark_proposed(&mut self, name: &Name) {
        if let Some(opening) = self.waiting.get_mut(name) {
            opening.proposed = true;
        }
    }

    /// Allows proposed attempts to be chosen again.
    pub(super) fn release_proposed(&mut self) {
        self.waiting.values_mut().for_each(|it| it.proposed = false);
    }

    /// The connections that wait for it.
    pub(super) fn connections(&self, name: &Name) -> &[ConnectionId] {
        self.waiting
            .get(name)
            .map_or(&[], |opening| &opening.connections)
    }

    /// Removes a closed connection.
    pub(super) fn disconnected(&mut self, connection: ConnectionId) {
        for opening in self.waiting.values_mut() {
            opening.connections.retain(|known| *known != connection);
        }
    }

    /// Chooses the attempts for the next batch: principals in turn, and a stranger if one is due.
    ///
    /// The capacity is small, so the whole map may be scanned.
    pub(super) fn select(&mut self, most: usize, now: Monotonic) -> Vec<Digest> {
        let mut queues: BTreeMap<u64, (PublicKey, BTreeMap<u64, Digest>)> = BTreeMap::new();
        for ((principal, _), opening) in self.waiting.iter() {
            if !opening.welcome || opening.proposed {
                continue;
            }
            let place = self.places.get(principal).copied().unwrap_or(0);
            let queue = queues.entry(place).or_insert((*principal, BTreeMap::new()));
            queue.1.insert(opening.arrival, opening.digest);
        }
        let mut chosen = Vec::new();
        while chosen.len() < most
            && let Some((_, (principal, mut queue))) = queues.pop_first()
        {
            if let Some((_, digest)) = queue.pop_first() {
                chosen.push(digest);
                let place = self.next();
                self.places.insert(principal, place);
                queues.insert(place, (principal, queue));
            }
        }
        let due = self
            .stranger
            .is_none_or(|last| now.since(last) >= STRANGER_INTERVAL);
        let strangers = self
            .waiting
            .values()
            .filter(|it| due && !it.welcome && !it.proposed);
        if let Some(first) = strangers.min_by_key(|opening| opening.arrival) {
            chosen.push(first.digest);
            self.stranger = Some(now);
        }
        chosen
    }
}

/// There is no free capacity.
struct Full;
