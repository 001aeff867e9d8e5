//! How operations reach the order and answers come back.

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

    /// Answers a query from a state in which everything has happened that was acknowledged to
    /// anybody before.
    async fn query(&self, query: Bytes) -> Result<Bytes, MetadataError>;

    /// Whether fewer servers are connected now than any answer takes.
    fn is_cut_off(&self) -> bool {
        false
    }

    /// Ends the session. What is under way is answered first.
    async fn close(&self);
}
