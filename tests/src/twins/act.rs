//! Executes operations as this process's user, below its working directory.

use super::defect::Defect;
use super::picture::{Picture, attribute_names, list};
use super::step::{AclEntry, Moment, Operation, Slot, Text, content};
use rustix::fs::{self, Access, AtFlags, CWD, Mode, OFlags, SeekFrom, Timespec, Timestamps};
use rustix::io::{self, Errno};
use rustix::process::{Gid, Uid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

/// The outcome of an operation: a value or an error number.
pub type Outcome = Result<Value, i32>;

/// The value that a system call returned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Value {
    /// Success without a value.
    Done,
    /// A length or a position.
    Number(u64),
    /// Bytes: their number, a digest of all, and the first ones.
    Bytes(usize, String, Text),
    /// A target or a value.
    Text(Text),
    /// Names, sorted.
    Names(Vec<(Text, u32)>),
    /// Attributes.
    Attributes(Box<Picture>),
    /// An outcome that must not occur.
    Wrong(String),
}

/// A user's open files, and the planted defect of this user.
#[derive(Debug, Default)]
pub struct Actor {
    open: BTreeMap<Slot, OwnedFd>,
    /// Whether ranges are zeroed in another way, because tmpfs cannot zero them.
    pub zeroes: bool,
    /// The planted defect.
    pub defect: Option<Defect>,
}

/// Maps the file on standard input, prints the bytes at a position, and writes others there.
const MAP: &str = "import mmap,os,sys\n\
    size=os.fstat(0).st_size\n\
    if not 0<size<=1<<24: sys.exit(200)\n\
    try: m=mmap.mmap(0,0)\n\
    except OSError as e: sys.exit(e.errno)\n\
    a=int(sys.argv[1]); new=bytes.fromhex(sys.argv[2])\n\
    b=max(a,min(size,a+len(new)))\n\
    sys.stdout.buffer.write(m[a:b]); m[a:b]=new[:b-a]; m.flush(); m.close()";

const ZERO_RANGE: u32 = 0x10;
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;

impl Actor {
    /// Executes an operation.
    pub fn act(&mut self, operation: &Operation) -> Outcome {
        let changed = self.defect.map(|defect| defect.change(operation));
        let operation = match &changed {
            Some(None) => return Ok(Value::Done),
            Some(Some(changed)) => changed,
            None => operation,
        };
        self.call(operation).map_err(Errno::raw_os_error)
    }

    /// The state of an operation's open files.
    pub fn pictures(&self, operation: &Operation) -> Vec<Option<Picture>> {
        let file = |slot| self.open.get(&slot).map(fs::fstat);
        let slots = operation.slots().into_iter();
        slots
            .map(|slot| Some(Picture::of(&file(slot)?.ok()?)))
            .collect()
    }

    fn file(&self, slot: Slot) -> Result<&OwnedFd, Errno> {
        self.open.get(&slot).ok_or(Errno::BADF)
    }

