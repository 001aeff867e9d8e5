//! Backups of the metadata on the clouds, and recovery from them when all servers are lost.
//!
//! ```text
//!   servers ──certificate, rows──► state copy ──changed rows──► parts ─┐
//!                                  (this machine)                      ├──► clouds
//!                                                 recovery point ──────┘
//!
//!   clouds ──newest point that opens, parts──► rows, proved against the certificate
//!                                                │ spooled on this machine
//!                                                ▼
//!   new servers, a new incarnation ◄──Load … FinishLoading
//! ```
//!
//! A *backup* takes a copy of the servers' rows at a stable checkpoint, writes those that changed
//! since the backup before, and publishes a *recovery point* that names all parts. While the point
//! is retained, the objects that its files need are not deleted.
//!
//! A *recovery* begins another *incarnation* of the volume: other servers, ids that no earlier
//! incarnation has assigned, and a record on the clouds that keeps the collectors of the earlier
//! one away.
//!
//! # Invariants
//!
//! * **A point is published after all of its parts were read back**, and replaces the point before
//!   only then. So at every moment the newest point on the clouds is whole.
//! * **What a point needs is retained before it is published**, and released after another one is.
//! * **No row is loaded that was not proved.** All rows of the service and one node of the
//!   library's part determine the digest that a quorum of the old servers signed.
//! * **Memory is bounded** by a part for each layer.
//!
//! # Failures
//!
//! *A backup that dies* leaves parts that no point names: the next sweep of backups deletes them.
//! *f clouds lie or vanish*: points and parts are read from the others. *A cloud shows an old point
//! and hides the newest*: n − f clouds are asked, and f + 1 of those that hold the newest are among
//! them. *A recovery that dies* goes on where it stopped.
//!
//! | Module | Content |
//! |---|---|
//! | `point` | a recovery point: its bytes, and who may make it |
//! | `rows` | the bytes of a part |
//! | `merge` | rows from the layers of a backup |
//! | [`maker`](BackupMaker) | taking a backup |
//! | `reading`, `last` | the rows of the next backup; what this machine has published last |
//! | `find` | the newest points on the clouds, and their rows, proved |
//! | `spool` | proved rows on this machine, until they are loaded |
//! | `load` | loading them into new servers |
//! | `clouds`, `anew` | a volume's clouds without its servers; the next incarnation |

mod anew;
mod clouds;
mod error;
mod find;
mod last;
mod load;
mod maker;
mod merge;
mod point;
mod reading;
mod rows;
mod spool;

#[cfg(test)]
mod tests;

pub use anew::{begin_incarnation, next_incarnation};
pub use clouds::clouds_alone;
pub use error::RecoveryError;
pub use find::{FoundPoints, find_points, spool_rows};
pub use load::{Loading, load_rows};
pub use maker::{BackupConfig, BackupMaker, Made, Round};
pub use point::{Layer, RecoveryPoint};
pub use spool::Spool;
