//! Admission: which requests and frames a replica accepts, and how fast it serves its peers.
//!
//! Verified requests wait in a [`Pool`]. A peer that signed a bad message is on the [`Blacklist`]
//! for a while. What peers fetch is served at a [`Pace`]. Checks run from the cheapest to the most
//! expensive: blacklist, session and lane, credit, duplicate. The signature comes before all of
//! these only because the driver verifies on other threads.
//!
//! # Invariants
//!
//! * Nothing grows without bound. Every session has a credit, and the sum of all credits is
//!   bounded; openings have a small capacity of their own. Beyond these bounds the answer is BUSY,
//!   which means that sending again later helps.
//! * A session's request within its credit is never dropped, so a correct leader has the requests
//!   that its followers wait for.
//! * Sessions are served in turn: a session that sends much delays only itself. Principals that
//!   open sessions are served in turn too, and principals that the service would refuse come after
//!   all others.
//! * Only the signer of a bad message is punished, never a replica or client that the message
//!   names.
//!
//! Source: A. Clement, "UpRight Fault Tolerance" (2010), §3.3.1 (admission of client requests).

pub mod blacklist;
pub mod pace;
pub mod pool;

pub use blacklist::Blacklist;
pub use pace::Pace;
pub use pool::{Offer, Pool};
