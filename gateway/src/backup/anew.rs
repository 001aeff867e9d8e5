//! The beginning of a further incarnation.

use super::RecoveryError;
use crate::blocks::{BackupStore, incarnation_record, is_incarnation_record};
use crate::keys::VolumeRoot;
use quorumfs_metadata::identity::VolumeIncarnation;

/// The first incarnation after `last` that no record on the clouds says to have begun.
///
/// # Errors
/// If too few clouds answer to know that, or there can be no further one.
pub async fn next_incarnation(
    store: &BackupStore,
    root: &VolumeRoot,
    last: VolumeIncarnation,
) -> Result<VolumeIncarnation, RecoveryError> {
    let mut next = last;
    loop {
        let further = next.0.checked_add(1);
        let none = || RecoveryError::damaged("the volume was recovered 255 times: copy it instead");
        next = VolumeIncarnation(further.ok_or_else(none)?);
        let (records, answered) = store.records(next).await;
        let key = root.public();
        let is_one = |body: &bytes::Bytes| is_incarnation_record(body, &key, next, None);
        if records.iter().any(is_one) {
            continue;
        }
        let wanted = store.wanted();
        if answered < wanted {
            return Err(RecoveryError::TooFewAnswer { answered, wanted });
        }
        return Ok(next);
    }
}

/// Records on the clouds that an incarnation begins with this genesis. From then on the collectors
/// of earlier ones delete nothing.
///
/// # Errors
/// If fewer than n − f clouds take it.
pub async fn begin_incarnation(
    store: &BackupStore,
    root: &VolumeRoot,
    incarnation: VolumeIncarnation,
    genesis: &[u8],
) -> Result<(), RecoveryError> {
    let record = incarnation_record(root, incarnation, genesis);
    Ok(store.put_record(incarnation, record).await?)
}
