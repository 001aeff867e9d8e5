//! What goes to the trash, who gets it back, and when it goes for good.

mod format;
mod purging;

pub(super) use format::fixtures;

use super::harness::*;
use crate::attributes::{Credentials, FileType, Mode};
use crate::error::Error;
use crate::genesis::TRASH_SECONDS;
use crate::identity::*;
use crate::limits::{TRASH_AGE_SECONDS, TRASH_PURGED_MAX};
use crate::operation::*;
use crate::query::Question;
use crate::reply::{QueryResult, StepDone};
use crate::row::*;
use crate::simulation::place;
use proptest::prelude::*;
use quorumfs_bft::service::Caller;

/// All inodes in the trash.
pub(super) fn all(world: &TestService) -> Vec<(InodeId, Trashed)> {
    let rows = world.rows(b"TR/").into_iter();
    rows.map(|(row_key, value)| {
        let (_, inode) = key::trailing_removal(&row_key).unwrap();
        (inode, Trashed::from_bytes(&value).unwrap())
    })
    .collect()
}

/// The rows that find what is in the trash, and its size, counted anew.
pub(super) fn counts(world: &TestService) -> Result<(), TestCaseError> {
    let mut held = Amount::default();
    let (mut numbers, mut places) = (Vec::new(), Vec::new());
    for (inode, trashed) in all(world) {
        held = held.plus(trashed.inode.charge()).unwrap();
        prop_assert_eq!((trashed.inode.links, trashed.inode.holders), (0, 0));
        numbers.push(key::trash_place(inode));
        places.push(key::trashed_in(trashed.entry.directory, inode));
        prop_assert!(world.rows(&key::inode(inode)).is_empty(), "in two places");
    }
    numbers.sort();
    places.sort();
    let keys = |tag: &[u8]| {
        let rows = world.rows(tag).into_iter();
        rows.map(|(row_key, _)| row_key).collect::<Vec<_>>()
    };
    prop_assert_eq!(keys(b"TI/"), numbers);
    prop_assert_eq!(keys(b"TD/"), places);
    let size = world.rows(&key::trash_size(RealmId::ROOT));
    let size = size
        .first()
        .map(|(_, value)| TrashSize::from_bytes(value).unwrap().held);
    prop_assert_eq!(size.unwrap_or_default(), held);
    Ok(())
}

struct TrashWorld {
    service: TestService,
    caller: Caller,
}

impl TrashWorld {
    fn new() -> Self {
        let mut service = TestService::new();
        let caller = service.open(OWNER);
        Self { service, caller }
    }

    fn create(&mut self, parent: InodeId, name: &str) -> InodeId {
        self.service.create(&self.caller, parent, name)
    }

    fn mkdir(&mut self, parent: InodeId, name: &str) -> InodeId {
        self.service.mkdir(&self.caller, parent, name)
    }

    fn old(&mut self, parent: InodeId, name: &str) -> InodeId {
        let inode = self.create(parent, name);
        self.service.wait(61);
        inode
    }

    fn step(&mut self, step: Step) -> Result<StepDone, Error> {
        self.service.step(&self.caller, &Credentials::root(), step)
    }

    fn unlink(&mut self, parent: InodeId, name: &str) {
        let step = Step::Unlink(removal(parent, name, false));
        self.step(step).unwrap();
    }

    fn rmdir(&mut self, parent: InodeId, name: &str) {
        let step = Step::RemoveDirectory(removal(parent, name, false));
        self.step(step).unwrap();
    }

    fn restore(&mut self, inode: InodeId, parent: InodeId, name: &str) -> Result<StepDone, Error> {
        let place = place(parent, name);
        self.step(Step::Restore(Restore { inode, place }))
    }

    fn trashed(&self) -> Vec<InodeId> {
        all(&self.service)
            .into_iter()
            .map(|(inode, _)| inode)
            .collect()
    }

