//! Where a reply goes.

use crate::identity::ConnectionId;
use crate::wire::limits::{OPEN_CONNECTIONS_MAX, SESSION_CONNECTIONS_MAX};

/// The connections that a reply goes to: so few that they need no allocation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Listeners([Option<ConnectionId>; LISTENERS_MAX]);

const LISTENERS_MAX: usize = max(SESSION_CONNECTIONS_MAX, OPEN_CONNECTIONS_MAX);

const fn max(a: usize, b: usize) -> usize {
    if a > b { a } else { b }
}

impl Listeners {
    /// These; connections in excess of the limit are ignored.
    pub(super) fn of(connections: &[ConnectionId]) -> Self {
        let mut listeners = Self::default();
        let places = listeners.0.iter_mut().zip(connections);
        places.for_each(|(place, connection)| *place = Some(*connection));
        listeners
    }

    /// All of them.
    pub(super) fn connections(self) -> impl Iterator<Item = ConnectionId> {
        self.0.into_iter().flatten()
    }
}
