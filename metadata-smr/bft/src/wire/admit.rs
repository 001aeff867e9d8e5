//! The only way from bytes to a [`Verified`].
//!
//! A pure function that runs on any thread: it parses a frame with hard limits, checks that it is
//! of this cluster and epoch and of a kind that its sender may send, and verifies every signature
//! in it, those of nested certificates included. A frame that passes is well-formed and signed;
//! whether it makes sense here and now is for the core.
//!
//! A [`Rejection`] says whether its sender is to blame. The transport authenticates peers and
//! protects their messages, so a malformed frame or a bad signature is the fault of the peer on the
//! other end, and not of a replica that is merely named in it. A wrong epoch or a session that is
//! not known here yet is no peer's fault.

use super::frame::{Envelope, Header, Malformed};
use super::limits::{self, WINDOW};
use super::message::{Accepted, Claims, Kind, Message, NewView, StrayRequest, ViewChange};
use crate::authentication::{Authentication, KeyDirectory, Verifier};
use crate::fault_model::FaultModel;
use crate::identity::{ClusterId, Epoch, Group, PublicKey, ReplicaId, Sequence, Signature, View};
use crate::membership::EpochRecord;
use crate::ordering::claims::EXECUTED_SHOWN;
use crate::sabotage::Flag;
use crate::step::Peer;
use bytes::Bytes;
use std::ops::Deref;
use std::sync::Arc;

/// The context in which a frame is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The cluster.
    pub cluster: ClusterId,
    /// Its epoch.
    pub epoch: Epoch,
    /// The failures to survive.
    pub model: FaultModel,
    /// The last batch of the epoch before.
    pub from: Sequence,
    /// Whether votes are signed.
    pub authentication: Authentication,
    /// The medium quorum; only a planted defect changes it.
    pub(crate) quorum: u16,
    /// Whether a signer may count twice: a planted defect.
    pub(crate) duplicates: Flag,
    /// Whether votes of earlier epochs count: a planted defect.
    pub(crate) old_votes: Flag,
    /// Whether certificates may lack a vote: a planted defect.
    pub(crate) short: Flag,
    /// Whether a vote may be in any name: a planted defect.
    pub(crate) any_sender: Flag,
}

impl Context {
    /// For this cluster.
    #[must_use]
    pub const fn new(cluster: ClusterId, epoch: Epoch, model: FaultModel) -> Self {
        Self {
            cluster,
            epoch,
            model,
            from: Sequence(0),
            authentication: Authentication::Sig,
            quorum: model.medium(),
            duplicates: Flag::CLEAR,
            old_votes: Flag::CLEAR,
            short: Flag::CLEAR,
            any_sender: Flag::CLEAR,
        }
    }

    /// The same for an epoch that begins after this batch.
    #[must_use]
    pub const fn after(self, from: Sequence) -> Self {
        Self { from, ..self }
    }

    /// The leader of a view, in the only ordering instance.
    #[must_use]
    pub const fn leader(&self, view: View) -> ReplicaId {
        leader(view, &self.model)
    }

    /// How many votes a prepared certificate takes: with r = 0 the leader's alone.
    #[must_use]
    pub fn prepared_quorum(&self) -> usize {
        if self.model.right() == 0 {
            1
        } else {
            self.quorum.into()
        }
    }

    /// Whether so many votes make a certificate that takes `enough`.
    #[must_use]
    pub(crate) fn certify(&self, votes: usize, enough: usize) -> bool {
        votes.saturating_add(usize::from(self.short.is_set())) >= enough
    }

    /// How many PREPAREs a prepared certificate takes in addition to the proposal, and whose does
    /// not count. Where votes are not signed a leader PREPAREs like every other replica, once its
    /// proposal is durable.
    #[must_use]
    pub(crate) fn prepares_needed(&self, leader: ReplicaId) -> (usize, Option<ReplicaId>) {
        match self.authentication.signs_votes() {
            true => (self.prepared_quorum().saturating_sub(1), Some(leader)),
            false => (self.prepared_quorum(), None),
        }
    }

    /// How many sequences are voted on at a time.
    #[must_use]
    pub(crate) const fn window(&self) -> usize {
        // A NEW-VIEW may need more than a quorum of claims.
        match self.authentication.signs_votes() {
            true => limits::window(self.quorum),
            false => limits::window(self.model.replicas()),
        }
    }

    /// How many of the last batches a VIEW-CHANGE shows.
    #[must_use]
    pub(crate) const fn recent(&self) -> usize {
        match self.authentication.signs_votes() {
            true => WINDOW,
            false => EXECUTED_SHOWN,
        }
    }

