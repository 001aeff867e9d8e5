//! `open`: what a capsule leads to, on a machine that has nothing of the volume.
//!
//! It needs neither a state directory nor a server of ours: the link says where the clouds have
//! everything and which keys open it. The maker of the link decides everything that comes out of
//! it, and may be anyone. So:
//!
//! - What is put here is new: nothing that exists is replaced, entered or written through, and a
//!   name at the top that is hidden is not put where the user may not expect one.
//! - A name is a name and never a path; no link is followed ([`Below`]); a symbolic link leads to
//!   something within (`quorumfs_gateway::capsule` checks both before anything is written).
//! - New inodes get the permissions of the capsule, reduced by the user's umask; never a set-id
//!   bit, an owner or an attribute.

use super::below::{Below, Marks, write_at};
use super::{CommandProgress, OWNER, Summary, Taking, date};
use crate::arguments::OpenArguments;
use crate::commands::people::harmless;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::output::{Output, line};
use crate::stop::Stop;
use async_trait::async_trait;
use bytes::Bytes;
use quorumfs_backends::presigned::PresignedReader;
use quorumfs_backends::{Deadline, StoreError};
use quorumfs_gateway::blocks::{LinkedReader, UrlReader, check_processor};
use quorumfs_gateway::capsule::{
    CapsuleEntry, CapsuleError, CapsuleLink, EntryKind, LinkTextError, LinkedContent, Manifest,
    OpenedCapsule, PREFIX,
};
use quorumfs_http::page::size;
use serde::Serialize;
use std::ffi::OsStr;
use std::io::{IsTerminal as _, Read as _};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is in each link, also if a letter of its beginning was not copied.
const LIKE_A_LINK: &str = "-capsule-";
/// A path is no longer than this.
const PATH_BYTES_MAX: usize = 4096;
/// The bytes of a file that should hold a link.
const LINK_BYTES_MAX: u64 = 256 << 10;
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Asks by HTTPS.
#[derive(Debug)]
struct Https(PresignedReader);

#[async_trait]
impl UrlReader for Https {
    async fn get(
        &self,
        url: &str,
        length_max: u64,
        deadline: Deadline,
    ) -> Result<Bytes, StoreError> {
        self.0.get(url, None, length_max, deadline).await
    }
}

/// One thing in a capsule, as it is listed.
#[derive(Serialize)]
struct EntryLine {
    path: String,
    /// `file`, `directory` or `symlink`.
    kind: &'static str,
    /// Bytes of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
}

/// How far it is.
#[derive(Clone, Copy, Serialize)]
struct State {
    total: u64,
    fetched: u64,
}

/// Runs the command.
pub(crate) async fn open_capsule(arguments: &OpenArguments, output: Output) -> CommandResult {
    check_processor().map_err(|error| crate::explain::block_failure(&error))?;
    let link = read_link(&arguments.link)?;
    let http = match arguments.local_clouds {
        true => PresignedReader::with_loopback(),
        false => PresignedReader::new(),
    };
    let http = http.map_err(|error| {
        Failure::new(Exit::Error, format!("no connections can be made: {error}"))
    })?;
    let mut stop = Stop::of_a_command()?;
    let opening = async {
        let reader = LinkedReader::new(Arc::new(Https(http)));
        let capsule = OpenedCapsule::open(reader, &link).await;
        let capsule = capsule.map_err(|error| ended(failure(&error), &error, &link))?;
        match arguments.list {
            true => list(capsule.manifest(), output),
            false => {
                let mut putting = Putting::begin(&capsule, arguments, output)?;
                putting.all().await
            }
        }
    };
    tokio::select! {
        outcome = opening => {
            line::clear(output);
            outcome
        }
        () = stop.wanted() => {
            line::clear(output);
            let hint = "remove what it has put there before you open it again";
            Err(Failure::new(Exit::Cancelled, "stopped").hint(hint))
        }
    }
}

/// The link: typed, in a file, or on standard input. What may be a link is in no message.
fn read_link(typed: &Path) -> CommandResult<CapsuleLink> {
    let bytes = typed.as_os_str().as_bytes();
    let lossy = String::from_utf8_lossy(bytes);
    let is_like_one = lossy.contains(LIKE_A_LINK) || bytes.len() > PATH_BYTES_MAX;
    let is_link = is_like_one && !typed.exists();
    let text = match bytes {
        _ if is_link => lossy.into_owned(),
        b"-" => {
            if std::io::stdin().is_terminal() {
                Output::new(false).print_text("Paste the link, then press Enter and Ctrl-D:")?;
            }
            read_text(std::io::stdin().lock(), Path::new("standard input"))?
        }
        _ => {
            let file = std::fs::File::open(typed).map_err(|error| {
                Failure::file("open", typed, &error).hint(format!(
                    "name a file with a link, or give the link itself: it begins with `{PREFIX}`"
                ))
            })?;
            read_text(file, typed)?
        }
    };
    CapsuleLink::parse(&text).map_err(|error| {
        let exit = match error {
            LinkTextError::Newer => Exit::NewerFormat,
            _ => Exit::Usage,
        };
        Failure::new(exit, error.to_string())
    })
}

