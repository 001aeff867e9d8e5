//! What a replica asks for by itself, in the order, under its own key.
//!
//! | When | What |
//! |---|---|
//! | the membership names another incarnation than its journal has | `Rejoin` |
//! | it is a learner, and holds a checkpoint of which it has not spoken lately | `Ready` |
//! | it votes, and knows a later behaviour than batches are executed with | `Announce` |
//! | its disk is nearly full, or has room again ([`Room`]) | `Disk` |
//!
//! Which incarnation its journal has it says only once that is durable: asked for before, another
//! crash would leave a name in the membership that nobody bears.
//!
//! It asks through an ordinary client of the cluster, whose principal is the replica's key: nobody
//! else has to notice, and nobody else can ask. That client dials the replicas over the network,
//! itself among them, instead of handing the operation to its own core. A replica that has lost its
//! journal may be the last to know what the order is; a client takes its answer from a quorum, goes
//! along from epoch to epoch and tries again, and all of that is there already. It is connected
//! only while there is something to ask for.
//!
//! # What can go wrong
//!
//! *It is refused*: it has rejoined a moment ago, or another change was made in the same batch. It
//! asks again, later each time. *It asks for what has happened already*, since it is behind: that
//! is refused too, and changes nothing. *Nobody answers*: more than u are down, this one included,
//! until enough come back.

use crate::client::{Client, ClientConfig, ClientError, Member};
use crate::event_loop::Published;
use crate::keys::NodeKey;
use crate::limits;
use crate::room::Room;
use crate::server::ReplicaConfig;
use crate::store::Spare;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{ClusterId, Epoch, Incarnation, PublicKey, Sequence};
use quorumfs_bft::membership::{Command, Membership};
use quorumfs_bft::metrics::ReplicaStatus;
use quorumfs_bft::replica::config::BEHAVIOUR_VERSION;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;

/// One replica's wishes.
pub(crate) struct OwnAffairs {
    key: Arc<NodeKey>,
    cluster: ClusterId,
    fault_model: FaultModel,
    replicas: Vec<Member>,
    published: Arc<Published>,
    room: Room,
    said: Said,
}

/// What it has said already.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    /// The checkpoint that it holds.
    ready: Sequence,
    /// In which epoch what behaviours it knows: what is noted of that may go with a membership.
    announced: Option<Epoch>,
    /// Whether its disk is nearly full, if it is known what was said of that.
    short: Option<bool>,
}

impl OwnAffairs {
    pub(crate) fn of(
        config: &ReplicaConfig,
        published: Arc<Published>,
        spare: Arc<OnceLock<Spare>>,
    ) -> Self {
        let room = Room::new(&config.directory, config.free_bytes_min).with(spare);
        Self {
            key: config.key.clone(),
            cluster: config.cluster,
            fault_model: config.fault_model,
            replicas: config.replicas.clone(),
            published,
            said: Said {
                short: room.said_before(),
                ..Said::default()
            },
            room,
        }
    }

