//! Golden bytes of what reseals names.

use crate::attributes::{Credentials, NameGenerations, PreviousNames, Timestamp};
use crate::error::{Error, FailedAt, OperationError};
use crate::identity::*;
use crate::operation::*;
use crate::query::{Query, Question};
use crate::reply::{Answer, Done, OldName, OldNames, QueryResult, Response};
use crate::row::{OldKeys, Reseal, Row, SealedName};
use crate::simulation::compound;
use quorumfs_bft::identity::Time;

/// Golden bytes.
pub(in crate::tests) fn fixtures() -> Vec<(&'static str, Vec<u8>)> {
    let query = |question| {
        let credentials = Credentials::root();
        Query {
            credentials,
            question,
        }
        .to_bytes()
    };
    let refused = |error| {
        let at = FailedAt::Operation;
        Response(Err(OperationError { at, error })).to_bytes()
    };
    let (directory, current) = (InodeId(7), RealmEpoch(2));
    let name = ResealedName {
        at: Cookie(80),
        name: SealedName {
            cookie: Cookie(96),
            generation: current,
            bytes: b"sealed anew".to_vec(),
        },
    };
    let operation = ResealNames {
        realm: RealmId::ROOT,
        directories: vec![DirectoryNames {
            directory,
            names: vec![name],
        }],
    };
    let begin = vec![Step::BeginReseal { directory }];
    let begin = compound(Credentials::root(), Timestamp::default(), begin);
    let old = OldNames {
        directory,
        generations: NameGenerations {
            current,
            previous: Some(PreviousNames {
                realm: RealmId::ROOT,
                epoch: RealmEpoch(0),
            }),
        },
        after: Cookie(80),
        entries: 9,
    };
    let found = QueryResult::NamesByEpoch {
        directories: vec![old],
        next: Some(directory),
    };
    let done = Done::NamesResealed {
        names: 1,
        directories: 0,
    };
    let after = Cookie(80);
    let until = Time(9);
    vec![
        ("row-reseal", Reseal { after }.to_bytes()),
        ("row-old-keys", OldKeys { until }.to_bytes()),
        (
            "operation-reseal-names",
            Operation::ResealNames(operation).to_bytes(),
        ),
        ("operation-begin-reseal", begin.to_bytes()),
        (
            "query-names-by-epoch",
            query(Question::NamesByEpoch {
                realm: RealmId::ROOT,
                after: Some(directory),
                limit: 4096,
            }),
        ),
        ("answer-names-by-epoch", Answer(Ok(found)).to_bytes()),
        (
            "query-names-to-reseal",
            query(Question::NamesToReseal {
                directory,
                after,
                limit: 512,
            }),
        ),
        (
            "answer-names-to-reseal",
            Answer(Ok(QueryResult::NamesToReseal {
                names: vec![OldName {
                    at: Cookie(88),
                    generation: RealmEpoch(0),
                    bytes: b"sealed before".to_vec(),
                }],
                next: Some(Cookie(96)),
            }))
            .to_bytes(),
        ),
        ("reply-names-resealed", Response(Ok(done)).to_bytes()),
        ("reply-old-keys", refused(Error::OldKeys { current })),
        (
            "reply-other-generation",
            refused(Error::OtherGeneration { current }),
        ),
    ]
    .into_iter()
    .chain(super::super::reseal_slices::fixtures())
    .collect()
}