fn read_text(from: impl std::io::Read, path: &Path) -> CommandResult<String> {
    let mut bytes = Vec::new();
    from.take(LINK_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::file("read", path, &error))?;
    // What is no text is no link.
    Ok(String::from_utf8(bytes).unwrap_or_default())
}

fn failure(error: &CapsuleError) -> Failure {
    let exit = match error {
        CapsuleError::Ended(_) => Exit::Path,
        CapsuleError::Unreachable(_) => Exit::CloudsUnreachable,
        CapsuleError::Wrong(_) | CapsuleError::Manifest(_) => Exit::Damaged,
        CapsuleError::Sink(_) => Exit::Error,
    };
    Failure::new(exit, error.to_string())
}

/// The failure of a link that has ended, with the end that it was made with.
fn ended(failure: Failure, error: &CapsuleError, link: &CapsuleLink) -> Failure {
    match (error, i64::try_from(link.ends())) {
        (CapsuleError::Ended(_), Ok(seconds)) => {
            failure.hint(format!("it was made to last until {} UTC", date(seconds)))
        }
        _ => failure,
    }
}

/// A path for people: the maker of a capsule chose its names.
fn shown(manifest: &Manifest, entry: &CapsuleEntry) -> String {
    harmless(&String::from_utf8_lossy(&manifest.path(entry)))
}

/// A failure whose message has names that a stranger chose: no line of it is one of ours.
fn harmless_of(failure: Failure) -> Failure {
    let lines = failure.message.split("\n  ");
    let lines: Vec<String> = lines.map(harmless).collect();
    Failure {
        message: lines.join("\n  "),
        ..failure
    }
}

fn list(manifest: &Manifest, output: Output) -> CommandResult {
    for entry in manifest.entries() {
        let (kind, bytes) = match &entry.kind {
            EntryKind::Directory => ("directory", None),
            EntryKind::File(content) => ("file", Some(content.size())),
            EntryKind::Symlink(_) => ("symlink", None),
        };
        let line = EntryLine {
            path: shown(manifest, entry),
            kind,
            size: bytes,
        };
        output.record("entry", &line, |line| match (line.kind, line.size) {
            ("directory", _) => format!("{}/", line.path),
            (_, Some(bytes)) => format!("{}  {}", line.path, size(bytes)),
            _ => line.path.clone(),
        })?;
    }
    Ok(Exit::Success)
}

/// A capsule that is being put onto this machine.
struct Putting<'a> {
    capsule: &'a OpenedCapsule,
    target: PathBuf,
    umask: Taking,
    output: Output,
    state: State,
    began: Instant,
    told: Instant,
    /// The directory that was used last, by its entry.
    last: Option<(Option<u32>, Below)>,
    /// Its clouds do not give it any more.
    has_ended: bool,
}

impl<'a> Putting<'a> {
    fn begin(
        capsule: &'a OpenedCapsule,
        arguments: &OpenArguments,
        output: Output,
    ) -> CommandResult<Self> {
        let target = arguments.to.clone().unwrap_or_else(|| PathBuf::from("."));
        let (top, manifest) = (Below::open(&target)?, capsule.manifest());
        if let Some(entry) = manifest.entries().first() {
            let (name, path) = (OsStr::from_bytes(&entry.name), shown(manifest, entry));
            if entry.name.starts_with(b".") && arguments.to.is_none() {
                let message = format!("what the link leads to is called `{path}`, which is hidden");
                return Err(Failure::new(Exit::Usage, message)
                    .hint("name a directory for it with --to, if you expect that"));
            }
            if top.look(name)?.is_some() {
                let message = format!("{path} is there already, and nothing is replaced");
                return Err(Failure::new(Exit::Path, message)
                    .hint("remove it first, or name another directory with --to"));
            }
        }
        Ok(Self {
            target,
            umask: Taking::new(false, false),
            output,
            state: State {
                total: manifest.bytes(),
                fetched: 0,
            },
            began: Instant::now(),
            told: Instant::now(),
            last: None,
            has_ended: false,
            capsule,
        })
    }

    /// The directory of an entry, which was made before.
    fn directory(&mut self, parent: Option<u32>) -> CommandResult<Below> {
        let last = self.last.take().filter(|(last, _)| *last == parent);
        if let Some((_, below)) = last {
            return Ok(below);
        }
        let (mut names, mut above) = (Vec::new(), parent);
        while let Some(entry) = above.and_then(|it| self.entry(it)) {
            names.push(&entry.name);
            above = entry.parent;
        }
        let mut here = Below::open(&self.target)?;
        for name in names.iter().rev() {
            here = here.enter(OsStr::from_bytes(name))?;
        }
        Ok(here)
    }

