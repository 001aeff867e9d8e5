//! Exit codes: one table for the enum, `--help` and the test of the documentation.
//!
//! Scripts tell failures apart by these numbers, so a number never changes its meaning. The text
//! for people is in [`crate::failure`].

use std::process::ExitCode;

macro_rules! exits {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $means:literal;)*) => {
        /// How a command ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Exit {
            $($(#[$doc])* $name,)*
        }

        impl Exit {
            /// Every exit code, in order.
            pub(crate) const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The process's exit code.
            pub(crate) const fn code(self) -> u8 {
                match self { $(Self::$name => $code,)* }
            }

            /// Its meaning, for the table.
            pub(crate) const fn means(self) -> &'static str {
                match self { $(Self::$name => $means,)* }
            }
        }
    };
}

exits! {
    /// Done.
    Success = 0, "done";
    /// An error without a code of its own.
    Error = 1, "an error without a code of its own";
    /// The command line or a configuration file is invalid.
    Usage = 2, "the command line or a configuration file is invalid";
    /// Some of the paths were not handled.
    Partial = 3, "only some of the work was done";
    /// Everything works, but a fault is being tolerated.
    Degraded = 4, "it works, but a cloud or a replica is missing";
    /// Not enough metadata replicas answer.
    QuorumUnreachable = 5, "too few metadata replicas answer";
    /// Not enough clouds answer.
    CloudsUnreachable = 6, "too few clouds answer, or one cannot be used at all";
    /// The kernel does not permit mounting.
    CannotMount = 7, "the kernel does not permit mounting (no /dev/fuse, or no permission)";
    /// A disk or a quota is full.
    NoSpace = 8, "a disk or a quota is full";
    /// The path inside the volume does not exist, or may not be accessed.
    Path = 9, "a path in the volume is missing, in the way or forbidden";
    /// There is no volume or replica in the state directory.
    NoVolume = 10, "there is no volume or replica here";
    /// It is in use.
    Held = 11, "it is in use: another mount, an occupied mount point, a running process";
    /// The key is not the one that opens this.
    WrongKey = 12, "the key is not the one that opens this";
    /// Stored data is damaged.
    Damaged = 13, "stored data is damaged beyond repair";
    /// A newer quorumfs wrote this.
    NewerFormat = 14, "a newer quorumfs wrote this";
    /// It belongs to another cluster.
    WrongCluster = 15, "it belongs to another cluster";
    /// Something was missing or bad, and was restored.
    Restored = 16, "something was missing or bad, and was restored";
    /// A limit that protects against stolen credentials is missing.
    TooMuch = 17, "credentials allow more than their role may";
    /// The servers are behind the state that they showed before.
    WentBack = 18, "the metadata replicas went back in time";
    /// The user cancelled it.
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
