//! Many rows in one statement.
//!
//! However many rows there are, a statement has the same text: it is prepared once, and costs one round trip. Rows travel as
//! text: to SQLite as one JSON array of arrays, to PostgreSQL as an array for each column.

use std::fmt::Write as _;

use sqlx::any::{AnyArguments, AnyRow};
use sqlx::{AnyConnection, Arguments, AssertSqlSafe};

/// Rows of one statement: what bounds its memory.
const ROWS_MAX: usize = 10_000;

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

/// What a column of rows holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Int,
    Text,
    Bytes,
}

impl Value {
    fn column(&self) -> Column {
        match self {
            Self::Int(_) | Self::MaybeInt(_) => Column::Int,
            Self::Text(_) | Self::MaybeText(_) => Column::Text,
            Self::Bytes(_) => Column::Bytes,
        }
    }
}

/// Text between quotes; neither database stores a zero byte in text, so none goes in.
fn quoted(out: &mut String, text: &str, escaped: impl Fn(&mut String, char)) {
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

fn hexadecimal(out: &mut String, bytes: &[u8]) {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    for byte in bytes {
        out.push(char::from(DIGITS[usize::from(byte >> 4)]));
        out.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

/// One value as JSON; bytes in hexadecimal.
fn json(out: &mut String, value: &Value) {
    match value {
        Value::Int(number) | Value::MaybeInt(Some(number)) => {
            let _ = write!(out, "{number}");
        }
        Value::Text(text) | Value::MaybeText(Some(text)) => quoted(out, text, |out, c| match c {
            '"' | '\\' => out.extend(['\\', c]),
            _ => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
        }),
        Value::Bytes(Some(bytes)) => {
            out.push('"');
            hexadecimal(out, bytes);
            out.push('"');
        }
        Value::MaybeInt(None) | Value::MaybeText(None) | Value::Bytes(None) => out.push_str("null"),
    }
}

/// One value as an element of an array of PostgreSQL (chapter 8.15.6 of its manual).
fn element(out: &mut String, value: &Value) {
    match value {
        Value::Int(number) | Value::MaybeInt(Some(number)) => {
            let _ = write!(out, "{number}");
        }
        Value::Text(text) | Value::MaybeText(Some(text)) => quoted(out, text, |out, c| {
            if matches!(c, '"' | '\\') {
                out.push('\\');
            }
            out.push(c);
        }),
        Value::Bytes(Some(bytes)) => {
            out.push_str("\"\\\\x");
            hexadecimal(out, bytes);
            out.push('"');
        }
        Value::MaybeInt(None) | Value::MaybeText(None) | Value::Bytes(None) => out.push_str("NULL"),
    }
}

/// Rows as parameters, and the choice of them as `columns` from these parameters, which come after `fixed` others.
fn packed<const N: usize>(
    rows: &[[Value; N]],
    columns: &str,
    fixed: &[i64],
    sqlite: bool,
) -> Result<(String, AnyArguments), sqlx::Error> {
    let mut arguments = AnyArguments::default();
    for value in fixed {
        arguments.add(*value).map_err(sqlx::Error::Encode)?;
    }
    let kinds: [Column; N] = std::array::from_fn(|at| rows[0][at].column());
    if sqlite {
        let mut text = String::with_capacity(rows.len() * N * 12);
        for (at, row) in rows.iter().enumerate() {
            text.push_str(if at == 0 { "[[" } else { "],[" });
            for (at, value) in row.iter().enumerate() {
                text.push_str(if at == 0 { "" } else { "," });
                json(&mut text, value);
            }
        }
        text.push_str("]]");
        arguments.add(text).map_err(sqlx::Error::Encode)?;
        let mut chosen = String::new();
        for ((at, kind), name) in kinds.iter().enumerate().zip(columns.split(", ")) {
            chosen.push_str(if at == 0 { "" } else { ", " });
            let _ = match kind {
                Column::Bytes => write!(chosen, "unhex(value ->> {at}) AS {name}"),
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
            element(&mut text, &row[at]);
        }
        text.push('}');
        arguments.add(text).map_err(sqlx::Error::Encode)?;
        let kind = match kind {
            Column::Int => "bigint",
            Column::Text => "text",
            Column::Bytes => "bytea",
        };
        sources.push_str(if at == 0 { "" } else { ", " });
        let _ = write!(sources, "CAST(${} AS {kind}[])", fixed.len() + at + 1);
    }
    Ok((format!("SELECT {columns} FROM unnest({sources}) AS v ({columns})"), arguments))
}

/// `c0, c1, ...`
fn names<const N: usize>() -> String {
    let names: [String; N] = std::array::from_fn(|at| format!("c{at}"));
    names.join(", ")
}

fn is_sqlite(tx: &AnyConnection) -> bool {
    tx.backend_name() == "SQLite"
}

fn inserting<const N: usize>(
    tx: &AnyConnection,
    into: &str,
    rows: &[[Value; N]],
    after: &str,
) -> Result<(AssertSqlSafe<String>, AnyArguments), sqlx::Error> {
    let (chosen, arguments) = packed(rows, &names::<N>(), &[], is_sqlite(tx))?;
    // Without WHERE SQLite would take ON CONFLICT for a join.
    Ok((AssertSqlSafe(format!("{into} {chosen} WHERE true {after}")), arguments))
}

/// Runs `INSERT INTO table (columns)` for all rows, with what comes `after` them, and gives the rows that come back.
pub(crate) async fn run<const N: usize>(
    tx: &mut AnyConnection,
    into: &str,
    rows: Vec<[Value; N]>,
    after: &str,
) -> Result<Vec<AnyRow>, sqlx::Error> {
    let mut answers = Vec::new();
    for part in rows.chunks(ROWS_MAX) {
        let (text, arguments) = inserting(tx, into, part, after)?;
        answers.extend(sqlx::query_with(text, arguments).fetch_all(&mut *tx).await?);
    }
    Ok(answers)
}

/// Runs `INSERT INTO table (columns)` for all rows, with what comes `after` them, and tells how many rows it changed.
pub(crate) async fn execute<const N: usize>(
    tx: &mut AnyConnection,
    into: &str,
    rows: Vec<[Value; N]>,
    after: &str,
) -> Result<u64, sqlx::Error> {
    let mut changed = 0;
    for part in rows.chunks(ROWS_MAX) {
        let (text, arguments) = inserting(tx, into, part, after)?;
        changed += sqlx::query_with(text, arguments).execute(&mut *tx).await?.rows_affected();
    }
    Ok(changed)
}

/// Runs `WITH v (columns) AS (all rows) statement`.
pub(crate) async fn with<const N: usize>(
    tx: &mut AnyConnection,
    columns: &str,
    rows: Vec<[Value; N]>,
    statement: &str,
) -> Result<Vec<AnyRow>, sqlx::Error> {
    with_numbers(tx, &[], columns, rows, statement).await
}

/// The same where `$1` and so on in the statement are these numbers: written into its text they would make another
/// statement of it each time.
pub(crate) async fn with_numbers<const N: usize>(
    tx: &mut AnyConnection,
    fixed: &[i64],
    columns: &str,
    rows: Vec<[Value; N]>,
    statement: &str,
) -> Result<Vec<AnyRow>, sqlx::Error> {
    let mut answers = Vec::new();
    for part in rows.chunks(ROWS_MAX) {
        let (chosen, arguments) = packed(part, columns, fixed, is_sqlite(tx))?;
        let text = AssertSqlSafe(format!("WITH v ({columns}) AS ({chosen}) {statement}"));
        answers.extend(sqlx::query_with(text, arguments).fetch_all(&mut *tx).await?);
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_comes_through_both_ways_of_writing_it() {
        let text = Value::from("a \"b\" \\ c\n\0\u{1}{},ä");
        let (mut one, mut other) = (String::new(), String::new());
        json(&mut one, &text);
        element(&mut other, &text);
        let read: String = serde_json::from_str(&one).unwrap();
        assert_eq!(read, "a \"b\" \\ c\n \u{1}{},ä");
        assert_eq!(other, "\"a \\\"b\\\" \\\\ c\n \u{1}{},ä\"");
    }

    #[test]
    fn a_statement_is_the_same_for_any_number_of_rows() {
        let row = || [Value::from(1), Value::from("x"), Value::Bytes(Some(vec![0, 255]))];
        for sqlite in [true, false] {
            let one = packed(&[row()], "a, b, c", &[7], sqlite).unwrap();
            let many = packed(&[row(), row(), row()], "a, b, c", &[7], sqlite).unwrap();
            assert_eq!(one.0, many.0);
            assert_eq!(one.1.len(), if sqlite { 2 } else { 4 });
        }
    }
}
