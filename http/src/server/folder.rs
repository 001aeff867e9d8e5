//! A folder on its way, as an archive.
//!
//! The tree is walked depth first; of each folder on the way one page of entries is in memory. What
//! is left out, since it is no file or folder, cannot be read, or lies too deep, is listed in a
//! text file at the end of the archive: no archive looks more complete than it is.

use super::download::{BrokenOff, PieceSender};
use crate::archive::ZipStream;
use crate::escape::shown;
use crate::limits::{DEPTH_MAX, PIECE_BYTES};
use crate::source::{LinkTarget, ListedEntry, SourceError, TargetEntry, TargetKind};
use std::sync::Arc;

/// Entries to list at a time.
const ENTRIES_AT_ONCE: usize = 512;
/// What is left out is listed up to so many.
const LEFT_OUT_MAX: usize = 10_000;
/// Where it is listed.
const LEFT_OUT: &[u8] = b"left-out-of-this-archive.txt";

/// A folder on the way.
struct Level {
    name: Vec<u8>,
    entry: TargetEntry,
    entries: Vec<ListedEntry>,
    next: Option<u64>,
}

impl Level {
    fn new(name: Vec<u8>, entry: TargetEntry) -> Self {
        Self {
            name,
            entry,
            entries: Vec::new(),
            next: Some(0),
        }
    }
}

/// Paths that are not in the archive, with the reasons.
#[derive(Default)]
struct LeftOut {
    lines: Vec<String>,
    more: usize,
}

impl LeftOut {
    fn add(&mut self, path: &[&[u8]], reason: &str) {
        if self.lines.len() >= LEFT_OUT_MAX {
            self.more += 1;
            return;
        }
        let names: Vec<String> = path.iter().map(|name| shown(name)).collect();
        self.lines.push(format!("{}: {reason}\n", names.join("/")));
    }

    fn text(&self) -> String {
        let more = match self.more {
            0 => String::new(),
            more => format!("and {more} more\n"),
        };
        self.lines.concat() + &more
    }
}

/// Sends a folder and all that is below it.
pub(super) async fn archive(
    mut sender: PieceSender,
    target: Arc<dyn LinkTarget>,
    name: Vec<u8>,
    top: TargetEntry,
) -> Result<PieceSender, BrokenOff> {
    let (mut zip, mut left_out) = (ZipStream::default(), LeftOut::default());
    let gathered = zip.gathered();
    zip.folder(&[&name], top.modified)?;
    let mut levels = vec![Level::new(name.clone(), top)];
    while let Some(level) = levels.last_mut() {
        let Some(child) = level.entries.pop() else {
            let Some(after) = level.next.take() else {
                levels.pop();
                continue;
            };
            let listing = target.list(&level.entry, after, ENTRIES_AT_ONCE);
            match sender.wanted(listing).await {
                Ok(page) => {
                    level.entries = page.entries;
                    level.entries.sort_by(|a, b| b.name.cmp(&a.name));
                    level.next = page.next;
                }
                Err(BrokenOff::Unread(SourceError::Missing)) => {
                    let path: Vec<&[u8]> = levels.iter().map(|it| &it.name[..]).collect();
                    left_out.add(&path, "the folder cannot be read");
                    levels.pop();
                }
                Err(broken) => return Err(broken),
            }
            continue;
        };
        let mut path: Vec<&[u8]> = levels.iter().map(|it| &it.name[..]).collect();
        path.push(&child.name);
        match child.entry.kind {
            TargetKind::Other(what) => left_out.add(&path, what),
            TargetKind::Folder if path.len() > DEPTH_MAX => left_out.add(&path, "it lies too deep"),
            TargetKind::Folder => {
                zip.folder(&path, child.entry.modified)?;
                sender.send(gathered.take()).await?;
                levels.push(Level::new(child.name, child.entry));
            }
            TargetKind::File => {
                let opened = sender.wanted(target.open(&child.entry)).await;
                let (entry, content) = match opened {
                    Ok(opened) => opened,
                    Err(BrokenOff::Unread(SourceError::Missing)) => {
                        left_out.add(&path, "it cannot be read");
                        continue;
                    }
                    Err(broken) => return Err(broken),
                };
                let (mut file, mut offset) = (zip.file(&path, entry.modified)?, 0);
                loop {
                    let piece = sender.wanted(content.read(offset, PIECE_BYTES)).await?;
                    if piece.is_empty() {
                        break;
                    }
                    offset = offset.saturating_add(piece.len() as u64);
                    file.write(&piece)?;
                    sender.send(gathered.take()).await?;
                }
                if !sender.wanted(content.is_unchanged()).await? {
                    return Err(BrokenOff::Changed);
                }
                file.finish()?;
                sender.send(gathered.take()).await?;
            }
        }
    }
    if !left_out.lines.is_empty() {
        let mut file = zip.file(&[&name, LEFT_OUT], 0)?;
        file.write(left_out.text().as_bytes())?;
        file.finish()?;
    }
    let mut rest = zip.finish()?;
    while !rest.is_empty() {
        let piece = rest.split_to(rest.len().min(PIECE_BYTES as usize));
        sender.send(piece).await?;
    }
    Ok(sender)
}
