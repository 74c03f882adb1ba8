//! Statements: of one row, and of many rows.
//!
//! A statement over many rows has the same text for any number of them, so it is prepared once and takes one round trip.
//! Rows are passed as text: to SQLite as one JSON array of arrays, to PostgreSQL as one array per column.
//!
//! Each function that makes a statement notes the place of its call in tests (`log`), so that a test can require that
//! every statement of this folder ran: a statement with variants has one call for each.

use std::fmt::Write as _;
use std::panic::Location;

use penstock_control::file::TOTAL_BYTES_MAX;
use sqlx::any::{Any, AnyArguments, AnyRow};
use sqlx::query::{Query, QueryAs, QueryScalar};
use sqlx::{AnyConnection, Arguments, AssertSqlSafe, FromRow};

use super::rows::{SqlValue, WrittenRow};

/// Most rows of one statement, which bounds its memory.
const ROWS_MAX: usize = 10_000;

/// Texts of the statements that were made, by the place of the call.
#[cfg(test)]
pub(super) mod log {
    use std::collections::{BTreeMap, BTreeSet};
    use std::panic::Location;
    use std::sync::{Mutex, PoisonError};

    /// File and line of a call.
    pub(crate) type CallSite = (&'static str, u32);

    static TEXTS: Mutex<BTreeMap<CallSite, BTreeSet<String>>> = Mutex::new(BTreeMap::new());

    pub(super) fn note(caller: &'static Location<'static>, text: &str) {
        let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        let of_caller = texts.entry((caller.file(), caller.line())).or_default();
        of_caller.insert(text.trim().to_owned());
    }

    /// Returns the texts that were noted so far in this process.
    pub(crate) fn texts() -> BTreeMap<CallSite, BTreeSet<String>> {
        TEXTS.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Notes the text of a statement in tests.
#[allow(clippy::missing_const_for_fn)]
fn note(caller: &'static Location<'static>, text: &str) {
    #[cfg(test)]
    log::note(caller, text);
    #[cfg(not(test))]
    let _ = (caller, text);
}

/// A statement without parameters' values whose rows, if any, are not read. The text has numbers of states and names of
/// columns only; values are parameters.
#[track_caller]
pub(super) fn statement(text: impl Into<String>) -> Query<'static, Any, AnyArguments> {
    let text = text.into();
    note(Location::caller(), &text);
    sqlx::query(AssertSqlSafe(text))
}

/// A query whose rows are read as `T`. See [`statement`] for its text.
#[track_caller]
pub(super) fn select<T>(text: impl Into<String>) -> QueryAs<'static, Any, T, AnyArguments>
where
    T: for<'r> FromRow<'r, AnyRow>,
{
    select_with(text, AnyArguments::default())
}

/// A query as of [`select`] that has its first arguments.
#[track_caller]
pub(super) fn select_with<T>(
    text: impl Into<String>,
    arguments: AnyArguments,
) -> QueryAs<'static, Any, T, AnyArguments>
where
    T: for<'r> FromRow<'r, AnyRow>,
{
    let text = text.into();
    note(Location::caller(), &text);
    sqlx::query_as_with(AssertSqlSafe(text), arguments)
}

/// A query of one column. See [`statement`] for its text.
#[track_caller]
pub(super) fn select_one<T>(text: impl Into<String>) -> QueryScalar<'static, Any, T, AnyArguments>
where
    (T,): for<'r> FromRow<'r, AnyRow>,
{
    let text = text.into();
    note(Location::caller(), &text);
    sqlx::query_scalar(AssertSqlSafe(text))
}

/// A statement over rows.
#[derive(Debug)]
pub(super) struct RowsStatement<R: WrittenRow> {
    rows: Vec<R::Values>,
    /// Parameters from `$1` on, which precede those of the rows.
    fixed: Vec<i64>,
    form: RowsForm,
    caller: &'static Location<'static>,
}

#[derive(Debug)]
enum RowsForm {
    Insert { table: &'static str, after: String },
    With { statement: String },
}

/// Inserts rows into a table.
#[track_caller]
pub(super) fn insert_rows<R: WrittenRow>(
    table: &'static str,
    rows: impl IntoIterator<Item = R>,
) -> RowsStatement<R> {
    RowsStatement {
        rows: rows.into_iter().map(R::into_values).collect(),
        fixed: Vec::new(),
        form: RowsForm::Insert { table, after: String::new() },
        caller: Location::caller(),
    }
}

/// Runs a statement that reads the rows as table `v`, with the columns of `R`. Only parameters that are bound keep its
/// text constant.
#[track_caller]
pub(super) fn with_rows<R: WrittenRow>(
    rows: impl IntoIterator<Item = R>,
    statement: impl Into<String>,
) -> RowsStatement<R> {
    RowsStatement {
        rows: rows.into_iter().map(R::into_values).collect(),
        fixed: Vec::new(),
        form: RowsForm::With { statement: statement.into() },
        caller: Location::caller(),
    }
}

/// Returns `column = v.column` for each column of `R` but the keys: the SET clause of an UPDATE from rows.
pub(super) fn set_clause<R: WrittenRow>(keys: &[&str]) -> String {
    let columns = R::COLUMNS.iter().filter(|column| !keys.contains(column));
    let sets: Vec<String> = columns.map(|column| format!("{column} = v.{column}")).collect();
    sets.join(", ")
}

/// Returns `column = table.column + v.column`, at most [`TOTAL_BYTES_MAX`], for each column of `R` but the keys: the SET
/// clause of an UPDATE that adds. SQLite would make a sum beyond 64 bits a floating-point number.
pub(super) fn add_clause<R: WrittenRow>(table: &str, keys: &[&str]) -> String {
    let columns = R::COLUMNS.iter().filter(|column| !keys.contains(column));
    let sets: Vec<String> = columns
        .map(|column| {
            format!(
                "{column} = {}",
                capped_sum(&format!("{table}.{column}"), &format!("v.{column}"))
            )
        })
        .collect();
    sets.join(", ")
}

/// Returns the sum of a column and a change of any size, at most [`TOTAL_BYTES_MAX`] either way: no partial sum leaves 64
/// bits.
fn capped_sum(column: &str, change: &str) -> String {
    let most = TOTAL_BYTES_MAX;
    format!(
        "CASE WHEN {change} > {most} - {column} THEN {most} WHEN {change} < -{most} - {column} THEN -{most} \
         ELSE {column} + {change} END"
    )
}

/// Returns the sum of `bytes` over the rows of a query, at most [`TOTAL_BYTES_MAX`], and 0 without rows: exact below 2^53.
pub(super) fn capped_total(bytes: &str) -> String {
    let sum = format!("COALESCE(SUM(CAST({bytes} AS DOUBLE PRECISION)), 0)");
    format!(
        "CAST(CASE WHEN {sum} > {TOTAL_BYTES_MAX} THEN {TOTAL_BYTES_MAX} ELSE {sum} END AS BIGINT)"
    )
}

/// Returns `column = excluded.column` for each column of `R` but the keys: the SET clause of an insertion of rows that
/// are stored already.
pub(super) fn excluded_clause<R: WrittenRow>(keys: &[&str]) -> String {
    let columns = R::COLUMNS.iter().filter(|column| !keys.contains(column));
    let sets: Vec<String> = columns.map(|column| format!("{column} = excluded.{column}")).collect();
    sets.join(", ")
}

impl<R: WrittenRow> RowsStatement<R> {
    /// Adds text after the rows of an insertion: `ON CONFLICT`, `RETURNING`.
    pub(super) fn after(mut self, text: impl Into<String>) -> Self {
        if let RowsForm::Insert { after, .. } = &mut self.form {
            *after = text.into();
        }
        self
    }

    /// Binds the next parameter.
    pub(super) fn bind(mut self, value: i64) -> Self {
        self.fixed.push(value);
        self
    }

    /// Returns the text and the arguments for some of the rows.
    fn build(
        &self,
        rows: &[R::Values],
        is_sqlite: bool,
    ) -> Result<(AssertSqlSafe<String>, AnyArguments), sqlx::Error> {
        let (chosen, arguments) = pack::<R>(rows, &self.fixed, is_sqlite)?;
        let columns = R::COLUMNS.join(", ");
        let text = match &self.form {
            // Without WHERE, SQLite parses ON CONFLICT as a join constraint.
            RowsForm::Insert { table, after } => {
                format!("INSERT INTO {table} ({columns}) {chosen} WHERE true {after}")
            }
            RowsForm::With { statement } => format!("WITH v ({columns}) AS ({chosen}) {statement}"),
        };
        note(self.caller, &text);
        Ok((AssertSqlSafe(text), arguments))
    }

    /// Runs it. Returns the number of rows changed.
    pub(super) async fn execute(self, tx: &mut AnyConnection) -> Result<u64, sqlx::Error> {
        let is_sqlite = is_sqlite(tx);
        let mut changed = 0;
        for part in self.rows.chunks(ROWS_MAX) {
            let (text, arguments) = self.build(part, is_sqlite)?;
            changed += sqlx::query_with(text, arguments).execute(&mut *tx).await?.rows_affected();
        }
        Ok(changed)
    }

    /// Runs it. Returns the rows that it selects or that its RETURNING clause names.
    pub(super) async fn fetch_all<T>(self, tx: &mut AnyConnection) -> Result<Vec<T>, sqlx::Error>
    where
        T: for<'r> FromRow<'r, AnyRow> + Send + Unpin,
    {
        let is_sqlite = is_sqlite(tx);
        let mut answers = Vec::new();
        for part in self.rows.chunks(ROWS_MAX) {
            let (text, arguments) = self.build(part, is_sqlite)?;
            answers.extend(sqlx::query_as_with(text, arguments).fetch_all(&mut *tx).await?);
        }
        Ok(answers)
    }
}

fn is_sqlite(tx: &AnyConnection) -> bool {
    tx.backend_name() == "SQLite"
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

/// Returns a SELECT of rows as columns of their names, and its arguments, which follow the `fixed` ones.
fn pack<R: WrittenRow>(
    rows: &[R::Values],
    fixed: &[i64],
    is_sqlite: bool,
) -> Result<(String, AnyArguments), sqlx::Error> {
    let mut arguments = AnyArguments::default();
    for value in fixed {
        arguments.add(*value).map_err(sqlx::Error::Encode)?;
    }
    let kinds: Vec<SqlType> = rows[0].as_ref().iter().map(SqlValue::sql_type).collect();
    if is_sqlite {
        let mut text = String::with_capacity(rows.len() * kinds.len() * 12);
        for (at, row) in rows.iter().enumerate() {
            text.push_str(if at == 0 { "[[" } else { "],[" });
            for (at, value) in row.as_ref().iter().enumerate() {
                text.push_str(if at == 0 { "" } else { "," });
                write_json(&mut text, value);
            }
        }
        text.push_str("]]");
        arguments.add(text).map_err(sqlx::Error::Encode)?;
        let mut chosen = String::new();
        for ((at, kind), name) in kinds.iter().enumerate().zip(R::COLUMNS) {
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
            write_array_element(&mut text, &row.as_ref()[at]);
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
    let columns = R::COLUMNS.join(", ");
    Ok((format!("SELECT {columns} FROM unnest({sources}) AS v ({columns})"), arguments))
}

#[cfg(test)]
mod tests {
    use super::super::rows::written_row;
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

    written_row! {
        struct ThreeColumns {
            number: i64,
            text: String,
            hash: Option<Vec<u8>>,
        }
    }

    fn three_columns() -> ThreeColumns {
        ThreeColumns { number: 1, text: "x".to_owned(), hash: Some(vec![0, 255]) }
    }

    #[test]
    fn statement_is_independent_of_row_count() {
        for is_sqlite in [true, false] {
            let build = |count: usize| {
                let rows = (0..count).map(|_| three_columns());
                let all = with_rows(rows, "SELECT $1").bind(7);
                all.build(&all.rows, is_sqlite).unwrap()
            };
            let (one, many) = (build(1), build(3));
            assert_eq!(one.0.0, many.0.0);
            assert_eq!(one.1.len(), if is_sqlite { 2 } else { 4 });
        }
    }

    #[test]
    fn set_clause_omits_keys() {
        let clause = set_clause::<ThreeColumns>(&["number"]);
        assert_eq!(clause, "text = v.text, hash = v.hash");
    }
}
