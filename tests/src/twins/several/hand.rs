//! The system calls on one mount, below a directory at its root. They know nothing of promises.

use super::super::picture::Picture;
use super::mounts::Mounts;
use rustix::fs::{self, AtFlags, CWD, Dir, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::{self, Errno};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

/// The result of a call.
pub(super) type CallResult<T = ()> = Result<T, Errno>;

/// An extended attribute that is changed.
const LABEL: &str = "user.label";
/// The attribute that gives a file a tier of its own.
const TIER: &str = "user.quorumfs.tier";
const AT_ONCE: usize = 1 << 17;
const LABEL_MAX: usize = 4096;

/// One that acts on a mount.
#[derive(Clone, Debug)]
pub(super) struct Hand<'a> {
    mounts: &'a Mounts,
    pub(super) mount: usize,
    root: PathBuf,
}

impl<'a> Hand<'a> {
    pub(super) fn new(mounts: &'a Mounts, mount: usize, home: &str) -> Self {
        Self {
            mounts,
            mount,
            root: mounts.point(mount).join(home),
        }
    }

    fn call<T>(&self, what: &'static str, act: impl FnOnce() -> CallResult<T>) -> CallResult<T> {
        let _watched = self.mounts.watched(self.mount, what);
        act()
    }

    fn path(&self, path: &str) -> PathBuf {
        match path {
            "" => self.root.clone(),
            path => self.root.join(path),
        }
    }

