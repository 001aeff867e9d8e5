//! The transport of operations to the order and of answers back.

use super::MetadataError;
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// A watch, until it is dropped.
#[derive(Debug)]
pub struct Watching(AbortHandle);

impl Watching {
    /// A watch that this task passes on.
    pub(super) const fn by(task: AbortHandle) -> Self {
        Self(task)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Carries encoded operations of one session.
///
/// Many calls may be under way at once; they may be executed in any order. A call returns once a
/// quorum vouches for the answer, or with an error after the transport's own deadline.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Executes an operation in the order.
    async fn execute(&self, operation: Bytes) -> Result<Bytes, MetadataError>;

    /// Answers a query from a state that includes every operation acknowledged to any client
    /// before.
    async fn query(&self, query: Bytes) -> Result<Bytes, MetadataError>;

    /// Answers a query from a state that includes everything that this session was shown before. It
    /// may lack what others have changed since, and is answered by the nearest servers, if they
    /// are nearer than those that [`query`](Self::query) takes.
    async fn query_near(&self, query: Bytes) -> Result<Bytes, MetadataError> {
        self.query(query).await
    }

    /// Has `bell` notified when the answer to `query` may have changed, as long as the result is
    /// held. `None`: this transport cannot, so the caller asks from time to time, which it does in
    /// any case.
    async fn watch(
        &self,
        _query: Bytes,
        _bell: Arc<Notify>,
    ) -> Result<Option<Watching>, MetadataError> {
        Ok(None)
    }

    /// Whether fewer servers are connected now than any answer requires.
    fn is_cut_off(&self) -> bool {
        false
    }

    /// Ends the session. Pending calls are answered first.
    async fn close(&self);
}
