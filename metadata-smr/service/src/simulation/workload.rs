//! Random compounds and queries on a few names in a few directories, and claims about shards.
//!
//! Most are valid, many are not, so that refusals are exercised as well: wrong kinds, names that
//! are taken or missing, callers without permission, moves of a directory below itself. The caller
//! supplies the source of chance.

mod capsules;
pub mod locks;
pub mod mounts;
mod shards;

use super::{compound, place};
use crate::attributes::{Credentials, FileType, Mode, Timestamp};
use crate::identity::{Cookie, DeviceNumber, Gid, InodeId, RealmEpoch, Uid};
use crate::operation::{
    Accessed, Commit, Compound, Create, EntryPlace, NewContent, NewInode, Operation, Precondition,
    Remove, Rename, RenameMode, Restore, SetAttributes, SetTime, Step,
};
use crate::query::{Query, Question};
use crate::reply::{Done, Response, StepDone};
use crate::row::{Inline, Sealed};

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const MODES: [u16; 8] = [0o755, 0o777, 0o700, 0o644, 0o1777, 0o2775, 0o6755, 0o000];
/// Directories beyond this number are not entered.
const DIRECTORIES_MAX: usize = 6;

/// A message to the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// An operation to be ordered.
    Execute(Vec<u8>),
    /// A query.
    Query(Vec<u8>),
}

/// Makes random calls, and learns the existing inodes from replies.
#[derive(Clone, Debug)]
pub struct Workload {
    directories: Vec<InodeId>,
    others: Vec<InodeId>,
    files: Vec<InodeId>,
    opened: bool,
    held: bool,
    shards: shards::Shards,
    capsules: Option<capsules::Capsules>,
    /// What lost its last name, if the trash is used.
    removed: Option<Vec<InodeId>>,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            directories: vec![InodeId::ROOT],
            others: Vec::new(),
            files: Vec::new(),
            opened: false,
            held: false,
            shards: shards::Shards::default(),
            capsules: None,
            removed: None,
        }
    }
}

/// A source of chance: a number below its argument.
pub type Chance<'a> = &'a mut dyn FnMut(u64) -> u64;

impl Workload {
    /// A workload of one session, which also holds open files that it removes, and creates objects
    /// under its own ids.
    #[must_use]
    pub fn of_one_session() -> Self {
        Self {
            held: true,
            ..Self::default()
        }
    }

    /// As [`Self::of_one_session`], and it restores and purges what it removed.
    #[must_use]
    pub fn with_trash() -> Self {
        Self {
            removed: Some(Vec::new()),
            ..Self::of_one_session()
        }
    }

    /// As [`Self::of_one_session`], and it orders capsules, and that what no file needs is
    /// forgotten.
    #[must_use]
    pub fn with_capsules() -> Self {
        Self {
            capsules: Some(capsules::Capsules::default()),
            ..Self::of_one_session()
        }
    }

    /// The next call.
    pub fn next(&mut self, chance: Chance<'_>) -> Call {
        if !self.opened {
            // Lets every user work in the root.
            self.opened = true;
            let set = SetAttributes {
                mode: Some(Mode(0o1777)),
                ..SetAttributes::of(InodeId::ROOT)
            };
            let steps = vec![Step::SetAttributes(set)];
            let operation = compound(Credentials::root(), Timestamp::default(), steps);
            return Call::Execute(operation.to_bytes());
        }
        if let Some(capsules) = &self.capsules
            && chance(3) == 0
        {
            return capsules.next(&mut self.shards, chance);
        }
        if chance(4) == 0 {
            return Call::Query(self.query(chance).to_bytes());
        }
        let seldom = if self.capsules.is_some() { 2 } else { 6 };
        if self.held && chance(seldom) == 0 {
            // Known files get slices, so that there are slices to move.
            let file = pick(&self.files, chance).unwrap_or(InodeId::ROOT);
            if let Some(commit) = self.shards.commit(file, chance) {
                let (root, time) = (Credentials::root(), Timestamp::default());
                let operation = compound(root, time, vec![Step::Commit(commit)]);
                return Call::Execute(operation.to_bytes());
            }
        }
        if chance(8) == 0 {
            return Call::Execute(self.shards.operation(self.held, chance).to_bytes());
        }
        Call::Execute(self.operation(chance).to_bytes())
    }

