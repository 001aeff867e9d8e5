//! Real processes for tests: the program itself, a whole demo, and a private mount namespace.
//!
//! What always holds: every process that a test starts is stopped by its own process id when its
//! handle is dropped, however the test ends; every wait has a deadline; everything lies in a
//! temporary directory with a short path (the path of a Unix socket has 108 bytes).
//!
//! Failures here are failures of the test, hence the panics.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod clock;
mod cluster;
mod command;
mod demo;
mod files;
mod gateway;
mod machine;
mod mounted;
mod needles;
mod network;
mod running;
mod served;
mod signed;
mod terminal;

pub use clock::SteppedClock;
pub use cluster::Cluster;
pub use command::{Private, Quorumfs, binary};
pub use demo::Demo;
pub use files::{drop_caches, flip_byte, is_mounted, noise, require_fuse, require_private_mounts};
pub use gateway::{Gateway, slice_keys, unlocked};
pub use machine::RecoveredMachine;
pub use mounted::{StoppedProcess, kill_mount, mount_in_background};
pub use needles::{Needle, NeedleHit, search};
pub use network::{Cable, OwnNetwork};
pub(crate) use running::Reaped;
pub use running::{Finished, OVERHEAD_MIB, Running, peak_mib, run_in_view_of};
pub use served::{HttpAnswer, LinkGateway};
pub use signed::{Answer, Keys, Request};

use std::time::{Duration, Instant};

/// Waits until something holds, for at most `patience`.
///
/// # Panics
/// If it does not hold by then.
#[track_caller]
pub fn eventually(what: &str, patience: Duration, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(
            began.elapsed() < patience,
            "timed out after {patience:?}: {what}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}
