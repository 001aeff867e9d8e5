//! Attempts to open a session, while they wait.
//!
//! Anybody can make a key pair and sign an attempt with it, so what is free must not stand in the
//! way of what is not. Principals that the service would have as things stand are *welcome*: they
//! share a room, a few places for each, and are served in turn, each principal's attempts by
//! arrival. Neither a principal nor a session key that its owner chose decides who comes first: a
//! principal's place is counted from when it began to wait or was last served.
//!
//! All others are *strangers*: they have a small room of their own and enter the order one at a
//! time, at a pace, because only the order can refuse somebody so that r + 1 replicas say the same.
//! Nobody is owed anything on their behalf: a leader that lets them wait is not suspected for it.

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
    flies: bool,
}

/// What became of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It waits now. If another one gave way to it, that one.
    New(Option<Digest>),
    /// It waited as a stranger's and is welcome now.
    Welcomed,
    Known,
    Busy,
    Conflict,
}

/// Attempts to open a session.
#[derive(Clone, Debug, Default)]
pub(super) struct Openings {
    waiting: BTreeMap<Name, Opening>,
    /// The places of principals that have something welcome waiting; the smallest is next.
    places: BTreeMap<PublicKey, u64>,
    count: u64,
    /// When a stranger was last let into the order.
    stranger: Option<Monotonic>,
}

impl Openings {
    /// Takes an attempt in, if there is room.
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
                flies: false,
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

    /// How many attempts of each principal are welcome.
    fn welcome(&self) -> BTreeMap<PublicKey, usize> {
        let mut held = BTreeMap::new();
        for ((principal, _), _) in self.waiting.iter().filter(|(_, it)| it.welcome) {
            *held.entry(*principal).or_default() += 1;
        }
        held
    }

    /// Whether there is room for one more, and what gave way: when the room is full, whoever has
    /// most in it loses its newest to somebody who has fewer by two at least.
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

    /// Forgets an attempt: what waited, and for whom.
    pub(super) fn remove(&mut self, name: &Name) -> Option<(Digest, Vec<ConnectionId>)> {
        let opening = self.waiting.remove(name)?;
        let mut others = self.waiting.iter();
        if !others.any(|((whose, _), it)| *whose == name.0 && it.welcome) {
            self.places.remove(&name.0);
        }
        Some((opening.digest, opening.connections))
    }

    /// The attempt that waits under this name.
    pub(super) fn digest(&self, name: &Name) -> Option<Digest> {
        self.waiting.get(name).map(|opening| opening.digest)
    }

    /// It has been proposed.
    pub(super) fn fly(&mut self, name: &Name) {
        if let Some(opening) = self.waiting.get_mut(name) {
            opening.flies = true;
        }
    }

    /// What was proposed may be chosen again.
    pub(super) fn land(&mut self) {
        self.waiting.values_mut().for_each(|it| it.flies = false);
    }

    /// Who waits for it.
    pub(super) fn connections(&self, name: &Name) -> &[ConnectionId] {
        self.waiting
            .get(name)
            .map_or(&[], |opening| &opening.connections)
    }

    /// A connection is gone.
    pub(super) fn disconnected(&mut self, connection: ConnectionId) {
        for opening in self.waiting.values_mut() {
            opening.connections.retain(|known| *known != connection);
        }
    }

    /// Chooses what enters the next batch: principals in turn, and a stranger if it is time.
    ///
    /// There is room for few, so all of it may be looked at.
    pub(super) fn select(&mut self, most: usize, now: Monotonic) -> Vec<Digest> {
        let mut queues: BTreeMap<u64, (PublicKey, BTreeMap<u64, Digest>)> = BTreeMap::new();
        for ((principal, _), opening) in self.waiting.iter() {
            if !opening.welcome || opening.flies {
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
            .filter(|it| due && !it.welcome && !it.flies);
        if let Some(first) = strangers.min_by_key(|opening| opening.arrival) {
            chosen.push(first.digest);
            self.stranger = Some(now);
        }
        chosen
    }
}

/// There is no room.
struct Full;
