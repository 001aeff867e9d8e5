//! Restrictions on a process before it reads a key.
//!
//! Keys are in memory while a volume is open or a replica runs. Three leaks need no break-in, and
//! are closed for every command:
//!
//! - *Dumps*: a core file of a crashed process, or a debugger of the same user ([`forbid_dumps`]).
//!   The superuser still may.
//! - *Files*: files in a state directory are for its owner, whatever the umask
//!   ([`keep_files_private`]); copies of users' files are made as the user wants.
//! - *The state directory*: a process that may write there can change the configuration, and with
//!   it the program that gives the passphrase ([`refuse_open_to_others`]).
//!
//! Memory is not locked: a mount's is too large for that. Encrypt swap, or have none.
//!
//! The default limit of open files suits a program of 1990. It is raised to what the administrator
//! allows ([`raise_open_files`]).

use crate::arguments::{Command, VolumeCommand};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use rustix::fs::Mode;
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit, umask,
};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The right of the group and of others to write.
const WRITES: u32 = 0o022;
/// Any of their rights.
const ANY: u32 = 0o077;
/// The files in a state directory that decide which programs are run and which files opened.
const CONFIGURATIONS: [&str; 2] = ["quorumfs.toml", "replica.toml"];

/// Prepares this process for its command.
pub(crate) fn begin(command: &Command) {
    raise_open_files();
    forbid_dumps();
    if makes_only_state(command) {
        keep_files_private();
    }
}

/// Whether all files that a command makes outside of a mount are state.
fn makes_only_state(command: &Command) -> bool {
    match command {
        Command::Replica(_) | Command::Mount(_) | Command::Key(_) | Command::Cluster(_) => true,
        Command::Serve(_) => true,
        Command::Volume(command) => matches!(command, VolumeCommand::Create(_)),
        _ => false,
    }
}

fn forbid_dumps() {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let core = setrlimit(Resource::Core, none);
    let dumps = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    if let Err(error) = core.and(dumps) {
        tracing::warn!(%error, "a crash or a debugger may write keys to the disk");
    }
}

fn keep_files_private() {
    umask(Mode::from_raw_mode(ANY));
}

/// Raises the limit of open files to the machine's maximum: a copy of a tree has each directory of
/// a path open, a replica has a connection to each of its clients.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of open files is unchanged");
    }
}

/// Refuses a state directory that other users may write to, as `ssh` does; if they may enter it,
/// warns, and refuses files in it that they may write.
pub(crate) fn refuse_open_to_others(state: &Path) -> CommandResult<()> {
    let mode = |path: &Path| {
        let found = std::fs::metadata(path).ok()?;
        Some(found.permissions().mode() & 0o7777)
    };
    // A directory that is missing or cannot be inspected is reported by its reader.
    let Some(directory) = mode(state) else {
        return Ok(());
    };
    if directory & WRITES != 0 {
        return Err(written_by_others(state, directory, "700"));
    }
    if directory & ANY == 0 {
        return Ok(());
    }
    for path in CONFIGURATIONS.map(|name| state.join(name)) {
        if let Some(mode) = mode(&path).filter(|mode| mode & WRITES != 0) {
            return Err(written_by_others(&path, mode, "600"));
        }
    }
    let (path, mode) = (state.display(), format!("{directory:04o}"));
    tracing::warn!(%path, mode, "others may enter the state directory: `chmod 700` it");
    Ok(())
}

fn written_by_others(path: &Path, mode: u32, right: &str) -> Failure {
    let path = path.display();
    let message = format!(
        "users other than its owner may write {path} (its mode is {mode:04o}), and so decide \
         which programs are run and which files opened"
    );
    Failure::new(Exit::Usage, message).hint(format!("`chmod {right} {path}`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::dumpable_behavior;
    use std::fs::{self, Permissions};

    #[test]
    fn neither_a_crash_nor_a_debugger_brings_keys_to_the_disk() {
        forbid_dumps();
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
        let limit = getrlimit(Resource::Core);
        assert_eq!((limit.current, limit.maximum), (Some(0), Some(0)));
        // This process can still inspect itself.
        assert!(fs::read_dir("/proc/self/fd").unwrap().count() > 2);
    }

    #[test]
    fn what_others_may_write_is_refused_and_how_to_mend_it_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let (path, file) = (directory.path(), directory.path().join("quorumfs.toml"));
        fs::write(&file, "").unwrap();
        let with = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            refuse_open_to_others(directory.path())
        };
        for mode in [0o700, 0o755, 0o750, 0o1700] {
            assert_eq!(with(path, mode), Ok(()), "{mode:o}");
        }
        for mode in [0o770, 0o702, 0o1777] {
            let failure = with(path, mode).unwrap_err();
            assert!(
                failure.message.contains(&format!("{mode:04o}")),
                "{failure}"
            );
            assert!(failure.hint.unwrap().contains("chmod 700"), "{mode:o}");
        }
        with(path, 0o700).unwrap();
        assert_eq!(with(&file, 0o664), Ok(()), "no other user gets there");
        let failure = with(path, 0o755).unwrap_err();
        assert!(failure.hint.unwrap().contains("chmod 600"));
        assert_eq!(with(&file, 0o644), Ok(()));
        assert_eq!(refuse_open_to_others(&path.join("not there yet")), Ok(()));
    }

    #[test]
    fn as_many_files_are_open_as_the_administrator_allows() {
        raise_open_files();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
