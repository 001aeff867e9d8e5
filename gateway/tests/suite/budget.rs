//! A spent budget over directories: what waits, what is refused, and what goes on.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use crate::common::*;
use crate::packs::{Clouds, bytes_of, read_one, write_one};
use quorumfs_gateway::blocks::{BlockConfig, BlockStore, Compaction};
use quorumfs_gateway::cost::BudgetLevel;
use quorumfs_gateway::vfs::{CloudSlices, FileSystem, Packing, VfsOptions};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
const FILES: usize = 100;

/// A file system, and its block store, which compacts all the time.
fn opened(clouds: &Clouds) -> (FileSystem, BlockStore) {
    let client = clouds.client();
    let eager = Compaction {
        every: Duration::from_millis(10),
        bytes_per_second: None,
        dead_bytes_min: 1,
    };
    let volume = clouds.world.volume.clone();
    let config = BlockConfig {
        compaction: Some(eager),
        ..BlockConfig::new(volume.id(), volume.policy())
    };
    let blocks = clouds.blocks_of(&client, config);
    let slices = CloudSlices::new(volume.clone(), blocks.clone(), Packing::THRIFTY);
    let options = VfsOptions::default();
    let fs = FileSystem::new(volume, client, Arc::new(slices), options);
    (fs, blocks)
}

/// Rounds of compaction that have begun.
fn rounds(blocks: &BlockStore) -> u64 {
    let tasks = blocks.status().tasks;
    tasks.iter().find(|it| it.name == "compact").unwrap().rounds
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let waited = tokio::time::timeout(SOON, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn past_the_soft_budget_compaction_waits_and_completion_goes_on() {
    let clouds = Clouds::new();
    let (fs, blocks) = opened(&clouds);
    blocks.allowance().set(BudgetLevel::PastSoft, true);
    let writers = (0..FILES).map(|number| {
        let fs = fs.clone();
        tokio::spawn(async move {
            write_one(&fs, &format!("f{number}"), &bytes_of(number)).await;
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    assert!(blocks.drain(SOON).await.is_complete(), "all shards are put");
    for number in 5..FILES {
        let name = format!("f{number}");
        let gone = fs.unlink(&root(), fs.root(), name.as_bytes()).await;
        gone.unwrap();
    }
    fs.sync_all().await.unwrap();
    let before = rounds(&blocks);
    until("rounds go on", || rounds(&blocks) > before + 5).await;
    assert_eq!(blocks.status().counters.slices_moved, 0);
    blocks.allowance().set(BudgetLevel::Within, true);
    let moved = || blocks.status().counters.slices_moved > 0;
    until("it is done within the budget", moved).await;
    assert_eq!(read_one(&fs, "f0").await, bytes_of(0));
    fs.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_that_a_hard_budget_stops_are_edquot_and_all_else_goes_on() {
    let clouds = Clouds::new();
    let (fs, blocks) = opened(&clouds);
    write_one(&fs, "old", &bytes_of(1)).await;
    let (_, handle) = new_file(&fs, b"new").await;
    blocks.allowance().set(BudgetLevel::PastHard, false);
    assert_eq!(fs.write(handle, 0, b"taken").await.unwrap(), 5);
    blocks.allowance().set(BudgetLevel::PastHard, true);
    let refused = fs.write(handle, 5, b"refused").await.unwrap_err();
    assert_eq!(refused.errno(), Errno::DQUOT, "{refused}");
    assert!(refused.to_string().contains("past_hard"), "{refused}");
    // What was taken in before is committed.
    fs.flush(handle).await.unwrap();
    fs.release(handle).await.unwrap();
    assert_eq!(read_one(&fs, "new").await, b"taken");
    assert_eq!(read_one(&fs, "old").await, bytes_of(1));
    fs.unlink(&root(), fs.root(), b"old").await.unwrap();
    fs.shutdown().await.unwrap();
}