    fn call(&mut self, operation: &Operation) -> Result<Value, Errno> {
        use Operation as O;
        let done = |_| Value::Done;
        match operation {
            O::Open {
                slot,
                path,
                flags,
                mode,
            } => {
                self.open.remove(slot);
                let always = OFlags::CLOEXEC | OFlags::NONBLOCK;
                let flags = OFlags::from_bits_retain(*flags) | always;
                let file = fs::openat(CWD, &path.0[..], flags, Mode::from_raw_mode(*mode))?;
                self.open.insert(*slot, file);
                Ok(Value::Done)
            }
            O::Close { slot } => match self.open.remove(slot) {
                // A dropped descriptor loses the result of `close`; `fsync` is a step.
                Some(_) => Ok(Value::Done),
                None => Err(Errno::BADF),
            },
            O::Read { slot, length } => {
                let mut bytes = vec![0; *length];
                let got = io::read(self.file(*slot)?, &mut bytes[..])?;
                Ok(bytes_value(&bytes[..got]))
            }
            O::ReadAt {
                slot,
                offset,
                length,
            } => {
                let mut bytes = vec![0; *length];
                let got = io::pread(self.file(*slot)?, &mut bytes[..], *offset)?;
                Ok(bytes_value(&bytes[..got]))
            }
            O::Write {
                slot,
                stamp,
                length,
            } => {
                let bytes = content(*stamp, *length);
                io::write(self.file(*slot)?, &bytes).map(number)
            }
            O::WriteAt {
                slot,
                offset,
                stamp,
                length,
            } => {
                let bytes = content(*stamp, *length);
                io::pwrite(self.file(*slot)?, &bytes, *offset).map(number)
            }
            O::Seek {
                slot,
                whence,
                offset,
            } => self.seek(*slot, *whence, *offset),
            O::SetLength { slot, length } => fs::ftruncate(self.file(*slot)?, *length).map(done),
            O::Truncate { path, length } => truncate(path, *length),
            O::Allocate {
                slot,
                flags,
                offset,
                length,
            } => self.allocate(*slot, *flags, *offset, *length),
            O::CopyRange {
                from,
                at,
                to,
                offset,
                length,
            } => {
                let (from, to) = (self.file(*from)?, self.file(*to)?);
                let (mut at, mut offset, mut copied) = (*at, *offset, 0);
                // It may copy less than requested, at any point.
                while copied < *length {
                    let (at, offset) = (Some(&mut at), Some(&mut offset));
                    match fs::copy_file_range(from, at, to, offset, length - copied) {
                        Ok(0) => break,
                        Ok(more) => copied += more,
                        Err(error) if copied == 0 => return Err(error),
                        Err(error) => {
                            return Ok(Value::Wrong(format!("after {copied}: {error}")));
                        }
                    }
                }
                Ok(number(copied))
            }
            O::Sync {
                slot,
                only_data: true,
            } => fs::fdatasync(self.file(*slot)?).map(done),
            O::Sync { slot, .. } => fs::fsync(self.file(*slot)?).map(done),
            O::Map {
                slot,
                offset,
                stamp,
                length,
            } => self.map(*slot, *offset, *stamp, *length),
            O::ChmodOpen { slot, mode } => {
                fs::fchmod(self.file(*slot)?, Mode::from_raw_mode(*mode)).map(done)
            }
            O::ChownOpen { slot, user, group } => {
                fs::fchown(self.file(*slot)?, uid(*user), gid(*group)).map(done)
            }
            O::Flock {
                slot,
                exclusive,
                release,
            } => {
                use rustix::fs::FlockOperation as F;
                let how = match (release, exclusive) {
                    (true, _) => F::Unlock,
                    (_, true) => F::NonBlockingLockExclusive,
                    _ => F::NonBlockingLockShared,
                };
                fs::flock(self.file(*slot)?, how).map(done)
            }
            other => by_path(other),
        }
    }

    /// Data and holes are queried without moving the position: twins may differ in that.
    fn seek(&self, slot: Slot, whence: u8, offset: i64) -> Result<Value, Errno> {
        let file = self.file(slot)?;
        // Each file system decides where a directory ends; tmpfs does not.
        let kind = fs::FileType::from_raw_mode(fs::fstat(file)?.st_mode);
        if whence >= 2 && kind == fs::FileType::Directory {
            return Err(Errno::INVAL);
        }
        let place = u64::try_from(offset).map_err(|_| Errno::INVAL);
        let to = match whence {
            0 => SeekFrom::Start(place?),
            1 => SeekFrom::Current(offset),
            2 => SeekFrom::End(offset),
            3 => SeekFrom::Data(place?),
            _ => SeekFrom::Hole(place?),
        };
        if whence < 3 {
            return fs::seek(file, to).map(Value::Number);
        }
        let before = fs::tell(file)?;
        let found = fs::seek(file, to);
        fs::seek(file, SeekFrom::Start(before))?;
        found.map(Value::Number)
    }

    fn allocate(&self, slot: Slot, flags: u32, offset: u64, length: u64) -> Result<Value, Errno> {
        let file = self.file(slot)?;
        let call = |flags: u32| {
            let flags = fs::FallocateFlags::from_bits_retain(flags);
            fs::fallocate(file, flags, offset, length)
        };
        if self.zeroes && flags & !KEEP_SIZE == ZERO_RANGE {
            call(PUNCH_HOLE | KEEP_SIZE)?;
            if flags & KEEP_SIZE == 0 {
                call(0)?;
            }
            return Ok(Value::Done);
        }
        call(flags).map(|()| Value::Done)
    }

