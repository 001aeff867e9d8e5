//! The records of the journal.
//!
//! | Record | Durable before | Holds |
//! |---|---|---|
//! | `BootMark` | this process's first proposal | a start: views up to then are not led again |
//! | `Voted` | the own PREPARE (r = 0: COMMIT); the leader's COMMIT | proposal, bodies, own vote |
//! | `Prepared` | the own COMMIT | the prepared certificate and the own COMMIT |
//! | `Committed` | votes on the next sequence | the certificate; the batch, unless voted for |
//! | `ViewChange` | the own VIEW-CHANGE | it, with everything that it cites |
//! | `NewView` | the own NEW-VIEW, and votes in that view | it, with everything that it cites |
//! | `Stable` | – (it is proof enough by itself) | the newest stable checkpoint's certificate |
//! | `VoteBarrier` | a root below a sequence voted for | up to which sequence no votes are given |
//! | `Refuted` | – (without it a restart asks the others again) | where the own state is wrong |
//! | `Replaced` | the root of the state that takes its place | which root that is |
//! | `Incarnation` | any message from then on | an earlier journal was lost: its new incarnation |
//! | `Trimmed` | – (written with what it concerns) | the first record that still counts |
//! | `Epoch` | any message in that epoch | its record: records of earlier epochs are void |
//!
//! A record is a version byte, a tag byte and borsh-like fields; frames are embedded as they were
//! received or sent. Records are read from the replica's own disk under a checksum, so their
//! signatures are not checked again.

use crate::certificate::{CommitCertificate, PreparedCertificate};
use crate::checkpoint::CheckpointCertificate;
use crate::identity::{Epoch, Incarnation, Sequence};
use crate::membership::EpochRecord;
use crate::state::DurableRoot;
use crate::step::Token;
use crate::wire::frame::Malformed;
use crate::wire::limits::{BATCH_REQUESTS_MAX, FRAME_BYTES_MAX};
use crate::wire::message::{Batch, Committed, Kind};
use crate::wire::{
    Envelope, Field, Reader, decode_certificate, decode_committed, decode_nested, decode_prepared,
    decode_stable, encode_certificate, encode_committed, encode_nested, encode_prepared,
    encode_stable, nested, write_bytes, write_option,
};
use bytes::Bytes;
use std::sync::Arc;

/// The version of the records' encoding.
pub const RECORD_VERSION: u8 = 1;

/// The tag of [`Record::Trimmed`].
const TRIMMED: u8 = 13;

/// A record of the journal.
#[derive(Clone, Debug)]
pub enum Record {
    /// A process started.
    BootMark,
    /// A batch was voted for, or proposed.
    Voted {
        /// The proposal.
        proposal: Arc<Envelope>,
        /// All its bodies, in order.
        bodies: Vec<Arc<Envelope>>,
        /// The own vote: a PREPARE, with r = 0 a COMMIT. A leader's proposal is its PREPARE.
        vote: Option<Arc<Envelope>>,
    },
    /// A batch is prepared, and the own COMMIT states it.
    Prepared {
        /// The proof. Absent only where a simulation plants a defect.
        prepared: Option<PreparedCertificate>,
        /// The own COMMIT; absent where only the certificate is kept from an earlier view.
        commit: Option<Arc<Envelope>>,
    },
    /// A batch is committed.
    Committed {
        /// The proof.
        certificate: CommitCertificate,
        /// The batch and its bodies, unless an earlier `Voted` holds them.
        batch: Option<(Batch, Vec<Arc<Envelope>>)>,
    },
    /// The own VIEW-CHANGE.
    ViewChange {
        /// As sent.
        frame: Arc<Envelope>,
    },
    /// A view was entered.
    NewView {
        /// Its NEW-VIEW.
        frame: Arc<Envelope>,
    },
    /// An earlier journal was lost, and its promises are not known, or the part before this record
    /// is an older state of it. From here on it is another incarnation, which votes once the
    /// membership names it.
    Incarnation(Incarnation),
    /// An epoch was entered.
    Epoch(Box<EpochRecord>),
    /// The state went back to an earlier one: no votes before this sequence has been executed
    /// again.
    VoteBarrier {
        /// The membership epoch that this holds in.
        epoch: Epoch,
        /// The last one that may have been voted for.
        until: Sequence,
    },
    /// After this batch a quorum has another state than this replica.
    Refuted {
        /// The batch.
        sequence: Sequence,
    },
    /// The whole state was taken over: once this root is durable, no earlier `Refuted` applies any
    /// more.
    Replaced {
        /// The root.
        root: DurableRoot,
    },
    /// The content of older records that still counts has been written again.
    Trimmed {
        /// The first one that counts.
        before: Token,
    },
    /// A checkpoint is stable.
    Stable {
        /// The proof.
        certificate: CheckpointCertificate,
    },
}

