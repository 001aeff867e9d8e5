//! The program itself, with real replicas, mounts and servers: a module for each subject.

mod bad_input;
mod broken_mounts;
mod clouds;
mod copying;
mod crashes;
mod disk_cache;
mod documents;
mod faults;
mod full_disks;
mod idle;
mod inside_the_mount;
mod kills;
mod membership;
mod memory;
mod mounting;
mod needles;
mod outages;
mod protected_key;
mod recordings;
mod recovery;
mod rekey;
mod roles;
mod rollback;
mod scrub;
mod signals;
mod twins;
