//! The cluster's members as `status` and `cluster` show them: who they are, and what each says.
//!
//! What a replica says about itself may be a lie: a figure for all of them is the highest that
//! r + 1 voters claim at least, of which one is correct.

use super::opened::Configured;
use quorumfs_bft::membership::{Member, Membership};
use quorumfs_bft::metrics::{ReplicaStatus, Voting};
use quorumfs_bft_runtime::client::ClusterStatus;
use serde::Serialize;

/// One member.
#[derive(Debug, Serialize)]
pub(super) struct Replica {
    id: u16,
    role: Role,
    key: String,
    address: String,
    /// Whether one that voted once may be switched off.
    #[serde(skip_serializing_if = "Option::is_none")]
    dispensable: Option<bool>,
    answers: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(flatten)]
    said: Option<Said>,
}

/// What the membership makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Role {
    /// It votes.
    Voter,
    /// It is told everything, and may vote later.
    Learner,
    /// It voted once, and is told everything for as long as it may be of use.
    Retired,
}

impl Role {
    /// What `member` is.
    pub(super) fn of(membership: &Membership, member: &Member) -> Self {
        if membership.voters.iter().any(|it| it.key == member.key) {
            Self::Voter
        } else if membership.retired.contains(&member.key) {
            Self::Retired
        } else {
            Self::Learner
        }
    }
}

/// What it says about itself.
#[derive(Debug, Serialize)]
pub(super) struct Said {
    epoch: u64,
    pub(super) view: u64,
    leader: u16,
    active: bool,
    voting: bool,
    /// The last sequence that it executed.
    pub(super) committed: u64,
    /// The sequence of its newest durable root.
    durable: u64,
    pub(super) stable: u64,
    /// The checkpoint whose state it is taking over.
    #[serde(skip_serializing_if = "Option::is_none")]
    transfer: Option<u64>,
    /// Whose votes are in the certificate of `committed`.
    certificate: Vec<u16>,
    sessions: u32,
    waiting: u32,
}

impl Said {
    fn of(said: &ReplicaStatus) -> Self {
        Self {
            epoch: said.epoch.0,
            view: said.view.0,
            leader: said.leader.0,
            active: said.active,
            voting: said.voting == Voting::Voting,
            committed: said.sequence.0,
            durable: said.durable.0,
            stable: said.stable.0,
            transfer: said.transfer.map(|sequence| sequence.0),
            certificate: said.signers.iter().map(|signer| signer.0).collect(),
            sessions: said.sessions,
            waiting: said.waiting,
        }
    }
}

/// Every member, voters first.
pub(super) fn of(configured: &Configured, standing: ClusterStatus) -> Vec<Replica> {
    let membership = standing.membership;
    let answers = standing.replicas.into_iter();
    let mut replicas: Vec<_> = answers
        .filter_map(|(id, answer)| {
            let member = membership.member(id)?;
            let (said, problem) = match answer {
                Ok(said) => (Some(said), None),
                Err(problem) => (None, Some(problem.to_string())),
            };
            Some(Replica {
                id: id.0,
                role: Role::of(&membership, member),
                key: member.key.to_string(),
                address: configured.address_of(member),
                dispensable: None,
                answers: said.is_some(),
                problem,
                state: said.as_ref().map(|said| said.voting.name()),
                said: said.as_ref().map(Said::of),
            })
        })
        .collect();
    // Until then, the state at the epoch's beginning may be one of few.
    let stable = vouched(&replicas, &membership, |said| said.stable);
    let dispensable = stable > Some(membership.from.0);
    for replica in &mut replicas {
        replica.dispensable = (replica.role == Role::Retired).then_some(dispensable);
    }
    replicas
}

/// The highest value that so many voters claim at least that one of them is correct.
pub(super) fn vouched(
    replicas: &[Replica],
    membership: &Membership,
    value: fn(&Said) -> u64,
) -> Option<u64> {
    let voters = replicas.iter().filter(|it| it.role == Role::Voter);
    let said = voters.filter_map(|it| it.said.as_ref());
    highest(
        said.map(value).collect(),
        usize::from(membership.model.small()),
    )
}

fn highest(mut values: Vec<u64>, vouchers: usize) -> Option<u64> {
    values.sort_unstable_by(|left, right| right.cmp(left));
    values.get(vouchers.checked_sub(1)?).copied()
}

impl Replica {
    /// Whether it is one of those that vote, and does.
    pub(super) fn votes(&self) -> bool {
        self.role == Role::Voter && self.said.as_ref().is_some_and(|said| said.voting)
    }

    /// A line for people.
    pub(super) fn text(&self) -> String {
        let (id, address) = (self.id, &self.address);
        match (&self.said, &self.problem) {
            (Some(said), _) => {
                let (view, committed) = (said.view, said.committed);
                let catching_up = said.transfer.map_or_else(String::new, |sequence| {
                    format!("; takes the state after batch {sequence} over from the others")
                });
                let does = self.does();
                format!(
                    "  replica {id}  {address}  view {view}  sequence {committed}  \
                     {does}{catching_up}"
                )
            }
            (None, problem) => {
                let problem = problem.as_deref().unwrap_or("?");
                let role = match self.role {
                    Role::Voter => String::new(),
                    Role::Learner => " (it does not vote yet)".to_owned(),
                    Role::Retired => format!(" ({})", self.retired()),
                };
                format!("  replica {id}  {address}  DOWN: {problem}{role}")
            }
        }
    }

    /// The same, with its key.
    pub(super) fn text_with_key(&self) -> String {
        format!("{}\n             {}", self.text(), self.key)
    }

    fn does(&self) -> String {
        match (self.role, self.state) {
            (Role::Learner, _) => "LEARNS (it does not vote yet)".to_owned(),
            (Role::Retired, _) => self.retired().to_uppercase(),
            (Role::Voter, Some("voting")) => "votes".to_owned(),
            (Role::Voter, Some("lost")) => {
                "FOLLOWS (its log was lost; it asks the others to be taken up again)".to_owned()
            }
            (Role::Voter, other) => other.unwrap_or_default().to_uppercase(),
        }
    }

    fn retired(&self) -> String {
        let may = match self.dispensable {
            Some(true) => "may be switched off",
            _ => "keep it on until the next checkpoint",
        };
        format!("retired; {may}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_liar_does_not_decide_the_view() {
        assert_eq!(highest(vec![3, 3, 3, 900], 2), Some(3));
        assert_eq!(highest(vec![0, 4, 4, 4], 2), Some(4));
        assert_eq!(highest(vec![4], 2), None);
        assert_eq!(highest(vec![7, 8], 0), None);
    }
}