    /// Learns from a reply.
    pub fn learn(&mut self, answer: &[u8]) {
        if let Some(capsules) = &mut self.capsules {
            capsules.learn(answer);
        }
        let steps = match Response::from_bytes(answer) {
            Ok(Response(Ok(Done::Compound(steps)))) => steps,
            Ok(Response(Ok(Done::Allocated { allocation, count }))) if self.held => {
                return self.shards.allocated(allocation, count);
            }
            _ => return,
        };
        for step in steps {
            self.learn_removed(&step);
            if let StepDone::Created { inode, .. } = step {
                let known = match inode.detail {
                    crate::attributes::Detail::Directory { .. } => &mut self.directories,
                    _ => &mut self.others,
                };
                if !known.contains(&inode.inode) {
                    known.push(inode.inode);
                }
                if inode.file_type() == FileType::File && !self.files.contains(&inode.inode) {
                    self.files.push(inode.inode);
                }
            }
        }
        if self.directories.len() > DIRECTORIES_MAX {
            // The root stays; of the others the oldest is dropped.
            self.directories.remove(1);
        }
        if self.others.len() > 16 {
            self.others.remove(0);
        }
        if self.files.len() > 6 {
            self.files.remove(0);
        }
    }

    fn learn_removed(&mut self, step: &StepDone) {
        let removed = match step {
            StepDone::Removed { removed, .. } => Some(removed),
            StepDone::Renamed { replaced, .. } => replaced.as_ref(),
            _ => None,
        };
        if let (Some(known), Some(removed)) = (&mut self.removed, removed) {
            known.push(removed.inode.inode);
            if known.len() > 8 {
                known.remove(0);
            }
        }
    }

    fn directory(&self, chance: Chance<'_>) -> InodeId {
        if chance(30) == 0 {
            return self.inode(chance);
        }
        pick(&self.directories, chance).unwrap_or(InodeId::ROOT)
    }

    fn inode(&self, chance: Chance<'_>) -> InodeId {
        match chance(6) {
            0 => InodeId(chance(40)),
            1 => pick(&self.directories, chance).unwrap_or(InodeId::ROOT),
            _ => pick(&self.others, chance).unwrap_or(InodeId::ROOT),
        }
    }

    fn place(&self, chance: Chance<'_>) -> EntryPlace {
        let parent = self.directory(chance);
        place(parent, pick(&NAMES, chance).unwrap_or("a"))
    }

    fn operation(&mut self, chance: Chance<'_>) -> Operation {
        let steps = match chance(5) {
            0 => vec![self.step(chance), self.step(chance)],
            _ => vec![self.step(chance)],
        };
        let mut operation = Compound {
            credentials: who(chance),
            time: Timestamp {
                seconds: i64::try_from(chance(1 << 30)).unwrap_or(0),
                nanos: 5,
            },
            preconditions: Vec::new(),
            steps,
        };
        if chance(8) == 0 {
            let place = self.place(chance);
            operation.preconditions.push(match chance(3) {
                0 => Precondition::Absent(place),
                1 => Precondition::Entry {
                    place,
                    inode: self.inode(chance),
                },
                _ => Precondition::Unchanged {
                    inode: self.inode(chance),
                    version: None,
                    ctime: None,
                },
            });
        }
        Operation::Compound(operation)
    }

    fn step(&mut self, chance: Chance<'_>) -> Step {
        if let Some(removed) = &self.removed
            && chance(5) == 0
        {
            let inode = pick(removed, chance).unwrap_or(InodeId::ROOT);
            let place = self.place(chance);
            return match chance(4) {
                0 => Step::Purge(vec![inode, self.inode(chance)]),
                _ => Step::Restore(Restore { inode, place }),
            };
        }
        match chance(20) {
            0..6 => Step::Create(Create {
                place: self.place(chance),
                kind: kind(chance),
                mode: mode(chance),
                umask: Mode(0),
                exclusive: chance(2) == 0,
                number: None,
            }),
            6..8 => Step::Link {
                inode: self.inode(chance),
                place: self.place(chance),
            },
            8..10 => Step::Unlink(self.removal(chance)),
            10..12 => Step::RemoveDirectory(self.removal(chance)),
            12..16 => Step::Rename(Rename {
                from: self.place(chance),
                to: self.place(chance),
                mode: match chance(5) {
                    0 => RenameMode::NoReplace,
                    1 => RenameMode::Exchange,
                    _ => RenameMode::Replace,
                },
                expected_source: None,
                expected_target: (chance(12) == 0).then_some(None),
                held: self.held && chance(2) == 0,
            }),
            16 if self.held => Step::Release {
                inode: self.inode(chance),
            },
            16 | 17 => Step::Commit(self.commit(chance)),
            18 if chance(2) == 0 => Step::Accessed(self.accessed(chance)),
            _ => Step::SetAttributes(self.attributes(chance)),
        }
    }

