//! Host keys and cached shares with arbitrary content.
//!
//! | Piece | Treatment |
//! |---|---|
//! | 0 | the text of a host key |
//! | 1 | the text of cached shares |
//! | 2 | the wrapped part of a host key, signed by its principal |
//! | 3 | the sealed part of cached shares, sealed correctly |
//! | 4 … | values of the lines of both, with valid checksums |

use super::host::{self, HostKey};
use super::lines::{Lines, TextWriter};
use super::share_cache::{self, NONCE_BYTES, ShareCache};
use super::{Principal, Secret};
use crate::decoders::{Piece, Seed};
use quorumfs_bft::authentication::Signer;
use quorumfs_bft::identity::ClusterId;
use quorumfs_metadata::identity::{RealmEpoch, RealmId, VolumeId};
use std::path::PathBuf;

const VOLUME: VolumeId = ClusterId([7; 16]);
const EPOCH: RealmEpoch = RealmEpoch(3);
const NONCE: [u8; NONCE_BYTES] = [5; NONCE_BYTES];
/// The lines of both files.
const LABELS: [&str; 7] = [
    "volume",
    "for",
    "wrapped",
    "signature",
    "epoch",
    "nonce",
    "sealed",
];

fn principal() -> Principal {
    Principal::from_seed(Secret::from_bytes([1; 32]))
}

fn kept() -> ShareCache {
    ShareCache::new(PathBuf::new(), Secret::from_bytes([2; 32]), VOLUME)
}

fn host_key(text: &str) -> bool {
    let read = || HostKey::from_text(text, VOLUME, &principal());
    let Ok(key) = read() else {
        return false;
    };
    assert!(read().is_ok_and(|again| again.cache() == key.cache()));
    let stranger = Principal::from_seed(Secret::from_bytes([4; 32]));
    assert!(HostKey::from_text(text, VOLUME, &stranger).is_err());
    true
}

fn shares(text: &str) -> bool {
    let Ok(Some(shares)) = kept().opened(text, RealmId::ROOT, EPOCH) else {
        return false;
    };
    let plain = shares
        .iter()
        .flat_map(|(index, share)| [&[*index][..], share.expose()].concat());
    let plain: Vec<u8> = plain.collect();
    let again = kept().sealed_text(RealmId::ROOT, EPOCH, &plain, NONCE);
    let again = again.ok();
    let again = again.and_then(|text| kept().opened(&text, RealmId::ROOT, EPOCH).ok());
    assert_eq!(again.flatten(), Some(shares));
    true
}

fn wrapped(bytes: &[u8]) -> bool {
    let principal = principal();
    let mut writer = TextWriter::new(host::TITLE, host::FORMAT);
    writer.value("volume", &VOLUME.0);
    writer.value("for", &principal.id().signing.0);
    writer.value("wrapped", bytes);
    let signed = host::signed(VOLUME, &principal, bytes);
    writer.value("signature", &principal.sign(&signed).0);
    host_key(&writer.finish())
}

fn sealed(plain: &[u8]) -> bool {
    let text = kept().sealed_text(RealmId::ROOT, EPOCH, plain, NONCE);
    text.is_ok_and(|text| shares(&text))
}

/// Both files, with these lines.
fn lines(pieces: &[Piece<'_>]) -> usize {
    let text = |title, format| {
        let mut writer = TextWriter::new(title, format);
        for (kind, piece) in pieces {
            let label = usize::from(*kind).checked_sub(4);
            if let Some(label) = label.and_then(|it| LABELS.get(it % LABELS.len())) {
                writer.value(label, piece);
            }
        }
        writer.finish()
    };
    let host = host_key(&text(host::TITLE, host::FORMAT));
    let kept = shares(&text(share_cache::TITLE, share_cache::FORMAT));
    usize::from(host) + usize::from(kept)
}

/// Reads each piece, and all lines together. Returns how many were accepted.
///
/// # Panics
/// If invalid data is accepted.
pub(crate) fn read(pieces: &[Piece<'_>]) -> usize {
    let held = pieces.iter().filter(|(kind, piece)| match kind {
        0 => std::str::from_utf8(piece).is_ok_and(host_key),
        1 => std::str::from_utf8(piece).is_ok_and(shares),
        2 => wrapped(piece),
        3 => sealed(piece),
        _ => false,
    });
    held.count() + lines(pieces)
}

/// A host key and cached shares: as texts, as plaintexts, and line by line. The wrapped part
/// differs each time.
pub(crate) fn seeds() -> Vec<Seed> {
    let key = HostKey(Secret::from_bytes([3; 32])).to_text(VOLUME, &principal());
    let key = key.unwrap_or_default();
    let parsed = Lines::parse(host::TITLE, host::FORMAT, &key);
    let value = |label| {
        let value = parsed.as_ref().ok().and_then(|it| it.value(label).ok());
        value.unwrap_or_default().to_vec()
    };
    let lines = (4..).zip(LABELS).take(4);
    let lines = lines.map(|(kind, label)| (kind, value(label))).collect();
    let plain = [[0; 33], [2; 33]].concat();
    let kept = kept().sealed_text(RealmId::ROOT, EPOCH, &plain, NONCE);
    let kept = kept.unwrap_or_default();
    vec![
        vec![(2, value("wrapped"))],
        lines,
        vec![(0, key.into_bytes())],
        vec![(1, kept.into_bytes())],
        vec![(3, plain), (3, Vec::new())],
    ]
}
