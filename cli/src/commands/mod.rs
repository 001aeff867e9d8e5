//! One module for each command, and what several of them share.

pub(crate) mod cloud;
mod cloud_report;
pub(crate) mod cluster;
mod disk_cache;
pub(crate) mod doctor;
pub(crate) mod epochs;
mod evidence;
pub(crate) mod files;
mod fleet;
mod force;
mod journal;
pub(crate) mod key;
mod local_lock;
mod members;
mod memory;
pub(crate) mod mount;
mod mount_options;
pub(crate) mod mount_point;
mod mount_report;
mod mount_wait;
pub(crate) mod observe;
mod opened;
pub(crate) mod quota;
pub(crate) mod reconcile;
pub(crate) mod recover;
pub(crate) mod replica;
pub(crate) mod rollback;
pub(crate) mod scrub;
mod shown;
pub(crate) mod status;
pub(crate) mod successor;
pub(crate) mod sync;
pub(crate) mod umount;
pub(crate) mod volume;
pub(crate) mod warmup;

pub(crate) use opened::Configured;
