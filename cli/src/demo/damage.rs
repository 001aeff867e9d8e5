//! The damage that the check does to a cloud's objects behind the volume's back.
//!
//! It uses the cloud's own interface, with the volume's credentials, so that it works on any kind
//! of cloud.

use crate::exit::Exit;
use crate::explain;
use crate::failure::{CommandResult, Failure};
use quorumfs_backends::{Deadline, ObjectName, ObjectStore};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Objects to work on at a time.
const HANDS: usize = 16;
/// Names in one page of a listing.
const PAGE: usize = 500;
/// The longest object.
const OBJECT_BYTES_MAX: u64 = 64 << 20;
const WITHIN: Duration = Duration::from_secs(60);

fn soon() -> Deadline {
    Deadline::after(WITHIN)
}

/// A kind of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Flip,
    Delete,
}

/// Flips a byte in each object; returns how many there are.
pub(crate) async fn flip_a_byte_in_every_object(
    cloud: &Arc<dyn ObjectStore>,
) -> CommandResult<usize> {
    do_to_all(cloud, Damage::Flip).await
}

/// Deletes every object and the cloud's marker; returns how many objects there were.
pub(crate) async fn empty(cloud: &Arc<dyn ObjectStore>) -> CommandResult<usize> {
    let deleted = do_to_all(cloud, Damage::Delete).await?;
    let given_back = cloud.give_back(soon()).await;
    given_back.map_err(|error| explain::store_failure(&error))?;
    Ok(deleted)
}

/// How many objects there are.
pub(crate) async fn count(cloud: &Arc<dyn ObjectStore>) -> CommandResult<usize> {
    names(cloud).await.map(|names| names.len())
}

async fn names(cloud: &Arc<dyn ObjectStore>) -> CommandResult<Vec<ObjectName>> {
    let mut names: Vec<ObjectName> = Vec::new();
    loop {
        let page = cloud.list("", names.last(), PAGE, soon()).await;
        let page = page.map_err(|error| explain::store_failure(&error))?;
        names.extend(page.names);
        if !page.more {
            return Ok(names);
        }
    }
}

async fn do_to_all(cloud: &Arc<dyn ObjectStore>, deed: Damage) -> CommandResult<usize> {
    // The whole list first: objects that are written anew need not appear again behind the cursor.
    let names = names(cloud).await?;
    let count = names.len();
    let mut work = JoinSet::new();
    for name in names {
        if work.len() >= HANDS {
            done(work.join_next().await)?;
        }
        let cloud = Arc::clone(cloud);
        work.spawn(async move { do_to(cloud.as_ref(), &name, deed).await });
    }
    while let Some(ended) = work.join_next().await {
        done(Some(ended))?;
    }
    Ok(count)
}

fn done(ended: Option<Result<CommandResult<()>, tokio::task::JoinError>>) -> CommandResult<()> {
    match ended {
        None => Ok(()),
        Some(Ok(outcome)) => outcome,
        Some(Err(error)) => {
            let message = format!("a task of the check died: {error}");
            Err(Failure::new(Exit::Error, message))
        }
    }
}

async fn do_to(cloud: &dyn ObjectStore, name: &ObjectName, deed: Damage) -> CommandResult<()> {
    let deeds = async {
        if deed == Damage::Delete {
            return cloud.delete(name, soon()).await;
        }
        let body = cloud.get(name, OBJECT_BYTES_MAX, soon()).await?;
        let mut body = body.to_vec();
        // Past the header, in a part that is surely read: the middle of the first cell.
        let middle = (body.len() / 2).min(32 << 10);
        if let Some(byte) = body.get_mut(middle) {
            *byte ^= 0x10;
        }
        cloud.delete(name, soon()).await?;
        cloud
            .put_if_absent(name, body.into(), soon())
            .await
            .map(drop)
    };
    deeds.await.map_err(|error| explain::store_failure(&error))
}
