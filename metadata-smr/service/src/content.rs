//! Where files' bytes are: extents over slices over objects.
//!
//! ```text
//!   file      |---- extent ----|          |-- extent --|        offsets in the file
//!                    |                          |
//!   slice     |------+---- plaintext -----------+-----|         one data key, counted references
//!                    |
//!   object    |------+---- sealed stream --------------|        coded into n shards, live bytes
//! ```
//!
//! | Module | What it does |
//! |---|---|
//! | `commit` | new content of a file, all of it checked |
//! | `bring_in` | new objects and slices, under the session's own ids |
//! | `clone_range` | bytes of one file in another: both refer to the same slices |
//! | `move_slices` | slices of sparse packs, moved into other packs |
//! | `reseal_slices` | slices under an older key epoch, sealed anew |
//! | `move_shards` | shards of draining clouds, moved to active ones |
//! | `extent_map` | replaces, splits, cuts and removes extents |
//! | `forget` | objects without references, and the end of their rows |
//! | `references` | counts the references to slices and the live bytes of objects |
//! | `placement` | shards: the proof that a commit needs; completion, repair and scrubs |
//! | `testify` | findings of faults of clouds, within a bound |
//!
//! Invariants: extents of a file do not overlap. A slice's references are the extents that name it,
//! plus those whose release waits in the reap queue. An object's live bytes are the sealed bytes of
//! its slices. An object without slices is in the queue of the unreferenced, one that has slices
//! and lacks shards is in the queue of the under-replicated, and no other is. A pack lists its
//! slices, and is in the queue of the sparse while less than half of it is needed.

mod bring_in;
mod clone_range;
mod commit;
mod extent_map;
mod forget;
mod move_shards;
mod move_slices;
mod placement;
mod references;
mod reseal_slices;
mod testify;

pub(crate) use bring_in::claim_object;
pub(crate) use commit::commit;
pub(crate) use extent_map::{Remainder, extents_after, reap_extents, remove_all, truncate};
pub(crate) use forget::{
    fates, forget, garbage, narrow, numbered, release, release_expired, retain, retained,
};
pub(crate) use move_shards::move_shards;
pub(crate) use move_slices::move_slices;
pub(crate) use placement::{confirm, mark_checked, replace, withdraw};
pub(crate) use references::{release_slice, settle_dropped};
pub(crate) use reseal_slices::reseal_slices;
pub(crate) use testify::{evidence, testify};
