//! Creates a cloud in the directory given as argument and puts one object into it. The test that
//! watches system calls runs this example under strace.

use quorumfs_backends::local::LocalStore;
use quorumfs_backends::marker::Marker;
use quorumfs_backends::{Deadline, ObjectName, ObjectStore};
use std::path::PathBuf;
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = PathBuf::from(
        std::env::args_os()
            .nth(1)
            .ok_or("usage: put_one <directory>")?,
    );
    let marker = Marker {
        volume: [1; 16],
        cloud: 0,
    };
    LocalStore::create(&path, marker)?;
    let store = LocalStore::open(&path, marker)?;
    let name = ObjectName::parse("ab/0123456789")?;
    let body = "the object's body, to be found in the trace";
    store
        .put_if_absent(&name, body.into(), Deadline::after(Duration::from_secs(60)))
        .await?;
    Ok(())
}
