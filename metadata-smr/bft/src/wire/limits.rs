//! Every constant of the protocol, with its reason. Nothing in the library is unbounded.

use crate::identity::Nanos;

// ---- sizes -------------------------------------------------------------------------------------

/// The longest frame: one committed batch with its bodies and its certificate, and a margin.
pub const FRAME_BYTES_MAX: usize = 8 << 20;
/// The longest frame that a client may send; well below a batch, so that several share one.
pub const REQUEST_BYTES_MAX: usize = 512 << 10;
/// Operations in one request: a bundle is one signature's worth of work, not a backlog.
pub const OPERATIONS_MAX: usize = 1024;
/// All results of one request together; a cached reply has to fit into one row of the state.
pub const RESULTS_BYTES_MAX: usize = 768 << 10;
/// Requests in one batch; their digests make a proposal of 16 KiB.
pub const BATCH_REQUESTS_MAX: usize = 512;
/// Batches that were voted for at one sequence, in as many failed views, and are kept with their
/// bodies until it commits, within [`KEPT_BYTES_MAX`]. A liar that hides a certificate for longer
/// has to make more views fail.
pub const BATCHES_KEPT: usize = 16;
/// Sequences that are voted on at a time. A leader in one region has two or three of them in flight
/// (`docs/PERFORMANCE.md`), one across continents all: each is a round trip that others do not wait
/// for. The certificates in a VIEW-CHANGE grow with it.
pub const WINDOW: usize = 8;
/// How many of them with this quorum: a NEW-VIEW with a quorum of VIEW-CHANGEs, each with as many
/// of the longest proposals and their votes, has to fit into a frame.
#[must_use]
pub const fn window(quorum: u16) -> usize {
    let quorum = if quorum == 0 { 1 } else { quorum as usize };
    let votes = quorum * 66;
    let room = (FRAME_BYTES_MAX / quorum).saturating_sub(1024 + WINDOW * (64 + votes));
    let fits = room / (512 + BATCH_REQUESTS_MAX * 32 + votes);
    if fits < WINDOW { fits } else { WINDOW }
}
/// Bytes of bodies that are kept of batches that were voted for, over the whole window: those that
/// can be prepared, as much again in a later view, and a third of it for views that failed before.
pub const KEPT_BYTES_MAX: usize = 3 * WINDOW * BATCH_BYTES_MAX;
/// Bytes of all bodies in one batch; bounds the record that a vote makes durable.
pub const BATCH_BYTES_MAX: usize = 4 << 20;
/// Attempts to open a session in one batch, in addition to a stranger's.
pub const BATCH_OPENS_MAX: usize = 16;
/// The longest journal record: a vote with all bodies.
pub const RECORD_BYTES_MAX: usize = FRAME_BYTES_MAX;

// ---- membership --------------------------------------------------------------------------------

/// The address of a replica: a name and a port, or anything else that its runtime understands.
pub const ADDRESS_BYTES_MAX: usize = 256;
/// Keys that may change the membership: a few people.
pub const ADMINISTRATORS_MAX: usize = 16;
/// Replicas that receive everything and do not vote: learners, and those that left lately.
pub const OTHERS_MAX: usize = 8;
/// Keys that are remembered as retired: enough to replace a replica a week for ten years.
pub const RETIRED_MAX: usize = 512;
/// A membership's row.
pub const MEMBERSHIP_BYTES_MAX: usize = 64 << 10;
/// Records of epochs in one answer; a peer that is further behind asks again.
pub const EPOCHS_MAX: usize = 8;
/// Bytes of a refusal's text.
pub const REFUSAL_BYTES_MAX: usize = 512;
/// A learner has caught up if it holds a checkpoint of the last so many intervals.
pub const READY_INTERVALS: u64 = 4;
/// A replica that has the record of the next epoch gives its own execution so long to get there
/// before it takes the state over from others.
pub const EPOCH_PATIENCE: Nanos = Nanos::from_millis(600);
/// The credit of an administrator's or replica's session if the service would grant none.
pub const MEMBERSHIP_CREDIT: u32 = 128 << 10;

// ---- clients -----------------------------------------------------------------------------------

/// The first retry comes no sooner, however fast answers usually are: a busy machine or a view
/// change takes longer, and then a repetition costs every replica the check of a signature.
pub const RETRY_MIN: Nanos = Nanos::from_millis(100);

