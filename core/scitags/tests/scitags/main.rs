//! Tests whose paths begin with `scitags`, so that `cargo test scitag` selects them.

#[path = "vectors.rs"]
mod scitags;
