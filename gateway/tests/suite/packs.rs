//! Small files and small overwrites share objects: how many puts that takes, and the errors.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use crate::common::*;
use async_trait::async_trait;
use bytes::Bytes;
use quorumfs_backends::local::LocalStore;
use quorumfs_backends::marker::Marker;
use quorumfs_backends::{
    Deadline, ObjectInfo, ObjectName, ObjectStore, Operation, Page, Receipt, StoreError,
    StoreErrorKind, Traffic,
};
use quorumfs_gateway::blocks::{BlockConfig, BlockStore, Cloud, Compacted, Compaction};
use quorumfs_gateway::metadata::MetadataClient;
use quorumfs_gateway::vfs::{
    CloudSlices, FileSystem, HandleId, OpenMode, Packing, SliceStore, VfsOptions, WrittenSlice,
};
use quorumfs_metadata::identity::ObjectClass;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// A slow cloud in a directory that counts.
#[derive(Debug)]
pub(crate) struct Counting {
    store: LocalStore,
    delay: AtomicU64,
    pub(crate) refuses: AtomicBool,
    refuses_deletes: AtomicBool,
    puts: AtomicU64,
    bytes: AtomicU64,
    /// Finished puts.
    done: AtomicU64,
}

#[async_trait]
impl ObjectStore for Counting {
    fn describe(&self) -> String {
        self.store.describe()
    }

    async fn found(&self, deadline: Deadline) -> Result<(), StoreError> {
        self.store.found(deadline).await
    }

    async fn check(&self, deadline: Deadline) -> Result<(), StoreError> {
        self.store.check(deadline).await
    }

    async fn give_back(&self, deadline: Deadline) -> Result<(), StoreError> {
        self.store.give_back(deadline).await
    }

    async fn put_if_absent(
        &self,
        name: &ObjectName,
        body: Bytes,
        deadline: Deadline,
    ) -> Result<Option<Receipt>, StoreError> {
        self.puts.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
        let delay = self.delay.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(delay)).await;
        if self.refuses.load(Ordering::Relaxed) {
            return Err(StoreError {
                kind: StoreErrorKind::Denied,
                operation: Operation::Put,
                cloud: self.describe(),
                object: Some(name.clone()),
                detail: "set to refuse".to_owned(),
            });
        }
        let receipt = self.store.put_if_absent(name, body, deadline).await?;
        self.done.fetch_add(1, Ordering::Relaxed);
        Ok(receipt)
    }

    async fn get(
        &self,
        name: &ObjectName,
        length_max: u64,
        deadline: Deadline,
    ) -> Result<Bytes, StoreError> {
        self.store.get(name, length_max, deadline).await
    }

    async fn get_range(
        &self,
        name: &ObjectName,
        range: Range<u64>,
        deadline: Deadline,
    ) -> Result<Bytes, StoreError> {
        self.store.get_range(name, range, deadline).await
    }

    async fn head(&self, name: &ObjectName, deadline: Deadline) -> Result<ObjectInfo, StoreError> {
        self.store.head(name, deadline).await
    }

    async fn list(
        &self,
        prefix: &str,
        cursor: Option<&ObjectName>,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Page, StoreError> {
        self.store.list(prefix, cursor, limit, deadline).await
    }

    async fn delete(&self, name: &ObjectName, deadline: Deadline) -> Result<(), StoreError> {
        if self.refuses_deletes.load(Ordering::Relaxed) {
            return Err(StoreError {
                kind: StoreErrorKind::Denied,
                operation: Operation::Delete,
                cloud: self.describe(),
                object: Some(name.clone()),
                detail: "set to refuse".to_owned(),
            });
        }
        self.store.delete(name, deadline).await
    }

    fn traffic(&self) -> Traffic {
        self.store.traffic()
    }
}

/// A volume over four directories.
pub(crate) struct Clouds {
    pub(crate) world: TestVolume,
    pub(crate) stores: Vec<Arc<Counting>>,
    directory: tempfile::TempDir,
}

fn open(path: &Path, marker: Marker) -> Arc<Counting> {
    LocalStore::create(path, marker).unwrap();
    Arc::new(Counting {
        store: LocalStore::open(path, marker).unwrap(),
        delay: AtomicU64::new(20),
        refuses: AtomicBool::default(),
        refuses_deletes: AtomicBool::default(),
        puts: AtomicU64::default(),
        bytes: AtomicU64::default(),
        done: AtomicU64::default(),
    })
}

