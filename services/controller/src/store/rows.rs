//! Many rows in one statement.
//!
//! Rows go in groups of fixed sizes, so that few different statements are prepared.

use sqlx::any::{AnyArguments, AnyRow};
use sqlx::{AnyConnection, Arguments, AssertSqlSafe};

/// Sizes of groups, largest first. The largest times the most columns stays below SQLite's 32,766 parameters.
const GROUPS: [usize; 4] = [512, 64, 8, 1];

/// One value of a row.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    /// A number.
    Int(i64),
    /// A number, or nothing.
    MaybeInt(Option<i64>),
    /// Text.
    Text(String),
    /// Text, or nothing.
    MaybeText(Option<String>),
    /// Bytes, or nothing.
    Bytes(Option<Vec<u8>>),
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Int(i64::from(value))
    }
}

impl From<Option<i64>> for Value {
    fn from(value: Option<i64>) -> Self {
        Self::MaybeInt(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<Option<String>> for Value {
    fn from(value: Option<String>) -> Self {
        Self::MaybeText(value)
    }
}

fn add(arguments: &mut AnyArguments, value: Value) -> Result<(), sqlx::Error> {
    match value {
        Value::Int(value) => arguments.add(value),
        Value::MaybeInt(value) => arguments.add(value),
        Value::Text(value) => arguments.add(value),
        Value::MaybeText(value) => arguments.add(value),
        Value::Bytes(value) => arguments.add(value),
    }
    .map_err(sqlx::Error::Encode)
}

/// `($1, $2), ($3, $4)`; for SQLite `(?, ?), (?, ?)`: it looks names of parameters up one after the other, so that
/// thousands of them would take seconds.
fn places(rows: usize, columns: usize, named: bool) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(rows * columns * 7);
    for row in 0..rows {
        text.push_str(if row == 0 { "(" } else { ", (" });
        for column in 0..columns {
            text.push_str(if column == 0 { "" } else { ", " });
            if named {
                let _ = write!(text, "${}", row * columns + column + 1);
            } else {
                text.push('?');
            }
        }
        text.push(')');
    }
    text
}

/// Whether parameters have numbers.
fn named(tx: &AnyConnection) -> bool {
    tx.backend_name() != "SQLite"
}

/// Statements `before VALUES (...), (...) after` for all rows, each of `N` values.
struct Groups<const N: usize> {
    left: usize,
    rows: std::vec::IntoIter<[Value; N]>,
    named: bool,
}

impl<const N: usize> Groups<N> {
    fn next(
        &mut self,
        before: &str,
        after: &str,
    ) -> Result<Option<(AssertSqlSafe<String>, AnyArguments)>, sqlx::Error> {
        let Some(group) = GROUPS.into_iter().find(|group| *group <= self.left) else {
            return Ok(None);
        };
        self.left -= group;
        let mut arguments = AnyArguments::default();
        arguments.reserve(group * N, 0);
        for value in self.rows.by_ref().take(group).flatten() {
            add(&mut arguments, value)?;
        }
        Ok(Some((
            AssertSqlSafe(format!("{before} VALUES {} {after}", places(group, N, self.named))),
            arguments,
        )))
    }
}

/// Runs `before VALUES (...), (...) after` for all rows and gives the rows that come back.
pub(crate) async fn run<const N: usize>(
    tx: &mut AnyConnection,
    before: &str,
    rows: Vec<[Value; N]>,
    after: &str,
) -> Result<Vec<AnyRow>, sqlx::Error> {
    let mut answers = Vec::new();
    let mut groups = Groups { left: rows.len(), rows: rows.into_iter(), named: named(tx) };
    while let Some((text, arguments)) = groups.next(before, after)? {
        answers.extend(sqlx::query_with(text, arguments).fetch_all(&mut *tx).await?);
    }
    Ok(answers)
}

/// Runs `before VALUES (...), (...) after` for all rows and tells how many rows it changed.
pub(crate) async fn execute<const N: usize>(
    tx: &mut AnyConnection,
    before: &str,
    rows: Vec<[Value; N]>,
    after: &str,
) -> Result<u64, sqlx::Error> {
    let mut changed = 0;
    let mut groups = Groups { left: rows.len(), rows: rows.into_iter(), named: named(tx) };
    while let Some((text, arguments)) = groups.next(before, after)? {
        changed += sqlx::query_with(text, arguments).execute(&mut *tx).await?.rows_affected();
    }
    Ok(changed)
}

/// Runs `WITH v (columns) AS (VALUES ...) statement` for all rows.
pub(crate) async fn with<const N: usize>(
    tx: &mut AnyConnection,
    columns: &str,
    rows: Vec<[Value; N]>,
    statement: &str,
) -> Result<Vec<AnyRow>, sqlx::Error> {
    run(tx, &format!("WITH v ({columns}) AS ("), rows, &format!(") {statement}")).await
}
