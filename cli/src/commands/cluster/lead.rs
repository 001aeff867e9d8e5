//! `quorumfs cluster lead`: the replica that is first in the order of leading, and leads at once.
//!
//! A new epoch begins in its first view, which the first voter leads. So this also ends the time in
//! which another one leads after a failure. A replica that cannot lead now would make everyone wait
//! until the next one takes over: it is refused, unless that is what was asked for.

use super::{Cluster, LIST, Object, find};
use crate::arguments::ClusterLeadArguments;
use crate::commands::members::{self, Fitness, Role};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use quorumfs_bft::membership::{Command, Membership};

const RENUMBERED: &str = "It is replica 0 now, and those before it have the next numbers.";

impl Cluster<'_> {
    pub(super) async fn lead(
        &self,
        now: &Membership,
        arguments: &ClusterLeadArguments,
    ) -> CommandResult<()> {
        let named = &arguments.replica;
        let member = find(now, named)?;
        let (key, object) = (member.key, Object::replica(&member.key));
        if Role::of(now, member) != Role::Voter {
            let message = format!("replica {named} does not vote");
            return Err(Failure::new(Exit::Usage, message).hint(LIST));
        }
        let is_first = now.voters.first().is_some_and(|first| first.key == key);
        let standing = self.configured.standing().await?;
        let membership = standing.membership.clone();
        let replicas = members::of(self.configured, standing);
        let leader = members::leader(&replicas, &membership);
        let leader = leader.and_then(|number| usize::try_from(number).ok());
        let leader = leader.and_then(|number| membership.voters.get(number));
        if is_first && leader.is_some_and(|leader| leader.key == key) {
            return self.unchanged(object, "It is the first to lead, and leads now.");
        }
        let unfit = match members::fitness(&replicas, &membership, &key) {
            Fitness::Well => None,
            Fitness::Silent => Some("does not answer".to_owned()),
            Fitness::NotVoting => Some("does not vote at present".to_owned()),
            Fitness::Behind(batches) => Some(format!("is {batches} batches behind the others")),
        };
        if let Some(unfit) = unfit.filter(|_| !arguments.force) {
            let message = format!("replica {named} {unfit}: everyone would wait for it");
            return Err(Failure::new(Exit::Degraded, message).hint(
                "`quorumfs cluster status` shows how it is; with --force it is put first all the \
                 same",
            ));
        }
        self.ask("leads", object, Command::Lead { key }).await?;
        match is_first {
            true => Ok(()),
            false => self.output.print_text(RENUMBERED),
        }
    }
}
