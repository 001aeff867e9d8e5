//! Which connections are admitted, and which are ended.

use super::*;
use bytes::Bytes;
use quorumfs_bft::fault_model::FaultModel;
use quorumfs_bft::identity::{Incarnation, Sequence};
use quorumfs_bft::membership::Member;

const PLACES: ConnectionLimits = ConnectionLimits {
    clients: 200,
    strangers: 100,
};

fn key(number: u16) -> PublicKey {
    let mut key = [0; 32];
    key[..2].copy_from_slice(&number.to_be_bytes());
    PublicKey(key)
}

/// Of replica 0 of two, whose keys are these.
fn membership(keys: [u16; 2]) -> Membership {
    let member = |number| Member {
        key: key(number),
        incarnation: Incarnation::default(),
        address: Bytes::from_static(b"127.0.0.1:1"),
        since: Sequence(0),
    };
    let model = FaultModel::new(0, 1, 2).expect("a model");
    Membership::genesis(model, keys.map(member).to_vec(), Vec::new())
}

fn roster() -> Roster {
    let roster = Roster::new(key(1000), Addresses::new(), PLACES);
    roster.enter(&membership([1000, 1001]), ReplicaId(0));
    roster
}

fn id_of(connection: &Connection) -> ConnectionId {
    match connection.from {
        Source::Client(id) | Source::UnknownReplica(id) => id,
        Source::Replica(_) => panic!("a client"),
    }
}

#[test]
fn a_replica_is_known_by_its_key_alone() {
    let roster = roster();
    let admit = |number, id| {
        let admitted = roster.admit(key(number), Role::Replica(ReplicaId(id)), 1);
        admitted.map(|connection| connection.from)
    };
    assert_eq!(admit(1001, 1), Ok(Source::Replica(key(1001))));
    let elsewhere = admit(1001, 0);
    assert_eq!(
        elsewhere,
        Ok(Source::Replica(key(1001))),
        "its number elsewhere"
    );
    assert!(
        matches!(admit(1002, 1), Ok(Source::UnknownReplica(_))),
        "another replica's number"
    );
    assert_eq!(admit(1000, 0), Err(Refusal::NotThatReplica), "myself");
}

#[tokio::test]
async fn replicas_that_stay_keep_outbox_and_connection_and_others_lose_both() {
    let roster = roster();
    let role = Role::Replica(ReplicaId(1));
    let connection = roster.admit(key(1001), role, 1).expect("known");
    let before = roster.outbox(ReplicaId(1)).expect("a peer");
    let mut swapped = membership([1001, 1000]);
    swapped.epoch = Epoch(1);
    roster.enter(&swapped, ReplicaId(1));
    let after = roster.outbox(ReplicaId(0)).expect("the same peer");
    assert!(Arc::ptr_eq(&before, &after));
    assert_eq!(
        roster.peer(connection.from),
        Some(Peer::Replica(ReplicaId(0)))
    );
    assert!(
        roster.outbox(ReplicaId(1)).is_none(),
        "this replica's own key"
    );
    assert_eq!(*roster.entered().borrow(), Epoch(1));

    let unknown = roster.admit(key(1002), role, 1).expect("a place");
    roster.enter(&membership([1002, 1000]), ReplicaId(1));
    connection.end.notified().await;
    unknown.end.notified().await;
    assert!(!after.take(1, &mut Vec::new()).await, "closed");
    assert_eq!(roster.peer(connection.from), None);
    let admitted = roster.admit(key(1002), role, 1).expect("known");
    assert_eq!(admitted.from, Source::Replica(key(1002)));
}

#[tokio::test]
async fn unknown_replicas_have_few_places_and_one_for_a_key() {
    let roster = roster();
    let role = Role::Replica(ReplicaId(9));
    let first = roster.admit(key(1), role, 1).expect("a place");
    let again = roster.admit(key(1), role, 1).expect("a place");
    first.end.notified().await;
    for number in 2..=limits::UNKNOWN_REPLICAS_MAX as u16 + 1 {
        roster.admit(key(number), role, 1).expect("a place");
    }
    again.end.notified().await;
    assert!(roster.inner().clients.is_empty());
    for gone in [first, again] {
        roster.release(id_of(&gone));
    }
    assert_eq!(
        roster.inner().unknown_replicas.len(),
        limits::UNKNOWN_REPLICAS_MAX
    );
    assert!(roster.inner().unknown_replicas_leaving.is_empty());
}

