//! The gateway from outside: a file system over a metadata service in this process, and slices in
//! memory or clouds that fail. One program, because each would link everything again.

mod access_times;
mod ahead;
mod behaviour;
mod believed;
mod common;
mod disk_cache;
mod epochs;
mod extended;
mod fragments;
mod giving_up;
mod journal;
mod journal_floor;
mod listing;
mod lost_answers;
mod model;
mod packs;
mod parts;
mod quota;
mod read_ahead;
mod rights;
mod tiers;
