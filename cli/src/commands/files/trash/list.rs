//! `trash ls`: what was removed, when, by whom, and where it was.

use super::super::list::{date, kind};
use super::super::walk::shown;
use super::super::{closing, printable, refused};
use super::kept_for;
use super::path::Paths;
use crate::arguments::{General, TrashLsArguments};
use crate::commands::opened::Opened;
use crate::exit::Exit;
use crate::failure::CommandResult;
use crate::output::Output;
use quorumfs_gateway::vfs::{FileSystem, InTrash};
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;

#[derive(Serialize)]
struct TrashLine {
    id: String,
    #[serde(serialize_with = "crate::output::paths::serialize")]
    path: PathBuf,
    kind: &'static str,
    mode: u16,
    uid: u32,
    gid: u32,
    size: u64,
    removed_by: u32,
    removed_seconds: u64,
}

impl TrashLine {
    fn of(item: &InTrash, path: PathBuf) -> Self {
        let attributes = &item.inode;
        Self {
            id: format!("id:{}", attributes.inode.0),
            path,
            kind: kind(attributes.file_type()),
            mode: attributes.mode.0,
            uid: attributes.uid.0,
            gid: attributes.gid.0,
            size: attributes.size,
            removed_by: item.by.0,
            removed_seconds: item.at.0 / SECOND,
        }
    }

    fn text(&self) -> String {
        let mark = if self.kind == "directory" { "/" } else { "" };
        let when = date(i64::try_from(self.removed_seconds).unwrap_or(i64::MAX));
        let path = printable(self.path.as_os_str().as_bytes());
        format!(
            "{:<22} {when} {:>5} {:>12} {path}{mark}",
            self.id, self.removed_by, self.size
        )
    }
}

#[derive(Default, Serialize)]
struct TrashSummary {
    entries: u64,
    bytes: u64,
    kept_seconds: u64,
}

impl TrashSummary {
    fn text(&self) -> String {
        let kept = kept_for(self.kept_seconds);
        match self.entries {
            0 => format!("Nothing of yours is in the trash here. What is removed is {kept}."),
            1 => format!(
                "1 entry of {} bytes; what is removed is {kept}.",
                self.bytes
            ),
            entries => format!(
                "{entries} entries of {} bytes; what is removed is {kept}.",
                self.bytes
            ),
        }
    }
}

/// Runs `trash ls`.
pub(super) async fn ls(
    general: &General,
    arguments: &TrashLsArguments,
    output: Output,
) -> CommandResult {
    let opened = Opened::to_read(general).await?;
    let below = shown(&arguments.path);
    let listed = async {
        let (seconds, _) = opened
            .metadata()
            .trash_size()
            .await
            .map_err(|error| refused(&below, &error))?;
        let mut listed = TrashSummary {
            kept_seconds: seconds,
            ..TrashSummary::default()
        };
        list(opened.file_system(), &below, &mut listed, output).await?;
        output.record("summary", &listed, TrashSummary::text)
    };
    let outcome = listed.await;
    closing(opened, outcome).await?;
    Ok(Exit::Success)
}

async fn list(
    fs: &FileSystem,
    below: &Path,
    listed: &mut TrashSummary,
    output: Output,
) -> CommandResult<()> {
    let mut paths = Paths::new(fs);
    let all = below == Path::new("/");
    let mut after = None;
    loop {
        let page = fs.trash(&fs.this_process(), after).await;
        let (items, next) = page.map_err(|error| refused(below, &error))?;
        for item in &items {
            let path = paths.place(item).await?.path;
            if !all && !path.starts_with(below) {
                continue;
            }
            listed.entries += 1;
            listed.bytes = listed.bytes.saturating_add(item.inode.size);
            output.record("trashed", &TrashLine::of(item, path), TrashLine::text)?;
        }
        after = next;
        if after.is_none() {
            return Ok(());
        }
    }
}
