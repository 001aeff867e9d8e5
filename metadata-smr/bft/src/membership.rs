//! Which replicas vote in which membership epoch, and how that changes.
//!
//! # Epochs
//!
//! An *epoch* is one ordering instance over one membership. It begins from a certified state and
//! ends with the batch that changes the membership:
//!
//! ```text
//!   epoch e                                     epoch e+1
//!   … ── b−1 ── b: the change is executed ──┐ ┌── b+1 ── …   view 0, empty window, keys of e+1
//!                 (void: b+1, b+2 of e)     │ │
//!          q of e: CHECKPOINT(b, root, digest of the new membership) = the record of e+1
//! ```
//!
//! A change is an ordered operation ([`Command`]) in a session whose key may request it: an
//! administrator's key, or a replica's own. An accepted change is written into the membership's
//! row, and its batch b is the last of the epoch: the state after it is a checkpoint, and nothing
//! is executed beyond it. Batches that were proposed or even decided there are void: no client was
//! answered, and the requests wait in the pools for the next epoch. One change ends an epoch;
//! another one in the same batch is refused with a reason.
//!
//! CHECKPOINTs name the digest of the membership after them. So the stable certificate of b and the
//! row's bytes are the *record* of the next epoch ([`EpochRecord`]), which any process that knows
//! the keys of e can verify, and the records lead from genesis to the present.
//!
//! The order of the voters is the order in which they lead: view 0 of an epoch is led by the first,
//! view 1 by the second. [`Command::Lead`] puts one first, so that the others take over from it in
//! the order of their list, and not the other way round.
//!
//! A replica identifies itself by its key: a [`ReplicaId`] is a position in the list of one epoch,
//! voters first. After them come the *others*, which receive everything and never vote: learners,
//! and replicas that were removed lately.
//!
//! # Invariants
//!
//! * *Two epochs never both order.* A correct replica's execution in e ends with b, the same b for
//!   all, since agreement in e holds for b and the row records it after b. A replica votes in e+1
//!   only with the record in its journal. Votes name their epoch under their signature, so those of
//!   e do not count in e+1.
//! * *A crash leaves a replica in e or in e+1.* The newest `Epoch` record decides, in the journal
//!   or, once a root is written, in the rows stored with it. Journal records of older epochs are
//!   void.
//! * *Readers notice.* A replica that has executed the end of its epoch answers no query until the
//!   next one begins. A client that still asks e's replicas for a quorum meets one of the q signers
//!   of the record, which either answered before the next epoch began or does not answer. Clients
//!   accept no answers of another epoch than the one that they know, and follow the records.
//! * *No votes without memory.* A replica has an *incarnation*, a random number that its journal
//!   begins with. It votes only while the membership names that one. A replica that lost its
//!   journal takes another one and asks for [`Command::Rejoin`]; the old number votes in no later
//!   epoch, and the new one in none in which the old one may have voted. A replica that finds its
//!   journal rolled back does the same, from then on (`replica::rollback`).
//! * *No dead members.* A learner becomes a voter only after it has reported, under its own key,
//!   which recent checkpoint it holds. A retired key never comes back.
//!
//! # Failures
//!
//! *u replicas fail around b.* Until the record is complete, q of e are up and finish b like any
//! batch: a replica that has its certificate forwards it. From then on the replicas that have
//! entered e+1 have the record durably and lead the others by STATUS. *A replica is far behind*: it
//! enters the newest epoch by the records alone and takes a checkpoint of it over, without voting
//! before. *A removed replica is switched off too early*: its state at b may be one of few until
//! the new epoch's first stable checkpoint, which is when it may be switched off. *A replica
//! rejoins again and again*: it may once in as many batches as there are between two checkpoints,
//! so it causes one additional checkpoint in as many. *All keys of an old epoch are stolen*: a
//! client that knows nothing later accepts them, so the key of a retired replica has to be
//! destroyed.
//!
//! Source: L. Lamport, D. Malkhi and L. Zhou, "Reconfiguring a State Machine" (2010), for stopping
//! one instance and starting the next; A. Bessani et al., "State Machine Replication for the Masses
//! with BFT-SMaRt" (2014), for changes by ordered operations of an administrator.

