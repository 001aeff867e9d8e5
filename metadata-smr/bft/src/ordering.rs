//! The order: which batch comes next, and who says so.
//!
//! ```text
//!    proposer ──PROPOSAL──► window (one open sequence) ──PREPARE × q──► COMMIT × q ──► executed
//!                              │ nothing in time, unfair, trailing, two-faced
//!                              ▼
//!   suspicion ──SUSPECT × max(u,r)+1──► view_change ──VIEW-CHANGE × q──► new_view ──► proposer
//!   status: where everybody stands; what is missing is sent again. Nothing else relies on
//!   delivery.
//! ```
//!
//! * [`window`]: the one sequence that is open, and what is known about it.
//! * [`vote`]: counting votes.  * [`proposer`]: making batches.
//! * [`suspicion`]: when a leader should go.  * [`view_change`]: who has left which view.
//! * [`new_view`]: what a view begins with.  * [`status`]: what a peer lacks, and how often it is
//!   sent.
//!
//! # Why it is right
//!
//! With q = ⌈(n + r + 1)/2⌉ any two quorums share a correct replica, and such a one PREPAREs one
//! batch in a view and a sequence. So at most one batch is prepared there, and a COMMIT is given
//! only for a prepared batch whose certificate is durable. If a batch commits in view v, then q
//! replicas hold its certificate; the q VIEW-CHANGEs of any later view include a correct one of
//! them, with the certificate or with a base at or beyond that sequence; and by induction no view
//! in between has prepared anything else there. The window of one makes this short: nobody PREPAREs
//! s before s − 1 has committed at its own place, so one base and one prepared certificate say all
//! that a replica knows.
//!
//! **With r = 0** nobody lies, so a proposal is the only one of its view and sequence, and there is
//! no PREPARE phase: proposal, bodies and the own COMMIT are made durable in one record, and then
//! the COMMIT leaves. What a view change uses in place of a prepared certificate is the proposal
//! itself: a COMMIT was given by q replicas that hold it durably, one of which is among any q
//! VIEW-CHANGEs, and the one of the highest view wins (as a ballot in Paxos). A leader that sends
//! its proposal before it is durable never proposes again in a view it was in before a restart.
//!
//! Source: M. Castro and B. Liskov, "Practical Byzantine Fault Tolerance" (1999), §4; A. Clement,
//! "UpRight Fault Tolerance" (2010), chapter 6; B. Oki and B. Liskov, "Viewstamped Replication"
//! (1988), for r = 0.

pub mod new_view;
pub mod proposer;
pub mod status;
pub mod suspicion;
pub mod view_change;
pub mod vote;
pub mod window;
