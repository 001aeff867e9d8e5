//! Sharing by a link: a URL with a secret token, which is printed once.
//!
//! The token is drawn here, and the servers get its hash: neither they nor `share ls` can show the
//! link again. A process that runs `quorumfs serve` serves it, with the rights of the user who
//! shares.

use super::super::files::{date, refused, walk};
use super::super::people::after;
use super::super::serve::base_url;
use super::{Sharing, check_expires, misused};
use crate::commands::opened::Configured;
use crate::exit::Exit;
use crate::failure::{CommandResult, Failure};
use quorumfs_gateway::vfs::{Attributes, FileSystem, FileType, NewSharing, SharedPlace, VfsError};
use quorumfs_http::page::size;
use quorumfs_http::token::TOKEN_BYTES;
use quorumfs_http::{BaseUrl, LinkToken};
use quorumfs_metadata::identity::Uid;
use quorumfs_metadata::operation::NewShareWith;
use rustix::io::Errno;
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// A link that was made.
#[derive(Serialize)]
struct LinkLine {
    id: u64,
    url: String,
    /// `file` or `directory`.
    kind: &'static str,
    /// Bytes of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// When it ends by itself, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
}

impl LinkLine {
    fn text(&self) -> String {
        let what = match self.size {
            Some(bytes) => format!("1 file, {}", size(bytes)),
            None => "1 folder with all that is in it".to_owned(),
        };
        let until = self.expires.and_then(|it| i64::try_from(it).ok());
        let until = match until {
            Some(seconds) => format!("until {} UTC", date(seconds)),
            None => "until it is revoked".to_owned(),
        };
        let (url, id) = (&self.url, self.id);
        format!("{url}\n{what}, {until}; stop it: quorumfs share revoke {id}")
    }
}

/// How a link begins, if one is to be made.
pub(in crate::commands) fn base(
    is_wanted: bool,
    typed: Option<&str>,
    configured: &Configured,
) -> CommandResult<Option<BaseUrl>> {
    if !is_wanted {
        return Ok(None);
    }
    let base = base_url(typed, configured)?;
    base.map(Some).ok_or_else(|| {
        misused(
            "it is not known under which URL `quorumfs serve` is reached".to_owned(),
            "give it with --url, or write `url = \"https://files.example\"` under [share] in \
             quorumfs.toml; to try it, run `quorumfs serve` and give --url http://127.0.0.1:8480",
        )
    })
}

impl Sharing<'_> {
    pub(super) async fn by_link(
        &self,
        path: &Path,
        expires: Option<Duration>,
        base: &BaseUrl,
    ) -> CommandResult {
        check_expires(expires)?;
        let path = walk::shown(path);
        let found = walk::find(self.fs(), &path).await?;
        let kind = self.check_linked(&found, &path)?;
        let mut bytes = [0; TOKEN_BYTES];
        getrandom::fill(&mut bytes)
            .map_err(|error| Failure::new(Exit::Error, format!("no randomness: {error}")))?;
        let token = LinkToken::new(bytes);
        let expires = expires.map(after);
        let sharing = NewSharing {
            inode: found.inode,
            place: place_of(self.fs(), &path).await?,
            with: NewShareWith::Link {
                token: FileSystem::hash_of_token(token.bytes()),
            },
            expires,
        };
        let shared = self.fs().share(&self.caller, sharing).await;
        let id = shared.map_err(|error| not_linked(&path, &error))?;
        let line = LinkLine {
            id: id.0,
            url: base.link(&token, kind == "directory"),
            kind,
            size: (kind == "file").then_some(found.size),
            expires: expires.map(|at| at.0 / 1_000_000_000),
        };
        self.output.record("link", &line, LinkLine::text)?;
        if base.is_plain() {
            self.output.print_text(
                "The URL begins with http://: what it leads to crosses the network unencrypted.",
            )?;
        }
        Ok(Exit::Success)
    }

    /// Whether this user can share it by a link; its kind.
    pub(super) fn check_linked(
        &self,
        found: &Attributes,
        path: &Path,
    ) -> CommandResult<&'static str> {
        let kind = self.kind_to_share(found, path)?;
        self.check_owner(found, path)?;
        Ok(kind)
    }

    /// Whether such a thing can be shared at all; its kind.
    pub(super) fn kind_to_share(
        &self,
        found: &Attributes,
        path: &Path,
    ) -> CommandResult<&'static str> {
        let (message, hint) = if self.fs().is_of_shared_with_me(found.inode) {
            (
                "is what others share with you",
                "its owner can share it with others too",
            )
        } else {
            match found.file_type() {
                FileType::File => return Ok("file"),
                FileType::Directory => return Ok("directory"),
                FileType::Symlink => ("is a symbolic link", "share what it leads to"),
                _ => (
                    "is neither a file nor a directory",
                    "share the directory that it is in",
                ),
            }
        };
        let message = format!("{} {message}", path.display());
        Err(Failure::new(Exit::Path, message).hint(hint))
    }

    /// Whether it is this user's to share.
    pub(super) fn check_owner(&self, found: &Attributes, path: &Path) -> CommandResult<()> {
        let (owner, caller) = (found.uid, Uid(self.caller.uid));
        if caller == Uid::ROOT || caller == owner {
            return Ok(());
        }
        let message = format!("{} belongs to user {owner}", path.display());
        Err(Failure::new(Exit::Path, message).hint("only its owner can share it"))
    }
}

/// Where something at a shown path is; the root lies in itself.
pub(super) async fn place_of(fs: &FileSystem, path: &Path) -> CommandResult<SharedPlace> {
    let parent = path.parent().unwrap_or(path);
    let below = path.strip_prefix("/").unwrap_or(path);
    Ok(SharedPlace {
        parent: walk::find(fs, parent).await?.inode,
        path: below.as_os_str().as_bytes().to_vec(),
    })
}

/// Why the servers have refused a link.
pub(super) fn not_linked(path: &Path, error: &VfsError) -> Failure {
    let refuse = |exit, message: String, hint: &str| Failure::new(exit, message).hint(hint);
    match error {
        VfsError::Refused { errno, .. } if *errno == Errno::TOOBIG => refuse(
            Exit::Usage,
            "there are too many shares".to_owned(),
            "end some: `quorumfs share ls` shows them",
        ),
        VfsError::Refused { errno, .. } if *errno == Errno::INVAL => refuse(
            Exit::Usage,
            format!("{} cannot be shared until then", path.display()),
            "--expires has to be in the future, by the replicas' clock too",
        ),
        error => refused(path, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_printed_with_what_it_is_and_how_to_stop_it() {
        let file = LinkLine {
            id: 12,
            url: "https://files.example/s/x".to_owned(),
            kind: "file",
            size: Some(2_202_624),
            expires: Some(951_827_696),
        };
        assert_eq!(
            file.text(),
            "https://files.example/s/x\n1 file, 2.1 MiB, until 2000-02-29 12:34 UTC; stop it: \
             quorumfs share revoke 12"
        );
        let folder = LinkLine {
            size: None,
            expires: None,
            kind: "directory",
            ..file
        };
        assert!(
            folder
                .text()
                .contains("1 folder with all that is in it, until it is revoked;")
        );
    }
}
