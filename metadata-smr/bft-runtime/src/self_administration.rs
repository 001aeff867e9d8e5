//! The commands that a replica submits itself, as ordered requests, under its own key.
//!
//! | When | Command |
//! |---|---|
//! | the membership names another incarnation than its journal has | `Rejoin` |
//! | it is a learner, and holds a checkpoint that it has not reported recently | `Ready` |
//! | it votes, and supports a later behaviour than batches are executed with | `Announce` |
//! | its disk is nearly full, or has free space again ([`DiskSpace`]) | `Disk` |
//!
//! It reports its journal's incarnation only once that is durable: otherwise another crash would
//! leave an incarnation in the membership that no journal has.
//!
//! It submits commands through an ordinary client of the cluster, with the replica's key as
//! principal: no operator has to notice, and no other node can submit them. That client dials the
//! replicas over the network, including this one, instead of passing the operation to its own core.
//! A replica that has lost its journal may be the last to learn the order; a client takes its
//! answer from a quorum, follows from epoch to epoch and retries, and all of that exists already.
//! It is connected only while there is a command to submit.
//!
//! # What can go wrong
//!
//! *The command is refused*: the replica rejoined a moment ago, or another change was made in the
//! same batch. It is submitted again, after growing pauses. *The command is out of date*, since the
//! replica lags: it is refused too, and changes nothing. *There is no answer*: more than u replicas
//! are down, including this one, until enough of them return.

use crate::client::{Client, ClientConfig, ClientError, Member};
use crate::disk_space::DiskSpace;
use crate::event_loop::Published;
use crate::keys::NodeKey;
use crate::limits;
use crate::server::ReplicaConfig;
use crate::store::ReusableSpace;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{ClusterId, Epoch, Incarnation, PublicKey, Sequence};
use quorumfs_bft::membership::{Command, Membership};
use quorumfs_bft::metrics::ReplicaStatus;
use quorumfs_bft::replica::config::BEHAVIOUR_VERSION;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;

/// The commands of one replica.
pub(crate) struct SelfAdministration {
    key: Arc<NodeKey>,
    cluster: ClusterId,
    fault_model: FaultModel,
    replicas: Vec<Member>,
    published: Arc<Published>,
    disk_space: DiskSpace,
    reported: Reported,
}

/// What it has reported already.
#[derive(Clone, Copy, Debug, Default)]
struct Reported {
    /// The checkpoint that it reported.
    ready: Sequence,
    /// The epoch in which it announced its behaviours: a membership may drop the announcement.
    announced: Option<Epoch>,
    /// Whether it reported its disk as nearly full, if that is known.
    short: Option<bool>,
}

impl SelfAdministration {
    pub(crate) fn of(
        config: &ReplicaConfig,
        published: Arc<Published>,
        spare: Arc<OnceLock<ReusableSpace>>,
    ) -> Self {
        let disk_space = DiskSpace::new(&config.directory, config.free_bytes_min).with(spare);
        Self {
            key: config.key.clone(),
            cluster: config.cluster,
            fault_model: config.fault_model,
            replicas: config.replicas.clone(),
            published,
            reported: Reported {
                short: disk_space.reported_before(),
                ..Reported::default()
            },
            disk_space,
        }
    }

