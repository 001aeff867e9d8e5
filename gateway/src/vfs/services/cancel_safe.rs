//! Work that runs to its end even if its caller gives up.
//!
//! A request has a deadline, and its future is dropped when that passes. Work that counts handles,
//! or enters an operation's outcome into the caches, must not be dropped between two of its steps.

use crate::error::VfsError;

/// Runs `work` as a task of its own and waits for it.
pub(in crate::vfs) async fn cancel_safe<T: Send + 'static>(
    work: impl Future<Output = Result<T, VfsError>> + Send + 'static,
) -> Result<T, VfsError> {
    tokio::spawn(work).await.unwrap_or_else(|error| {
        Err(VfsError::Internal {
            reason: error.to_string(),
        })
    })
}
