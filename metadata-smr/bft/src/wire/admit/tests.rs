//! What each kind of certificate has to be for the message that shows it to be admitted.

use super::*;
use crate::certificate::voters::*;
use crate::certificate::{CommitCertificate, PreparedCertificate};
use crate::checkpoint::CheckpointCertificate;
use crate::identity::{ConnectionId, Digest};
use crate::wire::message::{Ballot, Batch, CheckpointVote, Committed, Suspect};
use crate::wire::{Header, Unsigned, encode};

/// The view of VIEW-CHANGEs and NEW-VIEWs; replica 0 leads it.
const LATER: View = View(8);

/// The epoch has ordered nothing yet: the certified batch is its first.
fn here(authentication: Authentication) -> Context {
    let from = Sequence(SEQUENCE.0 - 1);
    Context {
        authentication,
        ..context().after(from)
    }
}

/// The verdict on a message that a replica sends, signed by it if its kind is signed at all.
fn sent(
    authentication: Authentication,
    by: u16,
    header: Header,
    message: Message,
) -> Result<(), Rejection> {
    let frame = match message.kind().signed() {
        true => Unsigned::new(header, message)
            .sign(&Key(by))
            .frame()
            .clone(),
        false => encode(header, &message),
    };
    let from = Peer::Replica(ReplicaId(by));
    admit(frame, from, &Voters, &Toy, &here(authentication)).map(|_| ())
}

fn committed(certificate: CommitCertificate) -> Message {
    Message::Committed(Box::new(Committed {
        batch: batch(),
        certificate,
        bodies: Vec::new(),
    }))
}

fn change(
    signer: u16,
    base: Vec<CommitCertificate>,
    prepared: Vec<PreparedCertificate>,
) -> ViewChange {
    ViewChange {
        signer: ReplicaId(signer),
        base,
        prepared,
        claims: None,
    }
}

/// A VIEW-CHANGE of replica 3 that claims these.
fn claiming(
    stable: Option<CheckpointCertificate>,
    prepared: Vec<PreparedCertificate>,
    accepted: Vec<Accepted>,
) -> ViewChange {
    let claims = Claims { stable, accepted };
    ViewChange {
        claims: Some(Box::new(claims)),
        ..change(3, Vec::new(), prepared)
    }
}

/// VIEW-CHANGEs as their authors signed them.
fn envelopes(header: Header, changes: Vec<ViewChange>) -> Vec<Arc<Envelope>> {
    let signed = changes.into_iter().map(|change| {
        let signer = change.signer.0;
        let unsigned = Unsigned::new(header, Message::ViewChange(change));
        Arc::clone(unsigned.sign(&Key(signer)).envelope())
    });
    signed.collect()
}

/// A NEW-VIEW of three VIEW-CHANGEs, of which this is the last.
fn new_view(last: ViewChange) -> Message {
    let empty = |signer| ViewChange {
        claims: last.claims.is_some().then(Box::default),
        ..change(signer, Vec::new(), Vec::new())
    };
    let changes = vec![empty(0), empty(1), last.clone()];
    Message::NewView(NewView {
        view_changes: envelopes(context().header(LATER), changes),
    })
}

/// A message that shows a certificate with these votes.
struct Showing {
    what: &'static str,
    authentication: Authentication,
    message: fn(Signed) -> Message,
    /// The voters that suffice.
    enough: &'static [u16],
    spoilt: fn() -> Vec<Spoilt>,
}

const fn showing(what: &'static str, message: fn(Signed) -> Message) -> Showing {
    Showing {
        what,
        authentication: Authentication::Sig,
        message,
        enough: &[0, 2, 3],
        spoilt: spoilt_of_three,
    }
}

/// All messages that show a certificate, except records of epochs, which are valid in others too.
fn all_within_an_epoch() -> Vec<Showing> {
    let of_two = |it| Showing {
        enough: &[0, 2],
        spoilt: spoilt_of_two,
        ..it
    };
    let claims = |it| Showing {
        authentication: Authentication::Mac,
        ..it
    };
    vec![
        showing("COMMITTED", |it| committed(commit(it))),
        showing("STABLE", |it| {
            Message::Stable(Box::new(stable(it, Digest([7; 32]))))
        }),
        showing("VIEW-CHANGE with a base", |it| {
            Message::ViewChange(change(3, vec![commit(it)], Vec::new()))
        }),
        showing("NEW-VIEW with a base", |it| {
            new_view(change(3, vec![commit(it)], Vec::new()))
        }),
        of_two(showing("VIEW-CHANGE with what is prepared", |it| {
            Message::ViewChange(change(3, Vec::new(), vec![prepared(it)]))
        })),
        of_two(showing("NEW-VIEW with what is prepared", |it| {
            new_view(change(3, Vec::new(), vec![prepared(it)]))
        })),
        claims(showing("VIEW-CHANGE with claims", |it| {
            let stable = stable(it, Digest([7; 32]));
            Message::ViewChange(claiming(Some(stable), Vec::new(), Vec::new()))
        })),
        claims(showing("NEW-VIEW with claims", |it| {
            let stable = stable(it, Digest([7; 32]));
            new_view(claiming(Some(stable), Vec::new(), Vec::new()))
        })),
    ]
}

