//! From one membership to the next: a pure function of the row, the announcements and a command.

use super::command::{Command, CommandRefusal};
use super::{Member, Membership};
use crate::fault_model::{FaultModel, REPLICAS_MAX};
use crate::identity::{Epoch, PublicKey, Sequence};
use crate::wire::limits::{OTHERS_MAX, READY_INTERVALS, RETIRED_MAX};
use borsh::{BorshDeserialize, BorshSerialize};

/// A replica's announcements about itself in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, BorshSerialize, BorshDeserialize)]
pub struct Announcement {
    /// The checkpoint that it reported to hold; 0 if it reported none.
    pub ready: Sequence,
    /// The highest version of the behaviour that it reported to know; every replica knows 1.
    pub behaviour: u32,
}

/// The effect of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The membership of the next epoch.
    Next(Box<Membership>),
    /// An announcement of the caller that has to be stored.
    Noted(Announcement),
    /// A report of the calling replica about its disk that has to be stored.
    Disk {
        /// Whether its disk is nearly full.
        short: bool,
    },
    /// No effect; the row is the answer.
    Shown,
}

/// Applies `command`, which `principal` requests in the batch at `sequence`. The membership decides
/// whether the principal is an administrator, unless the service `decided` it.
///
/// # Errors
/// If it is refused.
pub fn apply(
    now: &Membership,
    command: &Command,
    (principal, decided): (&PublicKey, Option<bool>),
    sequence: Sequence,
    announced: &dyn Fn(&PublicKey) -> Announcement,
) -> Result<Applied, CommandRefusal> {
    let own = match command {
        Command::Show => return Ok(Applied::Shown),
        Command::Rejoin { .. }
        | Command::Ready { .. }
        | Command::Announce { .. }
        | Command::Disk { .. } => true,
        _ => false,
    };
    if own && now.place(principal).is_none() {
        return Err(CommandRefusal::NotReplica);
    }
    let administers = || decided.unwrap_or_else(|| now.administrators.contains(principal));
    if !own && !administers() {
        return Err(CommandRefusal::NotAdministrator);
    }
    match *command {
        Command::Ready { checkpoint } => {
            let before = announced(principal);
            return Ok(Applied::Noted(Announcement {
                ready: before.ready.max(checkpoint.min(sequence)),
                ..before
            }));
        }
        Command::Announce { behaviour } => {
            let before = announced(principal);
            return Ok(Applied::Noted(Announcement {
                behaviour: before.behaviour.max(behaviour),
                ..before
            }));
        }
        Command::Disk { short } => return Ok(Applied::Disk { short }),
        _ => {}
    }
    if now.from == sequence {
        return Err(CommandRefusal::UnderWay);
    }
    let mut next = now.clone();
    next.epoch = Epoch(now.epoch.0.saturating_add(1));
    next.from = sequence;
    match command {
        Command::Admit {
            key,
            incarnation,
            address,
        } => next.admit(Member {
            key: *key,
            incarnation: *incarnation,
            address: address.clone(),
            since: sequence,
        })?,
        Command::Dismiss { key } => {
            let place = next.others.iter().position(|it| it.key == *key);
            next.others.remove(place.ok_or(CommandRefusal::NoLearner)?);
        }
        Command::Promote { key, up, right } => {
            let learner = next.learner(key, sequence, announced)?;
            next.voters.push(learner);
            next.remodel(*up, *right)?;
        }
        Command::Replace { out, into } => {
            let learner = next.learner(into, sequence, announced)?;
            let place = next.voters.iter().position(|it| it.key == *out);
            let place = place.and_then(|place| next.voters.get_mut(place));
            let gone = std::mem::replace(place.ok_or(CommandRefusal::NoVoter)?, learner);
            next.retire(gone)?;
        }
        Command::Remove { key, up, right } => {
            let place = next.voters.iter().position(|it| it.key == *key);
            let gone = next.voters.remove(place.ok_or(CommandRefusal::NoVoter)?);
            next.retire(gone)?;
            next.remodel(*up, *right)?;
        }
        Command::Behave { version } => {
            if *version <= next.behaviour_version {
                return Err(CommandRefusal::Behind(next.behaviour_version));
            }
            let mut voters = next.voters.iter();
            if !voters.all(|voter| announced(&voter.key).behaviour >= *version) {
                return Err(CommandRefusal::Unannounced);
            }
            next.behaviour_version = *version;
        }
        Command::Entrust { administrators } => {
            if administrators.is_empty() {
                return Err(CommandRefusal::NoAdministrator);
            }
            next.administrators.clone_from(administrators);
        }
        Command::Move { key, address } => {
            let mut members = next.voters.iter_mut().chain(&mut next.others);
            let member = members.find(|it| it.key == *key);
            let member = member.ok_or(CommandRefusal::NoMember)?;
            if member.address == *address {
                return Err(CommandRefusal::SameAddress);
            }
            member.address = address.clone();
        }
        Command::Lead { key } => {
            // Of the first one too: the epoch begins in a view that it leads.
            let place = next.voters.iter().position(|it| it.key == *key);
            let first = next.voters.remove(place.ok_or(CommandRefusal::NoVoter)?);
            next.voters.insert(0, first);
        }
        Command::Rejoin { incarnation } => {
            let interval = next.checkpoint_interval;
            let mut members = next.voters.iter_mut().chain(&mut next.others);
            let member = members.find(|it| it.key == *principal);
            let member = member.ok_or(CommandRefusal::NotReplica)?;
            if member.incarnation == *incarnation {
                return Err(CommandRefusal::Known);
            }
            let again = Sequence(member.since.0.saturating_add(interval));
            if member.since > Sequence(0) && sequence < again {
                return Err(CommandRefusal::TooSoon(again));
            }
            member.incarnation = *incarnation;
            member.since = sequence;
        }
        Command::Ready { .. } | Command::Announce { .. } | Command::Disk { .. } | Command::Show => {
            return Ok(Applied::Shown);
        }
    }
    Ok(Applied::Next(Box::new(next)))
}