/// Results up to this long are sent whole by every replica; longer ones are sent whole by one
/// replica, and the others send a digest.
pub const REPLY_WHOLE_BYTES: usize = 4 << 10;
/// Above this a client compares digests, whichever replica sent the whole: about as long as a
/// digest is. No replica's own limit is below it.
pub const REPLY_COMPARED_BYTES: usize = 32;
/// How long a client waits for the whole when enough replicas have sent its digest.
pub const REPLY_HEDGE: Nanos = Nanos::from_millis(10);

// ---- reads -------------------------------------------------------------------------------------

/// Queries in one READ: it is answered in one step, which blocks all others.
pub const READ_QUERIES_MAX: usize = 256;
/// All answers to one READ together; the limit ends the step.
pub const READ_ANSWERS_BYTES_MAX: usize = RESULTS_BYTES_MAX;
/// An answer up to this long is sent in full by every replica: its digest would hardly be shorter.
pub const READ_SHORT_BYTES: usize = 64;
/// How often queries are asked out of order before they are ordered: once of as many replicas as
/// are needed, then of all, and once more for those whose data was changing.
pub const READ_TRIES: usize = 3;
/// Frames of queries that a client has in flight; queries that come meanwhile share the next one.
pub const READ_FRAMES: usize = 2;
/// The same for a client that does not use bundles.
pub const READ_FRAMES_SINGLE: usize = 64;
/// All replicas are asked when the first ones have not answered for this long, while nothing is
/// known about how long they usually take, and the session was not opened more slowly.
pub const READ_HEDGE: Nanos = Nanos::from_millis(50);
/// The upper bound of it, however slow they usually are: three round trips around the world, and a
/// margin.
pub const READ_HEDGE_MAX: Nanos = Nanos::from_secs(1);
/// The lower bound of it, however fast they usually are: a busy machine pauses for that long now
/// and then.
pub const READ_HEDGE_MIN: Nanos = Nanos::from_millis(5);
/// Tries whose queries were then ordered and for which a client still waits, to learn how long they
/// take: those of a few frames.
pub const READ_OVERDUE_MAX: usize = 16;
/// A session that only reads out of order orders a query this often, so that it does not count as
/// idle.
pub const READ_IN_ORDER_EVERY: Nanos = Nanos::from_secs(5 * 60);

// ---- observers ---------------------------------------------------------------------------------

/// Connections to which a replica sends reports: some people, some dashboards.
pub const OBSERVERS_MAX: usize = 64;
/// Connections to which a replica sends events: one for each session, and as many that replace one.
pub const WATCHERS_MAX: usize = 2 * SESSIONS_MAX;
/// Reports in which only the executed sequence changed are at least this far apart.
pub const REPORT_INTERVAL: Nanos = Nanos::from_millis(100);
/// Observers are sent a replica's state this often, changed or not. It is checked with the STATUS
/// timer, which rounds it up to a multiple of [`STATUS_INTERVAL`].
pub const OBSERVED_INTERVAL: Nanos = Nanos::from_secs(1);
/// A replica that sent nothing for so long counts as silent and is asked again: three of the above.
pub const OBSERVED_SILENT: Nanos = Nanos::from_secs(3);
/// Watches of one session.
pub const WATCHES_PER_SESSION_MAX: usize = 64;
/// Watches of all sessions; each costs a row, and a batch may trigger all of them.
pub const WATCHES_MAX: usize = 4096;
/// Prefixes that one watch may cover.
pub const WATCH_PREFIXES_MAX: usize = 8;
/// The longest of them. Every length in use costs a lookup for every row that is written.
pub const WATCH_PREFIX_BYTES_MAX: usize = 64;
/// Events that a watcher keeps for each replica until another one confirms them, and those that it
/// keeps until their predecessors come.
pub const WATCH_EVENTS_KEPT: usize = 64;
/// How long a watcher waits for an event that must have happened, before it reads the rows itself.
pub const WATCH_GRACE: Nanos = Nanos::from_millis(500);

// ---- sessions ----------------------------------------------------------------------------------

