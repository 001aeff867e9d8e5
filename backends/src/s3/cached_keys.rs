//! The keys that requests are signed with, cached until they are old, expire or are refused.
//!
//! The SDK would cache the keys for a quarter of an hour, even if the service refuses them. So its
//! cache is off and each request asks this one: it answers from memory, and reads the keys' source
//! again if they were read [`OLD_AFTER`] ago, are about to expire, or were refused
//! ([`CachedKeys::renew_credentials`]).

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

/// How long keys are valid that are not refused.
const OLD_AFTER: Duration = Duration::from_secs(15 * 60);
/// How long before their expiry keys are no longer used, if there are others.
const EXPIRY_MARGIN: Duration = Duration::from_secs(10);
/// The time limit of a read; a machine's metadata server may hang.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// Keys and their source.
pub(super) struct CachedKeys {
    source: SharedCredentialsProvider,
    /// Locked during a read of the source.
    cached: Mutex<Option<FetchedKeys>>,
    number: AtomicU64,
    /// When the source was last read without finding other keys.
    last_failure: Cell<Option<Instant>>,
    /// The key id, which is hidden in messages.
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
        let soon = SystemTime::now() + EXPIRY_MARGIN;
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
    /// Keys that are read when the first request needs them.
    pub(super) fn new(source: SharedCredentialsProvider) -> Self {
        Self {
            source,
            cached: Mutex::new(None),
            number: AtomicU64::new(0),
            last_failure: Cell::default(),
            id: Cell::default(),
        }
    }

    /// The number of the current keys.
    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// The id of the current key; empty if there is none.
    pub(super) fn id(&self) -> String {
        let id = self.id.lock().unwrap_or_else(PoisonError::into_inner);
        id.clone()
    }

    async fn fetch(
        &self,
        cached: &mut Option<FetchedKeys>,
    ) -> Result<Credentials, CredentialsError> {
        let looked = tokio::time::timeout(FETCH_TIMEOUT, self.source.provide_credentials());
        let late = |_| CredentialsError::provider_timed_out(FETCH_TIMEOUT);
        let keys = looked.await.map_err(late)??;
        let known = cached.as_ref().map(|cached| &cached.keys);
        if known.is_some_and(|known| !are_the_same(known, &keys)) {
            self.number.fetch_add(1, Ordering::AcqRel);
        }
        let mut id = self.id.lock().unwrap_or_else(PoisonError::into_inner);
        keys.access_key_id().clone_into(&mut id);
        *cached = Some(FetchedKeys {
            keys: keys.clone(),
            looked: Instant::now(),
        });
        Ok(keys)
    }

    async fn keys(&self) -> Result<Credentials, CredentialsError> {
        let mut cached = self.cached.lock().await;
        let known = cached.clone();
        if let Some(known) = known.as_ref().filter(|known| !known.is_old()) {
            return Ok(known.keys.clone());
        }
        let found = self.fetch(&mut cached).await;
        // If the source cannot be read now, keys that are still valid are used on.
        match known.filter(|known| !known.has_ended()) {
            Some(known) => found.or(Ok(known.keys)),
            None => found,
        }
    }

    /// Reads the source after the keys numbered `refused` were refused; returns whether there are
    /// other keys now.
    pub(super) async fn renew_credentials(&self, refused: u64) -> bool {
        let mut cached = self.cached.lock().await;
        if self.number() != refused {
            return true;
        }
        let last_failure = || {
            self.last_failure
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        if last_failure().is_some_and(|at| at.elapsed() < PAUSE) {
            return false;
        }
        if let Err(error) = self.fetch(&mut cached).await {
            tracing::debug!(%error, "cannot read new keys in place of the refused ones");
        }
        let renewed = self.number() != refused;
        *last_failure() = (!renewed).then(Instant::now);
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
