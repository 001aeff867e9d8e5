//! The limit of open files: a replica has a connection to each of its clients.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit to what the administrator allows; the default suits a program of 1990.
pub(crate) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of open files is unchanged");
    }
}

/// The limit; nothing if it is unlimited.
pub(crate) fn most() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}
