//! The write: slices become an object on at least w clouds.
//!
//! ```text
//!   slices ─► sealed and coded (slices) ─► put on n clouds (quorum) ─► w acknowledged: returned
//!                                                  │
//!                                                  └─► the other puts go on (in_flight)
//!                                                         │ after the object's own commit
//!                                                         ▼
//!                                                  queue of confirmations ─► the reconciler
//! ```

mod quorum;
mod slices;