    /// Asks for what there is to ask for, for ever.
    pub(crate) async fn run(mut self) {
        let mut refusals = Refusals::default();
        let mut pause = limits::OWN_AFFAIRS;
        // In a task of its own: a refusal, or a cluster that does not answer, must not keep the
        // reserve from being made or given back.
        let (tell, mut found) = watch::channel(None);
        tokio::spawn(look_again_and_again(self.room.clone(), tell));
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                // Another thing to ask for does not wait for what was refused.
                Ok(()) = found.changed() => {}
            }
            pause = limits::OWN_AFFAIRS;
            let (Some(short), Some(membership), Some(status), Some(incarnation)) = (
                *found.borrow_and_update(),
                self.published.membership(),
                self.published.get(),
                self.published.incarnation(),
            ) else {
                continue;
            };
            let key = self.key.public();
            let Some(command) = wish(&membership, &status, &key, (incarnation, short), self.said)
            else {
                refusals = Refusals::default();
                continue;
            };
            if let Command::Disk { short: true } = command {
                self.room.saying_short();
                tracing::warn!("this replica's disk is nearly full");
            }
            match self.ask(&membership, command.clone()).await {
                Ok(()) => {
                    tracing::info!(
                        ?command,
                        "the cluster has taken up what this replica asked for"
                    );
                    refusals = Refusals::default();
                    match command {
                        Command::Ready { checkpoint } => self.said.ready = checkpoint,
                        Command::Announce { .. } => self.said.announced = Some(membership.epoch),
                        Command::Disk { short } => {
                            self.said.short = Some(short);
                            if !short {
                                self.room.said_room();
                            }
                        }
                        _ => {}
                    }
                }
                Err(error) => {
                    let (news, after) = refusals.another(error.to_string());
                    if news {
                        tracing::warn!(?command, %error, "this replica asks for it again");
                    }
                    pause = after;
                }
            }
        }
    }

    async fn ask(&self, membership: &Membership, command: Command) -> Result<(), ClientError> {
        let replicas = self.replicas.clone();
        let key = self.key.clone();
        let mut config = ClientConfig::new(self.cluster, self.fault_model, replicas, key);
        config.known = Some(membership.clone());
        config.lanes = 1;
        config.deadline = limits::OWN_AFFAIRS_DEADLINE;
        config.connect_deadline = limits::OWN_AFFAIRS_DEADLINE;
        let client = Client::connect(config).await?;
        let answer = client.administer(command).await;
        // What was asked for is done or not; the session ends by being idle, if not now.
        let closed = tokio::time::timeout(Duration::from_secs(1), client.close()).await;
        tracing::debug!(?closed, "the replica's own session");
        answer.map(|_| ())
    }
}

/// Looks at the disk for as long as its finding is used, and tells what it finds when that changes.
async fn look_again_and_again(mut room: Room, tell: watch::Sender<Option<bool>>) {
    while !tell.is_closed() {
        let was = *tell.borrow();
        let look = move || (room.look(was), room);
        let Ok((short, same)) = tokio::task::spawn_blocking(look).await else {
            return;
        };
        room = same;
        tell.send_if_modified(|found| found.replace(short) != Some(short));
        tokio::time::sleep(limits::ROOM_LOOKED_AT).await;
    }
}

/// Refusals of one wish, one after the other.
#[derive(Debug, Default)]
struct Refusals {
    reason: String,
    pause: Duration,
}

impl Refusals {
    /// Another one for this reason: whether that is news, and how long to wait.
    fn another(&mut self, reason: String) -> (bool, Duration) {
        let news = reason != self.reason;
        self.reason = reason;
        let longer = self.pause * 2;
        self.pause = longer.clamp(limits::OWN_AFFAIRS_AGAIN, limits::OWN_AFFAIRS_AGAIN_MAX);
        (news, self.pause)
    }
}

