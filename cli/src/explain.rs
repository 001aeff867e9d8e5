//! Errors of the crates below, with exit codes for scripts and hints for people.
//!
//! Those errors say what, where and what to do in one sentence. This module adds the exit code, and
//! a hint where a command of this program helps.

use crate::exit::Exit;
use crate::failure::Failure;
use quorumfs_backends::{StoreError, StoreErrorKind};
use quorumfs_bft::client::End;
use quorumfs_bft_runtime::client::ClientError;
use quorumfs_fuse::MountError;
use quorumfs_gateway::backup::RecoveryError;
use quorumfs_gateway::blocks::{BackupError, BlockError, BlockErrorKind, ShareError};
use quorumfs_gateway::keys::KeyError;
use quorumfs_gateway::metadata::MetadataError;
use quorumfs_gateway::vfs::VfsError;
use quorumfs_gateway::volume::VolumeError;
use quorumfs_metadata::genesis::GenesisError;
use rustix::io::Errno;
use std::io::ErrorKind;
use std::path::Path;

/// A hint for servers that do not answer.
const STATUS: &str = "`quorumfs status` shows which replicas and clouds answer";

/// Servers that are behind the state that they showed before.
pub(crate) fn went_back(message: String) -> Failure {
    Failure::new(Exit::WentBack, message).hint(
        "if replicas were restored from copies, put back the newest state of each that exists; \
         see `Servers that went back in time` in docs/TROUBLESHOOTING.md",
    )
}

/// A backup or a recovery that failed.
pub(crate) fn recovery_failure(error: &RecoveryError) -> Failure {
    let message = error.to_string();
    match error {
        RecoveryError::Newer { .. } => Failure::new(Exit::NewerFormat, message),
        RecoveryError::NoPoint => Failure::new(Exit::Error, message).hint(
            "check that --cloud names the places of this volume's clouds, and that their \
             credentials may list",
        ),
        RecoveryError::TooFewListed { .. } | RecoveryError::TooFewAnswer { .. } => {
            Failure::new(Exit::CloudsUnreachable, message).hint(
                "bring one of these clouds back, or give it credentials that may list; clouds that \
                 were added after this kit was printed are known to a newer one (`volume \
                 renew-kit`)",
            )
        }
        RecoveryError::Backup(BackupError::Blocks(error)) => block_failure(error),
        RecoveryError::Backup(BackupError::Superseded { .. }) => {
            Failure::new(Exit::WrongCluster, message).hint(
                "take `volume.genesis` and the replicas in quorumfs.toml from the machine that \
                 recovered the volume",
            )
        }
        RecoveryError::Backup(_) => Failure::new(Exit::CloudsUnreachable, message),
        RecoveryError::Blocks(error) => block_failure(error),
        RecoveryError::Metadata(error) => vfs_failure(error),
        RecoveryError::Key(error) => key_failure(error),
        RecoveryError::Volume(error) => volume_failure(error),
        RecoveryError::Job(_) | RecoveryError::Copy(_) => {
            Failure::new(Exit::QuorumUnreachable, message).hint(STATUS)
        }
        RecoveryError::Damaged { .. }
        | RecoveryError::Rows(_)
        | RecoveryError::Unproved(_)
        | RecoveryError::Malformed => Failure::new(Exit::Damaged, message),
        RecoveryError::File { .. } => Failure::new(Exit::Error, message),
    }
}

/// A key that does not fit.
pub(crate) fn key_failure(error: &KeyError) -> Failure {
    let exit = match error {
        KeyError::File {
            doing,
            path,
            source,
        } => return key_file_failure(doing, path, source),
        KeyError::Newer { .. } => Exit::NewerFormat,
        KeyError::Locked { .. } => Exit::CloudsUnreachable,
        KeyError::EmptyPassphrase => Exit::Usage,
        KeyError::Random { .. } | KeyError::TooLong { .. } | KeyError::Derivation { .. } => {
            Exit::Error
        }
        KeyError::Forged { .. } => Exit::Damaged,
        _ => Exit::WrongKey,
    };
    Failure::new(exit, error.to_string())
}

