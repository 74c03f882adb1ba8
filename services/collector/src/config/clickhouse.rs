//! The table `[collector.clickhouse]`: a database shared by several collectors.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_http::Url;
use serde::Deserialize;
use toml::Spanned;

use super::{Size, TableValueError, TableValueFault};

/// Default limit of the spool in bytes.
const SPOOL_BYTES_DEFAULT: u64 = 1 << 30;

/// Default and highest count of rows in a batch: one insertion is one block of the server then.
const BATCH_ROWS_DEFAULT: u64 = 50_000;
pub(super) const BATCH_ROWS_MAX: u64 = 500_000;

/// Default and longest time to collect minutes into a batch. Longer ones would outlast the figures
/// in memory.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(1);
const INTERVAL_MAX: Duration = Duration::from_secs(300);

/// A password that no log shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Returns the password for authentication.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// Connection to ClickHouse, and the spool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClickHouse {
    /// URL of its HTTP interface.
    pub url: Url,
    /// Name of the database with the tables.
    pub database: String,
    /// Name of this collector, unique in the database.
    pub name: String,
    /// User of the database.
    pub user: String,
    /// Password of the user.
    pub password: Option<Secret>,
    /// Most rows in a batch.
    pub batch_rows: u64,
    /// Time to collect minutes into a batch.
    pub interval: Duration,
    /// Directory of waiting batches; default: a directory of the state directory.
    pub spool: Option<PathBuf>,
    /// Most bytes of waiting batches.
    pub spool_bytes_max: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClickHouseTable {
    url: Url,
    database: Option<Spanned<String>>,
    name: Option<String>,
    user: Option<String>,
    password_file: Option<Spanned<PathBuf>>,
    batch_rows: Option<Spanned<u64>>,
    interval: Option<Spanned<String>>,
    spool: Option<PathBuf>,
    spool_bytes_max: Option<Size>,
}

impl ClickHouseTable {
    /// Validates the table; `dir` is the directory of the configuration file.
    ///
    /// # Errors
    /// With the offset in the file.
    pub(super) fn lower(self, dir: &Path) -> Result<ClickHouse, TableValueError> {
        let database = match self.database {
            None => "penstock".to_owned(),
            Some(name) => {
                let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let (at, name) = (name.span().start, name.into_inner());
                if name.is_empty() || !name.chars().all(word) {
                    return Err(TableValueFault::DatabaseName(name).at(at));
                }
                name
            }
        };
        let password = match self.password_file {
            None => None,
            Some(path) => {
                let (at, path) = (path.span().start, dir.join(path.into_inner()));
                let text = std::fs::read_to_string(&path).map_err(|error| {
                    TableValueFault::PasswordFile { path: path.clone(), error }.at(at)
                })?;
                Some(Secret(text.trim_end_matches(['\r', '\n']).to_owned()))
            }
        };
        let batch_rows = match self.batch_rows {
            None => BATCH_ROWS_DEFAULT,
            Some(rows) if (1..=BATCH_ROWS_MAX).contains(rows.get_ref()) => rows.into_inner(),
            Some(rows) => {
                return Err(TableValueFault::BatchRows.at(rows.span().start));
            }
        };
        let interval = match self.interval {
            None => INTERVAL_DEFAULT,
            Some(text) => {
                let at = text.span().start;
                let interval = penstock_units::parse_duration(text.get_ref())
                    .map_err(|error| TableValueFault::Interval(error).at(at))?;
                if interval > INTERVAL_MAX {
                    return Err(TableValueFault::IntervalLong.at(at));
                }
                interval
            }
        };
        Ok(ClickHouse {
            url: self.url,
            database,
            name: self.name.unwrap_or_else(host_name),
            user: self.user.unwrap_or_else(|| "default".to_owned()),
            password,
            batch_rows,
            interval,
            spool: self.spool.map(|spool| dir.join(spool)),
            spool_bytes_max: self.spool_bytes_max.map_or(SPOOL_BYTES_DEFAULT, |size| size.0),
        })
    }
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "collector".to_owned() } else { name.to_owned() }
}
