//! Rows as types, and statements over many rows.
//!
//! A row is a struct whose fields are named as its columns ([`typed_row`]); the type of a field says how its column is
//! read ([`ColumnValue`]).
//!
//! A statement has the same text for any number of rows, so it is prepared once and takes one round trip. Rows are
//! passed as text: to SQLite as one JSON array of arrays, to PostgreSQL as one array per column.

use std::fmt::Write as _;

use penstock_control::batch::{BatchKind, BatchState};
use penstock_control::circuit::CircuitState;
use penstock_control::file::RequestFileState;
use penstock_control::fts::state::{FtsFileState, FtsJobKind, FtsJobState};
use penstock_control::orders::OrderPhase;
use penstock_control::request::RequestState;
use penstock_control::run::RunState;
use serde::de::DeserializeOwned;
use sqlx::any::{Any, AnyArguments, AnyRow};
use sqlx::query::{Query, QueryAs, QueryScalar};
use sqlx::{AnyConnection, Arguments, AssertSqlSafe, FromRow, Row};

/// Most rows of one statement, which bounds its memory.
const ROWS_MAX: usize = 10_000;

/// A value of a row.
#[derive(Debug, Clone)]
pub(crate) enum SqlValue {
    Int(i64),
    MaybeInt(Option<i64>),
    Text(String),
    MaybeText(Option<String>),
    Bytes(Option<Vec<u8>>),
}

impl From<i64> for SqlValue {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<bool> for SqlValue {
    fn from(value: bool) -> Self {
        Self::Int(i64::from(value))
    }
}

impl From<Option<i64>> for SqlValue {
    fn from(value: Option<i64>) -> Self {
        Self::MaybeInt(value)
    }
}

impl From<&str> for SqlValue {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for SqlValue {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<Option<String>> for SqlValue {
    fn from(value: Option<String>) -> Self {
        Self::MaybeText(value)
    }
}

/// A value of a column.
pub(crate) trait ColumnValue: Sized {
    fn read(row: &AnyRow, column: &str) -> Result<Self, sqlx::Error>;
}

impl ColumnValue for i64 {
    fn read(row: &AnyRow, column: &str) -> Result<Self, sqlx::Error> {
        row.try_get(column)
    }
}

impl ColumnValue for Option<i64> {
    fn read(row: &AnyRow, column: &str) -> Result<Self, sqlx::Error> {
        row.try_get(column)
    }
}

impl ColumnValue for String {
    fn read(row: &AnyRow, column: &str) -> Result<Self, sqlx::Error> {
        row.try_get(column)
    }
}

impl ColumnValue for Option<String> {
    fn read(row: &AnyRow, column: &str) -> Result<Self, sqlx::Error> {
        row.try_get(column)
    }
}

/// True if positive.
impl ColumnValue for bool {
    fn read(row: &AnyRow, column: &str) -> Result<Self, sqlx::Error> {
        i64::read(row, column).map(|number| number > 0)
    }
}

impl ColumnValue for Option<bool> {
    fn read(row: &AnyRow, column: &str) -> Result<Self, sqlx::Error> {
        let number = <Option<i64>>::read(row, column)?;
        Ok(number.map(|number| number > 0))
    }
}

/// A negative number reads as 0.
impl ColumnValue for u64 {
    fn read(row: &AnyRow, column: &str) -> Result<Self, sqlx::Error> {
        i64::read(row, column).map(|number| Self::try_from(number).unwrap_or(0))
    }
}

impl ColumnValue for Option<u64> {
    fn read(row: &AnyRow, column: &str) -> Result<Self, sqlx::Error> {
        let number = <Option<i64>>::read(row, column)?;
        Ok(number.map(|number| u64::try_from(number).unwrap_or(0)))
    }
}

/// A value stored as JSON; the default if the text is not of its form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct JsonColumn<T>(pub(crate) T);

impl<T: DeserializeOwned + Default> ColumnValue for JsonColumn<T> {
    fn read(row: &AnyRow, column: &str) -> Result<Self, sqlx::Error> {
        let text = <Option<String>>::read(row, column)?;
        let value = text.and_then(|text| serde_json::from_str(&text).ok());
        Ok(Self(value.unwrap_or_default()))
    }
}

/// Reads and writes enums by their numbers.
macro_rules! number_columns {
    ($($type:ident),*) => {$(
        impl ColumnValue for $type {
            fn read(row: &AnyRow, column: &str) -> Result<Self, sqlx::Error> {
                let number = i64::read(row, column)?;
                Self::from_number(number).ok_or_else(|| sqlx::Error::ColumnDecode {
                    index: column.to_owned(),
                    source: format!("{number} is no number of a {}", stringify!($type)).into(),
                })
            }
        }

        impl From<$type> for SqlValue {
            fn from(value: $type) -> Self {
                Self::Int(value.number())
            }
        }
    )*};
}

number_columns!(
    BatchKind,
    BatchState,
    CircuitState,
    FtsFileState,
    FtsJobKind,
    FtsJobState,
    RequestFileState,
    OrderPhase,
    RequestState,
    RunState
);

impl ColumnValue for Option<RequestState> {
    fn read(row: &AnyRow, column: &str) -> Result<Self, sqlx::Error> {
        let number = <Option<i64>>::read(row, column)?;
        Ok(number.and_then(RequestState::from_number))
    }
}

impl ColumnValue for Option<CircuitState> {
    fn read(row: &AnyRow, column: &str) -> Result<Self, sqlx::Error> {
        let number = <Option<i64>>::read(row, column)?;
        Ok(number.and_then(CircuitState::from_number))
    }
}

/// Declares a struct that is read from a row: each field from the column of its name.
macro_rules! typed_row {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $type,)*
        }

