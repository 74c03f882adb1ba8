//! Client of ClickHouse's HTTP interface.
//!
//! Statements are compatible with ClickHouse 18.16.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::{HeaderName, HeaderValue, Method};
use penstock_http::{HttpClient, HttpError, HttpRequest, HttpResponse, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::spool::SpooledBatch;
use super::wire::{self, Covered};
use crate::config::ClickHouse as Config;
use crate::query::Query;
use crate::row::{RowDirection, RowKind, SumCell, SumRow};
use crate::store::Tier;

/// Shipped statements that create the tables.
const SCHEMA: &str = include_str!("../../../../deploy/clickhouse/schema.sql");
const RETENTION: &str = include_str!("../../../../deploy/clickhouse/retention.sql");

/// Longest answer to a query, in bytes.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Headers that carry user and password.
const USER_HEADER: HeaderName = HeaderName::from_static("x-clickhouse-user");
const KEY_HEADER: HeaderName = HeaderName::from_static("x-clickhouse-key");

/// Longest part of a server's error that is reported.
const EXCERPT_CHARS: usize = 300;

/// ClickHouse's exception codes for a refused user or password.
const REFUSED: [&str; 4] = ["192", "193", "194", "516"];

/// A failed statement. The caller names the server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClickHouseError {
    /// No response.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The server refuses user or password.
    #[error(
        "user or password is refused: see user and password_file in [collector.clickhouse] ({server_message})"
    )]
    Credentials {
        /// First line of the server's message.
        server_message: String,
    },
    /// The statement failed.
    #[error("{server_message}")]
    Statement {
        /// First line of the server's message.
        server_message: String,
    },
    /// A status of failure without a message.
    #[error("it answers {0}")]
    Status(u16),
    /// A line of the answer cannot be parsed.
    #[error("{line}")]
    Answer {
        /// Start of the line.
        line: String,
    },
    /// The tables cannot be created.
    #[error("{0}: run deploy/clickhouse/schema.sql as a user who may create tables")]
    Schema(Box<Self>),
    /// No statement has been answered since the start.
    #[error("ClickHouse at {url} has not answered yet")]
    NotReached {
        /// URL of the server.
        url: Url,
    },
    /// No statement has succeeded since the start.
    #[error("{last_failure}")]
    NeverSucceeded {
        /// Line about the last failure, as in the log.
        last_failure: String,
    },
    /// A query of stored sums failed.
    #[error("ClickHouse at {url}: {source}")]
    Query {
        /// URL of the server.
        url: Url,
        /// Failure.
        source: Box<Self>,
    },
}

impl ClickHouseError {
    pub(super) fn answer(line: &[u8]) -> Self {
        Self::Answer { line: excerpt(&String::from_utf8_lossy(line)) }
    }
}

/// A client of one server.
#[derive(Debug, Clone)]
pub(super) struct ClickHouseClient {
    config: Arc<Config>,
}

#[derive(Debug, Deserialize)]
struct NumberRow {
    number: i64,
}

impl ClickHouseClient {
    pub(super) fn new(config: Arc<Config>) -> Self {
        Self { config }
    }

    /// Runs a statement, followed by `data`.
    async fn run(&self, statement: String, data: &[u8]) -> Result<Bytes, ClickHouseError> {
        let mut body = statement.into_bytes();
        body.push(b'\n');
        body.extend_from_slice(data);
        let request = HttpRequest::new(Method::POST, "").body(body).bytes_max(ANSWER_BYTES_MAX);
        let value = |text: &str| {
            HeaderValue::from_str(text).map_err(|error| HttpError::Request(error.into()))
        };
        let mut request = request.header(USER_HEADER, value(&self.config.user)?);
        if let Some(password) = &self.config.password {
            request = request.header(KEY_HEADER, value(password.reveal())?);
        }
        // A connection for each statement: queries run beside inserts.
        let reply = HttpClient::new(self.config.url.clone()).send(request).await?;
        if reply.status.is_success() { Ok(reply.body) } else { Err(refusal(&reply)) }
    }

    async fn query<T: DeserializeOwned>(
        &self,
        statement: String,
    ) -> Result<Vec<T>, ClickHouseError> {
        let text = self.run(format!("{statement} FORMAT JSONEachRow"), b"").await?;
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let read = |line| serde_json::from_slice(line).map_err(|_| ClickHouseError::answer(line));
        lines.map(read).collect()
    }

    async fn number(&self, expression: &str, rest: &str) -> Result<i64, ClickHouseError> {
        // Some versions quote 64-bit numbers.
        let statement = format!("SELECT toInt32({expression}) AS number FROM {rest}");
        let found: Vec<NumberRow> = self.query(statement).await?;
        Ok(found.first().map_or(0, |found| found.number))
    }

