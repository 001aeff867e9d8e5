//! The gateway from outside: a file system over a metadata service in this process, and slices in
//! memory or clouds that fail. One program, because each would link everything again.

mod access_times;
mod alone_mounts;
mod behaviour;
mod budget;
mod cache_validity;
mod cancellation;
mod collection;
mod common;
mod disk_cache;
mod early_upload;
mod epochs;
mod extended;
mod fragments;
mod journal;
mod journal_floor;
mod listing;
mod locks;
mod lost_answers;
mod model;
mod packs;
mod parts;
mod prefetch;
mod quota;
mod rights;
mod shared_mounts;
mod tiers;
mod trash;