impl Record {
    /// The record's bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(self.size_hint());
        bytes.push(RECORD_VERSION);
        match self {
            Self::BootMark => bytes.push(0),
            Self::Voted {
                proposal,
                bodies,
                vote,
            } => {
                bytes.push(1);
                write_bytes(&mut bytes, proposal.frame());
                encode_nested(&mut bytes, bodies);
                write_option(&mut bytes, vote.as_ref(), |vote, bytes| {
                    write_bytes(bytes, vote.frame());
                });
            }
            Self::Prepared { prepared, commit } => {
                bytes.push(2);
                write_option(&mut bytes, prepared.as_ref(), encode_prepared);
                write_option(&mut bytes, commit.as_ref(), |commit, bytes| {
                    write_bytes(bytes, commit.frame());
                });
            }
            Self::Committed { certificate, batch } => match batch {
                None => {
                    bytes.push(3);
                    encode_certificate(certificate, &mut bytes);
                }
                Some((batch, bodies)) => {
                    bytes.push(4);
                    let committed = Committed {
                        batch: batch.clone(),
                        certificate: certificate.clone(),
                        bodies: bodies.clone(),
                    };
                    encode_committed(&committed, &mut bytes);
                }
            },
            Self::ViewChange { frame } => {
                bytes.push(5);
                write_bytes(&mut bytes, frame.frame());
            }
            Self::NewView { frame } => {
                bytes.push(6);
                write_bytes(&mut bytes, frame.frame());
            }
            Self::Incarnation(incarnation) => {
                bytes.push(7);
                incarnation.write(&mut bytes);
            }
            Self::Epoch(record) => {
                bytes.push(10);
                record.encode(&mut bytes);
            }
            Self::VoteBarrier { epoch, until } => {
                bytes.push(9);
                epoch.write(&mut bytes);
                until.write(&mut bytes);
            }
            Self::Refuted { sequence } => {
                bytes.push(11);
                sequence.write(&mut bytes);
            }
            Self::Replaced { root } => {
                bytes.push(12);
                root.sequence.write(&mut bytes);
                root.digest.write(&mut bytes);
            }
            Self::Trimmed { before } => {
                bytes.push(TRIMMED);
                before.0.write(&mut bytes);
            }
            Self::Stable { certificate } => {
                bytes.push(8);
                encode_stable(certificate, &mut bytes);
            }
        }
        Bytes::from(bytes)
    }

    /// The sequence that the record is about, if it is about one.
    pub(crate) fn sequence(&self) -> Option<Sequence> {
        let of = |proposal: &Envelope| proposal.batch().map(|batch| batch.sequence);
        match self {
            Self::Voted { proposal, .. } => of(proposal),
            Self::Prepared { prepared, .. } => prepared.as_ref().and_then(|it| of(&it.proposal)),
            Self::Committed { certificate, .. } => Some(certificate.sequence),
            _ => None,
        }
    }

    /// The epoch whose promise it holds, if it holds one.
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        let frame = match self {
            Self::Voted { proposal, .. } => proposal,
            Self::Prepared { prepared, commit } => match (prepared, commit) {
                (Some(prepared), _) => &prepared.proposal,
                (None, commit) => commit.as_ref()?,
            },
            Self::ViewChange { frame } | Self::NewView { frame } => frame,
            Self::VoteBarrier { epoch, .. } => return Some(*epoch),
            _ => return None,
        };
        Some(frame.header().epoch)
    }

    fn size_hint(&self) -> usize {
        let all = |bodies: &[Arc<Envelope>]| -> usize {
            bodies.iter().map(|body| body.frame().len() + 4).sum()
        };
        match self {
            Self::Voted {
                proposal, bodies, ..
            } => 512 + proposal.frame().len() + all(bodies),
            Self::Committed {
                batch: Some((batch, bodies)),
                ..
            } => 1024 + batch.requests.len() * 32 + all(bodies),
            Self::ViewChange { frame } | Self::NewView { frame } => 8 + frame.frame().len(),
            _ => 1024,
        }
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// If the bytes are no record, or one of a newer version.
    pub fn decode(bytes: &Bytes) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let version: u8 = reader.get("record version")?;
        if version != RECORD_VERSION {
            return Err(Malformed::OtherVersion {
                version: version.into(),
            });
        }
        let record = match reader.get::<u8>("record tag")? {
            0 => Self::BootMark,
            1 => Self::Voted {
                proposal: framed(&mut reader, &[Kind::Proposal])?,
                bodies: decode_nested(&mut reader, BATCH_REQUESTS_MAX, &CLIENT_KINDS)?,
                vote: reader.option("vote", |reader| {
                    framed(reader, &[Kind::Prepare, Kind::Commit])
                })?,
            },
            2 => Self::Prepared {
                prepared: reader.option("prepared", decode_prepared)?,
                commit: reader.option("commit", |reader| framed(reader, &[Kind::Commit]))?,
            },
            3 => Self::Committed {
                certificate: decode_certificate(&mut reader)?,
                batch: None,
            },
            4 => {
                let Committed {
                    batch,
                    certificate,
                    bodies,
                } = decode_committed(&mut reader)?;
                Self::Committed {
                    certificate,
                    batch: Some((batch, bodies)),
                }
            }
            5 => Self::ViewChange {
                frame: framed(&mut reader, &[Kind::ViewChange, Kind::Claims])?,
            },
            6 => Self::NewView {
                frame: framed(&mut reader, &[Kind::NewView])?,
            },
            7 => Self::Incarnation(reader.get("incarnation")?),
            10 => Self::Epoch(Box::new(EpochRecord::decode(&mut reader)?)),
            9 => Self::VoteBarrier {
                epoch: reader.get("epoch")?,
                until: reader.get("until")?,
            },
            8 => Self::Stable {
                certificate: decode_stable(&mut reader)?,
            },
            11 => Self::Refuted {
                sequence: reader.get("sequence")?,
            },
            12 => Self::Replaced {
                root: DurableRoot {
                    sequence: reader.get("sequence")?,
                    digest: reader.get("root")?,
                },
            },
            TRIMMED => Self::Trimmed {
                before: Token(reader.get("before")?),
            },
            _ => return Err(Malformed::UnknownKind),
        };
        reader.end()?;
        Ok(record)
    }

    /// The first record that counts, if these bytes say so.
    #[must_use]
    pub fn trimmed(bytes: &Bytes) -> Option<Token> {
        if !bytes.starts_with(&[RECORD_VERSION, TRIMMED]) {
            return None;
        }
        match Self::decode(bytes) {
            Ok(Self::Trimmed { before }) => Some(before),
            _ => None,
        }
    }
}

const CLIENT_KINDS: [Kind; 3] = [Kind::Request, Kind::OpenSession, Kind::CloseSession];

fn framed(reader: &mut Reader<'_>, kinds: &[Kind]) -> Result<Arc<Envelope>, Malformed> {
    nested(reader.bytes("frame", FRAME_BYTES_MAX)?, kinds)
}
