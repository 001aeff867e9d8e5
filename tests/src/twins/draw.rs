//! Random steps.
//!
//! A step depends on the seed and on the current tree of the reference, so that most steps name
//! existing things, and the same seed draws the same steps again.

use super::picture::Picture;
use super::step::{AclEntry, Moment, Operation, Slot, Step, Text};
use super::user::{GROUPS, USERS, performer};
use quorumfs_bft_simulator::random::Random;
use std::collections::BTreeMap;

/// Beyond this number of inodes, most steps delete.
const TREE_MAX: usize = 60;
/// Open files of a user.
const SLOTS: u64 = 4;
const LAST_OFFSET: u64 = i64::MAX as u64;

const FILE_MODES: [u32; 14] = [
    0o644, 0o644, 0o600, 0o666, 0o666, 0o777, 0o755, 0o640, 0o444, 0o000, 0o4755, 0o2755, 0o6777,
    0o1666,
];
const DIRECTORY_MODES: [u32; 10] = [
    0o777, 0o777, 0o777, 0o755, 0o775, 0o1777, 0o2777, 0o3775, 0o700, 0o555,
];
const ATTRIBUTES: [&str; 9] = [
    "user.a",
    "user.b",
    "user.a",
    "user.c\u{e9}",
    "trusted.t",
    "security.s",
    "system.none",
    "plain",
    "security.capability",
];
/// A file capability in the kernel's format.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The frequency of events between operations.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// One of this many steps drops the kernel's caches.
    pub drop_caches: u64,
    /// One of this many waits.
    pub wait: u64,
    /// One of this many remounts.
    pub remount: u64,
    /// One of this many kills the mount; `None`: no kills.
    pub kill: Option<u64>,
}

/// Draws steps.
#[derive(Debug)]
pub struct Draw {
    random: Random,
    weather: Weather,
    known: Vec<(Text, Picture)>,
}

impl Draw {
    /// The steps of a seed.
    #[must_use]
    pub fn new(seed: u64, weather: Weather) -> Self {
        Self {
            random: Random::new(seed),
            weather,
            known: Vec::new(),
        }
    }

    /// Updates the known tree of the reference.
    pub fn learn(&mut self, tree: BTreeMap<Text, Picture>) {
        self.known = tree
            .into_iter()
            .filter(|(path, _)| !path.is_root())
            .collect();
    }

