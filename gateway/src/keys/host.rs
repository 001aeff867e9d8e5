//! The host key: the key that seals everything that a mount leaves on this machine's disk.
//!
//! ```text
//! host.key:  H, random, wrapped for the principal, signed by it
//!     H ──derive──► the disk cache's key, the journal's key, the share cache's key
//! ```
//!
//! Invariants: the file is void without the principal's own key, for another volume and for another
//! principal. A process that can write to the directory cannot substitute a key of its own, since
//! wrapping takes no secret but signing does. An existing file is never replaced: the data under
//! its key would be lost. The errors are [`KeyError`]s; the format is in docs/FORMAT.md, "Keys and
//! names".

use super::lines::{Lines, TextWriter};
use super::principal::Principal;
use super::wrap::{WRAPPED_BYTES, Wrapped, wrap};
use super::{KeyError, Secret, verify};
use quorumfs_bft::authentication::Signer;
use quorumfs_bft::identity::Signature;
use quorumfs_metadata::identity::VolumeId;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub(super) const TITLE: &str = "quorumfs host key";
pub(super) const FORMAT: u32 = 1;
const WHAT: &str = "host key";
/// The longest file that is read.
const FILE_BYTES_MAX: u64 = 4 << 10;
const WRAPPING: &[u8] = b"quorumfs 2026 host key";
const SIGNING: &[u8] = b"quorumfs 2026 host key v1\0";

/// The key of one machine, for one volume and one principal.
#[derive(Clone, Debug)]
pub struct HostKey(pub(super) Secret);

