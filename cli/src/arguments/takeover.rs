//! Whose mount is fenced for a new one, as written on the command line and in `fstab`.

use quorumfs_bft::identity::SessionId;
use std::fmt;
use std::str::FromStr;

/// The mounts that a new one takes the volume from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TakeoverFrom {
    /// All that keep it out.
    All,
    /// That of this session, as `quorumfs mounts` names it.
    Session(SessionId),
}

impl TakeoverFrom {
    /// The word for all, which is what no word means.
    pub(crate) const ALL: &'static str = "all";
}

/// The number of a session.
pub(super) fn session(text: &str) -> Result<SessionId, String> {
    let number = text.parse().map(SessionId);
    number.map_err(|_| "the number of a session, as `quorumfs mounts` shows it".to_owned())
}

impl FromStr for TakeoverFrom {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == Self::ALL {
            return Ok(Self::All);
        }
        session(text)
            .map(Self::Session)
            .map_err(|expected| format!("{expected}, or `all`"))
    }
}

impl fmt::Display for TakeoverFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str(Self::ALL),
            Self::Session(session) => write!(f, "{}", session.0),
        }
    }
}
