//! The erasure code: Reed–Solomon over GF(2⁸), any k of n.
//!
//! The matrix is a Vandermonde matrix made systematic (Plank's tutorial, as corrected in 2003). It
//! follows from n and k alone and is pinned by the fixtures of whole objects. The library's fast
//! path is C compiled for the x86-64-v3 instruction set, so that set is the minimum and is checked
//! at start.

use super::error::BlockError;
use quorumfs_metadata::placement::Policy;
use reed_solomon_erasure::galois_8::ReedSolomon;
use std::fmt;

/// One policy's code.
pub(in crate::blocks) struct Code {
    data: usize,
    total: usize,
    /// `None` without parity: a single cloud, whose loss is not survived.
    matrix: Option<ReedSolomon>,
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Code({} of {})", self.data, self.total)
    }
}

/// Checks that this processor runs the instruction set of the erasure code.
///
/// # Errors
/// If it lacks a required instruction set.
pub fn check_processor() -> Result<(), BlockError> {
    #[cfg(target_arch = "x86_64")]
    {
        for (missing, feature) in [
            (!std::arch::is_x86_feature_detected!("avx2"), "AVX2"),
            (!std::arch::is_x86_feature_detected!("bmi2"), "BMI2"),
            (!std::arch::is_x86_feature_detected!("fma"), "FMA"),
        ] {
            if missing {
                return Err(BlockError::Processor { feature });
            }
        }
    }
    Ok(())
}

impl Code {
    pub(in crate::blocks) fn new(policy: Policy) -> Result<Self, BlockError> {
        let (data, total) = (usize::from(policy.data()), usize::from(policy.clouds()));
        let matrix = match total.saturating_sub(data) {
            0 => None,
            parity => Some(
                ReedSolomon::new(data, parity).map_err(|error| BlockError::Code {
                    doing: "prepare",
                    error,
                })?,
            ),
        };
        Ok(Self {
            data,
            total,
            matrix,
        })
    }

    /// Computes parity from data; all slices have the same length.
    pub(in crate::blocks) fn encode(
        &self,
        data: &[&[u8]],
        parity: &mut [&mut [u8]],
    ) -> Result<(), BlockError> {
        match &self.matrix {
            None => Ok(()),
            Some(matrix) => matrix
                .encode_sep(data, parity)
                .map_err(|error| BlockError::Code {
                    doing: "encode",
                    error,
                }),
        }
    }

    /// Fills in the missing ones of all n shards, given any k of one length.
    pub(in crate::blocks) fn rebuild(
        &self,
        shards: &mut [Option<Vec<u8>>],
    ) -> Result<(), BlockError> {
        match &self.matrix {
            None => Ok(()),
            Some(matrix) => matrix
                .reconstruct(shards)
                .map_err(|error| BlockError::Code {
                    doing: "rebuild",
                    error,
                }),
        }
    }
}
