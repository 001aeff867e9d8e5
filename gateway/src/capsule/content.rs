//! What a capsule says of a file's content: runs of slices, and the slices and objects they need.
//!
//! Tables are shared by all files of a capsule, because small files lie in one object together.

use super::manifest::ManifestError;
use crate::blocks::{LinkedObject, SealedSlice};
use borsh::{BorshDeserialize, BorshSerialize};
use quorumfs_metadata::identity::{Codec, SliceId};
use quorumfs_metadata::limits::FILE_SIZE_MAX;
use std::fmt;

/// The key of one slice. A secret.
#[derive(Clone, Copy, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) struct GivenKey(pub(super) [u8; 32]);

impl fmt::Debug for GivenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GivenKey(…)")
    }
}

/// A slice with its key.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(super) struct LinkedSlice {
    /// The place of its object in the table.
    pub(super) object: u32,
    pub(super) id: SliceId,
    pub(super) offset: u32,
    pub(super) length: u32,
    pub(super) sealed_length: u32,
    pub(super) codec: Codec,
    pub(super) key: GivenKey,
}

/// Objects and slices that content refers to by their places.
#[derive(Clone, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct CapsuleTables {
    pub(super) objects: Vec<LinkedObject>,
    pub(super) slices: Vec<LinkedSlice>,
}

/// Where a run of a file comes from.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(super) enum RunSource {
    /// These bytes.
    Bytes(Vec<u8>),
    /// A slice, from this position on.
    Slice { slice: u32, begin: u32 },
}

/// A run of a file.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(super) struct Run {
    pub(super) at: u64,
    pub(super) length: u32,
    pub(super) source: RunSource,
}

impl Run {
    /// The slice that it comes from, if it does.
    pub(super) const fn slice(&self) -> Option<u32> {
        match self.source {
            RunSource::Slice { slice, .. } => Some(slice),
            RunSource::Bytes(_) => None,
        }
    }
}

/// The content of a file. What no run covers is zeros.
#[derive(Clone, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct LinkedContent {
    pub(super) size: u64,
    /// In ascending order, apart from each other.
    pub(super) runs: Vec<Run>,
}

impl CapsuleTables {
    /// Checks that what refers to each other is there.
    pub(super) fn check(&self) -> Result<(), ManifestError> {
        let shards = |object: &LinkedObject| {
            let is_whole = object.shards.len() == usize::from(object.policy.clouds());
            is_whole && object.linked() >= usize::from(object.policy.write_quorum())
        };
        if !self.objects.iter().all(shards) {
            return Err(ManifestError::Contradiction(
                "an object has too few shards or URLs",
            ));
        }
        for slice in &self.slices {
            let object = self.object_of(slice);
            let object = object.ok_or(ManifestError::Contradiction("a slice has no object"))?;
            let fits = object.check(&slice.sealed(object));
            fits.map_err(ManifestError::Contradiction)?;
        }
        Ok(())
    }

    pub(super) fn object_of(&self, slice: &LinkedSlice) -> Option<&LinkedObject> {
        self.objects.get(usize::try_from(slice.object).ok()?)
    }

    pub(super) fn slice(&self, place: u32) -> Option<&LinkedSlice> {
        self.slices.get(usize::try_from(place).ok()?)
    }
}

impl LinkedSlice {
    /// The slice in its object.
    pub(super) fn sealed(&self, object: &LinkedObject) -> SealedSlice {
        SealedSlice {
            id: self.id,
            object: object.id,
            offset: self.offset,
            length: self.length,
            sealed_length: self.sealed_length,
            codec: self.codec,
        }
    }
}

impl LinkedContent {
    /// Bytes of the file.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// The place of the object that its first slice lies in: small files that were written together
    /// lie in one. `None` if it has no slice.
    pub(super) fn first_object(&self, tables: &CapsuleTables) -> Option<u32> {
        let slice = self.runs.iter().find_map(Run::slice)?;
        tables.slice(slice).map(|slice| slice.object)
    }

    /// Checks that runs are apart, within the file, and within their slices.
    pub(super) fn check(&self, tables: &CapsuleTables) -> Result<(), ManifestError> {
        if self.size > FILE_SIZE_MAX {
            return Err(ManifestError::Contradiction(
                "a file is longer than any can be",
            ));
        }
        let mut end = 0;
        for run in &self.runs {
            let is_behind = run.length > 0 && run.at >= end;
            end = run.at.saturating_add(u64::from(run.length));
            if !is_behind || end > self.size {
                return Err(ManifestError::Contradiction("a file's runs overlap"));
            }
            let is_there = match &run.source {
                RunSource::Bytes(bytes) => bytes.len() as u64 == u64::from(run.length),
                RunSource::Slice { slice, begin } => {
                    let last = begin.checked_add(run.length);
                    let slice = tables.slice(*slice);
                    slice
                        .zip(last)
                        .is_some_and(|(slice, last)| last <= slice.length)
                }
            };
            if !is_there {
                return Err(ManifestError::Contradiction(
                    "a file's run is beyond its slice",
                ));
            }
        }
        Ok(())
    }
}
