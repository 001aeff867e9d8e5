//! The cluster's members as `status` and `cluster` show them: the membership, and each replica's
//! report.
//!
//! A replica's report about itself may be a lie: a figure for the whole cluster is the highest that
//! at least r + 1 voters claim, one of which is correct.

use super::opened::Configured;
use quorumfs_bft::identity::PublicKey;
use quorumfs_bft::membership::{Member, Membership};
use quorumfs_bft::metrics::{ReplicaStatus, Voting};
use quorumfs_bft_runtime::client::ClusterStatus;
use serde::Serialize;

/// A replica that has executed so many batches less than others is behind: reports are not of one
/// moment.
const BEHIND_MAX: u64 = 256;

/// One member.
#[derive(Debug, Serialize)]
pub(super) struct ReplicaLine {
    id: u16,
    role: Role,
    key: String,
    address: String,
    /// Whether a retired replica may be switched off.
    #[serde(skip_serializing_if = "Option::is_none")]
    dispensable: Option<bool>,
    answers: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(flatten)]
    reported: Option<ReplicaState>,
}

/// Its role in the membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Role {
    /// It votes.
    Voter,
    /// It receives everything, and may vote later.
    Learner,
    /// It voted once, and receives everything for as long as it may be needed.
    Retired,
}

impl Role {
    /// The role of `member`.
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

/// What it reports about itself.
#[derive(Debug, Serialize)]
pub(super) struct ReplicaState {
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
    /// The checkpoint whose state it is fetching.
    #[serde(skip_serializing_if = "Option::is_none")]
    transfer: Option<u64>,
    /// The voters in the certificate of `committed`.
    certificate: Vec<u16>,
    sessions: u32,
    waiting: u32,
    /// How votes are authenticated.
    authentication: &'static str,
    /// How durable what it promises is.
    durability: &'static str,
}

impl ReplicaLine {
    /// Whether a loss of power may make it forget what it has promised.
    pub(super) fn may_forget(&self) -> bool {
        let reported = self.reported.as_ref();
        reported.is_some_and(|reported| reported.durability != "strict")
    }
}

impl ReplicaState {
    fn of(reported: &ReplicaStatus) -> Self {
        Self {
            epoch: reported.epoch.0,
            view: reported.view.0,
            leader: reported.leader.0,
            active: reported.active,
            voting: reported.voting == Voting::Voting,
            committed: reported.sequence.0,
            durable: reported.durable.0,
            stable: reported.stable.0,
            transfer: reported.transfer.map(|sequence| sequence.0),
            certificate: reported.signers.iter().map(|signer| signer.0).collect(),
            sessions: reported.sessions,
            waiting: reported.waiting,
            authentication: reported.authentication.name(),
            durability: reported.durability.name(),
        }
    }
}

/// Every member, voters first.
pub(super) fn of(configured: &Configured, standing: ClusterStatus) -> Vec<ReplicaLine> {
    let membership = standing.membership;
    let answers = standing.replicas.into_iter();
    let mut replicas: Vec<_> = answers
        .filter_map(|(id, answer)| {
            let member = membership.member(id)?;
            let (reported, problem) = match answer {
                Ok(reported) => (Some(reported), None),
                Err(problem) => (None, Some(problem.to_string())),
            };
            Some(ReplicaLine {
                id: id.0,
                role: Role::of(&membership, member),
                key: member.key.to_string(),
                address: configured.address_of(member),
                dispensable: None,
                answers: reported.is_some(),
                problem,
                state: reported.as_ref().map(|reported| reported.voting.name()),
                reported: reported.as_ref().map(ReplicaState::of),
            })
        })
        .collect();
    // Until then, the state at the epoch's beginning may be held by too few.
    let stable = vouched(&replicas, &membership, |reported| reported.stable);
    let dispensable = stable > Some(membership.from.0);
    for replica in &mut replicas {
        replica.dispensable = (replica.role == Role::Retired).then_some(dispensable);
    }
    replicas
}

/// The highest value that enough voters claim that one of them is correct.
pub(super) fn vouched(
    replicas: &[ReplicaLine],
    membership: &Membership,
    value: fn(&ReplicaState) -> u64,
) -> Option<u64> {
    let voters = replicas.iter().filter(|it| it.role == Role::Voter);
    let reported = voters.filter_map(|it| it.reported.as_ref());
    highest(
        reported.map(value).collect(),
        usize::from(membership.model.small()),
    )
}

/// The number of the voter that leads, as far as enough voters claim its view.
pub(super) fn leader(replicas: &[ReplicaLine], membership: &Membership) -> Option<u64> {
    let view = vouched(replicas, membership, |reported| reported.view)?;
    view.checked_rem(membership.voters.len() as u64)
}

/// Whether a replica could lead now, as far as its report and those of the others tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fitness {
    Well,
    Silent,
    NotVoting,
    /// By so many batches.
    Behind(u64),
}

/// Whether the replica with this key could lead now.
pub(super) fn fitness(
    replicas: &[ReplicaLine],
    membership: &Membership,
    key: &PublicKey,
) -> Fitness {
    let key = key.to_string();
    let line = replicas.iter().find(|it| it.key == key);
    let Some(reported) = line.and_then(|it| it.reported.as_ref()) else {
        return Fitness::Silent;
    };
    let others = vouched(replicas, membership, |it| it.committed);
    let behind = others.unwrap_or(0).saturating_sub(reported.committed);
    match (reported.voting, behind) {
        (false, _) => Fitness::NotVoting,
        (true, behind) if behind > BEHIND_MAX => Fitness::Behind(behind),
        (true, _) => Fitness::Well,
    }
}

fn highest(mut values: Vec<u64>, vouchers: usize) -> Option<u64> {
    values.sort_unstable_by(|left, right| right.cmp(left));
    values.get(vouchers.checked_sub(1)?).copied()
}

impl ReplicaLine {
    /// Whether it is a voter and reports that it votes.
    pub(super) fn votes(&self) -> bool {
        self.role == Role::Voter
            && self
                .reported
                .as_ref()
                .is_some_and(|reported| reported.voting)
    }

    /// The text form.
    pub(super) fn text(&self) -> String {
        let (id, address) = (self.id, &self.address);
        match (&self.reported, &self.problem) {
            (Some(reported), _) => {
                let (view, committed) = (reported.view, reported.committed);
                let catching_up = reported.transfer.map_or_else(String::new, |sequence| {
                    format!("; fetches the state after batch {sequence} from the others")
                });
                let does = self.does();
                let forgets = match reported.durability {
                    "strict" => String::new(),
                    other => format!("; a loss of power makes it forget (durability {other})"),
                };
                format!(
                    "  replica {id}  {address}  view {view}  sequence {committed}  \
                     {does}{catching_up}{forgets}"
                )
            }
            (None, _) if self.role == Role::Retired => {
                format!("  replica {id}  {address}  retired, not reachable: nothing to do")
            }
            (None, problem) => {
                let problem = problem.as_deref().unwrap_or("?");
                let role = match self.role {
                    Role::Learner => " (it does not vote yet)",
                    Role::Voter | Role::Retired => "",
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
                "FOLLOWS (its journal was lost; it asks the others to admit it again)".to_owned()
            }
            (Role::Voter, other) => other.unwrap_or_default().to_uppercase(),
        }
    }

    fn retired(&self) -> String {
        let may = match self.dispensable {
            Some(true) => "may be switched off",
            _ => "keep it running until the next checkpoint",
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
