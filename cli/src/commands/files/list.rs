//! `ls` and `cat`.

use super::walk::{entries, find, shown};
use super::{CHUNK_BYTES, CommandProgress, closing, open, printable, refused};
use crate::arguments::{CatArguments, General, LsArguments};
use crate::commands::opened::Opened;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use crate::output::paths::escape;
use quorumfs_gateway::vfs::{Attributes, FileSystem, FileType};
use serde::Serialize;
use std::io::Write;
use std::path::Path;

#[derive(Serialize)]
struct Listed {
    name: String,
    /// All of its bytes, if it is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    name_escaped: Option<String>,
    kind: &'static str,
    mode: u16,
    uid: u32,
    gid: u32,
    links: u32,
    size: u64,
    modified_seconds: i64,
}

impl Listed {
    fn of(name: &[u8], attributes: &Attributes) -> Self {
        Self {
            name: printable(name),
            name_escaped: std::str::from_utf8(name).err().map(|_| escape(name)),
            kind: kind(attributes.file_type()),
            mode: attributes.mode.0,
            uid: attributes.uid.0,
            gid: attributes.gid.0,
            links: attributes.links,
            size: attributes.size,
            modified_seconds: attributes.mtime.seconds,
        }
    }

    fn text(&self, long: bool) -> String {
        let mark = if self.kind == "directory" { "/" } else { "" };
        if !long {
            return format!("{}{mark}", self.name);
        }
        let letter = match self.kind {
            "file" => '-',
            "symlink" => 'l',
            other => other.chars().next().unwrap_or('?'),
        };
        let (mode, uid, gid) = (permissions(self.mode), self.uid, self.gid);
        let (links, size, when) = (self.links, self.size, date(self.modified_seconds));
        format!(
            "{letter}{mode} {links:>3} {uid:>5} {gid:>5} {size:>12} {when} {}{mark}",
            self.name
        )
    }
}

pub(super) fn kind(kind: FileType) -> &'static str {
    match kind {
        FileType::File => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        FileType::CharacterDevice => "character device",
        FileType::BlockDevice => "block device",
    }
}

fn permissions(mode: u16) -> String {
    let bit = |shift: u16, letter: char| if mode >> shift & 1 == 1 { letter } else { '-' };
    (0..9)
        .rev()
        .zip("rwxrwxrwx".chars())
        .map(|(shift, letter)| bit(shift, letter))
        .collect()
}

/// Seconds since 1970 as a date of the Gregorian calendar, in UTC (H. Hinnant, "chrono-compatible
/// low-level date algorithms", `civil_from_days`).
pub(crate) fn date(seconds: i64) -> String {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_shifted + 2) / 5 + 1;
    let month = if month_shifted < 10 {
        month_shifted + 3
    } else {
        month_shifted - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}",
        rest / 3_600,
        rest / 60 % 60
    )
}

/// Runs `ls`.
pub(crate) async fn ls(
    general: &General,
    arguments: &LsArguments,
    output: Output,
) -> CommandResult {
    let opened = Opened::to_read(general).await?;
    let outcome = list(opened.file_system(), arguments, output).await;
    closing(opened, outcome).await
}

async fn list(fs: &FileSystem, arguments: &LsArguments, output: Output) -> CommandResult {
    let path = shown(&arguments.path);
    let found = find(fs, &path).await?;
    let listed = if found.file_type() == FileType::Directory {
        let all = entries(fs, found.inode, &path).await?;
        all.iter()
            .map(|(entry, found)| Listed::of(&entry.name, found))
            .collect()
    } else {
        let name = path.file_name().unwrap_or_default();
        vec![Listed::of(name.as_encoded_bytes(), &found)]
    };
    for entry in &listed {
        output.record("entry", entry, |entry| entry.text(arguments.long))?;
    }
    Ok(Exit::Success)
}

/// Runs `cat`. With `--json` only errors are printed as JSON.
pub(crate) async fn cat(
    general: &General,
    arguments: &CatArguments,
    output: Output,
) -> CommandResult {
    let opened = Opened::to_read(general).await?;
    let mut progress = CommandProgress::new(output);
    let mut outcome = Ok(());
    for path in &arguments.paths {
        let path = shown(path);
        match print(opened.file_system(), &path).await {
            Ok(bytes) => progress.done(bytes),
            Err(failure) => outcome = outcome.and(progress.failed(&path, failure)),
        }
    }
    closing(opened, outcome).await?;
    match progress.summary.failed {
        0 => Ok(Exit::Success),
        _ => progress.end(|_| String::new()),
    }
}

pub(super) async fn print(fs: &FileSystem, path: &Path) -> CommandResult<u64> {
    let found = find(fs, path).await?;
    if found.file_type() != FileType::File {
        let message = format!("{} is a {}", path.display(), kind(found.file_type()));
        return Err(Failure::new(Exit::Path, message).hint("only files can be printed"));
    }
    let failed = |error| refused(path, &error);
    let handle = open(fs, found.inode, path).await?;
    let mut offset = 0;
    let outcome = loop {
        let chunk = match fs.read(handle, offset, CHUNK_BYTES).await {
            Ok(chunk) if chunk.is_empty() => break Ok(offset),
            Ok(chunk) => chunk,
            Err(error) => break Err(failed(error)),
        };
        offset += chunk.len() as u64;
        let mut stdout = std::io::stdout().lock();
        if let Err(error) = stdout.write_all(&chunk).and_then(|()| stdout.flush()) {
            break Err(Failure::file(
                "write to",
                "standard output".as_ref(),
                &error,
            ));
        }
    };
    let _ = fs.release(handle).await;
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_of_the_gregorian_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00"),
            (951_827_696, "2000-02-29 12:34"),
            (-1, "1969-12-31 23:59"),
            (4_107_542_399, "2100-02-28 23:59"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }

    #[test]
    fn permissions_are_shown_as_ls_does() {
        assert_eq!(permissions(0o754), "rwxr-xr--");
        assert_eq!(permissions(0o020), "----w----");
    }
}
