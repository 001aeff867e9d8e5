//! The rows of files, and the changes made to them.
//!
//! A file is five rows, shaped as in docs/FORMAT.md: its directory entry D under a random cookie,
//! its inode I, its extent E, its slice S, its object O. Inodes, slices and objects are numbered
//! consecutively; a directory has a hundred files. A change is a new size and times (I), the
//! removal of a whole file, or a new file; the file is chosen at random.

use bytes::{BufMut, Bytes, BytesMut};
use std::collections::VecDeque;

pub(crate) type Write = (Bytes, Option<Bytes>);

const ROWS_OF_A_FILE: u64 = 5;
const FILES_OF_A_DIRECTORY: u64 = 100;
const OPERATIONS_MAX: u64 = 64;

/// A generator of numbers that is the same on every run (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

const fn mix(seed: u64) -> u64 {
    let z = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The rows that are written and how they change.
pub(crate) struct Workload {
    random: Random,
    files: u64,
    waiting: VecDeque<Write>,
}

impl Workload {
    pub(crate) fn new() -> Self {
        Self {
            random: Random::new(7),
            files: 0,
            waiting: VecDeque::new(),
        }
    }

    fn value(&mut self, length: u64) -> Bytes {
        let mut value = BytesMut::new();
        while (value.len() as u64) < length {
            value.put_u64(self.random.next());
        }
        value.truncate(usize::try_from(length).unwrap_or(0));
        value.freeze()
    }

    fn create(&mut self) {
        let file = self.files;
        self.files += 1;
        let lengths = [
            70 + self.random.below(40),
            110 + self.random.below(40),
            40,
            48,
            190,
        ];
        for (key, length) in keys(file).into_iter().zip(lengths) {
            let value = self.value(length);
            self.waiting.push_back((key, Some(value)));
        }
    }

    fn change(&mut self) {
        let file = self.random.below(self.files);
        match self.random.below(10) {
            0..=5 => {
                let value = self.value(120);
                self.waiting.push_back((inode(file), Some(value)));
            }
            6 | 7 => self.waiting.extend(keys(file).map(|key| (key, None))),
            _ => self.create(),
        }
    }

    /// The next batch of one to 64 row writes, all of new files while `loads`.
    pub(crate) fn batch(&mut self, loads: bool) -> Vec<Write> {
        let size = 1 + self.random.below(OPERATIONS_MAX);
        let size = usize::try_from(size).unwrap_or(1);
        while self.waiting.len() < size {
            if loads {
                self.create();
            } else {
                self.change();
            }
        }
        self.waiting.drain(..size).collect()
    }

    /// A key of a file chosen at random.
    pub(crate) fn any_key(&mut self) -> Bytes {
        let file = self.random.below(self.files);
        let [entry, inode, extent, slice, object] = keys(file);
        match self.random.below(ROWS_OF_A_FILE) {
            0 => entry,
            1 => inode,
            2 => extent,
            3 => slice,
            _ => object,
        }
    }

    /// The range of the entries of a directory chosen at random.
    pub(crate) fn any_directory(&mut self) -> (Bytes, Bytes) {
        let directory = self.random.below(self.files) / FILES_OF_A_DIRECTORY;
        (numbered(b'D', directory), numbered(b'D', directory + 1))
    }
}

fn numbered(class: u8, number: u64) -> Bytes {
    let mut key = BytesMut::with_capacity(32);
    key.put_u8(class);
    key.put_u16(1);
    key.put_u64(number);
    key.freeze()
}

fn followed(class: u8, number: u64, second: u64) -> Bytes {
    let mut key = BytesMut::from(numbered(class, number).as_ref());
    key.put_u64(second);
    key.freeze()
}

fn inode(file: u64) -> Bytes {
    numbered(b'I', file)
}

fn keys(file: u64) -> [Bytes; 5] {
    let directory = file / FILES_OF_A_DIRECTORY;
    [
        followed(b'D', directory, mix(file)),
        inode(file),
        followed(b'E', file, 0),
        numbered(b'S', file),
        followed(b'O', file / 1_000, file),
    ]
}
