//! The transport of operations to the order and of answers back.

use super::MetadataError;
use async_trait::async_trait;
use bytes::Bytes;

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

    /// Whether fewer servers are connected now than any answer requires.
    fn is_cut_off(&self) -> bool {
        false
    }

    /// Ends the session. Pending calls are answered first.
    async fn close(&self);
}
