//! `quorumfs bench`: measures this machine under realistic use.
//!
//! Every figure is in one line with everything that it depends on: the setting, the batches, view
//! changes meanwhile. Processor time is that of all processes together, so that a figure per core
//! compares with those of others.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`smr`] | throughput and latency, with and without faults: the record |
//! | [`attacks`] | goodput under attack |
//! | [`trial`] | one measurement: a cluster, clients, faults, the result |
//! | [`cluster`] | replica processes, and faults in them |
//! | [`load`] | clients that keep a number of operations in flight, and their latencies |
//! | [`observers`] | observers of the replicas, quick and slow |
//! | [`protocol`] | the messages between the bench and its processes |
//! | [`replica`] | such a process: a replica of a service that does nothing |
//! | [`baseline`] | a replacement for a replica: the messages alone |
//! | [`byzantine`] | a replica that misbehaves |
//! | [`attackers`] | clients and a replica that flood |
//! | [`parts`] | the core, signatures and a connection, each alone |
//! | [`seal`] | sealing and opening of blocks on one core |
//! | [`data`] | blocks and small files over clouds of stated latency and bandwidth |
//! | [`fs`] | the whole file system through the kernel, compared with the best that FUSE allows |
//! | [`core`] | pure replicas in one thread |
//! | [`probe`] | one more of them, timed |

mod attackers;
pub(crate) mod attacks;
mod baseline;
mod byzantine;
mod cluster;
mod core;
pub(crate) mod data;
mod flushing;
pub(crate) mod fs;
mod load;
mod observers;
pub(crate) mod parts;
mod probe;
mod protocol;
pub(crate) mod replica;
pub(crate) mod seal;
pub(crate) mod smr;
mod trial;

use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};

/// Seconds of processor time that this process has used.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// An error of the bench itself, without a hint.
fn failed(doing: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Exit::Error, format!("cannot {doing}: {error}"))
}

/// One line of the protocol.
fn line<T: serde::Serialize>(value: &T) -> CommandResult<String> {
    let mut line = serde_json::to_string(value).map_err(|error| failed("encode", &error))?;
    line.push('\n');
    Ok(line)
}
