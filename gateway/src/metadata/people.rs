//! The principals that administrators have admitted, and the names of groups, as the servers report
//! them. Nothing is verified here; see the volume.

use super::MetadataClient;
use crate::error::VfsError;
use async_recursion::async_recursion as boxed;
use quorumfs_bft::identity::Time;
use quorumfs_metadata::identity::PrincipalId;
use quorumfs_metadata::limits::{PEOPLE_CHANGES_MAX, PRINCIPALS_MAX};
use quorumfs_metadata::operation::{InviteMachine, Operation};
use quorumfs_metadata::people::{ChangePeople, SignedPeopleChange};
use quorumfs_metadata::query::Question;
use quorumfs_metadata::reply::{Done, ListedInvitation, QueryResult};
use rustix::io::Errno;

/// The most changes that a volume can have: after the last one principals can still be dismissed.
const CHANGES_MAX: u32 = PEOPLE_CHANGES_MAX + PRINCIPALS_MAX as u32;

impl MetadataClient {
    /// The changes of the principals behind one, in order, up to the last one of all; `None` if
    /// there are not even so many.
    ///
    /// # Errors
    /// If the servers gave no usable answer, or a page without the change that has to follow.
    #[boxed]
    pub async fn people(&self, after: u32) -> Result<Option<Vec<SignedPeopleChange>>, VfsError> {
        const WHAT: &str = "changes of the principals";
        let mut all = Vec::new();
        let mut after = after;
        loop {
            let question = Question::People { after };
            let (changes, last) = match self.ask(WHAT, self.own(), question).await? {
                QueryResult::People { changes, last } => (changes, last),
                other => return Err(self.mismatch(WHAT, &other)),
            };
            if last > CHANGES_MAX {
                let reason = format!("{last} changes are more than a volume can have");
                return Err(self.unusable_answer(WHAT, reason));
            }
            if last < after {
                return Ok(None);
            }
            if changes.is_empty() && after < last {
                let reason = format!("no change is shown behind {after}, and there are {last}");
                return Err(self.unusable_answer(WHAT, reason));
            }
            for signed in changes {
                let number = signed.decoded().map(|change| change.number);
                if number.is_none() || number != after.checked_add(1) {
                    let reason = format!("change {number:?} is shown behind change {after}");
                    return Err(self.unusable_answer(WHAT, reason));
                }
                after = after.saturating_add(1);
                all.push(signed);
            }
            // Another one may be ordered between two pages.
            if after >= last {
                return Ok(Some(all));
            }
        }
    }

    /// Changes the principals or the names of groups. It is also a success if the same change was
    /// done already.
    ///
    /// # Errors
    /// If the servers refuse it or give no usable answer.
    #[boxed]
    pub async fn change_people(&self, ordered: &ChangePeople, wanted: u32) -> Result<(), VfsError> {
        const WHAT: &str = "changing the principals";
        let operation = Operation::ChangePeople(ordered.clone());
        match self.order(WHAT, &operation).await? {
            Done::PeopleChanged { number } if number == wanted => Ok(()),
            other => Err(self.mismatch(WHAT, &other)),
        }
    }

    /// Invites a further machine; returns when that ends, by the agreed time.
    ///
    /// # Errors
    /// If the servers refuse it or give no usable answer.
    #[boxed]
    pub async fn invite_machine(&self, wish: InviteMachine) -> Result<Time, VfsError> {
        const WHAT: &str = "inviting a machine";
        match self.order(WHAT, &Operation::InviteMachine(wish)).await? {
            Done::MachineInvited { until } => Ok(until),
            other => Err(self.mismatch(WHAT, &other)),
        }
    }

