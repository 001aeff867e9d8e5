//! A cluster of real processes that are killed again and again while clients count.
//!
//! Four replicas, each a process with its own disk, of a service that holds counters; clients each
//! of whose hands counts up one counter, one operation after the other. An operation's answer has
//! to be one more than the answer before it: less would mean that an acknowledged operation was
//! lost, more that one was executed twice. At the end every counter is read back, in order.
//!
//! What is killed gets SIGKILL; what the kernel has taken survives that, so it is the journal's
//! order of writing and the recovery from it that is tried here, and not what a disk does when the
//! power fails (the simulator does that).
//!
//! | Module | What it holds |
//! |---|---|
//! | [`ledger`] | the service |
//! | [`replica`] | a process: one replica of it |
//! | [`cluster`] | the processes: started, killed, damaged, asked |
//! | [`load`] | the hands that count, and the check |
//! | [`run`] | what happens in which order, and the report |

pub mod cluster;
pub mod ledger;
pub mod load;
pub mod replica;
pub mod run;
