//! Cached shares of the clouds' secret, on this machine's disk, so that a mount can start while no
//! cloud answers.
//!
//! ```text
//! clouds.shares:  f + 1 shares of C_e, sealed under a key of the host key
//!     H ──derive──► key ── AES-256-GCM-SIV, bound to volume, realm and epoch
//! ```
//!
//! The shares are cached, and not their secret, because each is proved by its digest in the epoch's
//! signed row: cached shares are verified like shares from a cloud. Invariants: the file holds the
//! shares of one epoch, the newest that was opened here; a file that does not open counts as
//! missing. The errors are [`KeyError`]s; the format is in docs/FORMAT.md, "Keys and names".

use super::lines::{Lines, TextWriter};
use super::shamir::Share;
use super::{KeyError, Secret};
use aes_gcm_siv::aead::{Aead, KeyInit, Payload};
use aes_gcm_siv::{Aes256GcmSiv, Nonce};
use quorumfs_metadata::identity::{RealmEpoch, RealmId, VolumeId};
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

pub(super) const TITLE: &str = "quorumfs kept shares";
pub(super) const FORMAT: u32 = 1;
const WHAT: &str = "cached share";
const PLACE: &[u8] = b"quorumfs 2026 kept shares v1\0";
pub(super) const NONCE_BYTES: usize = 12;
/// Bytes of a share with its cloud's index.
const ENTRY_BYTES: usize = 1 + 32;

/// The place of cached shares, and the key that they are sealed under.
#[derive(Clone, Debug)]
pub struct ShareCache {
    path: PathBuf,
    key: Secret,
    volume: VolumeId,
}

impl ShareCache {
    /// The shares at `path`, sealed under the key that
    /// [`HostKey::share_cache`](super::HostKey::share_cache) derives.
    #[must_use]
    pub fn new(path: PathBuf, key: Secret, volume: VolumeId) -> Self {
        Self { path, key, volume }
    }

    /// Their path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The cached shares of an epoch, each with its cloud's index, if there are any. They are not
    /// proved yet.
    ///
    /// # Errors
    /// If the file is of another volume, newer or damaged.
    pub fn load(
        &self,
        realm: RealmId,
        epoch: RealmEpoch,
    ) -> Result<Option<Vec<(u8, Share)>>, KeyError> {
        match fs::read_to_string(&self.path) {
            Ok(text) => self.opened(&text, realm, epoch),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed("read", error)),
        }
    }

    /// The shares in a file with this text.
    pub(super) fn opened(
        &self,
        text: &str,
        realm: RealmId,
        epoch: RealmEpoch,
    ) -> Result<Option<Vec<(u8, Share)>>, KeyError> {
        let lines = Lines::parse(TITLE, FORMAT, text)?;
        let forged = || KeyError::Forged { what: WHAT };
        if lines.array::<16>("volume")? != self.volume.0 {
            return Err(forged());
        }
        if lines.value("epoch")? != place_of(realm, epoch) {
            return Ok(None);
        }
        let nonce = Nonce::from(lines.array::<NONCE_BYTES>("nonce")?);
        let payload = Payload {
            msg: lines.value("sealed")?,
            aad: &self.place(realm, epoch),
        };
        let opened = self.cipher().decrypt(&nonce, payload);
        let opened = Zeroizing::new(opened.map_err(|_| forged())?);
        let entries = opened.chunks(ENTRY_BYTES).map(|entry| {
            let (index, share) = entry.split_first()?;
            Some((*index, Secret::from_bytes(share.try_into().ok()?)))
        });
        entries.collect::<Option<_>>().map(Some).ok_or_else(forged)
    }

    /// Stores the shares of an epoch in place of earlier ones.
    ///
    /// # Errors
    /// If they cannot be sealed or written.
    pub fn store(
        &self,
        realm: RealmId,
        epoch: RealmEpoch,
        shares: &[(u8, Share)],
    ) -> Result<(), KeyError> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(|error| KeyError::Random {
            reason: error.to_string(),
        })?;
        let text = self.to_text(realm, epoch, shares, nonce)?;
        let mut name = self.path.file_name().unwrap_or_default().to_os_string();
        name.push(".new");
        let next = self.path.with_file_name(name);
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&next)
            .and_then(|mut file| {
                file.write_all(text.as_bytes())?;
                file.sync_all()
            })
            .and_then(|()| fs::rename(&next, &self.path))
            .and_then(|()| super::sealed_key::sync_parent(&self.path))
            .map_err(|error| self.failed("write", error))
    }

    /// Removes them.
    ///
    /// # Errors
    /// If they exist and cannot be removed.
    pub fn forget(&self) -> Result<(), KeyError> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(self.failed("remove", error)),
            _ => Ok(()),
        }
    }

    fn to_text(
        &self,
        realm: RealmId,
        epoch: RealmEpoch,
        shares: &[(u8, Share)],
        nonce: [u8; NONCE_BYTES],
    ) -> Result<String, KeyError> {
        let mut plain = Zeroizing::new(Vec::with_capacity(shares.len() * ENTRY_BYTES));
        for (index, share) in shares {
            plain.push(*index);
            plain.extend_from_slice(share.expose());
        }
        self.sealed_text(realm, epoch, &plain, nonce)
    }

    /// The text of a file with this sealed.
    pub(super) fn sealed_text(
        &self,
        realm: RealmId,
        epoch: RealmEpoch,
        plain: &[u8],
        nonce: [u8; NONCE_BYTES],
    ) -> Result<String, KeyError> {
        let payload = Payload {
            msg: plain,
            aad: &self.place(realm, epoch),
        };
        let sealed = self.cipher().encrypt(&Nonce::from(nonce), payload);
        let sealed = sealed.map_err(|_| KeyError::Forged { what: WHAT })?;
        let mut writer = TextWriter::new(TITLE, FORMAT);
        writer.remark("What the clouds gave to open the volume, for when they are gone. It opens");
        writer.remark("with the host key alone. Without it, the clouds are asked again.");
        writer.value("volume", &self.volume.0);
        writer.value("epoch", &place_of(realm, epoch));
        writer.value("nonce", &nonce);
        writer.value("sealed", &sealed);
        Ok(writer.finish().to_string())
    }

    fn place(&self, realm: RealmId, epoch: RealmEpoch) -> Vec<u8> {
        [PLACE, &self.volume.0, &place_of(realm, epoch)].concat()
    }

    fn cipher(&self) -> Aes256GcmSiv {
        Aes256GcmSiv::new(self.key.expose().into())
    }

    fn failed(&self, doing: &'static str, source: std::io::Error) -> KeyError {
        let path = self.path.clone();
        KeyError::File {
            doing,
            path,
            source,
        }
    }
}