impl Counting {
    /// From now on it refuses deletions, or accepts them again.
    pub(crate) fn refuse_deletes(&self, refuses: bool) {
        self.refuses_deletes.store(refuses, Ordering::Relaxed);
    }
}

impl Clouds {
    pub(crate) fn new() -> Self {
        let world = TestVolume::new();
        let directory = tempfile::tempdir().unwrap();
        let marker = |cloud: u8| Marker {
            volume: world.volume.id().0,
            cloud: u16::from(cloud),
        };
        let stores = (0..4_u8).map(|cloud| {
            let path = directory.path().join(cloud.to_string());
            open(&path, marker(cloud))
        });
        Self {
            stores: stores.collect(),
            world,
            directory,
        }
    }

    pub(crate) fn client(&self) -> Arc<MetadataClient> {
        let own = self.world.volume.own_credentials();
        Arc::new(MetadataClient::new(Arc::new(self.world.session()), own))
    }

    pub(crate) fn blocks(&self, client: &Arc<MetadataClient>) -> BlockStore {
        let volume = &self.world.volume;
        self.blocks_of(client, BlockConfig::new(volume.id(), volume.policy()))
    }

    pub(crate) fn blocks_of(
        &self,
        client: &Arc<MetadataClient>,
        config: BlockConfig,
    ) -> BlockStore {
        let pairs = self.world.volume.clouds().zip(&self.stores);
        let clouds = pairs.map(|((cloud, secret), store)| Cloud {
            index: cloud.index,
            store: store.clone(),
            secret: secret.clone(),
            read_price: 0,
        });
        let clouds: Vec<Cloud> = clouds.collect();
        BlockStore::open(config, &clouds, client.clone()).unwrap()
    }

    pub(crate) fn slices(
        &self,
        client: &Arc<MetadataClient>,
        packing: Packing,
    ) -> Arc<CloudSlices> {
        let blocks = self.blocks(client);
        Arc::new(CloudSlices::new(self.world.volume.clone(), blocks, packing))
    }

    pub(crate) fn file_system(&self, packing: Packing) -> FileSystem {
        let client = self.client();
        let slices = self.slices(&client, packing);
        let options = VfsOptions::default();
        FileSystem::new(self.world.volume.clone(), client, slices, options)
    }

    /// Objects on all clouds and their bytes.
    pub(crate) fn stored(&self) -> (u64, u64) {
        let mut stored = (0, 0);
        for cloud in 0..self.stores.len() {
            let path = self.directory.path().join(cloud.to_string());
            for place in std::fs::read_dir(path).unwrap() {
                let place = place.unwrap();
                let objects = place.file_name().len() == 2 && place.file_type().unwrap().is_dir();
                for object in objects
                    .then(|| std::fs::read_dir(place.path()).unwrap())
                    .into_iter()
                    .flatten()
                {
                    stored.0 += 1;
                    stored.1 += object.unwrap().metadata().unwrap().len();
                }
            }
        }
        stored
    }

    /// The most that any cloud got: objects and bytes.
    fn most_put(&self) -> (u64, u64) {
        let most = |count: &dyn Fn(&Counting) -> u64| {
            let all = self.stores.iter().map(|store| count(store));
            all.max().unwrap()
        };
        (
            most(&|store| store.puts.load(Ordering::Relaxed)),
            most(&|store| store.bytes.load(Ordering::Relaxed)),
        )
    }
}

pub(crate) fn bytes_of(number: usize) -> Vec<u8> {
    let number = number as u64;
    (0..512_u64)
        .flat_map(|word| {
            (number * 512 + word)
                .wrapping_mul(0x9e37_79b9)
                .to_le_bytes()
        })
        .collect()
}

pub(crate) async fn write_one(fs: &FileSystem, name: &str, content: &[u8]) {
    let (_, handle) = new_file(fs, name.as_bytes()).await;
    assert_eq!(
        fs.write(handle, 0, content).await.unwrap() as usize,
        content.len()
    );
    fs.flush(handle).await.unwrap();
    fs.release(handle).await.unwrap();
}