impl HostKey {
    /// The key in the file at `path`, created if there is none.
    ///
    /// # Errors
    /// If it cannot be read or written, other users could have changed it, or it is not this
    /// principal's for this volume.
    pub fn open_or_create(
        path: &Path,
        volume: VolumeId,
        principal: &Principal,
    ) -> Result<Self, KeyError> {
        match File::open(path) {
            Ok(file) => Self::load(path, file, volume, principal),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Self::create(path, volume, principal)
            }
            Err(source) => Err(failed("read the host key", path, source)),
        }
    }

    /// Hands the key in the file at `path`, if there is one, over to another principal; it no
    /// longer opens for this one. The data under it stays.
    ///
    /// # Errors
    /// If it cannot be read or written, or is not this principal's for this volume.
    pub fn hand_over(
        path: &Path,
        volume: VolumeId,
        from: &Principal,
        to: &Principal,
    ) -> Result<(), KeyError> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(failed("read the host key", path, source)),
        };
        let key = match Self::load(path, file, volume, from) {
            Ok(key) => key,
            // It was handed over before.
            Err(error) => {
                let again = File::open(path).ok();
                let found = again.map(|file| Self::load(path, file, volume, to));
                return found.and_then(Result::ok).map(drop).ok_or(error);
            }
        };
        let fail = |source| failed("write the host key", path, source);
        let next = key.write_aside(path, volume, to)?;
        std::fs::rename(&next, path).map_err(fail)?;
        sync_directory_of(path).map_err(fail)
    }

    /// The key of the disk cache.
    #[must_use]
    pub fn cache(&self) -> Secret {
        self.0.derive("quorumfs 2026 host disk cache", &[])
    }

    /// The key of the journal.
    #[must_use]
    pub fn journal(&self) -> Secret {
        self.0.derive("quorumfs 2026 host journal", &[])
    }

    /// The key of cached shares of the clouds' secret.
    #[must_use]
    pub fn share_cache(&self) -> Secret {
        self.0.derive("quorumfs 2026 host kept shares", &[])
    }

    fn load(
        path: &Path,
        file: File,
        volume: VolumeId,
        principal: &Principal,
    ) -> Result<Self, KeyError> {
        let fail = |source| failed("read the host key", path, source);
        let mode = file.metadata().map_err(fail)?.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            let path = path.to_owned();
            return Err(KeyError::Exposed { path, mode });
        }
        let mut text = String::new();
        file.take(FILE_BYTES_MAX)
            .read_to_string(&mut text)
            .map_err(fail)?;
        Self::from_text(&text, volume, principal)
    }

    fn create(path: &Path, volume: VolumeId, principal: &Principal) -> Result<Self, KeyError> {
        let fail = |source| failed("write the host key", path, source);
        let key = Self(Secret::random()?);
        let next = key.write_aside(path, volume, principal)?;
        // A link, unlike a rename, does not replace a file that appeared meanwhile.
        let linked = std::fs::hard_link(&next, path);
        std::fs::remove_file(&next).map_err(fail)?;
        linked.map_err(fail)?;
        sync_directory_of(path).map_err(fail)?;
        Ok(key)
    }

    /// Writes a temporary file next to `path`; returns its path.
    fn write_aside(
        &self,
        path: &Path,
        volume: VolumeId,
        principal: &Principal,
    ) -> Result<PathBuf, KeyError> {
        let fail = |source| failed("write the host key", path, source);
        let text = self.to_text(volume, principal)?;
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(".new");
        let next = path.with_file_name(name);
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&next)
            .map_err(fail)?;
        file.write_all(text.as_bytes()).map_err(fail)?;
        file.sync_all().map_err(fail)?;
        Ok(next)
    }

    pub(super) fn to_text(
        &self,
        volume: VolumeId,
        principal: &Principal,
    ) -> Result<String, KeyError> {
        let id = principal.id();
        let info = place(WRAPPING, volume, principal);
        let wrapped = wrap(WHAT, &self.0, &id.wrapping, &info)?;
        let signed = signed(volume, principal, &wrapped.0);
        let mut writer = TextWriter::new(TITLE, FORMAT);
        writer.remark("It locks what a mount keeps on this machine's disk, and opens with the");
        writer.remark("principal's key alone. Without it the disk cache begins anew.");
        writer.value("volume", &volume.0);
        writer.value("for", &id.signing.0);
        writer.value("wrapped", &wrapped.0);
        writer.value("signature", &principal.sign(&signed).0);
        Ok(writer.finish().to_string())
    }

    /// The key in a file with this text.
    pub(super) fn from_text(
        text: &str,
        volume: VolumeId,
        principal: &Principal,
    ) -> Result<Self, KeyError> {
        let untrusted = |reason: &str| KeyError::Untrusted {
            what: "the host key",
            reason: reason.into(),
        };
        let lines = Lines::parse(TITLE, FORMAT, text)?;
        let of_another = lines.array::<16>("volume")? != volume.0
            || lines.array::<32>("for")? != principal.id().signing.0;
        if of_another {
            return Err(untrusted(
                "it was made for another volume or another principal's key; if you move it away, \
                 the disk cache starts empty, and uncommitted data in the journal is lost",
            ));
        }
        let wrapped = Wrapped(lines.array::<WRAPPED_BYTES>("wrapped")?);
        let signature = Signature(lines.array("signature")?);
        let signed = signed(volume, principal, &wrapped.0);
        if !verify(&principal.id().signing, &signed, &signature) {
            return Err(untrusted(
                "its signature is not valid: it was changed; if you move it away, the disk cache \
                 starts empty, and uncommitted data in the journal is lost",
            ));
        }
        let info = place(WRAPPING, volume, principal);
        principal.unwrap(WHAT, &wrapped, &info).map(Self)
    }
}

/// The place of a host key, after a label of its use.
fn place(use_of_it: &[u8], volume: VolumeId, principal: &Principal) -> Vec<u8> {
    [use_of_it, &volume.0, &principal.id().signing.0].concat()
}

fn sync_directory_of(path: &Path) -> std::io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("."));
    File::open(parent).and_then(|directory| directory.sync_all())
}

/// The message that the principal signs: that this was wrapped for it.
pub(super) fn signed(volume: VolumeId, principal: &Principal, wrapped: &[u8]) -> Vec<u8> {
    [&place(SIGNING, volume, principal), wrapped].concat()
}

