//! Bytes once written must be readable for ever: golden fixtures of rows, keys, operations,
//! queries, replies and the genesis. A difference is a change of the format.

use super::clones::hole_and_clone;
use super::harness::*;
use crate::attributes::{Credentials, Mode, NameGenerations, PreviousNames, Timestamp};
use crate::error::{Error, FailedAt, OperationError};
use crate::identity::*;
use crate::operation::*;
use crate::placement::Receipt;
use crate::query::{Query, Question};
use crate::reply::{Answer, Done, QueryResult, Response};
use crate::row::*;
use crate::simulation::{compound, place, principal, seal_name, sign, unsigned_genesis};
use quorumfs_bft::identity::{Sequence, SessionId, Signature, Time};

fn time() -> Timestamp {
    Timestamp {
        seconds: -2,
        nanos: 999_999_999,
    }
}

fn inode(node: InodeBody) -> Inode {
    Inode {
        realm: RealmId(0),
        mode: Mode(0o4755),
        uid: Uid(1000),
        gid: Gid(100),
        links: 1,
        atime: time(),
        mtime: time(),
        ctime: time(),
        created: time(),
        version: InodeVersion(9),
        holders: 0,
        acl: None,
        default_acl: None,
        extended: None,
        held: false,
        node,
    }
}

fn extent() -> Extent {
    Extent {
        slice: SliceId {
            allocation: AllocationId(5),
            counter: 6,
        },
        slice_offset: 7,
        length: 8,
        unwritten: false,
    }
}

/// Every fixture: its name and its bytes.
fn fixtures() -> Vec<(&'static str, Vec<u8>)> {
    let new_object = object(AllocationId(5), 6, 3);
    let new_slice = slice(AllocationId(5), 6, &new_object);
    let sealed = Sealed {
        epoch: RealmEpoch(0),
        bytes: b"ciphertext".to_vec(),
    };
    let file = |content| {
        inode(InodeBody::File(FileBody {
            size: 8,
            allocated: 8,
            content,
            dead_from: None,
        }))
    };
    let one = Content::One {
        offset: 0,
        extent: extent(),
    };
    let inline = Inline {
        length: 3,
        sealed: sealed.clone(),
    };
    let directory = InodeBody::Directory {
        parent: InodeId::ROOT,
        generations: NameGenerations {
            current: RealmEpoch(1),
            previous: Some(PreviousNames {
                realm: RealmId(2),
                epoch: RealmEpoch(0),
            }),
        },
        entries: 2,
    };
    let genesis =
        sign(&unsigned_genesis(vec![principal(OWNER, Rights::all())], (1, 1, 4)).unwrap());
    let mut fixtures = vec![
        ("genesis", genesis),
        ("row-inode-one-extent", file(one).to_bytes()),
        ("row-inode-inline", file(Content::Inline(inline)).to_bytes()),
        ("row-inode-directory", inode(directory).to_bytes()),
        (
            "row-inode-symlink",
            inode(InodeBody::Symlink {
                length: 3,
                target: sealed,
            })
            .to_bytes(),
        ),
        (
            "row-entry",
            EntryRow {
                inode: InodeId(2),
                file_type: crate::attributes::FileType::File,
                generation: RealmEpoch(0),
                name: b"sealed name".to_vec(),
                folded: None,
            }
            .to_bytes(),
        ),
        ("row-extent", extent().to_bytes()),
        (
            "row-slice",
            Slice {
                object: new_object.id,
                offset: 0,
                length: 4000,
                sealed_length: 4016,
                codec: Codec::NONE,
                keys: new_slice.keys.clone(),
                references: 1,
            }
            .to_bytes(),
        ),
        ("row-object", object_row(&new_object).to_bytes()),
        (
            "row-unreferenced",
            Unreferenced {
                since: Sequence(3),
                at: Time(4),
            }
            .to_bytes(),
        ),
        (
            "row-reap-slices",
            Reap::Slices {
                home: Home(0),
                dropped: vec![(new_slice.id, 2)],
                since: Time(4),
            }
            .to_bytes(),
        ),
        ("row-sparse", Sparse { since: Time(6) }.to_bytes()),
        (
            "key-packed",
            key::packed(new_object.id, Home(1), new_slice.id),
        ),
        ("key-sparse", key::sparse(new_object.id)),
        ("key-entry", key::entry(InodeId(258), Cookie(0x0102_0308))),
        ("key-extent", key::extent(InodeId(258), 4096)),
        ("key-slice", key::slice(Home(1), new_slice.id)),
        ("key-object", key::object(new_object.id)),
        (
            "key-under-replicated",
            key::under_replicated(1, new_object.id),
        ),
    ];
    fixtures.extend(messages(new_object, new_slice));
    fixtures.extend(super::extended::fixtures());
    fixtures.extend(super::acls::fixtures());
    fixtures.extend(super::accessed::fixtures());
    fixtures.extend(super::quota::fixtures());
    fixtures.extend(super::garbage::fixtures());
    fixtures.extend(super::load::fixtures());
    fixtures.extend(super::people::fixtures());
    fixtures.extend(super::reseal::format::fixtures());
    fixtures.extend(super::trash::fixtures(file(Content::Empty)));
    fixtures.extend(super::fleet::fixtures());
    fixtures.extend(super::news::fixtures());
    fixtures.extend(super::locks::fixtures());
    fixtures
}

