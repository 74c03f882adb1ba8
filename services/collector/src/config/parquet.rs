//! The table `[collector.parquet]`: raw samples in files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use super::{Size, TableValueError, TableValueFault};

/// Default age and size that end a file, and limit of all files.
const ROTATE_DEFAULT: Duration = Duration::from_secs(3600);
const FILE_BYTES_DEFAULT: u64 = 256 << 20;
const BYTES_DEFAULT: u64 = 100 << 30;

/// Shortest allowed age of a file.
const ROTATE_MIN: Duration = Duration::from_secs(1);

/// Parquet archive of raw samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parquet {
    /// Directory of the files.
    pub directory: PathBuf,
    /// Age that ends a file.
    pub rotate: Duration,
    /// Size that ends a file, in bytes.
    pub file_bytes: u64,
    /// Most bytes of all files; the oldest are removed first.
    pub bytes_max: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ParquetTable {
    directory: PathBuf,
    rotate: Option<Spanned<String>>,
    file_bytes: Option<Size>,
    bytes_max: Option<Size>,
}

impl ParquetTable {
    /// Validates the table; `dir` is the directory of the configuration file.
    ///
    /// # Errors
    /// With the offset in the file.
    pub(super) fn lower(self, dir: &Path) -> Result<Parquet, TableValueError> {
        let rotate = match self.rotate {
            None => ROTATE_DEFAULT,
            Some(text) => {
                let at = text.span().start;
                let rotate = penstock_units::parse_duration(text.get_ref())
                    .map_err(|error| TableValueFault::Rotate(error).at(at))?;
                if rotate < ROTATE_MIN {
                    return Err(TableValueFault::RotateShort.at(at));
                }
                rotate
            }
        };
        Ok(Parquet {
            directory: dir.join(self.directory),
            rotate,
            file_bytes: self.file_bytes.map_or(FILE_BYTES_DEFAULT, |size| size.0),
            bytes_max: self.bytes_max.map_or(BYTES_DEFAULT, |size| size.0),
        })
    }
}
