//! Rows, operations, questions and answers of shares, for the fixtures of the format.

use super::*;
use crate::query::Query;
use crate::reply::{Answer, Response};

/// Rows, operations, questions and answers, for the fixtures of the format.
pub(in crate::tests) fn fixtures() -> Vec<(&'static str, Vec<u8>)> {
    let id = ShareId(258);
    let person = Share {
        by: PrincipalNumber(3),
        uid: Uid(1000),
        inode: InodeId(259),
        with: ShareWith::Person {
            principal: PrincipalNumber(4),
            uid: Uid(1003),
            writes: true,
            through: vec![InodeId(1), InodeId(7)],
        },
        expires: Some(Time(8)),
        created: Time(7),
        ended: true,
        place: sealed("place"),
    };
    let link = Share {
        with: ShareWith::Link { token: TOKEN },
        expires: None,
        ended: false,
        ..person.clone()
    };
    let manifest = vec![crate::tests::harness::object(AllocationId(5), 6, 3).id];
    let capsule = Share {
        with: ShareWith::Capsule {
            manifest: manifest.clone(),
            point: Sequence(260),
        },
        expires: Some(Time(8)),
        ..link.clone()
    };
    let credentials = Credentials::user(Uid(1000), Gid(100));
    let query = |question| {
        let credentials = credentials.clone();
        Query {
            credentials,
            question,
        }
        .to_bytes()
    };
    let asked = || ChangeShare {
        credentials: credentials.clone(),
        id,
    };
    let of = |of| {
        let (after, limit) = (Some(id), 64);
        query(Question::Shares { of, after, limit })
    };
    let new = |with| Operation::Share(new_share(&credentials, InodeId(259), with)).to_bytes();
    let done = |done| Response(Ok(done)).to_bytes();
    let listed = |share: &Share| ListedShare {
        id,
        share: share.clone(),
        exists: true,
    };
    let page = QueryResult::Shares {
        shares: vec![listed(&person)],
        next: Some(id),
    };
    vec![
        ("row-share-person", person.to_bytes()),
        ("row-share-link", link.to_bytes()),
        ("row-share-capsule", capsule.to_bytes()),
        ("row-share-at", ShareAt { id }.to_bytes()),
        ("row-share-indexed", ShareIndexed.to_bytes()),
        (
            "row-share-numbers",
            ShareNumbers { last: 9, shares: 2 }.to_bytes(),
        ),
        ("row-share-count", ShareCount { shares: 2 }.to_bytes()),
        ("key-share", key::share(id)),
        ("key-share-numbers", key::share_numbers()),
        ("key-shares-of-user", key::shares_of_user(Uid(1000))),
        (
            "key-shares-of-person",
            key::shares_of_person(PrincipalNumber(4)),
        ),
        ("key-capsules-of-user", key::capsules_of_user(Uid(1000))),
        ("key-share-of-token", key::share_of_token(&TOKEN)),
        ("key-share-by", key::share_by(Uid(1000), id)),
        ("key-share-with", key::share_with(PrincipalNumber(4), id)),
        (
            "key-share-of-inode",
            key::share_of_inode(InodeId(259), Uid(1000), PrincipalNumber(4)),
        ),
        ("key-capsule-point", key::capsule_point(Sequence(260), id)),
        ("key-share-expiry", key::share_expiry(Time(8), id)),
        ("operation-share-person", new(with_bob(true))),
        (
            "operation-share-link",
            new(NewShareWith::Link { token: TOKEN }),
        ),
        (
            "operation-share-capsule",
            new(NewShareWith::Capsule { manifest }),
        ),
        (
            "operation-end-share",
            Operation::EndShare(asked()).to_bytes(),
        ),
        (
            "operation-forget-share",
            Operation::ForgetShare(asked()).to_bytes(),
        ),
        ("query-shares-mine", of(SharesOf::Mine)),
        ("query-shares-with", of(SharesOf::With(PrincipalNumber(4)))),
        ("query-shares-all", of(SharesOf::All)),
        ("query-share-of-token", query(Question::ShareOfToken(TOKEN))),
        ("reply-shared", done(Done::Shared { id })),
        ("reply-share-ended", done(Done::ShareEnded)),
        ("reply-share-forgotten", done(Done::ShareForgotten)),
        ("answer-shares", Answer(Ok(page)).to_bytes()),
        (
            "answer-share",
            Answer(Ok(QueryResult::Share(listed(&link)))).to_bytes(),
        ),
    ]
}
