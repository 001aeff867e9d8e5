//! The helper `mount.quorumfs`, which `mount(8)` calls to mount this type of file system:
//!
//! ```text
//! /etc/fstab   /var/lib/quorumfs/docs  /mnt/docs  quorumfs  tier=local,_netdev  0  0
//! mount(8)     mount.quorumfs /var/lib/quorumfs/docs /mnt/docs -o rw,tier=local,_netdev
//! here         quorumfs mount --state /var/lib/quorumfs/docs --background -o … /mnt/docs
//! ```
//!
//! It returns when the mount is ready, with the exit codes that `mount(8)` documents. The name by
//! which the program is called alone selects this mode, so a link is enough.

use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

/// The names: for the type `quorumfs` and the type `fuse.quorumfs`.
const NAMES: &[&str] = &["mount.quorumfs", "mount.fuse.quorumfs"];
const USAGE: &str = "mount.quorumfs STATE DIR [-fnsv] [-o OPTIONS] [-t TYPE]";

/// Whether this process was called as a helper of `mount(8)`.
pub(crate) fn is_called_as(program: Option<&OsStr>) -> bool {
    let name = program.and_then(|program| Path::new(program).file_name());
    name.is_some_and(|name| NAMES.iter().any(|known| name == *known))
}

/// The translated request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Nothing to do: a dry run.
    Nothing,
    /// This command line.
    Command(Vec<OsString>),
}

/// Translates the arguments after the program's name.
pub(crate) fn translate(arguments: impl Iterator<Item = OsString>) -> CommandResult<Wanted> {
    let wrong = |what: String| Failure::new(Exit::Usage, what).hint(USAGE);
    let (mut places, mut options, mut fake, mut sloppy) = (Vec::new(), Vec::new(), false, false);
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let text = argument.to_str().unwrap_or_default();
        let Some(letters) = text.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
            places.push(argument);
            continue;
        };
        for letter in letters.chars() {
            match letter {
                'f' => fake = true,
                's' => sloppy = true,
                // There is no table to write to, and nothing more to print.
                'n' | 'v' => {}
                'o' => {
                    let value = arguments.next();
                    options.push(value.ok_or_else(|| wrong("-o takes options".into()))?);
                }
                't' => drop(arguments.next()),
                _ => return Err(wrong(format!("`-{letter}` is not known"))),
            }
        }
    }
    let [state, point] = places.as_slice() else {
        let count = places.len();
        return Err(wrong(format!(
            "expected a state directory and a directory, not {count} words"
        )));
    };
    if fake {
        return Ok(Wanted::Nothing);
    }
    let mut command: Vec<OsString> = ["quorumfs", "mount", "--background", "--state"]
        .map(OsString::from)
        .to_vec();
    command.push(state.clone());
    if sloppy {
        command.push("--sloppy".into());
    }
    for option in options {
        command.push("-o".into());
        command.push(option);
    }
    command.push("--".into());
    command.push(point.clone());
    Ok(Wanted::Command(command))
}

/// The exit code that `mount(8)` expects.
pub(crate) fn code(exit: Exit) -> ExitCode {
    let code: u8 = match exit {
        Exit::Success => 0,
        Exit::Usage => 1,
        Exit::Cancelled => 8,
        _ => 32,
    };
    code.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> CommandResult<Wanted> {
        translate(line.split(' ').map(OsString::from))
    }

    #[test]
    fn a_helper_is_known_by_its_name() {
        for (name, is) in [
            ("/sbin/mount.quorumfs", true),
            ("mount.fuse.quorumfs", true),
            ("/usr/bin/quorumfs", false),
            ("mount.quorumfs.d/quorumfs", false),
        ] {
            assert_eq!(is_called_as(Some(OsStr::new(name))), is, "{name}");
        }
        assert!(!is_called_as(None));
    }

    #[test]
    fn what_mount_says_becomes_our_own_command_line() {
        let words = |line: &str| {
            let words = line.split(' ').map(OsString::from).collect();
            Wanted::Command(words)
        };
        assert_eq!(
            of("/state /mnt -n -v -o rw,tier=local,_netdev -t quorumfs").unwrap(),
            words("quorumfs mount --background --state /state -o rw,tier=local,_netdev -- /mnt")
        );
        assert_eq!(
            of("/state /mnt -sno ro").unwrap(),
            words("quorumfs mount --background --state /state --sloppy -o ro -- /mnt")
        );
        assert_eq!(of("/state /mnt -f -o rw").unwrap(), Wanted::Nothing);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_usage() {
        for line in [
            "/state",
            "/state /mnt /more",
            "/state /mnt -o",
            "/state /mnt -x",
        ] {
            let failure = of(line).unwrap_err();
            assert_eq!(failure.hint.as_deref(), Some(USAGE), "{line}");
        }
    }
}
