//! Reading a capsule.

use super::content::{CapsuleTables, LinkedContent, Run, RunSource};
use super::manifest::{Located, Manifest, ManifestError, Payload};
use super::text::CapsuleLink;
use crate::blocks::{LinkedError, LinkedObject, LinkedReader};
use crate::keys::{Secret, SliceKey};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream;
use quorumfs_metadata::identity::VolumeId;
use std::sync::Arc;

/// Slices that are read at a time.
const AT_ONCE: usize = 3;
/// How often a manifest may be somewhere else.
const HOPS_MAX: usize = 8;

/// A capsule cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CapsuleError {
    /// Its clouds do not give it any more.
    #[error(
        "the link has ended: it has expired, or was revoked; ask the one who gave it to you for a \
         new one{0}"
    )]
    Ended(String),
    /// Too few clouds gave their shards.
    #[error("too few clouds gave their parts of it; try again later: {0}")]
    Unreachable(LinkedError),
    /// The link leads to bytes that do not open with it.
    #[error(
        "what the clouds gave does not open with this link: it is another one's, or was made \
         wrong: {0}"
    )]
    Wrong(LinkedError),
    /// It cannot be used.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The other side of a reader failed.
    #[error("{0}")]
    Sink(std::io::Error),
}

impl From<LinkedError> for CapsuleError {
    fn from(error: LinkedError) -> Self {
        match error {
            LinkedError::TooFewShards {
                ended: true,
                failures,
                ..
            } => Self::Ended(format!(":{failures}")),
            LinkedError::TooFewShards { .. } => Self::Unreachable(error),
            LinkedError::Block(_) => Self::Wrong(error),
        }
    }
}

/// A capsule that is being read.
#[derive(Debug)]
pub struct OpenedCapsule {
    reader: Arc<LinkedReader>,
    manifest: Manifest,
    objects: Vec<Arc<LinkedObject>>,
}

/// A slice that is to be read, and the runs that come from it.
struct SliceRead<'a> {
    slice: Option<u32>,
    runs: Vec<&'a Run>,
}

/// Objects that slices lie in, ready to be shared.
fn shared(tables: &CapsuleTables) -> Vec<Arc<LinkedObject>> {
    tables.objects.iter().cloned().map(Arc::new).collect()
}

async fn read_slice(
    reader: &LinkedReader,
    volume: VolumeId,
    (tables, objects): (&CapsuleTables, &[Arc<LinkedObject>]),
    place: u32,
) -> Result<Bytes, CapsuleError> {
    let lost = ManifestError::Contradiction("a run has no slice");
    let slice = tables.slice(place).ok_or(lost.clone())?;
    let object = usize::try_from(slice.object).ok();
    let object = object.and_then(|it| objects.get(it)).ok_or(lost)?;
    let key = SliceKey::from_secret(Secret::from_bytes(slice.key.0));
    let sealed = slice.sealed(object);
    Ok(reader.read(volume, object, sealed, &key).await?)
}

/// Reads content, each slice once, and gives each run with its position, in any order.
async fn read_content(
    reader: &LinkedReader,
    volume: VolumeId,
    tables: (&CapsuleTables, &[Arc<LinkedObject>]),
    content: &LinkedContent,
    sink: &mut (dyn FnMut(u64, &[u8]) -> std::io::Result<()> + Send),
) -> Result<(), CapsuleError> {
    let mut runs: Vec<&Run> = content.runs.iter().collect();
    // Slices of one object follow each other.
    runs.sort_by_key(|run| {
        let slice = run.slice();
        let object = slice.and_then(|slice| Some(tables.0.slice(slice)?.object));
        (object, slice)
    });
    let steps: Vec<SliceRead<'_>> = runs
        .chunk_by(|left, right| left.slice() == right.slice())
        .map(|runs| SliceRead {
            slice: runs.first().and_then(|run| run.slice()),
            runs: runs.to_vec(),
        })
        .collect();
    let mut reads = stream::iter(steps)
        .map(|step| async move {
            let slice = match step.slice {
                Some(slice) => read_slice(reader, volume, tables, slice).await?,
                None => Bytes::new(),
            };
            Ok::<_, CapsuleError>((step, slice))
        })
        .buffered(AT_ONCE);
    while let Some(read) = reads.next().await {
        let (step, slice) = read?;
        for run in step.runs {
            let bytes = match &run.source {
                RunSource::Bytes(bytes) => bytes.as_slice(),
                RunSource::Slice { begin, .. } => {
                    let begin = usize::try_from(*begin).unwrap_or(usize::MAX);
                    let end = begin.saturating_add(run.length as usize);
                    let part = slice.get(begin..end);
                    part.ok_or(ManifestError::Contradiction("a slice is too short"))?
                }
            };
            sink(run.at, bytes).map_err(CapsuleError::Sink)?;
        }
    }
    Ok(())
}

impl OpenedCapsule {
    /// Reads the manifest that a link leads to.
    ///
    /// # Errors
    /// If the link has ended, too few clouds answer, or what they give is no capsule.
    pub async fn open(reader: LinkedReader, link: &CapsuleLink) -> Result<Self, CapsuleError> {
        let (mut located, mut hops) = (link.0.clone(), 0);
        loop {
            let bytes = bytes_of(&reader, &located).await?;
            match Payload::decode(&bytes)? {
                Payload::Manifest(manifest) => {
                    return Ok(Self {
                        reader: Arc::new(reader),
                        objects: shared(&manifest.tables),
                        manifest,
                    });
                }
                Payload::Elsewhere(further) if hops < HOPS_MAX => located = further,
                Payload::Elsewhere(_) => {
                    let endless = "its list of names is nowhere";
                    return Err(ManifestError::Contradiction(endless).into());
                }
            }
            hops += 1;
        }
    }

    /// What is in it.
    #[must_use]
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Reads a file, and gives each run of it with its position. What no run covers is zeros.
    ///
    /// # Errors
    /// As [`open`](Self::open), or if the sink fails.
    pub async fn read(
        &self,
        content: &LinkedContent,
        sink: &mut (dyn FnMut(u64, &[u8]) -> std::io::Result<()> + Send),
    ) -> Result<(), CapsuleError> {
        let tables = (&self.manifest.tables, self.objects.as_slice());
        read_content(&self.reader, self.manifest.volume, tables, content, sink).await
    }
}

/// The bytes of a manifest.
async fn bytes_of(reader: &LinkedReader, located: &Located) -> Result<Vec<u8>, CapsuleError> {
    let size = usize::try_from(located.content.size()).unwrap_or(usize::MAX);
    let mut bytes = vec![0; size];
    let mut sink = |at: u64, run: &[u8]| {
        let at = usize::try_from(at).map_err(std::io::Error::other)?;
        let place = bytes.get_mut(at..at.saturating_add(run.len()));
        let place = place.ok_or_else(|| std::io::Error::other("a run beyond the end"))?;
        place.copy_from_slice(run);
        Ok(())
    };
    let objects = shared(&located.tables);
    let tables = (&located.tables, objects.as_slice());
    read_content(reader, located.volume, tables, &located.content, &mut sink).await?;
    Ok(bytes)
}
