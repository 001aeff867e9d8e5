//! Watches: registered and ended in order, and the changes in a batch that they cover.
//!
//! A session's watches are rows like all other agreed state, and so is the sequence of its last
//! event, which every event names. Changes are collected from the service's transactions as they
//! are committed, and compared with the watched prefixes once a batch: for each row that was
//! written, one lookup for each length of prefix that is in use. The prefixes are in a sorted map
//! in memory that is derived from the rows and rebuilt from them after a restart or a transfer.
//! Without watches, none of this happens.
//!
//! Invariants: the counts of watches in the clock row and in the watchers' rows are equal to the
//! number of watch rows; a watcher's last event is below the batch being executed; the index is
//! that of the state after the batch that it names.

use super::rows::{
    ClockRow, WATCH_PREFIX, WatchRow, WatcherRow, damaged, decode, encode, watch_key, watch_of_key,
    watcher_key, watches_prefix,
};
use crate::identity::{Sequence, SessionId};
use crate::observer::{WatchAnswer, WatchEvent, WatchId};
use crate::service::{Caller, Service};
use crate::state::{Area, KeySpace, StateError, Store, Txn, View, prefix_end};
use crate::wire::limits::{
    WATCH_PREFIX_BYTES_MAX, WATCH_PREFIXES_MAX, WATCHES_MAX, WATCHES_PER_SESSION_MAX,
};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// An index of the watches by prefix.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// The batch after which the index was current; `None` if it has to be rebuilt.
    after: Option<Sequence>,
    prefixes: BTreeMap<Bytes, BTreeSet<(SessionId, WatchId)>>,
    /// The number of prefixes of each length.
    lengths: BTreeMap<usize, usize>,
}

impl Index {
    /// Discards the index, since the rows were replaced.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Begins a batch on the state after `before`: from now on changes are collected, if there are
    /// watches.
    pub(super) fn begin<D: Store>(
        &mut self,
        space: &mut KeySpace<D>,
        clock: &ClockRow,
        before: Sequence,
    ) -> Result<(), StateError> {
        if clock.watches == 0 {
            if self.after.is_some() {
                self.forget();
            }
            return Ok(());
        }
        if self.after != Some(before) {
            self.read(&space.view(Area::Library), before)?;
        }
        space.note_changes();
        Ok(())
    }

    fn read(&mut self, view: &View<'_>, after: Sequence) -> Result<(), StateError> {
        self.forget();
        self.after = Some(after);
        let end = prefix_end(WATCH_PREFIX);
        for (key, value) in view.scan(WATCH_PREFIX..end.as_slice(), WATCHES_MAX)? {
            let wrong = || damaged("a watch's key", "it has another length");
            let (session, watch) = watch_of_key(&key).ok_or_else(wrong)?;
            let row: WatchRow = decode(&key, &value)?;
            for prefix in row.prefixes {
                self.add(prefix.into(), (session, watch));
            }
        }
        Ok(())
    }

    fn add(&mut self, prefix: Bytes, watch: (SessionId, WatchId)) {
        if !self.prefixes.contains_key(&prefix) {
            *self.lengths.entry(prefix.len()).or_default() += 1;
        }
        self.prefixes.entry(prefix).or_default().insert(watch);
    }

