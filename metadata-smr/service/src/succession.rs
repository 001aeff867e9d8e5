//! Replaces a principal's key by another's, under the volume root's signature.
//!
//! A stolen or lost key cannot be locked out by its holders, nor by an administrator: each of those
//! keys may be the stolen one. The volume root key decides, which lies offline in the recovery kit.
//! It signs a *succession*: the successor's statement (see [`crate::statement`]), with the
//! predecessor's rights and the clouds' secrets wrapped for the new key. From the batch that
//! carries it on, the predecessor is no longer a principal: every session, operation and question
//! is refused, its mount is fenced, and it can no longer change the cluster's membership.
//!
//! ```text
//! kit ── signs ──► succession n: predecessor, successor's statement, key epoch
//!        servers: check the signature, n follows n − 1, exchange the principals' rows
//!        clients: check it too; keys of epochs after that one count only from the successor
//! ```
//!
//! Invariants:
//! * **Only the root replaces a principal.** The signature is verified with the root key that the
//!   genesis names, and the signed bytes include the volume.
//! * **Successions follow each other one by one**, so that of two concurrent ones only one
//!   succeeds, and one that was signed for an earlier state is refused.
//! * **The successor can read at once**: the succession includes its membership in the current key
//!   epoch. The successor begins the next key epoch, which the predecessor cannot open.
//!
//! Failures: *the answer is lost*. The same bytes again are the same success. *Another key epoch
//! was begun in the meantime*: `WrongEpoch`, and the succession is signed anew. *The predecessor
//! still has access to the bytes of the clouds*: it can still read what it could read before
//! (docs/THREAT_MODEL.md).

use crate::change::{Asker, Change};
use crate::codec;
use crate::error::Error;
use crate::identity::{PrincipalId, RealmEpoch, RealmId, VolumeId};
use crate::limits::{CLOUDS_MAX, SUCCESSION_BYTES_MAX, SUCCESSIONS_MAX, WRAPPED_KEY_BYTES_MAX};
use crate::mount;
use crate::people;
use crate::reply::Done;
use crate::row::{Format, FormerPrincipal, Member, Principal, Row, key};
use crate::rows::{Halt, Outcome, Rows, decode, require};
use crate::statement::{self, Statement};
use borsh::{BorshDeserialize, BorshSerialize};
use ed25519_zebra::VerificationKey;
use quorumfs_bft::identity::{PublicKey, Signature};

/// The context that the volume root key signs under, before the succession's bytes.
pub const SIGNING_CONTEXT: &[u8] = b"quorumfs 2026 succession v2\0";

/// The replacement of a principal by another.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Succession {
    /// The volume.
    pub volume: VolumeId,
    /// Its number among the volume's successions, from 1 on.
    pub number: u32,
    /// The key that is no longer valid.
    pub predecessor: PrincipalId,
    /// The principal that replaces it.
    pub successor: Statement,
    /// The root realm's key epoch: the predecessor's signatures for later ones are invalid.
    pub epoch: RealmEpoch,
}

/// A succession with the signature of the volume root key over it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct SignedSuccession {
    /// [`Succession::to_bytes`], as signed.
    pub succession: Vec<u8>,
    /// The root's signature over [`Succession::signed_bytes`].
    pub signature: Signature,
}

/// The ordered operation.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Succeed {
    /// The succession.
    pub signed: SignedSuccession,
    /// The successor's membership in the current key epoch of the root realm. Members verify its
    /// signature.
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

    /// The bytes that the volume root key signs: [`SIGNING_CONTEXT`], then the succession's bytes.
    #[must_use]
    pub fn signed_bytes(succession: &[u8]) -> Vec<u8> {
        [SIGNING_CONTEXT, succession].concat()
    }

    /// Whether it is within bounds and says nothing that this program does not know.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.successor.check_lasting(CLOUDS_MAX).is_ok()
    }
}

impl SignedSuccession {
    /// The signed succession, if this volume's root signed it.
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
    require(succession.is_sound(), Error::BadSuccession)?;
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

/// The index of a number in the list of all.
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
    let fits = wrapped && member.fits(&successor.rights);
    require(fits, Error::BadSuccession)?;
    let gone = change.find::<Principal>(&key::principal(&predecessor))?;
    let gone = gone.ok_or(Halt::Refused(Error::NotFound))?;
    let taken = change.find::<Principal>(&key::principal(&successor.key))?;
    require(taken.is_none(), Error::Exists)?;
    // Changes of the principals may name a key that was one, and clients take none of those any
    // more once the root has stated it.
    let former: Option<FormerPrincipal> = change.find(&key::former(&successor.key))?;
    let is_known = former.is_some() || people::is_of_a_machine(change, &successor.key)?;
    require(!is_known, Error::BadSuccession)?;
    let number = statement::next_number(change)?;
    statement::remove(change, &predecessor, &gone)?;
    change.delete(key::member(RealmId::ROOT, &predecessor))?;
    statement::install(change, successor, number, None)?;
    change.put(key::member(RealmId::ROOT, &successor.key), member)?;
    mount::fence_all_of(change, &predecessor, asker.caller.session)
}

/// Whether a succession has replaced this key.
pub(crate) fn has_replaced(rows: &impl Rows, principal: &PublicKey) -> Outcome<bool> {
    let format: Format = rows.expect_row(&key::format())?;
    Ok(all(rows)?.iter().any(|signed| {
        let succession = signed.verified(format.volume, &format.root_key);
        succession.is_some_and(|it| it.predecessor == *principal)
    }))
}

/// All successions, in order.
pub(crate) fn all(rows: &impl Rows) -> Outcome<Vec<SignedSuccession>> {
    let prefix = key::successions();
    let mut all = Vec::new();
    for (row_key, bytes) in rows.scan(&prefix, &prefix, SUCCESSIONS_MAX)? {
        all.push(decode(&row_key, &bytes)?);
    }
    Ok(all)
}

/// Whether the key may change the cluster's membership, as far as the volume's principals decide
/// that: administrators of the volume may; a key that was replaced or dismissed never, nor one that
/// an administrator has stated without the right. Of others the membership's list decides.
pub(crate) fn administers(rows: &impl Rows, principal: &PublicKey) -> Outcome<Option<bool>> {
    if let Some(row) = rows.find::<Principal>(&key::principal(principal))? {
        let administers = row.rights.administer;
        return Ok((administers || row.stated.is_some()).then_some(administers));
    }
    let former: Option<FormerPrincipal> = rows.find(&key::former(principal))?;
    let gone = former.is_some() || has_replaced(rows, principal)?;
    Ok(gone.then_some(false))
}
