//! Where work is done that keeps a core busy: sealing and rebuilding.
//!
//! Threads come back in whatever order they please. A simulation, which has to do the same again
//! from the same seed, has the work done on the spot instead.

use super::error::BlockError;

/// Where sealing and rebuilding are done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Workers {
    /// On Tokio's threads for blocking work.
    #[default]
    Threads,
    /// On the spot, in simulations: nothing else goes on meanwhile.
    Inline,
}

impl Workers {
    /// How many pieces of work may be under way.
    pub(super) fn at_a_time(self) -> usize {
        match self {
            Self::Threads => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            Self::Inline => 1,
        }
    }

    pub(super) async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, BlockError> {
        match self {
            Self::Threads => tokio::task::spawn_blocking(work)
                .await
                .map_err(|_| BlockError::Shut),
            Self::Inline => Ok(work()),
        }
    }
}
