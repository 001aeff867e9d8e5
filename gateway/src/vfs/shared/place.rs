//! Where something was when it was shared: sealed, so that servers see no path.

use super::SharedWithMe;
use crate::error::VfsError;
use crate::keys::ValueBinding;
use crate::vfs::services::Services;
use quorumfs_metadata::identity::{InodeId, InodeVersion};
use quorumfs_metadata::limits::SYMLINK_BYTES_MAX;
use quorumfs_metadata::row::Sealed;
use rustix::io::Errno;

/// The name of the whole volume among what is shared.
const WHOLE: &[u8] = b"volume";

/// Where something was when it was shared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedPlace {
    /// The directory that it was in; the root is in itself.
    pub parent: InodeId,
    /// Its path from the root, without a slash in front; empty for the root.
    pub path: Vec<u8>,
}

impl SharedPlace {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        match self.path.rsplit(|byte| *byte == b'/').next() {
            None | Some(b"") => WHOLE,
            Some(name) => name,
        }
    }

    /// The names on the way to it.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        let names = self.path.split(|byte| *byte == b'/');
        names.filter(|name| !name.is_empty())
    }

    fn to_bytes(&self) -> Vec<u8> {
        [self.parent.0.to_be_bytes().as_slice(), &self.path].concat()
    }

    /// A place, as it was sealed. A writer may have sealed anything: a path that leads elsewhere is
    /// none.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (parent, path) = bytes.split_first_chunk::<8>()?;
        let place = Self {
            parent: InodeId(u64::from_be_bytes(*parent)),
            path: path.to_vec(),
        };
        let is_name = |name: &[u8]| !matches!(name, b"" | b"." | b"..") && !name.contains(&0);
        let mut names = path.split(|byte| *byte == b'/');
        let leads = path.is_empty() || names.all(is_name);
        (leads && path.len() <= SYMLINK_BYTES_MAX).then_some(place)
    }

    /// Seals it for the inode.
    pub(in crate::vfs) fn seal(
        &self,
        services: &Services,
        inode: InodeId,
    ) -> Result<Sealed, VfsError> {
        if self.path.len() > SYMLINK_BYTES_MAX {
            return Err(VfsError::refused("share", Errno::NAMETOOLONG));
        }
        let key = services.volume.current_key()?;
        let binding = ValueBinding::share_place(inode);
        let small = key.small_value_key();
        Ok(Sealed {
            epoch: key.epoch(),
            bytes: small.seal(binding, InodeVersion(0), &self.to_bytes())?,
        })
    }
}

impl SharedWithMe {
    /// Opens the place of an inode.
    pub(in crate::vfs) async fn open(
        &self,
        inode: InodeId,
        sealed: &Sealed,
    ) -> Result<SharedPlace, VfsError> {
        let key = self.services.key_of(sealed.epoch).await?;
        let binding = ValueBinding::share_place(inode);
        let plain = key.small_value_key().open(binding, &sealed.bytes)?;
        SharedPlace::from_bytes(&plain).ok_or(VfsError::refused("share", Errno::INVAL))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_the_bytes_of_the_format() {
        let place = SharedPlace {
            parent: InodeId(258),
            path: b"a/b".to_vec(),
        };
        assert_eq!(place.to_bytes(), [0, 0, 0, 0, 0, 0, 1, 2, b'a', b'/', b'b']);
    }

    #[test]
    fn a_place_reads_back_and_one_that_leads_elsewhere_is_none() {
        for (path, name) in [("", "volume"), ("a", "a"), ("Photos/2024", "2024")] {
            let place = SharedPlace {
                parent: InodeId(258),
                path: path.as_bytes().to_vec(),
            };
            let read = SharedPlace::from_bytes(&place.to_bytes());
            assert_eq!(read.as_ref(), Some(&place));
            assert_eq!(place.name(), name.as_bytes());
        }
        let of = |path: &[u8]| SharedPlace::from_bytes(&[&[0; 8], path].concat());
        for path in [
            &b"/a"[..],
            b"a/",
            b"a//b",
            b"a/../b",
            b"..",
            b".",
            b"a/./b",
            b"a\0b",
            &[b'a'; SYMLINK_BYTES_MAX + 1],
        ] {
            assert_eq!(of(path), None, "{}", path.escape_ascii());
        }
        assert_eq!(SharedPlace::from_bytes(&[1; 7]), None);
    }
}
