//! Credentials that others may be put in the place of while they are used.
//!
//! Many requests are refused at the same moment when credentials expire. The first one looks where
//! they came from, the others wait for it and use what it found. Where the same is found again,
//! no request looks for a while: files would be read and servers asked in vain.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How long after a look no request looks again.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// What proves the right to ask, for as long as it is believed to.
pub(crate) struct Lent<C> {
    now: RwLock<(u64, Arc<C>)>,
    /// Held by who looks; when that was.
    looked: Mutex<Option<Instant>>,
}

impl<C> fmt::Debug for Lent<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent")
            .field("number", &self.number())
            .finish_non_exhaustive()
    }
}

impl<C> Lent<C> {
    /// What was found at first.
    pub(crate) fn new(found: C) -> Self {
        Self {
            now: RwLock::new((0, Arc::new(found))),
            looked: Mutex::new(None),
        }
    }

    /// What is used now.
    pub(crate) fn get(&self) -> Arc<C> {
        let now = self.now.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&now.1)
    }

    /// Its number: it changes with what is used.
    pub(crate) fn number(&self) -> u64 {
        self.now.read().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Has `find` look, unless others were found since `refused` was used; it answers nothing if
    /// the same is there. Tells whether others are used now.
    pub(crate) async fn look_again(
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
        let lent = Lent::new("old");
        let mut looks = 0;
        for _ in 0..44 {
            let found = lent.look_again(0, |_| {
                looks += 1;
                Some("new")
            });
            assert!(found.await);
        }
        assert_eq!((looks, lent.number(), *lent.get()), (1, 1, "new"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_fetch_without_new_keys_is_not_repeated_for_a_while() {
        let lent = Lent::new("old");
        let mut looks = 0;
        for _ in 0..10 {
            let found = lent.look_again(0, |_| {
                looks += 1;
                None
            });
            assert!(!found.await);
        }
        assert_eq!(looks, 1);
        tokio::time::advance(PAUSE).await;
        assert!(lent.look_again(0, |_| Some("new")).await);
    }
}
