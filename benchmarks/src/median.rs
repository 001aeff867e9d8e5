//! The middle of several measurements, which one slow moment of the machine does not move.

/// The median, of an even number the upper one; of none zero.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
