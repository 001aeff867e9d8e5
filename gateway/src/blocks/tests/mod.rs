//! The block store as a whole, over clouds that lie.

mod backups;
mod bytes;
mod collecting;
mod compressed;
mod evidence;
mod faults;
mod harness;
mod packs;
mod poison;
mod preferred;
mod recovery;
mod replaced;
mod scrub;
mod shares;
