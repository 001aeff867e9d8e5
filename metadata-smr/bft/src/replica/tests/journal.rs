//! What a replica makes of the journal that it finds.

use super::cluster::Cluster;
use crate::journal::Record;
use crate::state::StateError;
use bytes::Bytes;

#[test]
fn a_record_of_a_newer_release_is_refused_and_not_taken_for_damage() {
    let mut cluster = Cluster::four(31);
    let client = cluster.client(20);
    cluster.finish(10_000);
    cluster.run_for(500);
    cluster.crash(2);
    let newer_version = Bytes::from_static(&[2, 0]);
    let newer_kind = Bytes::from_static(&[1, 200]);
    for record in [newer_version, newer_kind] {
        let refused = cluster.refusal(2, record);
        assert_eq!(refused, Some(StateError::NewerJournal));
    }
    assert_eq!(cluster.refusal(2, Record::BootMark.encode()), None);
    // Nothing has become of it: the release that knows the record goes on.
    cluster.start(2);
    cluster.more(client, 5);
    cluster.finish(5_000);
    cluster.check();
}
