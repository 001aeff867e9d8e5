//! False claims, where votes are not signed and certificates do not exist.

use super::{Proxy, no_digest};
use quorumfs_bft::certificate::{CommitCertificate, PreparedCertificate};
use quorumfs_bft::identity::{Digest, Sequence, Signature, Time, View};
use quorumfs_bft::wire::frame::{Envelope, Header, Unsigned};
use quorumfs_bft::wire::message::{Accepted, Batch, Message, ViewChange};
use std::sync::Arc;

/// An unsigned proposal.
fn unsigned(header: Header, batch: Batch) -> Arc<Envelope> {
    let unsigned = Unsigned::new(header, Message::Proposal(batch));
    Arc::clone(unsigned.with_signature(Signature::default()).envelope())
}

/// The digest of a batch.
pub(super) fn digest_of(batch: &Batch) -> Digest {
    unsigned(Header::default(), batch.clone()).digest()
}

impl Proxy {
    /// A VIEW-CHANGE with false claims. They are well-formed, and as late as possible.
    pub(super) fn false_claims(&mut self, envelope: &Envelope) -> Option<Message> {
        let Message::ViewChange(change) = envelope.message() else {
            return None;
        };
        let mut change = change.clone();
        let header = *envelope.header();
        let last = header.at(View(header.view.0.saturating_sub(1)));
        match self.random.below(7) {
            0..3 => self.claim_twins(&mut change, last),
            3 => {
                // Batches that were prepared earlier are claimed to have been prepared just now.
                for prepared in &mut change.prepared {
                    let batch = prepared.proposal.batch()?.clone();
                    prepared.proposal = unsigned(last, batch);
                }
                change
                    .claims
                    .as_mut()?
                    .accepted
                    .iter_mut()
                    .for_each(|it| it.view = last.view);
            }
            4 => {
                let executed = change.base.last_mut()?;
                executed.digest = no_digest(&mut self.random);
            }
            5 => self.claim_executed(&mut change),
            _ => {
                change.base.drain(..change.base.len().saturating_sub(1));
                change.base.first_mut()?.sequence.0 += self.random.between(3, 99);
                change.prepared.clear();
                change.claims.as_mut()?.accepted.clear();
            }
        }
        Some(Message::ViewChange(change))
    }

    /// Replaces each batch that it prepared by a similar one, which some replicas may take.
    fn claim_twins(&mut self, change: &mut ViewChange, last: Header) {
        let alone = self.random.chance(1, 2);
        let Some(claims) = &mut change.claims else {
            return;
        };
        // A replica that takes it asks for a body that no replica has.
        let hollow = self.random.chance(1, 2);
        let invented = no_digest(&mut self.random);
        if change.prepared.is_empty()
            && let Some(executed) = change.base.last()
        {
            let batch = Batch {
                sequence: executed.sequence.next(),
                time: Time(u64::MAX / 2),
                previous: executed.digest,
                behaviour_version: 1,
                tick: false,
                requests: Vec::new(),
            };
            change.prepared.push(PreparedCertificate {
                proposal: unsigned(last, batch),
                votes: Vec::new(),
            });
        }
        let mut previous = None;
        for prepared in &mut change.prepared {
            let Some(batch) = prepared.proposal.batch() else {
                return;
            };
            let mut twin = batch.clone();
            twin.time.0 = twin.time.0.saturating_add(1);
            twin.previous = previous.unwrap_or(twin.previous);
            if hollow {
                twin.requests.push(invented);
            }
            let sequence = twin.sequence;
            let proposal = unsigned(last, twin);
            let digest = proposal.digest();
            previous = Some(digest);
            if !alone {
                claims.accepted.retain(|it| it.sequence != sequence);
            }
            let view = last.view;
            claims.accepted.push(Accepted {
                sequence,
                digest,
                view,
            });
            *prepared = PreparedCertificate {
                proposal,
                votes: Vec::new(),
            };
        }
        claims.accepted.sort_unstable();
        claims.accepted.dedup_by_key(|it| (it.sequence, it.digest));
    }

    /// Claims that a batch was executed that may never be committed.
    fn claim_executed(&mut self, change: &mut ViewChange) {
        let last = change.base.last().map_or(Sequence(0), |it| it.sequence);
        let prepared = change.prepared.first().map(|it| &it.proposal);
        let digest = prepared.map(|it| it.digest());
        let digest = digest.unwrap_or_else(|| no_digest(&mut self.random));
        let sequence = last.next();
        if change.base.len() > 8 {
            change.base.remove(0);
        }
        change.base.push(CommitCertificate {
            view: View(0),
            sequence,
            digest,
            votes: Vec::new(),
        });
        change
            .prepared
            .retain(|it| it.proposal.batch().is_some_and(|it| it.sequence > sequence));
        if let Some(claims) = &mut change.claims {
            claims.accepted.retain(|it| it.sequence > sequence);
        }
    }
}
