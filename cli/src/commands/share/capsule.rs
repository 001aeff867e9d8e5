//! Sharing by a capsule: a link that needs no server of ours.
//!
//! ```text
//!   make the capsule ──► order the share, which retains its objects ──► remove its manifest's file
//!        │ killed                    │ killed                                 │ printed once
//!        └─ nothing is shared        └─ listed, and can be revoked            ▼
//! ```
//!
//! Revoking it ends the share and deletes the manifest from the clouds. One that has opened it
//! before can go on until its URLs end: that is said, and how the clouds' keys end them earlier.

use super::super::files::aside::Aside;
use super::super::files::shared_directory::{self, SHARED};
use super::super::files::{date, refused, walk};
use super::{Sharing, check_expires, misused};
use crate::commands::opened::{Access, Opened};
use crate::directory::write_secret;
use crate::exit::Exit;
use crate::explain::vfs_failure;
use crate::failure::{CommandResult, Failure};
use crate::output::line;
use quorumfs_bft::identity::Time;
use quorumfs_gateway::capsule::{CapsuleMaker, MadeCapsule, MakeCapsuleError};
use quorumfs_gateway::vfs::{Attributes, InodeId, NewSharing};
use quorumfs_http::page::size;
use quorumfs_metadata::identity::{ObjectId, ShareId};
use quorumfs_metadata::limits::CAPSULE_SECONDS_MAX;
use quorumfs_metadata::operation::NewShareWith;
use serde::Serialize;
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// For how long a capsule can be opened, unless --expires says otherwise.
const VALID_FOR: Duration = Duration::from_secs(3 * 24 * 3600);
/// Files that a manifest may need.
const NAMES: usize = 8;
const TELL_EVERY: Duration = Duration::from_secs(1);
/// How often it is made again if something is deleted meanwhile.
const TRIES: u32 = 4;
/// A capsule that ends earlier than asked for by less than this is no news.
const EARLY: u64 = 60;

/// A capsule that was made.
#[derive(Serialize)]
struct CapsuleLine {
    id: u64,
    /// The link; none: it is in a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<String>,
    /// The file with the link.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    files: u64,
    bytes: u64,
    /// When it ends by itself, in seconds since 1970.
    expires: u64,
    /// Whether that is earlier than asked for.
    ends_early: bool,
    /// Whether it may end even earlier: temporary credentials of unknown end have signed it.
    may_end_earlier: bool,
    /// How much was left out.
    left_out: u64,
    /// What was left out, and why; not all of it, if it is much.
    left_out_paths: Vec<String>,
}

impl CapsuleLine {
    fn text(&self) -> String {
        let files = match self.files {
            1 => "1 file".to_owned(),
            files => format!("{files} files"),
        };
        let until = date(i64::try_from(self.expires).unwrap_or(i64::MAX));
        let (what, opens) = match (&self.link, &self.file) {
            (Some(link), _) => (link.as_str(), "LINK"),
            (None, Some(file)) => (file.as_str(), file.as_str()),
            (None, None) => ("", "LINK"),
        };
        format!(
            "{what}\n{files}, {}, until {until} UTC\nopen it: quorumfs open {opens}\nstop it: \
             quorumfs share revoke {}",
            size(self.bytes),
            self.id
        )
    }
}

fn seconds_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

