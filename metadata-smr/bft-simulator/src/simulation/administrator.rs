//! The administration of the membership: an administrator, and the machines that submit commands
//! themselves.
//!
//! The plan has the wanted changes; they are submitted one after the other, through the sessions of
//! clients whose principals have the right keys, and submitted again when they were refused or had
//! no effect. The memberships of honest nodes show which changes have been made. A machine that has
//! lost its disk submits its own command to rejoin.

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

/// The pause between two checks for a due command.
const PAUSE: u64 = 60 * MILLISECOND;
/// How long a liar may take to become a voter once everything has healed.
const GIVE_UP: u64 = 4 * SECOND;
/// The time limit for an answer.
const PATIENCE: Nanos = Nanos::from_millis(2_500);
/// Calls from here on are administrative.
const CALLS: usize = usize::MAX / 2;
/// The most such calls; session reads use numbers far beyond.
const CALLS_MAX: usize = 1 << 32;

/// Whether a call is administrative.
pub(super) const fn is_administrative(call: usize) -> bool {
    call >= CALLS && call < CALLS + CALLS_MAX
}

/// The incarnation of a machine's first journal.
pub(super) fn first_incarnation(key: &PublicKey) -> Incarnation {
    let mut incarnation = Incarnation::default();
    for (to, from) in incarnation.0.iter_mut().zip(key.0) {
        *to = from;
    }
    incarnation
}

/// The machines for which a client submits commands, in the order of the clients.
fn represented_machines(plan: &Plan) -> Vec<usize> {
    let joining = |change: &Change| match change {
        Change::Swap { into, .. } | Change::Grow { into } => Some(*into),
        Change::Shrink { .. } | Change::Lead { .. } => None,
    };
    let mut machines: Vec<usize> = plan.changes.iter().filter_map(joining).collect();
    let unreliable = plan.unreliable.filter(|it| !machines.contains(it));
    if !plan.changes.is_empty() {
        machines.extend(unreliable);
    }
    machines
}

/// Gives some clients the keys of machines.
pub(super) fn assign_keys(plan: &Plan, signers: &[FakeSigner], principals: &mut [FakeSigner]) {
    for (machine, principal) in represented_machines(plan)
        .into_iter()
        .zip(principals.iter_mut().skip(1))
    {
        if let Some(signer) = signers.get(machine) {
            *principal = signer.clone();
        }
    }
}

/// The membership at genesis; the first client is its administrator.
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

/// The state of the administration.
#[derive(Debug, Default)]
pub(super) struct Administration {
    /// Changes that are not made yet.
    wanted: Vec<Change>,
    /// The call that is not answered yet.
    open: Option<usize>,
    calls: usize,
    watches: bool,
}

impl Administration {
    pub(super) fn of(plan: &Plan) -> Self {
        Self {
            wanted: plan.changes.clone(),
            watches: !plan.changes.is_empty(),
            ..Self::default()
        }
    }
}

