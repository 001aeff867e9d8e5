//! The replicas of the epoch that this one is in: who they are, where they are, what goes to them.
//!
//! A replica is its key. A number is a place in the list of one epoch, so what is known of a
//! replica (its outbox, the connection to it, why there is none) stays when an epoch begins in
//! which it has another number, and goes only with its place in the membership.
//!
//! Where a replica is found an administrator said when it was admitted or moved, in the membership;
//! this replica may have been told of another place. Both are dialed, by turns.

use super::PEER_BOUNDS;
use crate::address::Address;
use crate::link::frame::Frame;
use crate::link::outbox::Outbox;
use crate::replica_links::LinkState;
use quorumfs_bft::identity::{PublicKey, ReplicaId};
use quorumfs_bft::membership::{Member, Membership};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where replicas are found, as far as that was said on this machine.
pub(crate) type Addresses = BTreeMap<PublicKey, Address>;

/// Where a member may be found: where the membership says, since that is where it was moved or
/// admitted, and where this machine was told. Neither can be wrong about who answers there.
pub(crate) fn addresses_of(member: &Member, told: &Addresses) -> Vec<Address> {
    let listed = std::str::from_utf8(&member.address).ok();
    let mut all: Vec<Address> = listed.and_then(|it| it.parse().ok()).into_iter().collect();
    all.extend(
        told.get(&member.key)
            .filter(|told| all.first() != Some(*told))
            .cloned(),
    );
    all
}

/// Another replica.
#[derive(Clone, Debug)]
pub(crate) struct Peering {
    /// Its number in this epoch.
    pub(crate) id: ReplicaId,
    /// Who it is.
    pub(crate) key: PublicKey,
    /// Where it is dialed.
    pub(crate) addresses: Vec<Address>,
    /// What goes out to it.
    pub(crate) outbox: Arc<Outbox>,
    /// How it stands with the connection that is dialed to it.
    pub(crate) state: LinkState,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Peers {
    key: PublicKey,
    told: Addresses,
    me: ReplicaId,
    /// Everybody's key by number.
    members: Vec<PublicKey>,
    peerings: BTreeMap<PublicKey, Peering>,
}

impl Peers {
    /// None yet, for the replica with this key.
    pub(crate) const fn new(key: PublicKey, told: Addresses) -> Self {
        Self {
            key,
            told,
            me: ReplicaId::NONE,
            members: Vec::new(),
            peerings: BTreeMap::new(),
        }
    }

    /// An epoch begins. Gives the keys of those who are peers no more.
    pub(crate) fn enter(&mut self, membership: &Membership, me: ReplicaId) -> Vec<PublicKey> {
        self.me = me;
        self.members = membership.members().map(|member| member.key).collect();
        let mut before = std::mem::take(&mut self.peerings);
        for (id, member) in (0..).map(ReplicaId).zip(membership.members()) {
            if member.key == self.key {
                continue;
            }
            let addresses = addresses_of(member, &self.told);
            let known = before.remove(&member.key);
            let (outbox, state) = match known {
                Some(known) => (known.outbox, known.state),
                None => (Arc::new(Outbox::new(PEER_BOUNDS)), LinkState::undialed()),
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

    /// This replica's own number; beyond all members' if it is none.
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

    /// What goes out to another replica.
    pub(crate) fn outbox(&self, key: &PublicKey) -> Option<&Arc<Outbox>> {
        self.peerings.get(key).map(|peering| &peering.outbox)
    }

    /// Sends a frame to every one of them.
    pub(crate) fn tell_all(&self, frame: &Frame) {
        for peering in self.peerings.values() {
            peering.outbox.push(frame.clone());
        }
    }
}