/// What the replica with this key has to ask for.
fn wish(
    membership: &Membership,
    status: &ReplicaStatus,
    key: &PublicKey,
    (incarnation, short): (Incarnation, bool),
    said: Said,
) -> Option<Command> {
    let place = membership.place(key)?;
    let member = membership.member(place)?;
    if status.epoch != membership.epoch || membership.retired.contains(key) {
        return None;
    }
    if member.incarnation != incarnation {
        return Some(Command::Rejoin { incarnation });
    }
    if said.short != Some(short) {
        return Some(Command::Disk { short });
    }
    if membership.votes(place) {
        let behaviour = BEHAVIOUR_VERSION;
        let news = behaviour > membership.behaviour_version;
        let announces = news && said.announced != Some(membership.epoch);
        return announces.then_some(Command::Announce { behaviour });
    }
    let said = said.ready;
    let checkpoint = status.durable.min(status.stable);
    let again = Sequence(said.0.saturating_add(membership.checkpoint_interval));
    let news = checkpoint > Sequence(0) && (said == Sequence(0) || checkpoint >= again);
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

    /// Voters 0 to 3, learner 4, and 5, who voted once; each with an incarnation of its number.
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

    fn wish_of(number: u8, incarnation: u8, durable: u64, said: u64) -> Option<Command> {
        let status = ReplicaStatus {
            durable: Sequence(durable),
            stable: Sequence(durable),
            ..quiet()
        };
        let incarnation = Incarnation([incarnation; 16]);
        let said = Said {
            ready: Sequence(said),
            announced: None,
            short: Some(false),
        };
        let found = (incarnation, false);
        wish(&membership(), &status, &key(number), found, said)
    }

    #[test]
    fn a_disk_that_fills_is_told_of_once_and_so_is_one_of_which_nothing_is_known() {
        let wish = |number: u8, short, said| {
            let said = Said {
                short: said,
                ..Said::default()
            };
            let found = (Incarnation([number; 16]), short);
            wish(&membership(), &quiet(), &key(number), found, said)
        };
        assert_eq!(wish(1, false, Some(false)), None);
        assert_eq!(wish(1, true, Some(true)), None);
        for (short, said) in [(true, Some(false)), (true, None), (false, Some(true))] {
            assert_eq!(wish(1, short, said), Some(Command::Disk { short }));
        }
        assert_eq!(wish(1, false, None), Some(Command::Disk { short: false }));
        assert_eq!(wish(5, true, None), None, "retired");
    }

    #[test]
    fn whoever_has_lost_its_journal_rejoins_and_whoever_learns_says_what_it_holds() {
        let interval = membership().checkpoint_interval;
        assert_eq!(wish_of(1, 1, 7, 0), None);
        let incarnation = Incarnation([9; 16]);
        assert_eq!(wish_of(1, 9, 7, 0), Some(Command::Rejoin { incarnation }));
        assert_eq!(wish_of(4, 9, 7, 0), Some(Command::Rejoin { incarnation }));
        assert_eq!(wish_of(4, 4, 0, 0), None);
        let checkpoint = Sequence(7);
        assert_eq!(wish_of(4, 4, 7, 0), Some(Command::Ready { checkpoint }));
        assert_eq!(wish_of(4, 4, 7 + interval - 1, 7), None);
        assert!(wish_of(4, 4, 7 + interval, 7).is_some());
        assert_eq!(wish_of(5, 9, 7, 0), None, "retired");
        assert_eq!(wish_of(6, 9, 7, 0), None, "a stranger");
    }

    #[test]
    fn whoever_votes_announces_once_in_an_epoch_what_the_cluster_does_not_do_yet() {
        let mut earlier = membership();
        earlier.behaviour_version = BEHAVIOUR_VERSION - 1;
        let wish = |number, announced| {
            let said = Said {
                announced,
                short: Some(false),
                ..Said::default()
            };
            let found = (Incarnation([number; 16]), false);
            wish(&earlier, &quiet(), &key(number), found, said)
        };
        let behaviour = BEHAVIOUR_VERSION;
        assert_eq!(wish(1, None), Some(Command::Announce { behaviour }));
        assert_eq!(wish(1, Some(Epoch(0))), None, "said");
        assert_eq!(
            wish(1, Some(Epoch(7))),
            Some(Command::Announce { behaviour })
        );
        assert_eq!(wish(4, None), None, "it does not vote");
    }

    #[test]
    fn a_wish_that_is_refused_again_and_again_is_asked_for_less_and_less_and_told_once() {
        let mut refusals = Refusals::default();
        let mut said = 0;
        let mut last = Duration::ZERO;
        for _ in 0..10 {
            let (news, pause) = refusals.another("too soon".to_owned());
            said += usize::from(news);
            assert!(pause >= last && pause <= limits::OWN_AFFAIRS_AGAIN_MAX);
            last = pause;
        }
        assert_eq!((said, last), (1, limits::OWN_AFFAIRS_AGAIN_MAX));
        assert!(refusals.another("nobody answers".to_owned()).0);
    }
}