pub mod chain;
pub mod change;
pub mod command;
pub mod record;

pub use chain::EpochChain;
pub use change::{Announcement, Applied, apply};
pub use command::{Answer, Command, CommandRefusal};
pub use record::EpochRecord;

use crate::authentication::KeyDirectory;
use crate::fault_model::{FaultModel, REPLICAS_MAX};
use crate::identity::{
    ClusterId, Digest, Epoch, Incarnation, PublicKey, ReplicaId, Sequence, SessionId,
};
use crate::wire::limits::{
    ADDRESS_BYTES_MAX, ADMINISTRATORS_MAX, CHECKPOINT_INTERVAL, OTHERS_MAX, RETIRED_MAX,
};
use crate::wire::signed_bytes::membership_digest;
use crate::wire::{Context, Field, Malformed, Reader, write_bytes, write_list};
use bytes::Bytes;

/// The version of the row and of the membership in a record.
const VERSION: u8 = 1;

/// One replica of the membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its key, which identifies it.
    pub key: PublicKey,
    /// Its incarnation, with which its journal begins; it votes only under this one.
    pub incarnation: Incarnation,
    /// Its address, for processes that connect to it; not interpreted here.
    pub address: Bytes,
    /// The batch in which this incarnation became a member.
    pub since: Sequence,
}

/// One epoch's membership and settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The membership epoch.
    pub epoch: Epoch,
    /// The batch that ended the epoch before; this epoch orders the batches after it.
    pub from: Sequence,
    /// The fault model, with the number of voters.
    pub model: FaultModel,
    /// The version of the behaviour that batches are executed with.
    pub behaviour_version: u32,
    /// The number of batches from one checkpoint to the next.
    pub checkpoint_interval: u64,
    /// The keys that may change the membership.
    pub administrators: Vec<PublicKey>,
    /// The voters: replica 0, 1, and so on.
    pub voters: Vec<Member>,
    /// The members that receive everything and do not vote, numbered after the voters.
    pub others: Vec<Member>,
    /// Keys that voted once and never will again.
    pub retired: Vec<PublicKey>,
}

impl Membership {
    /// The membership of a new cluster.
    #[must_use]
    pub const fn genesis(
        model: FaultModel,
        voters: Vec<Member>,
        administrators: Vec<PublicKey>,
    ) -> Self {
        Self {
            epoch: Epoch(0),
            from: Sequence(0),
            model,
            behaviour_version: 1,
            checkpoint_interval: CHECKPOINT_INTERVAL,
            administrators,
            voters,
            others: Vec::new(),
            retired: Vec::new(),
        }
    }

    /// A membership that cannot change: its members are known by their numbers alone, and there is
    /// no administrator.
    #[must_use]
    pub fn unnamed(model: FaultModel) -> Self {
        let numbered = |number: u16| {
            let mut key = PublicKey([u8::MAX; 32]);
            let [low, high] = number.to_le_bytes();
            if let Some(end) = key.0.get_mut(30..) {
                end.copy_from_slice(&[low, high]);
            }
            Member {
                key,
                incarnation: Incarnation::default(),
                address: Bytes::new(),
                since: Sequence(0),
            }
        };
        let voters = (0..model.replicas()).map(numbered).collect();
        Self::genesis(model, voters, Vec::new())
    }

