//! Work that goes to its end even if whoever asked for it gives up.
//!
//! A request has a deadline, and its future is dropped when that passes. What counts handles, or
//! tells the caches what an operation did, must not be dropped between two of its steps.

use super::VfsError;

/// Runs `work` as a task of its own and waits for it.
pub(crate) async fn uncut<T: Send + 'static>(
    work: impl Future<Output = Result<T, VfsError>> + Send + 'static,
) -> Result<T, VfsError> {
    tokio::spawn(work).await.unwrap_or_else(|error| {
        Err(VfsError::Internal {
            reason: error.to_string(),
        })
    })
}