    /// Submits commands as they become due, for ever.
    pub(crate) async fn run(mut self) {
        let mut refusals = Refusals::default();
        let mut pause = limits::SELF_ADMINISTRATION_INTERVAL;
        // In a task of its own: a refusal, or a cluster that does not answer, must not delay the
        // handling of the reserve.
        let (publish, mut found) = watch::channel(None);
        tokio::spawn(watch_disk_space(self.disk_space.clone(), publish));
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // Another command does not wait for a refused one.
                Ok(()) = found.changed() => {}
            }
            pause = limits::SELF_ADMINISTRATION_INTERVAL;
            let (Some(short), Some(membership), Some(status), Some(incarnation)) = (
                *found.borrow_and_update(),
                self.published.membership(),
                self.published.get(),
                self.published.incarnation(),
            ) else {
                continue;
            };
            let key = self.key.public();
            let Some(command) = due_command(
                &membership,
                &status,
                &key,
                (incarnation, short),
                self.reported,
            ) else {
                refusals = Refusals::default();
                continue;
            };
            if let Command::Disk { short: true } = command {
                self.disk_space.before_shortage_report();
                tracing::warn!("this replica's disk is nearly full");
            }
            match self.submit(&membership, command.clone()).await {
                Ok(()) => {
                    tracing::info!(?command, "the cluster has accepted this replica's command");
                    refusals = Refusals::default();
                    match command {
                        Command::Ready { checkpoint } => self.reported.ready = checkpoint,
                        Command::Announce { .. } => {
                            self.reported.announced = Some(membership.epoch)
                        }
                        Command::Disk { short } => {
                            self.reported.short = Some(short);
                            if !short {
                                self.disk_space.after_space_report();
                            }
                        }
                        _ => {}
                    }
                }
                Err(error) => {
                    let (news, after) = refusals.add(error.to_string());
                    if news {
                        tracing::warn!(
                            ?command,
                            %error,
                            "the replica's command was refused; it is submitted again"
                        );
                    }
                    pause = after;
                }
            }
        }
    }

    async fn submit(&self, membership: &Membership, command: Command) -> Result<(), ClientError> {
        let replicas = self.replicas.clone();
        let key = self.key.clone();
        let mut config = ClientConfig::new(self.cluster, self.fault_model, replicas, key);
        config.known = Some(membership.clone());
        config.lanes = 1;
        config.deadline = limits::SELF_ADMINISTRATION_DEADLINE;
        config.connect_deadline = limits::SELF_ADMINISTRATION_DEADLINE;
        let client = Client::connect(config).await?;
        let answer = client.administer(command).await;
        // The command has an outcome; the session ends now, or later because it is idle.
        let closed = tokio::time::timeout(Duration::from_secs(1), client.close()).await;
        tracing::debug!(?closed, "the replica's own session");
        answer.map(|_| ())
    }
}

/// Checks the disk's free space while the result is used, and publishes changes.
async fn watch_disk_space(mut disk_space: DiskSpace, publish: watch::Sender<Option<bool>>) {
    while !publish.is_closed() {
        let was = *publish.borrow();
        let check = move || (disk_space.check(was), disk_space);
        let Ok((short, same)) = tokio::task::spawn_blocking(check).await else {
            return;
        };
        disk_space = same;
        publish.send_if_modified(|found| found.replace(short) != Some(short));
        tokio::time::sleep(limits::SPACE_CHECK_INTERVAL).await;
    }
}

/// Refusals of one command, one after the other.
#[derive(Debug, Default)]
struct Refusals {
    reason: String,
    pause: Duration,
}

impl Refusals {
    /// Adds a refusal with this reason: returns whether the reason is new, and how long to wait.
    fn add(&mut self, reason: String) -> (bool, Duration) {
        let news = reason != self.reason;
        self.reason = reason;
        let longer = self.pause * 2;
        self.pause = longer.clamp(
            limits::SELF_ADMINISTRATION_RETRY,
            limits::SELF_ADMINISTRATION_RETRY_MAX,
        );
        (news, self.pause)
    }
}