impl<W: Workload> Simulation<'_, W> {
    pub(super) fn begin_administration(&mut self) {
        if self.administrator.watches {
            self.agenda.after(600 * MILLISECOND, Happening::Administer);
        }
    }

    /// The changes that are not made yet.
    pub(super) fn unsettled(&self) -> Vec<String> {
        if !self.administrator.watches {
            return Vec::new();
        }
        // A liar need not become a voter.
        let liar = |it: &&Change| !self.brings_a_liar(it);
        let changes = self.administrator.wanted.iter().filter(liar);
        let mut waiting: Vec<String> = changes.map(|it| format!("{it:?} is not made")).collect();
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
            let listed = newest.place(&key).is_some();
            if node.honest() && listed && !settled {
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

    /// Submits the next due command.
    pub(super) fn administer(&mut self) {
        if self.administrator.open.is_none() {
            let newest = self.newest();
            self.remove_made_changes(&newest);
            if let Some((client, command)) = self.next_command(&newest) {
                self.submit_administration(client, &command);
            }
        }
        self.agenda.after(PAUSE, Happening::Administer);
    }

    fn key_of(&self, machine: usize) -> PublicKey {
        let node = self.nodes.get(machine);
        node.map_or_else(PublicKey::default, crate::node::Node::key)
    }

    fn brings_a_liar(&self, change: &Change) -> bool {
        let into = match change {
            Change::Swap { into, .. } | Change::Grow { into } => into,
            Change::Shrink { .. } | Change::Lead { .. } => return false,
        };
        self.nodes.get(*into).is_some_and(|node| !node.honest())
    }

    /// Gives up changes that wait for a liar for too long, and keeps the voter that it was to
    /// replace.
    fn give_up(&mut self) {
        let late = self.agenda.now().since(self.plan.healed) > GIVE_UP;
        let grows = matches!(self.administrator.wanted.first(), Some(Change::Grow { .. }));
        let liar = self
            .administrator
            .wanted
            .first()
            .is_some_and(|it| self.brings_a_liar(it));
        if late && liar {
            let gone = 1 + usize::from(grows);
            let gone = gone.min(self.administrator.wanted.len());
            let dropped: Vec<Change> = self.administrator.wanted.drain(..gone).collect();
            // The machine that the liar was to replace is replaced by the liar's own successor.
            let (stays, absent) = match *dropped.as_slice() {
                [Change::Swap { out, into }] | [Change::Grow { into }, Change::Shrink { out }] => {
                    (out, into)
                }
                _ => return,
            };
            for change in &mut self.administrator.wanted {
                if let Change::Swap { out, .. } | Change::Shrink { out } = change
                    && *out == absent
                {
                    *out = stays;
                }
            }
        }
    }

    /// Removes the changes that have been made.
    fn remove_made_changes(&mut self, newest: &Membership) {
        self.give_up();
        while let Some(change) = self.administrator.wanted.first().copied() {
            let votes = |machine| {
                let key = self.key_of(machine);
                newest.voters.iter().any(|it| it.key == key)
            };
            let done = match change {
                Change::Swap { into, .. } | Change::Grow { into } => votes(into),
                Change::Shrink { out } => !votes(out),
                Change::Lead { machine } => {
                    let first = newest.voters.first();
                    first.is_some_and(|first| first.key == self.key_of(machine))
                }
            };
            if !done {
                return;
            }
            self.counters.count(match change {
                Change::Swap { .. } => "replicas_swapped",
                Change::Grow { .. } => "replicas_added",
                Change::Shrink { .. } => "replicas_removed",
                Change::Lead { .. } => "leaders_chosen",
            });
            self.note(|_| format!("{change:?} is made"));
            self.administrator.wanted.remove(0);
        }
    }

    fn next_command(&self, newest: &Membership) -> Option<(usize, Command)> {
        for (machine, client) in represented_machines(&self.plan).into_iter().zip(1..) {
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
        match *self.administrator.wanted.first()? {
            Change::Swap { out, into } => {
                let (out, key) = (self.key_of(out), self.key_of(into));
                self.bring_in(newest, into, Command::Replace { out, into: key })
            }
            Change::Grow { into } => {
                let key = self.key_of(into);
                self.bring_in(newest, into, Command::Promote { key, up, right })
            }
            Change::Lead { machine } => {
                let key = self.key_of(machine);
                Some((0, Command::Lead { key }))
            }
            Change::Shrink { out } => {
                let key = self.key_of(out);
                Some((0, Command::Remove { key, up, right }))
            }
        }
    }

    /// The next command towards `last`, by which a spare machine becomes a voter.
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
        let place = represented_machines(&self.plan)
            .into_iter()
            .position(|it| it == machine)?;
        let status = node.status()?;
        // Every other time it reports its checkpoint again; then the administrator tries.
        let reports = self.administrator.calls.is_multiple_of(2);
        match status.epoch == newest.epoch && status.durable > Sequence(0) && reports {
            true => {
                let checkpoint = status.durable;
                Some((place + 1, Command::Ready { checkpoint }))
            }
            false => Some((0, last)),
        }
    }

    fn submit_administration(&mut self, client: usize, command: &Command) {
        let now = Monotonic(self.agenda.now().0);
        let Some(honest_client) = self.honest_clients.get_mut(client) else {
            return;
        };
        if honest_client.session_id.is_none() {
            return;
        }
        self.administrator.calls += 1;
        let call = CALLS + self.administrator.calls;
        self.administrator.open = Some(call);
        let generation = honest_client.generation;
        let operation = command.encode();
        let actions =
            honest_client.submit(now, call, OperationKind::Administer, operation, PATIENCE);
        self.note(|_| format!("client {client} asks for {command:?}"));
        self.counters.count("membership_commands");
        self.carry_out_client(client, generation, actions);
    }

    /// A client's process has ended: a command that it had submitted gets no answer.
    pub(super) const fn forget_administration(&mut self) {
        self.administrator.open = None;
    }

    /// A command was answered, or its outcome is unknown.
    pub(super) fn administrator_answered(&mut self, call: usize, answer: Option<&Bytes>) {
        if self.administrator.open == Some(call) {
            self.administrator.open = None;
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