impl Sharing<'_> {
    pub(super) async fn by_capsule(
        &self,
        path: &Path,
        expires: Option<Duration>,
        file: Option<&Path>,
    ) -> CommandResult {
        check_expires(expires)?;
        if expires.is_some_and(|time| time.as_secs() > CAPSULE_SECONDS_MAX) {
            let message = "--expires: a capsule lasts for a year at most".to_owned();
            return Err(misused(message, "some clouds sign for 7 days at most"));
        }
        self.may_write()?;
        let path = walk::shown(path);
        let found = walk::find(self.fs(), &path).await?;
        self.check_linked(&found, &path)?;
        let name = path.file_name().map_or(&b"volume"[..], |it| it.as_bytes());
        if let Some(file) = file.filter(|file| file.symlink_metadata().is_ok()) {
            let message = format!("{} is there already, and is not replaced", file.display());
            return Err(Failure::new(Exit::Usage, message).hint("name a file that is to be made"));
        }
        let above = file
            .and_then(Path::parent)
            .filter(|it| *it != Path::new(""));
        if let Some(above) = above.filter(|above| !above.is_dir()) {
            let message = format!("{} is no directory", above.display());
            return Err(Failure::new(Exit::Usage, message).hint("make it first"));
        }
        let place = shared_directory::ensure(self.fs(), Path::new(SHARED)).await;
        let place = place.map_err(|failure| {
            let hint = format!(
                "the list of a capsule is put into {SHARED} for a moment: have the owner of the \
                 volume make it, for all to write into"
            );
            failure.hint(hint)
        })?;
        let aside = Aside::begin(self.configured.state(), self.fs()).await?;
        let valid_for = expires.unwrap_or(VALID_FOR);
        let mut tries = 0;
        let outcome = loop {
            tries += 1;
            let made = self.make_once(&path, (&found, name), (&aside, place), valid_for);
            match made.await {
                Ok(None) if tries < TRIES => {}
                outcome => break outcome,
            }
        };
        aside.end(self.fs()).await;
        let Some((made, id, ends)) = outcome? else {
            let message = format!("{}: it is changed all the time", path.display());
            let hint = "try it again when fewer files are written, or share a copy of it";
            return Err(Failure::new(Exit::Path, message).hint(hint));
        };
        self.print(&made, id, ends, file)
    }

    /// Makes it and orders its share; `None` if something was deleted in between, so that it may
    /// not be whole.
    async fn make_once(
        &self,
        path: &Path,
        (found, name): (&Attributes, &[u8]),
        (aside, directory): (&Aside, InodeId),
        valid_for: Duration,
    ) -> CommandResult<Option<(MadeCapsule, u64, (u64, u64))>> {
        let names = (0..NAMES).map(|_| aside.name(directory));
        let names = names.collect::<CommandResult<Vec<_>>>()?;
        let volume = self.opened.volume().id();
        let wanted = seconds_now().saturating_add(valid_for.as_secs());
        let (output, mut last) = (self.output, Instant::now());
        let told = move |files: u64| {
            if last.elapsed() >= TELL_EVERY {
                last = Instant::now();
                line::show(output, &format!("{files} files are linked so far"));
            }
        };
        let maker = CapsuleMaker::new(self.fs(), &self.caller, volume, valid_for, told);
        let made = maker.make((found, name), (directory, &names)).await;
        line::clear(output);
        let made = made.map_err(|error| not_made(path, error))?;
        let ends = made.link_for.ends.min(wanted);
        let shared = self.order(path, found, (&made, ends)).await;
        let cleared = made.clear(self.fs(), &self.caller, directory).await;
        if let Err(error) = &cleared {
            tracing::warn!(%error, "the list of the capsule is removed by the next command");
        } else {
            names.iter().for_each(|name| aside.is_gone(name));
        }
        let id = shared?;
        let kept = made.is_kept(self.opened.metadata()).await;
        if !matches!(kept, Ok(true)) {
            // It would keep what it needs from the collector, and its link is not known.
            let ended = self.fs().end_share(&self.caller, ShareId(id)).await;
            ended.map_err(|error| vfs_failure(&error))?;
        }
        match kept {
            Ok(true) => Ok(Some((made, id, (ends, wanted)))),
            Ok(false) => Ok(None),
            Err(error) => Err(Failure::new(Exit::QuorumUnreachable, error.to_string())),
        }
    }

    async fn order(
        &self,
        path: &Path,
        found: &Attributes,
        (made, ends): (&MadeCapsule, u64),
    ) -> CommandResult<u64> {
        let sharing = NewSharing {
            inode: found.inode,
            place: super::link::place_of(self.fs(), path).await?,
            with: NewShareWith::Capsule {
                manifest: made.objects.clone(),
            },
            expires: Some(Time(ends.saturating_mul(1_000_000_000))),
        };
        let shared = self.fs().share(&self.caller, sharing).await;
        let id = shared.map_err(|error| super::link::not_linked(path, &error))?;
        Ok(id.0)
    }

    fn print(
        &self,
        made: &MadeCapsule,
        id: u64,
        (ends, wanted): (u64, u64),
        file: Option<&Path>,
    ) -> CommandResult {
        let link = made.link.to_text();
        let link = link.map_err(|error| Failure::new(Exit::Error, error.to_string()))?;
        let (link, file) = match file {
            None => (Some(link), None),
            Some(path) => {
                let written = write_secret(path, format!("{link}\n").as_bytes());
                written.map_err(|failure| {
                    let hint = format!("the capsule is share {id}: revoke it and make another one");
                    failure.hint(hint)
                })?;
                (None, Some(path.display().to_string()))
            }
        };
        for left_out in &made.left_out {
            let shown = crate::commands::people::harmless(left_out);
            self.output.print_text(&format!("Left out: {shown}."))?;
        }
        let line = CapsuleLine {
            id,
            link,
            file,
            files: made.files,
            bytes: made.bytes,
            expires: ends,
            ends_early: ends.saturating_add(EARLY) < wanted,
            may_end_earlier: made.link_for.may_end_earlier,
            left_out: made.left_out_count,
            left_out_paths: made.left_out.clone(),
        };
        self.output.record("capsule", &line, CapsuleLine::text)?;
        if line.ends_early {
            self.output.print_text(
                "It ends earlier than asked for: what is signed ends with the credentials that \
                 sign it, if they are temporary. Permanent `reader_credentials` sign for longer.",
            )?;
        }
        if line.may_end_earlier {
            self.output.print_text(
                "It may end even earlier: a cloud's credentials are temporary, and it is not \
                 known until when they are valid.",
            )?;
        }
        Ok(Exit::Success)
    }

    /// Deletes the manifest of a capsule that has ended; whether it is gone from all its clouds.
    /// The share has ended in any case, so nothing of this is a failure.
    pub(super) async fn delete_manifest(&self, manifest: &[ObjectId]) -> bool {
        let access = Access::Reconciler { serves: None };
        let objects: BTreeSet<ObjectId> = manifest.iter().copied().collect();
        let collector = match Opened::open(self.configured, access).await {
            Ok(collector) => collector,
            Err(failure) => {
                tracing::debug!(failure.message, "the list is left to the collector");
                return false;
            }
        };
        let gone = collector.blocks().collect_these(&objects).await;
        if let Err(failure) = collector.close().await {
            tracing::debug!(
                failure.message,
                "the session of the collector was not closed"
            );
        }
        match gone {
            Ok(gone) => gone == objects.len(),
            Err(error) => {
                tracing::debug!(%error, "the list is left to the collector");
                false
            }
        }
    }
}

pub(super) fn stopped() -> Failure {
    Failure::new(Exit::Cancelled, "stopped").hint("no link was made")
}

/// Why a capsule could not be made.
fn not_made(path: &Path, error: MakeCapsuleError) -> Failure {
    match error {
        MakeCapsuleError::File { path, error } => refused(Path::new(&path), &error),
        MakeCapsuleError::Manifest(error) => {
            Failure::new(Exit::Usage, format!("{}: {error}", path.display()))
                .hint("share its parts one by one")
        }
    }
}

/// What an end of a capsule means to those that have opened it.
pub(super) const REVOKED: &str = "Those who have opened it before can go on with it until it would \
     have ended. To end that too, replace the keys of the clouds with which links are signed \
     (`reader_credentials`, or else `credentials`): the providers then refuse all links.";
