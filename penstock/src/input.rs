//! Input files, where `-` is standard input.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Reads `file`, at most `most` + 1 bytes.
///
/// # Errors
/// When the file cannot be opened or read.
pub(crate) fn read(file: &Path, most: usize) -> io::Result<Vec<u8>> {
    let limit = most as u64 + 1;
    let mut bytes = Vec::new();
    if file == Path::new("-") {
        io::stdin().take(limit).read_to_end(&mut bytes)?;
    } else {
        File::open(file)?.take(limit).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}
