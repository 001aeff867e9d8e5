//! What stands between the network and the order.
//!
//! Verified requests wait in a [`Pool`]; who misbehaved with a signature of its own is on the
//! [`Blacklist`] for a while; what peers ask for is served at a [`Pace`]. Checks run from the
//! cheapest to the dearest: blacklist, session and lane, credit, duplicate, and the signature
//! before all of this only because the driver verifies on other threads.
//!
//! # What always holds
//!
//! * Nothing grows without bound: a session has its credit, and the credit of all has a sum;
//!   openings have a small room. Beyond it the answer is BUSY, which says that sending again later
//!   helps.
//! * Within its credit a session's request is never dropped, so a correct leader has what its
//!   followers wait for.
//! * Sessions are served in turn: one that sends much delays itself. So are principals that open
//!   sessions, and whoever the service would refuse stands behind them.
//! * Only the signer of a bad message is ever punished, never somebody named in it.
//!
//! Source: A. Clement, "UpRight Fault Tolerance" (2010), §3.3.1 (admission of client requests).

pub mod blacklist;
pub mod pace;
pub mod pool;

pub use blacklist::Blacklist;
pub use pace::Pace;
pub use pool::{Offer, Pool};