        impl sqlx::FromRow<'_, sqlx::any::AnyRow> for $name {
            fn from_row(row: &sqlx::any::AnyRow) -> Result<Self, sqlx::Error> {
                Ok(Self {
                    $($field: $crate::repository::rows::ColumnValue::read(row, stringify!($field))?,)*
                })
            }
        }
    };
}

pub(crate) use typed_row;

/// A statement without parameters' values whose rows, if any, are not read. The text has numbers of states and names of
/// columns only; values are parameters.
pub(super) fn statement(text: impl Into<String>) -> Query<'static, Any, AnyArguments> {
    sqlx::query(AssertSqlSafe(text.into()))
}

/// A query whose rows are read as `T`. See [`statement`] for its text.
pub(super) fn select<T>(text: impl Into<String>) -> QueryAs<'static, Any, T, AnyArguments>
where
    T: for<'r> FromRow<'r, AnyRow>,
{
    sqlx::query_as(AssertSqlSafe(text.into()))
}

/// A query of one column. See [`statement`] for its text.
pub(super) fn select_one<T>(text: impl Into<String>) -> QueryScalar<'static, Any, T, AnyArguments>
where
    (T,): for<'r> FromRow<'r, AnyRow>,
{
    sqlx::query_scalar(AssertSqlSafe(text.into()))
}

/// SQL type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SqlType {
    Int,
    Text,
    Bytes,
}

impl SqlValue {
    fn sql_type(&self) -> SqlType {
        match self {
            Self::Int(_) | Self::MaybeInt(_) => SqlType::Int,
            Self::Text(_) | Self::MaybeText(_) => SqlType::Text,
            Self::Bytes(_) => SqlType::Bytes,
        }
    }
}

/// Writes quoted text. Neither database stores NUL in text, so it becomes a space.
fn write_quoted(out: &mut String, text: &str, escaped: impl Fn(&mut String, char)) {
    out.push('"');
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c < ' ' || c == '"' || c == '\\') {
        out.push_str(&rest[..at]);
        match rest.as_bytes()[at] {
            0 => out.push(' '),
            byte => escaped(out, char::from(byte)),
        }
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
    out.push('"');
}

fn write_hex(out: &mut String, bytes: &[u8]) {
    const HEX_DIGITS: [u8; 16] = *b"0123456789abcdef";
    for byte in bytes {
        out.push(char::from(HEX_DIGITS[usize::from(byte >> 4)]));
        out.push(char::from(HEX_DIGITS[usize::from(byte & 15)]));
    }
}

