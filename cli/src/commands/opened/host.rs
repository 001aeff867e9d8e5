//! What a mount leaves on this machine's disk to open the volume with: the host key, and the
//! clouds' shares of the volume's key.

use super::{Access, Configured};
use crate::commands::explain::key_failure;
use crate::failure::Outcome;
use quorumfs_gateway::keys::{HostKey, ShareCache};
use std::path::PathBuf;

/// The file with the host key, in the state directory.
const HOST_KEY: &str = "host.key";
/// The file with shares that the clouds gave, in the state directory.
const KEPT_SHARES: &str = "clouds.shares";

impl Configured {
    /// What locks everything that a mount leaves on this machine's disk.
    pub(crate) fn host_key(&self) -> Outcome<HostKey> {
        let (path, volume) = (self.state.join(HOST_KEY), &self.volume);
        HostKey::open_or_create(&path, volume.id(), volume.principal())
            .map_err(|error| key_failure(&error))
    }

    /// Where that key lies.
    pub(in crate::commands) fn host_key_path(&self) -> PathBuf {
        self.state.join(HOST_KEY)
    }

    /// Has the volume keep the clouds' shares of its key on this machine, unless that is not
    /// wanted. A command uses and renews what a mount has kept, and keeps nothing that was not.
    pub(super) fn keep_shares(&self, access: Access) {
        let kept = self.state.join(KEPT_SHARES).exists();
        if self.is_guest || !(kept || matches!(access, Access::Mount { .. })) {
            return;
        }
        let kept = self.host_key().map(|key| {
            let path = self.state.join(KEPT_SHARES);
            ShareCache::new(path, key.share_cache(), self.volume.id())
        });
        match kept {
            Ok(kept) if self.configuration.keys.keep_cloud_secret => self.volume.cache_shares(kept),
            Ok(kept) => {
                if let Err(error) = kept.forget() {
                    tracing::warn!(%error, "what was kept of the clouds' shares stays");
                }
            }
            Err(failure) => {
                tracing::warn!(%failure, "the clouds' shares of the key are not kept here");
            }
        }
    }
}