fn failed(doing: &'static str, path: &Path, source: std::io::Error) -> KeyError {
    let path = path.to_owned();
    KeyError::File {
        doing,
        path,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorumfs_bft::identity::ClusterId;

    const VOLUME: VolumeId = ClusterId([7; 16]);

    fn principal(byte: u8) -> Principal {
        Principal::from_seed(Secret::from_bytes([byte; 32]))
    }

    #[test]
    fn a_host_key_is_made_once_and_opens_for_its_principal_and_volume_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("host.key");
        let open = |volume, byte| HostKey::open_or_create(&path, volume, &principal(byte));
        let made = open(VOLUME, 1).unwrap();
        assert_eq!(open(VOLUME, 1).unwrap().cache(), made.cache());
        assert!(open(VOLUME, 2).is_err(), "another principal");
        assert!(open(ClusterId([8; 16]), 1).is_err(), "another volume");
        let names: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
        assert_eq!(names.len(), 1);
        let hand_over =
            |from: u8, to: u8| HostKey::hand_over(&path, VOLUME, &principal(from), &principal(to));
        assert!(
            hand_over(2, 3).is_err(),
            "another principal cannot hand it over"
        );
        hand_over(1, 3).unwrap();
        hand_over(1, 3).unwrap();
        assert_eq!(open(VOLUME, 3).unwrap().cache(), made.cache());
        assert!(open(VOLUME, 1).is_err(), "it was handed over");
        hand_over(3, 1).unwrap();
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
        let other = tempfile::tempdir().unwrap();
        let elsewhere = other.path().join("host.key");
        let second = HostKey::open_or_create(&elsewhere, VOLUME, &principal(1)).unwrap();
        assert_ne!(
            second.cache(),
            made.cache(),
            "each machine has one of its own"
        );
    }

    #[test]
    fn a_host_key_that_another_principal_wrapped_is_refused() {
        // Wrapping needs the public keys alone, and the wrapping stranger would know the key.
        let (mine, stranger) = (principal(1), principal(2));
        let known = HostKey(Secret::from_bytes([3; 32]));
        let good = known.to_text(VOLUME, &mine).unwrap();
        assert!(HostKey::from_text(&good, VOLUME, &mine).is_ok());
        let info = place(WRAPPING, VOLUME, &mine);
        let wrapped = wrap(WHAT, &known.0, &mine.id().wrapping, &info).unwrap();
        let signed = [place(SIGNING, VOLUME, &mine), wrapped.0.to_vec()].concat();
        let mut writer = TextWriter::new(TITLE, FORMAT);
        writer.value("volume", &VOLUME.0);
        writer.value("for", &mine.id().signing.0);
        writer.value("wrapped", &wrapped.0);
        writer.value("signature", &stranger.sign(&signed).0);
        let slipped_in = writer.finish();
        assert!(HostKey::from_text(&slipped_in, VOLUME, &mine).is_err());
    }

    #[test]
    fn a_host_key_that_others_can_read_or_that_is_damaged_is_refused_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("host.key");
        let open = || HostKey::open_or_create(&path, VOLUME, &principal(1));
        open().unwrap();
        let set = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set(0o640);
        assert!(matches!(open(), Err(KeyError::Exposed { .. })));
        set(0o600);
        std::fs::write(&path, "quorumfs host key, format 1\n").unwrap();
        assert!(open().is_err());
        assert_eq!(
            std::fs::read(&path).unwrap(),
            b"quorumfs host key, format 1\n"
        );
    }

    #[test]
    fn keys_derived_from_a_host_key_are_pinned_to_their_golden_bytes() {
        let key = HostKey(Secret::from_bytes([7; 32]));
        crate::keys::lines::assert_golden("host_cache_key", key.cache().expose());
        crate::keys::lines::assert_golden("host_journal_key", key.journal().expose());
        crate::keys::lines::assert_golden("host_kept_shares_key", key.share_cache().expose());
    }
}