    fn database(&self) -> &str {
        &self.config.database
    }

    /// Creates missing tables. A collector needs no right to do so if all exist.
    pub(super) async fn prepare(&self) -> Result<(), ClickHouseError> {
        let missing = format!(
            "system.tables WHERE database = '{}' AND name IN ('minute', 'hour', 'minute_to_hour')",
            self.database()
        );
        if self.number("count()", &missing).await? == 3 {
            return Ok(());
        }
        for statement in statements(SCHEMA) {
            let made = self.run(statement.replace("{database}", self.database()), b"").await;
            made.map_err(|error| ClickHouseError::Schema(Box::new(error)))?;
        }
        for statement in statements(RETENTION) {
            let kept = self.run(statement.replace("{database}", self.database()), b"").await;
            if let Err(error) = kept {
                tracing::warn!(
                    "ClickHouse keeps its rows for ever: {error}: see deploy/clickhouse/README.md"
                );
                break;
            }
        }
        Ok(())
    }

    /// Start of the newest minute stored by any collector.
    pub(super) async fn newest(&self) -> Result<Option<i64>, ClickHouseError> {
        let rest = format!("{}.minute WHERE kind = 'covered'", self.database());
        let newest = self.number("toUInt32(max(start))", &rest).await?;
        Ok(Some(newest).filter(|newest| *newest > 0))
    }

    /// Inserts a batch, unless an earlier attempt succeeded.
    pub(super) async fn insert(
        &self,
        batch: &SpooledBatch,
        lines: &[u8],
    ) -> Result<(), ClickHouseError> {
        if batch.tried && self.is_there(batch).await? {
            return self.reconcile_hours(batch).await;
        }
        // The lines of a batch are of one partition and fit a block: the insert is atomic.
        let statement = format!("INSERT INTO {}.minute FORMAT JSONEachRow", self.database());
        self.run(statement, lines).await.map(|_| ())
    }

    fn own(&self, table: &str, from_s: i64, to_s: i64) -> String {
        format!(
            "{}.{table} WHERE collector = '{}' AND start >= toDateTime({from_s}) AND start <= toDateTime({to_s})",
            self.database(),
            quoted(&self.config.name)
        )
    }

    async fn is_there(&self, batch: &SpooledBatch) -> Result<bool, ClickHouseError> {
        let own = self.own("minute", batch.from_s, batch.to_s);
        Ok(self.number("count()", &format!("{own} AND batch = {}", batch.number)).await? > 0)
    }

    /// A server that was killed may have stored minutes without adding them to their hours: the
    /// view is updated after the table. The hours count their rows, which detects that.
    async fn reconcile_hours(&self, batch: &SpooledBatch) -> Result<(), ClickHouseError> {
        let hour = |at_s: i64| at_s.div_euclid(3600) * 3600;
        let (from_s, to_s) = (hour(batch.from_s), hour(batch.to_s));
        let minutes = self.own("minute", from_s, to_s + 3599);
        let minutes = self.number("count()", &minutes).await?;
        let hours = self.number("sum(minute_rows)", &self.own("hour", from_s, to_s)).await?;
        if minutes - hours < i64::try_from(batch.rows).unwrap_or(i64::MAX) {
            return Ok(());
        }
        let view = statements(SCHEMA).into_iter().find(|text| text.contains("minute_to_hour"));
        let view = view.and_then(|text| Some(text[text.find("SELECT")?..].to_owned()));
        let select = view.unwrap_or_default().replace("{database}", self.database());
        let again = format!(
            "INSERT INTO {}.hour ({}) {select} WHERE batch = {} AND collector = '{}'",
            self.database(),
            HOUR_COLUMNS,
            batch.number,
            quoted(&self.config.name)
        );
        self.run(again, b"").await.map(|_| ())
    }

    /// Reads sums of `tier` from `from_s` until `to_s`, in buckets of `step_s` from `start_s`.
    ///
    /// An exporter received by several collectors counts once in each minute (or hour): from the
    /// collector with the largest sum.
    pub(super) async fn read(
        &self,
        tier: Tier,
        kind: RowKind,
        query: &Query,
        range: (i64, i64),
        buckets: (i64, i64),
    ) -> Result<Vec<(i64, Arc<SumRow>, SumCell)>, ClickHouseError> {
        let columns = wire::columns(kind, query).join(", ");
        let table = format!("{}.{}", self.database(), tier.table());
        let mut rows = within(wire::word(kind), range);
        if kind == RowKind::Host {
            let sent = query.direction != Some(RowDirection::In);
            rows.push_str(&format!(" AND sent = {}", u8::from(sent)));
        }
        let statement = format!(
            "SELECT {}, {columns}, sum(bytes) AS sum_bytes, sum(error_squared) AS sum_errors, sum(seconds) AS sum_seconds
             FROM {table} WHERE {rows} AND (start, exporter, collector) IN
                (SELECT start, exporter, argMax(collector, received) FROM
                    (SELECT start, exporter, collector, sum(bytes) AS received FROM {table} WHERE {rows}
                     GROUP BY start, exporter, collector)
                 GROUP BY start, exporter)
             GROUP BY bucket, {columns} FORMAT JSONEachRow",
            bucket(buckets)
        );
        wire::read(kind, &self.run(statement, b"").await?)
    }

