//! A principal's key is replaced: another takes its place, under the volume root's signature.
//!
//! A key that was stolen or lost cannot be locked out by those who hold it, nor by those who merely
//! administer: each of those keys may be the stolen one. What decides is the volume root key, which
//! lies offline in the recovery kit. It signs a *succession*: the successor's keys, with what the
//! predecessor may do, and the clouds' secrets wrapped for it. From the batch that carries it on
//! the predecessor is no principal any more: it is refused every session, operation and question, a
//! mount of its is fenced, and it may change the cluster's membership no longer.
//!
//! ```text
//! kit ── signs ──► succession n: predecessor, successor, clouds' secrets, key epoch
//!        servers: check the signature, n follows n − 1, exchange the principals' rows
//!        clients: check it too; keys of epochs after that one count only from the successor
//! ```
//!
//! What always holds:
//! * **Only the root replaces a principal.** The signature is checked against the root key that the
//!   genesis named, and the volume is in what is signed.
//! * **Successions follow each other one by one**, so that two at a time are not both told that
//!   they took place, and what was signed for an earlier state of affairs is refused.
//! * **The successor can read at once**: its membership in the current key epoch comes along. The
//!   next epoch, which the predecessor cannot open, is the successor's to begin.
//!
//! What can go wrong: *the answer is lost*. The same bytes again are the same success. *Another key
//! epoch was begun meanwhile*: `WrongEpoch`, and it is signed anew. *The predecessor still has the
//! bytes of the clouds*: what it could read before it can read still (docs/THREAT_MODEL.md).

use crate::change::{Asker, Change};
use crate::codec;
use crate::error::Error;
use crate::genesis::GenesisPrincipal;
use crate::identity::{PrincipalId, PrincipalNumber, RealmEpoch, RealmId, VolumeId};
use crate::limits::{
    CLOUDS_MAX, LABEL_BYTES_MAX, SUCCESSION_BYTES_MAX, SUCCESSIONS_MAX, WRAPPED_KEY_BYTES_MAX,
};
use crate::reply::Done;
use crate::row::{Format, Member, Mount, Numbered, Principal, Row, WrappedKey, key};
use crate::rows::{Halt, Outcome, Rows, decode, require};
use crate::session;
use borsh::{BorshDeserialize, BorshSerialize};
use ed25519_zebra::VerificationKey;
use quorumfs_bft::identity::{PublicKey, Signature};

/// The context that the volume root key signs under, before the succession's bytes.
pub const SIGNING_CONTEXT: &[u8] = b"quorumfs 2026 succession v1\0";

/// One principal in the place of another.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Succession {
    /// Of which volume.
    pub volume: VolumeId,
    /// Which one it is of the volume's, from 1 on.
    pub number: u32,
    /// The key that counts no more.
    pub predecessor: PrincipalId,
    /// Who takes its place.
    pub successor: GenesisPrincipal,
    /// The clouds' naming secrets, by their numbers, wrapped for the successor.
    pub clouds: Vec<WrappedKey>,
    /// The key epoch that the root realm was in: what the predecessor signs for later ones counts
    /// for nothing.
    pub epoch: RealmEpoch,
}

/// A succession with the signature of the volume root key over it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SignedSuccession {
    /// [`Succession::to_bytes`], as they were signed.
    pub succession: Vec<u8>,
    /// The root's signature over [`Succession::signed_bytes`].
    pub signature: Signature,
}

/// What is ordered.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Succeed {
    /// The succession.
    pub signed: SignedSuccession,
    /// The successor's membership in the current epoch of the root realm. Its signature is the
    /// members' to verify.
    pub member: Member,
}

impl Row for SignedSuccession {
    const NAME: &'static str = "succession";
}

impl Succession {
    /// The succession's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// What the volume root key signs: [`SIGNING_CONTEXT`], then the succession's bytes.
    #[must_use]
    pub fn signed_bytes(succession: &[u8]) -> Vec<u8> {
        [SIGNING_CONTEXT, succession].concat()
    }

    /// Whether it is within the bounds of what the servers keep.
    fn fits(&self) -> bool {
        let wrapped = |key: &WrappedKey| (1..=WRAPPED_KEY_BYTES_MAX).contains(&key.bytes.len());
        self.clouds.len() <= CLOUDS_MAX
            && self.clouds.iter().all(wrapped)
            && self.successor.label.len() <= LABEL_BYTES_MAX
    }
}

