//! The file system in one process: no kernel, no servers, four directories as clouds.
//!
//! It writes a file, removes everything that one of the clouds holds, and reads the file back. Run
//! it with `cargo run --release -p quorumfs-gateway --example files`.

use quorumfs_backends::Deadline;
use quorumfs_backends::location::{Access, Location};
use quorumfs_backends::marker::Marker;
use quorumfs_backends::remote::{Limits, Pace, RetryPolicy};
use quorumfs_gateway::blocks::{BlockConfig, BlockStore, Cloud};
use quorumfs_gateway::metadata::{Embedded, MetadataClient, MountMode, Takeover};
use quorumfs_gateway::vfs::{Caller, CloudSlices, FileSystem, OpenMode, Packing, VfsOptions};
use quorumfs_gateway::volume::{NewVolume, Volume, create};
use quorumfs_metadata::Metadata;
use std::error::Error;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // A volume: its signed description, the owner's key, the recovery kit.
    let new = NewVolume::in_process()?;
    let policy = new.policy;
    let created = create(new)?;
    let volume = Arc::new(Volume::open(&created.genesis, &created.owner)?);

    // The metadata service in this process. A mount has a session with replicas in its place.
    let service = Embedded::new(Metadata, &created.genesis)?;
    let session = service.open_session(created.owner.principal.id().signing)?;
    let metadata = MetadataClient::new(Arc::new(session), volume.own_credentials());
    let metadata = Arc::new(metadata);
    metadata
        .mount(Takeover::OfAny, MountMode::Exclusive)
        .await?;

    // Four directories, each with the marker of its volume.
    let directory = tempfile::tempdir()?;
    let place = |number: u16| directory.path().join(number.to_string());
    let shared = Arc::new(Pace::new(Limits::default()));
    let mut clouds = Vec::new();
    for (number, (cloud, secret)) in (0..).zip(volume.clouds()) {
        let access = Access {
            marker: Marker {
                volume: volume.id().0,
                cloud: number,
            },
            credentials: None,
            collector: None,
            signer: None,
            retry_policy: RetryPolicy::default(),
            limits: Limits::default(),
            shared: Arc::clone(&shared),
        };
        let store = Location::Local(place(number)).attach(&access).await?;
        store
            .found(Deadline::after(Duration::from_secs(10)))
            .await?;
        clouds.push(Cloud {
            index: cloud.index,
            store,
            secret: secret.clone(),
            read_price: 0,
        });
    }
    let config = BlockConfig::new(volume.id(), policy);
    let blocks = BlockStore::open(config, &clouds, metadata.clone())?;

    // The file system over both.
    let slices = CloudSlices::new(Arc::clone(&volume), blocks.clone(), Packing::PROMPT);
    let options = VfsOptions::default();
    let fs = FileSystem::new(volume, metadata, Arc::new(slices), options);
    let caller = Caller::this_process();
    let content = b"One of four clouds may vanish.\n".repeat(10_000);
    let (attributes, handle) = fs
        .create(
            &caller,
            fs.root(),
            b"note.txt",
            0o644,
            OpenMode::READ_WRITE,
            true,
        )
        .await?;
    fs.write(handle, 0, &content).await?;
    // As close(2): it returns when the content is on enough clouds, and committed.
    fs.flush(handle).await?;
    fs.release(handle).await?;
    blocks.drain(Duration::from_secs(10)).await;

    // A cloud loses everything, and nothing is lost.
    fs::remove_dir_all(place(2))?;
    let opened = fs.open(&caller, attributes.inode, OpenMode::READ).await?;
    let read = fs
        .read(opened.handle, 0, u32::try_from(content.len())?)
        .await?;
    assert!(read == content, "the same bytes");
    fs.release(opened.handle).await?;
    println!("read {} bytes back without cloud 2", read.len());
    fs.shutdown().await?;
    Ok(())
}
