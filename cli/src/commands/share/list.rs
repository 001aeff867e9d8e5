//! `share ls`.

use super::Sharing;
use super::shown::ShareLine;
use crate::exit::Exit;
use crate::explain::vfs_failure;
use crate::failure::{CommandResult, Failure};
use quorumfs_gateway::vfs::{KnownShare, VfsError};
use quorumfs_metadata::query::SharesOf;
use rustix::io::Errno;

impl Sharing<'_> {
    /// What this user shares and what is shared with it, or all.
    pub(super) async fn list(&self, all: bool) -> CommandResult {
        let own_number = self.fs().own_number().await;
        let own_number = own_number.map_err(|error| vfs_failure(&error))?;
        let with_me = self.shares(SharesOf::With(own_number)).await?;
        let is_with_me = |it: &KnownShare| with_me.iter().any(|with| with.id == it.id);
        let mut shares: Vec<KnownShare> = match all {
            true => self.all().await?,
            false => {
                let mut shares = self.shares(SharesOf::Mine).await?;
                let with = with_me.iter().filter(|it| !it.share.ended);
                let new = with.filter(|it| !shares.iter().any(|own| own.id == it.id));
                let new: Vec<_> = new.cloned().collect();
                shares.extend(new);
                shares
            }
        };
        shares.sort_by_key(|it| it.id);
        let names = self.names_of(&shares).await?;
        for known in &shares {
            let mut line = ShareLine::of(known, &names);
            line.with_me = is_with_me(known);
            line.moved = self.is_moved(known).await?;
            self.output.record("share", &line, ShareLine::text)?;
        }
        if shares.is_empty() {
            self.output.print_text("Nothing is shared.")?;
        }
        Ok(Exit::Success)
    }

    async fn all(&self) -> CommandResult<Vec<KnownShare>> {
        let shares = self.fs().shares(&self.caller, SharesOf::All).await;
        shares.map_err(|error| match error {
            VfsError::Refused { errno, .. } if errno == Errno::PERM => {
                let message = "only administrators and the superuser may list all shares";
                Failure::new(Exit::Usage, message).hint("without --all it lists yours")
            }
            error => vfs_failure(&error),
        })
    }

    /// Whether something is not where it was when it was shared, as far as this user can see.
    async fn is_moved(&self, known: &KnownShare) -> CommandResult<bool> {
        let Some(place) = known.place.as_ref().filter(|_| known.exists) else {
            return Ok(false);
        };
        let found = self.fs().find_shared(known.share.inode, place).await;
        let found = found.map_err(|error| vfs_failure(&error))?;
        Ok(found.is_none_or(|path| path != place.path))
    }
}