    /// Answers an invitation with whose key this session was opened.
    ///
    /// # Errors
    /// If the servers refuse it or give no usable answer.
    #[boxed]
    pub async fn answer_invitation(&self, answer: Vec<u8>) -> Result<(), VfsError> {
        const WHAT: &str = "answering an invitation";
        let operation = Operation::AnswerInvitation { answer };
        match self.order(WHAT, &operation).await? {
            Done::InvitationAnswered => Ok(()),
            other => Err(self.mismatch(WHAT, &other)),
        }
    }

    /// Ends an invitation.
    ///
    /// # Errors
    /// If the servers refuse it or give no usable answer.
    #[boxed]
    pub async fn end_invitation(&self, key: PrincipalId) -> Result<(), VfsError> {
        const WHAT: &str = "ending an invitation";
        let operation = Operation::EndInvitation { key };
        match self.order(WHAT, &operation).await? {
            Done::InvitationEnded => Ok(()),
            other => Err(self.mismatch(WHAT, &other)),
        }
    }

    /// An invitation of this session's, from either side; `None` if it has ended.
    ///
    /// # Errors
    /// If the servers gave no usable answer.
    #[boxed]
    pub async fn invitation(&self, key: PrincipalId) -> Result<Option<ListedInvitation>, VfsError> {
        const WHAT: &str = "an invitation";
        match self.ask(WHAT, self.own(), Question::Invitation(key)).await {
            Ok(QueryResult::Invitation(listed)) => Ok(Some(listed)),
            Ok(other) => Err(self.mismatch(WHAT, &other)),
            Err(error) if matches!(error.errno(), Errno::NOENT | Errno::STALE) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Embedded;
    use ed25519_zebra::{SigningKey, VerificationKey};
    use quorumfs_bft::identity::{PublicKey, Signature};
    use quorumfs_metadata::Metadata;
    use quorumfs_metadata::attributes::Credentials;
    use quorumfs_metadata::identity::{Gid, RealmEpoch};
    use quorumfs_metadata::people::{People, PeopleChange, PeopleStep};
    use quorumfs_metadata::row::{Rights, SignedBy};
    use quorumfs_metadata::simulation::{principal, sign, unsigned_genesis};
    use std::sync::Arc;

    #[tokio::test]
    async fn all_changes_are_read_page_by_page_and_one_is_made_once() {
        let key = SigningKey::from([1; 32]);
        let owner = PublicKey(VerificationKey::from(&key).into());
        let genesis = unsigned_genesis(vec![principal(owner, Rights::all())], (1, 1, 4)).unwrap();
        let embedded = Embedded::new(Metadata, &sign(&genesis)).unwrap();
        let session = embedded.open_session(owner).unwrap();
        let client = MetadataClient::new(Arc::new(session), Credentials::root());
        assert_eq!(client.people(0).await.unwrap(), Some(Vec::new()));
        assert_eq!(client.people(1).await.unwrap(), None);
        for number in 1..=70_u32 {
            let step = PeopleStep::NameGroup {
                gid: Gid(number),
                name: format!("group {number}"),
            };
            let change = PeopleChange {
                volume: genesis.volume,
                number,
                epoch: RealmEpoch(0),
                step,
            };
            let change = change.to_bytes();
            let signature = key.sign(&PeopleChange::signed_bytes(&change));
            let ordered = ChangePeople {
                signed: SignedPeopleChange {
                    change,
                    signed: SignedBy {
                        signer: owner,
                        signature: Signature(signature.into()),
                    },
                },
                member: None,
            };
            client.change_people(&ordered, number).await.unwrap();
            client.change_people(&ordered, number).await.unwrap();
            assert!(client.change_people(&ordered, number + 1).await.is_err());
        }
        let mut people = People::default();
        for signed in client.people(0).await.unwrap().unwrap() {
            people
                .apply(&signed.verified(genesis.volume).unwrap())
                .unwrap();
        }
        assert_eq!((people.changes, people.groups.len()), (70, 70));
        assert_eq!(client.people(69).await.unwrap().unwrap().len(), 1);
        assert_eq!(client.people(70).await.unwrap(), Some(Vec::new()));
    }
}
