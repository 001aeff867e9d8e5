//! The tree of the [null file system](super::null): names, modes, lengths.

use fuser::{Errno, FileAttr, FileType, INodeNo};
use std::collections::{BTreeMap, HashMap};
use std::time::UNIX_EPOCH;

/// The entries of a directory, by name, and in the order of listing.
#[derive(Debug, Default)]
struct Entries {
    by_name: HashMap<Vec<u8>, u64>,
    /// By inode number, which is the cookie: an entry stays in place while others go.
    in_order: BTreeMap<u64, Vec<u8>>,
}

#[derive(Debug)]
struct NullNode {
    mode: u32,
    owner: (u32, u32),
    size: u64,
    target: Vec<u8>,
    entries: Entries,
}

/// A tree of names.
#[derive(Debug)]
pub(super) struct NullTree {
    nodes: HashMap<u64, NullNode>,
    next: u64,
}

impl Default for NullTree {
    fn default() -> Self {
        let root = NullNode {
            mode: Self::DIRECTORY | 0o755,
            owner: (0, 0),
            size: 0,
            target: Vec::new(),
            entries: Entries::default(),
        };
        Self {
            nodes: HashMap::from([(Self::ROOT, root)]),
            next: Self::ROOT + 1,
        }
    }
}

impl NullTree {
    pub(super) const DIRECTORY: u32 = 0o040_000;
    pub(super) const FILE: u32 = 0o100_000;
    pub(super) const SYMLINK: u32 = 0o120_000;
    const KIND: u32 = 0o170_000;
    const ROOT: u64 = 1;

    fn node(&self, inode: u64) -> Result<&NullNode, Errno> {
        self.nodes.get(&inode).ok_or(Errno::ENOENT)
    }

    fn node_mut(&mut self, inode: u64) -> Result<&mut NullNode, Errno> {
        self.nodes.get_mut(&inode).ok_or(Errno::ENOENT)
    }

    fn number(&self, parent: u64, name: &[u8]) -> Result<u64, Errno> {
        let found = self.node(parent)?.entries.by_name.get(name);
        found.copied().ok_or(Errno::ENOENT)
    }

    pub(super) fn attributes(&self, inode: u64) -> Result<FileAttr, Errno> {
        let node = self.node(inode)?;
        let kind = match node.mode & Self::KIND {
            Self::DIRECTORY => FileType::Directory,
            Self::SYMLINK => FileType::Symlink,
            _ => FileType::RegularFile,
        };
        Ok(FileAttr {
            ino: INodeNo(inode),
            size: node.size,
            blocks: node.size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: (node.mode & 0o7777) as u16,
            nlink: 1,
            uid: node.owner.0,
            gid: node.owner.1,
            rdev: 0,
            blksize: 128 << 10,
            flags: 0,
        })
    }

    pub(super) fn lookup(&self, parent: u64, name: &[u8]) -> Result<FileAttr, Errno> {
        self.attributes(self.number(parent, name)?)
    }

    pub(super) fn target(&self, inode: u64) -> Result<Vec<u8>, Errno> {
        Ok(self.node(inode)?.target.clone())
    }

    fn insert(&mut self, parent: u64, name: &[u8], inode: u64) -> Result<(), Errno> {
        let entries = &mut self.node_mut(parent)?.entries;
        entries.by_name.insert(name.to_vec(), inode);
        entries.in_order.insert(inode, name.to_vec());
        Ok(())
    }

    fn take(&mut self, parent: u64, name: &[u8]) -> Result<u64, Errno> {
        let entries = &mut self.node_mut(parent)?.entries;
        let inode = entries.by_name.remove(name).ok_or(Errno::ENOENT)?;
        entries.in_order.remove(&inode);
        Ok(inode)
    }