    fn remove(&mut self, prefix: &[u8], watch: (SessionId, WatchId)) {
        let Some(watches) = self.prefixes.get_mut(prefix) else {
            return;
        };
        watches.remove(&watch);
        if !watches.is_empty() {
            return;
        }
        self.prefixes.remove(prefix);
        if let Some(count) = self.lengths.get_mut(&prefix.len()) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&prefix.len());
            }
        }
    }

    /// The watches that cover one of these rows, by session.
    fn covering(&self, changed: &[Bytes]) -> BTreeMap<SessionId, BTreeSet<WatchId>> {
        let mut found: BTreeMap<SessionId, BTreeSet<WatchId>> = BTreeMap::new();
        for key in changed {
            for length in self
                .lengths
                .keys()
                .take_while(|length| **length <= key.len())
            {
                let prefix = key.get(..*length).unwrap_or_default();
                for (session, watch) in self.prefixes.get(prefix).into_iter().flatten() {
                    found.entry(*session).or_default().insert(*watch);
                }
            }
        }
        found
    }

    /// Ends a batch: returns its events, one for each watcher.
    pub(super) fn end<D: Store>(
        &mut self,
        space: &mut KeySpace<D>,
        sequence: Sequence,
    ) -> Result<Vec<WatchEvent>, StateError> {
        let changed = space.take_changes();
        if self.after.is_none() {
            return Ok(Vec::new());
        }
        self.after = Some(sequence);
        let mut events = Vec::new();
        let mut txn = space.begin(Area::Library, sequence);
        for (session, watches) in self.covering(&changed) {
            let Some(row) = watcher(&txn.view(), session)? else {
                return Err(damaged("a watcher", "its watches have no owner"));
            };
            events.push(WatchEvent {
                session,
                sequence,
                previous: row.last,
                watches: watches.into_iter().collect(),
            });
            let row = WatcherRow {
                last: sequence,
                ..row
            };
            txn.put(&watcher_key(session), encode(&row)?)?;
        }
        txn.commit();
        Ok(events)
    }

    /// Handles a session's request to watch.
    pub(super) fn watch<S: Service, D: Store>(
        &mut self,
        service: &S,
        (space, clock): (&mut KeySpace<D>, &mut ClockRow),
        (caller, sequence): (&Caller, Sequence),
        what: &[u8],
    ) -> Result<WatchAnswer, StateError> {
        let prefixes = service.watch(&space.view(Area::Service), caller, what)?;
        let fits = |prefix: &Bytes| prefix.len() <= WATCH_PREFIX_BYTES_MAX;
        let Some(prefixes) = prefixes.filter(|all| all.iter().all(fits)) else {
            return Ok(WatchAnswer::Refused);
        };
        if prefixes.is_empty() || prefixes.len() > WATCH_PREFIXES_MAX {
            return Ok(WatchAnswer::Refused);
        }
        let session = caller.session;
        let before = watcher(&space.view(Area::Library), session)?;
        let first = before.is_none();
        let mut row = before.unwrap_or(WatcherRow {
            watches: 0,
            // The event before the first one, which may be in this very batch.
            last: Sequence(sequence.0.saturating_sub(1)),
        });
        let full = clock.watches as usize >= WATCHES_MAX;
        if full || row.watches as usize >= WATCHES_PER_SESSION_MAX {
            return Ok(WatchAnswer::TooMany);
        }
        let last = row.last;
        let watch = WatchId(clock.last_watch.0.saturating_add(1));
        clock.last_watch = watch;
        clock.watches += 1;
        row.watches += 1;
        if self.after.is_none() {
            self.after = Some(sequence);
        }
        space.note_changes();
        let mut txn = space.begin(Area::Library, sequence);
        txn.put(&watcher_key(session), encode(&row)?)?;
        let list = prefixes.iter().map(|prefix| prefix.to_vec()).collect();
        let list = WatchRow { prefixes: list };
        txn.put(&watch_key(session, watch), encode(&list)?)?;
        txn.commit();
        for prefix in prefixes {
            self.add(prefix, (session, watch));
        }
        Ok(WatchAnswer::Watching { watch, first, last })
    }

    /// Handles a session's request to end a watch.
    pub(super) fn unwatch(
        &mut self,
        txn: &mut Txn<'_>,
        clock: &mut ClockRow,
        session: SessionId,
        watch: WatchId,
    ) -> Result<WatchAnswer, StateError> {
        let key = watch_key(session, watch);
        let (Some(bytes), Some(mut row)) = (txn.get(&key)?, watcher(&txn.view(), session)?) else {
            return Ok(WatchAnswer::Unknown);
        };
        let list: WatchRow = decode(&key, &bytes)?;
        for prefix in &list.prefixes {
            self.remove(prefix, (session, watch));
        }
        txn.delete(&key)?;
        clock.watches = clock.watches.saturating_sub(1);
        row.watches = row.watches.saturating_sub(1);
        if row.watches == 0 {
            txn.delete(&watcher_key(session))?;
        } else {
            txn.put(&watcher_key(session), encode(&row)?)?;
        }
        Ok(WatchAnswer::Ended)
    }

    /// Ends the watches of a session that has ended.
    pub(super) fn session_ended(
        &mut self,
        txn: &mut Txn<'_>,
        clock: &mut ClockRow,
        session: SessionId,
    ) -> Result<(), StateError> {
        if clock.watches == 0 {
            return Ok(());
        }
        let prefix = watches_prefix(session);
        let end = prefix_end(&prefix);
        for (key, _) in txn.scan(&prefix..end.as_slice(), WATCHES_PER_SESSION_MAX)? {
            if let Some((_, watch)) = watch_of_key(&key) {
                self.unwatch(txn, clock, session, watch)?;
            }
        }
        Ok(())
    }
}

/// The watcher row of a session, if it watches.
pub(super) fn watcher(
    view: &View<'_>,
    session: SessionId,
) -> Result<Option<WatcherRow>, StateError> {
    let key = watcher_key(session);
    let row = view.get(&key)?;
    row.map(|bytes| decode(&key, &bytes)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(session: u64, watch: u64) -> (SessionId, WatchId) {
        (SessionId(session), WatchId(watch))
    }

    fn found(index: &Index, changed: &[&str]) -> Vec<(u64, Vec<u64>)> {
        let changed: Vec<Bytes> = changed.iter().map(|key| key.to_string().into()).collect();
        let found = index.covering(&changed).into_iter();
        found
            .map(|(session, watches)| (session.0, watches.iter().map(|it| it.0).collect()))
            .collect()
    }

    #[test]
    fn a_row_is_covered_by_every_prefix_of_its_key_and_by_no_other() {
        let mut index = Index::default();
        index.add("a".into(), name(1, 1));
        index.add("ab".into(), name(1, 2));
        index.add("ab".into(), name(2, 3));
        index.add("abcd".into(), name(2, 4));
        index.add("".into(), name(3, 5));
        assert_eq!(found(&index, &["b"]), [(3, vec![5])]);
        let all = [(1, vec![1, 2]), (2, vec![3]), (3, vec![5])];
        assert_eq!(found(&index, &["abc"]), all);
        assert_eq!(found(&index, &["abc", "a"]), all, "each once");
        let all = [(1, vec![1, 2]), (2, vec![3, 4]), (3, vec![5])];
        assert_eq!(found(&index, &["abcde"]), all);
        assert!(found(&index, &[]).is_empty());
    }

    #[test]
    fn removed_watches_cover_nothing_and_leave_nothing() {
        let mut index = Index::default();
        index.add("ab".into(), name(1, 1));
        index.add("ab".into(), name(2, 2));
        index.remove(b"ab", name(1, 1));
        assert_eq!(found(&index, &["abc"]), [(2, vec![2])]);
        index.remove(b"ab", name(1, 1));
        index.remove(b"ab", name(2, 2));
        index.remove(b"x", name(2, 2));
        assert!(found(&index, &["abc"]).is_empty());
        assert!(index.prefixes.is_empty() && index.lengths.is_empty());
    }
}