/// The replica that sends it.
fn sender(message: &Message) -> u16 {
    match message.kind() {
        Kind::NewView => context().leader(LATER).0,
        _ => 3,
    }
}

#[test]
fn a_certificate_is_admitted_when_valid_and_in_no_other_way() {
    let records = showing("EPOCHS", |it| Message::Epochs(vec![record(it)]));
    for showing in all_within_an_epoch().into_iter().chain([records]) {
        let verdict = |signed| {
            let message = (showing.message)(signed);
            let header = context().header(LATER);
            sent(showing.authentication, sender(&message), header, message)
        };
        let what = showing.what;
        assert_eq!(verdict(signed(showing.enough)), Ok(()), "{what}");
        for (how, signed) in (showing.spoilt)() {
            let refused = Err(Rejection::BadCertificate);
            assert_eq!(verdict(signed), refused, "{what}: {how}");
        }
    }
}

#[test]
fn messages_with_certificates_are_of_this_cluster_and_epoch() {
    for showing in all_within_an_epoch() {
        let message = || (showing.message)(signed(showing.enough));
        let by = sender(&message());
        let right = context().header(LATER);
        for (epoch, verdict) in [
            (EPOCH.0 - 1, Err(Rejection::OtherEpoch)),
            (EPOCH.0, Ok(())),
            (EPOCH.0 + 1, Err(Rejection::OtherEpoch)),
        ] {
            let epoch = Epoch(epoch);
            let found = sent(
                showing.authentication,
                by,
                Header { epoch, ..right },
                message(),
            );
            assert_eq!(found, verdict, "{} of epoch {epoch}", showing.what);
        }
        let other = Header {
            cluster: ClusterId([8; 16]),
            ..right
        };
        let found = sent(showing.authentication, by, other, message());
        assert_eq!(found, Err(Rejection::OtherCluster), "{}", showing.what);
    }
}

#[test]
fn records_of_epochs_lead_on_from_this_one() {
    let epochs = |records| {
        let message = Message::Epochs(records);
        sent(Authentication::Sig, 3, context().header(View(0)), message)
    };
    let good = || record(signed(&[0, 2, 3]));
    assert_eq!(epochs(vec![]), Ok(()));
    let again = epochs(vec![good(), good()]);
    assert_eq!(again, Err(Rejection::BadCertificate), "it follows itself");
    let skips = crate::membership::Membership {
        epoch: Epoch(EPOCH.0 + 2),
        ..next_membership()
    };
    let far = epochs(vec![record_of(signed(&[0, 2, 3]), skips)]);
    assert_eq!(far, Err(Rejection::OtherEpoch), "the one before is missing");
    let mut another = good();
    another.membership.administrators.clear();
    let swapped = EpochRecord::new(good().certificate, another.membership);
    let found = epochs(vec![swapped]);
    assert_eq!(
        found,
        Err(Rejection::BadCertificate),
        "it was not signed so"
    );
}

#[test]
fn a_view_begins_with_a_quorum_of_view_changes_for_it() {
    let header = context().header(LATER);
    let begins = |by, view_changes| {
        let message = Message::NewView(NewView { view_changes });
        sent(Authentication::Sig, by, header, message)
    };
    let of = |header, signers: &[u16]| {
        let empty = signers.iter().map(|it| change(*it, Vec::new(), Vec::new()));
        envelopes(header, empty.collect())
    };
    assert_eq!(begins(0, of(header, &[0, 1, 3])), Ok(()));
    assert_eq!(begins(0, of(header, &[0, 1, 2, 3])), Ok(()));
    let unproved = Err(Rejection::BadCertificate);
    for signers in [&[0, 1][..], &[], &[0, 1, 1], &[0, 3, 1]] {
        assert_eq!(begins(0, of(header, signers)), unproved, "{signers:?}");
    }
    let stranger = begins(0, of(header, &[0, 1, 4]));
    assert_eq!(stranger, Err(Rejection::UnknownSigner));
    for other in [
        header.at(View(7)),
        header.at(View(9)),
        Header {
            epoch: Epoch(EPOCH.0 - 1),
            ..header
        },
    ] {
        let mut changes = of(header, &[0, 1]);
        changes.extend(of(other, &[3]));
        assert_eq!(begins(0, changes), unproved, "{other:?}");
    }
    let mut forged = of(header, &[0, 1]);
    let unsigned = Unsigned::new(
        header,
        Message::ViewChange(change(3, Vec::new(), Vec::new())),
    );
    forged.push(Arc::clone(unsigned.sign(&Key(2)).envelope()));
    assert_eq!(begins(0, forged), Err(Rejection::BadSignature));
    let usurper = begins(1, of(header, &[0, 1, 3]));
    assert_eq!(usurper, Err(Rejection::BadSignature), "it does not lead");
}

