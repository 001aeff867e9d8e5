//! The file system against a simple model: after any operations on a few files, reads return what a
//! map from names to bytes holds, also after a restart of the gateway.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

use crate::common::{TestVolume, root};
use proptest::prelude::*;
use quorumfs_gateway::vfs::{
    Allocation, AttributeChange, FileSystem, HandleId, OpenMode, RenameMode, Seek, VfsError,
    VfsOptions,
};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

const NAMES: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];

#[derive(Clone, Debug)]
enum Step {
    Write {
        name: usize,
        offset: u16,
        length: u16,
        byte: u8,
    },
    Truncate {
        name: usize,
        size: u16,
    },
    Read {
        name: usize,
        offset: u16,
        length: u16,
    },
    /// Reserves, punches a hole or zeroes.
    Allocate {
        name: usize,
        offset: u16,
        length: u16,
        how: Allocation,
    },
    /// Clones a run of bytes from one file, or from another part of the same.
    Clone {
        from: usize,
        offset: u16,
        length: u16,
        to: usize,
        to_offset: u16,
    },
    Seek {
        name: usize,
        offset: u16,
    },
    Close {
        name: usize,
    },
    Fsync {
        name: usize,
    },
    Rename {
        from: usize,
        to: usize,
        exchange: bool,
    },
    Unlink {
        name: usize,
    },
    DropCaches,
    /// The clouds fail during the next flush of this file.
    FailingFsync {
        name: usize,
    },
    /// A new gateway after a clean stop.
    Restart,
    /// A new gateway after a crash: uncommitted data is gone.
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = 0..NAMES.len();
    // Small sizes are around the border between inline content and slices.
    let place = prop_oneof![0u16..1200, Just(0), 0u16..20_000];
    let step = prop_oneof![
        8 => (name.clone(), place.clone(), 1u16..3000, 1u8..).prop_map(
            |(name, offset, length, byte)| Step::Write { name, offset, length, byte }),
        3 => (name.clone(), place.clone()).prop_map(|(name, size)| Step::Truncate { name, size }),
        6 => (name.clone(), place.clone(), 0u16..8000).prop_map(
            |(name, offset, length)| Step::Read { name, offset, length }),
        3 => (name.clone(), place.clone(), 1u16..8000, any::<(bool, bool)>()).prop_map(
            |(name, offset, length, (clear, keep_size))| Step::Allocate {
                name, offset, length, how: Allocation { clear, keep_size } }),
        4 => (name.clone(), place.clone(), 1u16..8000, name.clone(), place.clone()).prop_map(
            |(from, offset, length, to, to_offset)| Step::Clone {
                from, offset, length, to, to_offset }),
        3 => (name.clone(), place).prop_map(|(name, offset)| Step::Seek { name, offset }),
        3 => name.clone().prop_map(|name| Step::Close { name }),
        3 => name.clone().prop_map(|name| Step::Fsync { name }),
        2 => (name.clone(), name.clone(), any::<bool>()).prop_map(
            |(from, to, exchange)| Step::Rename { from, to, exchange }),
        2 => name.clone().prop_map(|name| Step::Unlink { name }),
        1 => Just(Step::DropCaches),
        1 => name.prop_map(|name| Step::FailingFsync { name }),
        1 => Just(Step::Restart),
        1 => Just(Step::Crash),
    ];
    proptest::collection::vec(step, 1..60)
}

/// A file in the model: its content, and the content that must survive a crash.
#[derive(Clone, Debug, Default)]
struct File {
    bytes: Vec<u8>,
    /// Nothing was written since the last successful fsync or close.
    committed: bool,
}

struct ModelRun {
    world: TestVolume,
    fs: FileSystem,
    handles: BTreeMap<usize, HandleId>,
    model: BTreeMap<usize, File>,
}

impl ModelRun {
    fn options() -> VfsOptions {
        VfsOptions {
            file_dirty_bytes_max: 16 << 10,
            dirty_bytes_max: 32 << 10,
            cache_bytes: 4 << 20,
            ..VfsOptions::default()
        }
    }

    async fn open(&mut self, name: usize) -> HandleId {
        if let Some(handle) = self.handles.get(&name) {
            return *handle;
        }
        let (found, handle) = self
            .fs
            .create(
                &root(),
                self.fs.root(),
                NAMES[name],
                0o644,
                OpenMode::READ_WRITE,
                false,
            )
            .await
            .expect("create");
        let file = self.model.entry(name).or_insert(File {
            bytes: vec![],
            committed: true,
        });
        assert_eq!(
            found.size,
            file.bytes.len() as u64,
            "size of an opened file"
        );
        self.handles.insert(name, handle);
        handle
    }

    async fn check(&mut self, name: usize) {
        let handle = self.open(name).await;
        let found = self.fs.read(handle, 0, 1 << 20).await.expect("read");
        assert!(found == self.model[&name].bytes, "content of {name}");
    }

