//! What people exchange when one is invited, and the changes of principals that servers show.
//!
//! | Piece | Treatment |
//! |---|---|
//! | 0 | the text of a guest's line, or of a machine line |
//! | 1 | the text of a volume card |
//! | 2 | the row of a signed change |
//! | 3 | the answer of a machine |
//! | 4 … | a change, as an administrator signs it: applied as the next one |

use super::{Pieces, pieces};
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{ClusterId, ReplicaId, Signature, Time};
use quorumfs_gateway::keys::{
    JoinKey, MachineAnswer, MachineLine, Principal, PrincipalId, RootKey, Secret, SignedCard,
    VolumeCard,
};
use quorumfs_metadata::identity::{CloudIndex, Gid, RealmEpoch, Uid, VolumeId};
use quorumfs_metadata::people::{
    AddedMachine, People, PeopleChange, PeopleStep, SignedPeopleChange, is_machine_name,
};
use quorumfs_metadata::row::{Assertable, ReplicaInfo, Rights, Row, SignedBy};
use quorumfs_metadata::statement::{Statement, WrappedSecret};

const VOLUME: VolumeId = ClusterId(*b"a volume's name.");

fn principal(seed: u8) -> Principal {
    Principal::from_seed(Secret::from_bytes([seed; 32]))
}

fn line(text: &str) {
    if let Ok(keys) = PrincipalId::from_join_line(text) {
        assert!(!keys.fingerprint().is_empty());
        let padded = format!("  {text}\n");
        assert!(PrincipalId::from_join_line(&padded).is_ok_and(|again| again == keys));
    }
}

fn machine_line(text: &str) {
    if let Ok(line) = MachineLine::from_text(text) {
        let again = MachineLine::from_text(&line.to_text());
        assert!(again.is_ok_and(|again| again.to_text() == line.to_text()));
    }
}

fn answer(bytes: &[u8]) {
    let invitation = principal(4);
    if let Ok(answer) = MachineAnswer::verified(bytes, &invitation.id().signing) {
        assert!(is_machine_name(&answer.name));
    }
}

fn card(text: &str) {
    if let Ok(signed) = SignedCard::from_text(text) {
        let again = SignedCard::from_text(&signed.to_text());
        assert!(again.is_ok_and(|again| again == signed));
    }
}

fn row(bytes: &[u8]) {
    if let Ok(signed) = SignedPeopleChange::from_bytes(bytes) {
        assert_eq!(signed.to_bytes(), bytes);
        let verified = signed.verified(VOLUME);
        assert!(verified.is_none_or(|change| change.volume == VOLUME));
    }
}

/// The change is applied as the next one, or leaves everything as it is.
fn apply(people: &mut People, bytes: &[u8]) {
    let signer = principal(1).id().signing;
    let signed = SignedPeopleChange {
        change: bytes.to_vec(),
        signed: SignedBy {
            signer,
            signature: Signature([0; 64]),
        },
    };
    assert!(signed.verified(VOLUME).is_none(), "no one has signed it");
    let Some(mut change) = signed.decoded() else {
        return;
    };
    assert_eq!(change.to_bytes(), bytes);
    change.number = people.changes.saturating_add(1);
    let before = people.clone();
    match people.apply(&change) {
        Ok(()) => {
            assert_eq!(people.changes, change.number);
            let gone = matches!(
                change.step,
                PeopleStep::Dismiss { .. } | PeopleStep::DropMachine { .. }
            );
            if let Some(named) = change.step.principal() {
                assert_eq!(people.stated.contains_key(named), !gone);
            }
            // No credentials outlive their person.
            let mut owners = people.credentials.keys().map(|(of, _)| of);
            assert!(owners.all(|of| people.stated.contains_key(of)));
            // No machine outlives its person's dismissal.
            let mut machines = people.machines.keys();
            assert!(machines.all(|machine| people.stated.contains_key(machine)));
            if let PeopleStep::Dismiss { principal } = &change.step {
                assert!(people.machines.values().all(|of| of != principal));
            }
        }
        Err(_) => assert_eq!(*people, before),
    }
}

