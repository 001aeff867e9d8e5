//! A folder as one ZIP archive, made while it is sent.
//!
//! ZIP, because every system opens it without another program. Content is stored as it is: most of
//! what people share is compressed already, and a gateway's processor is for sealing. Lengths and
//! checksums follow each file (a *data descriptor*), since they are known only then; files and
//! archives beyond 4 GiB use ZIP64.
//!
//! The framing is `rawzip`'s. What it writes gathers in memory and is taken away after each piece,
//! so that an archive of any length needs memory for its names alone, which have a bound
//! ([`ARCHIVE_NAMES_BYTES_MAX`]): an archive lists all names once more at its end.
//!
//! Names are those of [`archived`], under a folder of the link's name. A file that cannot be read
//! to its end, or is changed meanwhile, breaks the archive off.

use crate::escape::archived;
use crate::limits::{ARCHIVE_ENTRIES_MAX, ARCHIVE_NAMES_BYTES_MAX};
use bytes::{Bytes, BytesMut};
use rawzip::ZipArchiveWriter;
use rawzip::time::UtcDateTime;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// Why an archive could not go on.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// Too many files.
    #[error("the folder has more files than one archive can list")]
    TooMany,
    /// The library refused.
    #[error("the archive could not be made: {0}")]
    Framing(#[from] rawzip::Error),
    /// The same, while data was written.
    #[error("the archive could not be made: {0}")]
    Data(#[from] io::Error),
}

/// What was written and not yet taken.
#[derive(Clone, Debug, Default)]
pub struct Gathered(Arc<Mutex<BytesMut>>);

impl Gathered {
    /// Takes it.
    #[must_use]
    pub fn take(&self) -> Bytes {
        let mut gathered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gathered.split().freeze()
    }
}

impl Write for Gathered {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut gathered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gathered.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An archive that is being made.
#[derive(Debug)]
pub struct ZipStream {
    archive: ZipArchiveWriter<Gathered>,
    gathered: Gathered,
    entries: usize,
    names_bytes: usize,
}

impl Default for ZipStream {
    fn default() -> Self {
        let gathered = Gathered::default();
        Self {
            archive: ZipArchiveWriter::new(gathered.clone()),
            gathered,
            entries: 0,
            names_bytes: 0,
        }
    }
}

impl ZipStream {
    /// What was written so far and not taken.
    #[must_use]
    pub fn gathered(&self) -> Gathered {
        self.gathered.clone()
    }

    fn count(&mut self, name: &str) -> Result<(), ArchiveError> {
        self.entries += 1;
        self.names_bytes = self.names_bytes.saturating_add(name.len());
        match self.entries > ARCHIVE_ENTRIES_MAX || self.names_bytes > ARCHIVE_NAMES_BYTES_MAX {
            true => Err(ArchiveError::TooMany),
            false => Ok(()),
        }
    }

    /// Adds a folder.
    ///
    /// # Errors
    /// If there are too many entries.
    pub fn folder(&mut self, path: &[&[u8]], modified: i64) -> Result<(), ArchiveError> {
        let name = format!("{}/", joined(path));
        self.count(&name)?;
        let folder = self.archive.new_dir(&name).unix_permissions(0o755);
        folder.last_modified(date(modified)).create()?;
        Ok(())
    }

    /// Begins a file, whose content is then written to it.
    ///
    /// # Errors
    /// If there are too many entries.
    pub fn file(&mut self, path: &[&[u8]], modified: i64) -> Result<ZipFile<'_>, ArchiveError> {
        let name = joined(path);
        self.count(&name)?;
        let file = self.archive.new_file(&name).unix_permissions(0o644);
        let (entry, config) = file.last_modified(date(modified)).start()?;
        Ok(ZipFile {
            data: config.wrap(entry),
        })
    }

    /// Ends the archive with the list of all names.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn finish(self) -> Result<Bytes, ArchiveError> {
        let gathered = self.archive.finish()?;
        Ok(gathered.take())
    }
}

/// A file of an archive that is being made.
pub struct ZipFile<'a> {
    data: rawzip::ZipDataWriter<rawzip::ZipEntryWriter<'a, Gathered>>,
}

impl ZipFile<'_> {
    /// Adds content.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), ArchiveError> {
        Ok(self.data.write_all(bytes)?)
    }

    /// Ends the file.
    ///
    /// # Errors
    /// If the library refuses.
    pub fn finish(self) -> Result<(), ArchiveError> {
        let (entry, descriptor) = self.data.finish()?;
        entry.finish(descriptor)?;
        Ok(())
    }
}

