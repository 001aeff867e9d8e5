//! The replicas of the current epoch: their keys, their addresses, their outboxes.
//!
//! A replica is identified by its key. A number is a position in the list of one epoch, so the
//! state of a replica (its outbox, the connection to it, why there is none) stays when an epoch
//! begins in which it has another number, and is dropped only when it is no longer a member.
//!
//! The membership has the address that an administrator gave when a replica was admitted or moved;
//! this machine's configuration may have another one. Both are dialed in turn.

use super::PEER_BOUNDS;
use crate::address::Address;
use crate::link::frame::Frame;
use crate::link::outbox::Outbox;
use crate::replica_links::LinkState;
use quorumfs_bft::identity::{PublicKey, ReplicaId};
use quorumfs_bft::membership::{Member, Membership};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The addresses of replicas, as configured on this machine.
pub(crate) type Addresses = BTreeMap<PublicKey, Address>;

/// The addresses of a member: the one in the membership, since it was moved or admitted there, and
/// the one configured on this machine. A wrong one does no harm, since the key is verified.
pub(crate) fn addresses_of(member: &Member, known: &Addresses) -> Vec<Address> {
    let listed = std::str::from_utf8(&member.address).ok();
    let mut all: Vec<Address> = listed.and_then(|it| it.parse().ok()).into_iter().collect();
    all.extend(
        known
            .get(&member.key)
            .filter(|known| all.first() != Some(*known))
            .cloned(),
    );
    all
}

/// Another replica.
#[derive(Clone, Debug)]
pub(crate) struct Peering {
    /// Its number in this epoch.
    pub(crate) id: ReplicaId,
    /// Its key.
    pub(crate) key: PublicKey,
    /// Its addresses, for dialing.
    pub(crate) addresses: Vec<Address>,
    /// Its outbox.
    pub(crate) outbox: Arc<Outbox>,
    /// The state of the connection that is dialed to it.
    pub(crate) state: LinkState,
}

/// All other replicas.
#[derive(Debug)]
pub(crate) struct Peers {
    key: PublicKey,
    known: Addresses,
    me: ReplicaId,
    /// All members' keys by number.
    members: Vec<PublicKey>,
    peerings: BTreeMap<PublicKey, Peering>,
}

impl Peers {
    /// None yet, for the replica with this key.
    pub(crate) const fn new(key: PublicKey, known: Addresses) -> Self {
        Self {
            key,
            known,
            me: ReplicaId::NONE,
            members: Vec::new(),
            peerings: BTreeMap::new(),
        }
    }

    /// An epoch begins. Returns the keys of replicas that are no longer peers.
    pub(crate) fn enter(&mut self, membership: &Membership, me: ReplicaId) -> Vec<PublicKey> {
        self.me = me;
        self.members = membership.members().map(|member| member.key).collect();
        let mut before = std::mem::take(&mut self.peerings);
        for (id, member) in (0..).map(ReplicaId).zip(membership.members()) {
            if member.key == self.key {
                continue;
            }
            let addresses = addresses_of(member, &self.known);
            let known = before.remove(&member.key);
            let (outbox, state) = match known {
                Some(known) => (known.outbox, known.state),
                None => (
                    Arc::new(Outbox::new(PEER_BOUNDS)),
                    LinkState::never_dialed(),
                ),
            };
            let peering = Peering {
                id,
                key: member.key,
                addresses,
                outbox,
                state,
            };
            self.peerings.insert(member.key, peering);
        }
        for gone in before.values() {
            gone.outbox.close();
        }
        before.into_keys().collect()
    }

    /// The number of the replica with this key, unless that is this one.
    pub(crate) fn place(&self, key: &PublicKey) -> Option<ReplicaId> {
        self.peerings.get(key).map(|peering| peering.id)
    }

    /// The key of another replica.
    pub(crate) fn key_of(&self, id: ReplicaId) -> Option<PublicKey> {
        let key = self.members.get(usize::from(id.0)).copied();
        key.filter(|key| *key != self.key)
    }

    /// This replica's own number; larger than all members' if it is none.
    pub(crate) const fn me(&self) -> ReplicaId {
        self.me
    }

    /// Whether this is the own key.
    pub(crate) fn is_own(&self, key: &PublicKey) -> bool {
        *key == self.key
    }

    /// All others, by rising number.
    pub(crate) fn all(&self) -> Vec<Peering> {
        let all = self.members.iter();
        all.filter_map(|key| self.peerings.get(key).cloned())
            .collect()
    }

    /// The outbox of another replica.
    pub(crate) fn outbox(&self, key: &PublicKey) -> Option<&Arc<Outbox>> {
        self.peerings.get(key).map(|peering| &peering.outbox)
    }

    /// Sends a frame to every peer.
    pub(crate) fn send_to_all(&self, frame: &Frame) {
        for peering in self.peerings.values() {
            peering.outbox.push(frame.clone());
        }
    }
}
