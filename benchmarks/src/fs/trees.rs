//! Many small files: made, read, removed, unpacked, listed, examined by git.

use super::{WorkloadPlaces, in_turns};
use crate::failure::{BenchFailure, BenchResult, failed};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

const SMALL_BYTES: usize = 4 << 10;
/// Files of a directory of a tree.
const SIBLINGS: u32 = 100;
/// The least number of directories to open in one round.
const DIRECTORIES: usize = 2000;
/// Threads that make the files to list: that is not measured.
const MAKERS: u32 = 4;

fn per_second(count: u32, began: Instant) -> f64 {
    f64::from(count) / began.elapsed().as_secs_f64()
}

/// Speeds of the phases of a small file's life, ours and the null file system.
pub(super) struct SmallFiles {
    pub(super) create: (f64, f64),
    pub(super) read: (f64, f64),
    pub(super) remove: (f64, f64),
}

/// Small files in a directory of their own.
struct SmallDirectory {
    path: PathBuf,
    files: Vec<PathBuf>,
}

impl SmallDirectory {
    fn make(root: &Path, count: u32) -> BenchResult<Self> {
        let path = root.join("small");
        fs::create_dir(&path).map_err(|error| BenchFailure::file("create", &path, &error))?;
        let files = (0..count).map(|number| path.join(number.to_string()));
        let files = files.collect();
        Ok(Self { path, files })
    }

    /// Does `work` with one file after the other.
    fn each(&self, doing: &str, work: impl Fn(&Path) -> std::io::Result<()>) -> BenchResult<f64> {
        let began = Instant::now();
        for path in &self.files {
            work(path).map_err(|error| BenchFailure::file(doing, path, &error))?;
        }
        let count = u32::try_from(self.files.len()).unwrap_or(u32::MAX);
        Ok(per_second(count, began))
    }

    fn create(&self) -> BenchResult<f64> {
        let content = vec![0x5a; SMALL_BYTES];
        self.each("write", |path| fs::write(path, &content))
    }

    fn read(&self) -> BenchResult<f64> {
        self.each("read", |path| fs::read(path).map(drop))
    }

    fn remove(self) -> BenchResult<f64> {
        let removed = self.each("remove", |path| fs::remove_file(path))?;
        fs::remove_dir(&self.path)
            .map_err(|error| BenchFailure::file("remove", &self.path, &error))?;
        Ok(removed)
    }
}

/// Creating and removing are measured once: each file is a measurement, and its cost does not
/// depend on a first time. Reading is measured by turns, since the content of the new files is
/// still on its way to the clouds at first, which takes the same processors.
pub(super) fn small_files(places: &WorkloadPlaces, count: u32) -> BenchResult<SmallFiles> {
    let ours = SmallDirectory::make(&places.ours, count)?;
    let null = SmallDirectory::make(&places.null, count)?;
    let create = (ours.create()?, null.create()?);
    let read = in_turns(|_| ours.read(), |_| null.read())?;
    let remove = (ours.remove()?, null.remove()?);
    Ok(SmallFiles {
        create,
        read,
        remove,
    })
}

/// Runs a program to its end, without output.
fn run(program: &str, arguments: &[&OsStr]) -> BenchResult {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| {
            failed(&format!("run `{program}`"), &error).hint("it has to be installed")
        })?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    let message = format!("`{program}` failed, {}: {}", output.status, words.trim());
    Err(BenchFailure::new(message))
}

/// A tree of small files of different lengths below a directory.
fn make_tree(root: &Path, count: u32) -> BenchResult {
    for number in 0..count {
        let directory = root.join(format!("d{}", number / SIBLINGS));
        if number % SIBLINGS == 0 {
            fs::create_dir_all(&directory)
                .map_err(|error| BenchFailure::file("create", &directory, &error))?;
        }
        let path = directory.join(format!("f{number}"));
        let length = 256 + (number as usize * 997) % 8192;
        let content: Vec<u8> = number
            .to_be_bytes()
            .into_iter()
            .cycle()
            .take(length)
            .collect();
        fs::write(&path, content).map_err(|error| BenchFailure::file("write", &path, &error))?;
    }
    Ok(())
}

/// `tar x` of a tree, in files per second. Leaves the last one below `untar`.
pub(super) fn untar(places: &WorkloadPlaces, count: u32) -> BenchResult<(f64, f64)> {
    let (tree, archive) = (places.local.join("tree"), places.local.join("tree.tar"));
    make_tree(&tree, count)?;
    let here: &OsStr = ".".as_ref();
    let pack = [
        "-c".as_ref(),
        "-f".as_ref(),
        archive.as_os_str(),
        "-C".as_ref(),
    ];
    run("tar", &[&pack[..], &[tree.as_os_str(), here]].concat())?;
    let unpack = |root: &Path| {
        let target = root.join("untar");
        fs::create_dir(&target).map_err(|error| BenchFailure::file("create", &target, &error))?;
        let began = Instant::now();
        let unpack = [
            "-x".as_ref(),
            "-f".as_ref(),
            archive.as_os_str(),
            "-C".as_ref(),
        ];
        run("tar", &[&unpack[..], &[target.as_os_str()]].concat())?;
        Ok(per_second(count, began))
    };
    Ok((unpack(&places.ours)?, unpack(&places.null)?))
}