    /// The next step.
    pub fn step(&mut self) -> Step {
        let weather = self.weather;
        if self.random.chance(1, weather.drop_caches) {
            return Step::DropCaches;
        }
        if self.random.chance(1, weather.wait) {
            return Step::Wait(self.pick(&[300, 1200, 2200, 6000]));
        }
        if self.random.chance(1, weather.remount) {
            return Step::Remount;
        }
        if weather.kill.is_some_and(|rate| self.random.chance(1, rate)) {
            return Step::Kill;
        }
        let user = self.random.index(USERS.len());
        if self.known.len() > TREE_MAX && self.random.chance(1, 2) {
            let path = self.existing();
            let operation = match self.kind_of(&path) {
                Some(true) => Operation::RemoveDirectory { path },
                _ => Operation::Unlink { path },
            };
            return Step::Does { user: 0, operation };
        }
        let operation = self.operation();
        let user = performer(user, &operation);
        Step::Does { user, operation }
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.random.index(from.len())]
    }

    fn slot(&mut self) -> Slot {
        self.random.below(SLOTS) as Slot
    }

    fn kind_of(&self, path: &Text) -> Option<bool> {
        let found = self.known.iter().find(|(known, _)| known == path);
        found.map(|(_, picture)| picture.is_directory())
    }

    fn name(&mut self) -> Text {
        match self.random.below(40) {
            0 => Text(vec![b'n'; 255]),
            1 => Text(vec![b'n'; 256]),
            2 => {
                let bytes = (0..3).map(|_| self.random.between(1, 255) as u8);
                let bytes = bytes.map(|byte| if byte == b'/' { b'_' } else { byte });
                Text(bytes.collect())
            }
            3 => self
                .pick(&[" ", "-", ".hidden", "a\nb", "\\", "..."])
                .into(),
            _ => self.pick(&["a", "b", "c", "d", "e", "f", "g", "h"]).into(),
        }
    }

    fn existing(&mut self) -> Text {
        match self.known.len() {
            0 => "a".into(),
            count => self.known[self.random.index(count)].0.clone(),
        }
    }

    fn existing_of(&mut self, is_meant: impl Fn(&Picture) -> bool) -> Option<Text> {
        let meant = self.known.iter().filter(|(_, picture)| is_meant(picture));
        let meant: Vec<_> = meant.map(|(path, _)| path.clone()).collect();
        (!meant.is_empty()).then(|| meant[self.random.index(meant.len())].clone())
    }

    fn directory(&mut self) -> Text {
        match self.random.chance(1, 3) {
            true => ".".into(),
            false => self
                .existing_of(Picture::is_directory)
                .unwrap_or_else(|| ".".into()),
        }
    }

    /// A name that may exist or not.
    fn fresh(&mut self) -> Text {
        let directory = self.directory();
        directory.join(&self.name())
    }

    fn file(&mut self) -> Text {
        match self.random.below(10) {
            0..7 => match self.existing_of(Picture::is_file) {
                Some(path) => path,
                None => self.fresh(),
            },
            _ => self.any(),
        }
    }

    fn any(&mut self) -> Text {
        match self.random.below(100) {
            0..70 => self.existing(),
            70..95 => self.fresh(),
            95 => self.existing().join(&"x".into()),
            96 => Text([&self.existing().0[..], b"/"].concat()),
            97 => "missing/x".into(),
            98 => Text(b"a/".repeat(20).into_iter().chain(*b"z").collect()),
            _ => self.pick(&[".", "", "./a", "a/.", "a/../b"]).into(),
        }
    }

    fn offset(&mut self) -> u64 {
        match self.random.below(40) {
            0 => 1 << 32,
            1 => LAST_OFFSET - self.random.below(5000),
            2 => LAST_OFFSET,
            3 => (1 << 20) + self.random.below(70_000),
            4..12 => self.pick(&[0, 1, 511, 4095, 4096, 4097, 8192, 65_536]),
            12..16 => 0,
            _ => self.random.below(30_000),
        }
    }

    fn length(&mut self) -> usize {
        match self.random.below(24) {
            0 => 0,
            1 => self.random.below(140_000) as usize,
            2 => 4096,
            3 => 1,
            _ => self.random.below(6000) as usize,
        }
    }

    fn mode(&mut self) -> u32 {
        match self.random.below(8) {
            0 => self.random.below(0o10000) as u32,
            1..4 => self.pick(&DIRECTORY_MODES),
            _ => self.pick(&FILE_MODES),
        }
    }

    fn moment(&mut self) -> Moment {
        let nanos = self.random.below(1_000_000_000) as u32;
        match self.random.below(6) {
            0 => Moment::Omit,
            1 => Moment::Now,
            2 => Moment::At(
                self.pick(&[0, 1, (1 << 31) - 1, 1 << 31, 4_000_000_000]),
                nanos,
            ),
            _ => Moment::At(self.random.below(1_000_000_000) as i64, nanos),
        }
    }

    fn owner(&mut self) -> Option<u32> {
        match self.random.below(3) {
            0 => None,
            _ => Some(self.pick(&USERS).uid),
        }
    }

    fn group(&mut self) -> Option<u32> {
        match self.random.below(3) {
            0 => None,
            _ => Some(self.pick(&GROUPS)),
        }
    }

    fn list_of_access(&mut self) -> Vec<AclEntry> {
        const ANY: u32 = u32::MAX;
        let mut entries = Vec::new();
        let mut add = |tag, permissions: u64, id| {
            entries.push(AclEntry {
                tag,
                permissions: permissions as u16,
                id,
            });
        };
        let named = self.random.below(4);
        add(1, self.random.below(8), ANY);
        if named & 1 != 0 {
            add(
                2,
                self.random.below(8),
                USERS[self.random.between(1, 3) as usize].uid,
            );
        }
        add(4, self.random.below(8), ANY);
        if named & 2 != 0 {
            add(
                8,
                self.random.below(8),
                GROUPS[self.random.index(GROUPS.len())],
            );
        }
        if named != 0 || self.random.chance(1, 4) {
            add(16, self.random.below(8), ANY);
        }
        add(32, self.random.below(8), ANY);
        match self.random.below(20) {
            // Invalid lists, and the empty one.
            0 => entries.reverse(),
            1 => drop(entries.pop()),
            2 => entries.clear(),
            _ => {}
        }
        entries
    }

    fn value(&mut self) -> Text {
        match self.random.below(8) {
            0 => Text::default(),
            1 => Text(vec![0xff; 4000]),
            2 => Text(CAPABILITY.to_vec()),
            _ => Text(self.random.next().to_le_bytes().to_vec()),
        }
    }

    fn open_flags(&mut self) -> u32 {
        const ACCESS: [u32; 6] = [0, 1, 2, 2, 2, 2];
        const CREATE: u32 = 0o100;
        const REST: [u32; 9] = [
            0o200,
            0o1000,
            0o2000,
            0o40_000,
            0o200_000,
            0o400_000,
            0o1_000_000,
            0o4_010_000,
            0o10_000_000,
        ];
        const SELDOM: [u64; 9] = [8, 6, 4, 12, 40, 20, 20, 20, 60];
        let mut flags = self.pick(&ACCESS);
        if self.random.chance(1, 2) {
            flags |= CREATE;
        }
        for (flag, seldom) in REST.into_iter().zip(SELDOM) {
            if self.random.chance(1, seldom) {
                flags |= flag;
            }
        }
        flags
    }

    fn operation(&mut self) -> Operation {
        match self.random.below(100) {
            0..40 => self.on_an_open_file(),
            40..66 => self.on_names(),
            66..88 => self.on_attributes(),
            _ => self.looking(),
        }
    }

    fn on_an_open_file(&mut self) -> Operation {
        use Operation as O;
        let slot = self.slot();
        let (offset, length, stamp) = (self.offset(), self.length(), self.random.next());
        match self.random.below(40) {
            0..9 => {
                let path = if self.random.chance(1, 2) {
                    self.file()
                } else {
                    self.fresh()
                };
                O::Open {
                    slot,
                    path,
                    flags: self.open_flags(),
                    mode: self.mode(),
                }
            }
            9 => O::Close { slot },
            10 | 11 => O::Read { slot, length },
            12..15 => O::ReadAt {
                slot,
                offset,
                length,
            },
            15..19 => O::Write {
                slot,
                stamp,
                length,
            },
            19..25 => O::WriteAt {
                slot,
                offset,
                stamp,
                length,
            },
            25 | 26 => {
                let whence = self.random.below(5) as u8;
                let back = if whence == 0 {
                    0
                } else {
                    self.random.below(3000)
                };
                O::Seek {
                    slot,
                    whence,
                    offset: offset as i64 / 2 - back as i64,
                }
            }
            27 | 28 => O::SetLength {
                slot,
                length: offset,
            },
            29 => O::Truncate {
                path: self.file(),
                length: offset,
            },
            30 | 31 => {
                let flags = self.pick(&[0, 1, 3, 3, 0x10, 0x11, 2, 0x13, 0x40]);
                let (offset, length) = (self.random.below(100_000), self.random.below(60_000));
                O::Allocate {
                    slot,
                    flags,
                    offset,
                    length,
                }
            }
            32 | 33 => {
                let (to, at) = (self.slot(), self.random.below(20_000));
                O::CopyRange {
                    from: slot,
                    at,
                    to,
                    offset,
                    length,
                }
            }
            34 | 35 => O::Sync {
                slot,
                only_data: self.random.chance(1, 2),
            },
            36 if self.random.chance(1, 3) => {
                let (offset, length) = (self.random.below(9000) as usize, length.min(4000));
                O::Map {
                    slot,
                    offset,
                    stamp,
                    length,
                }
            }
            37 => O::ChmodOpen {
                slot,
                mode: self.mode(),
            },
            38 => O::ChownOpen {
                slot,
                user: self.owner(),
                group: self.group(),
            },
            _ => {
                let (exclusive, release) = (self.random.chance(1, 2), self.random.chance(1, 2));
                O::Flock {
                    slot,
                    exclusive,
                    release,
                }
            }
        }
    }

    fn on_names(&mut self) -> Operation {
        use Operation as O;
        match self.random.below(26) {
            0..5 => O::MakeDirectory {
                path: self.fresh(),
                mode: self.pick(&DIRECTORY_MODES),
            },
            5..7 => O::RemoveDirectory { path: self.any() },
            7..11 => O::Unlink { path: self.any() },
            11..18 => {
                let from = self.any();
                let to = match self.random.below(8) {
                    0 => from.join(&"inside".into()),
                    1..4 => self.existing(),
                    _ => self.fresh(),
                };
                let flags = self.pick(&[0, 0, 0, 0, 1, 2, 2, 3]);
                O::Rename { from, to, flags }
            }
            18..21 => {
                let (from, follow) = (self.any(), self.random.chance(1, 3));
                O::Link {
                    from,
                    to: self.fresh(),
                    follow,
                }
            }
            21..23 => {
                let target = match self.random.below(12) {
                    0 => Text(vec![b't'; 4095]),
                    1 => Text::default(),
                    2 => "loop/../x".into(),
                    _ => self.existing(),
                };
                O::MakeSymlink {
                    target,
                    path: self.fresh(),
                }
            }
            23 => O::ReadLink { path: self.any() },
            _ => {
                let kind = self.pick(&[0o10_000, 0o140_000, 0o20_000, 0o60_000, 0o100_000]);
                let mode = kind | self.pick(&FILE_MODES) & 0o777;
                let (major, minor) = (self.random.below(300) as u32, self.random.below(9) as u32);
                O::MakeNode {
                    path: self.fresh(),
                    mode,
                    major,
                    minor,
                }
            }
        }
    }

    /// The twin's own directory stays open to all users.
    fn any_below(&mut self) -> Text {
        let path = self.any();
        let is_root = matches!(&path.0[..], b"." | b"" | b"a/.." | b"./");
        if is_root { self.fresh() } else { path }
    }

    fn on_attributes(&mut self) -> Operation {
        use Operation as O;
        let (path, follow) = (self.any_below(), self.random.chance(1, 2));
        match self.random.below(24) {
            0..6 => {
                let mode = match self.kind_of(&path) {
                    Some(true) => self.pick(&DIRECTORY_MODES),
                    _ => self.mode(),
                };
                O::Chmod { path, mode }
            }
            6..9 => O::Chown {
                path,
                follow,
                user: self.owner(),
                group: self.group(),
            },
            9..12 => {
                let (accessed, modified) = (self.moment(), self.moment());
                O::SetTimes {
                    path,
                    follow,
                    accessed,
                    modified,
                }
            }
            12..16 => {
                let (name, value) = (Text::from(self.pick(&ATTRIBUTES)), self.value());
                let flags = self.pick(&[0, 0, 0, 1, 2]);
                let is_capability = name.0 == b"security.capability";
                let value = if is_capability {
                    Text(CAPABILITY.to_vec())
                } else {
                    value
                };
                O::SetAttribute {
                    path,
                    follow,
                    name,
                    value,
                    flags,
                }
            }
            16 | 17 => {
                let name = self.pick(&ATTRIBUTES).into();
                O::RemoveAttribute { path, follow, name }
            }
            18..22 => {
                let default = self.random.chance(1, 3);
                let path = match self.existing_of(Picture::is_directory) {
                    Some(directory) if default => directory,
                    _ => path,
                };
                O::SetAcl {
                    path,
                    default,
                    entries: self.list_of_access(),
                }
            }
            22 => {
                let name = self.pick(&["system.posix_acl_access", "system.posix_acl_default"]);
                O::RemoveAttribute {
                    path,
                    follow: true,
                    name: name.into(),
                }
            }
            _ => O::Umask {
                mode: self.pick(&[0, 0o022, 0o077, 0o027, 0o777]),
            },
        }
    }

    fn looking(&mut self) -> Operation {
        use Operation as O;
        let (path, follow) = (self.any(), self.random.chance(1, 2));
        match self.random.below(14) {
            0..4 => O::Access {
                path,
                mode: self.random.below(8) as u32,
            },
            4..8 => {
                let pause = self.random.below(6) as usize;
                O::List {
                    path: self.directory(),
                    pause,
                }
            }
            8..10 => O::Stat { path, follow },
            10 => O::Space { path },
            11 | 12 => O::GetAttribute {
                path,
                follow,
                name: self.pick(&ATTRIBUTES).into(),
            },
            _ => O::ListAttributes { path, follow },
        }
    }
}