    fn map(&self, slot: Slot, at: usize, stamp: u64, length: usize) -> Result<Value, Errno> {
        let file = self.file(slot)?;
        // An interpreter cannot start on a directory.
        let kind = fs::FileType::from_raw_mode(fs::fstat(file)?.st_mode);
        if kind != fs::FileType::RegularFile {
            return Err(Errno::NODEV);
        }
        let file = file.try_clone().map_err(|_| Errno::MFILE)?;
        let new: String = content(stamp, length)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let run = Command::new("python3")
            .args(["-S", "-E", "-c", MAP, &at.to_string(), &new])
            .stdin(Stdio::from(file))
            .output();
        match run {
            Ok(run) if run.status.success() => Ok(bytes_value(&run.stdout)),
            Ok(run) if run.stderr.is_empty() => {
                Err(Errno::from_raw_os_error(run.status.code().unwrap_or(255)))
            }
            Ok(run) => Ok(Value::Wrong(
                String::from_utf8_lossy(&run.stderr).into_owned(),
            )),
            Err(error) => Ok(Value::Wrong(format!("python3: {error}"))),
        }
    }
}

fn by_path(operation: &Operation) -> Result<Value, Errno> {
    use Operation as O;
    let done = |_| Value::Done;
    match operation {
        O::Chmod { path, mode } => {
            let mode = Mode::from_raw_mode(*mode);
            fs::chmodat(CWD, &path.0[..], mode, AtFlags::empty()).map(done)
        }
        O::Chown {
            path,
            follow,
            user,
            group,
        } => fs::chownat(CWD, &path.0[..], uid(*user), gid(*group), unless(*follow)).map(done),
        O::SetTimes {
            path,
            follow,
            accessed,
            modified,
        } => {
            let times = Timestamps {
                last_access: timespec(*accessed),
                last_modification: timespec(*modified),
            };
            fs::utimensat(CWD, &path.0[..], &times, unless(*follow)).map(done)
        }
        O::SetAttribute {
            path,
            follow,
            name,
            value,
            flags,
        } => {
            let flags = fs::XattrFlags::from_bits_retain(*flags);
            let call = if *follow { fs::setxattr } else { fs::lsetxattr };
            call(&path.0[..], &name.0[..], &value.0, flags).map(done)
        }
        O::GetAttribute { path, follow, name } => {
            let mut value = vec![0; 1 << 16];
            let (path, name) = (&path.0[..], &name.0[..]);
            let length = match follow {
                true => fs::getxattr(path, name, &mut value[..]),
                false => fs::lgetxattr(path, name, &mut value[..]),
            }?;
            value.truncate(length);
            Ok(Value::Text(Text(value)))
        }
        O::ListAttributes { path, .. } => {
            let mut names: Vec<_> = attribute_names(path)?
                .into_iter()
                .map(|it| (it, 0))
                .collect();
            names.sort();
            Ok(Value::Names(names))
        }
        O::RemoveAttribute { path, follow, name } => {
            let call = if *follow {
                fs::removexattr
            } else {
                fs::lremovexattr
            };
            call(&path.0[..], &name.0[..]).map(done)
        }
        O::SetAcl {
            path,
            default,
            entries,
        } => {
            let name = match default {
                true => "system.posix_acl_default",
                false => "system.posix_acl_access",
            };
            let flags = fs::XattrFlags::empty();
            fs::setxattr(&path.0[..], name, &acl(entries), flags).map(done)
        }
        O::MakeDirectory { path, mode } => {
            fs::mkdirat(CWD, &path.0[..], Mode::from_raw_mode(*mode)).map(done)
        }
        O::RemoveDirectory { path } => fs::unlinkat(CWD, &path.0[..], AtFlags::REMOVEDIR).map(done),
        O::Unlink { path } => fs::unlinkat(CWD, &path.0[..], AtFlags::empty()).map(done),
        O::Rename { from, to, flags } => {
            let flags = fs::RenameFlags::from_bits_retain(*flags);
            fs::renameat_with(CWD, &from.0[..], CWD, &to.0[..], flags).map(done)
        }
        O::Link { from, to, follow } => {
            let flags = if *follow {
                AtFlags::SYMLINK_FOLLOW
            } else {
                AtFlags::empty()
            };
            fs::linkat(CWD, &from.0[..], CWD, &to.0[..], flags).map(done)
        }
        O::MakeSymlink { target, path } => fs::symlinkat(&target.0[..], CWD, &path.0[..]).map(done),
        O::ReadLink { path } => fs::readlinkat(CWD, &path.0[..], Vec::new())
            .map(|target| Value::Text(Text(target.into_bytes()))),
        O::MakeNode {
            path,
            mode,
            major,
            minor,
        } => {
            let (kind, mode) = (mode & 0o170_000, Mode::from_raw_mode(mode & 0o7777));
            let kind = fs::FileType::from_raw_mode(kind);
            let device = fs::makedev(*major, *minor);
            fs::mknodat(CWD, &path.0[..], kind, mode, device).map(done)
        }
        O::Access { path, mode } => {
            let mode = Access::from_bits_retain(*mode);
            fs::accessat(CWD, &path.0[..], mode, AtFlags::empty()).map(done)
        }
        O::Umask { mode } => {
            let before = rustix::process::umask(Mode::from_raw_mode(*mode));
            Ok(Value::Number(u64::from(before.as_raw_mode())))
        }
        O::List { path, pause } => listing(path, *pause),
        O::Stat { path, follow } => {
            let stat = fs::statat(CWD, &path.0[..], unless(*follow))?;
            Ok(Value::Attributes(Box::new(Picture::of(&stat))))
        }
        O::Space { path } => {
            let space = fs::statvfs(&path.0[..])?;
            let sane = space.f_bavail <= space.f_bfree && space.f_bfree <= space.f_blocks;
            match sane && space.f_namemax == 255 && space.f_bsize > 0 {
                true => Ok(Value::Done),
                false => Ok(Value::Wrong(format!(
                    "blocks {} free {} available {} name {}",
                    space.f_blocks, space.f_bfree, space.f_bavail, space.f_namemax
                ))),
            }
        }
        _ => Err(Errno::NOSYS),
    }
}

