//! Objects that `--json` prints, one type each.
//!
//! The names of their fields, with units and meanings, are [docs/json.md](../../../docs/json.md): `reference` writes
//! that page from these types.

use std::io::{self, Write};

use serde::Serialize;

pub(crate) mod copy;
pub(crate) mod disk;
pub(crate) mod experiment;
pub(crate) mod fabric;
pub(crate) mod host;
pub(crate) mod lab;
pub(crate) mod nettest;
pub(crate) mod node;
pub(crate) mod plan;
pub(crate) mod reference;
pub(crate) mod rehearsal;
pub(crate) mod sample;
pub(crate) mod tag;
pub(crate) mod token;
pub(crate) mod topology;
pub(crate) mod tune;

/// Writes an object as one line to standard output.
///
/// # Errors
/// When standard output takes no more.
pub(crate) fn print(object: &impl Serialize) -> io::Result<()> {
    let line = serde_json::to_string(object)?;
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
