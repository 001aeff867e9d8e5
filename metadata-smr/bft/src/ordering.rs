//! The order: which batch comes next, and which replicas decide it.
//!
//! ```text
//!    proposer ──PROPOSAL──► window (open sequences) ──PREPARE × q──► COMMIT × q ──► executed
//!                              │ nothing in time, unfair, trailing, two-faced
//!                              ▼
//!   suspicion ──SUSPECT × max(u,r)+1──► view_change ──VIEW-CHANGE × q──► new_view ──► proposer
//!   status: how far each replica is; missing messages are sent again. Nothing else relies on
//!   delivery.
//! ```
//!
//! * [`window`]: the sequences that are open.  * [`slot`]: the state of one of them.
//! * [`vote`]: counting votes.  * [`proposer`]: making batches.
//! * [`suspicion`]: when a leader should be replaced.  * [`view_change`]: which replica has left
//!   which view.
//! * [`new_view`]: what a view begins with.  * [`claims`]: the same where votes are not signed.
//! * [`status`]: what a peer lacks, and how often it is sent.
//!
//! # Why it is right
//!
//! Several sequences are open at a time, and a batch names the one that it follows upon, so a
//! leader's proposals are a chain. The rules:
//!
//! 1. A correct replica PREPAREs one batch in a view and a sequence, and only one that follows upon
//!    the proposal that it took for the sequence before in the same view, or upon what it executed
//!    there. (d, s, v) is *prepared* if q replicas, the leader among them, have PREPAREd it.
//! 2. It COMMITs (d, s, v) only when it holds, durably, certificates that d is prepared in v and
//!    that every batch that d follows upon and that it has not executed is prepared in v too.
//! 3. Its VIEW-CHANGE, after which it votes in no earlier view, shows how far it has executed and,
//!    of each open sequence, its certificate of the highest view.
//! 4. A view begins with what [`new_view::Choice`] makes of q VIEW-CHANGEs: the highest base, then
//!    of each next sequence the certificate of the highest view, as long as each follows upon the
//!    one before. A correct replica takes nothing else there.
//!
//! Any two quorums, with q = ⌈(n + r + 1)/2⌉, share a correct replica. So by rule 1 at most one
//! batch is prepared at a sequence in a view, and the batches prepared in one view are a chain: a
//! correct replica in both quorums prepared both links, and took one upon the other.
//!
//! **Claim.** If q replicas have COMMITted (d, s, v), then every correct replica that takes a
//! proposal for s in a view w > v takes d, and the same holds of each batch that d follows upon, at
//! its sequence. (So no two batches commit at one sequence.)
//!
//! Suppose not, and look at the first time that a correct replica takes something else, in view w
//! and at a sequence s′ ≤ s. Of the q VIEW-CHANGEs that w begins with one is from a correct p that
//! COMMITted (d, s, v), and did so earlier, by rule 3. Let b be the highest base among them.
//!
//! * If b ≥ s′, nothing is proposed at s′ in w. And b is on d's chain: its q COMMITs are of a view
//!   u. For u = v the chain of v is the only one prepared there; for u > v the signers of b's
//!   COMMITs took proposals before the time that we look at, which are on d's chain; for u < v the
//!   claim holds of b's batch, with b for s, so d itself follows upon it.
//! * If b < s′, then p has not executed b + 1, …, s′ (it would have shown it), so by rule 2 it held
//!   certificates of view v for all of them. It shows these or ones of later views. At each of
//!   these sequences take the certificate of the highest view, shown by any replica: it is of v or
//!   later. Of v there is only that for d's chain; one of a later view has the vote of a correct
//!   replica, given before the time that we look at, hence it is for d's chain too. So at each the
//!   walk finds the batch of d's chain, which follows upon the one before and at first upon b's: it
//!   neither stops nor leaves the chain before s′. What w begins with at s′ is of d's chain. ∎
//!
//! Where the walk stops, therefore, at a sequence without a certificate or with one that follows
//! upon something else, nothing there or beyond can have been committed, and the leader is free.
//! There is no need for empty batches to fill gaps.
//!
//! At first only the replicas that receive the q COMMITs know of them, and these may be silent. A
//! base says only that *its* batch is committed. A replica that lacks the COMMITs for earlier
//! batches has the batches themselves, if it committed with them. So a VIEW-CHANGE shows the
//! certificates of the last batches, a window of them, and with those the replica can execute.
//!
//! **With r = 0** no replica lies, so a proposal is the only one of its view and sequence, and
//! there is no PREPARE phase: proposal, bodies and the own COMMIT are made durable in one record,
//! and then the COMMIT is sent. COMMITs are given in order. The own durable COMMIT takes the place
//! of a prepared certificate: with that the rules and the proof are the same, any two quorums
//! sharing a replica (as a ballot in Paxos, for each sequence). A leader that sends its proposal
//! before it is durable never proposes again in a view it was in before a restart.
//!
//! # What is checked before earlier batches are known
//!
//! A proposal is judged while earlier batches are open, and all correct replicas have to reach the
//! same verdict, however far each has executed: waiting only delays a vote, but a refusal accuses
//! the leader. `replica::agreement` says how.
//!
//! Source: M. Castro and B. Liskov, "Practical Byzantine Fault Tolerance" (1999), §4; A. Clement,
//! "UpRight Fault Tolerance" (2010), chapter 6; B. Oki and B. Liskov, "Viewstamped Replication"
//! (1988), for r = 0.

pub mod bodies;
#[cfg(test)]
mod chains;
pub mod claims;
pub mod new_view;
pub mod proposer;
pub mod returning;
pub mod slot;
pub mod status;
pub mod suspicion;
pub mod throughput;
pub mod view_change;
pub mod vote;
pub mod window;
