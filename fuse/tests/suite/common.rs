//! A real mount over a service in this process and four clouds in a temporary directory.

#![allow(unreachable_pub)]
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use quorumfs_backends::local::LocalStore;
use quorumfs_backends::marker::Marker;
use quorumfs_fuse::{MountConfig, MountError, Mounted, mount};
use quorumfs_gateway::blocks::{BlockConfig, BlockStore, Cloud};
use quorumfs_gateway::metadata::{Embedded, MetadataClient, MountMode, Takeover};
use quorumfs_gateway::vfs::{CloudSlices, FileSystem, Packing, SliceStore, VfsOptions};
use quorumfs_gateway::volume::{Created, NewVolume, Volume, create};
use quorumfs_metadata::Metadata;
use quorumfs_metadata::identity::CloudIndex;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// A mounted volume; unmounted when dropped.
pub struct MountedVolume {
    pub runtime: Runtime,
    pub directory: tempfile::TempDir,
    pub created: Created,
    pub volume: Arc<Volume>,
    pub embedded: Arc<Embedded<Metadata>>,
    pub file_system: Option<FileSystem>,
    pub mounted: Option<Mounted>,
    /// How it stands towards other mounts.
    pub mode: MountMode,
}

fn new_volume() -> NewVolume {
    NewVolume::in_process().unwrap()
}

/// Slices on four directories.
fn slices(volume: &Arc<Volume>, client: &Arc<MetadataClient>, place: &Path) -> Arc<dyn SliceStore> {
    std::fs::create_dir_all(place).unwrap();
    let clouds: Vec<Cloud> = volume
        .clouds()
        .map(|(cloud, secret)| {
            let path = place.join(cloud.index.to_string());
            let marker = Marker {
                volume: volume.id().0,
                cloud: u16::from(cloud.index.0),
            };
            LocalStore::create(&path, marker).unwrap();
            let store = Arc::new(LocalStore::open(&path, marker).unwrap());
            Cloud {
                index: cloud.index,
                store,
                secret: secret.clone(),
                read_price: 0,
            }
        })
        .collect();
    let config = BlockConfig::new(volume.id(), volume.policy());
    let blocks = BlockStore::open(config, &clouds, client.clone()).unwrap();
    Arc::new(CloudSlices::new(volume.clone(), blocks, Packing::PROMPT))
}

impl MountedVolume {
    /// A new volume, mounted.
    pub fn new() -> Self {
        Self::in_mode(MountMode::Exclusive)
    }

    /// The same, which may let others in.
    pub fn in_mode(mode: MountMode) -> Self {
        Self::with_clouds(mode, |_| ())
    }

    /// One whose clouds are separate file systems of so many bytes each.
    pub fn with_clouds_of(bytes: u64) -> Self {
        Self::with_clouds(MountMode::Exclusive, |clouds| {
            for number in 0..4 {
                let place = clouds.join(CloudIndex(number).to_string());
                std::fs::create_dir_all(&place).unwrap();
                let options = format!("size={bytes}");
                let mounted = Command::new("mount")
                    .args(["-t", "tmpfs", "-o", &options, "none"])
                    .arg(&place)
                    .status();
                assert!(mounted.unwrap().success(), "mounting takes the superuser");
            }
        })
    }

