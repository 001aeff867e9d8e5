//! Certificates that prove nothing, and words about states and epochs that there are not.
//!
//! Each is what a correct replica would show now with one thing wrong. It is refused at the door by
//! whatever it is shown to ([`Lie::never_let_in`]), except for a word about another state: that
//! is the liar's own word, and counts as one.

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

/// What is wrong with a certificate.
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

/// What a liar needs to spoil certificates.
#[derive(Debug)]
pub(super) struct Spoiling {
    /// A stream of its own: nothing else that the liar does depends on it.
    random: Random,
    /// A message with a certificate, and its epoch.
    kept: Option<(Epoch, Message)>,
    /// The quorum of the epoch before.
    pub(super) quorum_before: usize,
}

impl Spoiling {
    pub(super) const fn new(random: Random, quorum: usize) -> Self {
        Self {
            random,
            kept: None,
            quorum_before: quorum,
        }
    }
}

/// Takes away what makes these enough.
fn shorten<T>(votes: &mut Vec<T>, enough: usize) {
    votes.truncate(votes.len().min(enough).saturating_sub(1));
}

impl Proxy {
    /// The quorum of this epoch, or of the one before if that is smaller: what is said just now may
    /// still be of that one.
    fn quorum(&self) -> usize {
        usize::from(self.model.medium()).min(self.spoiling.quorum_before)
    }

    /// The same message with something in it that proves nothing, now and then.
    pub(super) fn spoil(&mut self, envelope: &Envelope) -> Option<(Message, Lie)> {
        let header = *envelope.header();
        if let Some(old) = self.of_the_epoch_before(header.epoch, envelope.message()) {
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
                    // Its parts have to belong together, or it is no message at all.
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

    /// What was certified in an epoch before, for this one. Keeps what may be that one day.
    fn of_the_epoch_before(&mut self, epoch: Epoch, message: &Message) -> Option<Message> {
        let certifies = match message {
            Message::Stable(_) => true,
            Message::Committed(_) => self.signs_votes,
            _ => false,
        };
        if !certifies {
            return None;
        }
        let kept = self.spoiling.kept.replace((epoch, message.clone()));
        let (_, old) = kept.filter(|(of, _)| *of < epoch)?;
        Some(old)
    }

    /// The own vote, over these bytes, in its place among the others.
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

    /// One of the certificates that a VIEW-CHANGE shows, if it shows any.
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

    /// The last of these records: with a vote too few, or of another membership than was signed.
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

    /// In the place of a word about a state: one about another state, one in another's name, a
    /// certificate of nothing but the own word, or the record of an epoch of the liar's own.
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

    /// An epoch that this liar alone administers, signed by it under everybody's name.
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
