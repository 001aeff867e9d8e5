//! Where backups of the metadata lie on the clouds: the objects that no metadata row names.
//!
//! ```text
//!   part    class 4   some rows: sealed, coded and spread like a block; its place is in a point
//!   point   class 5   names the parts of a recovery point: one whole copy on each cloud
//!   record  class 6   says that an incarnation of the volume has begun: the same, never deleted
//! ```
//!
//! Invariants:
//! * **Nothing is recorded that was not read back.** A part, a point or a record counts once n − f
//!   clouds have given back what was put there: f of them may lie afterwards and f others vanish.
//! * **Names follow from ids**, and ids from the incarnation and the sequence of the point, so that
//!   a recovery finds points by listing the clouds, and everything else by the point.
//! * What is here is not interpreted. The bytes of points and records prove themselves to
//!   [`crate::backup`], whose parts have digests in their points.
//!
//! Failures: *a cloud that is away* lacks its shards of the parts that are made meanwhile; nothing
//! puts them later, until a backup writes all rows anew. *A name that is taken* by other bytes is
//! passed over, as for every object.

mod part;
mod record;
mod store;

pub use part::{BackupPart, PartShard};
pub use record::{Lineage, incarnation_record, is_incarnation_record};
pub use store::{BackupError, BackupStore, ListedCloud};