    /// Measured seconds by bucket: of a minute, by the collector that measured most of it.
    pub(super) async fn covered(
        &self,
        tier: Tier,
        range: (i64, i64),
        buckets: (i64, i64),
    ) -> Result<Vec<(i64, f64)>, ClickHouseError> {
        let statement = format!(
            "SELECT {}, sum(most) AS sum_seconds FROM
                (SELECT start, max(each) AS most FROM
                    (SELECT start, collector, sum(seconds) AS each FROM {}.{} WHERE {} GROUP BY start, collector)
                 GROUP BY start)
             GROUP BY bucket",
            bucket(buckets),
            self.database(),
            tier.table(),
            within("covered", range)
        );
        let found: Vec<Covered> = self.query(statement).await?;
        Ok(found.into_iter().map(|covered| (covered.bucket, covered.sum_seconds)).collect())
    }
}

/// Columns of the view, in its order.
const HOUR_COLUMNS: &str = "start, collector, kind, exporter, host, direction, label, owner, activity, input, output, vlan, \
     ip_version, source_site, destination_site, address, prefix, sent, source_as, destination_as, interface, bytes, \
     error_squared, seconds, minute_rows";

fn bucket((start_s, step_s): (i64, i64)) -> String {
    format!("toInt32(intDiv(toInt64(toUInt32(start)) - {start_s}, {step_s})) AS bucket")
}

fn within(kind: &str, (from_s, to_s): (i64, i64)) -> String {
    let (from_s, to_s) = (from_s.max(0), to_s.max(0));
    format!("kind = '{kind}' AND start >= toDateTime({from_s}) AND start < toDateTime({to_s})")
}

/// Splits a file into statements, without comments.
fn statements(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("--"));
    let text = lines.collect::<Vec<_>>().join("\n");
    text.split(';').map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()).collect()
}

fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\'', "\\'")
}

/// First line of a server's message, without control characters.
pub(super) fn excerpt(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    line.chars().take(EXCERPT_CHARS).map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn refusal(reply: &HttpResponse) -> ClickHouseError {
    let text = excerpt(&String::from_utf8_lossy(&reply.body));
    let code = text.strip_prefix("Code: ").and_then(|rest| rest.split([',', '.']).next());
    if code.is_some_and(|code| REFUSED.contains(&code)) {
        return ClickHouseError::Credentials { server_message: text };
    }
    if text.is_empty() {
        ClickHouseError::Status(reply.status.as_u16())
    } else {
        ClickHouseError::Statement { server_message: text }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, StatusCode};

    use super::*;

    #[test]
    fn shipped_sql_matches_hour_columns() {
        let schema = statements(SCHEMA);
        assert_eq!(schema.len(), 4, "{schema:?}");
        assert_eq!(statements(RETENTION).len(), 2);
        let view = schema[3].split("SELECT").nth(1).unwrap();
        let view: Vec<_> = view
            .split("FROM")
            .next()
            .unwrap()
            .split(',')
            .map(|column| column.rsplit(" AS ").next().unwrap().trim().to_owned())
            .collect();
        let columns: Vec<_> = HOUR_COLUMNS.split(',').map(str::trim).collect();
        assert_eq!(view, columns);
    }

    #[test]
    fn server_errors_are_one_line() {
        let refused = |body: &str| {
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            let body = Bytes::copy_from_slice(body.as_bytes());
            refusal(&HttpResponse { status, headers: HeaderMap::new(), body }).to_string()
        };
        let wrong = refused("Code: 193, e.displayText() = DB::Exception: Wrong password\nmore");
        assert!(wrong.starts_with("user or password is refused") && !wrong.contains('\n'));
        assert!(refused("Code: 516. DB::Exception: x").starts_with("user or password is refused"));
        assert_eq!(
            refused("Code: 60. DB::Exception: no\ttable\n"),
            "Code: 60. DB::Exception: no?table"
        );
        assert_eq!(refused(""), "it answers 500");
        assert_eq!(quoted("a'b\\"), "a\\'b\\\\");
    }
}
