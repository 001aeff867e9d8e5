//! The reconciler: what the clouds hold becomes what the metadata says that they should hold.
//!
//! ```text
//!   queue of confirmations ─► confirm ──────────────────────────────► ordered
//!   under-replicated ───────► completion ─► rebuilt, put ──confirm──► ordered
//!   notes of bad shards ────► repair ─────► rebuilt, put, renamed ──► ordered
//!   notes of faults ────────► testify ──────────────────────────────► ordered
//!   all objects ────────────► scrub ──────► withdrawn, completed
//!   sparse packs ───────────► compact ────► live slices moved
//!   suspended clouds ───────► probe
//! ```

mod compact;
mod completion;
mod repair;
mod repair_backoff;
mod scrub;
mod scrub_report;
mod scrub_shares;
mod status;
mod throttle;

pub use compact::{Compacted, Compaction, CompactionError, SparsePack};
pub use scrub::{ScrubConfig, ScrubDepth};
pub use scrub_report::{CloudFindings, ScrubReport};
pub use status::{BlockStatus, CloudStatus};

pub(super) use completion::InFlight;
pub(super) use repair::Repairs;
pub(super) use repair_backoff::RepairBackoff;
