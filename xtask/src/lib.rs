//! Implementation of `cargo xtask VERB`, as a library so that tests can call it.
//!
//! Not part of the product: nothing under `core/`, `system/`, `services/` or `penstock/` depends on it.
//! Every function that fails returns a chain of reasons; the binary prints it and exits with 1.

#![forbid(unsafe_code)]

pub mod bench;
pub mod bpf;
mod cargo_build;
pub mod fuzz;
pub mod image;
pub mod kernels;
pub mod kubernetes;
pub mod package;
mod program;
pub mod sbom;
pub mod simulate;
pub mod static_build;
pub mod suite;
pub mod tidy;

use std::path::{Path, PathBuf};

/// The root of the checkout this program was built from.
pub fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies one folder under the root")
        .to_path_buf()
}
