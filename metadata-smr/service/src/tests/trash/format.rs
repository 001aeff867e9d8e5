//! Rows, operations, questions and answers of the trash, for the fixtures of the format.

use crate::attributes::Credentials;
use crate::identity::*;
use crate::operation::*;
use crate::query::{Query, Question};
use crate::reply::{Answer, Done, QueryResult, Response, StepDone, TrashedEntry};
use crate::row::*;
use crate::simulation::{place, seal_name};
use quorumfs_bft::identity::Time;

/// Rows, operations, questions and answers, for the fixtures of the format.
pub(in crate::tests) fn fixtures(inode: Inode) -> Vec<(&'static str, Vec<u8>)> {
    let (directory, at) = (InodeId(258), Time(7));
    let entry = RemovedEntry {
        directory,
        name: seal_name(directory, "name"),
        by: Uid(1000),
    };
    let step =
        |step| crate::simulation::compound(Credentials::root(), Default::default(), vec![step]);
    let query = |question| {
        let credentials = Credentials::root();
        Query {
            credentials,
            question,
        }
        .to_bytes()
    };
    let done = |done| Response(Ok(done)).to_bytes();
    let realm = RealmId(1);
    let held = Amount {
        bytes: 5,
        inodes: 6,
    };
    let listed = TrashedEntry {
        at,
        entry: entry.clone(),
        inode: inode.attributes(InodeId(259)),
    };
    let restore = Restore {
        inode: InodeId(259),
        place: place(directory, "name"),
    };
    let after = Some((at, InodeId(259)));
    let limit = 64;
    vec![
        (
            "row-trashed",
            Trashed {
                inode,
                entry: entry.clone(),
            }
            .to_bytes(),
        ),
        ("row-trash-place", TrashPlace { realm, at }.to_bytes()),
        ("row-parting", Parting { at, entry }.to_bytes()),
        ("row-trash-size", TrashSize { held }.to_bytes()),
        ("key-trashed", key::trashed(realm, at, InodeId(259))),
        ("key-trash-place", key::trash_place(InodeId(259))),
        ("key-trashed-in", key::trashed_in(directory, InodeId(259))),
        ("key-parting", key::parting(InodeId(259))),
        ("key-trash-size", key::trash_size(realm)),
        ("operation-restore", step(Step::Restore(restore)).to_bytes()),
        (
            "operation-purge",
            step(Step::Purge(vec![InodeId(259)])).to_bytes(),
        ),
        (
            "operation-keep-trash",
            Operation::KeepTrash(KeepTrash { realm, seconds: 60 }).to_bytes(),
        ),
        (
            "operation-relieve-trash",
            Operation::RelieveTrash { realm }.to_bytes(),
        ),
        ("reply-trash-kept", done(Done::TrashKept)),
        (
            "reply-trash-relieved",
            done(Done::TrashRelieved { inodes: 3 }),
        ),
        (
            "reply-purged",
            done(Done::Compound(vec![StepDone::Purged { inodes: 3 }])),
        ),
        (
            "query-trash",
            query(Question::Trash {
                realm,
                after,
                limit,
            }),
        ),
        (
            "query-trashed-in",
            query(Question::TrashedIn {
                directory,
                after: Some(InodeId(259)),
                limit,
            }),
        ),
        ("query-trashed", query(Question::Trashed(InodeId(259)))),
        ("query-trash-size", query(Question::TrashSize(realm))),
        (
            "answer-trash",
            Answer(Ok(QueryResult::Trash {
                entries: vec![listed],
                next: after,
            }))
            .to_bytes(),
        ),
        (
            "answer-trash-size",
            Answer(Ok(QueryResult::TrashSize { seconds: 60, held })).to_bytes(),
        ),
    ]
}