/// A file with a secret that cannot be read or written.
pub(crate) fn key_file_failure(doing: &str, path: &Path, error: &std::io::Error) -> Failure {
    let failure = Failure::file(doing, path, error);
    match error.kind() {
        ErrorKind::NotFound => Failure {
            exit: Exit::WrongKey,
            ..failure
        }
        .hint("restore the key from its backup; without it, nothing here can be opened"),
        _ => failure,
    }
}

/// A volume that cannot be made or opened.
pub(crate) fn volume_failure(error: &VolumeError) -> Failure {
    match error {
        VolumeError::Key(error) => key_failure(error),
        VolumeError::Genesis(GenesisError::Newer { .. } | GenesisError::Older { .. }) => {
            Failure::new(Exit::NewerFormat, error.to_string())
        }
        VolumeError::Genesis(GenesisError::Decode(_)) => {
            Failure::new(Exit::Damaged, error.to_string())
                .hint("take the genesis from a replica's directory or from the recovery kit")
        }
        VolumeError::Shares(error) => share_failure(error),
        VolumeError::Metadata(error) => vfs_failure(error),
        VolumeError::WentBack(error) => went_back(error.to_string()),
        VolumeError::Raced { .. } => Failure::new(Exit::Held, error.to_string()),
        _ => Failure::new(Exit::Usage, error.to_string()),
    }
}

/// A second lock that cannot be opened or made.
pub(crate) fn share_failure(error: &ShareError) -> Failure {
    let exit = match error {
        ShareError::TooFew { .. } | ShareError::TooFewPlaced { .. } => Exit::CloudsUnreachable,
        ShareError::WrittenWrong { .. } => Exit::Damaged,
        ShareError::NewerFormat { .. } => {
            return Failure::new(Exit::NewerFormat, error.to_string());
        }
        ShareError::Made(_) => Exit::Usage,
    };
    let passes = matches!(error, ShareError::TooFew { passing: true, .. });
    let failure = Failure::new(exit, error.to_string()).hint(STATUS);
    failure.passing(passes)
}

/// An unusable cloud.
pub(crate) fn store_failure(error: &StoreError) -> Failure {
    Failure::new(store_exit(error.kind), error.to_string())
}

/// The exit code of a cloud's fault.
pub(crate) fn store_exit(kind: StoreErrorKind) -> Exit {
    match kind {
        StoreErrorKind::Full => Exit::NoSpace,
        StoreErrorKind::NewerFormat => Exit::NewerFormat,
        StoreErrorKind::Corrupt | StoreErrorKind::NotFound => Exit::Damaged,
        StoreErrorKind::Foreign => Exit::WrongCluster,
        StoreErrorKind::AlreadyExists => Exit::Held,
        StoreErrorKind::Unsupported => Exit::Usage,
        _ => Exit::CloudsUnreachable,
    }
}

/// A mount that the system refuses.
pub(crate) fn mount_failure(error: &MountError) -> Failure {
    let exit = match error {
        MountError::NoDevice
        | MountError::DeviceDenied { .. }
        | MountError::NotPermitted { .. } => Exit::CannotMount,
        MountError::Missing { .. } => Exit::Usage,
        MountError::NotADirectory { .. }
        | MountError::Occupied { .. }
        | MountError::Dead { .. }
        | MountError::NotEmpty { .. }
        | MountError::Busy { .. } => Exit::Held,
        _ => Exit::Error,
    };
    Failure::new(exit, error.to_string())
}

