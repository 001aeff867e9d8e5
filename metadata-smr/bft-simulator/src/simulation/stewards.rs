//! Those who see to the membership: an administrator, and the machines that speak for themselves.
//!
//! The plan says which changes are wanted; they are asked for one after the other, through the
//! sessions of clients whose principals have the right keys, and asked for again when they were
//! refused or nothing came of them. What has been reached is read off the memberships that honest
//! nodes are in. A machine that has lost its disk asks to rejoin by itself.

use super::{Happening, Simulation};
use crate::agenda::{MILLISECOND, SECOND};
use crate::authentication::FakeSigner;
use crate::plan::{Change, Plan};
use crate::workload::Workload;
use bytes::Bytes;
use quorumfs_bft::authentication::Signer as _;
use quorumfs_bft::client::OperationKind;
use quorumfs_bft::identity::{Incarnation, Monotonic, Nanos, PublicKey, Sequence};
use quorumfs_bft::membership::{Answer, Command, Member, Membership};
use quorumfs_bft::metrics::Voting;

/// How often somebody looks what is to be done.
const PAUSE: u64 = 60 * MILLISECOND;
/// How long a liar that is to vote is waited for once everything has healed.
const GIVE_UP: u64 = 4 * SECOND;
/// How long an answer is waited for.
const PATIENCE: Nanos = Nanos::from_millis(2_500);
/// Calls from here on are the stewards'.
const CALLS: usize = usize::MAX / 2;
/// So many at the most, far from those that session reads use.
const CALLS_MAX: usize = 1 << 32;

/// Whether a call is one of the stewards'.
pub(super) const fn asked(call: usize) -> bool {
    call >= CALLS && call < CALLS + CALLS_MAX
}

/// What a machine's first journal begins with.
pub(super) fn first_incarnation(key: &PublicKey) -> Incarnation {
    let mut incarnation = Incarnation::default();
    for (to, from) in incarnation.0.iter_mut().zip(key.0) {
        *to = from;
    }
    incarnation
}

/// The machines that have a client to speak for them, in the order of the clients.
fn speakers(plan: &Plan) -> Vec<usize> {
    let comes = |change: &Change| match change {
        Change::Swap { into, .. } | Change::Grow { into } => Some(*into),
        Change::Shrink { .. } => None,
    };
    let mut speakers: Vec<usize> = plan.changes.iter().filter_map(comes).collect();
    let unreliable = plan.unreliable.filter(|it| !speakers.contains(it));
    if !plan.changes.is_empty() {
        speakers.extend(unreliable);
    }
    speakers
}

/// Gives some clients the keys of machines.
pub(super) fn speak_for(plan: &Plan, signers: &[FakeSigner], principals: &mut [FakeSigner]) {
    for (machine, principal) in speakers(plan)
        .into_iter()
        .zip(principals.iter_mut().skip(1))
    {
        if let Some(signer) = signers.get(machine) {
            *principal = signer.clone();
        }
    }
}

/// The membership that everybody begins with; the first client is its administrator.
pub(super) fn genesis(
    plan: &Plan,
    signers: &[FakeSigner],
    principals: &[FakeSigner],
) -> Membership {
    let member = |signer: &FakeSigner| {
        let key = signer.public_key();
        Member {
            key,
            incarnation: first_incarnation(&key),
            address: Bytes::new(),
            since: Sequence(0),
        }
    };
    let voters = signers.iter().take(plan.fault_model.replicas().into());
    let administrators = principals.iter().take(1).map(FakeSigner::public_key);
    Membership {
        checkpoint_interval: plan.checkpoint_interval,
        ..Membership::genesis(
            plan.fault_model,
            voters.map(member).collect(),
            administrators.collect(),
        )
    }
}

/// What is being done about the membership.
#[derive(Debug, Default)]
pub(super) struct Stewards {
    /// Changes that are not made yet.
    wanted: Vec<Change>,
    /// The call that is not answered yet.
    open: Option<usize>,
    calls: usize,
    watches: bool,
}

