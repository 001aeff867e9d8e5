//! The memory that this process may use: the machine's, or less by its control groups.
//!
//! A limit anywhere up the hierarchy binds, so the smallest one counts. Version 2 has one hierarchy
//! with `memory.max` and `memory.high`, above which a process is slowed down; version 1 has one for
//! memory with `memory.limit_in_bytes`. In a container the path may be one of the machine's, which
//! does not exist there; the container's own limit is then at the root. An unreadable file sets no
//! limit.

use std::path::{Component, Path, PathBuf};

/// A longer file is no limit file.
const BYTES_MAX: u64 = 1 << 20;

/// The smallest limit, in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Usable {
    /// The limit.
    pub bytes: u64,
    /// Its source.
    pub limit: Limit,
}

/// The source of a limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Limit {
    /// The machine's memory.
    Machine,
    /// The file of a control group.
    ControlGroup(PathBuf),
}

/// The memory that this process may use, if any limit can be read.
#[must_use]
pub fn usable() -> Option<Usable> {
    usable_by(|path| {
        let found = std::fs::metadata(path).ok()?;
        (found.len() <= BYTES_MAX).then(|| std::fs::read_to_string(path).ok())?
    })
}

/// The memory that a process may use according to these files.
pub fn usable_by(read: impl Fn(&Path) -> Option<String>) -> Option<Usable> {
    let machine = read(Path::new("/proc/meminfo")).and_then(|text| total(&text));
    let machine = machine.map(|bytes| Usable {
        bytes,
        limit: Limit::Machine,
    });
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let files = groups.lines().filter_map(files_of).flatten();
    let limits = files.filter_map(|path| {
        // "max" is no limit.
        let bytes = read(&path)?.trim().parse().ok()?;
        let limit = Limit::ControlGroup(path);
        Some(Usable { bytes, limit })
    });
    machine
        .into_iter()
        .chain(limits)
        .min_by_key(|usable| usable.bytes)
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let mut lines = meminfo.lines();
    let line = lines.find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1 << 10)
}

/// The files with the limits of a line of `/proc/self/cgroup`, from the group up to the root.
fn files_of(line: &str) -> Option<Vec<PathBuf>> {
    let mut parts = line.splitn(3, ':');
    let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let is_unified = number == "0" && controllers.is_empty();
    let (root, names): (_, &[&str]) = if is_unified {
        ("/sys/fs/cgroup", &["memory.max", "memory.high"])
    } else if controllers.split(',').any(|it| it == "memory") {
        ("/sys/fs/cgroup/memory", &["memory.limit_in_bytes"])
    } else {
        return None;
    };
    // A group outside of the visible hierarchy is written with "..": then only the root is known.
    let mut group = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => group.push(name),
            Component::ParentDir => {
                group.clear();
                break;
            }
            _ => {}
        }
    }
    let files = group.ancestors().flat_map(|group| {
        names
            .iter()
            .map(move |name| Path::new(root).join(group).join(name))
    });
    Some(files.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const MEMINFO: &str = "MemTotal:       16384000 kB\nMemFree:         1000 kB\n";
    const ALL: u64 = 16_384_000 << 10;

    fn of(files: &[(&str, &str)]) -> Option<(u64, Option<String>)> {
        let files: BTreeMap<_, _> = files.iter().copied().collect();
        let read = |path: &Path| files.get(path.to_str()?).map(ToString::to_string);
        usable_by(read).map(|usable| match usable.limit {
            Limit::Machine => (usable.bytes, None),
            Limit::ControlGroup(path) => (usable.bytes, Some(path.to_string_lossy().into())),
        })
    }

    fn by(bytes: u64, path: &str) -> Option<(u64, Option<String>)> {
        Some((bytes, Some(path.to_string())))
    }

    #[test]
    fn without_a_limit_it_is_the_machines() {
        let unlimited = [
            ("/proc/meminfo", MEMINFO),
            ("/proc/self/cgroup", "0::/user.slice/a.scope\n"),
            ("/sys/fs/cgroup/user.slice/a.scope/memory.max", "max\n"),
            ("/sys/fs/cgroup/user.slice/memory.high", "max\n"),
        ];
        assert_eq!(of(&unlimited), Some((ALL, None)));
        assert_eq!(of(&unlimited[..1]), Some((ALL, None)));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("/proc/meminfo", "MemTotal: many\n")]), None);
    }

    #[test]
    fn the_smallest_limit_up_the_hierarchy_binds() {
        let own = "/sys/fs/cgroup/a.slice/b.service/memory.max";
        let above = "/sys/fs/cgroup/a.slice/memory.max";
        let files = |own_says, above_says, high_says| {
            of(&[
                ("/proc/meminfo", MEMINFO),
                ("/proc/self/cgroup", "0::/a.slice/b.service\n"),
                (own, own_says),
                (above, above_says),
                ("/sys/fs/cgroup/a.slice/memory.high", high_says),
            ])
        };
        assert_eq!(files("1073741824\n", "max\n", "max\n"), by(1 << 30, own));
        assert_eq!(files("1073741824", "536870912", "max"), by(1 << 29, above));
        let high = by(1 << 28, "/sys/fs/cgroup/a.slice/memory.high");
        assert_eq!(files("max", "536870912", "268435456"), high);
        assert_eq!(files("99999999999999", "max", "max"), Some((ALL, None)));
    }

    #[test]
    fn version_1_has_a_hierarchy_of_its_own_for_memory() {
        let groups = "12:cpu,cpuacct:/d/c\n4:hugetlb,memory:/d/c\n1:name=systemd:/d/c\n0::/d/c\n";
        let none = "9223372036854771712\n";
        let (own, above) = (
            "/sys/fs/cgroup/memory/d/c/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/d/memory.limit_in_bytes",
        );
        let files = |own_says, above_says| {
            of(&[
                ("/proc/meminfo", MEMINFO),
                ("/proc/self/cgroup", groups),
                (own, own_says),
                (above, above_says),
                ("/sys/fs/cgroup/memory/memory.limit_in_bytes", none),
            ])
        };
        assert_eq!(files(none, none), Some((ALL, None)));
        assert_eq!(files("2147483648\n", none), by(2 << 30, own));
        assert_eq!(
            files("2147483648\n", "2147483647\n"),
            by((2 << 30) - 1, above)
        );
    }

    #[test]
    fn in_a_container_the_root_group_counts() {
        // Its path is one of the machine's, or lies above the visible hierarchy.
        for path in ["/docker/0123456789ab", "/../../system.slice/a.service"] {
            let line = format!("0::{path}\n");
            let root = "/sys/fs/cgroup/memory.max";
            let found = of(&[
                ("/proc/meminfo", MEMINFO),
                ("/proc/self/cgroup", &line),
                (root, "268435456\n"),
                ("/sys/fs/cgroup/system.slice/a.service/memory.max", "1\n"),
            ]);
            assert_eq!(found, by(1 << 28, root), "{path}");
        }
    }
}
