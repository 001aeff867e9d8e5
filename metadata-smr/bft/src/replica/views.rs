//! Leaving a view and entering the next.
//!
//! ```text
//!   Active(v) ──max(u,r)+1 have left v──► Changing(v′) ──q VIEW-CHANGEs, NEW-VIEW──► Active(v′)
//!       └──────────────────── a valid NEW-VIEW for a later view ────────────────────────▲
//!   Changing(v′) ──no NEW-VIEW in time: SUSPECT(v′)──► Changing(v″)
//! ```
//!
//! A SUSPECT promises nothing and is not recorded: a replica that suspects goes on voting until its
//! VIEW-CHANGE is made. The VIEW-CHANGE promises to vote in no earlier view. It is recorded, with
//! the certificates that it cites, before it is sent; so is the NEW-VIEW.

use super::Replica;
use crate::certificate::CommitCertificate;
use crate::identity::{Monotonic, ReplicaId, Sequence, View};
use crate::journal::Record;
use crate::metrics::Voting;
use crate::ordering::new_view::Choice;
use crate::ordering::slot::Promise;
use crate::ordering::suspicion::Reason;
use crate::ordering::view_change::Departures;
use crate::service::Service;
use crate::state::Store;
use crate::step::{Effects, Token};
use crate::wire::Envelope;
use crate::wire::limits::{SUSPICION_BATCHES, SUSPICION_LASTS};
use crate::wire::message::{Message, NewView, Suspect, ViewChange};
use std::sync::Arc;

/// What a replica does in its view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Phase {
    /// It knows what the view begins with, and votes.
    #[default]
    Active,
    /// It has left the views below and waits for the NEW-VIEW.
    Changing,
}

/// How far the own NEW-VIEW has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Leading {
    #[default]
    Not,
    Signing,
    Persisting(Token),
}

/// The view that a replica is in, and what it knows about neighbouring views.
#[derive(Debug, Default)]
pub(super) struct Views {
    pub(super) view: View,
    pub(super) phase: Phase,
    /// Views up to this one are from before a restart: this replica does not lead them any more.
    pub(super) barred: Option<View>,
    /// The record of this start; nothing is proposed before it is durable.
    pub(super) boot_token: Token,
    /// Whether a proposal is being signed.
    pub(super) proposing: bool,
    /// What the view begins with.
    pub(super) choice: Choice,
    /// The commit certificates that its NEW-VIEW shows.
    pub(super) shown: Vec<CommitCertificate>,
    /// The NEW-VIEW of the current view, or of the last one that was entered.
    pub(super) new_view: Option<Arc<Envelope>>,
    /// The own VIEW-CHANGE for the current view.
    pub(super) own_change: Option<Promise>,
    /// The own SUSPECT for the current view.
    pub(super) own_suspect: Option<Arc<Envelope>>,
    /// The SUSPECT of this view that is being signed, and of those after it up to this one.
    pub(super) suspecting: Option<View>,
    /// Why, when, and after which batch the current view was suspected here.
    pub(super) suspicion: Option<(Reason, Monotonic, Sequence)>,
    /// The own NEW-VIEW, while it is being written.
    pub(super) own_new_view: Option<Arc<Envelope>>,
    leading: Leading,
    pub(super) departures: Departures,
}

impl Views {
    /// Whether votes are given.
    pub(super) fn active(&self) -> bool {
        self.phase == Phase::Active
    }

    /// Whether the view has been suspected here.
    pub(super) const fn suspected(&self) -> bool {
        self.own_suspect.is_some() || self.suspecting.is_some()
    }

    /// Forgets the own messages: a replica that lost its journal sends none about views.
    pub(super) fn forget_own(&mut self) {
        self.phase = Phase::Active;
        self.take_back();
        self.departures = Departures::default();
    }

    fn take_back(&mut self) {
        self.own_change = None;
        self.own_suspect = None;
        self.suspecting = None;
        self.suspicion = None;
    }

    /// Sends nothing more in a view in which others may vote.
    pub(super) fn stop(&mut self, view: View) {
        self.go(view, Phase::Active);
        self.suspecting = None;
        self.forget_own();
    }

    /// Goes to another view.
    pub(super) fn go(&mut self, view: View, phase: Phase) {
        if view > self.view {
            self.take_back();
        }
        self.view = view;
        self.phase = phase;
        self.proposing = false;
        self.choice = Choice::default();
        self.shown = Vec::new();
        self.own_new_view = None;
        self.leading = Leading::Not;
    }
}

