//! Files that stay open over many steps, while other mounts change and remove them.
//!
//! A reader that has a file open need not see the last close, but it sees it within the bound. When
//! it reads while another mount changes the file, each byte is one that was there at its place.
//! A file without a name stays readable and writable on the mount that has it open.

use super::promise::{FileBytes, Kept, Way, first_difference, is_mixture};
use super::stage::Stage;
use rustix::fs::OFlags;
use std::os::fd::OwnedFd;
use std::time::Instant;

const HELD_MAX: usize = 8;
/// What is written to a file without a name.
const SMALL: usize = 3000;
const STAYS: &str = "a file that is open shows what others change within the bound, and stays as \
                     it is when its last name is removed";

/// A file that is open on a mount.
#[derive(Debug)]
pub(super) struct HeldFile {
    pub(super) mount: usize,
    pub(super) file: OwnedFd,
    pub(super) number: u64,
    pub(super) path: String,
    pub(super) writes: bool,
}

impl Stage<'_> {
    /// Opens a file for later steps.
    pub(super) fn hold(&mut self, mount: usize) -> Kept {
        if self.held.len() >= HELD_MAX {
            return self.use_held();
        }
        let Some(place) = self.draw_file() else {
            return Ok(());
        };
        let path = self.tree.path(&place);
        self.note(mount, "hold", &[&path]);
        let writes = self.random.chance(1, 2);
        let flags = if writes { OFlags::RDWR } else { OFlags::RDONLY };
        if let Some((file, number)) = self.open_to_change(mount, &place, flags)? {
            self.held.push(HeldFile {
                mount,
                file,
                number,
                path,
                writes,
            });
        }
        Ok(())
    }

    /// Reads one of the open files, writes to it if it has no name, or closes it.
    pub(super) fn use_held(&mut self) -> Kept {
        let busy: Vec<_> = self.reserved.iter().map(|it| self.tree.at(it)).collect();
        let is_usable = |held: &HeldFile| {
            !self.away.contains(&held.mount) && !busy.contains(&Some(held.number))
        };
        let usable = (0..self.held.len()).filter(|at| is_usable(&self.held[*at]));
        let usable: Vec<_> = usable.collect();
        let Some(at) = self.random.pick(&usable).copied() else {
            return Ok(());
        };
        let (mount, path) = (self.held[at].mount, self.held[at].path.clone());
        let is_orphan = self.tree.inodes[&self.held[at].number].is_orphan();
        match self.random.below(4) {
            0 => {
                let kind = if is_orphan {
                    "close without a name"
                } else {
                    "close held"
                };
                self.note(mount, kind, &[&path]);
                let held = self.held.swap_remove(at);
                self.hand(mount).close(held.file);
                Ok(())
            }
            1 | 2 if is_orphan && self.held[at].writes => {
                self.note(mount, "write without a name", &[&path]);
                self.write_orphan(at)?;
                self.read_held(at)
            }
            _ => {
                let kind = if is_orphan {
                    "read without a name"
                } else {
                    "read held"
                };
                self.note(mount, kind, &[&path]);
                self.read_held(at)
            }
        }
    }

    /// Reads all of an open file.
    fn read_held(&mut self, at: usize) -> Kept {
        let held = &self.held[at];
        let (mount, number, path) = (held.mount, held.number, held.path.clone());
        let (hand, began) = (self.hand(mount), Instant::now());
        let seen = hand.read_from(&held.file, 0);
        let seen = seen.map_err(|error| self.failed(mount, "read", &path, error))?;
        let horizon = self.mounts.horizon(mount, began, false);
        let (seen, content) = (FileBytes::of(seen), &mut self.tree.inode(number).content);
        let allowed: Vec<_> = content.allowed(mount, horizon).cloned().collect();
        self.counts.files += 1;
        self.counts.bytes += seen.length();
        let content = &mut self.tree.inode(number).content;
        let Err(expected) = content.show(mount, Way::Lookup, horizon, &seen) else {
            return Ok(());
        };
        let states: Vec<_> = allowed.iter().map(|it| &it.0[..]).collect();
        if states.len() > 1 && is_mixture(&states, &seen.0) {
            return Ok(());
        }
        let now = self.tree.inodes[&number].content.now();
        let seen = format!("{seen:?}, {}", first_difference(&now.0, &seen.0));
        Err(self.broken(mount, STAYS, &path, expected, seen))
    }

    /// Appends to an open file that has no name, unless another mount has it open as well.
    fn write_orphan(&mut self, at: usize) -> Kept {
        let held = &self.held[at];
        let (mount, number, path) = (held.mount, held.number, held.path.clone());
        let mut holders = self.held.iter().filter(|it| it.number == number);
        if holders.any(|it| it.mount != mount) {
            return Ok(());
        }
        let (hand, bytes) = (self.hand(mount), self.random.next().to_le_bytes());
        let bytes = bytes.repeat(1 + self.random.index(SMALL / bytes.len()));
        let mut now = self.tree.inodes[&number].content.now().0.to_vec();
        let file = &self.held[at].file;
        let written = hand.write_at(file, now.len() as u64, &bytes);
        let synced = written.and_then(|()| match self.random.chance(1, 2) {
            true => hand.sync(file),
            false => Ok(()),
        });
        now.extend_from_slice(&bytes);
        let seen = synced.and_then(|()| hand.state(file));
        let seen = seen.map_err(|error| self.failed(mount, "write", &path, error))?;
        if seen.length != now.len() as u64 {
            let expected = format!("{} bytes", now.len());
            return Err(self.broken(mount, STAYS, &path, expected, format!("{seen:?}")));
        }
        self.tree
            .inode(number)
            .changed(mount, &seen, FileBytes::of(now));
        Ok(())
    }

    /// Closes everything that is open on a mount.
    pub(super) fn close_all(&mut self, mount: usize) {
        let (theirs, others) = std::mem::take(&mut self.held)
            .into_iter()
            .partition::<Vec<_>, _>(|held| held.mount == mount);
        self.held = others;
        let hand = self.hand(mount);
        theirs.into_iter().for_each(|held| hand.close(held.file));
    }
}