impl Stewards {
    pub(super) fn of(plan: &Plan) -> Self {
        Self {
            wanted: plan.changes.clone(),
            watches: !plan.changes.is_empty(),
            ..Self::default()
        }
    }
}

impl<W: Workload> Simulation<'_, W> {
    pub(super) fn begin_stewards(&mut self) {
        if self.stewards.watches {
            self.agenda.after(600 * MILLISECOND, Happening::Steward);
        }
    }

    /// What has not been reached.
    pub(super) fn unsettled(&self) -> Vec<String> {
        if !self.stewards.watches {
            return Vec::new();
        }
        // A liar need not get as far as voting.
        let liar = |it: &&Change| !self.brings_a_liar(it);
        let changes = self.stewards.wanted.iter().filter(liar);
        let mut waiting: Vec<String> = changes.map(|it| format!("{it:?} is not done")).collect();
        let newest = self.newest();
        for (index, node) in self.nodes.iter().enumerate() {
            let key = node.key();
            let voter = newest.voters.iter().any(|it| it.key == key);
            let voting = node.status().map(|status| (status.voting, status.epoch));
            let settled = match voting {
                Some((Voting::Voting, epoch)) => voter && epoch == newest.epoch,
                Some((Voting::Observing, epoch)) => !voter && epoch == newest.epoch,
                _ => !voter && newest.place(&key).is_none(),
            };
            let told = newest.place(&key).is_some();
            if node.honest() && told && !settled {
                waiting.push(format!("node {index} is {voting:?} in {:?}", newest.epoch));
            }
        }
        waiting
    }

    /// The membership of the newest epoch that an honest node is in.
    fn newest(&self) -> Membership {
        let honest = self.nodes.iter().filter(|it| it.honest() && it.running());
        let newest = honest
            .map(|node| &node.membership)
            .max_by_key(|it| it.epoch);
        newest.unwrap_or(&self.genesis).clone()
    }

    /// Looks what is to be done, and asks for it.
    pub(super) fn steward(&mut self) {
        if self.stewards.open.is_none() {
            let newest = self.newest();
            self.tick_off(&newest);
            if let Some((client, command)) = self.next_command(&newest) {
                self.ask_steward(client, &command);
            }
        }
        self.agenda.after(PAUSE, Happening::Steward);
    }

    fn key_of(&self, machine: usize) -> PublicKey {
        let node = self.nodes.get(machine);
        node.map_or_else(PublicKey::default, crate::node::Node::key)
    }

    fn brings_a_liar(&self, change: &Change) -> bool {
        let into = match change {
            Change::Swap { into, .. } | Change::Grow { into } => into,
            Change::Shrink { .. } => return false,
        };
        self.nodes.get(*into).is_some_and(|node| !node.honest())
    }

    /// Who has not let a liar in by now does without it, and keeps whoever was to make room for it.
    fn give_up(&mut self) {
        let late = self.agenda.now().since(self.plan.healed) > GIVE_UP;
        let grows = matches!(self.stewards.wanted.first(), Some(Change::Grow { .. }));
        let liar = self
            .stewards
            .wanted
            .first()
            .is_some_and(|it| self.brings_a_liar(it));
        if late && liar {
            let gone = 1 + usize::from(grows);
            let gone = gone.min(self.stewards.wanted.len());
            let dropped: Vec<Change> = self.stewards.wanted.drain(..gone).collect();
            // Whoever was to be replaced by it is replaced by whoever was to replace it.
            let (stays, absent) = match *dropped.as_slice() {
                [Change::Swap { out, into }] | [Change::Grow { into }, Change::Shrink { out }] => {
                    (out, into)
                }
                _ => return,
            };
            for change in &mut self.stewards.wanted {
                if let Change::Swap { out, .. } | Change::Shrink { out } = change
                    && *out == absent
                {
                    *out = stays;
                }
            }
        }
    }

    /// What has been reached is wanted no more.
    fn tick_off(&mut self, newest: &Membership) {
        self.give_up();
        while let Some(change) = self.stewards.wanted.first().copied() {
            let votes = |machine| {
                let key = self.key_of(machine);
                newest.voters.iter().any(|it| it.key == key)
            };
            let done = match change {
                Change::Swap { into, .. } | Change::Grow { into } => votes(into),
                Change::Shrink { out } => !votes(out),
            };
            if !done {
                return;
            }
            self.counters.count(match change {
                Change::Swap { .. } => "replicas_swapped",
                Change::Grow { .. } => "replicas_added",
                Change::Shrink { .. } => "replicas_removed",
            });
            self.note(|_| format!("{change:?} is done"));
            self.stewards.wanted.remove(0);
        }
    }

    fn next_command(&self, newest: &Membership) -> Option<(usize, Command)> {
        for (machine, client) in speakers(&self.plan).into_iter().zip(1..) {
            let node = self.nodes.get(machine)?;
            let place = newest.place(&node.key());
            let member = place.and_then(|place| newest.member(place));
            let retired = newest.retired.contains(&node.key());
            let incarnation = node.incarnation();
            if let Some(member) = member
                && node.running()
                && node.remembers()
                && !retired
                && member.incarnation != incarnation
            {
                return Some((client, Command::Rejoin { incarnation }));
            }
        }
        let model = newest.model;
        let (up, right) = (model.up(), model.right());
        match *self.stewards.wanted.first()? {
            Change::Swap { out, into } => {
                let (out, key) = (self.key_of(out), self.key_of(into));
                self.bring_in(newest, into, Command::Replace { out, into: key })
            }
            Change::Grow { into } => {
                let key = self.key_of(into);
                self.bring_in(newest, into, Command::Promote { key, up, right })
            }
            Change::Shrink { out } => {
                let key = self.key_of(out);
                Some((0, Command::Remove { key, up, right }))
            }
        }
    }

    /// The next step towards `last`, by which a spare machine becomes a voter.
    fn bring_in(
        &self,
        newest: &Membership,
        machine: usize,
        last: Command,
    ) -> Option<(usize, Command)> {
        let node = self.nodes.get(machine)?;
        let key = node.key();
        if newest.place(&key).is_none() {
            let incarnation = node.incarnation();
            let address = Bytes::new();
            return Some((
                0,
                Command::Admit {
                    key,
                    incarnation,
                    address,
                },
            ));
        }
        let place = speakers(&self.plan)
            .into_iter()
            .position(|it| it == machine)?;
        let status = node.status()?;
        // Every other time it says again what it holds; then somebody tries.
        let speaks = self.stewards.calls.is_multiple_of(2);
        match status.epoch == newest.epoch && status.durable > Sequence(0) && speaks {
            true => {
                let checkpoint = status.durable;
                Some((place + 1, Command::Ready { checkpoint }))
            }
            false => Some((0, last)),
        }
    }

    fn ask_steward(&mut self, client: usize, command: &Command) {
        let now = Monotonic(self.agenda.now().0);
        let Some(customer) = self.customers.get_mut(client) else {
            return;
        };
        if customer.session_id.is_none() {
            return;
        }
        self.stewards.calls += 1;
        let call = CALLS + self.stewards.calls;
        self.stewards.open = Some(call);
        let generation = customer.generation;
        let operation = command.encode();
        let wishes = customer.submit(now, call, OperationKind::Administer, operation, PATIENCE);
        self.note(|_| format!("client {client} asks for {command:?}"));
        self.counters.count("membership_commands");
        self.grant(client, generation, wishes);
    }

    /// A command was answered, or nobody knows what became of it.
    pub(super) fn steward_hears(&mut self, call: usize, answer: Option<&Bytes>) {
        if self.stewards.open == Some(call) {
            self.stewards.open = None;
        }
        let answer = answer.map(Answer::decode);
        self.note(|_| format!("command {call} is answered: {answer:?}"));
        self.counters.count(match answer {
            Some(Ok(Answer::Refused { .. })) => "membership_refused",
            Some(Ok(Answer::Begins(_))) => "membership_changed",
            Some(Ok(_)) => "membership_noted",
            Some(Err(_)) | None => "membership_unanswered",
        });
    }
}