    /// All members: a member's position is its [`ReplicaId`].
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.voters.iter().chain(&self.others)
    }

    /// The number of members, voters and others.
    #[must_use]
    pub fn peers(&self) -> usize {
        self.voters.len() + self.others.len()
    }

    /// The member with this number.
    #[must_use]
    pub fn member(&self, id: ReplicaId) -> Option<&Member> {
        self.members().nth(id.0.into())
    }

    /// The number of the member with this key.
    #[must_use]
    pub fn place(&self, key: &PublicKey) -> Option<ReplicaId> {
        let place = self.members().position(|member| member.key == *key)?;
        u16::try_from(place).ok().map(ReplicaId)
    }

    /// Whether this member votes.
    #[must_use]
    pub const fn votes(&self, id: ReplicaId) -> bool {
        id.0 < self.model.replicas()
    }

    /// Whether this key is a replica's or an administrator's here.
    #[must_use]
    pub fn knows(&self, key: &PublicKey) -> bool {
        self.administrators.contains(key) || self.place(key).is_some()
    }

    /// The context that [`crate::wire::admit()`] needs.
    #[must_use]
    pub const fn context(&self, cluster: ClusterId) -> Context {
        Context::new(cluster, self.epoch, self.model).after(self.from)
    }

    /// Encodes the row.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut bytes = vec![VERSION];
        self.epoch.write(&mut bytes);
        self.from.write(&mut bytes);
        self.model.up().write(&mut bytes);
        self.model.right().write(&mut bytes);
        self.behaviour_version.write(&mut bytes);
        self.checkpoint_interval.write(&mut bytes);
        write_list(&mut bytes, &self.administrators, Field::write);
        write_list(&mut bytes, &self.voters, encode_member);
        write_list(&mut bytes, &self.others, encode_member);
        write_list(&mut bytes, &self.retired, Field::write);
        bytes.into()
    }

    /// Decodes a row.
    ///
    /// # Errors
    /// If the bytes are no row, or no membership that could work.
    pub fn decode(bytes: &Bytes) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let version: u8 = reader.get("membership version")?;
        if version != VERSION {
            let version = version.into();
            return Err(Malformed::OtherVersion { version });
        }
        let impossible = |field| Malformed::Impossible { field };
        let epoch = reader.get("epoch")?;
        let from = reader.get("from")?;
        let (up, right) = (reader.get("u")?, reader.get("r")?);
        let behaviour_version = reader.get("behaviour version")?;
        let checkpoint_interval = reader.get("checkpoint interval")?;
        let key = |reader: &mut Reader<'_>| reader.get("key");
        let administrators = reader.list("administrators", ADMINISTRATORS_MAX, key)?;
        let voters = reader.list("voters", REPLICAS_MAX.into(), decode_member)?;
        let others = reader.list("others", OTHERS_MAX, decode_member)?;
        let retired = reader.list("retired keys", RETIRED_MAX, key)?;
        reader.end()?;
        let count = u16::try_from(voters.len()).map_err(|_| impossible("number of voters"))?;
        let model = FaultModel::new(up, right, count).map_err(|_| impossible("fault model"))?;
        let membership = Self {
            epoch,
            from,
            model,
            behaviour_version,
            checkpoint_interval,
            administrators,
            voters,
            others,
            retired,
        };
        let distinct = membership.members().all(|member| {
            let same = membership.members().filter(|it| it.key == member.key);
            same.count() == 1
        });
        if !distinct || membership.peers() > usize::from(REPLICAS_MAX) {
            return Err(impossible("list of members"));
        }
        Ok(membership)
    }

    /// The digest that a CHECKPOINT names.
    #[must_use]
    pub fn digest(&self) -> Digest {
        membership_digest(&self.encode())
    }
}

/// The keys of the voters; none of sessions.
impl KeyDirectory for Membership {
    fn replica(&self, id: ReplicaId) -> Option<PublicKey> {
        self.voters.get(usize::from(id.0)).map(|member| member.key)
    }
    fn session(&self, _: SessionId) -> Option<PublicKey> {
        None
    }
}

fn encode_member(member: &Member, bytes: &mut Vec<u8>) {
    member.key.write(bytes);
    member.incarnation.write(bytes);
    write_bytes(bytes, &member.address);
    member.since.write(bytes);
}

fn decode_member(reader: &mut Reader<'_>) -> Result<Member, Malformed> {
    Ok(Member {
        key: reader.get("key")?,
        incarnation: reader.get("incarnation")?,
        address: reader.bytes("address", ADDRESS_BYTES_MAX)?,
        since: reader.get("since")?,
    })
}

#[cfg(test)]
mod tests;