impl<S: Service, D: Store> Replica<S, D> {
    /// This view's leader should be replaced.
    pub(super) fn suspect(&mut self, reason: Reason, effects: &mut Effects) {
        if self.voting != Voting::Voting || self.views.suspected() {
            return;
        }
        self.counters.suspicions += 1;
        match reason {
            Reason::Progress => self.counters.suspicions_progress += 1,
            Reason::Unfair => self.counters.suspicions_unfair += 1,
            Reason::Clock => self.counters.suspicions_clock += 1,
            Reason::Silent => self.counters.suspicions_silent += 1,
            Reason::Slow => self.counters.suspicions_slow += 1,
            Reason::TwoFaced | Reason::Abdicated => {}
        }
        self.views.suspecting = Some(self.views.view);
        self.views.suspicion = Some((reason, self.now.monotonic, self.last_executed.sequence));
        self.sign(
            Message::Suspect(Suspect {
                signer: self.config.replica,
            }),
            effects,
        );
    }

    /// The own SUSPECT is signed: of this view, or of later ones too, in a handover.
    pub(super) fn own_suspect(&mut self, envelope: &Arc<Envelope>, effects: &mut Effects) {
        self.views.suspecting = None;
        self.views.own_suspect = Some(Arc::clone(envelope));
        let (me, now) = (self.config.replica, self.now.monotonic);
        let view = self.views.view.max(envelope.view());
        self.views.departures.suspect(me, view, now);
        self.broadcast(envelope, None, effects);
    }

    /// Withdraws the own suspicion if the order has gone on for a while in spite of it.
    pub(super) fn reconsider(&mut self) {
        let now = self.now.monotonic;
        self.views.departures.forget_old(now);
        let Some((reason, at, last)) = self.views.suspicion else {
            return;
        };
        let went_on = self.last_executed.sequence.0 >= last.0.saturating_add(SUSPICION_BATCHES);
        let own = self.views.own_suspect.as_ref().map(|own| own.view());
        let settled = own.is_some() && self.views.active();
        if settled && reason.may_be_withdrawn() && went_on && now.since(at) >= SUSPICION_LASTS {
            self.counters.suspicions_withdrawn += 1;
            self.views.own_suspect = None;
            self.views.suspicion = None;
            self.views.departures.withdraw(self.config.replica);
        } else if settled {
            // It stands: here it counts on.
            let (me, view) = (
                self.config.replica,
                self.views.view.max(own.unwrap_or_default()),
            );
            self.views.departures.suspect(me, view, now);
        }
    }

    /// A replica suspects a view.
    pub(super) fn suspected(
        &mut self,
        signer: ReplicaId,
        envelope: &Envelope,
        effects: &mut Effects,
    ) {
        let view = envelope.view();
        let now = self.now.monotonic;
        self.views.departures.suspect(signer, view, now);
        let resigns = signer == self.leader() && self.views.active() && view >= self.views.view;
        if resigns && self.agrees_to_hand_over(view) {
            self.suspect_up_to(view, effects);
        } else if resigns {
            // A leader that resigns is not worth waiting for.
            self.suspect(Reason::Abdicated, effects);
        }
    }

    /// Leaves the view if enough others have, and begins the next one if this replica leads it.
    pub(super) fn advance_views(&mut self, effects: &mut Effects) {
        if self.voting != Voting::Voting {
            return;
        }
        let enough = usize::from(self.context.model.survival());
        // While this replica signs that it leaves several views at once, an old suspicion of the
        // first of them does not lead it into the second.
        let least = self.views.suspecting.unwrap_or(self.views.view);
        if let Some(left) = self.views.departures.left_by(enough)
            && left >= least.max(self.views.view)
        {
            self.change_view(left.next(), effects);
        }
        if let Some(own) = &self.views.own_change
            && own.message.view() == self.views.view
            && self.journal_writes.durable(own.token)
        {
            let own = Arc::clone(&own.message);
            self.note_change(self.config.replica, &own, effects);
        }
        self.make_new_view(effects);
        if let Leading::Persisting(token) = self.views.leading
            && self.journal_writes.durable(token)
            && let Some(own) = self.views.own_new_view.take()
        {
            self.views.leading = Leading::Not;
            self.counters.new_views_led += 1;
            self.enter_view(&own, effects);
        }
    }

    fn change_view(&mut self, view: View, effects: &mut Effects) {
        self.counters.view_changes += 1;
        self.note_loss(view);
        self.views.go(view, Phase::Changing);
        self.leave_view();
        self.timers.progressed(effects);
        let change = match self.signs_votes() {
            true => ViewChange {
                signer: self.config.replica,
                base: self.recent.iter().cloned().collect(),
                prepared: self.window.certificates(),
                claims: None,
            },
            false => self.claims(),
        };
        self.sign(Message::ViewChange(change), effects);
    }