#[test]
fn what_a_view_change_shows_lies_before_its_view_and_in_its_window() {
    let shows = |from: u64, change: ViewChange| {
        let unsigned = Unsigned::new(context().header(LATER), Message::ViewChange(change));
        let frame = unsigned.sign(&Key(3)).frame().clone();
        let context = context().after(Sequence(from));
        let from = Peer::Replica(ReplicaId(3));
        admit(frame, from, &Voters, &Toy, &context).map(|_| ())
    };
    let unproved = Err(Rejection::BadCertificate);
    let base = || commit(signed(&[0, 2, 3]));
    let based = |from, base| shows(from, change(3, base, Vec::new()));
    assert_eq!(based(SEQUENCE.0 - 1, vec![base()]), Ok(()));
    assert_eq!(based(0, vec![base()]), Ok(()));
    assert_eq!(based(SEQUENCE.0, vec![base()]), unproved, "an epoch before");
    assert_eq!(based(0, vec![base(), base()]), unproved, "twice");
    let good = || prepared(signed(&[0, 2]));
    let open = |from, prepared| shows(from, change(3, Vec::new(), prepared));
    let window = WINDOW as u64;
    assert_eq!(open(SEQUENCE.0 - 1, vec![good()]), Ok(()));
    assert_eq!(open(SEQUENCE.0 - window, vec![good()]), Ok(()));
    let beyond = open(SEQUENCE.0 - window - 1, vec![good()]);
    assert_eq!(beyond, unproved, "beyond the window");
    assert_eq!(open(SEQUENCE.0, vec![good()]), unproved, "an epoch before");
    let twice = open(SEQUENCE.0 - 1, vec![good(), good()]);
    assert_eq!(twice, unproved, "twice");
    let decided = shows(0, change(3, vec![base()], vec![good()]));
    assert_eq!(decided, unproved, "at its base");
    for (view, verdict) in [(VIEW, unproved), (VIEW.next(), Ok(()))] {
        let message = Message::ViewChange(change(3, Vec::new(), vec![good()]));
        let header = context().header(view);
        let found = sent(Authentication::Sig, 3, header, message);
        assert_eq!(found, verdict, "prepared in {VIEW}, shown in {view}");
    }
    let proposed = |header: Header| PreparedCertificate {
        proposal: proposal(header),
        votes: Vec::new(),
    };
    let alone = |header| open(SEQUENCE.0 - 1, vec![proposed(header)]);
    assert_eq!(alone(context().header(VIEW)), unproved, "no PREPAREs");
    let foreign = Header {
        epoch: Epoch(EPOCH.0 - 1),
        ..context().header(VIEW)
    };
    assert_eq!(alone(foreign), Err(Rejection::OtherEpoch));
    let unsigned = Unsigned::new(context().header(VIEW), Message::Proposal(batch()));
    let mut usurped = good();
    usurped.proposal = Arc::clone(unsigned.sign(&Key(2)).envelope());
    let found = open(SEQUENCE.0 - 1, vec![usurped]);
    assert_eq!(found, Err(Rejection::BadSignature), "not its leader's");
}

