//! Threads for work that keeps a core busy: sealing and rebuilding.
//!
//! Threads finish in any order. A simulation, which has to repeat a run exactly from its seed, runs
//! the work inline instead.

use crate::blocks::object::BlockError;

/// Where sealing and rebuilding run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Workers {
    /// On Tokio's threads for blocking work.
    #[default]
    Threads,
    /// Inline, for simulations: nothing else runs meanwhile.
    Inline,
}

impl Workers {
    /// How many tasks may run concurrently.
    pub(in crate::blocks) fn at_a_time(self) -> usize {
        match self {
            Self::Threads => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            Self::Inline => 1,
        }
    }

    pub(in crate::blocks) async fn run<T: Send + 'static>(
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
