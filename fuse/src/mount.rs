//! Mounting with checks first, unmounting, waiting.
//!
//! ```text
//! mount ── checks ──► fuser session (a thread; n loops) ──► Adapter ──► FileSystem
//!   └─► watchdog (a thread) ──► abort
//! Mounted::unmount ── commit what is dirty ──► umount(2) ──► the loops end ──► shutdown
//!                          other holders (`mount_holders`) ──► commit, abort ──┘
//! ```
//!
//! Permissions are checked twice: by the kernel (`default_permissions`, since with names in its
//! cache it resolves paths without asking the servers) and by the servers, for every operation that
//! reaches them.

use crate::MountError;
use crate::convert::Shown;
use crate::kernel_cache::{self, KernelCache};
use crate::mount_holders::{self, Holder};
use crate::mount_table::mounted_at;
use crate::serve::Adapter;
use crate::watchdog::{self, Connection, InFlight};
use fuser::{Config, MountOption, SessionACL};
use quorumfs_gateway::vfs::{FileSystem, Identities};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// More loops than this add latency and gain nothing.
const LOOPS_MAX: usize = 8;
/// How much later than its deadline a request may be before the connection counts as stuck.
const STUCK_AFTER: u32 = 3;

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountConfig {
    /// An empty directory.
    pub mount_point: PathBuf,
    /// The name that `df` and `mount` show, and that `mount(8)` compares with `/etc/fstab`.
    pub name: String,
    /// Whether users other than the mounting one may enter.
    pub allow_other: bool,
    /// Whether writing through it is refused.
    pub read_only: bool,
    /// Whether running programs in it is refused.
    pub no_exec: bool,
    /// How long one request may take.
    pub deadline: Duration,
    /// Event loops; by default as many as there are cores, at most eight.
    pub loops: Option<usize>,
    /// Whether a stuck request aborts the connection.
    pub watchdog: bool,
    /// Whom the machine's user is in the volume, if its number is not the volume's.
    pub identities: Option<Identities>,
}

impl MountConfig {
    /// The default configuration of a mount at `mount_point`.
    #[must_use]
    pub fn new(mount_point: PathBuf) -> Self {
        Self {
            mount_point,
            name: "quorumfs".into(),
            allow_other: rustix::process::geteuid().is_root(),
            read_only: false,
            no_exec: false,
            deadline: Duration::from_secs(30),
            loops: None,
            watchdog: true,
            identities: None,
        }
    }
}

/// A mounted file system.
#[derive(Debug)]
pub struct Mounted {
    mount_point: PathBuf,
    file_system: FileSystem,
    connection: Connection,
    ended: Arc<watch::Sender<bool>>,
}

/// Mounts `file_system`. It must be called within a tokio runtime, whose tasks will serve requests.
///
/// # Errors
/// If the mount point is unsuitable or the system refuses; nothing is mounted then.
pub async fn mount(file_system: FileSystem, config: MountConfig) -> Result<Mounted, MountError> {
    let mount_point = check(&config.mount_point)?;
    let in_flight = Arc::new(InFlight::default());
    let kernel_cache = Arc::new(KernelCache::new(file_system.attributes_max()));
    let adapter = Adapter {
        file_system: file_system.clone(),
        runtime: tokio::runtime::Handle::current(),
        in_flight: in_flight.clone(),
        deadline: config.deadline,
        shown: Shown {
            root: file_system.root(),
            identities: config.identities.clone().map(Arc::new),
        },
        kernel_cache: kernel_cache.clone(),
        interrupts: Arc::default(),
    };
    let options = options(&config);
    let place = mount_point.clone();
    let session =
        tokio::task::spawn_blocking(move || fuser::Session::new(adapter, &place, &options))
            .await
            .map_err(|error| system("mount at", &mount_point, io::Error::other(error)))?
            .map_err(|error| refused(&mount_point, error))?;
    let connection = Connection {
        minor: mounted_at(&mount_point).map(|entry| entry.minor),
        mount_point: mount_point.clone(),
    };
    let (ended, receiver) = watch::channel(false);
    let ended = Arc::new(ended);
    kernel_cache::spawn(&file_system, kernel_cache, session.notifier(), receiver);
    let stop_watching = Arc::new(AtomicBool::new(false));
    if config.watchdog {
        let limit = config.deadline.saturating_mul(STUCK_AFTER);
        watchdog::spawn(in_flight, connection.clone(), limit, stop_watching.clone())
            .map_err(|error| system("watch", &mount_point, error))?;
    }
    let (place, send_ended) = (mount_point.clone(), Arc::clone(&ended));
    std::thread::Builder::new()
        .name("fuse-session".into())
        .spawn(move || {
            if let Err(error) = session.run() {
                tracing::warn!(mount_point = %place.display(), %error, "the mount failed");
            }
            stop_watching.store(true, Ordering::Release);
            send_ended.send_replace(true);
        })
        .map_err(|error| system("serve", &mount_point, error))?;
    Ok(Mounted {
        mount_point,
        file_system,
        connection,
        ended,
    })
}

