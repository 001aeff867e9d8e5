//! Installs the first rows from the genesis. Those of a volume that is recovered come from a copy
//! of the metadata ([`crate::load`]): the genesis admits the principal that loads them, and no
//! more.

use crate::attributes::{Mode, NameGenerations, Timestamp};
use crate::change::Change;
use crate::genesis::{Genesis, SignedGenesis};
use crate::identity::{
    Home, InodeId, InodeVersion, MountEpoch, PrincipalId, PrincipalNumber, RealmEpoch, RealmId,
};
use crate::quota;
use crate::row::{
    Counters, Format, HomeCounters, Inode, InodeBody, Loading, Realm, RealmQuota, key,
};
use crate::rows::Outcome;
use crate::statement;

/// Writes the first rows. The root directory belongs to the owner that the genesis names.
pub(crate) fn install(
    change: &mut Change<'_, '_>,
    signed: &SignedGenesis,
    genesis: &Genesis,
) -> Outcome<()> {
    let format = Format {
        volume: genesis.volume,
        format: genesis.format,
        features: genesis.features,
        incarnation: genesis.incarnation,
        up: genesis.up,
        right: genesis.right,
        replicas: genesis.replicas.clone(),
        root_key: signed.root_key,
    };
    change.put(key::format(), &format)?;
    if let Some(by) = genesis.recovered_by {
        return recovering(change, genesis, by);
    }
    for cloud in &genesis.clouds {
        change.put(key::cloud(cloud.index), cloud)?;
    }
    let mut counters = Counters {
        next_allocation: genesis.incarnation.first_id(),
        ..Counters::default()
    };
    for (number, principal) in (0..).map(PrincipalNumber).zip(&genesis.principals) {
        statement::install(change, principal, number, None)?;
        counters.next_principal = counters.next_principal.saturating_add(1);
    }
    change.put(key::counters(), &counters)?;
    let realm = Realm {
        root: InodeId::ROOT,
        home: Home(0),
        policy: genesis.policy,
        epoch: RealmEpoch(0),
        mounts: MountEpoch(0),
        policy_epoch: 0,
        trash_seconds: genesis.trash_seconds,
        believe: genesis.believe,
        parent: None,
    };
    change.put(key::realm(RealmId::ROOT), &realm)?;
    change.put(key::epoch(RealmId::ROOT, RealmEpoch(0)), &genesis.epoch)?;
    for (principal, member) in &genesis.members {
        change.put(key::member(RealmId::ROOT, principal), member)?;
    }
    let counters = HomeCounters {
        next_inode: InodeId::ROOT.counter().saturating_add(1),
        inodes: 1,
        allocated: 0,
    };
    change.put(key::home(Home(0)), &counters)?;
    change.put(key::quota(RealmId::ROOT), &RealmQuota::default())?;
    let root = root(genesis);
    change.put_inode(InodeId::ROOT, &root)?;
    quota::settle(change)
}

/// What there is before the rows of the copy.
fn recovering(change: &mut Change<'_, '_>, genesis: &Genesis, by: PrincipalId) -> Outcome<()> {
    let numbered = (0..).map(PrincipalNumber).zip(&genesis.principals);
    for (number, principal) in numbered.filter(|(_, principal)| principal.key == by) {
        statement::install(change, principal, number, None)?;
    }
    let state = Loading {
        by,
        last: Vec::new(),
        rows: 0,
    };
    change.put(key::loading(), &state)
}

fn root(genesis: &Genesis) -> Inode {
    let created = Timestamp::from(genesis.created);
    let (uid, gid) = genesis.root_owner;
    Inode {
        realm: RealmId::ROOT,
        mode: Mode(0o755),
        uid,
        gid,
        links: 2,
        atime: created,
        mtime: created,
        ctime: created,
        created,
        version: InodeVersion(1),
        holders: 0,
        acl: None,
        default_acl: None,
        extended: None,
        held: false,
        node: InodeBody::Directory {
            parent: InodeId::ROOT,
            generations: NameGenerations {
                current: RealmEpoch(0),
                previous: None,
            },
            entries: 0,
        },
    }
}
