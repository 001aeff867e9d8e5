//! Asking for a change of the membership.
//!
//! A [`Command`] is an ordered operation like any other, for the library instead of the service:
//! whoever holds an administrator's key connects with it as principal, and asks. A session is
//! opened for such a key even where the service knows nothing of it. What a command comes to, and
//! what stands against it, is decided alike on every replica (`quorumfs_bft::membership`).
//!
//! Once [`Administered::Begins`] is answered, the change has been made for good: that epoch begins
//! as soon as a quorum has written down the state that it begins with, and this client follows.

use super::error::ClientError;
use super::{BlockingClient, Client};
use quorumfs_bft::client::OperationKind;
use quorumfs_bft::identity::Epoch;
use quorumfs_bft::membership::{Answer, Command, Membership};

/// What became of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Administered {
    /// It was noted; nothing changes by it alone.
    Noted,
    /// This epoch begins with it.
    Begins(Epoch),
    /// How the membership is.
    Shown(Box<Membership>),
}

impl Client {
    /// Gets a command about the membership carried out.
    ///
    /// # Errors
    /// Like [`Client::execute`], and [`ClientError::CommandRefused`] says in words what stands
    /// against it.
    pub async fn administer(&self, command: Command) -> Result<Administered, ClientError> {
        let answer = self
            .submit(OperationKind::Administer, command.encode())
            .await?;
        // Enough replicas said so that one of them is correct.
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
    /// # Errors
    /// As there.
    pub fn administer(&self, command: Command) -> Result<Administered, ClientError> {
        let client = self.own.client()?;
        self.own
            .wait(async move { client.administer(command).await })
    }
}
