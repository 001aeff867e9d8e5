//! Commands about the membership, and their answers.
//!
//! A command is the body of a `RequestOperation::Administer`: a tag byte and fields as in a
//! message. An answer is a tag byte and fields too; a refusal contains its reason, as text, and
//! whether waiting helps.

use crate::fault_model::FaultModelError;
use crate::identity::{Epoch, Incarnation, PublicKey, Sequence};
use crate::wire::limits::{ADDRESS_BYTES_MAX, ADMINISTRATORS_MAX, REFUSAL_BYTES_MAX};
use crate::wire::{Field, Malformed, Reader, write_bytes, write_list};
use bytes::Bytes;

/// A command about the membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// An administrator: send this replica everything from now on; it may vote later.
    Admit {
        /// Its key.
        key: PublicKey,
        /// Its incarnation.
        incarnation: Incarnation,
        /// Its address.
        address: Bytes,
    },
    /// An administrator: remove this member, which does not vote.
    Dismiss {
        /// Its key.
        key: PublicKey,
    },
    /// An administrator: a learner votes from now on.
    Promote {
        /// Its key.
        key: PublicKey,
        /// u from then on.
        up: u16,
        /// r from then on.
        right: u16,
    },
    /// An administrator: a learner takes a voter's place.
    Replace {
        /// The voter.
        out: PublicKey,
        /// The learner.
        into: PublicKey,
    },
    /// An administrator: a voter votes no more.
    Remove {
        /// Its key.
        key: PublicKey,
        /// u from then on.
        up: u16,
        /// r from then on.
        right: u16,
    },
    /// An administrator: batches are executed with this version of the behaviour from now on.
    Behave {
        /// The version.
        version: u32,
    },
    /// An administrator: these keys may change the membership from now on.
    Entrust {
        /// The keys.
        administrators: Vec<PublicKey>,
    },
    /// A replica: its journal was lost, and has this incarnation now.
    Rejoin {
        /// The new incarnation.
        incarnation: Incarnation,
    },
    /// A learner: it holds the state at this checkpoint.
    Ready {
        /// The checkpoint.
        checkpoint: Sequence,
    },
    /// A replica: it knows versions of the behaviour up to this one.
    Announce {
        /// The version.
        behaviour: u32,
    },
    /// Any caller with a session: return the membership.
    Show,
    /// A replica: its disk is nearly full, or has free space again.
    Disk {
        /// Whether it is nearly full.
        short: bool,
    },
    /// An administrator: a replica has another address from now on.
    Move {
        /// Its key.
        key: PublicKey,
        /// The address.
        address: Bytes,
    },
    /// An administrator: a voter is the first to lead from now on. The others follow in the order
    /// that they have.
    Lead {
        /// Its key.
        key: PublicKey,
    },
}

impl Command {
    /// Encodes it.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(128);
        match self {
            Self::Admit {
                key,
                incarnation,
                address,
            } => {
                bytes.push(0);
                key.write(&mut bytes);
                incarnation.write(&mut bytes);
                write_bytes(&mut bytes, address);
            }
            Self::Dismiss { key } => {
                bytes.push(1);
                key.write(&mut bytes);
            }
            Self::Promote { key, up, right } => {
                bytes.push(2);
                key.write(&mut bytes);
                up.write(&mut bytes);
                right.write(&mut bytes);
            }
            Self::Replace { out, into } => {
                bytes.push(3);
                out.write(&mut bytes);
                into.write(&mut bytes);
            }
            Self::Remove { key, up, right } => {
                bytes.push(4);
                key.write(&mut bytes);
                up.write(&mut bytes);
                right.write(&mut bytes);
            }
            Self::Behave { version } => {
                bytes.push(5);
                version.write(&mut bytes);
            }
            Self::Entrust { administrators } => {
                bytes.push(6);
                write_list(&mut bytes, administrators, Field::write);
            }
            Self::Rejoin { incarnation } => {
                bytes.push(7);
                incarnation.write(&mut bytes);
            }
            Self::Ready { checkpoint } => {
                bytes.push(8);
                checkpoint.write(&mut bytes);
            }
            Self::Announce { behaviour } => {
                bytes.push(9);
                behaviour.write(&mut bytes);
            }
            Self::Show => bytes.push(10),
            Self::Disk { short } => bytes.extend_from_slice(&[11, u8::from(*short)]),
            Self::Move { key, address } => {
                bytes.push(12);
                key.write(&mut bytes);
                write_bytes(&mut bytes, address);
            }
            Self::Lead { key } => {
                bytes.push(13);
                key.write(&mut bytes);
            }
        }
        bytes.into()
    }

    /// Decodes it.
    ///
    /// # Errors
    /// If the bytes are no command.
    pub fn decode(bytes: &Bytes) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let command = match reader.get::<u8>("command")? {
            0 => Self::Admit {
                key: reader.get("key")?,
                incarnation: reader.get("incarnation")?,
                address: reader.bytes("address", ADDRESS_BYTES_MAX)?,
            },
            1 => Self::Dismiss {
                key: reader.get("key")?,
            },
            2 => Self::Promote {
                key: reader.get("key")?,
                up: reader.get("u")?,
                right: reader.get("r")?,
            },
            3 => Self::Replace {
                out: reader.get("key")?,
                into: reader.get("key")?,
            },
            4 => Self::Remove {
                key: reader.get("key")?,
                up: reader.get("u")?,
                right: reader.get("r")?,
            },
            5 => Self::Behave {
                version: reader.get("version")?,
            },
            6 => Self::Entrust {
                administrators: reader
                    .list("administrators", ADMINISTRATORS_MAX, |it| it.get("key"))?,
            },
            7 => Self::Rejoin {
                incarnation: reader.get("incarnation")?,
            },
            8 => Self::Ready {
                checkpoint: reader.get("checkpoint")?,
            },
            9 => Self::Announce {
                behaviour: reader.get("behaviour")?,
            },
            10 => Self::Show,
            11 => match reader.get::<u8>("short")? {
                0 => Self::Disk { short: false },
                1 => Self::Disk { short: true },
                _ => return Err(Malformed::Impossible { field: "short" }),
            },
            12 => Self::Move {
                key: reader.get("key")?,
                address: reader.bytes("address", ADDRESS_BYTES_MAX)?,
            },
            13 => Self::Lead {
                key: reader.get("key")?,
            },
            _ => return Err(Malformed::Impossible { field: "command" }),
        };
        reader.end()?;
        Ok(command)
    }
}

