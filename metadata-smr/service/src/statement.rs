//! Statements: what a principal is.
//!
//! A statement has everything that clients take on its signer's word: keys, label, rights, and the
//! clouds' secrets wrapped for the principal. Those of the genesis and of successions are under the
//! volume root's signature; their principals do not expire. An administrator states the principals
//! that come later ([`crate::people`]).
//!
//! ```text
//! statement ──► P/   wrapping key, rights, label, number, expiry
//!           ├─► PN/  its number
//!           ├─► PX/  its expiry, if it expires
//!           └─► PC/  a wrapped secret for each cloud
//! ```
//!
//! Servers hold the secrets in rows of their own, so that the secret of a cloud or a principal that
//! is added later is one more row. Clients read the statement, which is signed, and not those rows.
//!
//! Invariant: a principal that expires has its row in the queue of expiries, whichever operation
//! writes it: an end that is ignored would keep a principal for ever.

use crate::change::Change;
use crate::error::Error;
use crate::identity::{CloudIndex, PrincipalId, PrincipalNumber};
use crate::limits::{CLOUDS_MAX, LABEL_BYTES_MAX, RIGHTS_LIST_MAX, WRAPPED_KEY_BYTES_MAX};
use crate::row::{
    Assertable, CloudSecretRow, DueExpiry, Numbered, Principal, Rights, SignedBy, key,
};
use crate::rows::{Halt, Outcome, Rows};
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_bft::identity::Time;

/// What a principal is.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Statement {
    /// Its Ed25519 key.
    pub key: PrincipalId,
    /// Its X25519 key.
    pub wrapping_key: [u8; 32],
    /// Its name for people.
    pub label: String,
    /// Its rights.
    pub rights: Rights,
    /// When it ceases to be a principal, by the agreed time.
    pub expires: Option<Time>,
    /// The secrets for names and headers of the clouds' objects, wrapped for it, by cloud.
    pub cloud_secrets: Vec<WrappedSecret>,
}

/// A cloud's secret that one principal can unwrap; opaque to the servers.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct WrappedSecret {
    /// The cloud.
    pub cloud: CloudIndex,
    /// The wrapping: encapsulated key and ciphertext.
    pub bytes: Vec<u8>,
}

impl Statement {
    /// Checks one that the genesis or a succession has, for a volume of so many clouds: what the
    /// root states does not expire.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check_lasting(&self, clouds: usize) -> Result<(), &'static str> {
        if self.expires.is_some() {
            return Err("a principal expires that the volume root states");
        }
        self.check(clouds)
    }

    /// Checks it for a volume of so many clouds.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, clouds: usize) -> Result<(), &'static str> {
        check_bounds(&self.label, &self.rights)?;
        let follows = |pair: &[WrappedSecret]| match pair {
            [one, other] => one.cloud < other.cloud,
            _ => false,
        };
        let last = self.cloud_secrets.last();
        let exists = last.is_none_or(|last| usize::from(last.cloud.0) < clouds);
        if !exists || !self.cloud_secrets.windows(2).all(follows) {
            return Err("a principal's secrets are not of the volume's clouds, in their order");
        }
        let fits = |it: &WrappedSecret| (1..=WRAPPED_KEY_BYTES_MAX).contains(&it.bytes.len());
        if !self.cloud_secrets.iter().all(fits) {
            return Err("a wrapped secret is empty or too long");
        }
        Ok(())
    }

    /// The wrapped secret of a cloud.
    #[must_use]
    pub fn cloud_secret(&self, cloud: CloudIndex) -> Option<&WrappedSecret> {
        self.cloud_secrets.iter().find(|it| it.cloud == cloud)
    }
}

/// Checks the bounds of a principal's label and rights.
pub(crate) fn check_bounds(label: &str, rights: &Rights) -> Result<(), &'static str> {
    let fits = |length: Option<usize>| length.is_none_or(|length| length <= RIGHTS_LIST_MAX);
    let uids = match &rights.uids {
        Assertable::Any => None,
        Assertable::Only(ids) => Some(ids.len()),
    };
    let gids = match &rights.gids {
        Assertable::Any => None,
        Assertable::Only(ids) => Some(ids.len()),
    };
    if !fits(uids) || !fits(gids) || label.len() > LABEL_BYTES_MAX {
        return Err("a principal's label or list of ids is too long");
    }
    Ok(())
}

/// The number of a new principal.
pub(crate) fn next_number(change: &mut Change<'_, '_>) -> Outcome<PrincipalNumber> {
    let number = change.next(|counters| &mut counters.next_principal)?;
    let number = u32::try_from(number).map_err(|_| Halt::Refused(Error::LimitReached))?;
    Ok(PrincipalNumber(number))
}

/// Writes the rows of a new principal. `stated` is the administrator that states it, if not the
/// volume root does.
pub(crate) fn install(
    change: &mut Change<'_, '_>,
    statement: &Statement,
    number: PrincipalNumber,
    stated: Option<SignedBy>,
) -> Outcome<()> {
    let row = Principal {
        wrapping_key: statement.wrapping_key,
        rights: statement.rights.clone(),
        label: statement.label.clone(),
        sessions: 0,
        number,
        expires: statement.expires,
        stated,
    };
    change.put(key::principal(&statement.key), &row)?;
    expire_at(change, &statement.key, statement.expires)?;
    let numbered = Numbered {
        principal: statement.key,
        label: statement.label.clone(),
    };
    change.put(key::numbered(number), &numbered)?;
    for secret in &statement.cloud_secrets {
        let row = CloudSecretRow {
            bytes: secret.bytes.clone(),
            signed: None,
        };
        change.put(key::cloud_secret(&statement.key, secret.cloud), &row)?;
    }
    Ok(())
}

/// Queues the expiry of a principal, if it expires.
pub(crate) fn expire_at(
    change: &mut Change<'_, '_>,
    principal: &PrincipalId,
    expires: Option<Time>,
) -> Outcome<()> {
    match expires {
        Some(at) => change.put(key::expiry(at, principal), &DueExpiry),
        None => Ok(()),
    }
}

/// Removes a principal's rows, except that of its number.
pub(crate) fn remove(
    change: &mut Change<'_, '_>,
    principal: &PrincipalId,
    row: &Principal,
) -> Outcome<()> {
    change.delete(key::principal(principal))?;
    if let Some(at) = row.expires {
        change.delete(key::expiry(at, principal))?;
    }
    let prefix = key::cloud_secrets(principal);
    for (row_key, _) in change.scan(&prefix, &prefix, CLOUDS_MAX)? {
        change.delete(row_key.to_vec())?;
    }
    Ok(())
}
