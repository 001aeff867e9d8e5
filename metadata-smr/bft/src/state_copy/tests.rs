//! Tests of a state copy.
