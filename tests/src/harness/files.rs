//! What tests look for in files and mounts.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

/// Whether any file under `directory` holds `needle` in its bytes, or any path its text.
///
/// # Panics
/// If something there cannot be read.
#[must_use]
pub fn all_bytes_contain(directory: &Path, needle: &[u8]) -> bool {
    let holds = |bytes: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().as_encoded_bytes().to_vec();
        let found = if path.is_symlink() {
            holds(fs::read_link(&path).unwrap().as_os_str().as_encoded_bytes())
        } else if path.is_dir() {
            all_bytes_contain(&path, needle)
        } else if path.is_file() {
            holds(&fs::read(&path).unwrap())
        } else {
            false
        };
        if found || holds(&name) {
            return true;
        }
    }
    false
}

/// Flips one bit of a file, whatever its mode.
///
/// # Panics
/// If it cannot.
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

/// Whether this user may make private mounts; says so if not, for a test that then cannot run.
#[must_use]
pub fn mounts_are_possible() -> bool {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let possible = command
        .args(["--mount", "true"])
        .status()
        .is_ok_and(|status| status.success());
    if !possible {
        eprintln!("this user may not make mount namespaces: the test cannot be run");
    }
    possible
}

/// Makes the kernel forget what it has cached, if this user may.
pub fn drop_caches() {
    rustix::fs::sync();
    let _ = fs::write("/proc/sys/vm/drop_caches", "3");
}
