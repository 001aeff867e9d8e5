//! Content that no compressor makes smaller, the same in each run.

/// So many bytes of noise; another seed gives others.
pub(crate) fn noise(seed: &[u8], length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let mut hasher = blake3::Hasher::new();
    hasher.update(seed).finalize_xof().fill(&mut bytes);
    bytes
}
