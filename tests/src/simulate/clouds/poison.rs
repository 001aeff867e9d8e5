//! An authorised writer that writes unreadable objects.
//!
//! Its commits are valid as far as the servers can see, and its shards are on every cloud. It must
//! not be able to give one reader what another is refused: no reader gets anything of a poisoned
//! object, whichever clouds answer, and every reader gets the name of the writer.

use super::ledger::Attempt;
use super::metadata::{TIME, USER, USER_IDS, USER_NUMBER};
use super::world::World;
use bytes::Bytes;
use quorumfs_bft::identity::Digest;
use quorumfs_bft_simulator::random::Random;
use quorumfs_gateway::blocks::{Named, SEGMENT_BYTES, Sealer, TAG_BYTES};
use quorumfs_gateway::metadata::MetadataClient;
use quorumfs_metadata::attributes::Credentials;
use quorumfs_metadata::identity::{CloudIndex, Codec, ObjectClass, ShardIndex};
use quorumfs_metadata::operation::{Commit, NewContent, NewExtent, NewObject, NewSlice, Step};
use quorumfs_metadata::placement::Shard;
use std::sync::Arc;

/// How an object is poisoned.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Poison {
    /// Parity of another plaintext, correctly sealed under the same key: a reader that decodes from
    /// it without checking the data shards' digests reads something else.
    Parity,
    /// Digests that match no content.
    Digests,
    /// Shards of another slice.
    OtherSlice,
    /// Sealed under another key.
    Key,
    /// Acknowledgements of shards that were never put.
    Nothing,
    /// The digest of one data shard matches, but another plaintext's shard was stored.
    Data,
}

impl Poison {
    pub(super) const ALL: [Self; 6] = [
        Self::Parity,
        Self::Digests,
        Self::OtherSlice,
        Self::Key,
        Self::Nothing,
        Self::Data,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Parity => "poison_parity",
            Self::Digests => "poison_digests",
            Self::OtherSlice => "poison_other_slice",
            Self::Key => "poison_key",
            Self::Nothing => "poison_nothing",
            Self::Data => "poison_data",
        }
    }
}

/// Commits one object of the other principal: poisoned, or sometimes valid, so that gateways which
/// do not trust it also find good objects.
pub(super) async fn poison(world: &Arc<World>, random: &mut Random) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let kind = random.pick(&Poison::ALL).copied();
    let kind = kind.filter(|_| random.chance(3, 4));
    let session = world.servers.embedded.open_session(USER);
    if let Ok(session) = &session {
        world.sessions().push(session.session());
    }
    let session = session.map_err(|e| text(&e))?;
    let credentials = Credentials::user(USER_IDS.0, USER_IDS.1);
    let client = MetadataClient::new(Arc::new(session), credentials.clone());
    let ids = client.allocate().await.map_err(|e| text(&e))?;
    let other_ids = client.allocate().await.map_err(|e| text(&e))?;

    let policy = world.policy;
    // It writes to the clouds of the genesis, whatever has replaced them.
    let founding = world.secrets.iter().take(policy.clouds().into());
    let founding: Vec<_> = founding.cloned().collect();
    let sealer = Sealer::new(world.volume, policy, &founding).map_err(|e| text(&e))?;
    let size = random.between(1000, 300_000);
    let plain = world.content(random.next(), size as usize);
    let mut changed = plain.to_vec();
    for byte in changed.iter_mut().take(100) {
        *byte ^= 0x55;
    }
    let (object, slice) = (ids.object(), ids.slice());
    let key = world.slice_key(slice);
    let seal = |object, slice, key, plain: &[u8]| {
        let sealed = sealer.seal(object, slice, key, plain);
        sealed.map_err(|e| e.to_string())
    };
    let right = seal(object, slice, &key, &plain)?;
    let other = match kind {
        Some(Poison::OtherSlice) => {
            let slice = other_ids.slice();
            seal(other_ids.object(), slice, &world.slice_key(slice), &plain)?
        }
        Some(Poison::Key) => seal(object, slice, &world.slice_key(other_ids.slice()), &plain)?,
        _ => seal(object, slice, &key, &changed)?,
    };
    let data = usize::from(policy.data());
    let shard_length = right.first().map_or(0, |(body, _)| body.len());
    let mixed: Vec<(Bytes, Digest)> = right
        .into_iter()
        .zip(other)
        .enumerate()
        .map(|(shard, (right, other))| match kind {
            None | Some(Poison::Nothing) => right,
            Some(Poison::Parity | Poison::Data) if shard >= data => other,
            Some(Poison::Parity) => right,
            Some(Poison::Digests) => (right.0, Digest([0x77; 32])),
            Some(Poison::OtherSlice | Poison::Key) => other,
            Some(Poison::Data) if shard == 0 => (other.0, right.1),
            Some(Poison::Data) => right,
        })
        .collect();
    let mut shards = Vec::new();
    for (index, ((body, digest), cloud)) in (0u8..).zip(mixed.into_iter().zip(&world.clouds)) {
        let named = Named {
            object,
            class: ObjectClass::BLOCK,
            shard: ShardIndex(index),
            attempt: 0,
            generation: 0,
        };
        if kind.is_none() {
            // It is checked like a shard of any honest writer.
            world.ledger.put(object, index, &body);
        }
        if kind != Some(Poison::Nothing) {
            let name = cloud.keys.name(&named).map_err(|e| text(&e))?;
            cloud.plant(name, body);
        }
        shards.push(Shard {
            digest,
            cloud: CloudIndex(index),
            attempt: 0,
            acknowledged: true,
            withdrawn: false,
            receipt: None,
            coded_for: None,
        });
    }
    let length = u32::try_from(plain.len()).unwrap_or(u32::MAX);
    let sealed_length = length + length.div_ceil(SEGMENT_BYTES).max(1) * TAG_BYTES;
    let attempt = Attempt {
        plain,
        poison: kind.map(|kind| (kind, USER_NUMBER)),
    };
    world.ledger.records().attempts.insert(slice, attempt);
    let new_object = NewObject {
        id: object,
        class: ObjectClass::BLOCK,
        policy,
        length: sealed_length,
        shard_length: u32::try_from(shard_length).unwrap_or(u32::MAX),
        shards,
    };
    let new_slice = NewSlice {
        id: slice,
        object,
        offset: 0,
        length,
        sealed_length,
        codec: Codec::NONE,
        keys: vec![super::metadata::row_key()],
    };
    let extent = NewExtent {
        offset: world.next_offset(),
        slice,
        slice_offset: 0,
        length,
    };
    let step = Step::Commit(Commit {
        inode: world.servers.file,
        expected: None,
        objects: vec![new_object],
        slices: vec![new_slice],
        content: NewContent::Extents(vec![extent]),
        size: None,
        mtime: None,
    });
    let committed = client.step("commit", credentials, TIME, step).await;
    committed.map_err(|e| format!("a poisoned commit is valid, but was refused: {e}"))?;
    match kind {
        Some(kind) => {
            world.ledger.note(&format!("poison {kind:?} as {slice}"));
            world.ledger.fault(kind.name());
        }
        None => {
            world
                .ledger
                .note(&format!("another principal writes {slice}"));
            world.ledger.count("written_by_another");
        }
    }
    world.ledger.records().committed.insert(slice);
    Ok(())
}
