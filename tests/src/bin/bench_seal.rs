//! `bench_seal`: how fast a block is sealed on one core, beside the time of what sealing is made
//! of.
//!
//! Sealing a slice is encryption, the erasure code and hashing, and everything around them is
//! overhead. Rounds of the whole and of each primitive alone, over the same amount of bytes in the
//! same cut, take turns on one thread; medians of the thread's processor time are compared. The
//! budget is at least 0.85 of the primitives' time sum and at least 1.2 GiB/s for 4 MiB at (n, f,
//! k) = (4, 1, 2).
//!
//! `cargo run --release -p quorumfs-tests --bin bench_seal -- [--rounds N] [--json]`

use anyhow::{Context, Result, anyhow};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use clap::Parser;
use quorumfs_bft::identity::ClusterId;
use quorumfs_gateway::blocks::{CELL_BYTES, SEGMENT_BYTES, Sealer};
use quorumfs_gateway::keys::{CloudSecret, Secret, SliceKey};
use quorumfs_metadata::identity::{AllocationId, ObjectId, SliceId};
use quorumfs_metadata::placement::Policy;
use reed_solomon_erasure::galois_8::ReedSolomon;
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::time::Duration;

/// Bytes of one block.
const BLOCK_BYTES: usize = 4 << 20;

#[derive(Parser)]
#[command(about = "Seals blocks on one core and compares with the primitives")]
struct Arguments {
    /// Rounds; the medians count.
    #[arg(long, default_value_t = 400)]
    rounds: u32,
    /// One line of JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// The primitives alone, over buffers of their own.
struct Primitives {
    key: LessSafeKey,
    plain: Vec<u8>,
    code: ReedSolomon,
    cells: Vec<Vec<u8>>,
}

impl Primitives {
    fn new(policy: Policy, plain: &[u8]) -> Result<Self> {
        let key = UnboundKey::new(&AES_256_GCM, &[1; 32]).map_err(|_| anyhow!("no cipher"))?;
        let rows = BLOCK_BYTES / SEGMENT_BYTES as usize / usize::from(policy.data());
        let (data, total) = (usize::from(policy.data()), usize::from(policy.clouds()));
        let cells = (0..rows * total)
            .map(|i| vec![i as u8; CELL_BYTES as usize])
            .collect();
        Ok(Self {
            key: LessSafeKey::new(key),
            plain: plain.to_vec(),
            code: ReedSolomon::new(data, total - data).map_err(|e| anyhow!("no code: {e}"))?,
            cells,
        })
    }

    fn encrypt(&mut self) -> Result<()> {
        for (index, segment) in (0u32..).zip(self.plain.chunks_mut(SEGMENT_BYTES as usize)) {
            let mut nonce = [0; 12];
            nonce[8..].copy_from_slice(&index.to_be_bytes());
            let nonce = Nonce::assume_unique_for_key(nonce);
            let tag = self
                .key
                .seal_in_place_separate_tag(nonce, Aad::from([7; 59]), segment);
            let _ = black_box(tag.map_err(|_| anyhow!("the cipher failed"))?);
        }
        Ok(())
    }

    fn encode(&mut self) -> Result<()> {
        let total = self.code.total_shard_count();
        for row in self.cells.chunks_mut(total) {
            self.code
                .encode(row)
                .map_err(|e| anyhow!("the code failed: {e}"))?;
        }
        Ok(())
    }

    fn hash(&self) {
        for cell in &self.cells {
            black_box(blake3::hash(cell));
        }
    }
}

/// What this thread has used of a core: other load on the machine does not count.
fn processor_time() -> Result<Duration> {
    Ok(Duration::try_from(clock_gettime(ClockId::ThreadCPUTime))?)
}

fn time(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let begin = processor_time()?;
    work()?;
    Ok(processor_time()?.saturating_sub(begin))
}

fn median(times: &mut [Duration]) -> Result<f64> {
    times.sort_unstable();
    Ok(times
        .get(times.len() / 2)
        .context("no rounds")?
        .as_secs_f64())
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let policy = Policy::new(4, 1, 2, 4)?;
    let secrets: Vec<CloudSecret> = (0..4)
        .map(|i| CloudSecret::from_secret(Secret::from_bytes([i; 32])))
        .collect();
    let sealer = Sealer::new(ClusterId([1; 16]), policy, &secrets)?;
    let key = SliceKey::from_secret(Secret::from_bytes([9; 32]));
    let mut plain = vec![0; BLOCK_BYTES];
    blake3::Hasher::new().finalize_xof().fill(&mut plain);
    let mut primitives = Primitives::new(policy, &plain)?;

    let mut times: [Vec<Duration>; 4] = Default::default();
    for round in 0..arguments.rounds + 20 {
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
        let taken = [
            time(|| {
                black_box(sealer.seal(object, slice, &key, &plain)?);
                Ok(())
            })?,
            time(|| primitives.encrypt())?,
            time(|| primitives.encode())?,
            time(|| {
                primitives.hash();
                Ok(())
            })?,
        ];
        if round >= 20 {
            for (all, one) in times.iter_mut().zip(taken) {
                all.push(one);
            }
        }
    }
    let [whole, aead, code, hash] = &mut times;
    let (whole, aead, code, hash) = (median(whole)?, median(aead)?, median(code)?, median(hash)?);
    let (sum, gib) = (aead + code + hash, BLOCK_BYTES as f64 / f64::from(1 << 30));
    let (ratio, rate) = (sum / whole, gib / whole);
    if arguments.json {
        let line = serde_json::json!({
            "benchmark": "seal", "block_bytes": BLOCK_BYTES, "policy": [4, 1, 2],
            "rounds": arguments.rounds, "seal_us": whole * 1e6, "aead_us": aead * 1e6,
            "code_us": code * 1e6, "hash_us": hash * 1e6, "ratio": ratio, "gib_per_second": rate,
            "within_budget": ratio >= 0.85 && rate >= 1.2,
        });
        println!("{line}");
        return Ok(());
    }
    println!(
        "4 MiB at (n, f, k) = (4, 1, 2), one core, medians of {} rounds",
        arguments.rounds
    );
    println!("  AES-256-GCM      {:8.0} µs", aead * 1e6);
    println!("  Reed–Solomon     {:8.0} µs", code * 1e6);
    println!("  BLAKE3           {:8.0} µs", hash * 1e6);
    println!("  sum              {:8.0} µs", sum * 1e6);
    println!(
        "  seal             {:8.0} µs   {rate:.2} GiB/s",
        whole * 1e6
    );
    println!("  ratio            {ratio:8.2}      budget: ≥ 0.85 and ≥ 1.2 GiB/s");
    Ok(())
}
