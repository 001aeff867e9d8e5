//! The quorumfs binary.
fn main() {}
