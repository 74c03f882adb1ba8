//! Tests whose paths begin with `scitags`, so that `cargo test scitags` selects them.

#[path = "../common/mod.rs"]
mod common;

mod scitags;
