//! Asking for a change of the membership.
//!
//! A [`Command`] is an ordered operation like any other, for the library instead of the service:
//! an administrator connects with its key as principal, and submits it. A session is opened for
//! such a key even if the service does not know it. Every replica decides alike whether a command
//! is carried out and why it is refused (`quorumfs_bft::membership`).
//!
//! Once [`Administered::Begins`] is answered, the change is final: that epoch begins as soon as a
//! quorum has stored the state that it begins with, and this client follows.

use super::error::ClientError;
use super::{BlockingClient, Client};
use quorumfs_bft::client::OperationKind;
use quorumfs_bft::identity::Epoch;
use quorumfs_bft::membership::{Answer, Command, Membership};

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Administered {
    /// It was noted; it changes nothing by itself.
    Noted,
    /// This epoch begins with it.
    Begins(Epoch),
    /// The current membership.
    Shown(Box<Membership>),
}

impl Client {
    /// Carries out a command about the membership.
    ///
    /// # Errors
    /// Like [`Client::execute`], and [`ClientError::CommandRefused`] with the reason in words.
    pub async fn administer(&self, command: Command) -> Result<Administered, ClientError> {
        let answer = self
            .submit(OperationKind::Administer, command.encode())
            .await?;
        // Enough replicas gave this answer that at least one of them is correct.
        let unknown = |_| ClientError::UnknownAnswer;
        match Answer::decode(&answer).map_err(unknown)? {
            Answer::Noted => Ok(Administered::Noted),
            Answer::Begins(epoch) => Ok(Administered::Begins(epoch)),
            Answer::Shown(row) => {
                let membership = Membership::decode(&row).map_err(unknown)?;
                Ok(Administered::Shown(Box::new(membership)))
            }
            Answer::Refused { passes, reason } => {
                Err(ClientError::CommandRefused { passes, reason })
            }
        }
    }
}

impl BlockingClient {
    /// [`Client::administer`].
    ///
    /// Like [`Client::administer`].
    /// As there.
    pub fn administer(&self, command: Command) -> Result<Administered, ClientError> {
        let client = self.own.client()?;
        self.own
            .wait(async move { client.administer(command).await })
    }
}
