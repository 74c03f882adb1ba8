//! Tests whose paths begin with `resume`, so that `cargo test resume` selects them.

#[path = "../common/mod.rs"]
mod common;

mod resume;
