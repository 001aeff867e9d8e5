//! The sessions of this state directory that may still have the volume mounted.
//!
//! The replicas know which sessions have the volume mounted. If a mount's process was killed, its
//! session keeps the volume until the replicas end it for its silence, half an hour later; to them
//! the mount may still be alive. On this machine more is known: a mount holds the lock of its state
//! directory, so while another mount holds that lock, the earlier process has ended. A mount leaves
//! the id of its session in the directory, and the next one takes over the volume from that session
//! and no other, without `--takeover`; also if the two could share it, so that what the dead one
//! holds is released.
//!
//! Invariants:
//! * An id is written before its session asks for the mount, and stays until a later session has
//!   it: whenever a process dies, the sessions that may hold the volume are recorded.
//! * A copied directory is ignored. Its original may be mounted elsewhere, and the two would take
//!   the volume from each other in turns. So the file holds its own inode number, which a copy does
//!   not have; a mount from a copy is refused, and its user decides. (A copy of a whole disk is not
//!   noticed.)
//! * A file that is damaged, missing, or about another cluster is ignored as well.

use crate::arguments::TakeoverFrom;
use crate::directory;
use quorumfs_bft::identity::{ClusterId, SessionId};
use quorumfs_bft_runtime::client::Client;
use quorumfs_gateway::metadata::{MetadataClient, MountMode, Takeover};
use quorumfs_gateway::vfs::VfsError;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// The file in a volume's state directory.
pub(super) const FILE: &str = "mounted";

/// Consecutive mounts of unknown outcome; older ones are forgotten.
const SESSIONS_MAX: usize = 8;

/// The file, and the cluster of its sessions.
#[derive(Clone, Debug)]
pub(super) struct MountedSessions {
    path: PathBuf,
    cluster: ClusterId,
}

impl MountedSessions {
    pub(super) fn new(path: PathBuf, cluster: ClusterId) -> Self {
        Self { path, cluster }
    }

    /// Mounts the volume for an open session. Mounts that are in the way lose it if `takeover` says
    /// so. One of a process of this directory does otherwise, since the caller holds its lock.
    ///
    /// # Errors
    /// As [`MetadataClient::mount`].
    pub(super) async fn mount(
        &self,
        client: &Client,
        metadata: &MetadataClient,
        takeover: Option<TakeoverFrom>,
        mode: MountMode,
    ) -> Result<(), VfsError> {
        let ended = self.recall();
        let own = client.session();
        let named = matches!(takeover, Some(TakeoverFrom::Session(_)));
        let takeover = match takeover {
            Some(TakeoverFrom::All) => Takeover::OfAny,
            Some(TakeoverFrom::Session(session)) => Takeover::Of(session),
            None => {
                let mounts = metadata.mounts().await?;
                let mut holders = mounts.iter().map(|mount| mount.session);
                let ended = holders.find(|holder| ended.contains(holder));
                ended.map_or(Takeover::OfUnresponsive, Takeover::Of)
            }
        };
        if let Takeover::Of(session) = takeover {
            tracing::info!(%session, "taking over the volume from a mount");
        }
        let all: Vec<SessionId> = ended.iter().copied().chain(own).collect();
        self.keep(&all);
        let mounted = metadata.mount(takeover, mode).await;
        match &mounted {
            // Those of this directory that were not named may still have the volume mounted.
            Ok(()) if named => {}
            Ok(()) => self.keep(own.as_slice()),
            Err(VfsError::Refused { .. }) => self.keep(&ended),
            // It may still be executed.
            Err(_) => {}
        }
        mounted
    }

    /// Sessions that mounted from here; their processes have ended if the caller holds the lock.
    pub(super) fn recall(&self) -> Vec<SessionId> {
        match self.read() {
            Ok(sessions) => sessions,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                let path = self.path.display();
                tracing::warn!(%path, %error, "the sessions that mounted from here are unknown");
                Vec::new()
            }
        }
    }

    fn read(&self) -> std::io::Result<Vec<SessionId>> {
        let mut file = File::open(&self.path)?;
        let mut bytes = Vec::new();
        // One more than the maximum, to notice a file that is too long.
        let most = self.cluster.0.len() + size_of::<u64>() * (1 + SESSIONS_MAX) + 1;
        Read::by_ref(&mut file)
            .take(most as u64)
            .read_to_end(&mut bytes)?;
        let damaged = |what: &str| std::io::Error::new(ErrorKind::InvalidData, what);
        let (cluster, numbers) = bytes
            .split_at_checked(self.cluster.0.len())
            .ok_or_else(|| damaged("it is truncated"))?;
        if cluster != self.cluster.0 {
            return Err(damaged("it is about another cluster"));
        }
        let (numbers, rest) = numbers.as_chunks::<{ size_of::<u64>() }>();
        let mut numbers = numbers.iter().copied().map(u64::from_le_bytes);
        if !rest.is_empty() || numbers.len() > 1 + SESSIONS_MAX {
            return Err(damaged("its length is invalid"));
        }
        if numbers.next() != Some(file.metadata()?.ino()) {
            return Err(damaged("it is a copy, and the original may be mounted"));
        }
        Ok(numbers.map(SessionId).collect())
    }

    /// Records that these sessions may have the volume, the latest last.
    pub(super) fn keep(&self, sessions: &[SessionId]) {
        let latest = sessions.len().saturating_sub(SESSIONS_MAX);
        let latest = sessions.get(latest..).unwrap_or_default();
        let kept = directory::replace_by(&self.path, |file| {
            let mut content = self.cluster.0.to_vec();
            content.extend(file.metadata()?.ino().to_le_bytes());
            content.extend(latest.iter().flat_map(|it| it.0.to_le_bytes()));
            Ok(content)
        });
        if let Err(failure) = kept {
            tracing::warn!(%failure, "if this mount is killed, the next one needs --takeover");
        }
    }

    /// Records that no session of this directory has the volume.
    pub(super) fn forget(&self) {
        if let Err(error) = fs::remove_file(&self.path)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_hold_the_volume_is_known_here_and_to_no_copy() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let of =
            |path: &PathBuf, cluster| MountedSessions::new(path.clone(), ClusterId([cluster; 16]));
        let held = of(&path, 1);
        assert_eq!(held.recall(), []);
        held.keep(&[SessionId(7), SessionId(8)]);
        assert_eq!(held.recall(), [SessionId(7), SessionId(8)]);
        assert_eq!(of(&path, 2).recall(), [], "another cluster's");

        let copy = directory.path().join("copy");
        fs::copy(&path, &copy).unwrap();
        assert_eq!(of(&copy, 1).recall(), []);
        fs::rename(&copy, &path).unwrap();
        assert_eq!(held.recall(), [], "brought back from a copy");

        let many: Vec<_> = (1..=20).map(SessionId).collect();
        held.keep(&many);
        assert_eq!(held.recall(), many[20 - SESSIONS_MAX..]);
        let whole = fs::read(&path).unwrap();
        let mut longer = whole.clone();
        longer.extend(whole.iter().cycle().take(8));
        for rubbish in [&whole[..whole.len() - 1], &longer, b"rubbish", b""] {
            fs::write(&path, rubbish).unwrap();
            assert_eq!(held.recall(), []);
        }
        held.forget();
        held.forget();
        assert!(!path.exists());
    }
}
