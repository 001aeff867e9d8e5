//! Messages as bytes.
//!
//! ```text
//!  Message ─► Unsigned ─sign─► Verified.frame ─network─► bytes ─admit─► Verified ─► Replica::step
//!  Message ─► encode ────────► frame (unsigned kinds) ─► bytes ─admit─► Verified
//! ```
//!
//! * [`message`]: the messages.  * [`frame`]: the header and the frame as a whole.
//! * [`signed_bytes`]: the input of signatures and digests.  * [`mod@admit`]: checking received
//!   frames.
//! * [`limits`]: every constant of the protocol.
//!
//! What always holds: a length is compared with its limit before anything is allocated; a frame is
//! its signed bytes and the signature, and those bytes are what is verified and kept; there is one
//! encoding of every message. `docs/FORMAT.md` has the layout, the fixtures of this crate pin it.

pub mod admit;
mod body;
pub mod frame;
mod kind;
pub mod limits;
pub mod message;
mod reader;
#[cfg(test)]
pub(crate) mod samples;
pub mod signed_bytes;

pub use admit::{Context, Rejection, Verified, admit};
pub use frame::{Envelope, Header, Malformed, Unsigned, encode};
pub use message::{Kind, Message};

pub(crate) use body::{
    decode_certificate, decode_committed, decode_nested, decode_prepared, decode_stable,
    encode_certificate, encode_committed, encode_nested, encode_prepared, encode_stable, nested,
};
pub(crate) use reader::{Field, Reader, write_bytes, write_list, write_option};