    fn listed(&mut self, who: Credentials, question: Question) -> Vec<InodeId> {
        match self.service.ask_as(&self.caller, who, question) {
            Ok(QueryResult::Trash { entries, .. }) => {
                entries.iter().map(|entry| entry.inode.inode).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    fn is_consistent(&self) {
        super::model::consistent(&self.service).unwrap();
    }
}

fn whole() -> Question {
    Question::Trash {
        realm: RealmId::ROOT,
        after: None,
        limit: 64,
    }
}

#[test]
fn what_is_older_than_a_minute_goes_to_the_trash_and_what_is_younger_does_not() {
    let mut world = TrashWorld::new();
    world.create(InodeId::ROOT, "young");
    world.service.wait(TRASH_AGE_SECONDS as u64 - 1);
    world.unlink(InodeId::ROOT, "young");
    assert_eq!(world.trashed(), []);
    let old = world.old(InodeId::ROOT, "old");
    world.unlink(InodeId::ROOT, "old");
    assert_eq!(world.trashed(), [old]);
    world.is_consistent();
}

#[test]
fn the_last_name_alone_matters_and_special_files_are_not_kept() {
    let mut world = TrashWorld::new();
    let file = world.old(InodeId::ROOT, "one");
    let link = Step::Link {
        inode: file,
        place: place(InodeId::ROOT, "two"),
    };
    world.step(link).unwrap();
    world.unlink(InodeId::ROOT, "one");
    assert_eq!(world.trashed(), []);
    world.unlink(InodeId::ROOT, "two");
    assert_eq!(world.trashed(), [file]);
    let caller = world.caller;
    world
        .service
        .make(&caller, InodeId::ROOT, "pipe", NewInode::Fifo);
    world.service.wait(61);
    world.unlink(InodeId::ROOT, "pipe");
    assert_eq!(world.trashed(), [file]);
}

#[test]
fn what_a_rename_replaces_goes_to_the_trash() {
    let mut world = TrashWorld::new();
    let target = world.old(InodeId::ROOT, "target");
    world.create(InodeId::ROOT, "source");
    let rename = rename_of((InodeId::ROOT, "source"), (InodeId::ROOT, "target"));
    world.step(Step::Rename(rename)).unwrap();
    assert_eq!(world.trashed(), [target]);
    let (_, trashed) = all(&world.service).remove(0);
    assert_eq!(trashed.entry.directory, InodeId::ROOT);
    assert_eq!(trashed.entry.name.bytes, b"target");
}

#[test]
fn a_file_that_is_restored_has_its_content_attributes_and_charge() {
    let mut world = TrashWorld::new();
    let caller = world.caller;
    let file = world.create(InodeId::ROOT, "file");
    let allocation = world.service.allocate(&caller, 100);
    let runs: Vec<_> = (0..60).map(|run| (run * 4000, 4000)).collect();
    for part in [0_u32, 30] {
        let runs = &runs[part as usize..part as usize + 30];
        let step = Step::Commit(commit(file, allocation, part, runs));
        world.step(step).unwrap();
    }
    let owner = SetAttributes {
        uid: Some(Uid(1000)),
        mode: Some(Mode(0o640)),
        ..SetAttributes::of(file)
    };
    world.step(Step::SetAttributes(owner)).unwrap();
    world.service.wait(61);
    let before = world.service.attributes(&caller, file).unwrap();
    let content = Question::Content {
        inode: file,
        from: 0,
        to: u64::MAX,
        limit: 100,
    };
    let Ok(QueryResult::Content(was)) = world.service.ask(&caller, content.clone()) else {
        panic!("no content")
    };
    let charged = world.service.rows(b"QU/");
    world.unlink(InodeId::ROOT, "file");
    assert_ne!(
        world.service.rows(b"QU/"),
        charged,
        "charged while in the trash"
    );
    world.is_consistent();
    world.service.drain();
    assert_eq!(
        world.service.rows(b"OG/"),
        [],
        "unreferenced while in the trash"
    );
    world.restore(file, InodeId::ROOT, "again").unwrap();
    let after = world.service.attributes(&caller, file).unwrap();
    assert_eq!(
        (after.mode, after.uid, after.size, after.mtime, after.links),
        (before.mode, before.uid, before.size, before.mtime, 1)
    );
    let Ok(QueryResult::Content(is)) = world.service.ask(&caller, content) else {
        panic!("no content")
    };
    assert_eq!((is.extents, is.slices), (was.extents, was.slices));
    assert_eq!(world.service.rows(b"QU/"), charged);
    world.is_consistent();
}

#[test]
fn an_inode_in_the_trash_behaves_as_a_removed_one() {
    let mut world = TrashWorld::new();
    let caller = world.caller;
    let file = world.old(InodeId::ROOT, "file");
    let other = world.create(InodeId::ROOT, "other");
    world.unlink(InodeId::ROOT, "file");
    let allocation = world.service.allocate(&caller, 10);
    let clone = CloneRange {
        offset: 0,
        length: 1,
        source: file,
        source_offset: 0,
        expected: None,
    };
    let steps = [
        Step::Commit(commit(file, allocation, 0, &[(0, 10)])),
        Step::Commit(Commit {
            content: NewContent::Clone(clone),
            ..commit(other, allocation, 1, &[])
        }),
        Step::SetAttributes(SetAttributes {
            mode: Some(Mode(0o777)),
            ..SetAttributes::of(file)
        }),
        Step::Link {
            inode: file,
            place: place(InodeId::ROOT, "link"),
        },
        Step::Release { inode: file },
    ];
    for step in steps {
        assert_eq!(
            world.step(step.clone()),
            Err(Error::Stale(file)),
            "{step:?}"
        );
    }
    for question in [
        Question::Attributes(file),
        Question::Extended(file),
        Question::Symlink(file),
    ] {
        let refused = world.service.ask(&caller, question);
        assert_eq!(refused, Err(Error::Stale(file)));
    }
}

#[test]
fn a_tree_is_restored_with_the_directories_that_were_removed() {
    let mut world = TrashWorld::new();
    let top = world.mkdir(InodeId::ROOT, "top");
    let sub = world.mkdir(top, "sub");
    let file = world.old(sub, "file");
    world.unlink(sub, "file");
    world.rmdir(top, "sub");
    world.rmdir(InodeId::ROOT, "top");
    assert_eq!(world.listed(Credentials::root(), whole()), [file, sub, top]);
    let inside = |directory| Question::TrashedIn {
        directory,
        after: None,
        limit: 64,
    };
    assert_eq!(world.listed(Credentials::root(), inside(top)), [sub]);
    assert_eq!(world.restore(sub, top, "sub"), Err(Error::Stale(top)));
    world.restore(top, InodeId::ROOT, "top").unwrap();
    world.restore(sub, top, "sub").unwrap();
    world.restore(file, sub, "file").unwrap();
    assert_eq!(world.trashed(), []);
    let caller = world.caller;
    assert_eq!(world.service.attributes(&caller, top).unwrap().links, 3);
    assert_eq!(world.service.attributes(&caller, file).unwrap().links, 1);
    world.is_consistent();
}

#[test]
fn a_young_directory_is_kept_only_with_what_was_removed_from_it() {
    let mut world = TrashWorld::new();
    let file = world.old(InodeId::ROOT, "file");
    let (top, empty) = (world.mkdir(InodeId::ROOT, "top"), "empty");
    let sub = world.mkdir(top, "sub");
    world.mkdir(top, empty);
    let rename = rename_of((InodeId::ROOT, "file"), (sub, "file"));
    world.step(Step::Rename(rename)).unwrap();
    world.unlink(sub, "file");
    for (directory, name) in [(top, "sub"), (top, empty), (InodeId::ROOT, "top")] {
        world.rmdir(directory, name);
    }
    assert_eq!(world.trashed(), [file, sub, top]);
}

#[test]
fn what_is_open_goes_to_the_trash_when_it_is_closed_if_it_was_old_when_it_was_removed() {
    let mut world = TrashWorld::new();
    let held = |name| Step::Unlink(removal(InodeId::ROOT, name, true));
    let young = world.create(InodeId::ROOT, "young");
    world.step(held("young")).unwrap();
    let old = world.old(InodeId::ROOT, "old");
    world.step(held("old")).unwrap();
    assert_eq!(world.trashed(), []);
    let refused = world.restore(old, InodeId::ROOT, "back");
    assert_eq!(refused, Err(Error::NotTrashed(old)));
    for inode in [young, old] {
        world.step(Step::Release { inode }).unwrap();
    }
    assert_eq!(world.trashed(), [old]);
    let ended = world.old(InodeId::ROOT, "ended");
    world.step(held("ended")).unwrap();
    let caller = world.caller;
    world.service.close(&caller);
    world.service.drain();
    assert_eq!(world.trashed(), [old, ended]);
    world.is_consistent();
}

#[test]
fn its_owner_who_removed_it_and_the_superuser_see_and_restore_it_and_others_do_not() {
    let mut world = TrashWorld::new();
    let open = SetAttributes {
        mode: Some(Mode(0o777)),
        ..SetAttributes::of(InodeId::ROOT)
    };
    world.step(Step::SetAttributes(open)).unwrap();
    let user = |uid| Credentials::user(Uid(uid), Gid(uid));
    let (owner, remover, other) = (user(1000), user(1001), user(1002));
    let file = world.create(InodeId::ROOT, "file");
    let given = SetAttributes {
        uid: Some(owner.uid),
        ..SetAttributes::of(file)
    };
    world.step(Step::SetAttributes(given)).unwrap();
    world.service.wait(61);
    let caller = world.caller;
    let step = Step::Unlink(removal(InodeId::ROOT, "file", false));
    world.service.step(&caller, &remover, step).unwrap();
    for who in [&owner, &remover, &Credentials::root()] {
        assert_eq!(world.listed(who.clone(), whole()), [file]);
        assert_eq!(world.listed(who.clone(), Question::Trashed(file)), [file]);
    }
    assert_eq!(world.listed(other.clone(), whole()), []);
    let alone = world
        .service
        .ask_as(&caller, other.clone(), Question::Trashed(file));
    assert_eq!(alone, Err(Error::NotPermitted));
    let back = Step::Restore(Restore {
        inode: file,
        place: place(InodeId::ROOT, "file"),
    });
    let purge = Step::Purge(vec![file]);
    for (who, step) in [(&other, &back), (&other, &purge), (&remover, &purge)] {
        let refused = world.service.step(&caller, who, step.clone());
        assert_eq!(refused, Err(Error::NotPermitted));
    }
    world.service.step(&caller, &owner, back).unwrap();
    let closed = SetAttributes {
        mode: Some(Mode(0o755)),
        ..SetAttributes::of(InodeId::ROOT)
    };
    world.unlink(InodeId::ROOT, "file");
    world.step(Step::SetAttributes(closed)).unwrap();
    let back = Step::Restore(Restore {
        inode: file,
        place: place(InodeId::ROOT, "file"),
    });
    let refused = world.service.step(&caller, &owner, back);
    assert_eq!(refused, Err(Error::Denied), "a creation needs permission");
}

#[test]
fn a_client_that_restores_what_or_where_it_must_not_is_refused() {
    let mut world = TrashWorld::new();
    let file = world.old(InodeId::ROOT, "file");
    let top = world.mkdir(InodeId::ROOT, "top");
    let taken = world.create(InodeId::ROOT, "taken");
    world.service.wait(61);
    world.unlink(InodeId::ROOT, "file");
    world.rmdir(InodeId::ROOT, "top");
    let refusals = [
        (file, taken, "below", Error::NotDirectory),
        (top, top, "itself", Error::Stale(top)),
        (file, InodeId::ROOT, "taken", Error::Exists),
        (taken, InodeId::ROOT, "live", Error::NotTrashed(taken)),
        (
            InodeId(999),
            InodeId::ROOT,
            "forged",
            Error::NotTrashed(InodeId(999)),
        ),
        (
            InodeId::ROOT,
            InodeId::ROOT,
            "root",
            Error::NotTrashed(InodeId::ROOT),
        ),
    ];
    for (inode, parent, name, expected) in refusals {
        assert_eq!(world.restore(inode, parent, name), Err(expected), "{name}");
    }
    world.restore(file, InodeId::ROOT, "once").unwrap();
    let again = world.restore(file, InodeId::ROOT, "twice");
    assert_eq!(again, Err(Error::NotTrashed(file)));
    // A directory that was removed while it was open accepts nothing.
    let open = world.mkdir(InodeId::ROOT, "open");
    let held = Step::RemoveDirectory(removal(InodeId::ROOT, "open", true));
    world.step(held).unwrap();
    assert_eq!(world.restore(top, open, "top"), Err(Error::NotFound));
    let many = Step::Purge(vec![top; TRASH_PURGED_MAX + 1]);
    let limit = TRASH_PURGED_MAX as u32;
    assert_eq!(world.step(many), Err(Error::TooMany { limit }));
    world.is_consistent();
}

#[test]
fn a_restore_beyond_the_users_quota_is_refused() {
    let mut world = TrashWorld::new();
    let caller = world.caller;
    let file = world.create(InodeId::ROOT, "file");
    let given = SetAttributes {
        uid: Some(Uid(1000)),
        ..SetAttributes::of(file)
    };
    world.step(Step::SetAttributes(given)).unwrap();
    world.service.wait(61);
    world.unlink(InodeId::ROOT, "file");
    let none = Limit {
        bytes: None,
        inodes: Some(0),
    };
    let limit = SetQuota {
        realm: RealmId::ROOT,
        of: QuotaOf::User(Uid(1000)),
        limit: Some(none),
    };
    world
        .service
        .run(&caller, &Operation::SetQuota(limit))
        .unwrap();
    let back = world.restore(file, InodeId::ROOT, "file");
    let (uid, of) = (Uid(1000), Resource::Inodes);
    assert_eq!(
        back,
        Err(Error::UserQuota {
            uid,
            of,
            remaining: 0
        })
    );
    assert_eq!(world.trashed(), [file]);
}

#[test]
fn a_cut_tail_that_waits_for_a_tick_is_freed_after_a_restore() {
    let mut world = TrashWorld::new();
    let caller = world.caller;
    let allocation = world.service.allocate(&caller, 1024);
    let file = world.create(InodeId::ROOT, "file");
    for part in 0..4_u32 {
        let runs: Vec<_> = (0..30)
            .map(|run| (u64::from(part * 30 + run) * 4000, 4000))
            .collect();
        let step = Step::Commit(commit(file, allocation, part * 30, &runs));
        world.step(step).unwrap();
    }
    world.service.wait(61);
    let cut = SetAttributes {
        size: Some(4000),
        ..SetAttributes::of(file)
    };
    world.step(Step::SetAttributes(cut)).unwrap();
    world.unlink(InodeId::ROOT, "file");
    world.service.drain();
    world.restore(file, InodeId::ROOT, "file").unwrap();
    world.service.drain();
    assert_eq!(world.service.rows(b"E/").len(), 1);
    world.is_consistent();
}

#[test]
fn a_page_of_the_trash_continues_where_the_one_before_ended() {
    let mut world = TrashWorld::new();
    let names = ["a", "b", "c"];
    let files: Vec<_> = names.map(|name| world.create(InodeId::ROOT, name)).to_vec();
    world.service.wait(61);
    for name in names {
        world.unlink(InodeId::ROOT, name);
    }
    let caller = world.caller;
    let (mut after, mut found) = (None, Vec::new());
    loop {
        let question = Question::Trash {
            realm: RealmId::ROOT,
            after,
            limit: 1,
        };
        let Ok(QueryResult::Trash { entries, next }) = world.service.ask(&caller, question) else {
            panic!("no page")
        };
        assert!(
            entries
                .iter()
                .all(|entry| entry.inode.file_type() == FileType::File)
        );
        found.extend(entries.iter().map(|entry| entry.inode.inode));
        after = next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(found, files);
    let size = world
        .service
        .ask(&caller, Question::TrashSize(RealmId::ROOT));
    let held = Amount {
        bytes: 0,
        inodes: 3,
    };
    assert_eq!(
        size,
        Ok(QueryResult::TrashSize {
            seconds: TRASH_SECONDS,
            held
        })
    );
}
