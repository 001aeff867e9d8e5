//! Sharing with a person.
//!
//! All that can be refused is refused before anything is changed: who the person is, whose the path
//! is, and whether the person can come to it.

use super::super::files::{counted, refused, walk};
use super::super::people::{after, has_ended, role_name};
use super::shown::ShareLine;
use super::{Sharing, check_expires, misused};
use crate::arguments::ShareNewArguments;
use crate::exit::Exit;
use crate::explain::vfs_failure;
use crate::failure::{CommandResult, Failure};
use quorumfs_gateway::vfs::{Attributes, InodeId, NewSharing, Passage, SharedPlace, VfsError};
use quorumfs_metadata::attributes::Credentials;
use quorumfs_metadata::identity::{Gid, PrincipalId, Uid};
use quorumfs_metadata::limits::SHARE_THROUGH_MAX;
use quorumfs_metadata::operation::NewShareWith;
use quorumfs_metadata::query::SharesOf;
use quorumfs_metadata::row::{Assertable, ShareWith};
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A person to share with.
struct SharedWith {
    name: String,
    key: PrincipalId,
    who: Credentials,
}

/// What is to be shared, and what has to be done so that the person comes to it.
struct SharedPath {
    found: Attributes,
    path: PathBuf,
    place: SharedPlace,
    /// The directories above that let the person pass for its name alone.
    through: Vec<InodeId>,
    /// Those of them that do not yet.
    closed: Vec<(InodeId, PathBuf)>,
}

