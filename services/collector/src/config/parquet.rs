//! The table `[collector.parquet]`: raw samples in files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::Size;

/// A file ends after so long, at so many bytes; all of them take no more.
const ROTATE: Duration = Duration::from_secs(3600);
const FILE_BYTES: u64 = 256 << 20;
const BYTES: u64 = 100 << 30;

/// No file is shorter.
const ROTATE_MIN: Duration = Duration::from_secs(1);

/// Where samples go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parquet {
    /// Files are here.
    pub directory: PathBuf,
    /// A file ends after so long.
    pub rotate: Duration,
    /// A file ends at so many bytes.
    pub file_bytes: u64,
    /// The oldest files leave when all take more.
    pub bytes_max: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    directory: PathBuf,
    rotate: Option<Spanned<String>>,
    file_bytes: Option<Size>,
    bytes_max: Option<Size>,
}

impl Table {
    /// What it means; `dir` is where the file is.
    ///
    /// # Errors
    /// With where in the file it is, and a line.
    pub(super) fn lower(self, dir: &Path) -> Result<Parquet, (usize, String)> {
        let rotate = match self.rotate {
            None => ROTATE,
            Some(text) => {
                let at = text.span().start;
                let rotate = penstock_units::parse_duration(text.get_ref())
                    .map_err(|error| (at, format!("rotate: {error}")))?;
                if rotate < ROTATE_MIN {
                    return Err((at, "rotate: at least 1s".to_owned()));
                }
                rotate
            }
        };
        Ok(Parquet {
            directory: dir.join(self.directory),
            rotate,
            file_bytes: self.file_bytes.map_or(FILE_BYTES, |size| size.0),
            bytes_max: self.bytes_max.map_or(BYTES, |size| size.0),
        })
    }
}