    async fn start_over(&mut self) {
        self.handles.clear();
        self.fs = self.world.mount(Self::options()).await;
        for (name, called) in NAMES.iter().enumerate() {
            let found = self
                .fs
                .lookup(&root(), self.fs.root(), called)
                .await
                .unwrap();
            assert_eq!(
                found.is_some(),
                self.model.contains_key(&name),
                "existence of {name}"
            );
            if let Some(found) = found {
                if !self.model[&name].committed {
                    // Its content is between the last commit and the last write.
                    let handle = self.fs.open(&root(), found.inode, OpenMode::READ).await;
                    let handle = handle.unwrap().handle;
                    let bytes = self.fs.read(handle, 0, 1 << 20).await.unwrap().to_vec();
                    self.fs.release(handle).await.unwrap();
                    self.model.insert(
                        name,
                        File {
                            bytes,
                            committed: true,
                        },
                    );
                }
                self.check(name).await;
            }
        }
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Write {
                name,
                offset,
                length,
                byte,
            } => {
                let handle = self.open(name).await;
                let data = vec![byte; usize::from(length)];
                let count = self
                    .fs
                    .write(handle, offset.into(), &data)
                    .await
                    .expect("write");
                assert_eq!(count, u32::from(length));
                let file = self.model.get_mut(&name).unwrap();
                let end = usize::from(offset) + data.len();
                if file.bytes.len() < end {
                    file.bytes.resize(end, 0);
                }
                file.bytes[usize::from(offset)..end].copy_from_slice(&data);
                file.committed = false;
            }
            Step::Truncate { name, size } => {
                let handle = self.open(name).await;
                let inode = self.inode(name).await;
                let change = AttributeChange {
                    size: Some(size.into()),
                    ..AttributeChange::default()
                };
                let seen = self
                    .fs
                    .setattr(&root(), inode, Some(handle), change)
                    .await
                    .expect("cut");
                assert_eq!(seen.size, u64::from(size));
                self.model
                    .get_mut(&name)
                    .unwrap()
                    .bytes
                    .resize(size.into(), 0);
                // An ordered truncation; dirty data was committed first.
            }
            Step::Read {
                name,
                offset,
                length,
            } => {
                let handle = self.open(name).await;
                let found = self.fs.read(handle, offset.into(), length.into()).await;
                let bytes = &self.model[&name].bytes;
                let start = usize::from(offset).min(bytes.len());
                let end = (start + usize::from(length)).min(bytes.len());
                assert!(
                    found.expect("read") == bytes[start..end],
                    "{name} at {offset}"
                );
            }
            Step::Allocate {
                name,
                offset,
                length,
                how,
            } => {
                let handle = self.open(name).await;
                let (offset, end) = (usize::from(offset), usize::from(offset + length));
                let outcome = self
                    .fs
                    .allocate(handle, offset as u64, length.into(), how)
                    .await;
                outcome.expect("allocate");
                let bytes = &mut self.model.get_mut(&name).unwrap().bytes;
                if !how.keep_size && bytes.len() < end {
                    bytes.resize(end, 0);
                }
                let end = end.min(bytes.len());
                if how.clear && offset < end {
                    bytes[offset..end].fill(0);
                }
                self.check(name).await;
            }
            Step::Clone {
                from,
                offset,
                length,
                to,
                to_offset,
            } => {
                self.clone_range((from, offset), length, (to, to_offset))
                    .await
            }
            Step::Seek { name, offset } => self.seek(name, offset.into()).await,
            Step::Close { name } => {
                if let Some(handle) = self.handles.remove(&name) {
                    self.fs.flush(handle).await.expect("flush");
                    self.fs.release(handle).await.expect("release");
                    self.model.get_mut(&name).unwrap().committed = true;
                }
            }
            Step::Fsync { name } => {
                let handle = self.open(name).await;
                self.fs.fsync(handle).await.expect("fsync");
                self.model.get_mut(&name).unwrap().committed = true;
            }
            Step::FailingFsync { name } => {
                let handle = self.open(name).await;
                self.world.slices.failing.store(true, Ordering::Relaxed);
                let outcome = self.fs.fsync(handle).await;
                self.world.slices.failing.store(false, Ordering::Relaxed);
                match outcome {
                    // Tiny content needs no cloud.
                    Ok(()) => self.model.get_mut(&name).unwrap().committed = true,
                    Err(error) => assert!(matches!(error, VfsError::Data { .. }), "{error}"),
                }
                self.check(name).await;
            }
            Step::Rename { from, to, exchange } => self.rename(from, to, exchange).await,
            Step::Unlink { name } => {
                let outcome = self.fs.unlink(&root(), self.fs.root(), NAMES[name]).await;
                assert_eq!(outcome.is_ok(), self.model.contains_key(&name));
                if let Some(handle) = self.handles.remove(&name) {
                    // Still readable until it is closed.
                    let found = self.fs.read(handle, 0, 1 << 20).await.expect("read");
                    assert!(
                        found == self.model[&name].bytes,
                        "content of the unlinked {name}"
                    );
                    self.fs.flush(handle).await.expect("flush");
                    self.fs.release(handle).await.expect("release");
                }
                self.model.remove(&name);
            }
            Step::DropCaches => self.fs.drop_caches(),
            Step::Restart => {
                self.fs.shutdown().await.expect("shutdown");
                for file in self.model.values_mut() {
                    file.committed = true;
                }
                self.start_over().await;
            }
            Step::Crash => self.start_over().await,
        }
    }

    async fn inode(&self, name: usize) -> quorumfs_gateway::vfs::InodeId {
        let found = self
            .fs
            .lookup(&root(), self.fs.root(), NAMES[name])
            .await
            .unwrap();
        found.expect("it is open").inode
    }

    async fn clone_range(&mut self, from: (usize, u16), length: u16, to: (usize, u16)) {
        let (source, target) = (self.open(from.0).await, self.open(to.0).await);
        let outcome = self
            .fs
            .clone_range(
                (source, from.1.into()),
                (target, to.1.into()),
                length.into(),
            )
            .await;
        let bytes = self.model[&from.0].bytes.clone();
        let start = usize::from(from.1).min(bytes.len());
        let wanted = &bytes[start..(start + usize::from(length)).min(bytes.len())];
        match outcome {
            Ok(count) => {
                // A file of few extents is copied whole.
                assert_eq!(count, wanted.len() as u64);
                let file = self.model.get_mut(&to.0).unwrap();
                let (at, end) = (usize::from(to.1), usize::from(to.1) + wanted.len());
                if !wanted.is_empty() {
                    if file.bytes.len() < end {
                        file.bytes.resize(end, 0);
                    }
                    file.bytes[at..end].copy_from_slice(wanted);
                }
            }
            Err(error) if error.errno() == Errno::INVAL => {
                let apart = from.1.abs_diff(to.1) >= length;
                assert!(from.0 == to.0 && !apart, "{from:?} {length} {to:?}");
            }
            // Bytes in the inode.
            Err(error) => assert_eq!(error.errno(), Errno::OPNOTSUPP),
        }
        self.check(from.0).await;
        self.check(to.0).await;
    }

    /// Holes have only zeros, and data and holes alternate up to the end.
    async fn seek(&mut self, name: usize, from: usize) {
        let handle = self.open(name).await;
        let bytes = &self.model[&name].bytes;
        let mut at = from as u64;
        loop {
            let hole_until = match self.fs.seek(handle, at, Seek::Data).await {
                Ok(data) => data as usize,
                Err(error) => {
                    assert_eq!(error.errno(), Errno::NXIO);
                    bytes.len().max(at as usize)
                }
            };
            let hole = bytes.get(at as usize..hole_until).unwrap_or_default();
            assert!(hole.iter().all(|byte| *byte == 0), "data in a hole");
            if hole_until >= bytes.len() {
                break;
            }
            let data = hole_until as u64;
            at = self
                .fs
                .seek(handle, data, Seek::Hole)
                .await
                .expect("a hole");
            assert!(at > data && at <= bytes.len() as u64, "{data} {at}");
        }
    }

    async fn rename(&mut self, from: usize, to: usize, exchange: bool) {
        let mode = if exchange {
            RenameMode::Exchange
        } else {
            RenameMode::Replace
        };
        let directory = self.fs.root();
        let outcome = self
            .fs
            .rename(&root(), directory, NAMES[from], directory, NAMES[to], mode)
            .await;
        let possible =
            self.model.contains_key(&from) && (!exchange || self.model.contains_key(&to));
        assert_eq!(outcome.is_ok(), possible, "{outcome:?}");
        if !possible || from == to {
            return;
        }
        let (mut file, handle) = (self.model.remove(&from), self.handles.remove(&from));
        // A rename carries its content: it was committed first.
        if let Some(file) = &mut file {
            file.committed = true;
        }
        let (there, there_handle) = (self.model.remove(&to), self.handles.remove(&to));
        self.model.extend(file.map(|file| (to, file)));
        self.handles.extend(handle.map(|handle| (to, handle)));
        if exchange {
            self.model.extend(there.map(|file| (from, file)));
            self.handles
                .extend(there_handle.map(|handle| (from, handle)));
        } else if let Some(handle) = there_handle {
            let found = self.fs.read(handle, 0, 1 << 20).await.expect("read");
            assert!(
                found == there.unwrap().bytes,
                "content of the replaced {to}"
            );
            self.fs.release(handle).await.expect("release");
        }
    }
}

async fn run(steps: Vec<Step>) {
    let world = TestVolume::new();
    let fs = world.mount(ModelRun::options()).await;
    let mut run = ModelRun {
        world,
        fs,
        handles: BTreeMap::new(),
        model: BTreeMap::new(),
    };
    for step in steps {
        run.step(step).await;
    }
    for name in 0..NAMES.len() {
        if run.model.contains_key(&name) {
            run.check(name).await;
        }
    }
    run.step(Step::Restart).await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn files_behave_as_a_map_from_names_to_bytes(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(run(steps));
    }
}
