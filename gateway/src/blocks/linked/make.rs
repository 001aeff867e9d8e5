//! Linking an object at its clouds.

use super::object::{LinkedObject, LinkedShard};
use crate::blocks::clouds::Clouds;
use crate::blocks::object::{BlockError, Failures, ShardFault, StoredObject};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long acknowledgements of a shard are waited for.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(20);
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// For how long links of objects are to be valid, and for how long they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkFor {
    /// As it is asked for.
    pub wanted: Duration,
    /// When the first of the URLs ends by itself, in seconds since 1970.
    pub ends: u64,
    /// Whether one may end earlier: it was signed with credentials whose end is unknown.
    pub may_end_earlier: bool,
}

impl LinkFor {
    /// None was made yet.
    #[must_use]
    pub const fn new(wanted: Duration) -> Self {
        Self {
            wanted,
            ends: u64::MAX,
            may_end_earlier: false,
        }
    }
}

/// Links an object: a URL for each of its shards that a cloud has acknowledged and signs one for.
/// An object that was just written may lack acknowledgements: they are waited for.
///
/// # Errors
/// `Unlinkable` if that is so of fewer than k + f shards.
pub(in crate::blocks) async fn link(
    clouds: &Clouds,
    object: &StoredObject,
    link_for: &mut LinkFor,
) -> Result<LinkedObject, BlockError> {
    let deadline = Instant::now() + ACKNOWLEDGED_WITHIN;
    let mut object = Arc::new(object.clone());
    loop {
        let Signed {
            linked,
            faults,
            link_for: signed_for,
        } = sign(clouds, &clouds.with_replacements(&object), *link_for).await;
        let wanted = usize::from(object.policy().write_quorum());
        if linked.linked() >= wanted {
            *link_for = signed_for;
            return Ok(linked);
        }
        let awaits = faults
            .iter()
            .any(|it| matches!(it, ShardFault::Awaited { .. }));
        if !awaits || Instant::now() >= deadline {
            let failures = faults.iter().map(ShardFault::to_string).collect();
            return Err(BlockError::Unlinkable {
                object: object.id(),
                linked: linked.linked(),
                wanted,
                failures: Failures(failures),
            });
        }
        tokio::time::sleep(ASK_AGAIN_AFTER).await;
        if let Some(newer) = newest(clouds, &object).await? {
            object = Arc::new(newer);
        }
    }
}

/// An object as the metadata know it now; `None` if they do not answer.
async fn newest(
    clouds: &Clouds,
    object: &StoredObject,
) -> Result<Option<StoredObject>, BlockError> {
    let row = clouds.log().object(object.id()).await.ok().flatten();
    row.map(|row| StoredObject::of_row(object.id(), &row))
        .transpose()
}

/// An object with the URLs that were signed, and why others were not.
struct Signed {
    linked: LinkedObject,
    faults: Vec<ShardFault>,
    link_for: LinkFor,
}

async fn sign(clouds: &Clouds, object: &StoredObject, mut link_for: LinkFor) -> Signed {
    let headers = clouds.headers(object);
    let (mut shards, mut faults) = (Vec::new(), Vec::new());
    for (index, (shard, header)) in object.shards().iter().zip(headers).enumerate() {
        let signed = async {
            let link = clouds.link_of(object, index)?;
            if !shard.acknowledged {
                return Err(ShardFault::Awaited {
                    cloud: link.describe(),
                });
            }
            let named = object.named(index, shard.attempt);
            link.presign(&named, link_for.wanted).await
        };
        let url = match signed.await {
            Ok(signed) => {
                link_for.ends = link_for.ends.min(signed.expires);
                link_for.may_end_earlier |= signed.may_end_earlier;
                Some(signed.url)
            }
            Err(fault) => {
                faults.push(fault);
                None
            }
        };
        shards.push(LinkedShard {
            digest: shard.digest,
            header,
            url,
        });
    }
    Signed {
        linked: LinkedObject {
            id: object.id(),
            policy: object.policy(),
            length: object.length(),
            shards,
        },
        faults,
        link_for,
    }
}
