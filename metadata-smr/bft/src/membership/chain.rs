//! The records of all epochs, from the membership that a cluster began with.
//!
//! A process that holds that membership can verify with the records which replicas voted in which
//! epoch, and so the certificate of any checkpoint: of the epoch that its sequence falls into,
//! under that epoch's keys.
//!
//! Always: the records follow one upon the other, each under the keys of the epoch before. Where a
//! later membership is known already (the *anchor*), the records have to lead to that one: the
//! keys of an old epoch may have been stolen since, and could sign other records.

use super::{EpochRecord, Membership};
use crate::authentication::Verifier;
use crate::checkpoint::CheckpointCertificate;
use crate::identity::{ClusterId, Epoch, View};
use crate::wire::Context;

/// A cluster's epochs, each proved.
#[derive(Clone, Debug)]
pub struct EpochChain {
    cluster: ClusterId,
    genesis: Membership,
    records: Vec<EpochRecord>,
    anchor: Option<Membership>,
}

impl EpochChain {
    /// The chain of a cluster that began with this membership, without records.
    #[must_use]
    pub const fn new(cluster: ClusterId, genesis: Membership) -> Self {
        Self {
            cluster,
            genesis,
            records: Vec::new(),
            anchor: None,
        }
    }

    /// The same; the records have to lead to this membership, if they go as far.
    #[must_use]
    pub fn anchored(self, anchor: Option<Membership>) -> Self {
        let anchor = anchor.filter(|it| it.epoch > self.genesis.epoch);
        Self { anchor, ..self }
    }

    /// The cluster.
    #[must_use]
    pub const fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The records, oldest first.
    #[must_use]
    pub fn records(&self) -> &[EpochRecord] {
        &self.records
    }

    /// The membership of the newest epoch.
    #[must_use]
    pub fn newest(&self) -> &Membership {
        let last = self.records.last();
        last.map_or(&self.genesis, |record| &record.membership)
    }

    /// The newest epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.newest().epoch
    }

    /// Whether the records lead as far as the anchor.
    #[must_use]
    pub fn is_anchored(&self) -> bool {
        let anchor = self.anchor.as_ref();
        anchor.is_none_or(|anchor| self.epoch() >= anchor.epoch)
    }

    /// Adds the records that lead on; earlier ones are passed over. Whether there were any.
    pub fn follow(&mut self, records: &[EpochRecord], verifier: &dyn Verifier) -> bool {
        let now = self.epoch();
        let later: Vec<_> = records.iter().filter(|it| it.epoch() > now).collect();
        let later: Vec<EpochRecord> = later.into_iter().cloned().collect();
        let known = self.newest();
        let leads = !later.is_empty()
            && EpochRecord::lead_on(&later, &known.context(self.cluster), known, verifier)
            && later.iter().all(|record| self.agrees(&record.membership));
        if leads {
            self.records.extend(later);
        }
        leads
    }

    fn agrees(&self, membership: &Membership) -> bool {
        let anchor = self.anchor.as_ref();
        let same = anchor.filter(|anchor| anchor.epoch == membership.epoch);
        same.is_none_or(|anchor| anchor == membership)
    }

    /// Whether a quorum of the epoch that this checkpoint falls into signed it. A checkpoint that
    /// ends an epoch was signed by that epoch's replicas.
    pub fn proves(&self, certificate: &CheckpointCertificate, verifier: &dyn Verifier) -> bool {
        let sequence = certificate.checkpoint.sequence;
        let later = self.records.iter().map(|record| &record.membership);
        let mut all = std::iter::once(&self.genesis).chain(later);
        let Some(mut membership) = all.next() else {
            return false;
        };
        for next in all.take_while(|next| next.from < sequence) {
            membership = next;
        }
        let context: Context = membership.context(self.cluster);
        sequence > membership.from
            && certificate.verify(context.header(View(0)), &context, membership, verifier)
    }
}