fn messages(object: NewObject, slice: NewSlice) -> Vec<(&'static str, Vec<u8>)> {
    let mut messages = scrubbing(&object);
    messages.extend(beginning_an_epoch(object.id));
    messages.extend(compacting(&object, &slice));
    messages.extend(blaming(&object));
    let commit = Commit {
        inode: InodeId(2),
        expected: None,
        content: NewContent::Extents(vec![NewExtent {
            offset: 0,
            slice: slice.id,
            slice_offset: 0,
            length: 4000,
        }]),
        objects: vec![object],
        slices: vec![slice],
        size: Some(4000),
        mtime: Some(time()),
    };
    let create = Create {
        place: place(InodeId::ROOT, "name"),
        kind: NewInode::File,
        mode: Mode(0o644),
        umask: Mode(0),
        exclusive: true,
        number: None,
    };
    let rename = rename_of((InodeId::ROOT, "name"), (InodeId(3), "other"));
    let steps = vec![
        Step::Create(create),
        Step::Rename(rename),
        Step::Commit(commit),
    ];
    let lookup = Query {
        credentials: Credentials::user(Uid(1000), Gid(100)),
        question: Question::Lookup(EntryPlace {
            parent: InodeId::ROOT,
            name: seal_name(InodeId::ROOT, "name").into(),
        }),
    };
    let refusal = OperationError {
        at: FailedAt::Step(2),
        error: Error::Mounted {
            session: SessionId(4),
            principal: OWNER,
            since: Time(5),
            label: "host".into(),
        },
    };
    let attributes = inode(InodeBody::File(FileBody::empty())).attributes(InodeId(2));
    messages.extend(vec![
        (
            "operation-compound",
            compound(Credentials::root(), time(), steps).to_bytes(),
        ),
        (
            "operation-hole-and-clone",
            compound(Credentials::root(), time(), hole_and_clone()).to_bytes(),
        ),
        (
            "operation-mount",
            Operation::MountRealm {
                realm: RealmId(0),
                takeover: crate::operation::Takeover::OfAny,
                mode: MountMode::Exclusive,
                label: "host".into(),
            }
            .to_bytes(),
        ),
        ("query-lookup", lookup.to_bytes()),
        (
            "reply-done",
            Response(Ok(Done::Compound(vec![crate::reply::StepDone::Set(
                attributes,
            )])))
            .to_bytes(),
        ),
        ("reply-refused", Response(Err(refusal)).to_bytes()),
        (
            "answer-attributes",
            Answer(Ok(QueryResult::Attributes(attributes))).to_bytes(),
        ),
        ("answer-denied", Answer(Err(Error::Denied)).to_bytes()),
    ]);
    messages
}

fn query(question: Question) -> Vec<u8> {
    Query {
        credentials: Credentials::root(),
        question,
    }
    .to_bytes()
}

/// The questions and operations of a scrub.
fn scrubbing(new: &NewObject) -> Vec<(&'static str, Vec<u8>)> {
    let mut row = object_row(new);
    row.shards[1].withdraw();
    let withdraw = Operation::WithdrawPlaced {
        shards: vec![PlacedShard {
            object: new.id,
            shard: ShardIndex(1),
            cloud: CloudIndex(1),
            generation: 0,
            attempt: 0,
            receipt: None,
        }],
    };
    let objects = Query {
        credentials: Credentials::root(),
        question: Question::Objects {
            after: Some(new.id),
            limit: 64,
        },
    };
    let page = QueryResult::Objects {
        objects: vec![(new.id, row.clone())],
        more: true,
    };
    vec![
        ("row-object-withdrawn", row.to_bytes()),
        ("operation-withdraw", withdraw.to_bytes()),
        ("query-objects", objects.to_bytes()),
        (
            "reply-withdrawn",
            Response(Ok(Done::Withdrawn { shards: 1 })).to_bytes(),
        ),
        ("answer-objects", Answer(Ok(page)).to_bytes()),
    ]
}