impl Membership {
    fn admit(&mut self, member: Member) -> Result<(), CommandRefusal> {
        if self.place(&member.key).is_some() {
            return Err(CommandRefusal::Known);
        }
        if self.retired.contains(&member.key) {
            return Err(CommandRefusal::Retired);
        }
        self.make_room()?;
        self.others.push(member);
        Ok(())
    }

    /// Removes the member that was removed longest ago, if there is no space.
    fn make_room(&mut self) -> Result<(), CommandRefusal> {
        if self.others.len() < OTHERS_MAX && self.peers() < usize::from(REPLICAS_MAX) {
            return Ok(());
        }
        let retired = |member: &Member| self.retired.contains(&member.key);
        let oldest = self.others.iter().position(retired);
        self.others
            .remove(oldest.ok_or(CommandRefusal::Full("learners"))?);
        Ok(())
    }

    fn learner(
        &mut self,
        key: &PublicKey,
        sequence: Sequence,
        announced: &dyn Fn(&PublicKey) -> Announcement,
    ) -> Result<Member, CommandRefusal> {
        let place = self.others.iter().position(|member| member.key == *key);
        let place = place.filter(|_| !self.retired.contains(key));
        let place = place.ok_or(CommandRefusal::NoLearner)?;
        let recent = self.checkpoint_interval.saturating_mul(READY_INTERVALS);
        let needed = Sequence(sequence.0.saturating_sub(recent));
        let ready = announced(key).ready;
        if ready == Sequence(0) || ready < needed {
            return Err(CommandRefusal::NotReady(needed));
        }
        Ok(self.others.remove(place))
    }

    fn retire(&mut self, member: Member) -> Result<(), CommandRefusal> {
        if self.retired.len() >= RETIRED_MAX {
            return Err(CommandRefusal::Full("retired keys"));
        }
        self.make_room()?;
        self.retired.push(member.key);
        self.others.push(member);
        Ok(())
    }

    fn remodel(&mut self, up: u16, right: u16) -> Result<(), CommandRefusal> {
        let voters = u16::try_from(self.voters.len()).unwrap_or(u16::MAX);
        self.model = FaultModel::new(up, right, voters).map_err(CommandRefusal::Model)?;
        Ok(())
    }
}