#[test]
fn claims_are_of_views_before_and_of_the_window() {
    let claims = |prepared, accepted| {
        let message = Message::ViewChange(claiming(None, prepared, accepted));
        sent(Authentication::Mac, 3, context().header(LATER), message)
    };
    let unproved = Err(Rejection::BadCertificate);
    let in_view = |view: u64| {
        let batch: Batch = batch();
        let header = context().header(View(view));
        let unsigned = Unsigned::new(header, Message::Proposal(batch));
        let proposal = unsigned.with_signature(Signature::default());
        vec![PreparedCertificate {
            proposal: Arc::clone(proposal.envelope()),
            votes: Vec::new(),
        }]
    };
    let at = |sequence: u64, view: u64| {
        let (sequence, view) = (Sequence(sequence), View(view));
        let digest = Digest([4; 32]);
        Accepted {
            sequence,
            digest,
            view,
        }
    };
    let (first, window) = (SEQUENCE.0, WINDOW as u64);
    assert_eq!(claims(in_view(7), vec![at(first, 7)]), Ok(()));
    for view in [LATER.0, LATER.0 + 1] {
        assert_eq!(claims(in_view(view), Vec::new()), unproved, "view {view}");
        let accepted = claims(Vec::new(), vec![at(first, view)]);
        assert_eq!(accepted, unproved, "view {view}");
    }
    let last = first + window - 1;
    assert_eq!(claims(Vec::new(), vec![at(last, 7)]), Ok(()));
    for (what, accepted) in [
        ("beyond the window", vec![at(last + 1, 7)]),
        ("before it", vec![at(first - 1, 7)]),
        ("twice", vec![at(first, 6), at(first, 7)]),
        ("out of order", vec![at(last, 7), at(first, 7)]),
    ] {
        assert_eq!(claims(Vec::new(), accepted), unproved, "{what}");
    }
    let twice = [in_view(6), in_view(7)].concat();
    assert_eq!(claims(twice, Vec::new()), unproved, "two at one sequence");
    let mut signed = in_view(7);
    signed[0].proposal = proposal(context().header(View(7)));
    let found = claims(signed, Vec::new());
    assert_eq!(
        found,
        Err(Rejection::BadSignature),
        "there is one encoding of it"
    );
}

/// Every kind of single vote of a replica, in the name of `signer`.
fn votes_of(signer: u16) -> Vec<Message> {
    let signer = ReplicaId(signer);
    let ballot = Ballot {
        sequence: SEQUENCE,
        digest: Digest([4; 32]),
        signer,
    };
    let checkpoint = stable(signed(&[]), Digest([7; 32])).checkpoint;
    vec![
        Message::Prepare(ballot),
        Message::Commit(ballot),
        Message::Suspect(Suspect { signer }),
        Message::Checkpoint(CheckpointVote { checkpoint, signer }),
        Message::ViewChange(change(signer.0, Vec::new(), Vec::new())),
    ]
}

#[test]
fn a_vote_is_admitted_only_in_the_name_of_its_signer() {
    let header = context().header(LATER);
    let verdict = |by, message| sent(Authentication::Sig, by, header, message);
    for message in votes_of(3) {
        let what = message.kind();
        assert_eq!(verdict(3, message.clone()), Ok(()), "{what:?}");
        let forged = verdict(2, message);
        assert_eq!(forged, Err(Rejection::BadSignature), "{what:?}");
    }
    for message in votes_of(4) {
        let what = message.kind();
        let found = verdict(4, message);
        assert_eq!(found, Err(Rejection::UnknownSigner), "{what:?}");
    }
}

#[test]
fn an_unsigned_vote_is_admitted_from_its_own_replica_alone() {
    let vote = |from, message: Message, signature| {
        let unsigned = Unsigned::new(context().header(LATER), message);
        let frame = unsigned.with_signature(signature).frame().clone();
        admit(frame, from, &Voters, &Toy, &here(Authentication::Mac)).map(|_| ())
    };
    let nothing = Signature::default();
    let three = || Peer::Replica(ReplicaId(3));
    for (mine, of_two) in votes_of(3).into_iter().zip(votes_of(2)).take(2) {
        let what = mine.kind();
        assert_eq!(vote(three(), mine.clone(), nothing), Ok(()), "{what:?}");
        let in_anothers_name = vote(three(), of_two, nothing);
        assert_eq!(in_anothers_name, Err(Rejection::WrongSender), "{what:?}");
        let client = vote(Peer::Client(ConnectionId(3)), mine.clone(), nothing);
        assert_eq!(client, Err(Rejection::KindNotAllowed), "{what:?}");
        let signed = vote(three(), mine, Signature([1; 64]));
        assert_eq!(signed, Err(Rejection::BadSignature), "{what:?}");
    }
    // Messages that have to be shown to others are signed, whichever channel they come by.
    for (mine, of_two) in votes_of(3).into_iter().zip(votes_of(2)).skip(2).take(2) {
        let what = mine.kind();
        let header = context().header(LATER);
        let verdict = |by, message| sent(Authentication::Mac, by, header, message);
        assert_eq!(verdict(3, mine), Ok(()), "{what:?}");
        let forged = verdict(3, of_two);
        assert_eq!(forged, Err(Rejection::BadSignature), "{what:?}");
    }
    // A committed batch proves nothing there: one replica says that it executed it.
    let header = context().header(LATER);
    let message = committed(commit(signed(&[0])));
    assert_eq!(sent(Authentication::Mac, 3, header, message), Ok(()));
}
