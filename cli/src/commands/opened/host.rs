//! The keys that a mount leaves on this machine's disk to open the volume: the host key, and the
//! clouds' shares of the volume's key.

use super::{Access, Configured};
use crate::explain::key_failure;
use crate::failure::CommandResult;
use quorumfs_gateway::keys::{HostKey, ShareCache};
use std::path::PathBuf;

/// The file with the host key, in the state directory.
const HOST_KEY: &str = "host.key";
/// The file with cached shares of the clouds, in the state directory.
const KEPT_SHARES: &str = "clouds.shares";

impl Configured {
    /// The key that seals everything that a mount leaves on this machine's disk.
    pub(crate) fn host_key(&self) -> CommandResult<HostKey> {
        let (path, volume) = (self.state.join(HOST_KEY), &self.volume);
        HostKey::open_or_create(&path, volume.id(), volume.principal())
            .map_err(|error| key_failure(&error))
    }

    /// The path of that key.
    pub(in crate::commands) fn host_key_path(&self) -> PathBuf {
        self.state.join(HOST_KEY)
    }

    /// Makes the volume cache the clouds' shares of its key on this machine, unless that is
    /// switched off. A command uses and renews shares that a mount has cached, and caches no
    /// others.
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
                    tracing::warn!(%error, "the cached shares of the clouds could not be removed");
                }
            }
            Err(failure) => {
                tracing::warn!(%failure, "the clouds' shares of the key are not cached here");
            }
        }
    }
}