impl Mounted {
    /// The mount point, as a canonical path.
    #[must_use]
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Waits until it is unmounted, by [`Mounted::unmount`] or from outside. If it is unmounted
    /// here while processes elsewhere hold it, the data that they wrote is committed and the
    /// connection ended.
    pub async fn wait(&self) {
        let Some(minor) = self.connection.minor else {
            return self.ended().await;
        };
        tokio::select! {
            () = self.ended() => {}
            holders = mount_holders::held_elsewhere(minor) => self.end_for_holders(&holders).await,
        }
    }

    async fn ended(&self) {
        let mut ended = self.ended.subscribe();
        // This cannot fail: the sender is in `self`.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Commits dirty data and unmounts. Returns the processes elsewhere that held the mount, and
    /// hold it no more.
    ///
    /// # Errors
    /// If a process still uses the mount or written data could not be committed; it stays mounted
    /// then.
    pub async fn unmount(&self) -> Result<Vec<Holder>, MountError> {
        self.file_system
            .sync_all()
            .await
            .map_err(|error| MountError::Unflushed {
                path: self.mount_point.clone(),
                error,
            })?;
        self.leave(UnmountFlags::empty()).await?;
        if tokio::time::timeout(mount_holders::RELEASED_WITHIN, self.ended())
            .await
            .is_ok()
        {
            return Ok(Vec::new());
        }
        let minor = self.connection.minor;
        let found = move || minor.map_or_else(Vec::new, mount_holders::holders);
        let holders = tokio::task::spawn_blocking(found).await.unwrap_or_default();
        if holders.is_empty() {
            // It was detached from the tree before, and files in it are open.
            return Err(MountError::Busy {
                path: self.mount_point.clone(),
            });
        }
        self.end_for_holders(&holders).await;
        Ok(holders)
    }

    /// Takes the mount out of the tree at once; open files go on working until they are closed.
    ///
    /// # Errors
    /// If the system refuses.
    pub async fn detach(&self) -> Result<(), MountError> {
        self.leave(UnmountFlags::DETACH).await
    }

    /// The mount is no longer in this tree, and processes elsewhere hold it: commits the data that
    /// they wrote, and ends the mount.
    async fn end_for_holders(&self, holders: &[Holder]) {
        let named: Vec<_> = holders.iter().map(Holder::to_string).collect();
        tracing::warn!(
            mount_point = %self.mount_point.display(), held_by = named.join(", "),
            "the mount was removed here while other processes hold it; it ends for them too"
        );
        if let Err(error) = self.file_system.sync_all().await {
            tracing::warn!(%error, "not all data that those processes wrote is committed yet");
        }
        self.connection.abort();
        let aborted = tokio::time::timeout(mount_holders::RELEASED_WITHIN, self.ended()).await;
        if aborted.is_err() {
            // It cannot be aborted from here (a container has no control file system). It ends with
            // the process, which closes the device.
            self.ended.send_replace(true);
        }
    }

    /// Answers all waiting requests with an error and ends the mount, whatever state it is in.
    pub fn abort(&self) {
        self.connection.abort();
    }

    async fn leave(&self, flags: UnmountFlags) -> Result<(), MountError> {
        if *self.ended.borrow() {
            return Ok(());
        }
        let (place, minor) = (self.mount_point.clone(), self.connection.minor);
        let ours = move |place: &Path| {
            let found = mounted_at(place).map(|entry| entry.minor);
            minor.is_none() || found == minor
        };
        // By now another mount may be there.
        tokio::task::spawn_blocking(move || match ours(&place) {
            true => unmount(&place, flags),
            false => Ok(()),
        })
        .await
        .map_err(|error| system("unmount", &self.mount_point, io::Error::other(error)))?
    }
}

/// Aborts the connection of the FUSE file system that is mounted exactly at `path`, without a
/// request to it or to its process. Processes that wait for it get an error. Without such a file
/// system it does nothing.
pub fn abort_at(path: &Path) {
    let entry = mounted_at(path).filter(|entry| entry.kind.starts_with("fuse"));
    if let Some(entry) = entry {
        let connection = Connection {
            minor: Some(entry.minor),
            mount_point: path.to_owned(),
        };
        connection.abort();
    }
}

fn unmount(place: &Path, flags: UnmountFlags) -> Result<(), MountError> {
    match rustix::mount::unmount(place, flags) {
        // `EINVAL` means that nothing is mounted there any more.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Busy {
            path: place.to_owned(),
        }),
        Err(Errno::PERM) => {
            let mut command = std::process::Command::new("fusermount3");
            command.arg("-u");
            if flags.contains(UnmountFlags::DETACH) {
                command.arg("-z");
            }
            match command.arg("--").arg(place).output() {
                Ok(output) if output.status.success() => Ok(()),
                Ok(output) => {
                    let text = String::from_utf8_lossy(&output.stderr).into_owned();
                    if text.contains("busy") {
                        return Err(MountError::Busy {
                            path: place.to_owned(),
                        });
                    }
                    Err(MountError::NotPermitted {
                        path: place.to_owned(),
                        reason: text,
                    })
                }
                Err(error) => Err(MountError::NotPermitted {
                    path: place.to_owned(),
                    reason: format!("fusermount3: {error}"),
                }),
            }
        }
        Err(error) => Err(system("unmount", place, error.into())),
    }
}