/// Rows and messages about faults.
fn blaming(new: &NewObject) -> Vec<(&'static str, Vec<u8>)> {
    let receipt = Some(Receipt::Crc32c([1, 2, 3, 4]));
    let mut row = object_row(new);
    row.shards[0].receipt = receipt;
    let finding = Finding {
        object: new.id,
        shard: ShardIndex(1),
        generation: 3,
        attempt: 2,
        fault: FaultKind::WrongBytes,
        found: Some(Receipt::Crc64([5; 8])),
        receipt: None,
    };
    let evidence = Evidence {
        object: new.id,
        class: new.class,
        shard: ShardIndex(1),
        generation: 3,
        attempt: 2,
        fault: FaultKind::WrongBytes,
        digest: new.shards[1].digest,
        receipt: Some(Receipt::Md5([6; 16])),
        found: Some(Receipt::Crc32([7; 4])),
        committed: Time(5),
        writer: PrincipalNumber(1),
        witness: PrincipalNumber(0),
        testified: Time(8),
    };
    let numbered = Numbered {
        principal: OWNER,
        label: "owner".to_owned(),
    };
    let confirm = Operation::ConfirmPlaced {
        shards: vec![PlacedShard {
            object: new.id,
            shard: ShardIndex(1),
            cloud: CloudIndex(1),
            generation: 0,
            attempt: 0,
            receipt,
        }],
        checked: vec![new.id],
    };
    let testify = Operation::Testify {
        cloud: CloudIndex(1),
        findings: vec![finding],
    };
    let found = QueryResult::Evidence {
        total: 300,
        kept: vec![evidence],
    };
    vec![
        ("row-object-receipt", row.to_bytes()),
        ("row-numbered", numbered.to_bytes()),
        ("row-evidence", evidence.to_bytes()),
        (
            "row-evidence-count",
            EvidenceCount { total: 300 }.to_bytes(),
        ),
        ("key-numbered", key::numbered(PrincipalNumber(1))),
        ("key-evidence", key::evidence(CloudIndex(1), 258)),
        ("key-evidence-count", key::evidence_count(CloudIndex(1))),
        ("operation-confirm", confirm.to_bytes()),
        ("operation-testify", testify.to_bytes()),
        (
            "query-principal",
            query(Question::Principal(PrincipalNumber(1))),
        ),
        ("query-evidence", query(Question::Evidence(CloudIndex(1)))),
        (
            "reply-testified",
            Response(Ok(Done::Testified { findings: 1 })).to_bytes(),
        ),
        (
            "answer-principal",
            Answer(Ok(QueryResult::Principal(numbered))).to_bytes(),
        ),
        ("answer-evidence", Answer(Ok(found)).to_bytes()),
    ]
}

/// The questions and operations of compaction.
fn compacting(object: &NewObject, slice: &NewSlice) -> Vec<(&'static str, Vec<u8>)> {
    let pack = NewObject {
        class: ObjectClass::PACK,
        ..object.clone()
    };
    let step = SliceMove {
        home: Home(1),
        slice: slice.id,
        from: ObjectId {
            counter: 9,
            ..pack.id
        },
        from_offset: 4112,
        sealed_length: 4016,
        to: pack.id,
        to_offset: 0,
    };
    let operation = Operation::MoveSlices {
        realm: RealmId(0),
        objects: vec![pack.clone()],
        moves: vec![step],
    };
    let sparse = Question::SparsePacks {
        after: Some(pack.id),
        limit: 64,
    };
    let packed = Question::PackedSlices {
        pack: pack.id,
        after: Some((Home(1), slice.id)),
        limit: 64,
    };
    let place = PackedSlice {
        offset: 4112,
        sealed_length: 4016,
    };
    let found = |found| Answer(Ok(found)).to_bytes();
    vec![
        ("row-packed-slice", place.to_bytes()),
        ("operation-move-slices", operation.to_bytes()),
        ("query-sparse-packs", query(sparse)),
        ("query-packed-slices", query(packed)),
        (
            "reply-moved",
            Response(Ok(Done::Moved { slices: 1 })).to_bytes(),
        ),
        (
            "answer-sparse-packs",
            found(QueryResult::SparsePacks {
                packs: vec![(pack.id, object_row(&pack), Time(6))],
                more: false,
            }),
        ),
        (
            "answer-packed-slices",
            found(QueryResult::PackedSlices {
                slices: vec![(Home(1), slice.id, place)],
                more: true,
            }),
        ),
    ]
}

