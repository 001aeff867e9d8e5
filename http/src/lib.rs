//! Links over HTTP: a read-only server of shared files and folders.
//!
//! A *link* is a URL with a secret token. A request that has it reads what the link leads to: a
//! file, or a folder and what is below it. This crate knows no volume and no replica: a
//! [`LinkSource`] says what a token leads to *now*, and reads it.
//!
//! ```text
//!  browser ── bytes ──► server ── route, conditions, admission ──► LinkSource
//!                         │            (pure: no clock, no I/O)       │
//!                         └◄── page, headers, archive ◄───────────────┘
//! ```
//!
//! | Module | What it decides or does |
//! |---|---|
//! | [`base`] | how links begin |
//! | [`token`], [`route`] | which link and which path a request names; nothing else is reachable |
//! | [`conditions`] | whole, a part, unchanged, or refused: `Range`, `If-…` (RFC 9110) |
//! | [`kind`], [`headers`] | what a browser may do with the content |
//! | [`escape`], [`page`] | names as text, as URLs, and as file names; the pages |
//! | [`archive`] | a folder as one ZIP archive |
//! | [`admission`] | how much one address may ask for |
//! | [`source`] | what the links lead to |
//! | [`server`] | sockets, TLS, time: everything that is not pure |
//! | [`limits`] | all bounds, with their reasons |
//!
//! What always holds:
//!
//! * **The token decides, each time.** The source is asked at each request, and again each second
//!   during a download. An answer is never cached. If it does not answer, nothing is served.
//! * **Nothing outside of the link.** A path is a list of names, none of which is `.`, `..`, empty,
//!   or has a slash or NUL in it; the source goes down name by name and follows no link.
//! * **Nothing is run.** What a browser would run (HTML, SVG, scripts) is only downloaded, and
//!   every answer forbids scripts.
//! * **A broken answer looks broken.** If reading fails in the middle, the connection is cut, so
//!   that no client takes a part for the whole.
//! * **Bounded.** Connections, downloads, headers, waiting times, memory for each; a reader that
//!   takes nothing is cut. No input makes it panic.
//!
//! Failure modes: a source that hangs or fails gives `503` with `Retry-After`; a token that is
//! unknown, ended, expired or mistyped gives the same `404`, so that trying tokens teaches nothing.

#[cfg(any(test, feature = "decoders"))]
#[allow(clippy::indexing_slicing, clippy::panic)]
pub mod decoding;

pub mod admission;
pub mod archive;
pub mod base;
pub mod conditions;
pub mod escape;
pub mod headers;
pub mod kind;
pub mod limits;
pub mod page;
pub mod route;
pub mod server;
pub mod source;
pub mod token;

pub use base::{BaseUrl, NotBaseUrl};
pub use limits::ServingLimits;
pub use server::{LinkServer, Served, ServingOptions, TlsFiles, TlsFilesError};
pub use source::{
    LinkSource, LinkTarget, ListedEntry, ListedPage, OpenContent, SourceError, TargetEntry,
    TargetKind,
};
pub use token::LinkToken;
