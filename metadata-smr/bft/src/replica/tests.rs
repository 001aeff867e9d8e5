//! A few replicas and clients in one process and in virtual time, to test the core by itself. The
//! simulator does much more of this; these tests run whenever the core changes.

mod admission;
mod checkpoints;
mod cluster;
mod copies;
mod faults;
mod garbage;
mod journal;
mod leaders;
mod normal;
mod observers;
mod proposals;
mod returning;
mod rollback;
mod transfer;
