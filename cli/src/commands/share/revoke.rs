//! Ending a share, and taking back the access that it gave.

use super::super::files::{counted, refused};
use super::capsule::REVOKED;
use super::{Sharing, misused};
use crate::exit::Exit;
use crate::explain::vfs_failure;
use crate::failure::{CommandResult, Failure};
use quorumfs_gateway::vfs::{KnownShare, VfsError};
use quorumfs_metadata::identity::{ObjectId, ShareId, Uid};
use quorumfs_metadata::query::SharesOf;
use quorumfs_metadata::row::ShareWith;
use rustix::io::Errno;
use serde::Serialize;
use std::path::Path;

/// A share has ended.
#[derive(Serialize)]
struct EndedLine {
    id: u64,
    /// Whether the access that it gave is gone.
    taken_back: bool,
    #[serde(skip)]
    text: String,
}

impl Sharing<'_> {
    pub(super) async fn revoke(&self, id: u64) -> CommandResult {
        let id = ShareId(id);
        let unknown = || {
            misused(
                format!("there is no share {id}"),
                "`quorumfs share ls` shows yours",
            )
        };
        self.may_write()?;
        let known = self.find(id).await?;
        let ended = self.fs().end_share(&self.caller, id).await;
        let ended = ended.map_err(|error| match error {
            VfsError::Refused { errno, .. } if errno == Errno::PERM => {
                Failure::new(Exit::Path, format!("share {id} is another user's"))
                    .hint("the user who shares, an administrator or the superuser can end it")
            }
            error => vfs_failure(&error),
        })?;
        if !ended {
            return Err(unknown());
        }
        let text = format!("Share {id} has ended.");
        // After it was ended, an administrator who is another user may not know more of it.
        let manifest = known.as_ref().and_then(|known| match &known.share.with {
            ShareWith::Capsule { manifest, .. } => Some(manifest.clone()),
            ShareWith::Person { .. } | ShareWith::Link { .. } => None,
        });
        if let Some(manifest) = manifest {
            return self.report_capsule(id, &manifest, text).await;
        }
        let known = match known {
            Some(known) if matches!(known.share.with, ShareWith::Person { .. }) => known,
            _ => return self.report(id, true, text),
        };
        let mine = self.caller.uid == known.share.uid.0 || Uid(self.caller.uid) == Uid::ROOT;
        if !mine {
            let text = format!(
                "{text} The access that it gave goes within a minute, if user {} or the superuser \
                 has the volume mounted, or with the next `quorumfs share` of theirs.",
                known.share.uid
            );
            return self.report(id, false, text);
        }
        self.take_back(&known, &text).await
    }

    async fn report_capsule(
        &self,
        id: ShareId,
        manifest: &[ObjectId],
        text: String,
    ) -> CommandResult {
        let is_gone = self.delete_manifest(manifest).await;
        let opens = match is_gone {
            true => "Its link opens nothing any more.",
            false => {
                "Its link can be opened until its list is deleted from the clouds, which this \
                 machine may not do or not all clouds did: a mount or `quorumfs reconcile` that \
                 may delete does it within about an hour, unless a backup or another capsule \
                 still needs that moment of the volume."
            }
        };
        self.report(id, is_gone, format!("{text} {opens} {REVOKED}"))
    }

    fn report(&self, id: ShareId, taken_back: bool, text: String) -> CommandResult {
        let line = EndedLine {
            id: id.0,
            taken_back,
            text,
        };
        self.output
            .record("ended", &line, |line| line.text.clone())?;
        Ok(Exit::Success)
    }

    /// A share of this user, or for an administrator of any.
    async fn find(&self, id: ShareId) -> CommandResult<Option<KnownShare>> {
        for of in [SharesOf::Mine, SharesOf::All] {
            let listed = self.fs().shares(&self.caller, of).await;
            let listed = match listed {
                Err(VfsError::Refused { errno, .. }) if errno == Errno::PERM => return Ok(None),
                listed => listed.map_err(|error| vfs_failure(&error))?,
            };
            if let Some(known) = listed.into_iter().find(|it| it.id == id) {
                return Ok(Some(known));
            }
        }
        Ok(None)
    }

    async fn take_back(&self, known: &KnownShare, text: &str) -> CommandResult {
        let mut followed = self.follow.begin();
        let taken = self.fs().take_back(&self.caller, known, &mut followed);
        let path = known
            .place
            .as_ref()
            .map_or_else(Default::default, super::shown::path_of);
        let taken = taken.await.map_err(|error| {
            let failure = refused(Path::new(&path), &error);
            failure.or_hint("the share has ended; the same command again goes on from here")
        })?;
        self.report(known.id, taken, text.to_owned())?;
        followed.end(taken, |summary| {
            format!("Access to {} was taken back.", counted(summary.done()))
        })
    }

    /// Takes back the access of shares that have ended by themselves, or with their persons.
    pub(super) async fn take_back_ended(&self, exit: Exit) -> CommandResult {
        let mut worst = exit;
        for known in self.shares(self.own()).await? {
            let is_persons = matches!(known.share.with, ShareWith::Person { .. });
            if !known.share.ended || !is_persons {
                continue;
            }
            let text = format!("Share {} had ended by itself.", known.id);
            let taken = self.take_back(&known, &text).await?;
            if worst == Exit::Success {
                worst = taken;
            }
        }
        Ok(worst)
    }
}