    /// The header of a message in `view`.
    #[must_use]
    pub const fn header(&self, view: View) -> Header {
        Header {
            cluster: self.cluster,
            epoch: self.epoch,
            group: Group(0),
            view,
        }
    }
}

/// The leader of a view: replica `view mod n`.
#[must_use]
pub const fn leader(view: View, model: &FaultModel) -> ReplicaId {
    // The remainder is below n, which is a u16; n is at least 1.
    ReplicaId((view.0 % model.replicas() as u64) as u16)
}

/// A message whose every signature has been checked, with the bytes that it came in.
#[derive(Clone, Debug)]
pub struct Verified(Arc<Envelope>);

impl Verified {
    /// A message known to be valid without a check: made here, read from the own journal, nested in
    /// a message that was checked as a whole, or recorded after it had been checked.
    pub(crate) const fn trusted(envelope: Arc<Envelope>) -> Self {
        Self(envelope)
    }

    /// The same without the mark.
    #[must_use]
    pub const fn envelope(&self) -> &Arc<Envelope> {
        &self.0
    }
}

impl Deref for Verified {
    type Target = Envelope;
    fn deref(&self) -> &Envelope {
        &self.0
    }
}

/// Why a frame was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// It is not a frame.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// It belongs to another cluster.
    #[error("a frame of another cluster: check which cluster this peer is configured for")]
    OtherCluster,
    /// It belongs to another epoch or ordering instance.
    #[error("a frame of another epoch")]
    OtherEpoch,
    /// Its sender may not send this kind.
    #[error("a frame of a kind that its sender may not send")]
    KindNotAllowed,
    /// It names a replica that is not a voter.
    #[error("a frame signed as a replica that is not a voter")]
    UnknownSigner,
    /// It is a vote in the name of another replica than its sender.
    #[error("a vote in the name of another replica than its sender")]
    WrongSender,
    /// A signature is not valid.
    #[error("a frame with an invalid signature")]
    BadSignature,
    /// A certificate in it proves nothing.
    #[error("a frame with an invalid certificate")]
    BadCertificate,
}

impl Rejection {
    /// Whether the peer that sent it is to be blacklisted.
    #[must_use]
    pub const fn blames_sender(&self) -> bool {
        match self {
            Self::Malformed(Malformed::OtherVersion { .. })
            | Self::OtherCluster
            | Self::OtherEpoch => false,
            Self::Malformed(_)
            | Self::KindNotAllowed
            | Self::UnknownSigner
            | Self::WrongSender
            | Self::BadSignature
            | Self::BadCertificate => true,
        }
    }
}

/// Checks a frame that came from `from`.
///
/// # Errors
/// If it is rejected; see [`Rejection::blames_sender`].
pub fn admit(
    frame: Bytes,
    from: Peer,
    keys: &dyn KeyDirectory,
    verifier: &dyn Verifier,
    context: &Context,
) -> Result<Verified, Rejection> {
    let envelope = Envelope::decode(frame)?;
    let kind = envelope.message().kind();
    let allowed = match from {
        Peer::Replica(_) => !matches!(kind, Kind::Reply | Kind::StatusQuery | Kind::StatusAnswer),
        Peer::Client(_) => kind.from_clients(),
    };
    if !allowed {
        return Err(Rejection::KindNotAllowed);
    }
    let check = Check {
        from,
        keys,
        verifier,
        context,
    };
    check.belongs(&envelope)?;
    let old = envelope.header().epoch < context.epoch && !kind.crosses_epochs();
    let checked = check.checked(envelope);
    match old {
        // Only a planted defect leads here.
        true => checked.map_err(|_| Rejection::OtherEpoch),
        false => checked,
    }
}

struct Check<'a> {
    from: Peer,
    keys: &'a dyn KeyDirectory,
    verifier: &'a dyn Verifier,
    context: &'a Context,
}

