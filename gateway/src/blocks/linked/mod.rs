//! Linked objects: reading without an account at any cloud, from presigned URLs alone.
//!
//! ```text
//!   a member:    StoredObject ──► presign each shard ──► LinkedObject   n digests and headers,
//!                                                            │           a URL for k + f shards
//!                                                            │ given away, sealed
//!   the opener:  any k shards that have their digests ◄──────┘
//!                  └──► rebuilt, all n digests compared ──► slices opened with their keys
//! ```
//!
//! Invariants:
//! * **Any f of the linked clouds may lie, or be away**: an object is linked only if at least k + f
//!   of its shards are, each at another cloud. So k good ones remain.
//! * **One content**: the opener codes what it has rebuilt again and compares all n digests, as a
//!   reader does with another principal's object. So which clouds answer changes nothing.
//! * **No byte is interpreted before it was proved** to be the one that the link names.
//! * A linked object gives away its length, its digests and its sealed bytes, and no key. The keys
//!   of its slices are given away one by one, by the capsule that names them.
//!
//! The header of a shard holds a code under a key of its cloud, which an opener does not have. So
//! the header itself is part of the link; the digest covers it.
//!
//! Failure modes: *a URL has expired or was revoked*. The provider refuses it, and the error counts
//! such refusals apart: more than f of them cannot be lies alone. *A shard moves to another cloud,
//! or is written again under another name*. Its URL answers that there is nothing; the others
//! serve. Once fewer than k are left, the link is dead: it has to be made anew.
//!
//! | Module | Content |
//! |---|---|
//! | `object` | what a link says of an object |
//! | `make` | linking an object at its clouds |
//! | `reader` | reading slices of linked objects |

mod make;
mod object;
mod reader;

pub use make::LinkFor;
pub(super) use make::link;
pub use object::{LinkedObject, LinkedShard};
pub use reader::{LinkedError, LinkedReader, UrlReader};
