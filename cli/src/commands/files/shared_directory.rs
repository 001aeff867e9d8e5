//! The directory of the volume that all users may put something into.

use super::refused;
use super::walk::{child, names};
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use quorumfs_gateway::vfs::{FileSystem, FileType, InodeId};
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where it is.
pub(in crate::commands) const SHARED: &str = "/Shared";
/// Each user may put something there, and none may remove what is another's.
const SHARED_MODE: u32 = 0o1777;

/// A directory that files are put into: it is made unless it is there.
pub(in crate::commands) async fn ensure(fs: &FileSystem, path: &Path) -> CommandResult<InodeId> {
    let umask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    rustix::process::umask(umask);
    let mode = match path == Path::new(SHARED) {
        true => SHARED_MODE,
        false => 0o777 & !umask.as_raw_mode(),
    };
    let caller = fs.this_process();
    let (mut here, mut passed) = (fs.root(), PathBuf::from("/"));
    for name in names(path) {
        passed.push(name);
        let found = match child(fs, here, name.as_bytes(), &passed).await? {
            Some(found) => found,
            None => match fs.mkdir(&caller, here, name.as_bytes(), mode).await {
                Ok(made) => made,
                // Another command has made it.
                Err(error) if error.errno() == Errno::EXIST => {
                    let found = child(fs, here, name.as_bytes(), &passed).await?;
                    found.ok_or_else(|| refused(&passed, &error))?
                }
                Err(error) => {
                    let failure = refused(&passed, &error);
                    return Err(match error.errno() {
                        Errno::ACCESS | Errno::PERM => failure.or_hint(
                            "that directory is not there, and you may not make it: name one of \
                             yours with --to",
                        ),
                        _ => failure,
                    });
                }
            },
        };
        if found.file_type() != FileType::Directory {
            let message = format!("{} is not a directory", passed.display());
            return Err(Failure::new(Exit::Path, message).hint("name a directory with --to"));
        }
        here = found.inode;
    }
    Ok(here)
}
