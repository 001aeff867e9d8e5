//! All bounds of the server, each with its reason.
//!
//! A server on the open internet meets clients that send nothing, read nothing, send much, or come
//! by the thousand. Each resource that a client can hold has a bound here; tests make some smaller.

use std::time::Duration;

/// The longest request line and headers together, in bytes. A path of 32 names of 255 bytes fits.
pub const HEAD_BYTES_MAX: usize = 16 << 10;
/// Header lines of a request. Browsers send about twenty.
pub const HEADERS_MAX: usize = 64;
/// Names in a path below a link. A tree deeper than this is listed up to here.
pub const DEPTH_MAX: usize = 64;
/// The longest name, as in the volume.
pub const NAME_BYTES_MAX: usize = 255;
/// Entries on one page of a folder. A page of them is about 2 MiB of HTML, and sorting needs them
/// all in memory; a longer folder has several pages.
pub const PAGE_ENTRIES_MAX: usize = 5_000;
/// Bytes to read and send at a time. Three pieces are in memory for each download.
pub const PIECE_BYTES: u32 = 256 << 10;
/// Names in an archive, which keeps them all until its end: their bytes.
pub const ARCHIVE_NAMES_BYTES_MAX: usize = 64 << 20;
/// Entries of an archive. An entry takes about 150 bytes until the end.
pub const ARCHIVE_ENTRIES_MAX: usize = 500_000;
/// Archives that are made at a time: with the two bounds above, 560 MiB at the very worst.
pub const ARCHIVES_MAX: usize = 4;
/// Addresses whose requests are counted on their own; all others share one count.
pub const ADDRESSES_MAX: usize = 16_384;
/// Connections beyond the bound that are told so at a time; further ones are closed without a word.
pub const REFUSALS_MAX: usize = 64;

/// The bounds that an operator or a test may want otherwise.
#[derive(Clone, Debug)]
pub struct ServingLimits {
    /// Open connections.
    pub connections: usize,
    /// Open connections from one address.
    pub connections_per_address: u32,
    /// Downloads at a time: three pieces each are 192 MiB together.
    pub downloads: usize,
    /// Downloads at a time for one address.
    pub downloads_per_address: u32,
    /// Requests of one address that may come at once.
    pub requests_burst: u32,
    /// Requests of one address in a second, over time.
    pub requests_per_second: u32,
    /// How many requests a wrong token counts as, in addition to its own.
    pub wrong_token_cost: u32,
    /// How long a client may take for the head of a request, and how long a connection may be idle.
    pub head_within: Duration,
    /// How long a TLS handshake may take.
    pub handshake_within: Duration,
    /// How long a client may block the sending of an answer before it has to have taken
    /// `slow_bytes`.
    pub slow_window: Duration,
    /// See `slow_window`: 4 KiB a second, below every modem.
    pub slow_bytes: u64,
    /// How long the source may take for one answer.
    pub answer_within: Duration,
    /// How often a link is confirmed during a download.
    pub confirm_every: Duration,
    /// How long a download goes on without a confirmation: long enough for a new leader of the
    /// replicas.
    pub unconfirmed_for: Duration,
    /// How long the downloads that run may take after the server was asked to stop.
    pub stop_within: Duration,
}

impl Default for ServingLimits {
    fn default() -> Self {
        Self {
            connections: 1_000,
            connections_per_address: 128,
            downloads: 256,
            downloads_per_address: 64,
            requests_burst: 200,
            requests_per_second: 50,
            wrong_token_cost: 20,
            head_within: Duration::from_secs(10),
            handshake_within: Duration::from_secs(10),
            slow_window: Duration::from_secs(15),
            slow_bytes: 60 << 10,
            answer_within: Duration::from_secs(10),
            confirm_every: Duration::from_secs(1),
            unconfirmed_for: Duration::from_secs(10),
            stop_within: Duration::from_secs(30),
        }
    }
}
