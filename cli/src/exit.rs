//! Exit codes: one table, from which the enum, `--help` and the documentation's test are made.
//!
//! Scripts tell failures apart by these numbers, so that a number never changes its meaning. The
//! text for people is in [`crate::failure`].

use std::process::ExitCode;

macro_rules! exits {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $means:literal;)*) => {
        /// How a command ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Exit {
            $($(#[$doc])* $name,)*
        }

        impl Exit {
            /// Every way to end, in the order of the codes.
            pub(crate) const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The process's exit code.
            pub(crate) const fn code(self) -> u8 {
                match self { $(Self::$name => $code,)* }
            }

            /// What it means, for the table.
            pub(crate) const fn means(self) -> &'static str {
                match self { $(Self::$name => $means,)* }
            }
        }
    };
}

exits! {
    /// Done.
    Success = 0, "done";
    /// Something that has no code of its own.
    Error = 1, "an error that has no code of its own";
    /// The command line or a configuration file makes no sense.
    Usage = 2, "the command line or a configuration file makes no sense";
    /// Some of the paths were not handled.
    Partial = 3, "some of what was asked for was done, some not";
    /// Everything works, but a fault is being tolerated.
    Degraded = 4, "it works, but a cloud or a replica is missing";
    /// Not enough metadata replicas answer.
    QuorumUnreachable = 5, "too few metadata replicas answer";
    /// Not enough clouds answer.
    CloudsUnreachable = 6, "too few clouds answer, or one cannot be used at all";
    /// The kernel does not let us mount.
    CannotMount = 7, "the kernel does not let us mount (no /dev/fuse, no right to)";
    /// A disk or a quota is full.
    NoSpace = 8, "a disk or a quota is full";
    /// The path inside the volume does not exist, or may not be touched.
    Path = 9, "a path in the volume is missing, in the way or forbidden";
    /// There is no volume, or no replica, where we were told to look.
    NoVolume = 10, "there is no volume or replica here";
    /// Somebody else holds it.
    Held = 11, "somebody else holds it: another mount, an occupied mount point, a running process";
    /// The key is not the one that opens this.
    WrongKey = 12, "the key is not the one that opens this";
    /// What was stored came back damaged.
    Damaged = 13, "what was stored is damaged beyond what redundancy mends";
    /// A newer quorumfs wrote this.
    NewerFormat = 14, "a newer quorumfs wrote this";
    /// It belongs to another cluster.
    WrongCluster = 15, "it belongs to another cluster";
    /// Something was missing or bad, and is whole again.
    Restored = 16, "something was missing or bad, and was restored";
    /// A limit that protects from whoever steals credentials is not there.
    TooMuch = 17, "credentials allow more than their role may";
    /// The servers are at something older than what they showed before.
    WentBack = 18, "the metadata replicas have gone back in time";
    /// The user said stop.
    Cancelled = 130, "cancelled";
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// The table as `--help` shows it.
pub(crate) fn table() -> String {
    let rows = Exit::ALL
        .iter()
        .map(|exit| format!("  {:>3}  {}\n", exit.code(), exit.means()));
    format!("Exit codes:\n{}", rows.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_in_order() {
        let codes: Vec<_> = Exit::ALL.iter().map(|exit| exit.code()).collect();
        assert!(codes.windows(2).all(|pair| pair[0] < pair[1]), "{codes:?}");
    }

    #[test]
    fn the_documentation_lists_every_code() {
        let text = include_str!("../../docs/TROUBLESHOOTING.md");
        for exit in Exit::ALL {
            let row = format!("| {} | {} |", exit.code(), exit.means());
            assert!(text.contains(&row), "docs/TROUBLESHOOTING.md lacks: {row}");
        }
    }
}