    pub(super) fn own_view_change(&mut self, envelope: &Arc<Envelope>, effects: &mut Effects) {
        if self.views.active() || self.views.own_change.is_some() {
            return;
        }
        let record = Record::ViewChange {
            frame: Arc::clone(envelope),
        };
        let token = self.journal_writes.persist(&record, effects);
        self.views.own_change = Some(Promise {
            message: Arc::clone(envelope),
            token,
        });
        self.broadcast(envelope, Some(token), effects);
    }

    /// With q VIEW-CHANGEs, the own one among them, a leader announces what its view begins with.
    fn make_new_view(&mut self, effects: &mut Effects) {
        let view = self.views.view;
        let mine = !self.views.active()
            && self.leader() == self.config.replica
            && self.views.barred.is_none_or(|barred| view > barred)
            && self.views.leading == Leading::Not;
        if !mine {
            return;
        }
        let quorum = usize::from(self.context.quorum);
        let me = self.config.replica;
        let changes = &self.views.departures;
        let own = changes.changes_for(view).find(|(signer, _)| *signer == me);
        let others = changes
            .changes_for(view)
            .filter(|(signer, _)| *signer != me);
        let Some(own) = own else {
            return;
        };
        let enough = match self.signs_votes() {
            true => quorum.saturating_sub(1),
            // The more claims, the more is known.
            false => usize::MAX,
        };
        let mut chosen: Vec<_> = others.take(enough).collect();
        chosen.push(own);
        if chosen.len() < quorum {
            return;
        }
        chosen.sort_by_key(|(signer, _)| *signer);
        let view_changes: Vec<_> = chosen
            .into_iter()
            .map(|(_, change)| Arc::clone(change))
            .collect();
        if self.begins_with(&view_changes, view).is_none() {
            return;
        }
        self.views.leading = Leading::Signing;
        self.sign(Message::NewView(NewView { view_changes }), effects);
    }

    pub(super) fn own_new_view(&mut self, envelope: &Arc<Envelope>, effects: &mut Effects) {
        if self.views.leading != Leading::Signing {
            return;
        }
        let record = Record::NewView {
            frame: Arc::clone(envelope),
        };
        let token = self.journal_writes.persist(&record, effects);
        self.views.leading = Leading::Persisting(token);
        self.views.own_new_view = Some(Arc::clone(envelope));
        self.broadcast(envelope, Some(token), effects);
    }

    /// A leader announces what its view begins with.
    pub(super) fn new_view(&mut self, envelope: &Arc<Envelope>, effects: &mut Effects) {
        let view = envelope.view();
        let known = view < self.views.view || (view == self.views.view && self.views.active());
        if known || view == View(0) {
            return;
        }
        if let Message::NewView(new) = envelope.message() {
            for change in &new.view_changes {
                if let Message::ViewChange(changed) = change.message() {
                    self.note_change(changed.signer, change, effects);
                }
            }
            if self.begins_with(&new.view_changes, view).is_none() {
                self.counters.new_views_refused += 1;
                return;
            }
        }
        self.journal_writes.persist(
            &Record::NewView {
                frame: Arc::clone(envelope),
            },
            effects,
        );
        self.enter_view(envelope, effects);
    }

    /// Enters the view of a NEW-VIEW that is on its way to the journal.
    fn enter_view(&mut self, envelope: &Arc<Envelope>, effects: &mut Effects) {
        self.begin_view(envelope);
        self.counters.views_entered += 1;
        self.timers.progressed(effects);
        if let Some(base) = self.views.choice.base().cloned()
            && let Some(signer) = base.votes.first()
        {
            self.behind(signer.signer, base.sequence);
        }
        if self.leader() == self.config.replica
            && self
                .views
                .barred
                .is_some_and(|barred| self.views.view <= barred)
        {
            self.suspect(Reason::Abdicated, effects);
        }
        self.advance_proposals(effects);
        self.echo_carried(effects);
    }

    /// Forgets what belongs to the view that is over.
    pub(super) fn leave_view(&mut self) {
        self.window.leave_view();
        self.pool.clear_forwarded();
        self.pool.release_proposed();
        self.throughput.view_left();
        self.forwarded.clear();
        self.inquiry.bodies_of = None;
        self.suspicions.new_leader();
    }

    /// Notes that the view of this NEW-VIEW has begun.
    pub(super) fn begin_view(&mut self, envelope: &Arc<Envelope>) {
        if envelope.view() > self.views.view {
            self.note_loss(envelope.view());
        }
        self.views.go(envelope.view(), Phase::Active);
        self.leave_view();
        if let Message::NewView(new) = envelope.message() {
            self.views.shown = self.shown_by(&new.view_changes);
            let choice = self.begins_with(&new.view_changes, envelope.view());
            self.views.choice = choice.unwrap_or_default();
            self.counters.chains_carried += u64::from(self.views.choice.length() > 1);
        }
        self.views.new_view = Some(Arc::clone(envelope));
    }
}