/// Open sessions at a time; each costs rows, a key in the verifier and memory for its requests.
pub const SESSIONS_MAX: usize = 1024;
/// Open sessions of one principal at a time.
pub const PRINCIPAL_SESSIONS_MAX: usize = SESSIONS_MAX / 4;
/// Bytes of requests that every session may have in flight, if the service wants as much: one
/// request of any length.
pub const CREDIT_FLOOR: u32 = REQUEST_BYTES_MAX as u32;
/// Bytes that sessions may have in flight beyond their floors, all together. With all floors a
/// replica needs this much memory: 576 MiB if 1024 sessions use their whole credit at once.
pub const CREDIT_BEYOND_FLOOR: u64 = 64 << 20;
/// Bytes that the sessions of one principal may have in flight beyond their floors.
pub const PRINCIPAL_CREDIT_BEYOND_FLOOR: u64 = CREDIT_BEYOND_FLOOR / 2;
/// Lanes that one session may have.
pub const LANES_MAX: u16 = 64;
/// Requests of one lane that a client has unanswered: one being executed, one on its way.
pub const LANE_IN_FLIGHT: u64 = 2;
/// A request's number may be this far above the last one executed in its lane: a client is a window
/// ahead of a replica that has not executed the batch yet that others have answered.
pub const LANE_AHEAD_MAX: u64 = 2 * LANE_IN_FLIGHT;
/// A session without a request for this long, on the lease clock, is closed.
pub const SESSION_IDLE: Nanos = Nanos::from_secs(30 * 60);
/// The row with a session's last activity is written at most so often in that time.
pub const SESSION_TOUCHES: u64 = 30;
/// That is this often.
pub const SESSION_TOUCH: Nanos = Nanos(SESSION_IDLE.0 / SESSION_TOUCHES);
/// How far the signing time of an opening may be from the agreed time when it is executed. More
/// than a request takes and honest clocks differ; an opening has to be remembered for twice as
/// long.
pub const OPENING_RECENT: Nanos = Nanos::from_secs(60);
/// Openings of ended sessions that are remembered at a time: 500 sessions a second.
pub const OPENINGS_REMEMBERED_MAX: usize = 65_536;
/// Openings of ended sessions that are forgotten in one batch, more than one batch can add for
/// long.
pub const OPENINGS_FORGOTTEN_PER_BATCH: usize = 64;
/// Idle sessions closed in one batch: a batch does a bounded amount of work.
pub const SESSIONS_CLOSED_PER_BATCH: usize = 16;
/// Connections of one session that replies go to: the newest ones.
pub const SESSION_CONNECTIONS_MAX: usize = 2;
/// Connections that wait for one session to be opened.
pub const OPEN_CONNECTIONS_MAX: usize = 4;

// ---- queues ------------------------------------------------------------------------------------

/// Attempts to open a session that wait, of principals that the service accepts.
pub const OPENS_WAITING_MAX: usize = 64;
/// Sessions of one principal that wait to be opened.
pub const OPENS_PER_PRINCIPAL_MAX: usize = 4;
/// Attempts to open a session that wait, of principals that the service does not know.
pub const OPENS_STRANGERS_MAX: usize = 8;
/// A stranger's attempt enters the order at most this often, since each costs every replica a
/// batch. The STATUS timer makes the leader check often enough, so there is no timer for it.
pub const STRANGER_INTERVAL: Nanos = STATUS_INTERVAL;
/// How long a peer stays blacklisted: repaired machines come back.
pub const BLACKLIST_MAX: usize = 1024;
/// How long a peer stays blacklisted: repaired machines come back.
pub const BLACKLIST_TIME: Nanos = Nanos::from_secs(60);

// ---- time --------------------------------------------------------------------------------------

/// B: how far a leader's clock may run ahead of a voter's; NTP keeps hosts far closer.
pub const CLOCK_LEAD_MAX: Nanos = Nanos::from_millis(500);
/// The most that one batch moves the lease clock, so that an outage expires nothing.
pub const LEASE_STEP_MAX: Nanos = Nanos::from_secs(1);
/// How often a replica sends its status to its peers: the one repair of lost messages.
pub const STATUS_INTERVAL: Nanos = Nanos::from_millis(200);
/// Messages that a peer misses are sent again at most this often.
pub const RESEND_INTERVAL: Nanos = Nanos::from_millis(50);
/// The progress timer in a good view: hundreds of round trips in a region, a blink for a person.
pub const PROGRESS_TIMEOUT: Nanos = Nanos::from_millis(400);
/// The same before anything was decided, so that it is not known how far the replicas are from each
/// other: their first batch takes one round trip and a half, and disks.
pub const PROGRESS_TIMEOUT_UNKNOWN: Nanos = Nanos::from_millis(1_200);
/// The progress timer after many failed views; doubling stops here.
pub const PROGRESS_TIMEOUT_MAX: Nanos = Nanos::from_secs(10);
/// A request to one peer goes to the next one after this, or later where answers usually take
/// longer.
pub const FETCH_HEDGE: Nanos = Nanos::from_millis(50);
/// The same before any peer has answered. Each answer is up to two megabytes, and the peers may all
/// be behind one slow link.
pub const FETCH_UNKNOWN: Nanos = Nanos::from_millis(300);
/// The longest that is waited for one peer.
pub const FETCH_WAIT_MAX: Nanos = Nanos::from_millis(1_500);