/// Lines, cards and changes.
///
/// # Panics
/// If invalid bytes are accepted, or a refused change has an effect.
pub fn people(bytes: &[u8]) {
    let mut known = People::default();
    for (kind, piece) in Pieces(bytes) {
        match (kind, std::str::from_utf8(piece)) {
            (0, Ok(text)) => {
                line(text);
                machine_line(text);
            }
            (1, Ok(text)) => card(text),
            (2, _) => row(piece),
            (3, _) => answer(piece),
            _ => apply(&mut known, piece),
        }
    }
}

/// A life of a guest, and what it was handed.
#[must_use]
pub fn lives() -> Vec<Vec<u8>> {
    let guest = principal(2).id();
    let rights = |administer| Rights {
        uids: Assertable::Only(vec![Uid(1003)]),
        gids: Assertable::Only(vec![Gid(1003)]),
        mount: true,
        reconcile: administer,
        administer,
    };
    let admit = PeopleStep::Admit(Statement {
        key: guest.signing,
        wrapping_key: [7; 32],
        label: "guest".to_owned(),
        rights: rights(false),
        expires: Some(Time(9)),
        cloud_secrets: vec![WrappedSecret {
            cloud: CloudIndex(0),
            bytes: vec![1; 80],
        }],
    });
    let give = PeopleStep::GiveCredentials {
        principal: guest.signing,
        cloud: CloudIndex(0),
        sealed: vec![3; 40],
    };
    let regrant = PeopleStep::Regrant {
        principal: guest.signing,
        label: "other".to_owned(),
        rights: rights(true),
        expires: None,
    };
    let name = PeopleStep::NameGroup {
        gid: Gid(7),
        name: "team".to_owned(),
    };
    let machine = principal(5);
    let add = PeopleStep::AddMachine(AddedMachine {
        of: guest.signing,
        statement: Statement {
            key: machine.id().signing,
            wrapping_key: [8; 32],
            label: "guest@laptop".to_owned(),
            rights: rights(false),
            expires: Some(Time(9)),
            cloud_secrets: Vec::new(),
        },
        credentials: vec![(CloudIndex(0), vec![3; 40])],
    });
    let drop = PeopleStep::DropMachine {
        principal: machine.id().signing,
    };
    let dismiss = PeopleStep::Dismiss {
        principal: guest.signing,
    };
    let again = add.clone();
    let steps = [admit, give, add, drop, again, regrant, name, dismiss];
    let changes = (1..).zip(steps).map(|(number, step)| PeopleChange {
        volume: VOLUME,
        number,
        epoch: RealmEpoch(0),
        step,
    });
    let changes: Vec<Vec<u8>> = changes.map(|change| change.to_bytes()).collect();
    let signer = principal(1);
    let signed = changes.iter().map(|change| SignedPeopleChange {
        change: change.clone(),
        signed: SignedBy {
            signer: signer.id().signing,
            signature: quorumfs_bft::authentication::Signer::sign(
                &signer,
                &PeopleChange::signed_bytes(change),
            ),
        },
    });
    let rows: Vec<Vec<u8>> = signed.map(|signed| signed.to_bytes()).collect();
    let line = JoinKey::random().map(|key| key.line()).unwrap_or_default();
    let card = VolumeCard {
        root: RootKey(principal(3).id().signing),
        genesis: vec![1; 20],
        successions: Vec::new(),
        people: rows.clone(),
        replicas: vec!["aa@127.0.0.1:7400".to_owned()],
        clouds: vec![("a".to_owned(), "/a".to_owned())],
    };
    let card = SignedCard::of(card, &signer).to_text();
    let model = FaultModel::new(0, 0, 1);
    let machine_line = model.ok().and_then(|model| {
        let replica = ReplicaInfo {
            id: ReplicaId(0),
            key: guest.signing,
            address: "127.0.0.1:7400".to_owned(),
        };
        let root = RootKey(principal(3).id().signing);
        MachineLine::new((guest.signing, root), model, vec![replica]).ok()
    });
    let machine_line = machine_line.map_or_else(String::new, |line| line.to_text());
    let answer = MachineAnswer::of(&machine, "laptop", &principal(4));
    vec![
        pieces(changes.iter().map(|it| (4, &it[..]))),
        pieces(rows.iter().map(|it| (2, &it[..]))),
        pieces([(0, line.as_bytes())]),
        pieces([(1, card.as_bytes())]),
        pieces([(0, machine_line.as_bytes()), (3, &answer[..])]),
    ]
}