/// The command that the replica with this key has to submit.
fn due_command(
    membership: &Membership,
    status: &ReplicaStatus,
    key: &PublicKey,
    (incarnation, short): (Incarnation, bool),
    reported: Reported,
) -> Option<Command> {
    let place = membership.place(key)?;
    let member = membership.member(place)?;
    if status.epoch != membership.epoch || membership.retired.contains(key) {
        return None;
    }
    if member.incarnation != incarnation {
        return Some(Command::Rejoin { incarnation });
    }
    if reported.short != Some(short) {
        return Some(Command::Disk { short });
    }
    if membership.votes(place) {
        let behaviour = BEHAVIOUR_VERSION;
        let news = behaviour > membership.behaviour_version;
        let announces = news && reported.announced != Some(membership.epoch);
        return announces.then_some(Command::Announce { behaviour });
    }
    let reported = reported.ready;
    let checkpoint = status.durable.min(status.stable);
    let again = Sequence(reported.0.saturating_add(membership.checkpoint_interval));
    let news = checkpoint > Sequence(0) && (reported == Sequence(0) || checkpoint >= again);
    news.then_some(Command::Ready { checkpoint })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_loop::tests::quiet;
    use bytes::Bytes;
    use quorumfs_bft::membership;

    fn key(number: u8) -> PublicKey {
        PublicKey([number; 32])
    }

    /// Voters 0 to 3, learner 4, and 5, a former voter; each with an incarnation of its number.
    fn membership() -> Membership {
        let member = |number: u8| membership::Member {
            key: key(number),
            incarnation: Incarnation([number; 16]),
            address: Bytes::new(),
            since: Sequence(0),
        };
        let model = FaultModel::new(1, 1, 4).expect("a model");
        let mut membership = Membership::genesis(model, (0..4).map(member).collect(), vec![]);
        membership.others = (4..6).map(member).collect();
        membership.retired = vec![key(5)];
        membership
    }

    fn command_of(number: u8, incarnation: u8, durable: u64, reported: u64) -> Option<Command> {
        let status = ReplicaStatus {
            durable: Sequence(durable),
            stable: Sequence(durable),
            ..quiet()
        };
        let incarnation = Incarnation([incarnation; 16]);
        let reported = Reported {
            ready: Sequence(reported),
            announced: None,
            short: Some(false),
        };
        let found = (incarnation, false);
        due_command(&membership(), &status, &key(number), found, reported)
    }

    #[test]
    fn a_full_disk_is_reported_once_and_so_is_an_unknown_state() {
        let due_command = |number: u8, short, reported| {
            let reported = Reported {
                short: reported,
                ..Reported::default()
            };
            let found = (Incarnation([number; 16]), short);
            due_command(&membership(), &quiet(), &key(number), found, reported)
        };
        assert_eq!(due_command(1, false, Some(false)), None);
        assert_eq!(due_command(1, true, Some(true)), None);
        for (short, reported) in [(true, Some(false)), (true, None), (false, Some(true))] {
            assert_eq!(
                due_command(1, short, reported),
                Some(Command::Disk { short })
            );
        }
        assert_eq!(
            due_command(1, false, None),
            Some(Command::Disk { short: false })
        );
        assert_eq!(due_command(5, true, None), None, "retired");
    }

    #[test]
    fn a_replica_without_its_journal_rejoins_and_a_learner_reports_its_checkpoint() {
        let interval = membership().checkpoint_interval;
        assert_eq!(command_of(1, 1, 7, 0), None);
        let incarnation = Incarnation([9; 16]);
        assert_eq!(
            command_of(1, 9, 7, 0),
            Some(Command::Rejoin { incarnation })
        );
        assert_eq!(
            command_of(4, 9, 7, 0),
            Some(Command::Rejoin { incarnation })
        );
        assert_eq!(command_of(4, 4, 0, 0), None);
        let checkpoint = Sequence(7);
        assert_eq!(command_of(4, 4, 7, 0), Some(Command::Ready { checkpoint }));
        assert_eq!(command_of(4, 4, 7 + interval - 1, 7), None);
        assert!(command_of(4, 4, 7 + interval, 7).is_some());
        assert_eq!(command_of(5, 9, 7, 0), None, "retired");
        assert_eq!(command_of(6, 9, 7, 0), None, "a stranger");
    }

    #[test]
    fn a_voter_announces_a_later_behaviour_once_in_an_epoch() {
        let mut earlier = membership();
        earlier.behaviour_version = BEHAVIOUR_VERSION - 1;
        let due_command = |number, announced| {
            let reported = Reported {
                announced,
                short: Some(false),
                ..Reported::default()
            };
            let found = (Incarnation([number; 16]), false);
            due_command(&earlier, &quiet(), &key(number), found, reported)
        };
        let behaviour = BEHAVIOUR_VERSION;
        assert_eq!(due_command(1, None), Some(Command::Announce { behaviour }));
        assert_eq!(due_command(1, Some(Epoch(0))), None, "reported");
        assert_eq!(
            due_command(1, Some(Epoch(7))),
            Some(Command::Announce { behaviour })
        );
        assert_eq!(due_command(4, None), None, "it does not vote");
    }

    #[test]
    fn a_refused_command_is_retried_with_growing_pauses_and_logged_once() {
        let mut refusals = Refusals::default();
        let mut reported = 0;
        let mut last = Duration::ZERO;
        for _ in 0..10 {
            let (news, pause) = refusals.add("too soon".to_owned());
            reported += usize::from(news);
            assert!(pause >= last && pause <= limits::SELF_ADMINISTRATION_RETRY_MAX);
            last = pause;
        }
        assert_eq!((reported, last), (1, limits::SELF_ADMINISTRATION_RETRY_MAX));
        assert!(refusals.add("no answer".to_owned()).0);
    }
}