// ---- catching up and durability ----------------------------------------------------------------

/// Committed batches in the answer to one request.
pub const FETCH_BATCHES_MAX: usize = 32;
/// Bytes of committed batches in the answer to one request; one batch is always sent.
pub const FETCH_BYTES_MAX: usize = 2 << 20;
/// What a peer is sent per second on request: it catches up at several times the rate at which
/// requests come in, and costs a few hundredths of a core.
pub const SERVE_BYTES_PER_SECOND: u64 = 32 << 20;
/// What a peer is sent at once: a whole batch of bodies and some more answers.
pub const SERVE_BURST_BYTES: u64 = 8 << 20;
/// The least that a request, and each frame sent for it, counts as.
pub const SERVE_BYTES_MIN: u64 = 2 << 10;
/// The least that each requested body counts as: it is looked for in every open batch.
pub const SERVE_BODY_BYTES_MIN: usize = 128;
/// Bytes of batches that one peer gives as executed and that are kept where that proves nothing:
/// the answer to one request, and one more. The next batch is always kept.
pub const VOUCHED_BYTES_MAX: usize = FETCH_BYTES_MAX + FRAME_BYTES_MAX;
/// The same request within this time is a repetition: shorter than the sender waits for an answer.
pub const SERVE_REPEAT_INTERVAL: Nanos = Nanos::from_millis(25);
/// Batches from one checkpoint to the next, unless [`CHECKPOINT_BYTES`] come first: the most that a
/// restart replays, and few enough roots that hashing the changes costs next to nothing. A cluster
/// agrees on it; [`crate::replica::Config`] can set another number.
pub const CHECKPOINT_INTERVAL: u64 = 256;
/// Bytes of bodies after which a checkpoint always comes. Two intervals of them are kept in memory
/// and in the journal.
pub const CHECKPOINT_BYTES: usize = 16 << 20;
/// Batches that one flush removes: more than two intervals, so that removal keeps up.
pub const TRUNCATED_PER_FLUSH: u64 = 4 * CHECKPOINT_INTERVAL;
/// Nodes of a state in one request at most: usually a quarter of a megabyte, and with the largest
/// rows still an answer or two.
pub const TRANSFER_NODES_MAX: usize = 64;
/// Nodes in the first request to a peer: quick even at 256 kbit/s.
pub const TRANSFER_NODES_FIRST: usize = 4;
/// Requests grow while their answers take no longer than this, or twice the shortest round trip.
pub const TRANSFER_PROMPT: Nanos = Nanos::from_millis(400);
/// A request to one peer goes to another after this, or later where its answers usually take
/// longer. A late answer counts all the same.
pub const TRANSFER_WAIT: Nanos = Nanos::from_millis(100);
/// But not later than this, which has to be well below [`TRANSFER_STUCK`].
pub const TRANSFER_WAIT_MAX: Nanos = Nanos::from_secs(1);
/// Nor more than so many times later than for the quickest peer: a liar that is slow on purpose
/// delays what it was asked for.
pub const TRANSFER_PATIENCE: u64 = 4;
/// A peer is sent one more request for each time that this fits into its shortest round trip, so
/// that a distant peer is used as well as a near one.
pub const TRANSFER_PIECE: Nanos = Nanos::from_millis(25);
/// Requests that one peer has open at a time, however far away it is: together usually two
/// megabytes, a fifth of a second at 80 Mbit/s.
pub const TRANSFER_QUESTIONS_MAX: usize = 8;
/// A peer that did not answer is skipped for so long.
pub const TRANSFER_PASS: Nanos = Nanos::from_millis(300);
/// With nothing useful for so long, a transfer moves to a newer checkpoint.
pub const TRANSFER_STUCK: Nanos = Nanos::from_secs(2);
/// Requests that are forwarded to the leader at each STATUS because they have waited since the one
/// before: the oldest, since under load everything waits for long.
pub const FORWARDED_BY_AGE: usize = 16;
/// A suspicion is withdrawn after so long, if so many batches have been executed since, and counts
/// at others for twice as long: bad seconds on different days do not add up.
pub const SUSPICION_LASTS: Nanos = Nanos::from_secs(10);
/// See [`SUSPICION_LASTS`].
pub const SUSPICION_BATCHES: u64 = 64;
/// A replica that should lead rather than the one that does has to have been well for so long.
pub const RETURN_AFTER: Nanos = Nanos::from_secs(60);
/// How often that is doubled where it loses one view after the other: to 17 hours.
pub const RETURN_DOUBLINGS_MAX: u32 = 10;
/// Leading for so long takes one doubling back.
pub const RETURN_FORGIVEN: Nanos = Nanos::from_secs(600);
/// A replica whose STATUS is older than this is not well. Where one packet of twenty is lost and a
/// round trip takes 300 ms, gaps of two seconds are usual.
pub const STATUS_OVERDUE: Nanos = Nanos::from_secs(3);
/// Nor is one that has executed so many batches less than this one.
pub const STATUS_BEHIND: u64 = 64;
/// A leader that needs so many times as long for a batch as batches usually take is slow.
pub const PATIENCE_DECIDES: u64 = 3;
/// The usual decide time extends the progress timer no further than this, whichever replica delays
/// votes.
pub const PATIENCE_LEARNT_MAX: Nanos = Nanos::from_secs(4);
/// How long leaders are watched before one interval is compared with others: a hundred round trips.
pub const THROUGHPUT_INTERVAL: Nanos = Nanos::from_millis(250);
/// Intervals in a row in which a leader has to be slow: a busy second of a machine does not count.
pub const SLOW_INTERVALS: u32 = 4;
/// How often that number is doubled where one leader after the other seems slow: to four minutes.
pub const SLOW_DOUBLINGS_MAX: u32 = 8;
/// Intervals in a row in which no leader is slow that take one doubling back: a minute.
pub const SLOW_FORGIVEN: u32 = 240;
/// A leader that takes so many times as long to propose a batch as it then takes to be decided is
/// slow, whatever others achieved.
pub const LAG_OUTRIGHT: u64 = 5;
/// But not if it takes less than this: a process may have to wait to be scheduled.
pub const LAG_OUTRIGHT_MIN: Nanos = Nanos::from_millis(5);
/// Bytes of forwarded requests for which one replica watches a leader.
pub const WATCHED_BYTES_MAX: usize = BATCH_BYTES_MAX;
/// Bytes that a leader keeps of requests that one peer forwards, in addition to those within
/// credit: twice what is watched, since the peer may know earlier what has been executed.
pub const FORWARDED_BYTES_MAX: usize = 2 * WATCHED_BYTES_MAX;
/// Two later batches that pass over a request we forwarded make a leader unfair.
pub const UNFAIR_BATCHES: u32 = 2;
/// Fresh proposals in a row whose time trails ours by more than [`CLOCK_LEAD_MAX`].
pub const TRAILING_PROPOSALS: u32 = 3;
/// Proposals in a row that came from others than their leader, which omits this replica.
pub const REPEATED_PROPOSALS: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault_model::REPLICAS_MAX;

    #[test]
    fn whatever_the_quorum_a_new_view_fits_into_a_frame() {
        for quorum in 1..=REPLICAS_MAX {
            let (votes, count) = (usize::from(quorum) * 66, usize::from(quorum));
            let proposal = 512 + BATCH_REQUESTS_MAX * 32;
            let change = 512 + WINDOW * (64 + votes) + window(quorum) * (proposal + votes);
            assert!(window(quorum) >= 2, "{quorum}");
            assert!(count * (change + 4) + 256 <= FRAME_BYTES_MAX, "{quorum}");
            // The same for claims, of as many replicas as there are.
            let claims = 1024 + WINDOW * 40 + votes;
            let claims = claims + window(quorum) * (proposal + BATCHES_KEPT * 48);
            assert!(count * (claims + 4) + 256 <= FRAME_BYTES_MAX, "{quorum}");
        }
        assert_eq!((window(3), window(43)), (WINDOW, WINDOW));
    }
}
