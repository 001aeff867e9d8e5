//! Names of extended attributes, taken apart.

use crate::error::VfsError;
use crate::keys::NAME_BYTES_MAX;
use quorumfs_metadata::attributes::Namespace;
use rustix::io::Errno;

/// A file's capabilities have a namespace of their own.
const CAPABILITY: &[u8] = b"capability";

/// A name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::vfs) struct Name {
    pub(in crate::vfs) namespace: Namespace,
    /// The name without its namespace.
    pub(in crate::vfs) rest: Vec<u8>,
}

impl Name {
    /// Parses a name.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for an unsupported namespace, `ERANGE` for a name that is too long, `EINVAL`
    /// for one that is only a namespace.
    pub(in crate::vfs) fn parse(name: &[u8]) -> Result<Self, VfsError> {
        let refused = |errno| Err(VfsError::refused("extended attribute", errno));
        if name.len() > NAME_BYTES_MAX {
            return refused(Errno::RANGE);
        }
        let spaces = [Namespace::User, Namespace::Trusted, Namespace::Security];
        let found = spaces.into_iter().find_map(|namespace| {
            let rest = name.strip_prefix(prefix(namespace))?;
            Some((namespace, rest))
        });
        match found {
            None => refused(Errno::OPNOTSUPP),
            Some((_, b"")) => refused(Errno::INVAL),
            Some((_, rest)) if rest.contains(&0) => refused(Errno::INVAL),
            Some((namespace, rest)) => {
                let capability = namespace == Namespace::Security && rest == CAPABILITY;
                Ok(Self {
                    namespace: if capability {
                        Namespace::Capability
                    } else {
                        namespace
                    },
                    rest: rest.to_vec(),
                })
            }
        }
    }

    /// Appends the whole name.
    pub(in crate::vfs) fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(prefix(self.namespace));
        to.extend_from_slice(&self.rest);
    }
}

const fn prefix(namespace: Namespace) -> &'static [u8] {
    match namespace {
        Namespace::User => b"user.",
        Namespace::Trusted => b"trusted.",
        Namespace::Security | Namespace::Capability => b"security.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_apart_and_put_together() {
        for (name, namespace, rest) in [
            (&b"user.a.b"[..], Namespace::User, &b"a.b"[..]),
            (b"trusted.x", Namespace::Trusted, b"x"),
            (b"security.selinux", Namespace::Security, b"selinux"),
            (b"security.capability", Namespace::Capability, b"capability"),
            (b"user.capability", Namespace::User, b"capability"),
        ] {
            let found = Name::parse(name).unwrap();
            assert_eq!((found.namespace, found.rest.as_slice()), (namespace, rest));
            let mut whole = Vec::new();
            found.write(&mut whole);
            assert_eq!(whole, name);
        }
    }

    #[test]
    fn unsupported_names_are_refused() {
        let errno = |name: &[u8]| Name::parse(name).unwrap_err().errno();
        for name in [&b"system.other"[..], b"nothing", b"", b"user", b"USER.a"] {
            assert_eq!(errno(name), Errno::OPNOTSUPP, "{name:?}");
        }
        assert_eq!(errno(b"user."), Errno::INVAL);
        assert_eq!(errno(b"user.a\0b"), Errno::INVAL);
        let long = [b"user.".as_slice(), &[b'a'; 251]].concat();
        assert_eq!(errno(&long), Errno::RANGE);
        assert!(Name::parse(&long[..255]).is_ok());
    }
}
