//! Journals with arbitrary content.
//!
//! | Piece | Treatment |
//! |---|---|
//! | 0 | begins a file with a valid header |
//! | 1 | a record, appended correctly |
//! | 2 | offsets of its claimed sequence and durable sequence (1, 1); a record |
//! | 3 | appended unchanged |
//! | 4 | the whole content of a new file |
//! | 5 | how many bytes (2) are cut off the last file |

use super::disk::Disk;
use super::error::JournalError;
use super::framing::{Chain, FramePosition, Framing, Generation, Header, PAGE_BYTES};
use super::log::Log;
use super::record::{Entry, Ground, Record, Sequence};
use crate::decoders::{Piece, Seed};
use crate::keys::Secret;
use bytes::Bytes;
use quorumfs_bft::identity::ClusterId;
use quorumfs_metadata::attributes::{Mode, Timestamp};
use quorumfs_metadata::identity::{InodeId, InodeVersion, VolumeId};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const VOLUME: VolumeId = ClusterId([3; 16]);
const FILE_BYTES: u64 = 1 << 20;

fn secret() -> Secret {
    Secret::from_bytes([9; 32])
}

/// Files in memory. Clones are the same disk.
#[derive(Clone, Default)]
struct MemoryFiles(Arc<Mutex<BTreeMap<Generation, Vec<u8>>>>);

impl MemoryFiles {
    fn files(&self) -> MutexGuard<'_, BTreeMap<Generation, Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk for MemoryFiles {
    fn list(&mut self) -> io::Result<Vec<Generation>> {
        Ok(self.files().keys().copied().collect())
    }