impl Sharing<'_> {
    pub(super) async fn with_person(&self, new: &ShareNewArguments) -> CommandResult {
        let (Some(path), Some(name)) = (&new.path, &new.to) else {
            return Err(misused(
                "neither a path nor a person is named".to_owned(),
                "see `quorumfs share --help`",
            ));
        };
        check_expires(new.expires)?;
        self.may_write()?;
        let person = self.person(name, new.read_only)?;
        let shared = self.shared_path(path, &person).await?;
        let with = NewShareWith::Person {
            principal: person.key,
            uid: person.who.uid,
            writes: !new.read_only,
            through: shared.through.clone(),
        };
        let sharing = NewSharing {
            inode: shared.found.inode,
            place: shared.place.clone(),
            with,
            expires: new.expires.map(after),
        };
        let ordered = self.fs().share(&self.caller, sharing).await;
        let id = ordered.map_err(|error| not_shared(&shared.path, name, &error))?;
        let mut mine = self.shares(SharesOf::Mine).await?.into_iter();
        let Some(known) = mine.find(|it| it.id == id) else {
            let message = format!("share {id} was ended by another command");
            return Err(Failure::new(Exit::Error, message));
        };
        let ShareWith::Person { principal, uid, .. } = known.share.with else {
            let message = format!("share {id} is not with a person");
            return Err(Failure::new(Exit::Error, message));
        };
        let line = ShareLine::begun(&known, &person.name);
        self.output.record("share", &line, ShareLine::text)?;
        let mut followed = self.follow.begin();
        for (directory, path) in &shared.closed {
            let opened = self.fs().let_pass(&self.caller, *directory, uid).await;
            if let Err(error) = opened {
                followed.failed(path, refused(path, &error))?;
            }
        }
        let grants = self.fs().grants(&self.caller, (principal, uid)).await;
        let grants = grants.map_err(|error| vfs_failure(&error))?;
        let root = (shared.found.inode, shared.place.parent);
        let settled = self
            .fs()
            .settle(&self.caller, root, &shared.path, &grants, &mut followed);
        let complete = settled.await.map_err(|error| {
            refused(&shared.path, &error).or_hint("the same command again goes on from here")
        })?;
        followed.end(complete, |summary| {
            let set = counted(summary.done());
            match summary.skipped() {
                0 => format!("Access to {set} was set."),
                _ => format!("Access to {set} was set; the rest had it."),
            }
        })
    }

    /// The person of a name, if it can be shared with.
    fn person(&self, name: &str, read_only: bool) -> CommandResult<SharedWith> {
        const LS: &str = "`quorumfs people ls` shows all";
        let volume = self.opened.volume();
        let mut people = volume.people();
        people.retain(|it| it.statement.label == name);
        people.sort_by_key(has_ended);
        let Some(person) = people.into_iter().next() else {
            let message = match volume.dismissed_in(name) {
                Some(_) => format!("\"{name}\" was removed from the volume"),
                None => format!("no one here is called \"{name}\""),
            };
            return Err(misused(message, LS));
        };
        if has_ended(&person) {
            return Err(misused(
                format!("the time of \"{name}\" is over"),
                "invite the person again first: `quorumfs people invite`",
            ));
        }
        let statement = person.statement;
        if statement.key == volume.principal().id().signing {
            let message = format!("\"{name}\" is the one whose key this command uses");
            return Err(misused(message, "name another person"));
        }
        let (Assertable::Only(uids), gids) = (&statement.rights.uids, &statement.rights.gids)
        else {
            let message = format!("\"{name}\" acts for every user and has access to everything");
            return Err(misused(message, "there is nothing to share with it"));
        };
        let Some(uid) = uids.first().copied() else {
            let message = format!("\"{name}\" acts for no user of the volume");
            return Err(misused(
                message,
                "give it one: `quorumfs people set NAME --uid`",
            ));
        };
        if uid == Uid(self.caller.uid) || uid == Uid::ROOT {
            let message = format!("\"{name}\" acts for user {uid} and has that access already");
            return Err(misused(message, "name another person"));
        }
        if role_name(&statement.rights) == "read" && !read_only {
            let message = format!("\"{name}\" may only read in this volume");
            return Err(misused(
                message,
                "share it with --read-only, or let the person write first: `quorumfs people set \
                 NAME --role write`",
            ));
        }
        let gids: Vec<Gid> = match gids {
            Assertable::Only(gids) => gids.clone(),
            Assertable::Any => Vec::new(),
        };
        Ok(SharedWith {
            name: super::super::people::harmless(name),
            key: statement.key,
            who: Credentials {
                uid,
                gid: gids.first().copied().unwrap_or(Gid(uid.0)),
                groups: gids,
            },
        })
    }

    /// What a path leads to, if this user can share it.
    async fn shared_path(&self, path: &Path, person: &SharedWith) -> CommandResult<SharedPath> {
        let fs = self.fs();
        let shown = walk::shown(path);
        let (mut here, mut at) = (fs.root(), PathBuf::from("/"));
        let (mut through, mut closed, mut parent) = (Vec::new(), Vec::new(), fs.root());
        let found = walk::find(fs, &shown).await?;
        self.check_shared(&found, &shown, person)?;
        for name in walk::names(&shown) {
            match self.passes(here, &at, person).await? {
                Passage::Freely => {}
                Passage::ByName => through.push(here),
                Passage::Closed(_) => {
                    through.push(here);
                    closed.push((here, at.clone()));
                }
            }
            parent = here;
            at.push(name);
            let child = walk::child(fs, here, name.as_bytes(), &shown).await?;
            here = child.ok_or_else(|| walk::missing(&shown))?.inode;
        }
        if through.len() > SHARE_THROUGH_MAX {
            let (name, most) = (&person.name, SHARE_THROUGH_MAX);
            let message = format!(
                "more than {most} directories above {} let \"{name}\" not pass",
                shown.display()
            );
            return Err(Failure::new(Exit::Path, message).hint("share one of these directories"));
        }
        let path = walk::names(&shown);
        let path: Vec<&[u8]> = path.iter().map(|name| name.as_bytes()).collect();
        let place = SharedPlace {
            parent,
            path: path.join(&b'/'),
        };
        Ok(SharedPath {
            found,
            path: shown,
            place,
            through,
            closed,
        })
    }

    fn check_shared(
        &self,
        found: &Attributes,
        path: &Path,
        person: &SharedWith,
    ) -> CommandResult<()> {
        self.kind_to_share(found, path)?;
        if found.uid == person.who.uid {
            let message = format!("{} is \"{}\"'s own", path.display(), person.name);
            return Err(Failure::new(Exit::Path, message).hint("there is nothing to share"));
        }
        self.check_owner(found, path)
    }

    /// How a directory lets the person pass, if this user can have it let it pass.
    async fn passes(
        &self,
        directory: InodeId,
        path: &Path,
        person: &SharedWith,
    ) -> CommandResult<Passage> {
        let passage = self.fs().passage(directory, &person.who).await;
        let passage = passage.map_err(|error| refused(path, &error))?;
        let Passage::Closed(owner) = passage else {
            return Ok(passage);
        };
        let caller = Uid(self.caller.uid);
        if caller == Uid::ROOT || caller == owner {
            return Ok(passage);
        }
        let (shown, name, uid) = (path.display(), &person.name, person.who.uid);
        let message =
            format!("{shown} belongs to user {owner}, and does not let \"{name}\" pass to it");
        Err(Failure::new(Exit::Path, message).hint(format!(
            "its owner can let \"{name}\" pass, in a mount: setfacl -m u:{uid}:x DIRECTORY"
        )))
    }
}

/// Why the servers have refused a share.
fn not_shared(path: &Path, name: &str, error: &VfsError) -> Failure {
    let refuse = |exit, message: String, hint: &str| Failure::new(exit, message).hint(hint);
    let shown = path.display();
    match error {
        VfsError::Refused { errno, .. } if *errno == Errno::EXIST => refuse(
            Exit::Usage,
            format!("{shown} is shared with \"{name}\", who acted for another user then"),
            "end that share first: `quorumfs share ls` shows its number",
        ),
        VfsError::Refused { errno, .. } if *errno == Errno::TOOBIG => refuse(
            Exit::Usage,
            "there are too many shares".to_owned(),
            "end some: `quorumfs share ls` shows them",
        ),
        VfsError::Refused { errno, .. } if *errno == Errno::NOENT => refuse(
            Exit::Usage,
            format!("\"{name}\" was removed from the volume meanwhile"),
            "`quorumfs people ls` shows all",
        ),
        error => refused(path, error),
    }
}
