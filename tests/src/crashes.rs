//! A cluster of real processes that are repeatedly killed while clients count.
//!
//! Four replicas, each a process with its own disk, run a service that holds counters. Each client
//! has several tasks ("hands"), each of which counts up one counter, one operation after the other.
//! An operation's answer has to be one more than the answer before it: less would mean that an
//! acknowledged operation was lost, more that one was executed twice. At the end every counter is
//! read back, in order.
//!
//! Processes are killed with SIGKILL. What the kernel has taken survives that, so this tests the
//! journal's order of writing and the recovery from it, and not what a disk does when the power
//! fails (the simulator does that).
//!
//! | Module | Content |
//! |---|---|
//! | [`ledger`] | the service |
//! | [`replica`] | a process that runs one replica of it |
//! | [`cluster`] | the processes: started, killed, damaged, queried |
//! | [`load`] | the tasks that count, and the check |
//! | [`run`] | the order of events, and the report |

pub mod cluster;
pub mod ledger;
pub mod load;
pub mod replica;
pub mod run;