    fn read(&mut self, file: Generation) -> io::Result<Vec<u8>> {
        let found = self.files().get(&file).cloned();
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn settle(&mut self, _: Generation) -> io::Result<()> {
        Ok(())
    }

    fn create(&mut self, file: Generation, header: &[u8]) -> io::Result<()> {
        match self.files().insert(file, header.to_vec()) {
            Some(_) => Err(io::ErrorKind::AlreadyExists.into()),
            None => Ok(()),
        }
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Some(mut last) = self.files().last_entry() {
            last.get_mut().extend_from_slice(bytes);
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn remove(&mut self, file: Generation) -> io::Result<()> {
        self.files().remove(&file);
        Ok(())
    }

    fn put_aside(&mut self, _: Generation) -> io::Result<()> {
        Ok(())
    }

    fn free_bytes(&mut self) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

/// Stores pieces.
struct Scribe {
    disk: MemoryFiles,
    generation: u64,
    framing: Option<Framing>,
    next: Sequence,
    chain: Chain,
}

impl Scribe {
    fn file(&mut self, bytes: Vec<u8>) {
        self.generation += 1;
        let file = Generation(self.generation);
        self.disk.files().insert(file, bytes);
    }

    fn begin(&mut self) {
        let header = Header {
            volume: VOLUME,
            identity: [4; 16],
            generation: Generation(self.generation + 1),
            first: self.next,
            chain: self.chain,
        };
        if let Ok((page, framing)) = header.seal(&secret()) {
            self.file(page);
            self.framing = Some(framing);
        }
    }

    /// Appends a record; a wrong position does not affect the records after it.
    fn record(&mut self, off: (u8, u8), record: &[u8]) {
        let (Some(framing), Some(entry)) = (&self.framing, Entry::decode(record)) else {
            return;
        };
        let sequence = Sequence(self.next.0 + u64::from(off.0));
        let durable = Sequence(self.next.0 + u64::from(off.1));
        let place = FramePosition {
            sequence,
            durable,
            chain: self.chain,
        };
        let mut group = Vec::new();
        if let Ok(chain) = framing.seal(place, &entry, &mut group) {
            let page = vec![0; group.len().next_multiple_of(PAGE_BYTES) - group.len()];
            // It goes to the last file, like all pieces.
            let _ = self.disk.append(&[group, page].concat());
            if off == (0, 0) {
                (self.next, self.chain) = (sequence.next(), chain);
            }
        }
    }

    fn lay(&mut self, (kind, piece): Piece<'_>) {
        match (kind % 6, piece) {
            (0, _) => self.begin(),
            (1, record) => self.record((0, 0), record),
            (2, [off, durable, record @ ..]) => self.record((*off, *durable), record),
            (4, bytes) => self.file(bytes.to_vec()),
            (5, [high, low, ..]) => {
                let less = usize::from(u16::from_be_bytes([*high, *low]));
                if let Some(mut last) = self.disk.files().last_entry() {
                    let length = last.get().len().saturating_sub(less);
                    last.get_mut().truncate(length);
                }
            }
            (_, bytes) => {
                let _ = self.disk.append(bytes);
            }
        }
    }
}

/// Opens the resulting journal, twice. Returns how many records wait.
///
/// # Panics
/// If waiting records are out of order, or the second result differs.
pub(crate) fn read(pieces: &[Piece<'_>]) -> usize {
    for (_, piece) in pieces {
        if let Some(entry) = Entry::decode(piece) {
            let mut again = Vec::new();
            entry.encode(&mut again);
            assert_eq!(again, *piece, "there is one encoding of it");
        }
    }
    let mut scribe = Scribe {
        disk: MemoryFiles::default(),
        generation: 0,
        framing: None,
        next: Sequence(1),
        chain: Chain::default(),
    };
    pieces.iter().for_each(|piece| scribe.lay(*piece));
    let open = || {
        let mut identities = 0_u8;
        let identity = move || {
            identities = identities.wrapping_add(1);
            Ok::<_, JournalError>([identities; 16])
        };
        let disk = scribe.disk.clone();
        Log::open(disk, secret(), VOLUME, FILE_BYTES, Box::new(identity))
    };
    let Ok((mut log, found)) = open() else {
        return 0;
    };
    let (mut last, mut waiting) = (Sequence(0), 0);
    let replayed = log.replay(&found, |sequence, entry| {
        assert!(sequence > last && entry.record.waits());
        (last, waiting) = (sequence, waiting + 1);
    });
    assert!(replayed.is_ok() && last < log.next());
    drop(log);
    match open() {
        Ok((_, again)) => {
            assert_eq!(again.tails, found.tails, "what waits is found again");
            assert_eq!(again.damage, None, "what is damaged was put aside");
        }
        Err(error) => assert_eq!(Some(error.to_string()), None),
    }
    waiting
}

/// Journals of two files: whole, with a tear, with garbage, with a file behind a hole.
pub(crate) fn seeds() -> Vec<Seed> {
    let inode = InodeId(7);
    let time = Timestamp {
        seconds: 5,
        nanos: 9,
    };
    let ground = Ground {
        version: InodeVersion(3),
        mtime: time,
    };
    let plain = |entry: Entry| {
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        bytes
    };
    let stands = |through| {
        plain(Entry::from(Record::Stands {
            inode,
            through: Sequence(through),
            ground,
        }))
    };
    let write = || {
        plain(Entry {
            record: Record::Write {
                inode,
                offset: 12,
                mtime: time,
            },
            bytes: Bytes::from_static(b"what was written"),
        })
    };
    let ordering = plain(Entry::from(Record::Ordering {
        inode,
        version: ground.version,
        mtime: Some(time),
    }));
    let attributes = plain(Entry::from(Record::Attributes {
        inode,
        mode: Some(Mode(0o640)),
        atime: None,
        mtime: Some(time),
    }));
    let other = plain(Entry::from(Record::GivenUp { inode: InodeId(8) }));
    let two_files = || {
        vec![
            (0, Vec::new()),
            (1, stands(0)),
            (1, write()),
            (1, ordering.clone()),
            (0, Vec::new()),
            (1, stands(2)),
            (1, attributes.clone()),
            (1, other.clone()),
            (1, write()),
        ]
    };
    let and = |more: Seed| [two_files(), more].concat();
    let misplaced = [&[1, 0][..], &write()].concat();
    let durable = [&[1, 2][..], &write()].concat();
    vec![
        two_files(),
        and(vec![(5, vec![0, 200])]),
        and(vec![(3, vec![0xa5; 300])]),
        and(vec![(2, misplaced)]),
        and(vec![(2, durable)]),
        and(vec![(4, vec![0; 5000])]),
        and(vec![(4, b"qfswrite".to_vec())]),
    ]
}