pub(crate) async fn read_one(fs: &FileSystem, name: &str) -> Vec<u8> {
    let found = fs
        .lookup(&root(), fs.root(), name.as_bytes())
        .await
        .unwrap();
    content(fs, found.unwrap().inode).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_small_files_cost_forty_puts_on_each_cloud() {
    const FILES: usize = 10_000;
    let clouds = Clouds::new();
    let fs = clouds.file_system(Packing::THRIFTY);
    let mut writers = JoinSet::new();
    for number in 0..FILES {
        while writers.len() >= 512 {
            writers.join_next().await.unwrap().unwrap();
        }
        let fs = fs.clone();
        writers.spawn(async move {
            write_one(&fs, &format!("file {number}"), &bytes_of(number)).await;
        });
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
    let (puts, bytes) = clouds.most_put();
    assert!(puts <= 40, "{puts} puts");
    let least = (FILES * 4096 / 2) as u64;
    assert!(bytes < least + least / 10, "{bytes} bytes");
    fs.shutdown().await.unwrap();

    // Another session, with empty caches, reads all of it.
    let fs = clouds.file_system(Packing::PROMPT);
    let mut readers = JoinSet::new();
    for number in 0..FILES {
        while readers.len() >= 32 {
            readers.join_next().await.unwrap().unwrap();
        }
        let fs = fs.clone();
        readers.spawn(async move {
            let found = read_one(&fs, &format!("file {number}")).await;
            assert!(found == bytes_of(number), "file {number}");
        });
    }
    while let Some(done) = readers.join_next().await {
        done.unwrap();
    }
}

#[tokio::test]
async fn a_small_overwrite_of_a_large_file_is_small_on_the_clouds() {
    let clouds = Clouds::new();
    let fs = clouds.file_system(Packing::PROMPT);
    let (inode, handle) = new_file(&fs, b"large").await;
    set_size(&fs, inode, Some(handle), 1 << 30).await.unwrap();
    for (at, number) in [(5 << 20, 1), ((1 << 30) - 4096, 2), (5 << 20, 3)] {
        let before = clouds.most_put();
        fs.write(handle, at, &bytes_of(number)).await.unwrap();
        fs.fsync(handle).await.unwrap();
        let after = clouds.most_put();
        assert_eq!(after.0 - before.0, 1);
        assert!(after.1 - before.1 < 64 << 10, "{}", after.1 - before.1);
        fs.drop_caches();
        let read = fs.read(handle, at, 4096).await.unwrap();
        assert!(read.to_vec() == bytes_of(number));
    }
}

#[tokio::test]
async fn scattered_overwrites_of_one_file_share_objects() {
    let clouds = Clouds::new();
    let fs = clouds.file_system(Packing::PROMPT);
    let (inode, handle) = new_file(&fs, b"database").await;
    set_size(&fs, inode, Some(handle), 1 << 30).await.unwrap();
    let place = |number: usize| (number as u64 * 7919 % 65_536) * 8192;
    for number in 0..700 {
        let data = bytes_of(number);
        fs.write(handle, place(number), &data).await.unwrap();
    }
    fs.fsync(handle).await.unwrap();
    let (puts, _) = clouds.most_put();
    assert!(puts <= 4, "{puts} puts");
    fs.release(handle).await.unwrap();
    let other = clouds.file_system(Packing::PROMPT);
    let opened = other.open(&root(), inode, OpenMode::READ).await.unwrap();
    for number in 0..700 {
        let read = other.read(opened.handle, place(number), 4096).await;
        assert!(read.unwrap().to_vec() == bytes_of(number), "{number}");
    }
}

#[tokio::test]
async fn if_a_pack_fails_each_writer_gets_the_error_and_retries() {
    let clouds = Clouds::new();
    let fs = clouds.file_system(Packing::PROMPT);
    let refuse = |refuses| {
        for store in &clouds.stores[..2] {
            store.refuses.store(refuses, Ordering::Relaxed);
        }
    };
    refuse(true);
    let mut open: Vec<(HandleId, String)> = Vec::new();
    let mut flushes = JoinSet::new();
    for number in 0..20 {
        let name = format!("file {number}");
        let (_, handle) = new_file(&fs, name.as_bytes()).await;
        fs.write(handle, 0, &bytes_of(number)).await.unwrap();
        open.push((handle, name));
    }
    for (handle, _) in &open {
        let (fs, handle) = (fs.clone(), *handle);
        flushes.spawn(async move { fs.flush(handle).await });
    }
    while let Some(flushed) = flushes.join_next().await {
        assert!(flushed.unwrap().is_err());
    }
    let (puts, _) = clouds.most_put();
    assert!(puts < 10, "{puts} puts for packs that fail");
    refuse(false);
    for (number, (handle, name)) in open.into_iter().enumerate() {
        fs.flush(handle).await.unwrap();
        fs.release(handle).await.unwrap();
        let other = clouds.file_system(Packing::PROMPT);
        assert!(read_one(&other, &name).await == bytes_of(number));
    }
}

/// Slices of a block store alone, written at once.
async fn written(slices: &Arc<CloudSlices>, client: &MetadataClient) -> Vec<WrittenSlice> {
    let mut writers = JoinSet::new();
    for number in 0..10 {
        let (slices, id) = (slices.clone(), client.allocate().await.unwrap());
        writers.spawn(async move {
            let plain = Bytes::from(bytes_of(number));
            slices.write(&id, plain).await.unwrap()
        });
    }
    let all = writers.join_all().await;
    let packed = all
        .into_iter()
        .filter(|written| written.object.class == ObjectClass::PACK);
    packed.collect()
}

/// Whether the last cloud, which is late, gets its shard in the end.
async fn arrives(clouds: &Clouds, before: u64) -> bool {
    tokio::time::sleep(Duration::from_millis(700)).await;
    clouds.stores[3].done.load(Ordering::Relaxed) > before
}

#[tokio::test(start_paused = true)]
async fn a_pack_goes_on_if_any_of_its_slices_was_committed_and_not_if_none_was() {
    let clouds = Clouds::new();
    let client = clouds.client();
    let slices = clouds.slices(&client, Packing::PROMPT);
    clouds.stores[3].delay.store(400, Ordering::Relaxed);
    for some_are_committed in [true, false] {
        let before = clouds.stores[3].done.load(Ordering::Relaxed);
        let packed = written(&slices, &client).await;
        assert!(packed.len() >= 8, "{} share objects", packed.len());
        let objects: std::collections::BTreeSet<_> =
            packed.iter().map(|written| written.object.id).collect();
        assert!(objects.len() <= 2, "{objects:?}");
        assert!(packed.iter().all(|written| written.lease.is_some()));
        let mut committed = std::collections::BTreeSet::new();
        for written in &packed {
            let object = written.object.id;
            if some_are_committed && committed.insert(object) {
                slices.committed(object);
            } else {
                slices.abandoned(object);
            }
        }
        // Blocks of the first two are still completed, and arrive with or without the packs.
        let arrived = clouds.stores[3].done.load(Ordering::Relaxed);
        assert_eq!(before, arrived, "it is late");
        assert!(arrives(&clouds, before).await);
        let arrived = clouds.stores[3].done.load(Ordering::Relaxed) - before;
        let blocks = 10 - packed.len() as u64;
        let packs = if some_are_committed { objects.len() } else { 0 };
        assert_eq!(arrived, blocks + packs as u64);
    }
}

#[tokio::test(start_paused = true)]
async fn a_single_writer_does_not_wait_and_a_cancelled_one_does_no_harm() {
    let clouds = Clouds::new();
    let client = clouds.client();
    let patient = Packing {
        pause: Duration::from_secs(3),
        patience: Duration::from_secs(3),
    };
    let slices = clouds.slices(&client, patient);
    let begin = Instant::now();
    for number in 0..4 {
        let id = client.allocate().await.unwrap();
        let plain = Bytes::from(bytes_of(number));
        let written = slices.write(&id, plain).await.unwrap();
        assert_eq!(written.object.class, ObjectClass::BLOCK);
        slices.committed(written.object.id);
    }
    assert!(begin.elapsed() < Duration::from_secs(2));

    let slices = clouds.slices(&client, Packing::PROMPT);
    clouds.stores[3].delay.store(400, Ordering::Relaxed);
    let mut writers = Vec::new();
    for number in 0..10 {
        let (slices, id) = (slices.clone(), client.allocate().await.unwrap());
        writers.push(tokio::spawn(async move {
            let plain = Bytes::from(bytes_of(number));
            slices.write(&id, plain).await.unwrap()
        }));
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    let before = clouds.stores[3].done.load(Ordering::Relaxed);
    for writer in writers.iter().skip(2).step_by(2) {
        writer.abort();
    }
    let mut packed = Vec::new();
    for writer in writers {
        if let Ok(written) = writer.await
            && written.object.class == ObjectClass::PACK
        {
            packed.push(written);
        }
    }
    assert!(packed.len() >= 3, "{}", packed.len());
    for written in &packed {
        slices.abandoned(written.object.id);
    }
    // All slices in it are given up: the rest of it is not put.
    let blocks = 1;
    tokio::time::sleep(Duration::from_millis(700)).await;
    let arrived = clouds.stores[3].done.load(Ordering::Relaxed) - before;
    assert!(arrived <= blocks, "{arrived}");
}

/// Writes files at once, one slice each.
async fn write_all(fs: &FileSystem, numbers: impl Iterator<Item = usize>, generation: usize) {
    let mut writers = JoinSet::new();
    for number in numbers {
        let fs = fs.clone();
        writers.spawn(async move {
            let name = format!("file {number}");
            let (_, handle) = fs
                .create(&root(), fs.root(), name.as_bytes(), 0o644, TRUNCATE, false)
                .await
                .unwrap();
            let data = bytes_of(number + generation);
            fs.write(handle, 0, &data).await.unwrap();
            fs.flush(handle).await.unwrap();
            fs.release(handle).await.unwrap();
        });
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
}

#[tokio::test]
async fn live_slices_of_sparse_packs_are_moved_and_readable_at_both_places() {
    const FILES: usize = 300;
    let clouds = Clouds::new();
    let client = clouds.client();
    let blocks = clouds.blocks(&client);
    let volume = clouds.world.volume.clone();
    let slices = CloudSlices::new(volume.clone(), blocks.clone(), Packing::PROMPT);
    let options = VfsOptions::default();
    let fs = FileSystem::new(volume.clone(), client.clone(), Arc::new(slices), options);
    write_all(&fs, 0..FILES, 0).await;

    // Another session has cached a file's extents, and none of its bytes.
    let other = clouds.client();
    let slices = clouds.slices(&other, Packing::PROMPT);
    let options = VfsOptions {
        cache_bytes: 0,
        ..VfsOptions::default()
    };
    let reader = FileSystem::new(volume, other, slices, options);
    let found = reader.lookup(&root(), reader.root(), b"file 295").await;
    let inode = found.unwrap().unwrap().inode;
    let opened = reader.open(&root(), inode, OpenMode::READ).await.unwrap();
    let read = async || reader.read(opened.handle, 0, 4096).await.unwrap().to_vec();
    assert!(read().await == bytes_of(295));

    // Four of five are rewritten.
    write_all(&fs, (0..FILES).filter(|number| number % 5 != 0), FILES).await;
    blocks.drain(Duration::from_secs(10)).await;
    let eager = Compaction {
        bytes_per_second: None,
        dead_bytes_min: 1,
        ..Compaction::default()
    };
    let first = blocks.compact(&eager).await.unwrap();
    assert!(first.sparse > 0 && first.slices == 0, "{first:?}");
    let reluctant = Compaction {
        dead_bytes_min: 64 << 20,
        ..eager
    };
    let second = blocks.compact(&reluctant).await.unwrap();
    assert_eq!(second, first, "not worth while");
    let (before, _) = clouds.most_put();
    let third = blocks.compact(&eager).await.unwrap();
    assert!(third.slices > 20 && third.packs > 0, "{third:?}");
    assert!(third.bytes_freed > third.slices * 4112, "{third:?}");
    assert_eq!(clouds.most_put().0 - before, 1);
    let status = blocks.status();
    assert_eq!(status.counters.slices_moved, third.slices);
    assert_eq!(status.sparse_packs, first.sparse);
    assert_eq!(blocks.compact(&eager).await.unwrap(), Compacted::default());
    assert_eq!(blocks.status().sparse_packs, 0);
    assert!(blocks.drain(Duration::from_secs(10)).await.is_complete());

    assert!(read().await == bytes_of(295), "at its old place");
    for fs in [&fs, &clouds.file_system(Packing::PROMPT)] {
        for number in 0..FILES {
            let generation = if number % 5 == 0 { 0 } else { FILES };
            let found = read_one(fs, &format!("file {number}")).await;
            assert!(found == bytes_of(number + generation), "file {number}");
        }
    }
}