fn place_of(realm: RealmId, epoch: RealmEpoch) -> [u8; 8] {
    let mut place = [0; 8];
    let (head, tail) = place.split_at_mut(4);
    head.copy_from_slice(&realm.0.to_be_bytes());
    tail.copy_from_slice(&epoch.0.to_be_bytes());
    place
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_bft::identity::ClusterId;

    const VOLUME: VolumeId = ClusterId([7; 16]);
    const EPOCH: RealmEpoch = RealmEpoch(3);

    fn at(path: &Path, key: u8, volume: VolumeId) -> ShareCache {
        let key = Secret::from_bytes([key; 32]);
        ShareCache::new(path.join("clouds.shares"), key, volume)
    }

    fn shares() -> Vec<(u8, Share)> {
        [0, 2]
            .map(|index| (index, Secret::from_bytes([index + 40; 32])))
            .to_vec()
    }

    #[test]
    fn cached_shares_open_for_their_epoch_volume_and_host_alone() {
        let directory = tempfile::tempdir().unwrap();
        let kept = at(directory.path(), 1, VOLUME);
        assert!(kept.load(RealmId::ROOT, EPOCH).unwrap().is_none());
        kept.store(RealmId::ROOT, EPOCH, &shares()).unwrap();
        let found = kept.load(RealmId::ROOT, EPOCH).unwrap().unwrap();
        assert_eq!(found, shares());
        for (realm, epoch) in [(RealmId::ROOT, RealmEpoch(4)), (RealmId(9), EPOCH)] {
            assert!(kept.load(realm, epoch).unwrap().is_none());
        }
        let other_host = at(directory.path(), 2, VOLUME);
        assert!(other_host.load(RealmId::ROOT, EPOCH).is_err());
        let other_volume = at(directory.path(), 1, ClusterId([8; 16]));
        assert!(other_volume.load(RealmId::ROOT, EPOCH).is_err());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        kept.forget().unwrap();
        kept.forget().unwrap();
        assert!(kept.load(RealmId::ROOT, EPOCH).unwrap().is_none());
    }

    #[test]
    fn shares_cached_under_another_epoch_do_not_open() {
        let directory = tempfile::tempdir().unwrap();
        let kept = at(directory.path(), 1, VOLUME);
        let text = |epoch| {
            kept.to_text(RealmId::ROOT, epoch, &shares(), [5; 12])
                .unwrap()
        };
        let (old, new) = (text(EPOCH), text(RealmEpoch(4)));
        let label = |line: &&str| line.starts_with("epoch");
        let line = |text: &str| text.lines().find(label).unwrap().to_string();
        let moved = old.replace(&line(&old), &line(&new));
        fs::write(kept.path(), moved).unwrap();
        assert!(kept.load(RealmId::ROOT, RealmEpoch(4)).is_err());
    }

    #[test]
    fn the_sealed_shares_are_pinned_to_their_golden_bytes() {
        let kept = at(Path::new(""), 1, VOLUME);
        let text = kept
            .to_text(RealmId::ROOT, EPOCH, &shares(), [5; 12])
            .unwrap();
        let digest = blake3::hash(text.as_bytes());
        crate::keys::lines::assert_golden("kept_shares_digest", digest.as_bytes());
    }
}
