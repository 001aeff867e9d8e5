//! The keys that requests are signed with, kept until they are old, expire or are refused.
//!
//! The SDK would keep what it found for a quarter of an hour, whatever the service says of it. So
//! its cache is off and this is asked for each request: it answers from memory, and looks where the
//! keys come from if they were found [`OLD_AFTER`] ago, are about to expire, or if
//! [`CachedKeys::look_again`] is told that the service refused them.

use crate::remote::PAUSE;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider, future};
use aws_sdk_s3::config::Credentials;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex as Cell, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How long keys are believed that are not refused.
const OLD_AFTER: Duration = Duration::from_secs(15 * 60);
/// How long before their end keys are not used any more, if there are others.
const BEFORE_THE_END: Duration = Duration::from_secs(10);
/// How long looking may take; a machine's server may hang.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);

/// Keys, and where they come from.
pub(super) struct CachedKeys {
    source: SharedCredentialsProvider,
    /// Held by who looks.
    kept: Mutex<Option<FetchedKeys>>,
    number: AtomicU64,
    /// When it was looked for others in vain.
    in_vain: Cell<Option<Instant>>,
    /// What must be in no message.
    id: Cell<String>,
}

#[derive(Clone)]
struct FetchedKeys {
    keys: Credentials,
    looked: Instant,
}

impl FetchedKeys {
    fn is_old(&self) -> bool {
        let age = self.looked.elapsed();
        let soon = SystemTime::now() + BEFORE_THE_END;
        let ends = self.keys.expiry().is_some_and(|end| end <= soon);
        age >= OLD_AFTER || (ends && age >= PAUSE)
    }

    fn has_ended(&self) -> bool {
        let now = SystemTime::now();
        self.keys.expiry().is_some_and(|end| end <= now)
    }
}

impl fmt::Debug for CachedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedKeys").finish_non_exhaustive()
    }
}

fn are_the_same(left: &Credentials, right: &Credentials) -> bool {
    let parts = |keys: &Credentials| {
        let token = keys.session_token().map(str::to_owned);
        let (id, secret) = (keys.access_key_id(), keys.secret_access_key());
        (id.to_owned(), secret.to_owned(), token)
    };
    parts(left) == parts(right)
}

impl CachedKeys {
    /// Keys that are looked for when they are wanted.
    pub(super) fn new(source: SharedCredentialsProvider) -> Self {
        Self {
            source,
            kept: Mutex::new(None),
            number: AtomicU64::new(0),
            in_vain: Cell::default(),
            id: Cell::default(),
        }
    }

    /// Which keys are used now.
    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// The id of the key that is used now; empty if none is.
    pub(super) fn id(&self) -> String {
        let id = self.id.lock().unwrap_or_else(PoisonError::into_inner);
        id.clone()
    }

    async fn look(&self, kept: &mut Option<FetchedKeys>) -> Result<Credentials, CredentialsError> {
        let looked = tokio::time::timeout(LOOK_TIMEOUT, self.source.provide_credentials());
        let late = |_| CredentialsError::provider_timed_out(LOOK_TIMEOUT);
        let keys = looked.await.map_err(late)??;
        let known = kept.as_ref().map(|kept| &kept.keys);
        if known.is_some_and(|known| !are_the_same(known, &keys)) {
            self.number.fetch_add(1, Ordering::AcqRel);
        }
        let mut id = self.id.lock().unwrap_or_else(PoisonError::into_inner);
        keys.access_key_id().clone_into(&mut id);
        *kept = Some(FetchedKeys {
            keys: keys.clone(),
            looked: Instant::now(),
        });
        Ok(keys)
    }

    async fn keys(&self) -> Result<Credentials, CredentialsError> {
        let mut kept = self.kept.lock().await;
        let known = kept.clone();
        if let Some(known) = known.as_ref().filter(|known| !known.is_old()) {
            return Ok(known.keys.clone());
        }
        let found = self.look(&mut kept).await;
        // What is still good is better than nothing, when its place cannot be looked at now.
        match known.filter(|known| !known.has_ended()) {
            Some(known) => found.or(Ok(known.keys)),
            None => found,
        }
    }

    /// Looks for keys in the place of those numbered `refused`; whether there are others now.
    pub(super) async fn look_again(&self, refused: u64) -> bool {
        let mut kept = self.kept.lock().await;
        if self.number() != refused {
            return true;
        }
        let in_vain = || self.in_vain.lock().unwrap_or_else(PoisonError::into_inner);
        if in_vain().is_some_and(|at| at.elapsed() < PAUSE) {
            return false;
        }
        if let Err(error) = self.look(&mut kept).await {
            tracing::debug!(%error, "keys that are refused are not renewed");
        }
        let renewed = self.number() != refused;
        *in_vain() = (!renewed).then(Instant::now);
        renewed
    }
}

impl ProvideCredentials for CachedKeys {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.keys())
    }
}
