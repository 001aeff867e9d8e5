//! `quorumfs bench`: what this machine can do, measured the way it is used.
//!
//! Everything that a figure depends on is in the line that carries it: the setting, the batches
//! that came about, view changes on the way. Processor time is that of all processes together, so
//! that a figure per core compares with those of others.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`smr`] | throughput and latency, with and without faults: the record |
//! | [`attacks`] | goodput while somebody means harm |
//! | [`trial`] | one measurement: a cluster, clients, faults, what was seen |
//! | [`cluster`] | replicas as processes, and what is done to them |
//! | [`load`] | clients that keep so many operations in flight, and what they saw |
//! | [`observers`] | who is told what replicas are, quickly and slowly |
//! | [`talk`] | what the bench and its processes say to each other |
//! | [`replica`] | such a process: a replica of a service that does nothing |
//! | [`bare`] | what stands in for a replica: the messages alone |
//! | [`wicked`] | a replica with a bad habit |
//! | [`attackers`] | clients and a replica that flood |
//! | [`parts`] | the core, signatures and a connection, each alone |
//! | [`seal`] | sealing and opening of blocks on one core |
//! | [`data`] | blocks and small files over clouds of stated latency and bandwidth |
//! | [`fs`] | the whole file system through the kernel, beside what FUSE allows at best |
//! | [`core`] | pure replicas in one thread |
//! | [`probe`] | one more of them, timed |

mod attackers;
pub(crate) mod attacks;
mod bare;
mod cluster;
mod core;
pub(crate) mod data;
mod flushing;
pub(crate) mod fs;
mod load;
mod observers;
pub(crate) mod parts;
mod probe;
pub(crate) mod replica;
pub(crate) mod seal;
pub(crate) mod smr;
mod talk;
mod trial;
mod wicked;

use crate::exit::Exit;
use crate::failure::{Failure, Outcome};

/// Seconds of processor time that this process has used.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Something that the bench needs does not work; there is nothing to advise.
fn failed(doing: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Exit::Error, format!("cannot {doing}: {error}"))
}

/// One line of what the two processes say.
fn line<T: serde::Serialize>(value: &T) -> Outcome<String> {
    let mut line = serde_json::to_string(value).map_err(|error| failed("encode", &error))?;
    line.push('\n');
    Ok(line)
}