    /// Opens; no link is followed.
    pub(super) fn open(&self, path: &str, flags: OFlags) -> CallResult<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(0o644);
        self.call("open", || fs::openat(CWD, self.path(path), flags, mode))
    }

    /// Creates a file that must not be there.
    pub(super) fn create(&self, path: &str) -> CallResult<OwnedFd> {
        self.open(path, OFlags::CREATE | OFlags::EXCL | OFlags::RDWR)
    }

    /// Closes. An error of that is not seen: where it matters, there is a sync before.
    pub(super) fn close(&self, file: OwnedFd) {
        let _watched = self.mounts.watched(self.mount, "close");
        drop(file);
    }

    pub(super) fn sync(&self, file: &OwnedFd) -> CallResult {
        self.call("fsync", || fs::fsync(file))
    }

    /// The state of a path; a link is not followed.
    pub(super) fn stat(&self, path: &str) -> CallResult<Picture> {
        let path = self.path(path);
        let stat = || fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW);
        self.call("stat", stat).map(|stat| Picture::of(&stat))
    }

    /// The state of an open file.
    pub(super) fn state(&self, file: &OwnedFd) -> CallResult<Picture> {
        let stat = self.call("fstat", || fs::fstat(file));
        stat.map(|stat| Picture::of(&stat))
    }

    /// Everything from a position to the end.
    pub(super) fn read_from(&self, file: &OwnedFd, mut at: u64) -> CallResult<Vec<u8>> {
        let mut bytes = Vec::new();
        loop {
            let mut part = vec![0; AT_ONCE];
            let got = self.call("read", || io::pread(file, &mut part[..], at))?;
            if got == 0 {
                return Ok(bytes);
            }
            bytes.extend_from_slice(&part[..got]);
            at += got as u64;
        }
    }

    /// The whole content of a path.
    pub(super) fn read(&self, path: &str) -> CallResult<Vec<u8>> {
        let file = self.open(path, OFlags::RDONLY)?;
        let bytes = self.read_from(&file, 0);
        self.close(file);
        bytes
    }

    pub(super) fn write_at(&self, file: &OwnedFd, at: u64, bytes: &[u8]) -> CallResult {
        let mut done = 0;
        while done < bytes.len() {
            let (rest, place) = (&bytes[done..], at + done as u64);
            done += self.call("write", || io::pwrite(file, rest, place))?;
        }
        Ok(())
    }

    /// Writes through a descriptor that appends, or at its position.
    pub(super) fn write(&self, file: &OwnedFd, bytes: &[u8]) -> CallResult {
        let mut done = 0;
        while done < bytes.len() {
            done += self.call("write", || io::write(file, &bytes[done..]))?;
        }
        Ok(())
    }

    pub(super) fn set_length(&self, file: &OwnedFd, length: u64) -> CallResult {
        self.call("ftruncate", || fs::ftruncate(file, length))
    }

    pub(super) fn set_mode(&self, file: &OwnedFd, mode: u32) -> CallResult {
        let mode = Mode::from_raw_mode(mode);
        self.call("fchmod", || fs::fchmod(file, mode))
    }

    /// Sets the times of access and modification.
    pub(super) fn set_times(&self, file: &OwnedFd, seconds: i64, nanos: u32) -> CallResult {
        let time = Timespec {
            tv_sec: seconds,
            tv_nsec: nanos.into(),
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        self.call("futimens", || fs::futimens(file, &times))
    }

    /// Sets or removes the extended attribute.
    pub(super) fn set_label(&self, file: &OwnedFd, label: Option<&[u8]>) -> CallResult {
        self.call("setxattr", || match label {
            Some(label) => fs::fsetxattr(file, LABEL, label, XattrFlags::empty()),
            None => fs::fremovexattr(file, LABEL),
        })
    }

    /// The extended attribute.
    pub(super) fn label(&self, file: &OwnedFd) -> CallResult<Option<Vec<u8>>> {
        let mut value = vec![0; LABEL_MAX];
        match self.call("getxattr", || fs::fgetxattr(file, LABEL, &mut value[..])) {
            Ok(length) => {
                value.truncate(length);
                Ok(Some(value))
            }
            Err(Errno::NODATA) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gives a file a tier of its own.
    pub(super) fn set_tier(&self, file: &OwnedFd, tier: &str) -> CallResult {
        let (tier, flags) = (tier.as_bytes(), XattrFlags::empty());
        self.call("setxattr", || fs::fsetxattr(file, TIER, tier, flags))
    }

    pub(super) fn make_directory(&self, path: &str) -> CallResult {
        let (path, mode) = (self.path(path), Mode::from_raw_mode(0o755));
        self.call("mkdir", || fs::mkdirat(CWD, path, mode))
    }

    pub(super) fn remove_directory(&self, path: &str) -> CallResult {
        let path = self.path(path);
        self.call("rmdir", || fs::unlinkat(CWD, path, AtFlags::REMOVEDIR))
    }

    pub(super) fn unlink(&self, path: &str) -> CallResult {
        let path = self.path(path);
        self.call("unlink", || fs::unlinkat(CWD, path, AtFlags::empty()))
    }

    pub(super) fn rename(&self, from: &str, to: &str) -> CallResult {
        let (from, to) = (self.path(from), self.path(to));
        self.call("rename", || fs::renameat(CWD, from, CWD, to))
    }

    /// Gives an open file another name: the file that is open, whatever its name has become.
    pub(super) fn link(&self, file: &OwnedFd, to: &str) -> CallResult {
        let from = format!("/proc/self/fd/{}", file.as_raw_fd());
        let (to, follow) = (self.path(to), AtFlags::SYMLINK_FOLLOW);
        self.call("link", || fs::linkat(CWD, from, CWD, to, follow))
    }

    pub(super) fn make_link(&self, target: &str, path: &str) -> CallResult {
        let path = self.path(path);
        self.call("symlink", || fs::symlinkat(target, CWD, path))
    }

    pub(super) fn read_link(&self, path: &str) -> CallResult<Vec<u8>> {
        let path = self.path(path);
        let target = self.call("readlink", || fs::readlinkat(CWD, path, Vec::new()));
        target.map(std::ffi::CString::into_bytes)
    }

    /// The entries of a directory, with their inodes.
    ///
    /// # Panics
    /// If a name is listed twice.
    pub(super) fn list(&self, path: &str) -> CallResult<BTreeMap<String, u64>> {
        let directory = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        self.call("readdir", || {
            let mut entries = BTreeMap::new();
            for entry in Dir::new(directory)? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                if name != "." && name != ".." {
                    let twice = entries.insert(name, entry.ino());
                    assert_eq!(
                        twice,
                        None,
                        "{path}: {:?} is listed twice",
                        entry.file_name()
                    );
                }
            }
            Ok(entries)
        })
    }
}
