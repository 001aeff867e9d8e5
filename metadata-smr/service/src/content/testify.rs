//! Records the faults of clouds, in a ring for each cloud.
//!
//! A testimony concerns one cloud, so its ring is read once, and known findings are skipped. It
//! needs the right to reconcile: the ring is small, and false findings would displace real ones.

use super::bring_in::require_at_most;
use crate::change::{Asker, Change};
use crate::error::Error;
use crate::identity::CloudIndex;
use crate::limits::{EVIDENCE_PER_CLOUD, TESTIFY_FINDINGS_MAX};
use crate::operation::Finding;
use crate::row::{Evidence, EvidenceCount, Object, key};
use crate::rows::{Outcome, Rows, decode, require};

/// Records the new ones of some findings; returns their number.
pub(crate) fn testify(
    change: &mut Change<'_, '_>,
    asker: &Asker,
    cloud: CloudIndex,
    findings: &[Finding],
) -> Outcome<u32> {
    require(asker.rights.reconcile, Error::NoRight)?;
    require_at_most(findings.len(), TESTIFY_FINDINGS_MAX)?;
    let exists = change.failure_domain(cloud)?.is_some();
    require(exists, Error::Invalid)?;
    let (mut total, mut known) = evidence(change, cloud)?;
    let mut new = 0_u32;
    for finding in findings {
        let Some(found) = weigh(change, asker, cloud, finding)? else {
            continue;
        };
        if known.iter().any(|it| it.is_same_fault(&found)) {
            continue;
        }
        change.put(key::evidence(cloud, place(total)), &found)?;
        total = total.saturating_add(1);
        new = new.saturating_add(1);
        known.push(found);
    }
    if new > 0 {
        let count = EvidenceCount { total };
        change.put(key::evidence_count(cloud), &count)?;
    }
    Ok(new)
}

/// Combines a finding with the row of its object; `None` if the object is gone or not needed,
/// or has no such shard in this generation.
fn weigh(
    change: &Change<'_, '_>,
    asker: &Asker,
    cloud: CloudIndex,
    finding: &Finding,
) -> Outcome<Option<Evidence>> {
    let Some(object) = change.find::<Object>(&key::object(finding.object))? else {
        return Ok(None);
    };
    let shard = object.shards.get(usize::from(finding.shard.0));
    // The row has the digests of one generation alone. What nothing refers to may be deleted
    // already: a reader with an old row misses it by no fault of the cloud.
    let judged = finding.generation == object.generation && object.slices > 0;
    let Some(shard) = shard.filter(|_| judged) else {
        return Ok(None);
    };
    // A shard that was rewritten in the meantime is reported all the same, with the receipt seen
    // then.
    let is_as_seen = shard.cloud == cloud && finding.attempt == shard.attempt;
    let own = if is_as_seen { shard.receipt } else { None };
    Ok(Some(Evidence {
        object: finding.object,
        class: object.class,
        shard: finding.shard,
        generation: finding.generation,
        attempt: finding.attempt,
        fault: finding.fault,
        digest: shard.digest,
        receipt: own.or(finding.receipt),
        found: finding.found,
        committed: object.committed,
        writer: object.principal,
        witness: asker.number,
        testified: change.time(),
    }))
}

/// The slot in its ring for a cloud's next finding.
fn place(total: u64) -> u16 {
    u16::try_from(total % u64::from(EVIDENCE_PER_CLOUD)).unwrap_or(0)
}

/// The number of all findings of a cloud, and the recorded ones, oldest first.
pub(crate) fn evidence(rows: &impl Rows, cloud: CloudIndex) -> Outcome<(u64, Vec<Evidence>)> {
    let count: Option<EvidenceCount> = rows.find(&key::evidence_count(cloud))?;
    let total = count.unwrap_or_default().total;
    let prefix = key::all_evidence(cloud);
    let found = rows.scan(&prefix, &prefix, usize::from(EVIDENCE_PER_CLOUD))?;
    let mut kept = found
        .iter()
        .map(|(row_key, bytes)| decode(row_key, bytes))
        .collect::<Outcome<Vec<Evidence>>>()?;
    if total > u64::from(EVIDENCE_PER_CLOUD) {
        let oldest = usize::from(place(total)).min(kept.len());
        kept.rotate_left(oldest);
    }
    Ok((total, kept))
}
