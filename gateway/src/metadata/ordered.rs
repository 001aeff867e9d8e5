//! A session with the replicated servers.
//!
//! Operations go through the order. Queries bypass it: the answer is from a state that includes
//! every operation acknowledged to any client before the query. The order would promise no more,
//! and this costs one round trip to a quorum, where the order costs several and a signature. If the
//! replicas do not agree in time, because the data is changing or one of them is late, the query
//! takes its place in the order automatically.
//!
//! What may be as old as the session is asked of the nearest r + 1 replicas, where those are nearer
//! than a quorum: replicas far apart. On one site the stronger query costs the same.

use super::transport::Watching;
use super::{MetadataError, Transport};
use async_trait::async_trait;
use bytes::Bytes;
use quorumfs_bft_runtime::client::{Client, ClientError, Interest};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// How often an operation that was refused for lack of capacity is submitted again.
const BUSY_TRIES: u32 = 50;
/// How long to wait before each.
const BUSY_WAIT: Duration = Duration::from_millis(20);

/// Carries operations through the order, and queries past it.
#[derive(Clone, Debug)]
pub struct Ordered {
    client: Client,
}

impl Ordered {
    /// A transport over an open session.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// The session, to query replicas for their state.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    async fn with_retries<F: Future<Output = Result<Bytes, ClientError>>>(
        &self,
        submit: impl Fn() -> F,
    ) -> Result<Bytes, MetadataError> {
        for _ in 0..BUSY_TRIES {
            match submit().await {
                // It was not sent, so submitting it again executes it once.
                Err(ClientError::Busy { .. }) => tokio::time::sleep(BUSY_WAIT).await,
                outcome => return outcome.map_err(failed),
            }
        }
        submit().await.map_err(failed)
    }
}

fn failed(error: ClientError) -> MetadataError {
    let reason = error.to_string();
    match error {
        ClientError::SessionEnded(_) | ClientError::Closed => {
            MetadataError::SessionEnded { reason }
        }
        ClientError::OutcomeUnknown { .. } | ClientError::UnknownAnswer => {
            MetadataError::OutcomeUnknown { reason }
        }
        ClientError::Configuration(_)
        | ClientError::TooFew { .. }
        | ClientError::Expired { .. }
        | ClientError::Busy { .. }
        | ClientError::TooLarge { .. }
        | ClientError::WatchRefused
        | ClientError::TooManyWatches
        | ClientError::CommandRefused { .. }
        | ClientError::NoRoom => MetadataError::NotExecuted { reason },
    }
}

#[async_trait]
impl Transport for Ordered {
    async fn execute(&self, operation: Bytes) -> Result<Bytes, MetadataError> {
        self.with_retries(|| self.client.execute(operation.clone()))
            .await
    }

    async fn query(&self, query: Bytes) -> Result<Bytes, MetadataError> {
        self.with_retries(|| self.client.read(query.clone())).await
    }

    async fn query_near(&self, query: Bytes) -> Result<Bytes, MetadataError> {
        if self.client.near_reads_pay() {
            self.with_retries(|| self.client.read_in_session(query.clone()))
                .await
        } else {
            self.query(query).await
        }
    }

    async fn watch(
        &self,
        query: Bytes,
        bell: Arc<Notify>,
    ) -> Result<Option<Watching>, MetadataError> {
        let interest = Interest {
            reports: false,
            watches: true,
        };
        let mut observer = self.client.observe(interest);
        self.client.watch(query).await.map_err(failed)?;
        let task = tokio::spawn(async move {
            // Whatever an item says, it asks its reader to look.
            while observer.next().await.is_some() {
                bell.notify_one();
            }
        });
        Ok(Some(Watching::by(task.abort_handle())))
    }

    fn is_cut_off(&self) -> bool {
        self.client.is_cut_off()
    }

    async fn close(&self) {
        if let Err(error) = self.client.close().await {
            tracing::debug!(%error, "the session could not be closed; it ends by being idle");
        }
    }
}