/// Writes a value as JSON; bytes in hexadecimal.
fn write_json(out: &mut String, value: &SqlValue) {
    match value {
        SqlValue::Int(number) | SqlValue::MaybeInt(Some(number)) => {
            let _ = write!(out, "{number}");
        }
        SqlValue::Text(text) | SqlValue::MaybeText(Some(text)) => {
            write_quoted(out, text, |out, c| match c {
                '"' | '\\' => out.extend(['\\', c]),
                _ => {
                    let _ = write!(out, "\\u{:04x}", u32::from(c));
                }
            })
        }
        SqlValue::Bytes(Some(bytes)) => {
            out.push('"');
            write_hex(out, bytes);
            out.push('"');
        }
        SqlValue::MaybeInt(None) | SqlValue::MaybeText(None) | SqlValue::Bytes(None) => {
            out.push_str("null")
        }
    }
}

/// Writes a value as an element of a PostgreSQL array (manual, section 8.15.6).
fn write_array_element(out: &mut String, value: &SqlValue) {
    match value {
        SqlValue::Int(number) | SqlValue::MaybeInt(Some(number)) => {
            let _ = write!(out, "{number}");
        }
        SqlValue::Text(text) | SqlValue::MaybeText(Some(text)) => {
            write_quoted(out, text, |out, c| {
                if matches!(c, '"' | '\\') {
                    out.push('\\');
                }
                out.push(c);
            })
        }
        SqlValue::Bytes(Some(bytes)) => {
            out.push_str("\"\\\\x");
            write_hex(out, bytes);
            out.push('"');
        }
        SqlValue::MaybeInt(None) | SqlValue::MaybeText(None) | SqlValue::Bytes(None) => {
            out.push_str("NULL")
        }
    }
}

/// Returns a SELECT of the rows as `columns`, and its arguments, which follow the `fixed` ones.
fn pack<const N: usize>(
    rows: &[[SqlValue; N]],
    columns: &str,
    fixed: &[i64],
    sqlite: bool,
) -> Result<(String, AnyArguments), sqlx::Error> {
    let mut arguments = AnyArguments::default();
    for value in fixed {
        arguments.add(*value).map_err(sqlx::Error::Encode)?;
    }
    let kinds: [SqlType; N] = std::array::from_fn(|at| rows[0][at].sql_type());
    if sqlite {
        let mut text = String::with_capacity(rows.len() * N * 12);
        for (at, row) in rows.iter().enumerate() {
            text.push_str(if at == 0 { "[[" } else { "],[" });
            for (at, value) in row.iter().enumerate() {
                text.push_str(if at == 0 { "" } else { "," });
                write_json(&mut text, value);
            }
        }
        text.push_str("]]");
        arguments.add(text).map_err(sqlx::Error::Encode)?;
        let mut chosen = String::new();
        for ((at, kind), name) in kinds.iter().enumerate().zip(columns.split(", ")) {
            chosen.push_str(if at == 0 { "" } else { ", " });
            let _ = match kind {
                SqlType::Bytes => write!(chosen, "unhex(value ->> {at}) AS {name}"),
                _ => write!(chosen, "value ->> {at} AS {name}"),
            };
        }
        let from = fixed.len() + 1;
        return Ok((format!("SELECT {chosen} FROM jsonb_each(${from})"), arguments));
    }
    let mut sources = String::new();
    for (at, kind) in kinds.iter().enumerate() {
        let mut text = String::with_capacity(rows.len() * 12);
        for (number, row) in rows.iter().enumerate() {
            text.push(if number == 0 { '{' } else { ',' });
            write_array_element(&mut text, &row[at]);
        }
        text.push('}');
        arguments.add(text).map_err(sqlx::Error::Encode)?;
        let kind = match kind {
            SqlType::Int => "bigint",
            SqlType::Text => "text",
            SqlType::Bytes => "bytea",
        };
        sources.push_str(if at == 0 { "" } else { ", " });
        let _ = write!(sources, "CAST(${} AS {kind}[])", fixed.len() + at + 1);
    }
    Ok((format!("SELECT {columns} FROM unnest({sources}) AS v ({columns})"), arguments))
}

/// Returns the column names `c0, c1, ...`.
fn names<const N: usize>() -> String {
    let names: [String; N] = std::array::from_fn(|at| format!("c{at}"));
    names.join(", ")
}

fn is_sqlite(tx: &AnyConnection) -> bool {
    tx.backend_name() == "SQLite"
}

fn build_insert<const N: usize>(
    tx: &AnyConnection,
    into: &str,
    rows: &[[SqlValue; N]],
    after: &str,
) -> Result<(AssertSqlSafe<String>, AnyArguments), sqlx::Error> {
    let (chosen, arguments) = pack(rows, &names::<N>(), &[], is_sqlite(tx))?;
    // Without WHERE, SQLite parses ON CONFLICT as a join constraint.
    Ok((AssertSqlSafe(format!("{into} {chosen} WHERE true {after}")), arguments))
}