impl Check<'_> {
    fn checked(&self, envelope: Envelope) -> Result<Verified, Rejection> {
        let envelope = match envelope.message() {
            Message::Bodies(_) => self.bodies(envelope)?,
            Message::Request(_) | Message::CloseSession(_) => self.session_request(envelope)?,
            _ => {
                self.message(&envelope)?;
                envelope
            }
        };
        Ok(Verified(Arc::new(envelope)))
    }

    fn belongs(&self, envelope: &Envelope) -> Result<(), Rejection> {
        let (header, kind) = (envelope.header(), envelope.message().kind());
        if header.cluster != self.context.cluster {
            return Err(Rejection::OtherCluster);
        }
        let votes = matches!(kind, Kind::Proposal | Kind::Prepare | Kind::Commit);
        let counts = header.epoch == self.context.epoch
            || kind.crosses_epochs()
            || (self.context.old_votes.is_set() && votes && header.epoch < self.context.epoch);
        if !counts || header.group != Group(0) {
            return Err(Rejection::OtherEpoch);
        }
        Ok(())
    }

    fn signed(&self, envelope: &Envelope, key: &PublicKey) -> Result<(), Rejection> {
        match envelope.signature() {
            Some(signature)
                if self
                    .verifier
                    .verify(key, envelope.signed_bytes(), &signature) =>
            {
                Ok(())
            }
            _ => Err(Rejection::BadSignature),
        }
    }

    fn by_replica(&self, envelope: &Envelope, signer: ReplicaId) -> Result<(), Rejection> {
        let key = self.keys.replica(signer).ok_or(Rejection::UnknownSigner)?;
        self.signed(envelope, &key)
    }

    /// A proposal or vote of a cluster that does not sign them: there is one encoding of it.
    fn not_signed(&self, envelope: &Envelope) -> Result<(), Rejection> {
        match envelope.signature() {
            Some(signature) if signature == Signature::default() => Ok(()),
            _ => Err(Rejection::BadSignature),
        }
    }

    fn ballot(&self, envelope: &Envelope, signer: ReplicaId) -> Result<(), Rejection> {
        if self.context.authentication.signs_votes() {
            return self.by_replica(envelope, signer);
        }
        match self.from == Peer::Replica(signer) || self.context.any_sender.is_set() {
            true => self.not_signed(envelope),
            false => Err(Rejection::WrongSender),
        }
    }

    fn proposal(&self, envelope: &Envelope) -> Result<(), Rejection> {
        match self.context.authentication.signs_votes() {
            true => self.by_replica(envelope, self.context.leader(envelope.view())),
            // The core decides whether it is its leader's.
            false => self.not_signed(envelope),
        }
    }

    /// Messages that sessions sign: those of unknown sessions are passed on as strays.
    fn session_request(&self, envelope: Envelope) -> Result<Envelope, Rejection> {
        let stray = StrayRequest::of(envelope.message()).ok_or(Rejection::KindNotAllowed)?;
        match self.keys.session(stray.session) {
            Some(key) => self.signed(&envelope, &key).map(|()| envelope),
            None => Ok(envelope.into_stray(stray)),
        }
    }

    /// Bodies of sessions that are not known here are left out.
    fn bodies(&self, envelope: Envelope) -> Result<Envelope, Rejection> {
        let Message::Bodies(bodies) = envelope.message() else {
            return Ok(envelope);
        };
        let mut known = Vec::with_capacity(bodies.requests.len());
        for body in &bodies.requests {
            self.belongs(body)?;
            let key = match body.message() {
                Message::Request(request) => self.keys.session(request.session),
                Message::CloseSession(close) => self.keys.session(close.session),
                Message::OpenSession(open) => Some(open.principal),
                _ => None,
            };
            if let Some(key) = key {
                self.signed(body, &key)?;
                known.push(Arc::clone(body));
            }
        }
        Ok(envelope.with_bodies(known))
    }

    fn message(&self, envelope: &Envelope) -> Result<(), Rejection> {
        let header = *envelope.header();
        let leader = self.context.leader(header.view);
        match envelope.message() {
            Message::OpenSession(open) => self.signed(envelope, &open.principal),
            Message::Proposal(_) => self.proposal(envelope),
            Message::Prepare(ballot) | Message::Commit(ballot) => {
                self.ballot(envelope, ballot.signer)
            }
            Message::Suspect(suspect) => self.by_replica(envelope, suspect.signer),
            Message::Checkpoint(vote) => self.by_replica(envelope, vote.signer),
            Message::Stable(stable) => {
                match stable.verify(header, self.context, self.keys, self.verifier) {
                    true => Ok(()),
                    false => Err(Rejection::BadCertificate),
                }
            }
            Message::ViewChange(change) => self.view_change(envelope, change),
            Message::NewView(new) => {
                self.by_replica(envelope, leader)?;
                self.new_view(header, new)
            }
            Message::Committed(committed) => {
                committed
                    .bodies
                    .iter()
                    .try_for_each(|body| self.belongs(body))?;
                let certificate = &committed.certificate;
                if !self.context.authentication.signs_votes() {
                    // It proves nothing: one replica says that it has executed the batch.
                    return Ok(());
                }
                match certificate.verify(header, self.context, self.keys, self.verifier) {
                    true => Ok(()),
                    false => Err(Rejection::BadCertificate),
                }
            }
            Message::Epochs(records) => {
                // Records that are known here are neither checked nor needed.
                let new = records
                    .iter()
                    .skip_while(|it| it.epoch() <= self.context.epoch);
                let new: Vec<EpochRecord> = new.cloned().collect();
                match EpochRecord::lead_on(&new, self.context, self.keys, self.verifier) {
                    true => Ok(()),
                    false
                        if new
                            .first()
                            .is_some_and(|it| it.epoch().0 > self.next_epoch()) =>
                    {
                        Err(Rejection::OtherEpoch)
                    }
                    false => Err(Rejection::BadCertificate),
                }
            }
            _ => Ok(()),
        }
    }

    const fn next_epoch(&self) -> u64 {
        self.context.epoch.0.saturating_add(1)
    }

    fn view_change(&self, envelope: &Envelope, change: &ViewChange) -> Result<(), Rejection> {
        self.by_replica(envelope, change.signer)?;
        let header = *envelope.header();
        match (&change.claims, self.context.authentication.signs_votes()) {
            (None, true) => {}
            (Some(claims), false) => return self.claims(header, change, claims),
            _ => return Err(Rejection::KindNotAllowed),
        }
        let mut base: Option<Sequence> = None;
        for certificate in &change.base {
            let sequence = certificate.sequence;
            let follows = base.is_none_or(|last| last.next() == sequence);
            base = Some(sequence);
            // It may be of a later view than this one: a replica that fetched it need not have been
            // there.
            let holds = sequence > self.context.from
                && follows
                && certificate.verify(header, self.context, self.keys, self.verifier);
            if !holds {
                return Err(Rejection::BadCertificate);
            }
        }
        let base = base.unwrap_or(self.context.from);
        let mut last = base;
        for prepared in &change.prepared {
            let proposal = &prepared.proposal;
            self.belongs(proposal)?;
            self.by_replica(proposal, self.context.leader(proposal.view()))?;
            let sequence = proposal.batch().map_or(Sequence(0), |it| it.sequence);
            let open = sequence > last && sequence.0 - base.0 <= WINDOW as u64;
            last = sequence;
            let holds = open
                && proposal.view() < header.view
                && prepared.verify_votes(self.context, self.keys, self.verifier);
            if !holds {
                return Err(Rejection::BadCertificate);
            }
        }
        Ok(())
    }

    /// Claims prove nothing: only their form and the one certificate among them are checked.
    fn claims(
        &self,
        header: Header,
        change: &ViewChange,
        claims: &Claims,
    ) -> Result<(), Rejection> {
        let executed = change.base.iter().map(|it| it.sequence.0);
        let contiguous = executed.clone().zip(executed.clone().skip(1));
        let from = self.context.from;
        let newest = executed.clone().next_back().map_or(from, Sequence);
        let open = |sequence: Sequence| sequence > newest && sequence.0 - newest.0 <= WINDOW as u64;
        let mut last = newest;
        for prepared in &change.prepared {
            let proposal = &prepared.proposal;
            self.belongs(proposal)?;
            self.not_signed(proposal)?;
            let sequence = proposal.batch().map_or(Sequence(0), |it| it.sequence);
            if sequence <= last || !open(sequence) || proposal.view() >= header.view {
                return Err(Rejection::BadCertificate);
            }
            last = sequence;
        }
        let place = |it: &Accepted| (it.sequence, it.digest);
        let sorted = claims
            .accepted
            .is_sorted_by(|one, other| place(one) < place(other));
        let mut accepted = claims.accepted.iter();
        let holds = executed.clone().all(|sequence| sequence > from.0)
            && contiguous
                .into_iter()
                .all(|(one, next)| one.checked_add(1) == Some(next))
            && sorted
            && accepted.all(|it| open(it.sequence) && it.view < header.view)
            && claims
                .stable
                .as_ref()
                .is_none_or(|stable| stable.verify(header, self.context, self.keys, self.verifier));
        match holds {
            true => Ok(()),
            false => Err(Rejection::BadCertificate),
        }
    }

    fn new_view(&self, header: Header, new: &NewView) -> Result<(), Rejection> {
        let mut previous = None;
        for envelope in &new.view_changes {
            let Message::ViewChange(change) = envelope.message() else {
                return Err(Rejection::BadCertificate);
            };
            let signer = Some(change.signer);
            let ascending =
                previous < signer || (self.context.duplicates.is_set() && previous == signer);
            if !ascending || *envelope.header() != header {
                return Err(Rejection::BadCertificate);
            }
            previous = signer;
            self.view_change(envelope, change)?;
        }
        let enough = new.view_changes.len() >= usize::from(self.context.quorum);
        if enough {
            Ok(())
        } else {
            Err(Rejection::BadCertificate)
        }
    }
}

#[cfg(test)]
mod tests;