/// The options of such a mount, for the kernel and for its connection.
#[must_use]
pub fn options(config: &MountConfig) -> Config {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut options = Config::default();
    options.mount_options = vec![
        MountOption::FSName(source(&config.name)),
        // As an option of the kernel, since root mounts without `fusermount3`. Without it the type
        // is only `fuse`, and `mount(8)`, which looks for ours, does not find it.
        MountOption::CUSTOM("subtype=quorumfs".into()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
    ];
    let more = [
        (config.read_only, MountOption::RO),
        (config.no_exec, MountOption::NoExec),
    ];
    let more = more.into_iter().filter(|(wanted, _)| *wanted);
    options.mount_options.extend(more.map(|(_, option)| option));
    options.acl = if config.allow_other {
        SessionACL::All
    } else {
        SessionACL::Owner
    };
    options.n_threads = Some(config.loops.unwrap_or_else(|| cores.min(LOOPS_MAX)).max(1));
    options.clone_fd = true;
    options
}

/// A mount's source with commas escaped: `fusermount3` takes options between commas.
fn source(name: &str) -> String {
    match rustix::process::geteuid().is_root() {
        true => name.to_owned(),
        false => name.replace('\\', "\\\\").replace(',', "\\,"),
    }
}

/// Checks whether something can be mounted here, without changing anything, and returns the
/// canonical path. [`mount`] checks too: this is for callers that have more to prepare and want to
/// fail early.
///
/// # Errors
/// What is in the way, or missing.
pub fn check(path: &Path) -> Result<PathBuf, MountError> {
    let canonical = match path.canonicalize() {
        Ok(canonical) => canonical,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(MountError::Missing {
                path: path.to_owned(),
            });
        }
        Err(error) if error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            return Err(MountError::Dead {
                path: path.to_owned(),
            });
        }
        Err(error) => return Err(system("look at", path, error)),
    };
    match std::fs::metadata(&canonical) {
        Ok(found) if !found.is_dir() => {
            return Err(MountError::NotADirectory { path: canonical });
        }
        Ok(_) => {}
        Err(error) if error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            return Err(MountError::Dead { path: canonical });
        }
        Err(error) => return Err(system("look at", &canonical, error)),
    }
    if let Some(entry) = mounted_at(&canonical).filter(|entry| entry.kind.starts_with("fuse")) {
        return Err(MountError::Occupied {
            path: canonical,
            source_name: entry.source,
            kind: entry.kind,
        });
    }
    let mut entries =
        std::fs::read_dir(&canonical).map_err(|error| system("look at", &canonical, error))?;
    if entries.next().is_some() {
        return Err(MountError::NotEmpty { path: canonical });
    }
    if !Path::new("/dev/fuse").exists() {
        return Err(MountError::NoDevice);
    }
    Ok(canonical)
}

fn refused(path: &Path, error: io::Error) -> MountError {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    refused_with(path, error, device.err())
}

/// The reason that mounting failed, given the error of opening the device.
fn refused_with(path: &Path, error: io::Error, device: Option<io::Error>) -> MountError {
    if let Some(denied) = device.filter(|it| it.kind() == io::ErrorKind::PermissionDenied) {
        return MountError::DeviceDenied {
            reason: denied.to_string(),
        };
    }
    match error.kind() {
        io::ErrorKind::PermissionDenied => MountError::NotPermitted {
            path: path.to_owned(),
            reason: error.to_string(),
        },
        io::ErrorKind::NotFound if !Path::new("/dev/fuse").exists() => MountError::NoDevice,
        io::ErrorKind::NotFound => MountError::NotPermitted {
            path: path.to_owned(),
            reason: format!("fusermount3 is not installed: {error}"),
        },
        _ => system("mount at", path, error),
    }
}

fn system(doing: &'static str, path: &Path, source: io::Error) -> MountError {
    MountError::System {
        doing,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_not_open_the_device_is_not_told_to_install_a_helper() {
        let error = |kind| io::Error::new(kind, "in words");
        let denied = error(io::ErrorKind::PermissionDenied);
        for failed in [io::ErrorKind::PermissionDenied, io::ErrorKind::Other] {
            let device = Some(error(io::ErrorKind::PermissionDenied));
            let refused = refused_with(Path::new("/mnt"), error(failed), device).to_string();
            assert!(refused.contains("may not open /dev/fuse"), "{refused}");
            assert!(!refused.contains("install"), "{refused}");
        }
        let other = refused_with(Path::new("/mnt"), denied, None).to_string();
        assert!(other.contains("install fuse3"), "{other}");
    }
}