#[test]
fn unknown_replicas_count_until_they_are_disconnected() {
    let roster = roster();
    let role = Role::Replica(ReplicaId(9));
    let oldest = roster.admit(key(1), role, 1).expect("a place");
    let mut admitted = 1;
    while admitted < 1000 && roster.admit(key(1 + admitted), role, 1).is_ok() {
        admitted += 1;
    }
    assert_eq!(admitted, 2 * limits::UNKNOWN_REPLICAS_MAX as u16);
    assert_eq!(
        roster.admit(key(admitted), role, 1).err(),
        Some(Refusal::Full),
        "its own connection is not replaced either"
    );
    roster.release(id_of(&oldest));
    roster.admit(key(5000), role, 1).expect("a place");
}

#[test]
fn places_are_bounded_for_each_principal_and_are_freed() {
    let roster = roster();
    let mut ids = Vec::new();
    for _ in 0..limits::CLIENTS_PER_PRINCIPAL_MAX {
        ids.push(id_of(
            &roster.admit(key(1), Role::Client, 1).expect("a place"),
        ));
    }
    assert_eq!(
        roster.admit(key(1), Role::Client, 1).err(),
        Some(Refusal::FullForPrincipal)
    );
    roster.release(ids[0]);
    roster.release(ids[0]);
    assert!(roster.admit(key(1), Role::Client, 1).is_ok());
    assert!(roster.admit(key(1), Role::Client, 1).is_err());
}

#[test]
fn strangers_displace_only_strangers() {
    let roster = roster();
    let oldest = id_of(&roster.admit(key(1), Role::Client, 1).expect("a place"));
    let mut admitted = 1;
    for number in 2.. {
        if roster.admit(key(number), Role::Client, 1).is_err() {
            break;
        }
        admitted += 1;
    }
    assert_eq!(
        admitted,
        2 * PLACES.strangers,
        "half of them are being disconnected"
    );
    assert!(roster.inner().leaving.contains(&oldest));
    roster.release(oldest);
    assert!(roster.admit(key(5000), Role::Client, 1).is_ok());

    let working: Vec<_> = (6000..6000 + PLACES.clients as u16).map(key).collect();
    for (id, principal) in (1..).zip(&working) {
        roster.session_opened(SessionId(id), *principal);
        assert!(roster.admit(*principal, Role::Client, 1).is_ok(), "{id}");
    }
    let refused = roster.admit(working[0], Role::Client, 1).err();
    assert_eq!(refused, Some(Refusal::Full));
    roster.session_closed(SessionId(1));
    roster.session_closed(SessionId(1));
    assert!(
        roster.admit(working[1], Role::Client, 1).is_ok(),
        "its place is free"
    );
}

#[test]
fn places_follow_from_the_limit_of_open_files() {
    let plenty = ConnectionLimits::within(65_536);
    assert_eq!(plenty.clients, limits::CLIENTS_MAX);
    assert_eq!(plenty.strangers, limits::STRANGERS_MAX);
    let usual = ConnectionLimits::within(1024);
    let taken = usual.clients + 2 * usual.strangers + limits::FILES_RESERVED;
    assert!(taken <= 1024, "{usual:?}");
    assert_eq!(
        ConnectionLimits::within(0),
        ConnectionLimits {
            clients: 1,
            strangers: 1
        }
    );
}

#[test]
fn blacklisted_keys_are_refused_in_every_role() {
    let roster = roster();
    let connection = roster.admit(key(7), Role::Client, 1).expect("a place");
    roster.blacklist(connection.from, "test");
    assert_eq!(
        roster.admit(key(7), Role::Client, 1).err(),
        Some(Refusal::Blacklisted)
    );
    assert!(roster.admit(key(8), Role::Client, 1).is_ok());
}

#[tokio::test]
async fn a_replica_that_dials_again_replaces_its_older_connection() {
    let roster = roster();
    let role = Role::Replica(ReplicaId(1));
    let older = roster.admit(key(1001), role, 1).expect("known");
    let _newer = roster.admit(key(1001), role, 1).expect("known");
    older.end.notified().await;
}

#[test]
fn a_second_process_with_a_replicas_key_is_refused_until_the_first_has_ended() {
    let roster = roster();
    let role = Role::Replica(ReplicaId(1));
    let first = roster.admit(key(1001), role, 1).expect("known");
    for _ in 0..3 {
        let second = roster.admit(key(1001), role, 2);
        assert_eq!(second.map(|it| it.from), Err(Refusal::DuplicateProcess));
    }
    let again = roster.admit(key(1001), role, 1).expect("the same process");
    // The end of the connection that was replaced changes nothing.
    roster.disconnected(&first);
    assert!(roster.admit(key(1001), role, 2).is_err());
    roster.disconnected(&again);
    assert!(roster.admit(key(1001), role, 2).is_ok());
    assert!(
        roster.admit(key(1001), role, 1).is_err(),
        "now it is the second"
    );
}