/// Replicas that do not answer, or refuse.
pub(crate) fn client_failure(error: &ClientError) -> Failure {
    match error {
        ClientError::Configuration(_) => Failure::new(Exit::Usage, error.to_string()),
        ClientError::SessionEnded(End::WentBack { .. }) => went_back(error.to_string()),
        ClientError::SessionEnded(_) => Failure::new(Exit::WrongKey, error.to_string()).hint(
            "the replicas do not know this key: it was removed (`quorumfs people ls` of \
                 another shows that), has ended, or is another volume's",
        ),
        ClientError::CommandRefused { .. } => Failure::new(Exit::Error, error.to_string())
            .hint("`quorumfs cluster status` shows the current replicas"),
        ClientError::TooLarge { .. } => Failure::new(Exit::Error, error.to_string()),
        _ => Failure::new(Exit::QuorumUnreachable, error.to_string()).hint(STATUS),
    }
}

/// A block store that cannot be opened.
pub(crate) fn block_failure(error: &BlockError) -> Failure {
    Failure::new(block_exit(error.kind()), error.to_string())
}

fn block_exit(kind: BlockErrorKind) -> Exit {
    match kind {
        BlockErrorKind::NoSpace => Exit::NoSpace,
        BlockErrorKind::Io | BlockErrorKind::Unreachable | BlockErrorKind::Shut => {
            Exit::CloudsUnreachable
        }
        BlockErrorKind::Corrupt => Exit::Damaged,
        BlockErrorKind::NewerFormat => Exit::NewerFormat,
        BlockErrorKind::Invalid | BlockErrorKind::Unsupported => Exit::Error,
    }
}

/// A call of the file system that failed, without a path.
pub(crate) fn vfs_failure(error: &VfsError) -> Failure {
    let (exit, message) = match error {
        VfsError::Refused { what, errno } => {
            let reason = std::io::Error::from(*errno);
            (errno_exit(*errno), format!("{what}: {reason}"))
        }
        VfsError::Full { what, reason, .. } => {
            return Failure::new(Exit::NoSpace, format!("{what}: {reason}"))
                .hint("remove something, or raise the limit with `quorumfs quota set`");
        }
        VfsError::OverBudget => {
            return Failure::new(Exit::NoSpace, error.to_string())
                .hint("`quorumfs cost` shows what the month cost so far");
        }
        VfsError::Fenced => (Exit::Held, error.to_string()),
        VfsError::Metadata(inner) if matches!(**inner, MetadataError::WentBack { .. }) => {
            return went_back(inner.to_string());
        }
        VfsError::Metadata(inner) => {
            let exit = match **inner {
                MetadataError::SessionEnded { .. } => Exit::Held,
                MetadataError::Answer { .. } => Exit::NewerFormat,
                _ => Exit::QuorumUnreachable,
            };
            (exit, error.to_string())
        }
        VfsError::Data { kind, .. } => (block_exit(*kind), error.to_string()),
        VfsError::Key(inner) => (key_failure(inner).exit, error.to_string()),
        VfsError::NoRoom { .. } => (Exit::CloudsUnreachable, error.to_string()),
        VfsError::Lost { errno, .. } | VfsError::LeftInJournal { errno, .. }
            if errno_exit(*errno) == Exit::NoSpace =>
        {
            (Exit::NoSpace, error.to_string())
        }
        VfsError::Lost { .. }
        | VfsError::LeftInJournal { .. }
        | VfsError::LockLost
        | VfsError::OtherKeys { .. }
        | VfsError::Internal { .. } => (Exit::Error, error.to_string()),
    };
    let failure = Failure::new(exit, message);
    match exit {
        Exit::QuorumUnreachable | Exit::CloudsUnreachable => failure.hint(STATUS),
        Exit::NoSpace => failure.hint("free some space on the clouds that `quorumfs status` names"),
        _ => failure,
    }
}

fn errno_exit(errno: Errno) -> Exit {
    match errno {
        Errno::NOSPC | Errno::DQUOT => Exit::NoSpace,
        _ => Exit::Path,
    }
}