/// A new key epoch with both locks.
fn beginning_an_epoch(object: ObjectId) -> Vec<(&'static str, Vec<u8>)> {
    let epoch = Epoch {
        begun: Time(7),
        lock: Lock::MembersAndClouds,
        previous: vec![0x66; 48],
        shares: Some(Shares {
            object,
            threshold: 2,
            places: share_places(),
            confirmed: [0, 1, 3].map(CloudIndex).to_vec(),
        }),
    };
    let member = Member {
        epoch: RealmEpoch(1),
        role: MemberRole::Administer,
        expires: None,
        wrapped: vec![0x77; 80],
        signer: OWNER,
        signature: Signature([0x88; 64]),
    };
    let begin = BeginEpoch {
        realm: RealmId::ROOT,
        number: RealmEpoch(1),
        epoch: epoch.clone(),
        members: vec![(OWNER, member.clone())],
    };
    let slice = SliceId {
        allocation: AllocationId(5),
        counter: 6,
    };
    let before = Question::Epochs {
        realm: RealmId::ROOT,
        before: RealmEpoch(2),
        limit: 64,
    };
    let counting = Question::SlicesByEpoch {
        after: Some((Home(1), slice)),
        limit: 4096,
    };
    let counted = QueryResult::SlicesByEpoch {
        epochs: vec![crate::reply::SealedUnder {
            epoch: RealmEpoch(1),
            slices: 2,
            bytes: 8000,
        }],
        next: Some((Home(1), slice)),
    };
    let number = RealmEpoch(1);
    let refused = OperationError {
        at: FailedAt::Operation,
        error: Error::WrongEpoch { current: number },
    };
    vec![
        ("row-epoch", epoch.to_bytes()),
        ("row-member", member.to_bytes()),
        (
            "operation-begin-epoch",
            Operation::BeginEpoch(begin).to_bytes(),
        ),
        ("query-epochs", query(before)),
        ("query-members", query(Question::Members(RealmId::ROOT))),
        ("query-mounted", query(Question::Mounted(RealmId::ROOT))),
        (
            "answer-mounted",
            Answer(Ok(super::mounted::found())).to_bytes(),
        ),
        ("query-slices-by-epoch", query(counting)),
        (
            "reply-epoch-begun",
            Response(Ok(Done::EpochBegun { number })).to_bytes(),
        ),
        ("reply-wrong-epoch", Response(Err(refused)).to_bytes()),
        (
            "answer-members",
            Answer(Ok(QueryResult::Members(vec![(OWNER, member)]))).to_bytes(),
        ),
        ("answer-slices-by-epoch", Answer(Ok(counted)).to_bytes()),
    ]
}

pub(super) fn object_row(new: &NewObject) -> Object {
    Object {
        class: new.class,
        policy: new.policy,
        length: new.length,
        shard_length: new.shard_length,
        shards: new.shards.clone(),
        writer: SessionId(1),
        principal: PrincipalNumber(1),
        checked: false,
        committed: Time(5),
        born: Sequence(9),
        generation: 0,
        live_bytes: 4016,
        slices: 1,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_format_is_what_its_fixtures_say() {
    let golden: std::collections::BTreeMap<&str, &str> =
        include_str!("../../fixtures/format-3.txt")
            .lines()
            .filter_map(|line| line.split_once(' '))
            .collect();
    let written = fixtures();
    let all: Vec<String> = written
        .iter()
        .map(|(name, bytes)| format!("{name} {}", hex(bytes)))
        .collect();
    for (name, bytes) in &written {
        let found = golden.get(name).copied();
        assert_eq!(
            found,
            Some(hex(bytes).as_str()),
            "{name} changed; if the format is meant to change the file becomes:\n{}",
            all.join("\n")
        );
    }
    assert_eq!(golden.len(), written.len());
}

#[test]
fn a_file_costs_about_three_hundred_bytes() {
    let all = fixtures();
    let size = |name: &str| {
        let found = all.iter().find(|(it, _)| *it == name);
        found.unwrap().1.len()
    };
    let slice = size("row-slice");
    assert!(slice < 60, "{slice} bytes of values for a slice");
    let file = size("row-inode-one-extent") + size("row-entry") + slice;
    assert!(file < 330, "{file} bytes of values for a file");
    assert!(size("row-object") < 220, "{}", size("row-object"));
    assert!(size("row-object-receipt") < 225);
}