impl SignedSuccession {
    /// What was signed, if the root of this volume did.
    #[must_use]
    pub fn verified(&self, volume: VolumeId, root: &PublicKey) -> Option<Succession> {
        let succession: Succession = codec::decode(&self.succession, SUCCESSION_BYTES_MAX).ok()?;
        let key = VerificationKey::try_from(root.0).ok()?;
        let message = Succession::signed_bytes(&self.succession);
        let signature = ed25519_zebra::Signature::from(self.signature.0);
        let signed = key.verify(&signature, &message).is_ok();
        (signed && succession.volume == volume).then_some(succession)
    }
}

/// Exchanges a principal for its successor.
pub(crate) fn succeed(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    succeed: &Succeed,
) -> Outcome<Done> {
    require(asker.rights.administer, Error::NoRight)?;
    let format: Format = change.expect_row(&key::format())?;
    let Some(succession) = succeed.signed.verified(format.volume, &format.root_key) else {
        return Err(Error::BadSuccession.into());
    };
    require(succession.fits(), Error::BadSuccession)?;
    let number = succession.number;
    let done = Done::Succeeded { number };
    let before = all(change)?;
    if let Some(known) = index(number).and_then(|index| before.get(index)) {
        require(*known == succeed.signed, Error::Changed)?;
        return Ok(done);
    }
    let follows = index(number) == Some(before.len()) && before.len() < SUCCESSIONS_MAX;
    require(follows, Error::Changed)?;
    exchange(change, asker, &succession, &succeed.member)?;
    change.put(key::succession(number), &succeed.signed)?;
    Ok(done)
}

/// Where a number is in the list of all.
fn index(number: u32) -> Option<usize> {
    usize::try_from(number.checked_sub(1)?).ok()
}

fn exchange(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    succession: &Succession,
    member: &Member,
) -> Outcome<()> {
    let (predecessor, successor) = (succession.predecessor, &succession.successor);
    let current = change.realm(RealmId::ROOT)?.epoch;
    let is_current = succession.epoch == current && member.epoch == current;
    require(is_current, Error::WrongEpoch { current })?;
    let wrapped = (1..=WRAPPED_KEY_BYTES_MAX).contains(&member.wrapped.len());
    require(wrapped, Error::BadSuccession)?;
    let gone = change.find::<Principal>(&key::principal(&predecessor))?;
    require(gone.is_some(), Error::NotFound)?;
    let taken = change.find::<Principal>(&key::principal(&successor.key))?;
    require(taken.is_none(), Error::Exists)?;
    let number = change.next(|counters| &mut counters.next_principal)?;
    let number = u32::try_from(number).map_err(|_| Halt::Refused(Error::NoRoom))?;
    let number = PrincipalNumber(number);
    change.delete(key::principal(&predecessor))?;
    change.delete(key::member(RealmId::ROOT, &predecessor))?;
    let row = Principal {
        wrapping_key: successor.wrapping_key,
        rights: successor.rights.clone(),
        label: successor.label.clone(),
        sessions: 0,
        number,
    };
    change.put(key::principal(&successor.key), &row)?;
    let numbered = Numbered {
        principal: successor.key,
        label: successor.label.clone(),
    };
    change.put(key::numbered(number), &numbered)?;
    change.put(key::member(RealmId::ROOT, &successor.key), member)?;
    if let Some(mount) = change.find::<Mount>(&key::mount(RealmId::ROOT))?
        && mount.principal == predecessor
    {
        session::fence(change, mount.session, asker.caller.session)?;
    }
    Ok(())
}

/// All that took place, the first one first.
pub(crate) fn all(rows: &impl Rows) -> Outcome<Vec<SignedSuccession>> {
    let prefix = key::successions();
    let mut all = Vec::new();
    for (row_key, bytes) in rows.scan(&prefix, &prefix, SUCCESSIONS_MAX)? {
        all.push(decode(&row_key, &bytes)?);
    }
    Ok(all)
}

/// Whether the key may change the cluster's membership, as far as the volume's principals decide
/// that: they may who administer the volume, and never a key that was replaced.
pub(crate) fn administers(rows: &impl Rows, principal: &PublicKey) -> Outcome<Option<bool>> {
    if let Some(row) = rows.find::<Principal>(&key::principal(principal))? {
        return Ok(row.rights.administer.then_some(true));
    }
    let format: Format = rows.expect_row(&key::format())?;
    let replaced = all(rows)?.iter().any(|signed| {
        let succession = signed.verified(format.volume, &format.root_key);
        succession.is_some_and(|it| it.predecessor == *principal)
    });
    Ok(replaced.then_some(false))
}
