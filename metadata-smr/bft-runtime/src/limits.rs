//! Every bound and every deadline of the runtime, with its reason.

use std::time::Duration;

/// The longest wait for a TCP connection: a peer on another continent answers within one.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(3);

/// The longest wait for TLS and the greeting: a few round trips and three signatures.
pub const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);

/// A link with nothing to send sends a keepalive this often, so that silence means a failure.
pub const KEEPALIVE: Duration = Duration::from_secs(1);

/// A link that was silent for this long is dead: five keepalives were lost.
pub const IDLE_DEADLINE: Duration = Duration::from_secs(5);

/// A peer that takes nothing off its socket for this long is dead or malicious.
pub const WRITE_DEADLINE: Duration = Duration::from_secs(5);

/// For how long other replicas have to report another process with this replica's key until this
/// process ends: longer than they take to notice that an earlier process has ended.
pub const DUPLICATE_DEADLINE: Duration = Duration::from_secs(15);

/// The first pause before dialing again; it doubles up to [`REDIAL_MAX`].
pub const REDIAL_MIN: Duration = Duration::from_millis(20);

/// The longest pause before dialing again: the longest wait of a restarted peer.
pub const REDIAL_MAX: Duration = Duration::from_secs(1);

/// A connection that lasted this long was a success: the next pause is the shortest again.
pub const SETTLED: Duration = Duration::from_secs(2);

/// Concurrent handshakes; beyond this the oldest is given up, so that half-open connections cannot
/// keep honest ones out.
pub const HANDSHAKES_MAX: usize = 256;

/// Client connections of one replica whose principals have a session open.
pub const CLIENTS_MAX: usize = 1024;

/// All other client connections of one replica: they open a session or query the status.
pub const STRANGERS_MAX: usize = 256;

/// Connections of nodes that claim to be replicas and are unknown: twice as many as an epoch may
/// have brought.
pub const UNKNOWN_REPLICAS_MAX: usize = 16;

/// The pause between two requests to one of them for the records that lead to its claimed epoch.
pub const UNKNOWN_REPLICA_PAUSE: Duration = Duration::from_millis(500);

/// The longest frame that may come back on a dialed connection: it is such a request.
pub const ANSWER_BYTES_MAX: usize = 256;

/// Open files in addition to client connections: handshakes, links to peers, journal and state.
pub const FILES_RESERVED: usize = HANDSHAKES_MAX + 128;

/// Client connections of one principal at one replica: several mounts and tools of one person.
pub const CLIENTS_PER_PRINCIPAL_MAX: usize = 64;

/// Frames that wait for a connected peer; beyond this the oldest is dropped and resent on STATUS.
pub const PEER_OUTBOX_FRAMES_MAX: usize = 4096;

/// Bytes that wait for a peer: two of the largest frames.
pub const PEER_OUTBOX_BYTES_MAX: usize = 64 << 20;

/// Frames kept for a peer that is not connected: the newest describe the current state.
pub const AWAY_OUTBOX_FRAMES_MAX: usize = 64;

/// Replies that wait for a client; it asks again for dropped ones.
pub const CLIENT_OUTBOX_FRAMES_MAX: usize = 256;

/// Bytes that wait for a client.
pub const CLIENT_OUTBOX_BYTES_MAX: usize = 8 << 20;

/// Observer frames that wait for a connection: some seconds of reports. Gaps in their numbers show
/// that some were dropped.
pub const SPARE_OUTBOX_FRAMES_MAX: usize = 64;

/// Bytes of observer frames that wait for a connection.
pub const SPARE_OUTBOX_BYTES_MAX: usize = 64 << 10;

/// Items that wait for a client's observer; beyond this all of them are dropped, and it gets one
/// item that says so.
pub const OBSERVER_QUEUE_MAX: usize = 1024;

/// Bytes of one peer's frames that were read and wait for the event loop; then its socket waits.
pub const PEER_INBOX_BYTES_MAX: usize = 32 << 20;

/// The same for one client.
pub const CLIENT_INBOX_BYTES_MAX: usize = 2 << 20;

/// The same for all clients together.
pub const CLIENTS_INBOX_BYTES_MAX: usize = 64 << 20;

/// The same for all strangers together: an opening or a query is a few hundred bytes.
pub const STRANGERS_INBOX_BYTES_MAX: usize = 4 << 20;

/// The least that a frame counts in an inbox, so that empty frames are not free.
pub const FRAME_COST_MIN: usize = 1 << 10;

/// Unproductive frames of one principal that may arrive at once: what a client with all its lanes
/// busy sends again after a leader has died.
pub const WASTE_BURST: f64 = 512.0;

/// Unproductive frames per second after that: they cost a few thousandths of a processor.
pub const WASTE_PER_SECOND: f64 = 100.0;

/// So many bytes of a frame count as another frame, for hashing and copying them.
pub const WASTE_BYTES: f64 = 32_768.0;

/// Principals for which an account is kept.
pub const ACCOUNTS_MAX: usize = 4096;

/// Frames of replicas are counted in intervals of this length: long compared with a batch, short
/// compared with the timeouts of clients and replicas.
pub const VOLUME_INTERVAL: Duration = Duration::from_millis(100);

/// Frames of a replica in one interval that are always taken: repair after a quiet time.
pub const VOLUME_FRAMES_MIN: u32 = 256;

/// How many times as much as a correct replica one may send. Leaders send more than others, and so
/// do replicas that help one that lags.
pub const VOLUME_RATIO: u32 = 3;

/// Bytes handed to TLS before it is flushed.
pub const WRITE_CHUNK_BYTES: usize = 256 << 10;

/// A frame of more bytes may hold many signatures and is verified away from the replica's thread.
pub const INLINE_FRAME_BYTES_MAX: usize = 64 << 10;

/// How long a node is ignored that signed what no correct node would sign.
pub const BLACKLIST_TIME: Duration =
    Duration::from_nanos(quorumfs_bft::wire::limits::BLACKLIST_TIME.0);

/// Peers that are remembered as blacklisted; beyond this the oldest is forgotten.
pub const BLACKLIST_MAX: usize = 4096;

/// Frames that wait for a copy of the state: as many as all replicas may have been asked for, and
/// as many late ones.
pub const COPY_INBOX_FRAMES_MAX: usize = 512;

/// Bytes of them: two of the largest frames; what is dropped is asked for again.
pub const COPY_INBOX_BYTES_MAX: usize = 32 << 20;

/// How long a copy of the state goes on without any progress: replicas restart, and leaders are
/// replaced, in less.
pub const COPY_PATIENCE: Duration = Duration::from_secs(30);

/// How often a replica checks whether it has a command to submit itself.
pub const SELF_ADMINISTRATION_INTERVAL: Duration = Duration::from_millis(200);

/// How often it checks the free space on its disk.
pub const SPACE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long the reusable space that was found within its database counts at least, and twenty times
/// as long as finding it took, since the whole database is read.
pub const REUSABLE_SPACE_VALID_FOR: Duration = Duration::from_secs(10);

/// The pause before it submits the same command again; it doubles each time.
pub const SELF_ADMINISTRATION_RETRY: Duration = Duration::from_secs(1);

/// The longest such pause: an operator notices a delay of this length.
pub const SELF_ADMINISTRATION_RETRY_MAX: Duration = Duration::from_secs(30);

/// How long it waits for a session, and for an answer.
pub const SELF_ADMINISTRATION_DEADLINE: Duration = Duration::from_secs(10);