    pub(super) fn create(
        &mut self,
        parent: u64,
        name: &[u8],
        mode: u32,
        owner: (u32, u32),
        target: &[u8],
    ) -> Result<FileAttr, Errno> {
        if self.number(parent, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        let inode = self.next;
        self.insert(parent, name, inode)?;
        self.next += 1;
        let node = NullNode {
            mode,
            owner,
            size: target.len() as u64,
            target: target.to_vec(),
            entries: Entries::default(),
        };
        self.nodes.insert(inode, node);
        self.attributes(inode)
    }

    pub(super) fn remove(&mut self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        let inode = self.number(parent, name)?;
        if !self.node(inode)?.entries.by_name.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        self.take(parent, name)?;
        self.nodes.remove(&inode);
        Ok(())
    }

    /// The kernel makes sure that no directory is moved below itself.
    pub(super) fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8])) -> Result<(), Errno> {
        let inode = self.number(from.0, from.1)?;
        match self.number(to.0, to.1) {
            Ok(same) if same == inode => return Ok(()),
            Ok(_) => self.remove(to.0, to.1)?,
            Err(_) => {}
        }
        self.take(from.0, from.1)?;
        self.insert(to.0, to.1, inode)
    }

    pub(super) fn change(
        &mut self,
        inode: u64,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
    ) -> Result<FileAttr, Errno> {
        let node = self.node_mut(inode)?;
        if let Some(mode) = mode {
            node.mode = node.mode & Self::KIND | mode & 0o7777;
        }
        node.owner = (uid.unwrap_or(node.owner.0), gid.unwrap_or(node.owner.1));
        node.size = size.unwrap_or(node.size);
        self.attributes(inode)
    }

    /// Records that a file is written up to `end`.
    pub(super) fn reach(&mut self, inode: u64, end: u64) -> Result<(), Errno> {
        let node = self.node_mut(inode)?;
        node.size = node.size.max(end);
        Ok(())
    }

    /// Shows entries after a cookie until `show` returns that the reply is full.
    pub(super) fn list(
        &self,
        inode: u64,
        cookie: u64,
        mut show: impl FnMut(u64, &[u8], &FileAttr) -> bool,
    ) {
        let Ok(node) = self.node(inode) else {
            return;
        };
        let rest = node.entries.in_order.range(cookie.saturating_add(1)..);
        for (number, name) in rest {
            let Ok(attr) = self.attributes(*number) else {
                continue;
            };
            if show(*number, name, &attr) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn names(tree: &NullTree, after: u64) -> Vec<(u64, Vec<u8>)> {
        let mut seen = Vec::new();
        tree.list(NullTree::ROOT, after, |cookie, name, _| {
            seen.push((cookie, name.to_vec()));
            false
        });
        seen
    }

    #[test]
    fn names_come_move_and_go() {
        let mut tree = NullTree::default();
        let mut make = |name: &[u8], mode| tree.create(1, name, mode, (1, 2), b"").unwrap();
        let file = make(b"file", NullTree::FILE | 0o644);
        let directory = make(b"directory", NullTree::DIRECTORY | 0o755).ino.0;
        assert_eq!((file.perm, file.uid, file.gid), (0o644, 1, 2));
        let again = tree.create(1, b"file", NullTree::FILE, (0, 0), b"");
        assert_eq!(again.map(|attr| attr.ino), Err(Errno::EEXIST));
        tree.reach(file.ino.0, 4096).unwrap();
        tree.rename((1, b"file"), (directory, b"moved")).unwrap();
        assert!(matches!(tree.lookup(1, b"file"), Err(Errno::ENOENT)));
        assert_eq!(tree.lookup(directory, b"moved").unwrap().size, 4096);
        assert_eq!(tree.remove(1, b"directory"), Err(Errno::ENOTEMPTY));
        tree.remove(directory, b"moved").unwrap();
        tree.remove(1, b"directory").unwrap();
        assert!(names(&tree, 0).is_empty());
    }

    #[test]
    fn a_listing_goes_on_where_it_was_while_entries_go() {
        let mut tree = NullTree::default();
        for number in 0..10_u8 {
            tree.create(1, &[b'a' + number], NullTree::FILE, (0, 0), b"")
                .unwrap();
        }
        let all = names(&tree, 0);
        assert_eq!(all.len(), 10);
        let (cookie, name) = all.get(4).unwrap().clone();
        tree.remove(1, &name).unwrap();
        assert_eq!(names(&tree, cookie), all.get(5..).unwrap());
    }
}
