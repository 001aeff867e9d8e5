//! Ordering: a cluster of replica processes on this machine, over TLS on loopback. Their service
//! does nothing.
//!
//! Every figure is in one line with everything that it depends on: the setting, the batches, view
//! changes meanwhile. Processor time is that of all processes together, so that a figure per core
//! compares with those of others.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`throughput`] | throughput and latency, with and without faults: the record |
//! | [`attacks`] | goodput under attack |
//! | [`trial`] | one measurement: a cluster, clients, faults, the result |
//! | [`cluster`] | replica processes, and faults in them |
//! | [`load`] | clients that keep a number of operations in flight, and their latencies |
//! | [`observers`] | observers of the replicas, quick and slow |
//! | [`protocol`] | the messages between the bench and its processes |
//! | [`replica`] | such a process: a replica of a service that does nothing |
//! | [`baseline`] | a replacement for a replica: the messages alone |
//! | [`byzantine`] | a replica that misbehaves |
//! | [`distance`] | a core that is far from the others |
//! | [`attackers`] | clients and a replica that flood |
//! | [`flushing`] | additional durable writes |
//! | [`parts`] | the core, signatures and a connection, each alone |
//! | [`core`] | pure replicas in one thread |
//! | [`probe`] | one more of them, timed |

mod attackers;
pub(crate) mod attacks;
mod baseline;
mod byzantine;
mod cluster;
mod core;
mod distance;
mod flushing;
mod load;
mod observers;
pub(crate) mod parts;
mod probe;
mod protocol;
pub(crate) mod replica;
pub(crate) mod throughput;
mod trial;
