//! The requirements on this machine.

use super::finding::{Finding, Level};
use crate::clouds::{NamedCloud, Role};
use crate::exit::Exit;
use quorumfs_gateway::memory::MemoryBudget;
use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const MACHINE: &str = "machine";
const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";

/// Whether mounting is possible here.
pub(super) fn mounting() -> Vec<Finding> {
    let device = OpenOptions::new().read(true).write(true).open(DEVICE);
    let device = match device {
        Ok(_) => Finding::new(Level::Ok, MACHINE, "fuse", format!("{DEVICE} opens")),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let text = format!("this user may not open {DEVICE}; nothing can be mounted");
            Finding::new(Level::Problem, MACHINE, "fuse", text)
                .exit(Exit::CannotMount)
                .remedy("`chmod 666 /dev/fuse` as root; permanently with a udev rule")
        }
        Err(error) => {
            let text = format!("{DEVICE} does not open: {error}; nothing can be mounted");
            Finding::new(Level::Problem, MACHINE, "fuse", text)
                .exit(Exit::CannotMount)
                .remedy(
                    "`modprobe fuse`; in a container --device /dev/fuse --cap-add SYS_ADMIN. \
                     put, get, ls, cat and rm work without it",
                )
        }
    };
    let root = rustix::process::geteuid().is_root();
    let found = which(HELPER);
    let helper = match (found, root) {
        (Some(path), _) => {
            let text = format!("{} is there", path.display());
            Finding::new(Level::Ok, MACHINE, "fusermount", text)
        }
        (None, true) => {
            let text = format!("{HELPER} is missing; root mounts without it");
            Finding::new(Level::Ok, MACHINE, "fusermount", text)
        }
        (None, false) => {
            let text = format!("{HELPER} is missing; only root can mount");
            Finding::new(Level::Problem, MACHINE, "fusermount", text)
                .exit(Exit::CannotMount)
                .remedy("install fuse3")
        }
    };
    vec![device, helper]
}

/// Whether a mount's memory budget is available.
pub(super) fn memory(budget: &MemoryBudget) -> Option<Finding> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    Some(judge_memory(budget, available_mib(&meminfo)?))
}

/// The available memory, by `/proc/meminfo`.
fn available_mib(meminfo: &str) -> Option<u64> {
    let mut lines = meminfo.lines();
    let line = lines.find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib >> 10)
}

fn judge_memory(budget: &MemoryBudget, available_mib: u64) -> Finding {
    let (wanted_mib, from) = (budget.bytes >> 20, &budget.from);
    let text =
        format!("a mount may take {wanted_mib} MiB ({from}), {available_mib} MiB are available");
    let find = |level| Finding::new(level, MACHINE, "memory", text.clone());
    match wanted_mib <= available_mib {
        true => find(Level::Ok),
        false => find(Level::Warning)
            .remedy("lower `memory_mib` of [data], unless a running mount has that memory already"),
    }
}

fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut places = std::env::split_paths(&path).map(|place| place.join(program));
    places.find(|place| place.is_file())
}

/// Whether only their owner may read the files with credentials.
pub(super) fn credentials(clouds: &[&NamedCloud]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for cloud in clouds {
        for role in [Role::Reader, Role::Writer, Role::Collector] {
            let file = cloud.credentials(role).map(|path| (path, mode(path)));
            let Some((path, Ok(mode))) = file else {
                // Unreadable files are reported by the check that needs them.
                continue;
            };
            if mode & 0o077 != 0 {
                let text = format!("others may read {} (mode {mode:o})", path.display());
                let finding = Finding::new(Level::Warning, &cloud.name, "credentials", text);
                let remedy = format!("chmod 600 {}", path.display());
                findings.push(finding.of(role).remedy(remedy));
            }
        }
        if cloud.credentials(Role::Collector).is_some() {
            let text = "the collector's credentials are on this machine";
            let finding = Finding::new(Level::Warning, &cloud.name, "collector", text.to_owned());
            findings.push(finding.of(Role::Collector).remedy(
                "keep them off machines that mount: a thief could delete with them. Mounting, \
                 reading and writing do not need them",
            ));
        }
    }
    findings
}

fn mode(path: &Path) -> std::io::Result<u32> {
    Ok(fs::metadata(path)?.permissions().mode() & 0o7777)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_there_is_said() {
        let meminfo = "MemTotal:       16000000 kB\nMemAvailable:    1048576 kB\n";
        assert_eq!(available_mib(meminfo), Some(1024));
        assert_eq!(available_mib("MemTotal: 5 kB"), None);
        let level = |mib: u64| judge_memory(&MemoryBudget::configured(mib << 20), 1024).level;
        assert_eq!(
            [512, 1024, 1025].map(level),
            [Level::Ok, Level::Ok, Level::Warning]
        );
    }
}