    fn accessed(&self, chance: Chance<'_>) -> Vec<Accessed> {
        (0..chance(4))
            .map(|_| Accessed {
                inode: self.inode(chance),
                time: Timestamp {
                    seconds: i64::try_from(chance(1 << 40)).unwrap_or(0),
                    nanos: 0,
                },
            })
            .collect()
    }

    fn removal(&self, chance: Chance<'_>) -> Remove {
        Remove {
            place: self.place(chance),
            expected: (chance(12) == 0).then(|| self.inode(chance)),
            held: self.held && chance(2) == 0,
        }
    }

    fn commit(&mut self, chance: Chance<'_>) -> Commit {
        if chance(2) == 0
            && let Some(commit) = self.shards.commit(self.inode(chance), chance)
        {
            return commit;
        }
        let length = u16::try_from(1 + chance(40)).unwrap_or(1);
        let sealed = Sealed {
            epoch: RealmEpoch(0),
            bytes: vec![0x5e; usize::from(length) + 28],
        };
        Commit {
            inode: self.inode(chance),
            expected: None,
            objects: Vec::new(),
            slices: Vec::new(),
            content: NewContent::Inline(Inline { length, sealed }),
            size: None,
            mtime: None,
        }
    }

    fn attributes(&self, chance: Chance<'_>) -> SetAttributes {
        let mut set = SetAttributes::of(self.inode(chance));
        match chance(6) {
            0 | 1 => set.mode = Some(mode(chance)),
            2 => set.uid = Some(Uid(999 + u32::try_from(chance(3)).unwrap_or(0))),
            3 => set.gid = Some(Gid(99 + u32::try_from(chance(3)).unwrap_or(0))),
            4 => set.size = Some(chance(64)),
            _ => {
                set.mtime = Some(match chance(2) {
                    0 => SetTime::Now,
                    _ => SetTime::To(Timestamp::default()),
                });
            }
        }
        set
    }

    fn query(&self, chance: Chance<'_>) -> Query {
        let credentials = who(chance);
        let question = match chance(5) {
            0 => Question::Attributes(self.inode(chance)),
            4 => self.shards.question(chance),
            1 => Question::Directory {
                inode: self.directory(chance),
                after: Cookie::START,
                limit: 64,
                by_handle: false,
            },
            _ => Question::Lookup(self.place(chance)),
        };
        Query {
            credentials,
            question,
        }
    }
}

fn pick<T: Copy>(from: &[T], chance: Chance<'_>) -> Option<T> {
    let length = u64::try_from(from.len())
        .ok()
        .filter(|length| *length > 0)?;
    let index = usize::try_from(chance(length)).ok()?;
    from.get(index).copied()
}

fn mode(chance: Chance<'_>) -> Mode {
    Mode(pick(&MODES, chance).unwrap_or(0o755))
}

fn who(chance: Chance<'_>) -> Credentials {
    match chance(4) {
        0 => Credentials::user(Uid(1000), Gid(100)),
        1 => Credentials {
            uid: Uid(1001),
            gid: Gid(101),
            groups: vec![Gid(100)],
        },
        _ => Credentials::root(),
    }
}

fn kind(chance: Chance<'_>) -> NewInode {
    match chance(12) {
        0..4 => NewInode::Directory,
        4..9 => NewInode::File,
        9 => NewInode::Symlink {
            length: 7,
            target: Sealed {
                epoch: RealmEpoch(0),
                bytes: b"sealed target".to_vec(),
            },
        },
        10 => NewInode::Fifo,
        _ => NewInode::CharacterDevice(DeviceNumber(0x0103)),
    }
}
