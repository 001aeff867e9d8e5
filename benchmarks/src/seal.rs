//! `quorumfs-bench seal`: how fast a block is sealed and opened on one core, compared with the
//! primitives inside.
//!
//! Sealing a slice is encryption, the erasure code and hashing, and everything around them is
//! overhead; opening one from its data shards is hashing and decryption. Rounds of the whole and of
//! each primitive alone, over the same amount of bytes in the same pieces, take turns on one
//! thread; medians of the thread's processor time are compared. The ceiling is the speed of the
//! primitives alone, one after the other.
//!
//! With `--compression zstd` a block is compressed before it is sealed and expanded after it is
//! opened, but the primitives still process the uncompressed block. `--zeros`, the part of each
//! segment that is zeros and not noise, determines how well it compresses.

use crate::arguments::{CompressionChoice, SealArguments};
use crate::failure::{BenchFailure, BenchResult, failed};
use crate::median::median;
use crate::noise::noise;
use crate::output::Printer;
use crate::processor::thread_seconds;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use quorumfs_bft::identity::ClusterId;
use quorumfs_gateway::blocks::{BlockError, CELL_BYTES, SEGMENT_BYTES, Sealer};
use quorumfs_gateway::keys::{CloudSecret, Secret, SliceKey};
use quorumfs_metadata::identity::{AllocationId, ObjectId, SliceId};
use quorumfs_metadata::placement::Policy;
use reed_solomon_erasure::galois_8::ReedSolomon;
use serde::Serialize;
use std::hint::black_box;

/// Rounds that are not counted.
const WARM_UP: u32 = 20;

/// One line.
#[derive(Debug, Serialize)]
struct SealRecord {
    gib_per_second: f64,
    ceiling_gib_per_second: f64,
    ratio_to_ceiling: f64,
    open_gib_per_second: f64,
    open_ceiling_gib_per_second: f64,
    open_ratio_to_ceiling: f64,
    seal_us: f64,
    open_us: f64,
    encrypt_us: f64,
    code_us: f64,
    hash_us: f64,
    decrypt_us: f64,
    hash_data_us: f64,
    block_bytes: u32,
    policy: [u8; 3],
    rounds: u32,
    compression: CompressionChoice,
    zeros_percent: u8,
    /// Coded and stored bytes of the block, before parity.
    stream_bytes: u32,
}

impl SealRecord {
    fn text(&self) -> String {
        let [n, f, k] = self.policy;
        format!(
            "{} KiB at (n, f, k) = ({n}, {f}, {k}), one core, medians of {} rounds\n  \
             {} % zeros, compression {}: {} KiB of stream\n  \
             AES-256-GCM        {:8.0} µs to seal, {:.0} µs to open\n  \
             Reed–Solomon       {:8.0} µs\n  \
             BLAKE3             {:8.0} µs for all shards, {:.0} µs for the data shards\n  \
             seal               {:8.0} µs   {:.2} GiB/s, {:.2} of the primitives\n  \
             open               {:8.0} µs   {:.2} GiB/s, {:.2} of the primitives",
            self.block_bytes >> 10,
            self.rounds,
            self.zeros_percent,
            match self.compression {
                CompressionChoice::Off => "off",
                CompressionChoice::Zstd => "zstd",
            },
            self.stream_bytes.div_ceil(1 << 10),
            self.encrypt_us,
            self.decrypt_us,
            self.code_us,
            self.hash_us,
            self.hash_data_us,
            self.seal_us,
            self.gib_per_second,
            self.ratio_to_ceiling,
            self.open_us,
            self.open_gib_per_second,
            self.open_ratio_to_ceiling,
        )
    }
}

/// The primitives alone, over buffers of their own.
struct Primitives {
    key: LessSafeKey,
    plain: Vec<u8>,
    tags: Vec<Tag>,
    code: ReedSolomon,
    cells: Vec<Vec<u8>>,
}

fn nonce(index: usize) -> Nonce {
    let mut nonce = [0; 12];
    if let Some(last) = nonce.last_chunk_mut() {
        *last = (index as u64).to_be_bytes();
    }
    Nonce::assume_unique_for_key(nonce)
}

impl Primitives {
    fn new(policy: Policy, plain: &[u8]) -> BenchResult<Self> {
        let key = UnboundKey::new(&AES_256_GCM, &[1; 32]);
        let key = key.map_err(|error| failed("prepare the cipher", &error))?;
        let (data, total) = (usize::from(policy.data()), usize::from(policy.clouds()));
        let rows = plain.len().div_ceil(SEGMENT_BYTES as usize * data);
        let cells = (0..rows * total).map(|i| vec![i as u8; CELL_BYTES as usize]);
        let code = ReedSolomon::new(data, total - data);
        Ok(Self {
            key: LessSafeKey::new(key),
            plain: plain.to_vec(),
            tags: Vec::new(),
            code: code.map_err(|error| failed("prepare the code", &error))?,
            cells: cells.collect(),
        })
    }

    /// Leaves the ciphertext for [`decrypt`](Self::decrypt).
    fn encrypt(&mut self) -> BenchResult {
        self.tags.clear();
        let segments = self.plain.chunks_mut(SEGMENT_BYTES as usize);
        for (index, segment) in segments.enumerate() {
            let aad = Aad::from([7; 59]);
            let tag = self
                .key
                .seal_in_place_separate_tag(nonce(index), aad, segment);
            self.tags
                .push(tag.map_err(|error| failed("encrypt", &error))?);
        }
        Ok(())
    }

