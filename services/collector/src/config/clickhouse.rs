//! The table `[collector.clickhouse]`: a database that several collectors share.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_http::fetch::Url;
use serde::Deserialize;
use toml::Spanned;

use super::Size;

/// Most bytes that wait where nothing is said.
const SPOOL_BYTES: u64 = 1 << 30;

/// Rows of a batch where nothing is said, and at most: one insertion is one block of the server's then.
const BATCH_ROWS: u64 = 50_000;
const BATCH_ROWS_MAX: u64 = 500_000;

/// How long minutes wait to be sent together. Longer ones would leave the time that is kept in memory.
const INTERVAL: Duration = Duration::from_secs(1);
const INTERVAL_MAX: Duration = Duration::from_secs(300);

/// A password that no log shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// For the one who asks for it.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// Where minutes go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClickHouse {
    /// Its HTTP interface.
    pub url: Url,
    /// The database with the tables.
    pub database: String,
    /// Who this collector is: no other of the database has the same name.
    pub name: String,
    /// Who it is to the server.
    pub user: String,
    /// With this password.
    pub password: Option<Secret>,
    /// Most rows that are sent together.
    pub batch_rows: u64,
    /// How long minutes wait to be sent together.
    pub interval: Duration,
    /// Where batches wait; a directory of the state directory if not given.
    pub spool: Option<PathBuf>,
    /// Most bytes that wait.
    pub spool_bytes_max: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
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

impl Table {
    /// What it means; `dir` is where the file is.
    ///
    /// # Errors
    /// With where in the file it is, and a line.
    pub(super) fn lower(self, dir: &Path) -> Result<ClickHouse, (usize, String)> {
        let database = match self.database {
            None => "penstock".to_owned(),
            Some(name) => {
                let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let (at, name) = (name.span().start, name.into_inner());
                if name.is_empty() || !name.chars().all(word) {
                    return Err((at, format!("database '{name}': write letters, digits and _")));
                }
                name
            }
        };
        let password = match self.password_file {
            None => None,
            Some(path) => {
                let (at, path) = (path.span().start, dir.join(path.into_inner()));
                let text = std::fs::read_to_string(&path)
                    .map_err(|error| (at, format!("password_file {}: {error}", path.display())))?;
                Some(Secret(text.trim_end_matches(['\r', '\n']).to_owned()))
            }
        };
        let batch_rows = match self.batch_rows {
            None => BATCH_ROWS,
            Some(rows) if (1..=BATCH_ROWS_MAX).contains(rows.get_ref()) => rows.into_inner(),
            Some(rows) => {
                return Err((rows.span().start, format!("batch_rows: 1 to {BATCH_ROWS_MAX}")));
            }
        };
        let interval = match self.interval {
            None => INTERVAL,
            Some(text) => {
                let at = text.span().start;
                let interval = penstock_units::parse_duration(text.get_ref())
                    .map_err(|error| (at, format!("interval: {error}")))?;
                if interval > INTERVAL_MAX {
                    return Err((
                        at,
                        "interval: at most 5m, or figures of the last minutes are in neither place"
                            .to_owned(),
                    ));
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
            spool_bytes_max: self.spool_bytes_max.map_or(SPOOL_BYTES, |size| size.0),
        })
    }
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "collector".to_owned() } else { name.to_owned() }
}
