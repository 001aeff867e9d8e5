//! A tree that is copied out of one mount while another one renames its directories and replaces
//! its files.
//!
//! Each content carries which file it is, its version, its length and a checksum. A copy that is
//! made meanwhile may lack files, and may have any version, but no content that no version had. A
//! copy that is made after the changes has to be equal to the tree. The copier is rsync; where it
//! is not installed, one of this module copies, with the same calls as `cp -a`.

use super::SceneFigures;
use super::players::{SceneRun, text};
use crate::harness::noise;
use crate::twins::several::BOUND;
use anyhow::{Context, Result, ensure};
use quorumfs_bft_simulator::random::Random;
use rustix::io::Errno;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const DIRECTORIES: u64 = 12;
const FILES: u64 = 8;
const BYTES_MAX: u64 = 60_000;
const PAUSE_MAX_MICROS: u64 = 6000;
/// What rsync returns if a file vanished, and if something could not be copied.
const VANISHED: i32 = 24;
const PARTIAL: i32 = 23;

/// The arguments of a process that changes the tree.
#[derive(Clone, Debug, clap::Args)]
pub struct ChangeTask {
    /// The tree.
    #[arg(long)]
    tree: PathBuf,
    /// Decides the changes.
    #[arg(long)]
    seed: u64,
}

/// The content of a version of a file.
fn content(directory: u64, file: u64, version: u64) -> Vec<u8> {
    let seed = (directory * FILES + file) << 32 | version;
    let length = Random::new(seed).below(BYTES_MAX);
    let body = noise(seed, usize::try_from(length).unwrap_or(0));
    let checksum = blake3::hash(&body).to_hex();
    let mut content = format!("{directory} {file} {version} {length} {checksum}\n").into_bytes();
    content.extend(body);
    content
}

/// Checks that a content is that of a version of this file.
fn check(content: &[u8], directory: u64, file: u64) -> Result<()> {
    let end = content
        .iter()
        .position(|it| *it == b'\n')
        .context("it has no first line")?;
    let (header, body) = (std::str::from_utf8(&content[..end])?, &content[end + 1..]);
    let words: Vec<&str> = header.split(' ').collect();
    let [its_directory, its_file, _, length, checksum] = words[..] else {
        anyhow::bail!("its first line is {header:?}");
    };
    let its = (its_directory.parse(), its_file.parse());
    ensure!(
        its == (Ok(directory), Ok(file)),
        "it is file {its_file} of {its_directory}"
    );
    let has = body.len();
    ensure!(length.parse() == Ok(has), "it has {has} bytes: {header:?}");
    ensure!(
        *blake3::hash(body).to_hex() == *checksum,
        "its checksum is wrong: {header:?}"
    );
    Ok(())
}

/// A directory has one of two names.
fn directory_name(directory: u64, renamed: bool) -> String {
    format!("{}-{directory}", if renamed { "moved" } else { "dir" })
}

fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, content)?;
    fs::rename(new, path)
}

/// Renames directories and replaces files until its input ends; prints how many of each.
pub(super) fn change(task: &ChangeTask) -> Result<()> {
    let (sender, ends) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        let _ = io::stdin().lock().read_line(&mut String::new());
        drop(sender);
    });
    let mut random = Random::new(task.seed);
    let mut renamed = vec![false; usize::try_from(DIRECTORIES)?];
    let mut versions = BTreeMap::<(u64, u64), u64>::new();
    let (mut renames, mut replacements) = (0_u64, 0_u64);
    while ends.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
        let directory = random.below(DIRECTORIES);
        let now = &mut renamed[usize::try_from(directory)?];
        let path = |renamed| task.tree.join(directory_name(directory, renamed));
        if random.chance(1, 4) {
            fs::rename(path(*now), path(!*now))?;
            *now = !*now;
            renames += 1;
        } else {
            let file = random.below(FILES);
            let version = versions.entry((directory, file)).or_default();
            *version += 1;
            let name = path(*now).join(format!("file-{file}"));
            replace(&name, &content(directory, file, *version))?;
            replacements += 1;
        }
        std::thread::sleep(Duration::from_micros(random.below(PAUSE_MAX_MICROS)));
    }
    println!("{renames} {replacements}");
    Ok(())
}