    fn decrypt(&mut self, to: &mut [u8]) -> BenchResult {
        let size = SEGMENT_BYTES as usize;
        let segments = self.plain.chunks(size).zip(to.chunks_mut(size));
        for ((index, (from, to)), tag) in segments.enumerate().zip(&self.tags) {
            let aad = Aad::from([7; 59]);
            let opened = self
                .key
                .open_separate_gather(nonce(index), aad, from, tag.as_ref(), to);
            opened.map_err(|error| failed("decrypt", &error))?;
        }
        Ok(())
    }

    fn encode(&mut self) -> BenchResult {
        for row in self.cells.chunks_mut(self.code.total_shard_count()) {
            let coded = self.code.encode(row);
            coded.map_err(|error| failed("compute parity", &error))?;
        }
        Ok(())
    }

    fn hash(&self, of_each_row: usize) {
        for row in self.cells.chunks(self.code.total_shard_count()) {
            for cell in row.iter().take(of_each_row) {
                black_box(blake3::hash(cell));
            }
        }
    }
}

fn time<T>(work: impl FnOnce() -> BenchResult<T>) -> BenchResult<(T, f64)> {
    let begin = thread_seconds();
    let done = work()?;
    Ok((done, thread_seconds() - begin))
}

/// Runs the command.
pub(crate) fn run(arguments: &SealArguments, output: Printer) -> BenchResult {
    let [n, f, k] = arguments.code.policy.0;
    let policy = Policy::new(n, f, k, n);
    let policy = policy.map_err(|error| BenchFailure::usage(error.to_string()))?;
    let record = measure(policy, arguments)?;
    output.record("seal", &record, SealRecord::text)?;
    Ok(())
}

/// Noise, with zeros at the front of each segment.
fn block(bytes: u32, zeros_percent: u8) -> Vec<u8> {
    let mut plain = noise(&[], bytes as usize);
    for segment in plain.chunks_mut(SEGMENT_BYTES as usize) {
        let zeros = segment.len() * usize::from(zeros_percent) / 100;
        segment.iter_mut().take(zeros).for_each(|byte| *byte = 0);
    }
    plain
}

fn measure(policy: Policy, arguments: &SealArguments) -> BenchResult<SealRecord> {
    let (block_bytes, rounds) = (arguments.block_kib << 10, arguments.rounds);
    let secrets: Vec<CloudSecret> = (0..policy.clouds())
        .map(|i| CloudSecret::from_secret(Secret::from_bytes([i; 32])))
        .collect();
    let broken = |error: &BlockError| failed("seal or open a block", error);
    let sealer = Sealer::new(ClusterId([1; 16]), policy, &secrets);
    let sealer = sealer.map_err(|error| broken(&error))?;
    let sealer = sealer.compressing(arguments.compression.into());
    let key = SliceKey::from_secret(Secret::from_bytes([9; 32]));
    let plain = block(block_bytes, arguments.zeros);
    let mut primitives = Primitives::new(policy, &plain)?;
    let mut spare = vec![0; plain.len()];
    let (data, total) = (usize::from(policy.data()), usize::from(policy.clouds()));

    let mut times: [Vec<f64>; 7] = Default::default();
    let mut stream_bytes = 0;
    for round in 0..rounds.saturating_add(WARM_UP) {
        let allocation = AllocationId(1);
        let (object, slice) = (
            ObjectId {
                allocation,
                counter: round,
            },
            SliceId {
                allocation,
                counter: round,
            },
        );
        let ((slice, shards), seal) = time(|| {
            let sealed = sealer.seal_slice(object, slice, &key, &plain);
            Ok(black_box(sealed.map_err(|error| broken(&error))?))
        })?;
        let (opened, open) = time(|| {
            let opened = sealer.open_slice(&slice, &key, &shards);
            opened.map_err(|error| broken(&error))
        })?;
        stream_bytes = slice.sealed_length;
        if opened != plain {
            let message = "the opened block differs from the sealed one";
            return Err(BenchFailure::new(message));
        }
        let ((), encrypt) = time(|| primitives.encrypt())?;
        let ((), code) = time(|| primitives.encode())?;
        let ((), hash) = time(|| {
            primitives.hash(total);
            Ok(())
        })?;
        let ((), decrypt) = time(|| primitives.decrypt(&mut spare))?;
        primitives.plain.copy_from_slice(&spare);
        let ((), hash_data) = time(|| {
            primitives.hash(data);
            Ok(())
        })?;
        if round >= WARM_UP {
            let taken = [seal, open, encrypt, code, hash, decrypt, hash_data];
            for (all, one) in times.iter_mut().zip(taken) {
                all.push(one);
            }
        }
    }
    let [seal, open, encrypt, code, hash, decrypt, hash_data] =
        times.map(|mut all| median(&mut all));
    let (seal_parts, open_parts) = (encrypt + code + hash, decrypt + hash_data);
    let gib = f64::from(block_bytes) / f64::from(1 << 30);
    Ok(SealRecord {
        gib_per_second: gib / seal,
        ceiling_gib_per_second: gib / seal_parts,
        ratio_to_ceiling: seal_parts / seal,
        open_gib_per_second: gib / open,
        open_ceiling_gib_per_second: gib / open_parts,
        open_ratio_to_ceiling: open_parts / open,
        seal_us: seal * 1e6,
        open_us: open * 1e6,
        encrypt_us: encrypt * 1e6,
        code_us: code * 1e6,
        hash_us: hash * 1e6,
        decrypt_us: decrypt * 1e6,
        hash_data_us: hash_data * 1e6,
        block_bytes,
        policy: [policy.clouds(), policy.faulty(), policy.data()],
        rounds,
        compression: arguments.compression,
        zeros_percent: arguments.zeros,
        stream_bytes,
    })
}