    fn entry(&self, place: u32) -> Option<&'a CapsuleEntry> {
        let entries = self.capsule.manifest().entries();
        entries.get(usize::try_from(place).ok()?)
    }

    async fn all(&mut self) -> CommandResult {
        let mut progress = CommandProgress::new(self.output);
        let manifest = self.capsule.manifest();
        let is_directory = |entry: &&CapsuleEntry| entry.kind == EntryKind::Directory;
        let directories: Vec<_> = manifest.entries().iter().filter(is_directory).collect();
        let all = directories.iter().copied().chain(manifest.leaves());
        let mut made = 0;
        for entry in all {
            // So that a signal is heeded between things that wait for nothing.
            tokio::task::yield_now().await;
            match self.one(entry).await {
                Ok(bytes) => {
                    made += usize::from(is_directory(&entry));
                    progress.done(bytes);
                }
                Err(failure) => {
                    let is_last = self.is_last(entry, &failure);
                    progress.failed(Path::new(&shown(manifest, entry)), failure)?;
                    if is_last {
                        break;
                    }
                }
            }
        }
        // Once nothing is put into them any more: their times would move.
        for entry in directories.iter().take(made).rev() {
            let marks = self.marks(entry, true);
            let name = OsStr::from_bytes(&entry.name);
            let marked = self
                .directory(entry.parent)
                .and_then(|below| below.enter(name))
                .and_then(|below| below.mark(&marks));
            if let Err(failure) = marked {
                progress.failed(Path::new(&shown(manifest, entry)), harmless_of(failure))?;
            }
        }
        line::clear(self.output);
        if self.output.is_json() {
            self.tell()?;
        }
        progress.end(Summary::opened)
    }

    /// Whether everything that follows would fail in the same way.
    fn is_last(&self, entry: &CapsuleEntry, failure: &Failure) -> bool {
        entry.kind == EntryKind::Directory || failure.exit == Exit::NoSpace || self.has_ended
    }

    fn marks(&self, entry: &CapsuleEntry, is_directory: bool) -> Marks {
        let mode = self.umask.mode(u32::from(entry.mode));
        Marks {
            // The user can remove what a link has put there.
            mode: Some(if is_directory { mode | OWNER } else { mode }),
            modified: Some(entry.modified),
            ..Marks::default()
        }
    }

    async fn one(&mut self, entry: &'a CapsuleEntry) -> CommandResult<u64> {
        let name = OsStr::from_bytes(&entry.name);
        let below = self.directory(entry.parent)?;
        let put = match &entry.kind {
            EntryKind::Directory => below.new_directory(name).map(|_| 0),
            EntryKind::Symlink(target) => {
                let target = OsStr::from_bytes(target);
                below.new_symlink(name, target).map(|()| 0)
            }
            EntryKind::File(content) => {
                let marks = self.marks(entry, false);
                let put = self.file(&below, name, content, &marks).await;
                put.map(|()| content.size())
            }
        };
        self.last = Some((entry.parent, below));
        put.map_err(harmless_of)
    }

    async fn file(
        &mut self,
        below: &Below,
        name: &OsStr,
        content: &LinkedContent,
        marks: &Marks,
    ) -> CommandResult<()> {
        let part = below.part(name)?;
        let path = below.path_of(name);
        let written = part.file.set_len(content.size());
        written.map_err(|error| Failure::file("write", &path, &error))?;
        let (capsule, state) = (self.capsule, &mut self.state);
        let (told, began, output) = (&mut self.told, self.began, self.output);
        let mut sink = |at: u64, bytes: &[u8]| {
            write_at(&part.file, bytes, at)?;
            state.fetched = state.fetched.saturating_add(bytes.len() as u64);
            if told.elapsed() >= TELL_EVERY {
                *told = Instant::now();
                line::show(output, &state.text(began.elapsed()));
            }
            Ok(())
        };
        let read = capsule.read(content, &mut sink).await;
        self.has_ended |= matches!(read, Err(CapsuleError::Ended(_)));
        read.map_err(|error| match error {
            CapsuleError::Sink(error) => Failure::file("write", &path, &error),
            error => {
                let found = failure(&error);
                let message = format!("{}: {}", path.display(), found.message);
                Failure { message, ..found }
            }
        })?;
        part.finish_new(name, marks)
    }

    fn tell(&self) -> CommandResult<()> {
        self.output
            .record("progress", &self.state, |_| String::new())
    }
}

impl State {
    fn text(&self, elapsed: Duration) -> String {
        let millis = u64::try_from(elapsed.as_millis())
            .unwrap_or(u64::MAX)
            .max(1);
        let rate = self.fetched.saturating_mul(1000) / millis;
        let (fetched, total) = (size(self.fetched), size(self.total));
        format!("{fetched} of {total}, {}/s", size(rate))
    }
}
