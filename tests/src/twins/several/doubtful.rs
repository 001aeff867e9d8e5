//! Calls whose mount is killed, stopped or cut off meanwhile, so that it is not known whether they
//! were executed.
//!
//! The names of such a call take part in no other step until the mount answers again, or runs again
//! from the same state directory, which ends the old one for good. Then they are read once, and
//! have to be as before or after the call, or for content a mixture of both, byte by byte.

use super::super::picture::Picture;
use super::hand::{CallResult, Hand};
use super::look::Changed;
use super::promise::{FileBytes, Kept, is_mixture};
use super::stage::Stage;
use super::tree::NamePlace;
use rustix::fs::OFlags;
use rustix::io::Errno;

pub(super) const NOTHING_LOST: &str = "a mount that was killed, stopped or cut off loses nothing \
                                       that was closed or synced, and a call is executed as a \
                                       whole or not at all";

/// A call during which its mount is killed, stopped or cut off.
#[derive(Clone, Debug)]
pub(super) enum DoubtfulCall {
    Write(NamePlace, FileBytes, FileBytes),
    Create(NamePlace, FileBytes),
    Unlink(NamePlace),
    Rename(NamePlace, NamePlace),
    SetMode(NamePlace, u32),
}

impl DoubtfulCall {
    pub(super) fn places(&self) -> Vec<NamePlace> {
        match self {
            Self::Write(place, ..)
            | Self::Create(place, _)
            | Self::Unlink(place)
            | Self::SetMode(place, _) => vec![place.clone()],
            Self::Rename(from, to) => vec![from.clone(), to.clone()],
        }
    }

    pub(super) fn perform(&self, hand: &Hand<'_>, paths: &[String]) -> CallResult {
        let path = &paths[0];
        let file = match self {
            Self::Write(_, _, after) => {
                let file = hand.open(path, OFlags::RDWR)?;
                hand.write_at(&file, 0, &after.0)?;
                hand.sync(&file)?;
                file
            }
            Self::Create(_, after) => {
                let file = hand.create(path)?;
                hand.write(&file, &after.0)?;
                hand.sync(&file)?;
                file
            }
            Self::SetMode(_, mode) => {
                let file = hand.open(path, OFlags::RDONLY)?;
                hand.set_mode(&file, *mode)?;
                file
            }
            Self::Unlink(_) => return hand.unlink(path),
            Self::Rename(..) => return hand.rename(path, &paths[1]),
        };
        hand.close(file);
        Ok(())
    }
}

