//! Budgets of bytes in memory: a reader or writer waits until its bytes are available.

use crate::blocks::object::BlockError;
use tokio::sync::{Semaphore, SemaphorePermit};

/// A byte budget, counted in KiB so that it fits the semaphore.
#[derive(Debug)]
pub(in crate::blocks) struct ByteBudget {
    kib: Semaphore,
    most: u32,
}

impl ByteBudget {
    pub(in crate::blocks) fn new(bytes: usize) -> Self {
        let most = u32::try_from(bytes >> 10)
            .unwrap_or(u32::MAX >> 4)
            .clamp(1, u32::MAX >> 4);
        Self {
            kib: Semaphore::new(most as usize),
            most,
        }
    }

    /// Waits until so many bytes are available. A request above the whole budget gets all of it.
    pub(in crate::blocks) async fn hold(
        &self,
        bytes: u64,
    ) -> Result<SemaphorePermit<'_>, BlockError> {
        let kib = u32::try_from(bytes.div_ceil(1024))
            .unwrap_or(u32::MAX)
            .min(self.most);
        self.kib
            .acquire_many(kib)
            .await
            .map_err(|_| BlockError::Shut)
    }
}
