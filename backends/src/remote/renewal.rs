//! Credentials that may be replaced while they are in use.
//!
//! When credentials expire, many requests are refused at the same moment. The first one reads the
//! source again; the others wait for it and use its result. If the source has the same credentials,
//! it is not read again for a while: reading files and asking servers would be useless.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How long after a read no request reads the source again.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// The current credentials.
pub(crate) struct RenewableCredentials<C> {
    now: RwLock<(u64, Arc<C>)>,
    /// When the source was last read; locked during a read.
    looked: Mutex<Option<Instant>>,
}

impl<C> fmt::Debug for RenewableCredentials<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RenewableCredentials")
            .field("number", &self.number())
            .finish_non_exhaustive()
    }
}

impl<C> RenewableCredentials<C> {
    /// Starts with these credentials.
    pub(crate) fn new(found: C) -> Self {
        Self {
            now: RwLock::new((0, Arc::new(found))),
            looked: Mutex::new(None),
        }
    }

    /// The current credentials.
    pub(crate) fn get(&self) -> Arc<C> {
        let now = self.now.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&now.1)
    }

    /// Their number, which changes with them.
    pub(crate) fn number(&self) -> u64 {
        self.now.read().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Calls `find`, unless the credentials were replaced since `refused` was used; `find` returns
    /// `None` if the source has the same ones. Returns whether other credentials are current now.
    pub(crate) async fn renew_credentials(
        &self,
        refused: u64,
        find: impl FnOnce(&C) -> Option<C>,
    ) -> bool {
        let mut looked = self.looked.lock().await;
        if self.number() != refused {
            return true;
        }
        if looked.is_some_and(|at| at.elapsed() < PAUSE) {
            return false;
        }
        *looked = Some(Instant::now());
        let Some(found) = find(&self.get()) else {
            return false;
        };
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        *now = (refused.wrapping_add(1), Arc::new(found));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn concurrent_requests_fetch_keys_once() {
        let renewable = RenewableCredentials::new("old");
        let mut looks = 0;
        for _ in 0..44 {
            let found = renewable.renew_credentials(0, |_| {
                looks += 1;
                Some("new")
            });
            assert!(found.await);
        }
        assert_eq!((looks, renewable.number(), *renewable.get()), (1, 1, "new"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_fetch_without_new_keys_is_not_repeated_for_a_while() {
        let renewable = RenewableCredentials::new("old");
        let mut looks = 0;
        for _ in 0..10 {
            let found = renewable.renew_credentials(0, |_| {
                looks += 1;
                None
            });
            assert!(!found.await);
        }
        assert_eq!(looks, 1);
        tokio::time::advance(PAUSE).await;
        assert!(renewable.renew_credentials(0, |_| Some("new")).await);
    }
}
