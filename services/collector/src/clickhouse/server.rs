//! What is said to the server, over its HTTP interface.
//!
//! Statements keep to what ClickHouse 18.16 understands.

use std::sync::Arc;

use penstock_http::fetch::{PostResponse, post_with_headers};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::spool::Batch;
use super::wire::{self, Covered};
use crate::config::ClickHouse as Config;
use crate::query::Query;
use crate::row::{Cell, Direction, Kind, Row};
use crate::store::Tier;

/// The tables, as they are shipped.
const SCHEMA: &str = include_str!("../../../../deploy/clickhouse/schema.sql");
const RETENTION: &str = include_str!("../../../../deploy/clickhouse/retention.sql");

/// Longest answer to a question.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Longest part of what the server says that is told on.
const EXCERPT_CHARS: usize = 300;

/// Codes of ClickHouse's exceptions for a user or password that is refused.
const REFUSED: [&str; 4] = ["192", "193", "194", "516"];

/// Speaks with one server.
#[derive(Debug, Clone)]
pub(super) struct Server {
    config: Arc<Config>,
}

#[derive(Debug, Deserialize)]
struct Number {
    number: i64,
}

impl Server {
    pub(super) fn new(config: Arc<Config>) -> Self {
        Self { config }
    }

    /// Runs a statement, with whatever follows it.
    async fn run(&self, statement: String, data: &[u8]) -> Result<Vec<u8>, String> {
        let mut body = statement.into_bytes();
        body.push(b'\n');
        body.extend_from_slice(data);
        let mut headers = vec![("X-ClickHouse-User", self.config.user.as_str())];
        if let Some(password) = &self.config.password {
            headers.push(("X-ClickHouse-Key", password.reveal()));
        }
        let reply = post_with_headers(&self.config.url, &headers, body, ANSWER_BYTES_MAX).await?;
        if reply.success { Ok(reply.body) } else { Err(refusal(&reply)) }
    }

    async fn ask<T: DeserializeOwned>(&self, statement: String) -> Result<Vec<T>, String> {
        let text = self.run(format!("{statement} FORMAT JSONEachRow"), b"").await?;
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let read = |line| {
            serde_json::from_slice(line).map_err(|_| excerpt(&String::from_utf8_lossy(line)))
        };
        lines.map(read).collect()
    }

    async fn number(&self, expression: &str, rest: &str) -> Result<i64, String> {
        // Of 64 bits some versions write numbers in quotes.
        let statement = format!("SELECT toInt32({expression}) AS number FROM {rest}");
        let found: Vec<Number> = self.ask(statement).await?;
        Ok(found.first().map_or(0, |found| found.number))
    }

    fn database(&self) -> &str {
        &self.config.database
    }

    /// Makes what is not there. A collector need not have the right to, where all is there.
    pub(super) async fn prepare(&self) -> Result<(), String> {
        let missing = format!(
            "system.tables WHERE database = '{}' AND name IN ('minute', 'hour', 'minute_to_hour')",
            self.database()
        );
        if self.number("count()", &missing).await? == 3 {
            return Ok(());
        }
        for statement in statements(SCHEMA) {
            let made = self.run(statement.replace("{database}", self.database()), b"").await;
            made.map_err(|error| {
                format!("{error}: let someone who may run deploy/clickhouse/schema.sql")
            })?;
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

    /// Begin of the newest minute that is stored, of any collector.
    pub(super) async fn newest(&self) -> Result<Option<i64>, String> {
        let rest = format!("{}.minute WHERE kind = 'covered'", self.database());
        let newest = self.number("toUInt32(max(start))", &rest).await?;
        Ok(Some(newest).filter(|newest| *newest > 0))
    }

    /// Inserts a batch. Where it may have been inserted before, it is not again.
    pub(super) async fn insert(&self, batch: &Batch, lines: &[u8]) -> Result<(), String> {
        if batch.tried && self.is_there(batch).await? {
            return self.settle_hours(batch).await;
        }
        // The lines of a batch are of one partition and fewer than a block has: all of them or none are inserted.
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

    async fn is_there(&self, batch: &Batch) -> Result<bool, String> {
        let own = self.own("minute", batch.from_s, batch.to_s);
        Ok(self.number("count()", &format!("{own} AND batch = {}", batch.number)).await? > 0)
    }

    /// A server that was killed may have stored minutes and not added them to their hours: the view comes after
    /// the table. Rows are counted, so the hours tell.
    async fn settle_hours(&self, batch: &Batch) -> Result<(), String> {
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

    /// Sums of `tier` from `from_s` until `to_s`, in buckets of `step_s` from `start_s`.
    ///
    /// An exporter that several collectors heard counts once in each minute (or hour): as that collector has it that
    /// has most of it.
    pub(super) async fn read(
        &self,
        tier: Tier,
        kind: Kind,
        query: &Query,
        range: (i64, i64),
        buckets: (i64, i64),
    ) -> Result<Vec<(i64, Arc<Row>, Cell)>, String> {
        let columns = wire::columns(kind, query).join(", ");
        let table = format!("{}.{}", self.database(), tier.table());
        let mut rows = within(wire::word(kind), range);
        if kind == Kind::Host {
            let sent = query.direction != Some(Direction::In);
            rows.push_str(&format!(" AND sent = {}", u8::from(sent)));
        }
        let statement = format!(
            "SELECT {}, {columns}, sum(bytes) AS sum_bytes, sum(error_squared) AS sum_errors, sum(seconds) AS sum_seconds
             FROM {table} WHERE {rows} AND (start, exporter, collector) IN
                (SELECT start, exporter, argMax(collector, heard) FROM
                    (SELECT start, exporter, collector, sum(bytes) AS heard FROM {table} WHERE {rows}
                     GROUP BY start, exporter, collector)
                 GROUP BY start, exporter)
             GROUP BY bucket, {columns} FORMAT JSONEachRow",
            bucket(buckets)
        );
        wire::read(kind, &self.run(statement, b"").await?)
    }

    /// Seconds that were measured, by bucket: of a minute by the collector that measured most of it.
    pub(super) async fn covered(
        &self,
        tier: Tier,
        range: (i64, i64),
        buckets: (i64, i64),
    ) -> Result<Vec<(i64, f64)>, String> {
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
        let found: Vec<Covered> = self.ask(statement).await?;
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

/// Statements of a file, without comments.
fn statements(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("--"));
    let text = lines.collect::<Vec<_>>().join("\n");
    text.split(';').map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()).collect()
}

fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\'', "\\'")
}

/// The first line of what a server says, without what would spoil a log.
pub(super) fn excerpt(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    line.chars().take(EXCERPT_CHARS).map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn refusal(reply: &PostResponse) -> String {
    let text = excerpt(&String::from_utf8_lossy(&reply.body));
    let code = text.strip_prefix("Code: ").and_then(|rest| rest.split([',', '.']).next());
    if code.is_some_and(|code| REFUSED.contains(&code)) {
        return format!(
            "user or password is refused: see user and password_file in [collector.clickhouse] ({text})"
        );
    }
    if text.is_empty() { format!("it answers {}", reply.status) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_files_are_statements_and_the_view_has_the_columns_of_its_table() {
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
    fn what_a_server_says_is_one_line() {
        let refused = |body: &str| {
            refusal(&PostResponse { success: false, status: 500, body: body.as_bytes().to_vec() })
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
