//! Detects that the metadata servers are unreachable, so that calls fail early.
//!
//! A call may take as long as the transport allows, half a minute: the servers may elect a leader,
//! or be busy. But while fewer of them are connected than any answer requires, and none has
//! answered, waiting helps only if they come back. Then every call ends after [`PATIENCE`].
//!
//! Invariant: a call ends early only if throughout its patience too few servers were connected and
//! no call was answered. So a slow cluster, or a client that reaches only few of the servers and is
//! still answered, is unaffected.
//!
//! Possible failure: *all servers are connected and do not reach each other*. That looks like slow
//! servers, and calls take the transport's deadline.

use super::{MetadataError, Transport};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long a call waits for unreachable servers.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// How often a waiting call checks the connections.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The time of the servers' last answer.
#[derive(Debug, Default)]
pub(crate) struct LastAnswer(Mutex<Option<Instant>>);

impl LastAnswer {
    fn last(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for an answer, unless the servers are unreachable.
    pub(crate) async fn wait<T>(
        &self,
        transport: &dyn Transport,
        answer: impl Future<Output = Result<T, MetadataError>>,
    ) -> Result<T, MetadataError> {
        let mut answer = std::pin::pin!(answer);
        let mut gone_since = None;
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => {
                    if answer.is_ok() {
                        *self.last() = Some(Instant::now());
                    }
                    return answer;
                }
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            let now = Instant::now();
            let since = *gone_since.get_or_insert(now);
            let answered = self.last().is_some_and(|last| last >= since);
            if answered || !transport.is_cut_off() {
                gone_since = None;
            } else if now - since >= PATIENCE {
                return Err(MetadataError::OutcomeUnknown {
                    reason: "too few of the metadata servers can be reached; see `quorumfs status`"
                        .to_owned(),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use bytes::Bytes;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[derive(Default)]
    struct Wire(AtomicBool);

    #[async_trait]
    impl Transport for Wire {
        async fn execute(&self, _: Bytes) -> Result<Bytes, MetadataError> {
            std::future::pending().await
        }

        async fn query(&self, _: Bytes) -> Result<Bytes, MetadataError> {
            std::future::pending().await
        }

        fn is_cut_off(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }

        async fn close(&self) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_ends_soon_if_the_servers_are_gone_and_only_then() {
        let (last_answer, wire) = (LastAnswer::default(), Wire::default());
        let began = Instant::now();
        let call = || last_answer.wait(&wire, wire.query(Bytes::new()));
        let slow = tokio::time::timeout(Duration::from_secs(60), call()).await;
        assert!(slow.is_err(), "slow servers are waited for");
        wire.0.store(true, Ordering::Relaxed);
        let ended = call().await;
        assert!(matches!(ended, Err(MetadataError::OutcomeUnknown { .. })));
        let waited = began.elapsed() - Duration::from_secs(60);
        assert!(
            waited >= PATIENCE && waited < PATIENCE + Duration::from_secs(1),
            "{waited:?}"
        );
        // Answers still arrive.
        let others = async {
            loop {
                tokio::time::sleep(Duration::from_secs(3)).await;
                let _ = last_answer.wait(&wire, async { Ok(()) }).await;
            }
        };
        tokio::select! {
            _ = others => {}
            ended = tokio::time::timeout(Duration::from_secs(60), call()) => {
                assert!(ended.is_err());
            }
        }
    }
}