impl Stage<'_> {
    /// A call on names about which this mount is certain.
    pub(super) fn draw_doubtful(&mut self, mount: usize) -> Option<DoubtfulCall> {
        let (from, to) = (self.draw_file(), self.draw_free_name());
        let certain = |this: &mut Self, place: &Option<NamePlace>| {
            let place = place.clone();
            place.filter(|place| this.is_certain(mount, place))
        };
        let (from, to) = (certain(self, &from), certain(self, &to));
        let only_name = |this: &Self, place: &NamePlace| {
            let number = this.tree.at(place);
            number.is_some_and(|number| *this.tree.inodes[&number].links.now() == 1)
        };
        let from = from.filter(|place| only_name(self, place));
        match (self.random.below(5), from, to) {
            (0 | 1, Some(place), _) => {
                let number = self.tree.at(&place)?;
                let before = self.tree.inodes[&number].content.now().clone();
                let mut after = before.0.to_vec();
                let bytes = self.draw_bytes();
                after.resize(after.len().max(bytes.len()), 0);
                after[..bytes.len()].copy_from_slice(&bytes);
                Some(DoubtfulCall::Write(place, before, FileBytes::of(after)))
            }
            (2, Some(place), _) => Some(DoubtfulCall::Unlink(place)),
            (3, Some(from), Some(to)) => Some(DoubtfulCall::Rename(from, to)),
            (3, Some(place), None) => {
                let mode = self.random.below(0o1000) as u32;
                Some(DoubtfulCall::SetMode(place, mode))
            }
            (_, _, Some(place)) => {
                let bytes = self.draw_bytes();
                Some(DoubtfulCall::Create(place, FileBytes::of(bytes)))
            }
            _ => None,
        }
    }

    pub(super) fn paths_of(&self, call: &DoubtfulCall) -> Vec<String> {
        let places = call.places().into_iter();
        places.map(|place| self.tree.path(&place)).collect()
    }

    pub(super) fn note_doubtful(
        &mut self,
        mount: usize,
        kind: &'static str,
        call: &DoubtfulCall,
        paths: &[String],
    ) {
        let paths: Vec<_> = paths.iter().map(String::as_str).collect();
        self.note(mount, kind, &paths);
        self.record.note(mount, &format!("{call:?}"), &paths);
    }

    /// Finds out whether a call was executed, by its mount, which knows nothing from before or has
    /// answered.
    pub(super) fn resolve(&mut self, mount: usize, call: DoubtfulCall, result: CallResult) -> Kept {
        let (paths, hand, places) = (self.paths_of(&call), self.hand(mount), call.places());
        let path = paths[0].clone();
        let unless_missing = |answer: CallResult<_>| match answer {
            Err(Errno::NOENT) => Ok(None),
            answer => answer.map(Some),
        };
        let failed = |error| self.failed(mount, "stat", &path, error);
        let seen = unless_missing(hand.stat(&path)).map_err(failed)?;
        let content = match &seen {
            Some(seen) if seen.is_file() => {
                let content = hand.read(&path);
                content.map_err(|error| self.failed(mount, "read", &path, error))?
            }
            _ => Vec::new(),
        };
        let number = seen.as_ref().map(|seen| seen.inode);
        let before = self.tree.at(&places[0]);
        let wrong = |expected: &str, seen: String| {
            let seen = format!("{seen}, after {call:?} with the result {result:?}");
            Err(self.broken(mount, NOTHING_LOST, &path, expected, seen))
        };
        let is_done = match (&call, &seen) {
            (DoubtfulCall::Write(_, old, new), Some(seen)) => {
                let states = [&old.0[..], &new.0[..]];
                let allowed = if result.is_ok() {
                    &states[1..]
                } else {
                    &states
                };
                if number != before || !is_mixture(allowed, &content) {
                    return wrong(
                        "the old content, the new one, or a mixture",
                        format!("{seen:?}"),
                    );
                }
                true
            }
            (DoubtfulCall::Create(_, new), Some(seen)) => {
                let is_whole = content == *new.0;
                if !is_whole && (result.is_ok() || !is_mixture(&[&[], &new.0], &content)) {
                    return wrong(
                        "no file, an empty one, or a part of it",
                        format!("{seen:?}"),
                    );
                }
                true
            }
            (DoubtfulCall::SetMode(_, mode), Some(seen)) => {
                let old = before.map(|number| *self.tree.inodes[&number].mode.now());
                if number != before || seen.mode != *mode && Some(seen.mode) != old {
                    return wrong("the old mode or the new one", format!("{seen:?}"));
                }
                seen.mode == *mode
            }
            (DoubtfulCall::Create(..) | DoubtfulCall::Unlink(_), None) => {
                matches!(call, DoubtfulCall::Unlink(_))
            }
            (DoubtfulCall::Unlink(_), Some(_)) if number == before => false,
            (DoubtfulCall::Rename(..), _) => {
                let other = unless_missing(hand.stat(&paths[1])).map_err(failed)?;
                match (number, other.map(|other| other.inode)) {
                    (None, other) if other == before => true,
                    (number, None) if number == before => false,
                    both => return wrong("one of the two names", format!("{both:?}")),
                }
            }
            _ => return wrong("the inode that was there", format!("{seen:?}")),
        };
        if result.is_ok() && !is_done {
            return wrong("what the call has acknowledged", format!("{seen:?}"));
        }
        if is_done {
            self.note_resolved(mount, &call, seen, content)?;
        }
        let places: Vec<_> = places.iter().collect();
        self.watch(mount, &places, Changed::Names)
    }

    fn note_resolved(
        &mut self,
        mount: usize,
        call: &DoubtfulCall,
        seen: Option<Picture>,
        content: Vec<u8>,
    ) -> Kept {
        match (call, seen) {
            (DoubtfulCall::Write(..), Some(seen)) => {
                let inode = self.tree.inode(seen.inode);
                inode.changed(mount, &seen, FileBytes::of(content));
            }
            (DoubtfulCall::Create(place, _), Some(seen)) => {
                let added = self.tree.add(&seen, FileBytes::of(content));
                let path = self.tree.path(place);
                added.map_err(|error| {
                    self.broken(mount, NOTHING_LOST, &path, "a new inode", error)
                })?;
                self.tree.bind_new(mount, place, seen.inode);
            }
            (DoubtfulCall::SetMode(_, mode), Some(seen)) => {
                let inode = self.tree.inode(seen.inode);
                inode.mode.change(Some(mount), *mode);
            }
            (DoubtfulCall::Unlink(place), _) => self.tree.remove(mount, place, true),
            (DoubtfulCall::Rename(from, to), _) => self.tree.rename(mount, from, to, true),
            _ => {}
        }
        Ok(())
    }
}