    fn with_clouds(mode: MountMode, prepare: impl FnOnce(&Path)) -> Self {
        assert!(
            Path::new("/dev/fuse").exists(),
            "these tests need /dev/fuse: run `modprobe fuse`, or give the container the device"
        );
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("mnt")).unwrap();
        prepare(&directory.path().join("clouds"));
        let created = create(new_volume()).unwrap();
        let volume = Arc::new(Volume::open(&created.genesis, &created.owner).unwrap());
        let embedded = Embedded::new(Metadata, &created.genesis).unwrap();
        let mut world = Self {
            runtime,
            directory,
            created,
            volume,
            embedded,
            file_system: None,
            mounted: None,
            mode,
        };
        world.mount();
        world
    }

    /// A path below the mount point.
    pub fn path(&self, below: &str) -> PathBuf {
        self.directory.path().join("mnt").join(below)
    }

    /// Mounts, with a new session and empty caches.
    pub fn mount(&mut self) {
        self.mount_at(&self.path(""));
    }

    /// Mounts somewhere else.
    pub fn mount_at(&mut self, place: &Path) {
        std::fs::create_dir_all(place).unwrap();
        let key = self.created.owner.principal.id().signing;
        let session = self.embedded.open_session(key).unwrap();
        let own = self.volume.own_credentials();
        let client = Arc::new(MetadataClient::new(Arc::new(session), own));
        let clouds = self.directory.path().join("clouds");
        let mut config = MountConfig::new(place.to_owned());
        config.allow_other = true;
        let (file_system, mounted) = self.runtime.block_on(async {
            client.mount(Takeover::OfAny, self.mode).await.unwrap();
            let slices = slices(&self.volume, &client, &clouds);
            let options = VfsOptions::default();
            let fs = FileSystem::new(self.volume.clone(), client.clone(), slices, options);
            let mounted = mount(fs.clone(), config).await.expect("mount");
            (fs, mounted)
        });
        self.file_system = Some(file_system);
        self.mounted = Some(mounted);
    }

    /// A file system of another client: it has its own session and does not mount.
    pub fn other_client(&self) -> FileSystem {
        let key = self.created.owner.principal.id().signing;
        let session = self.embedded.open_session(key).unwrap();
        let own = self.volume.own_credentials();
        let client = Arc::new(MetadataClient::new(Arc::new(session), own));
        let clouds = self.directory.path().join("elsewhere");
        self.runtime.block_on(async {
            let slices = slices(&self.volume, &client, &clouds);
            FileSystem::new(self.volume.clone(), client, slices, VfsOptions::default())
        })
    }

    /// Unmounts and ends the session.
    pub fn unmount(&mut self) {
        let Some(mounted) = self.mounted.take() else {
            return;
        };
        let file_system = self.file_system.take().unwrap();
        self.runtime.block_on(async {
            // A process that another test starts has our open files for a moment.
            let mut tries = 0..100;
            while let Err(error) = mounted.unmount().await {
                let busy = matches!(error, MountError::Busy { .. });
                assert!(busy && tries.next().is_some(), "unmount: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            file_system.shutdown().await.expect("shutdown");
        });
    }

    /// Unmounts, drops all state, and mounts again.
    pub fn remount(&mut self) {
        self.unmount();
        self.mount();
    }

    /// The gateway dies: data that was not committed is gone.
    pub fn crash(&mut self) {
        let mounted = self.mounted.take().unwrap();
        self.file_system = None;
        mounted.abort();
        self.runtime.block_on(async {
            mounted.wait().await;
            mounted.detach().await.expect("detach");
        });
        // An aborted connection stays in the mount table.
        let _ = Command::new("umount").arg("-l").arg(self.path("")).output();
    }

    /// Opens the mount and its root to other users.
    pub fn open_to_all_users(&self) {
        use std::os::unix::fs::PermissionsExt;
        for place in [&self.path(""), self.directory.path()] {
            std::fs::set_permissions(place, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
    }

    /// Runs a command in the mount; it has to succeed.
    #[track_caller]
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = Command::new(program)
            .args(arguments)
            .current_dir(self.path(""))
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("HOME", self.directory.path())
            .output()
            .unwrap_or_else(|error| panic!("{program}: {error}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// Runs `work` in a thread as another user, with the group of the same number and these additional
/// ones.
pub fn as_user<T: Send>(uid: u32, groups: &[u32], work: impl FnOnce() -> T + Send) -> T {
    use rustix::process::{Gid, Uid};
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    let groups: Vec<Gid> = groups.iter().copied().map(Gid::from_raw).collect();
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(uid));
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            set_thread_groups(&groups).unwrap();
            set_thread_res_gid(gid, gid, gid).unwrap();
            set_thread_res_uid(uid, uid, uid).unwrap();
            work()
        });
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

impl Drop for MountedVolume {
    fn drop(&mut self) {
        if let Some(mounted) = self.mounted.take() {
            let detached = self.runtime.block_on(mounted.detach());
            if detached.is_err() {
                mounted.abort();
            }
        }
        for number in 0..4 {
            let place = self.directory.path().join("clouds");
            let place = place.join(CloudIndex(number).to_string());
            let _ = Command::new("umount").arg("-l").arg(place).output();
        }
    }
}
