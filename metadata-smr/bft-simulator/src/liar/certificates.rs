//! Invalid certificates, and votes for states and epochs that do not exist.
//!
//! Each is what a correct replica would show now with one defect. Every receiver refuses it on
//! arrival ([`Lie::never_admitted`]), except for a vote for another state: that is the liar's own
//! vote, and counts as one.

use super::claims::digest_of;
use super::{Proxy, no_digest};
use crate::lie::Lie;
use crate::random::Random;
use quorumfs_bft::authentication::Signer as _;
use quorumfs_bft::certificate::{CommitCertificate, PreparedCertificate, Vote};
use quorumfs_bft::checkpoint::CheckpointCertificate;
use quorumfs_bft::identity::{Epoch, ReplicaId, Sequence, View};
use quorumfs_bft::membership::{EpochRecord, Membership};
use quorumfs_bft::wire::frame::{Envelope, Header};
use quorumfs_bft::wire::message::{CheckpointVote, Kind, Message, ViewChange};
use quorumfs_bft::wire::signed_bytes::{checkpoint_bytes, vote_bytes};

/// The defect of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    TooFew,
    OtherEpoch,
    OtherView,
    OtherDigest,
}

impl Flaw {
    const ALL: [Self; 4] = [
        Self::TooFew,
        Self::OtherEpoch,
        Self::OtherView,
        Self::OtherDigest,
    ];

    const fn lie(self) -> Lie {
        match self {
            Self::TooFew => Lie::ShortCertificate,
            Self::OtherEpoch => Lie::ForeignCertificate,
            Self::OtherView => Lie::MisplacedCertificate,
            Self::OtherDigest => Lie::SwappedCertificate,
        }
    }
}

/// The state for spoiling certificates.
#[derive(Debug)]
pub(super) struct Spoiling {
    /// A stream of its own: nothing else that the liar does depends on it.
    random: Random,
    /// A message with a certificate, and its epoch.
    earlier: Option<(Epoch, Message)>,
    /// The quorum of the epoch before.
    pub(super) quorum_before: usize,
}

impl Spoiling {
    pub(super) const fn new(random: Random, quorum: usize) -> Self {
        Self {
            random,
            earlier: None,
            quorum_before: quorum,
        }
    }
}

/// Removes entries until there is one less than enough.
fn shorten<T>(votes: &mut Vec<T>, enough: usize) {
    votes.truncate(votes.len().min(enough).saturating_sub(1));
}

impl Proxy {
    /// The quorum of this epoch, or of the one before if that is smaller: current messages may
    /// still belong to that one.
    fn quorum(&self) -> usize {
        usize::from(self.model.medium()).min(self.spoiling.quorum_before)
    }

    /// Sometimes returns the same message with an invalid part.
    pub(super) fn spoil(&mut self, envelope: &Envelope) -> Option<(Message, Lie)> {
        let header = *envelope.header();
        if let Some(old) = self.certificate_of_earlier_epoch(header.epoch, envelope.message()) {
            return Some((old, Lie::ForeignCertificate));
        }
        if !self.spoiling.random.chance(1, 2) {
            return None;
        }
        let flaw = *self.spoiling.random.pick(&Flaw::ALL)?;
        let mut message = envelope.message().clone();
        let lie = match &mut message {
            Message::Committed(committed) if self.signs_votes => {
                self.spoil_commit(header, &mut committed.certificate, flaw);
                if flaw == Flaw::OtherDigest {
                    // Its parts have to match, or it is not a message at all.
                    committed.batch.time.0 = committed.batch.time.0.saturating_add(1);
                    committed.certificate.digest = digest_of(&committed.batch);
                }
                flaw.lie()
            }
            Message::Stable(stable) => {
                self.spoil_stable(header, stable, flaw);
                flaw.lie()
            }
            Message::ViewChange(change) => {
                self.spoil_change(header, change, flaw)?;
                flaw.lie()
            }
            Message::NewView(new) => {
                shorten(&mut new.view_changes, self.quorum());
                Lie::ShortCertificate
            }
            Message::Epochs(records) => {
                self.spoil_record(header.epoch, records)?;
                Lie::ForgedRecord
            }
            Message::Checkpoint(vote) => return self.forge_checkpoint(header, *vote),
            _ => return None,
        };
        Some((message, lie))
    }

    /// A certificate of an earlier epoch, for this one. Remembers the current one for later.
    fn certificate_of_earlier_epoch(&mut self, epoch: Epoch, message: &Message) -> Option<Message> {
        let certifies = match message {
            Message::Stable(_) => true,
            Message::Committed(_) => self.signs_votes,
            _ => false,
        };
        if !certifies {
            return None;
        }
        let earlier = self.spoiling.earlier.replace((epoch, message.clone()));
        let (_, old) = earlier.filter(|(of, _)| *of < epoch)?;
        Some(old)
    }

    /// Adds the liar's own vote, over these bytes, in order.
    fn vote(&self, votes: &mut Vec<Vote>, bytes: &[u8]) {
        let vote = Vote {
            signer: self.replica,
            signature: self.signer.sign(bytes),
        };
        votes.retain(|it| it.signer != vote.signer);
        let place = votes.partition_point(|it| it.signer < vote.signer);
        votes.insert(place, vote);
    }

    fn spoil_commit(&mut self, header: Header, certificate: &mut CommitCertificate, flaw: Flaw) {
        match flaw {
            Flaw::TooFew => shorten(&mut certificate.votes, self.quorum()),
            Flaw::OtherView => certificate.view = certificate.view.next(),
            Flaw::OtherDigest => certificate.digest = no_digest(&mut self.spoiling.random),
            Flaw::OtherEpoch => {
                let header = other_epoch(header).at(certificate.view);
                let (sequence, digest) = (certificate.sequence, certificate.digest);
                let bytes = vote_bytes(Kind::Commit, &header, sequence, &digest, self.replica);
                self.vote(&mut certificate.votes, &bytes);
            }
        }
    }

