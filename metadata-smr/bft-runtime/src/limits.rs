//! Every bound and every waiting time of the runtime, with its reason.

use std::time::Duration;

/// The longest wait for a TCP connection: a peer on another continent answers within one.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(3);

/// The longest wait for TLS and the greeting: a few round trips and three signatures.
pub const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);

/// A link that has nothing to send says so this often, so that silence means trouble.
pub const KEEPALIVE: Duration = Duration::from_secs(1);

/// A link that was silent for this long is dead: five keepalives were lost.
pub const IDLE_DEADLINE: Duration = Duration::from_secs(5);

/// A peer that takes nothing off its socket for this long is dead or malicious.
pub const WRITE_DEADLINE: Duration = Duration::from_secs(5);

/// For how long others have to say that another process has this replica's key, until this one
/// gives way: longer than it takes them to notice that a process of before is gone.
pub const DOUBLED_FOR: Duration = Duration::from_secs(15);

/// The first pause before dialing again; it doubles up to [`REDIAL_MAX`].
pub const REDIAL_MIN: Duration = Duration::from_millis(20);

/// The longest pause before dialing again: what a restarted peer waits for us at most.
pub const REDIAL_MAX: Duration = Duration::from_secs(1);

/// A connection that held for this long was a success: the next pause is the shortest again.
pub const SETTLED: Duration = Duration::from_secs(2);

/// Handshakes under way at once; beyond it the oldest is given up, so that half-open connections
/// cannot keep honest ones out.
pub const HANDSHAKES_MAX: usize = 256;

/// Client connections of one replica, of principals that have a session open.
pub const CLIENTS_MAX: usize = 1024;

/// Client connections of one replica, of everybody else: they open a session or ask for the status.
pub const STRANGERS_MAX: usize = 256;

/// Connections of those who say that they are replicas and are none that is known: as many as an
/// epoch may have brought, twice.
pub const NEWCOMERS_MAX: usize = 16;

/// How often one of them is asked for what leads to the epoch that it says it is in.
pub const NEWCOMER_PATIENCE: Duration = Duration::from_millis(500);

/// What comes back on a connection to a replica is such a question, and is no longer.
pub const ANSWER_BYTES_MAX: usize = 256;

/// Files that are open beside client connections: handshakes, links to peers, journal and state.
pub const FILES_RESERVED: usize = HANDSHAKES_MAX + 128;

/// Client connections of one principal at one replica: several mounts and tools of one person.
pub const CLIENTS_PER_PRINCIPAL_MAX: usize = 64;

/// Frames that wait for a connected peer; beyond it the oldest is dropped and resent on STATUS.
pub const PEER_OUTBOX_FRAMES_MAX: usize = 4096;

/// Bytes that wait for a peer: two of the largest frames.
pub const PEER_OUTBOX_BYTES_MAX: usize = 64 << 20;

/// Frames kept for a peer that is not connected: the newest say where we stand.
pub const AWAY_OUTBOX_FRAMES_MAX: usize = 64;

/// Replies that wait for a client; it asks again for those that were dropped.
pub const CLIENT_OUTBOX_FRAMES_MAX: usize = 256;

/// Bytes that wait for a client.
pub const CLIENT_OUTBOX_BYTES_MAX: usize = 8 << 20;

/// Frames for an observer that wait for its connection. Some seconds of reports; what was dropped
/// shows in their numbers.
pub const SPARE_OUTBOX_FRAMES_MAX: usize = 64;

/// Bytes of those.
pub const SPARE_OUTBOX_BYTES_MAX: usize = 64 << 10;

/// What an observer of a client is told and has not taken; beyond it all of that is dropped, and it
/// is told so.
pub const OBSERVER_QUEUE_MAX: usize = 1024;

/// Bytes of frames of one peer that were read and wait for the event loop; then its socket waits.
pub const PEER_INBOX_BYTES_MAX: usize = 32 << 20;

/// The same for one client.
pub const CLIENT_INBOX_BYTES_MAX: usize = 2 << 20;

/// The same for all clients together.
pub const CLIENTS_INBOX_BYTES_MAX: usize = 64 << 20;

/// The same for all strangers together: an opening or a question is a few hundred bytes.
pub const STRANGERS_INBOX_BYTES_MAX: usize = 4 << 20;

/// What a frame counts at least in an inbox, so that empty frames are not free.
pub const FRAME_COST_MIN: usize = 1 << 10;

/// Frames of one principal that may come for nothing at once: what a client with all its lanes busy
/// sends again after a leader has died.
pub const WASTE_BURST: f64 = 512.0;

/// And in a second after that: a few thousandths of a processor.
pub const WASTE_PER_SECOND: f64 = 100.0;

/// So many bytes of a frame cost as much as another frame: hashing and copying them.
pub const WASTE_BYTES: f64 = 32_768.0;

/// Principals whose accounts are kept.
pub const ACCOUNTS_MAX: usize = 4096;

/// Frames of replicas are counted in intervals of this length: long against a batch, short against
/// the patience of those who wait.
pub const VOLUME_INTERVAL: Duration = Duration::from_millis(100);

/// Frames of a replica in one interval that are taken in any case: repair after a quiet time.
pub const VOLUME_FRAMES_MIN: u32 = 256;

/// How many times as much as a correct replica one may send. Leaders send more than others, and
/// whoever helps a laggard does.
pub const VOLUME_RATIO: u32 = 3;

/// Bytes handed to TLS before it is flushed.
pub const WRITE_CHUNK_BYTES: usize = 256 << 10;

/// A frame of more bytes may hold many signatures and is verified away from the replica's thread.
pub const INLINE_FRAME_BYTES_MAX: usize = 64 << 10;

/// How long whoever signed what no correct node would sign is not listened to.
pub const BLACKLIST_TIME: Duration =
    Duration::from_nanos(quorumfs_bft::wire::limits::BLACKLIST_TIME.0);

/// Peers that are remembered as blacklisted; beyond it the oldest is forgotten.
pub const BLACKLIST_MAX: usize = 4096;

/// How often a replica looks whether it has something to ask for by itself.
pub const OWN_AFFAIRS: Duration = Duration::from_millis(200);

/// How often it looks how much room its disk has.
pub const ROOM_LOOKED_AT: Duration = Duration::from_secs(1);

/// How long what was found out about the room within its database counts at least; twenty times
/// what it took to find out, since all of that is read.
pub const ROOM_WITHIN_COUNTS: Duration = Duration::from_secs(10);

/// How long it waits before it asks for the same again; twice as long each time.
pub const OWN_AFFAIRS_AGAIN: Duration = Duration::from_secs(1);

/// The longest that it waits: an operator has waited for as long by then.
pub const OWN_AFFAIRS_AGAIN_MAX: Duration = Duration::from_secs(30);

/// How long it waits for a session, and for an answer.
pub const OWN_AFFAIRS_DEADLINE: Duration = Duration::from_secs(10);