/// Lists a directory, seeks back to a position on the way, and lists the rest once more.
fn listing(path: &Text, pause: usize) -> Result<Value, Errno> {
    let whole = list(path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = fs::openat(CWD, &path.0[..], flags, Mode::empty())?;
    let mut directory = fs::Dir::new(directory)?;
    let (mut names, mut place) = (Vec::new(), 0);
    while let Some(entry) = directory.read() {
        let entry = entry?;
        names.push(entry.file_name().to_owned());
        if names.len() == pause {
            place = entry.offset();
        }
    }
    if pause > 0 && names.len() >= pause {
        directory.seek(place)?;
        let rest = std::iter::from_fn(|| directory.read());
        let rest = rest.map(|it| it.map(|it| it.file_name().to_owned()));
        let rest = rest.collect::<Result<Vec<_>, _>>()?;
        if rest != names[pause..] {
            return Ok(Value::Wrong(format!(
                "after {pause} of {names:?}: {rest:?}"
            )));
        }
    }
    if names.len() != whole.len() + 2 {
        return Ok(Value::Wrong(format!("{whole:?}, then {names:?}")));
    }
    Ok(Value::Names(whole))
}

/// The standard library and rustix have `truncate` by handle only: `truncate` of a path is an
/// `open` for writing, followed by truncation.
fn truncate(path: &Text, length: u64) -> Result<Value, Errno> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = fs::openat(CWD, &path.0[..], flags, Mode::empty())?;
    fs::ftruncate(&file, length).map(|()| Value::Done)
}

fn unless(follow: bool) -> AtFlags {
    if follow {
        AtFlags::empty()
    } else {
        AtFlags::SYMLINK_NOFOLLOW
    }
}

fn uid(user: Option<u32>) -> Option<Uid> {
    user.map(Uid::from_raw)
}

fn gid(group: Option<u32>) -> Option<Gid> {
    group.map(Gid::from_raw)
}

fn timespec(moment: Moment) -> Timespec {
    let (tv_sec, tv_nsec) = match moment {
        Moment::Omit => (0, fs::UTIME_OMIT),
        Moment::Now => (0, fs::UTIME_NOW),
        Moment::At(seconds, nanos) => (seconds, i64::from(nanos)),
    };
    Timespec { tv_sec, tv_nsec }
}

/// In the kernel's format: version 2, then tag, permissions and id of each entry.
fn acl(entries: &[AclEntry]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for entry in entries {
        bytes.extend(entry.tag.to_le_bytes());
        bytes.extend(entry.permissions.to_le_bytes());
        bytes.extend(entry.id.to_le_bytes());
    }
    bytes
}

fn number(count: usize) -> Value {
    Value::Number(count as u64)
}

fn bytes_value(bytes: &[u8]) -> Value {
    let hash = blake3::hash(bytes).to_hex()[..16].to_owned();
    Value::Bytes(
        bytes.len(),
        hash,
        Text(bytes[..bytes.len().min(16)].to_vec()),
    )
}