    fn spoil_prepared(&mut self, prepared: &mut PreparedCertificate, flaw: Flaw) {
        let header = *prepared.proposal.header();
        let sequence = prepared.proposal.batch().map(|it| it.sequence);
        let mut digest = prepared.proposal.digest();
        let header = match flaw {
            Flaw::TooFew => {
                // The proposal is one of the votes.
                shorten(&mut prepared.votes, self.quorum().saturating_sub(1));
                return;
            }
            Flaw::OtherView => header.at(header.view.next()),
            Flaw::OtherEpoch => other_epoch(header),
            Flaw::OtherDigest => {
                digest = no_digest(&mut self.spoiling.random);
                header
            }
        };
        let sequence = sequence.unwrap_or(Sequence(0));
        let bytes = vote_bytes(Kind::Prepare, &header, sequence, &digest, self.replica);
        self.vote(&mut prepared.votes, &bytes);
    }

    fn spoil_stable(&mut self, header: Header, stable: &mut CheckpointCertificate, flaw: Flaw) {
        let header = match flaw {
            Flaw::TooFew => {
                shorten(&mut stable.votes, self.quorum());
                return;
            }
            Flaw::OtherDigest => {
                stable.checkpoint.root = no_digest(&mut self.spoiling.random);
                return;
            }
            Flaw::OtherView => header.at(View(1)),
            Flaw::OtherEpoch => other_epoch(header).at(View(0)),
        };
        let bytes = checkpoint_bytes(&header, &stable.checkpoint, self.replica);
        self.vote(&mut stable.votes, &bytes);
    }

    /// Spoils one of the certificates in a VIEW-CHANGE, if it has any.
    fn spoil_change(&mut self, header: Header, change: &mut ViewChange, flaw: Flaw) -> Option<()> {
        if let Some(claims) = &mut change.claims {
            self.spoil_stable(header, claims.stable.as_mut()?, flaw);
            return Some(());
        }
        let shown = change.base.len() + change.prepared.len();
        let index = self.spoiling.random.index(shown);
        match change.base.get_mut(index) {
            Some(base) => self.spoil_commit(header, base, flaw),
            None => {
                let prepared = change.prepared.get_mut(index - change.base.len())?;
                self.spoil_prepared(prepared, flaw);
            }
        }
        Some(())
    }

    /// Spoils the last of these records: with one vote too few, or of another membership than the
    /// signed one.
    fn spoil_record(&mut self, epoch: Epoch, records: &mut [EpochRecord]) -> Option<()> {
        let (last, before) = records.split_last_mut()?;
        let quorum = match before.last() {
            Some(before) => usize::from(before.membership.model.medium()),
            None if last.epoch() == epoch => self.spoiling.quorum_before,
            None => 0,
        };
        if quorum > 0 && self.spoiling.random.chance(1, 2) {
            shorten(&mut last.certificate.votes, quorum);
        } else {
            let mut membership = last.membership.clone();
            membership.administrators = vec![self.signer.public_key()];
            *last = EpochRecord::new(last.certificate.clone(), membership);
        }
        Some(())
    }

    /// Replaces a vote for a state by a vote for another state, a vote in another replica's name, a
    /// certificate of the liar's own vote only, or the record of an epoch of its own.
    fn forge_checkpoint(&mut self, header: Header, vote: CheckpointVote) -> Option<(Message, Lie)> {
        let mut vote = vote;
        match self.spoiling.random.below(6) {
            0..3 => {
                vote.checkpoint.root = no_digest(&mut self.spoiling.random);
                Some((Message::Checkpoint(vote), Lie::ForgedCheckpoint))
            }
            3 => {
                vote.signer = ReplicaId((vote.signer.0 + 1) % self.replicas);
                Some((Message::Checkpoint(vote), Lie::WrongSigner))
            }
            4 => {
                vote.checkpoint.root = no_digest(&mut self.spoiling.random);
                let checkpoint = vote.checkpoint;
                let mut votes = Vec::new();
                let bytes = checkpoint_bytes(&header, &checkpoint, self.replica);
                self.vote(&mut votes, &bytes);
                let stable = CheckpointCertificate { checkpoint, votes };
                Some((Message::Stable(Box::new(stable)), Lie::ShortCertificate))
            }
            _ => {
                let record = self.own_epoch(header, vote);
                Some((Message::Epochs(vec![record]), Lie::ForgedRecord))
            }
        }
    }

    /// The record of an epoch that only this liar administers, signed by it in all replicas' names.
    fn own_epoch(&self, header: Header, vote: CheckpointVote) -> EpochRecord {
        let mut checkpoint = vote.checkpoint;
        let mut membership = Membership::unnamed(self.model);
        membership.epoch = other_epoch(header).epoch;
        membership.from = checkpoint.sequence;
        membership.administrators = vec![self.signer.public_key()];
        checkpoint.membership = membership.digest();
        let votes = (0..self.model.medium()).map(ReplicaId).map(|signer| Vote {
            signer,
            signature: self
                .signer
                .sign(&checkpoint_bytes(&header, &checkpoint, signer)),
        });
        let votes = votes.collect();
        EpochRecord::new(CheckpointCertificate { checkpoint, votes }, membership)
    }
}

fn other_epoch(header: Header) -> Header {
    let epoch = Epoch(header.epoch.0.saturating_add(1));
    Header { epoch, ..header }
}
