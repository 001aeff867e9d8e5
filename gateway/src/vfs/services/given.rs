//! What a file system was given.

use super::caller::{Caller, GroupCache};
use super::key_rotation::KeyRotation;
use super::options::VfsOptions;
use crate::metadata::MetadataClient;
use crate::slices::SliceStore;
use crate::volume::Volume;
use quorumfs_metadata::attributes::{Attributes, Credentials, Mode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// The volume, a session with its servers, its slices, and the options; shared by all parts.
pub(in crate::vfs) struct Services {
    pub(in crate::vfs) volume: Arc<Volume>,
    pub(in crate::vfs) metadata: Arc<MetadataClient>,
    pub(in crate::vfs) slices: Arc<dyn SliceStore>,
    pub(in crate::vfs) options: VfsOptions,
    pub(super) key_rotation: KeyRotation,
    groups: GroupCache,
    /// Wakes the background task before its time.
    pub(in crate::vfs) pressure: Arc<Notify>,
    stopped: AtomicBool,
}

impl Services {
    pub(in crate::vfs) fn new(
        volume: Arc<Volume>,
        metadata: Arc<MetadataClient>,
        slices: Arc<dyn SliceStore>,
        options: VfsOptions,
    ) -> Arc<Self> {
        Arc::new(Self {
            volume,
            metadata,
            slices,
            options,
            key_rotation: KeyRotation::default(),
            groups: GroupCache::default(),
            pressure: Arc::default(),
            stopped: AtomicBool::new(false),
        })
    }

    /// The background ends.
    pub(in crate::vfs) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.pressure.notify_one();
    }

    /// Whether the background is to end.
    pub(in crate::vfs) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// The credentials of an operation on behalf of the caller.
    pub(in crate::vfs) fn credentials(&self, caller: &Caller) -> Credentials {
        self.groups.credentials(caller)
    }

    /// Whether the caller keeps the set-group-id bit of a file that it changes, as far as its group
    /// counts. Its groups are looked up only if a mode has the bit.
    pub(in crate::vfs) fn may_keep_group(&self, caller: &Caller, seen: &Attributes) -> bool {
        !seen.mode.has(Mode::SET_GID) || self.credentials(caller).may_keep_group(seen.gid)
    }
}
