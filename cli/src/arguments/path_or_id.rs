//! Something in the volume, by its path or by its inode, as written on the command line.

use quorumfs_gateway::vfs::InodeId;
use std::path::PathBuf;
use std::str::FromStr;

/// Something in the volume, or in its trash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PathOrId {
    /// Where it is, or was.
    Path(PathBuf),
    /// Its inode.
    Id(InodeId),
}

impl FromStr for PathOrId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("id:") {
            None => Ok(Self::Path(text.into())),
            Some(number) => {
                let number = number.parse().map_err(|_| {
                    "an id is `id:` and a number; a path that begins so is written with a slash \
                     first"
                })?;
                Ok(Self::Id(InodeId(number)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_marked_and_everything_else_is_a_path() {
        let read = |text: &str| text.parse::<PathOrId>();
        assert_eq!(read("id:77"), Ok(PathOrId::Id(InodeId(77))));
        assert_eq!(read("/id:77"), Ok(PathOrId::Path("/id:77".into())));
        assert_eq!(read("77"), Ok(PathOrId::Path("77".into())));
        assert!(read("id:").is_err() && read("id:x").is_err());
    }
}
