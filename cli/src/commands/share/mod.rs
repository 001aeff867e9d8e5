//! `share`: sharing files and directories with the people of the volume, and with those that have a
//! link.
//!
//! The share is ordered first, then access control lists are set over the tree; so whatever happens
//! in between, the same command goes on, and `revoke` takes back what was begun. Each of these
//! commands also takes back the access of shares of this user that have ended by themselves.
//!
//! | Module | What it holds |
//! |---|---|
//! | `person` | sharing with a person |
//! | `link` | sharing by a link |
//! | `capsule` | sharing by a link that needs no server |
//! | `list` | `share ls` |
//! | `revoke` | `share revoke`, and what has ended |
//! | `following` | what is reported of the walk over a tree, and stopping it |
//! | `shown` | how a share is shown |

mod capsule;
mod following;
pub(super) mod link;
mod list;
mod person;
mod revoke;
mod shown;

use super::known_people;
use super::opened::{Access, Configured, Opened};
use crate::arguments::{General, ShareArguments, ShareCommand};
use crate::exit::Exit;
use crate::explain::{vfs_failure, volume_failure};
use crate::failure::{CommandResult, Failure};
use crate::output::Output;
use crate::stop::Stop;
use following::Follow;
use quorumfs_gateway::vfs::{Caller, FileSystem, KnownShare};
use quorumfs_http::BaseUrl;
use quorumfs_metadata::identity::{PrincipalNumber, Uid};
use quorumfs_metadata::query::SharesOf;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Runs the command.
pub(crate) async fn run(
    general: &General,
    arguments: &ShareArguments,
    output: Output,
) -> CommandResult {
    let configured = Configured::read(general)?;
    let new = &arguments.new;
    let is_wanted = arguments.command.is_none() && new.link;
    let base = link::base(is_wanted, new.url.as_deref(), &configured)?;
    // The list of a capsule is stored.
    let writes = arguments.command.is_none() && new.capsule;
    let access = if writes {
        Access::Command
    } else {
        Access::Reading
    };
    let mut stop = Stop::of_a_command()?;
    let opened = tokio::select! {
        opened = Opened::open(&configured, access) => opened?,
        () = stop.wanted() => return Err(following::stopped()),
    };
    let follow = Follow::new(output);
    let sharing = Sharing {
        configured: &configured,
        opened: &opened,
        caller: opened.file_system().this_process(),
        output,
        follow: &follow,
        base,
    };
    let outcome = {
        let running = sharing.run(arguments);
        tokio::pin!(running);
        tokio::select! {
            outcome = &mut running => outcome,
            // What a capsule has written is removed by the next command.
            () = stop.wanted() => if writes {
                Err(capsule::stopped())
            } else {
                // What is being ordered is finished; a second signal ends the process at once.
                follow.stop();
                tokio::select! {
                    outcome = &mut running => outcome,
                    () = stop.wanted() => Err(following::stopped()),
                }
            }
        }
    };
    known_people::keep_learned(configured.state(), opened.volume());
    let closed = opened.close().await;
    let exit = outcome?;
    closed.map(|()| exit)
}

/// Makes links to files and directories that this command has just put into the volume.
pub(super) async fn by_links(
    (configured, opened): (&Configured, &Opened),
    output: Output,
    base: BaseUrl,
    paths: Vec<PathBuf>,
    expires: Option<Duration>,
) -> CommandResult<()> {
    let sharing = Sharing {
        configured,
        opened,
        caller: opened.file_system().this_process(),
        output,
        follow: &Follow::new(output),
        base: None,
    };
    for path in paths {
        sharing.by_link(&path, expires, &base).await?;
    }
    Ok(())
}

struct Sharing<'a> {
    configured: &'a Configured,
    opened: &'a Opened,
    caller: Caller,
    output: Output,
    follow: &'a Follow,
    /// How a link begins, if one is to be made.
    base: Option<BaseUrl>,
}

impl Sharing<'_> {
    fn fs(&self) -> &FileSystem {
        self.opened.file_system()
    }

    async fn run(&self, arguments: &ShareArguments) -> CommandResult {
        let (volume, metadata) = (self.opened.volume(), self.opened.metadata());
        let learned = volume.learn_people(metadata).await;
        learned.map_err(|error| volume_failure(&error))?;
        let exit = match &arguments.command {
            None => {
                let (new, root) = (&arguments.new, Path::new("/"));
                let path = new.path.as_deref().unwrap_or(root);
                match &self.base {
                    Some(base) => self.by_link(path, new.expires, base).await?,
                    None if new.capsule => {
                        let file = new.file.as_deref();
                        self.by_capsule(path, new.expires, file).await?
                    }
                    None => self.with_person(new).await?,
                }
            }
            Some(ShareCommand::Ls(asked)) => self.list(asked.all).await?,
            Some(ShareCommand::Revoke(asked)) => self.revoke(asked.id).await?,
        };
        match self.opened.volume().is_reader() {
            true => Ok(exit),
            false => self.take_back_ended(exit).await,
        }
    }

    /// Refuses one who may only read: the replicas would.
    fn may_write(&self) -> CommandResult<()> {
        match self.opened.volume().is_reader() {
            false => Ok(()),
            true => Err(misused(
                "you may only read in this volume".to_owned(),
                "an administrator can end shares, and let you write: `quorumfs people set`",
            )),
        }
    }

    async fn shares(&self, of: SharesOf) -> CommandResult<Vec<KnownShare>> {
        let shares = self.fs().shares(&self.caller, of).await;
        shares.map_err(|error| vfs_failure(&error))
    }

    /// The shares of this user; for the superuser, all.
    fn own(&self) -> SharesOf {
        match Uid(self.caller.uid) {
            Uid::ROOT => SharesOf::All,
            _ => SharesOf::Mine,
        }
    }

    /// The names of people, by their numbers.
    async fn names_of(
        &self,
        shares: &[KnownShare],
    ) -> CommandResult<BTreeMap<PrincipalNumber, String>> {
        let people = self.opened.volume().people();
        let mut names = BTreeMap::new();
        for number in shares.iter().flat_map(shown::numbers) {
            if names.contains_key(&number) {
                continue;
            }
            let asked = self.opened.metadata().numbered(number).await;
            let Some(found) = asked.map_err(|error| vfs_failure(&error))? else {
                continue;
            };
            let mut present = people.iter().map(|it| &it.statement);
            let known = present.find(|it| it.key == found.principal);
            let label = known.map_or(&found.label, |it| &it.label);
            names.insert(number, super::people::harmless(label));
        }
        Ok(names)
    }
}

/// Refuses a share that would end at once.
pub(super) fn check_expires(expires: Option<Duration>) -> CommandResult<()> {
    match expires.is_some_and(|time| time.is_zero()) {
        false => Ok(()),
        true => Err(misused(
            "--expires: that time is over already".to_owned(),
            "give a time from now on, such as 7d",
        )),
    }
}

/// A failure that the command line is to blame for.
fn misused(message: String, hint: &str) -> Failure {
    Failure::new(Exit::Usage, message).hint(hint)
}
