//! The files of a data directory: creating them durably, locking, and recovering the journal.

use super::error::failed;
use super::{DiskError, run_mark, segment, spare};
use quorumfs_bft::identity::Incarnation;
use quorumfs_bft::journal::{Condition, Entry, Journal, Record};
use quorumfs_bft::step::Token;
use rustix::fs::FlockOperation;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The format of the directory.
const FORMAT: u32 = 2;
const FORMAT_PREFIX: &str = "quorumfs replica data, format ";

/// Held while a process uses the directory; the kernel releases it when the process ends.
pub(super) struct Lock {
    _file: File,
}

/// The paths in a data directory.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    directory: PathBuf,
}

impl Layout {
    pub(super) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    pub(super) fn journal(&self) -> PathBuf {
        self.directory.join("journal")
    }

    pub(super) fn state(&self) -> PathBuf {
        self.directory.join("state")
    }

    pub(super) fn run(&self) -> PathBuf {
        self.directory.join("run")
    }

    fn format(&self) -> PathBuf {
        self.directory.join("format")
    }

    fn lost(&self) -> PathBuf {
        self.directory.join("lost")
    }

    fn discarded(&self) -> PathBuf {
        self.directory.join("journal.discarded")
    }

    fn incarnation(&self) -> PathBuf {
        self.directory.join("incarnation")
    }

    /// The directories of a new replica.
    pub(super) fn create(&self) -> Result<(), DiskError> {
        // An interrupted creation leaves at most a journal without anything else.
        if self.format().exists() || self.run().exists() || self.state().exists() {
            return Err(DiskError::AlreadyInitialised {
                path: self.directory.clone(),
            });
        }
        let path = self.journal();
        fs::create_dir_all(&path).map_err(failed("creating", &path))
    }

    /// Stores the incarnation of the first journal on this disk.
    pub(super) fn name(&self, incarnation: Incarnation) -> Result<(), DiskError> {
        write_durably(&self.incarnation(), &format!("{incarnation}\n"))
    }

    /// Reads the incarnation of the first journal.
    pub(super) fn named(&self) -> Result<Incarnation, DiskError> {
        let path = self.incarnation();
        let text = read(&path)?.unwrap_or_default();
        text.trim()
            .parse()
            .map_err(|_| DiskError::Nameless { path })
    }

    /// The last step of creation: from here on the directory is a replica's.
    pub(super) fn seal(&self) -> Result<(), DiskError> {
        write_durably(&self.format(), &format!("{FORMAT_PREFIX}{FORMAT}\n"))?;
        if let Some(parent) = self.directory.parent().filter(|path| path.is_dir()) {
            sync_directory(parent)?;
        }
        Ok(())
    }

    pub(super) fn lock(&self) -> Result<Lock, DiskError> {
        if !self.directory.is_dir() {
            return Err(DiskError::NotInitialised {
                path: self.directory.clone(),
            });
        }
        let path = self.directory.join("lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(failed("opening", &path))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Lock { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(DiskError::Locked { path }),
            Err(error) => Err(failed("locking", &path)(error.into())),
        }
    }

    pub(super) fn check_format(&self) -> Result<(), DiskError> {
        let path = self.format();
        let Some(text) = read(&path)? else {
            return Err(DiskError::NotInitialised {
                path: self.directory.clone(),
            });
        };
        match text.trim().strip_prefix(FORMAT_PREFIX) {
            Some(format) if format == FORMAT.to_string() => Ok(()),
            other => Err(DiskError::Format {
                path,
                found: other.unwrap_or("unknown").to_owned(),
                known: FORMAT,
            }),
        }
    }