/// The date of an entry; dates before 1980 cannot be said in an archive.
fn date(modified: i64) -> UtcDateTime {
    const FIRST: i64 = 315_532_800;
    const LAST: i64 = 4_354_819_199;
    UtcDateTime::from_unix(modified.clamp(FIRST, LAST))
}

fn joined(path: &[&[u8]]) -> String {
    let names: Vec<String> = path.iter().map(|name| archived(name)).collect();
    names.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rawzip::ZipArchive;

    /// Names and contents of an archive, as the library reads it.
    fn read(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
        let archive = ZipArchive::from_slice(bytes).unwrap();
        let mut found = Vec::new();
        for entry in archive.entries() {
            let entry = entry.unwrap();
            let name = entry
                .file_path()
                .try_normalize()
                .unwrap()
                .as_str()
                .to_owned();
            let content = archive.get_entry(entry.wayfinder()).unwrap();
            found.push((name, content.data().to_vec()));
        }
        found
    }

    #[test]
    fn a_tree_is_read_back_as_it_was() {
        let (mut zip, mut bytes) = (ZipStream::default(), Vec::new());
        let gathered = zip.gathered();
        zip.folder(&[b"Photos"], 0).unwrap();
        for (name, content) in [
            (&b"a"[..], "one"),
            (b"b/..\\x", ""),
            ("ä".as_bytes(), "two"),
        ] {
            let mut file = zip.file(&[b"Photos", name], 1_700_000_000).unwrap();
            for byte in content.as_bytes() {
                file.write(&[*byte]).unwrap();
                bytes.extend_from_slice(&gathered.take());
            }
            file.finish().unwrap();
        }
        bytes.extend_from_slice(&zip.finish().unwrap());
        let expected = [
            ("Photos/", ""),
            ("Photos/a", "one"),
            ("Photos/b%2F..%5Cx", ""),
            ("Photos/ä", "two"),
        ];
        let found = read(&bytes);
        let found: Vec<_> = found
            .iter()
            .map(|(name, content)| (name.as_str(), std::str::from_utf8(content).unwrap()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn an_archive_keeps_a_bounded_number_of_names() {
        let mut zip = ZipStream {
            names_bytes: ARCHIVE_NAMES_BYTES_MAX - 3,
            ..ZipStream::default()
        };
        zip.file(&[b"abc"], 0).unwrap().finish().unwrap();
        assert!(matches!(zip.file(&[b"d"], 0), Err(ArchiveError::TooMany)));
        let mut zip = ZipStream {
            entries: ARCHIVE_ENTRIES_MAX,
            ..ZipStream::default()
        };
        assert!(matches!(zip.folder(&[b"d"], 0), Err(ArchiveError::TooMany)));
    }

    #[test]
    fn a_file_beyond_four_gibibytes_is_of_zip64() {
        let (mut zip, piece) = (ZipStream::default(), vec![0; 16 << 20]);
        let gathered = zip.gathered();
        let mut file = zip.file(&[b"large"], 0).unwrap();
        for _ in 0..257 {
            file.write(&piece).unwrap();
            drop(gathered.take());
        }
        file.finish().unwrap();
        let end = zip.finish().unwrap();
        let has = |signature: &[u8]| end.windows(4).any(|it| it == signature);
        assert!(
            has(b"PK\x06\x06") || has(&[0x01, 0, 16, 0]),
            "no field of ZIP64"
        );
        let length = (257_u64 * (16 << 20)).to_le_bytes();
        assert!(
            end.windows(8).any(|it| it == length),
            "no length of 64 bits"
        );
    }

    proptest! {
        #[test]
        fn whatever_the_names_are_nothing_is_a_path_upwards(
            names in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 1..4)
        ) {
            let path: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
            let mut zip = ZipStream::default();
            let mut file = zip.file(&path, i64::MIN).unwrap();
            file.write(b"x").unwrap();
            file.finish().unwrap();
            let bytes = zip.finish().unwrap();
            let found = read(&bytes);
            // The library would change a name that leads upwards: it had nothing to change.
            prop_assert_eq!(&found[0].0, &joined(&path));
            prop_assert_eq!(found[0].0.matches('/').count(), names.len() - 1);
        }
    }
}