/// What a copy left out.
#[derive(Debug, Default)]
struct Missed {
    vanished: u64,
    /// Opens that met two replacements of their name.
    stale: u64,
}

impl Missed {
    /// Counts an error that a change at the same moment explains.
    fn allow<T>(&mut self, outcome: io::Result<T>) -> io::Result<Option<T>> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.vanished += 1;
                Ok(None)
            }
            Err(error) if error.raw_os_error() == Some(Errno::STALE.raw_os_error()) => {
                self.stale += 1;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Copies a tree of two levels, and removes from the copy what the tree does not have.
fn copy(from: &Path, to: &Path, missed: &mut Missed) -> Result<()> {
    fs::create_dir_all(to)?;
    let mut names = Vec::new();
    for entry in fs::read_dir(from)? {
        let Some(entry) = missed.allow(entry)? else {
            continue;
        };
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let Some(about) = missed.allow(fs::symlink_metadata(&source))? else {
            continue;
        };
        if about.is_dir() {
            // A directory that is renamed meanwhile ends its own part alone.
            let mut inside = Missed::default();
            match copy(&source, &target, &mut inside) {
                Err(error) => {
                    let error = error.downcast::<io::Error>()?;
                    let _: Option<()> = missed.allow(Err(error))?;
                }
                Ok(()) => names.push(entry.file_name()),
            }
            missed.vanished += inside.vanished;
            missed.stale += inside.stale;
            continue;
        }
        let Some(content) = missed.allow(fs::read(&source))? else {
            continue;
        };
        replace(&target, &content)?;
        let times = fs::FileTimes::new().set_modified(about.modified()?);
        fs::File::options()
            .write(true)
            .open(&target)?
            .set_times(times)?;
        names.push(entry.file_name());
    }
    for entry in fs::read_dir(to)? {
        let entry = entry?;
        if !names.contains(&entry.file_name()) {
            match entry.file_type()?.is_dir() {
                true => fs::remove_dir_all(entry.path())?,
                false => fs::remove_file(entry.path())?,
            }
        }
    }
    Ok(())
}

/// Copies with rsync. While the tree changes, files may vanish.
fn rsync(run: &SceneRun, from: &Path, to: &Path, quiet: bool, missed: &mut Missed) -> Result<()> {
    let mut command = Command::new("rsync");
    command
        .args(["-a", "--delete"])
        .args(quiet.then_some("--checksum"));
    command
        .arg(format!("{}/", text(from)))
        .arg(format!("{}/", text(to)));
    let end = run.run(format!("rsync from {}", text(from)), command)?;
    if end.is_success() {
        return Ok(());
    }
    let mut unexplained = Vec::new();
    for line in end.complaints.lines() {
        if line.contains("vanished") || line.contains("(2)") {
            missed.vanished += 1;
        } else if line.contains("(116)") {
            missed.stale += 1;
        } else if !line.contains("rsync error") && !line.contains("rsync warning") {
            unexplained.push(line);
        }
    }
    let partial = [Some(VANISHED), Some(PARTIAL)].contains(&end.code());
    ensure!(
        !quiet && partial && unexplained.is_empty(),
        "{}",
        end.describe()
    );
    Ok(())
}

/// The files of a tree of two levels, each checked, with their contents.
fn tree(root: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(root)? {
        let directory = entry?.file_name().to_string_lossy().into_owned();
        for entry in fs::read_dir(root.join(&directory))? {
            let file = entry?.file_name().to_string_lossy().into_owned();
            let name = format!("{directory}/{file}");
            let content = fs::read(root.join(&name)).with_context(|| name.clone())?;
            // The new version of a file may be copied before it is renamed, and before it is whole.
            if let Some(number) = file.strip_prefix("file-").filter(|it| !it.contains('.')) {
                let parent = directory.rsplit('-').next().unwrap_or_default();
                check(&content, parent.parse()?, number.parse()?)
                    .with_context(|| format!("{name} has content that no version had"))?;
            }
            files.insert(name, content);
        }
    }
    Ok(files)
}

/// Plays the scene.
pub(super) fn play(run: &SceneRun) -> Result<SceneFigures> {
    let root = run.path(0, "tree");
    fs::create_dir(&root)?;
    for directory in 0..DIRECTORIES {
        let path = root.join(directory_name(directory, false));
        fs::create_dir(&path)?;
        for file in 0..FILES {
            fs::write(
                path.join(format!("file-{file}")),
                content(directory, file, 0),
            )?;
        }
    }
    let with_rsync = Command::new("rsync").arg("--version").output();
    let with_rsync = with_rsync.is_ok_and(|it| it.status.success());
    let (from, to) = (run.path(1, "tree"), run.outside("copy"));
    let mut missed = Missed::default();
    let mut once = |quiet: bool| match with_rsync {
        true => rsync(run, &from, &to, quiet, &mut missed),
        false => copy(&from, &to, &mut missed).context("the copier, from mount 1"),
    };

    let (changed, seed) = (run.path(2, "tree"), run.plan.seed.to_string());
    let task = ["change", "--tree", text(&changed), "--seed", &seed];
    let changer = run.player("the process that changes the tree on mount 2".into(), &task)?;
    let mut copied = 0;
    for number in 0..run.plan.sizes.copies {
        once(false).with_context(|| format!("copy {number}, while the tree changes"))?;
        copied += tree(&to)
            .with_context(|| format!("copy {number} of mount 1"))?
            .len();
    }
    let changes = changer.finish()?.join(" ");
    let counted: Vec<u64> = changes
        .split(' ')
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    let [renames, replacements] = counted[..] else {
        anyhow::bail!("it printed {changes}");
    };
    // Names follow within the bound; then nothing changes any more.
    std::thread::sleep(BOUND);
    once(true).context("the copy after all changes")?;
    let (copy, mut trees) = (tree(&to)?, Vec::new());
    for mount in 0..super::mounts::MOUNTS {
        trees.push(tree(&run.path(mount, "tree")).with_context(|| format!("mount {mount}"))?);
    }
    for (mount, tree) in trees.iter().enumerate() {
        let names = tree.keys().chain(copy.keys());
        let other = names
            .into_iter()
            .find(|name| tree.get(*name) != copy.get(*name));
        if let Some(name) = other {
            anyhow::bail!("{name} differs between mount {mount} and the copy of mount 1");
        }
        let (has, made) = (tree.len() as u64, DIRECTORIES * FILES);
        ensure!(
            has == made,
            "mount {mount} has {has} files, and {made} were made"
        );
    }
    let Missed { vanished, stale } = missed;
    let copier = if with_rsync { "rsync" } else { "own" };
    let figures = json!({
        "copier": copier, "copies": run.plan.sizes.copies, "files_copied": copied,
        "renames": renames, "replacements": replacements, "vanished": vanished, "stale": stale,
    });
    let who = match with_rsync {
        true => "rsync",
        false => "the copier of this program (rsync is not installed)",
    };
    let sentence = format!(
        "{who} copied {copied} files in {} copies, during {renames} renames of directories and \
         {replacements} replacements of files on another mount; each had a content that a version \
         had, {vanished} names had vanished, {stale} opens were stale, and the last copy is equal.",
        run.plan.sizes.copies
    );
    Ok(SceneFigures::new(figures, sentence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_that_no_version_had_is_noticed() {
        let whole = content(3, 5, 7);
        assert!(check(&whole, 3, 5).is_ok());
        assert!(check(&whole, 3, 4).is_err());
        assert!(check(&whole[..whole.len() - 1], 3, 5).is_err());
        let mut mixed = content(3, 5, 8);
        let end = mixed.len().min(whole.len());
        mixed[end / 2..end].copy_from_slice(&whole[end / 2..end]);
        assert!(check(&mixed, 3, 5).is_err());
        assert!(check(b"", 3, 5).is_err());
    }
}