    /// Reads the journal back and decides whether it is complete; returns it with the token of the
    /// next record.
    pub(super) fn recover(&self) -> Result<(Journal, Token), DiskError> {
        self.remove_discarded()?;
        let read_back = segment::read_all(&self.journal())?;
        let before = read(&self.lost())?.map(|reason| reason.trim().to_owned());
        // A journal that replaces a lost one contains a record of that, once it is durable.
        let begun_anew = before.is_some() && read_back.journal.entries.iter().any(begins_anew);
        let reason = match (&read_back.journal.condition, run_mark::possible_loss(self)?) {
            (Condition::Lost { reason }, _) => Some(reason.clone()),
            (_, Some(loss)) => Some(loss),
            (_, None) if begun_anew => None,
            (_, None) => before.clone(),
        };
        let Some(reason) = reason else {
            read_back.make_durable()?;
            if before.is_some() {
                let path = self.lost();
                fs::remove_file(&path).map_err(failed("removing", &path))?;
            }
            return Ok((read_back.journal, read_back.next));
        };
        // The verdict is stored first, so that nothing that happens afterwards makes it forgotten.
        write_durably(&self.lost(), &format!("{reason}\n"))?;
        self.set_journal_aside()?;
        self.remove_discarded()?;
        tracing::warn!(
            directory = %self.directory.display(), reason,
            "the journal is lost, and with it the promises of this replica: it follows and serves, \
             and votes again once the others have admitted it as a new one; keep those running"
        );
        Ok((Journal::lost(reason), Token(1)))
    }

    /// Moves the lost journal away. The first lost one is kept, later ones are removed because they
    /// are of no use. Each is moved as a whole: a journal whose files were removed one by one could
    /// leave a part that reads as complete, and as the replacement of an earlier one.
    pub(super) fn set_journal_aside(&self) -> Result<(), DiskError> {
        let (journal, aside) = (self.journal(), self.directory.join("journal.lost"));
        if journal.exists() {
            spare::remove_all(&journal)?;
            let to = match aside.exists() {
                true => self.discarded(),
                false => aside,
            };
            fs::rename(&journal, to).map_err(failed("moving aside", &journal))?;
        }
        fs::create_dir_all(&journal).map_err(failed("creating", &journal))?;
        sync_directory(&self.directory)
    }

    /// Removes journals that were moved away and are not kept.
    fn remove_discarded(&self) -> Result<(), DiskError> {
        let discarded = self.discarded();
        if !discarded.exists() {
            return Ok(());
        }
        // An earlier process may have ended between renaming and syncing.
        sync_directory(&self.directory)?;
        fs::remove_dir_all(&discarded).map_err(failed("removing", &discarded))
    }
}

/// Whether this record marks its journal as the replacement of a lost one.
fn begins_anew(entry: &Entry) -> bool {
    matches!(Record::decode(&entry.record), Ok(Record::Incarnation(_)))
}

/// The text of a file, if there is one.
pub(super) fn read(path: &Path) -> Result<Option<String>, DiskError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("reading", path)(error)),
    }
}

/// Replaces a small file: after a crash it is the old one or the new one.
pub(super) fn write_durably(path: &Path, text: &str) -> Result<(), DiskError> {
    let draft = path.with_extension("new");
    let mut file = File::create(&draft).map_err(failed("creating", &draft))?;
    file.write_all(text.as_bytes())
        .map_err(failed("writing", &draft))?;
    sync(&file, &draft)?;
    fs::rename(&draft, path).map_err(failed("renaming", &draft))?;
    match path.parent() {
        Some(parent) => sync_directory(parent),
        None => Ok(()),
    }
}

/// `fdatasync`: the file's bytes and its length.
pub(crate) fn sync(file: &File, path: &Path) -> Result<(), DiskError> {
    rustix::fs::fdatasync(file).map_err(|error| failed("syncing", path)(error.into()))
}

/// `fsync` of a directory: makes its entries durable.
pub(crate) fn sync_directory(path: &Path) -> Result<(), DiskError> {
    let directory = File::open(path).map_err(failed("opening", path))?;
    rustix::fs::fsync(&directory).map_err(|error| failed("syncing", path)(error.into()))
}