/// `git status` of a tree without changes, in files per second, ours and on the local disk.
pub(super) fn git_status(places: &WorkloadPlaces, count: u32) -> BenchResult<(f64, f64)> {
    let (ours, local) = (places.ours.join("untar"), places.local.join("tree"));
    let git = |root: &Path, words: &[&str]| {
        let mut all: Vec<&OsStr> = vec!["-C".as_ref(), root.as_os_str()];
        for setting in ["user.name=bench", "user.email=bench@localhost", "gc.auto=0"] {
            all.extend(["-c".as_ref(), OsStr::new(setting)]);
        }
        all.extend(words.iter().map(OsStr::new));
        run("git", &all)
    };
    for root in [&ours, &local] {
        git(root, &["init", "-q"])?;
        git(root, &["add", "-A"])?;
        git(root, &["commit", "-q", "-m", "All of it"])?;
    }
    let status = |root: &Path| {
        let began = Instant::now();
        git(root, &["status", "--porcelain"])?;
        Ok(per_second(count, began))
    };
    in_turns(|_| status(&ours), |_| status(&local))
}

/// Makes empty files in directories of a hundred, several at a time.
fn make_names(root: &Path, count: u32) -> BenchResult {
    fs::create_dir(root).map_err(|error| BenchFailure::file("create", root, &error))?;
    let make = |maker: u32| {
        for first in (0..count).step_by(SIBLINGS as usize) {
            if first / SIBLINGS % MAKERS != maker {
                continue;
            }
            let directory = root.join(format!("d{first}"));
            let cannot = |error| BenchFailure::file("fill", &directory, &error);
            fs::create_dir(&directory).map_err(cannot)?;
            for number in first..count.min(first + SIBLINGS) {
                fs::File::create(directory.join(format!("f{number}"))).map_err(cannot)?;
            }
        }
        Ok(())
    };
    let make = &make;
    std::thread::scope(|scope| {
        let makers: Vec<_> = (0..MAKERS)
            .map(|maker| scope.spawn(move || make(maker)))
            .collect();
        let gone = || BenchFailure::new("a thread of the bench is gone");
        makers
            .into_iter()
            .try_for_each(|maker| maker.join().unwrap_or_else(|_| Err(gone())))
    })
}

/// Reads the attributes of everything below a directory, as `find -ls` does; returns the number of
/// entries.
fn walk(root: &Path) -> BenchResult<u32> {
    let cannot = |error| BenchFailure::file("list", root, &error);
    let mut seen = 0;
    for entry in fs::read_dir(root).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        let found = entry.metadata().map_err(cannot)?;
        seen += 1;
        if found.is_dir() {
            seen += walk(&entry.path())?;
        }
    }
    Ok(seen)
}

/// Speeds of listing a tree again, ours and the null file system.
pub(super) struct Looks {
    pub(super) list: (f64, f64),
    pub(super) open_directory: (f64, f64),
}

/// Opens and closes each directory below `root`, in directories per second: the kernel sends a
/// request for each, whatever it has cached.
fn open_directories(root: &Path, count: u32) -> BenchResult<f64> {
    let paths: Vec<PathBuf> = (0..count)
        .step_by(SIBLINGS as usize)
        .map(|first| root.join(format!("d{first}")))
        .collect();
    let times = DIRECTORIES.div_ceil(paths.len().max(1));
    let began = Instant::now();
    for path in std::iter::repeat_n(&paths, times).flatten() {
        fs::File::open(path).map_err(|error| BenchFailure::file("open", path, &error))?;
    }
    Ok((times * paths.len()) as f64 / began.elapsed().as_secs_f64())
}

/// A tree listed with attributes, in entries per second, and its directories opened.
pub(super) fn list(places: &WorkloadPlaces, count: u32) -> BenchResult<Looks> {
    let (ours, null) = (places.ours.join("names"), places.null.join("names"));
    make_names(&ours, count)?;
    make_names(&null, count)?;
    let wanted = count + count.div_ceil(SIBLINGS);
    let look = |root: &Path| {
        let began = Instant::now();
        let seen = walk(root)?;
        if seen != wanted {
            let root = root.display();
            let message = format!("{root} shows {seen} entries, and {wanted} were made");
            return Err(BenchFailure::new(message));
        }
        Ok(per_second(seen, began))
    };
    Ok(Looks {
        list: in_turns(|_| look(&ours), |_| look(&null))?,
        open_directory: in_turns(
            |_| open_directories(&ours, count),
            |_| open_directories(&null, count),
        )?,
    })
}