/// Runs `INSERT INTO table (columns)` for all rows, followed by `after`. Returns the rows of its RETURNING clause.
pub(crate) async fn insert_returning<T, const N: usize>(
    tx: &mut AnyConnection,
    into: &str,
    rows: Vec<[SqlValue; N]>,
    after: &str,
) -> Result<Vec<T>, sqlx::Error>
where
    T: for<'r> FromRow<'r, AnyRow> + Send + Unpin,
{
    let mut answers = Vec::new();
    for part in rows.chunks(ROWS_MAX) {
        let (text, arguments) = build_insert(tx, into, part, after)?;
        answers.extend(sqlx::query_as_with(text, arguments).fetch_all(&mut *tx).await?);
    }
    Ok(answers)
}

/// Runs `INSERT INTO table (columns)` for all rows, followed by `after`. Returns the number of rows changed.
pub(crate) async fn insert<const N: usize>(
    tx: &mut AnyConnection,
    into: &str,
    rows: Vec<[SqlValue; N]>,
    after: &str,
) -> Result<u64, sqlx::Error> {
    let mut changed = 0;
    for part in rows.chunks(ROWS_MAX) {
        let (text, arguments) = build_insert(tx, into, part, after)?;
        changed += sqlx::query_with(text, arguments).execute(&mut *tx).await?.rows_affected();
    }
    Ok(changed)
}

/// Runs `WITH v (columns) AS (rows) statement` with `fixed` as its parameters from `$1` on, which keeps its text
/// constant. Returns its rows.
pub(crate) async fn query_values<T, const N: usize>(
    tx: &mut AnyConnection,
    fixed: &[i64],
    columns: &str,
    rows: Vec<[SqlValue; N]>,
    statement: &str,
) -> Result<Vec<T>, sqlx::Error>
where
    T: for<'r> FromRow<'r, AnyRow> + Send + Unpin,
{
    let mut answers = Vec::new();
    for part in rows.chunks(ROWS_MAX) {
        let (chosen, arguments) = pack(part, columns, fixed, is_sqlite(tx))?;
        let text = AssertSqlSafe(format!("WITH v ({columns}) AS ({chosen}) {statement}"));
        answers.extend(sqlx::query_as_with(text, arguments).fetch_all(&mut *tx).await?);
    }
    Ok(answers)
}

/// Runs a statement as [`query_values`] does. Returns the number of rows changed.
pub(crate) async fn execute_values<const N: usize>(
    tx: &mut AnyConnection,
    fixed: &[i64],
    columns: &str,
    rows: Vec<[SqlValue; N]>,
    statement: &str,
) -> Result<u64, sqlx::Error> {
    let mut changed = 0;
    for part in rows.chunks(ROWS_MAX) {
        let (chosen, arguments) = pack(part, columns, fixed, is_sqlite(tx))?;
        let text = AssertSqlSafe(format!("WITH v ({columns}) AS ({chosen}) {statement}"));
        changed += sqlx::query_with(text, arguments).execute(&mut *tx).await?.rows_affected();
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_escaping_round_trips() {
        let text = SqlValue::from("a \"b\" \\ c\n\0\u{1}{},ä");
        let (mut one, mut other) = (String::new(), String::new());
        write_json(&mut one, &text);
        write_array_element(&mut other, &text);
        let read: String = serde_json::from_str(&one).unwrap();
        assert_eq!(read, "a \"b\" \\ c\n \u{1}{},ä");
        assert_eq!(other, "\"a \\\"b\\\" \\\\ c\n \u{1}{},ä\"");
    }

    #[test]
    fn statement_is_independent_of_row_count() {
        let row = || [SqlValue::from(1), SqlValue::from("x"), SqlValue::Bytes(Some(vec![0, 255]))];
        for sqlite in [true, false] {
            let one = pack(&[row()], "a, b, c", &[7], sqlite).unwrap();
            let many = pack(&[row(), row(), row()], "a, b, c", &[7], sqlite).unwrap();
            assert_eq!(one.0, many.0);
            assert_eq!(one.1.len(), if sqlite { 2 } else { 4 });
        }
    }
}
