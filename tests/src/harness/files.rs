//! Helpers for files and mounts.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

/// Flips one bit of a file, regardless of its mode.
///
/// # Panics
/// If that fails.
pub fn flip_byte(path: &Path, place: u64) {
    let mode = fs::metadata(path).unwrap().permissions().mode();
    fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o600)).unwrap();
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, place).unwrap();
    file.write_all_at(&byte.map(|byte| byte ^ 1), place)
        .unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Whether something is mounted on exactly this path.
#[must_use]
pub fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let path = path.to_string_lossy().into_owned();
    mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == Some(path.as_str()))
}

/// For tests that mount: they fail where they cannot, instead of passing without having run.
///
/// # Panics
/// If there is no FUSE device.
pub fn require_fuse() {
    assert!(
        Path::new("/dev/fuse").exists(),
        "this test mounts and needs /dev/fuse: run `modprobe fuse`, or give it to the container"
    );
}

/// For tests that need a private mount namespace: they fail where they cannot have one.
///
/// # Panics
/// If this user may not create mount namespaces.
pub fn require_private_mounts() {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let possible = command
        .args(["--mount", "true"])
        .status()
        .is_ok_and(|status| status.success());
    assert!(
        possible,
        "this test hides devices and shrinks disks in a mount namespace: run it as root, or where \
         `unshare --user --map-root-user --mount` is allowed"
    );
}

/// Drops the kernel's caches, if this user may.
pub fn drop_caches() {
    rustix::fs::sync();
    let _ = fs::write("/proc/sys/vm/drop_caches", "3");
}

/// Bytes that cannot be compressed, and that do not occur by chance.
#[must_use]
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..length.div_ceil(8))
        .flat_map(|_| next())
        .take(length)
        .collect()
}
