//! The clouds of a volume, and what all wings above share.
//!
//! ```text
//!   write ─┐   place, put_delay        ┌─► Link ─► cloud 0
//!   read ──┼─► Clouds ─────────────────┼─► Link ─► cloud 1
//!   shares ┘     │ faults, bad shards  └─► Link ─► …
//!                ▼
//!        notes, bounded ──► the reconciler takes them
//! ```

mod capacity;
mod cloud;
mod counters;
mod evidence;
mod health;
mod latency;
mod placement_log;
mod preference;
mod workers;

pub use cloud::Cloud;
pub use counters::CounterValues;
pub use evidence::{CloudEvidence, Testimony};
pub use health::{Refusal, Timeouts};
pub use placement_log::{
    HeldObjectId, ObjectsPage, PackedCursor, PackedPage, PlacementError, PlacementLog, SparsePage,
    UnderReplicatedCursor, UnderReplicatedPage,
};
pub use preference::Preference;
pub use workers::Workers;

pub(super) use cloud::Link;
pub(super) use counters::Counters;
pub(super) use evidence::{Notes, comparable};
pub(super) use latency::Exchange;