/// Why a command is refused. The texts are part of ordered replies, so they have to be the same on
/// all replicas of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandRefusal {
    /// The bytes are no command.
    #[error("this is no command that this release knows")]
    Unknown,
    /// Only an administrator may request it.
    #[error("only an administrator's key may ask for this, and this session's is none")]
    NotAdministrator,
    /// Only the replica itself may request it.
    #[error("only a replica may ask for this, with its own key, and this session's is none")]
    NotReplica,
    /// Another change came before it in the batch that ends the epoch.
    #[error("another change was made at the same time: ask again")]
    UnderWay,
    /// The key is a member already.
    #[error("this key is a member's already")]
    Known,
    /// The key was retired.
    #[error("this key was retired and is never taken again: give the replica another one")]
    Retired,
    /// The key is not a voter.
    #[error("this key is not one of the voters")]
    NoVoter,
    /// The key is not a learner.
    #[error("this key is not one of the learners: admit it first")]
    NoLearner,
    /// The learner has not caught up.
    #[error("the learner has not shown that it holds a checkpoint after batch {0}: wait for it")]
    NotReady(Sequence),
    /// The numbers do not form a fault model.
    #[error("{0}")]
    Model(FaultModelError),
    /// A list is full.
    #[error("there cannot be more {0}")]
    Full(&'static str),
    /// Not every voter knows the behaviour.
    #[error("not every voter has announced that it knows this behaviour: update them first")]
    Unannounced,
    /// The behaviour only goes forward.
    #[error("the behaviour is at {0} already, and never goes back")]
    Behind(u32),
    /// The replica has rejoined too recently.
    #[error("this replica has rejoined lately: it may again after batch {0}")]
    TooSoon(Sequence),
    /// The key is not a member.
    #[error("this key is no member's")]
    NoMember,
    /// The replica has this address already.
    #[error("this replica is at that address already")]
    SameAddress,
    /// No administrator would be left.
    #[error("there has to be an administrator")]
    NoAdministrator,
}

impl CommandRefusal {
    /// Whether the same command may be accepted later without any change by an operator.
    #[must_use]
    pub const fn passes(&self) -> bool {
        matches!(self, Self::UnderWay | Self::NotReady(_) | Self::TooSoon(_))
    }
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was noted; it changes nothing by itself.
    Noted,
    /// This epoch begins with it.
    Begins(Epoch),
    /// The membership's row.
    Shown(Bytes),
    /// It was refused.
    Refused {
        /// Whether it may be accepted later, as it is.
        passes: bool,
        /// The reason of the refusal.
        reason: String,
    },
}

impl From<CommandRefusal> for Answer {
    fn from(refusal: CommandRefusal) -> Self {
        Self::Refused {
            passes: refusal.passes(),
            reason: refusal.to_string(),
        }
    }
}

impl Answer {
    /// Encodes it.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut bytes = Vec::new();
        match self {
            Self::Noted => bytes.push(0),
            Self::Begins(epoch) => {
                bytes.push(1);
                epoch.write(&mut bytes);
            }
            Self::Shown(row) => {
                bytes.push(2);
                write_bytes(&mut bytes, row);
            }
            Self::Refused { passes, reason } => {
                bytes.extend_from_slice(&[3, u8::from(*passes)]);
                write_bytes(&mut bytes, reason.as_bytes());
            }
        }
        bytes.into()
    }

    /// Decodes it.
    ///
    /// # Errors
    /// If the bytes are no answer.
    pub fn decode(bytes: &Bytes) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let answer = match reader.get::<u8>("answer")? {
            0 => Self::Noted,
            1 => Self::Begins(reader.get("epoch")?),
            2 => Self::Shown(reader.bytes("membership", bytes.len())?),
            3 => {
                let passes = reader.get("whether it passes")?;
                let reason = reader.bytes("refusal", REFUSAL_BYTES_MAX)?;
                let reason = String::from_utf8_lossy(&reason).into_owned();
                Self::Refused { passes, reason }
            }
            _ => return Err(Malformed::Impossible { field: "answer" }),
        };
        reader.end()?;
        Ok(answer)
    }
}
