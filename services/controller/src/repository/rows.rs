//! Rows as types.
//!
//! A row is a struct whose fields are named as its columns: one that is read ([`typed_row`]), one that is written
//! ([`written_row`]), or one for both ([`table_row`]). The struct is the only list of the columns; statements take it
//! from there. The type of a field says how its column is read ([`ColumnValue`]) and written ([`SqlValue`]).

use penstock_control::batch::{BatchKind, BatchState};
use penstock_control::circuit::CircuitState;
use penstock_control::file::RequestFileState;
use penstock_control::fts::state::{FtsFileState, FtsJobKind, FtsJobState};
use penstock_control::orders::OrderPhase;
use penstock_control::request::RequestState;
use penstock_control::run::RunState;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::Row;
use sqlx::any::AnyRow;

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

impl From<Option<Vec<u8>>> for SqlValue {
    fn from(value: Option<Vec<u8>>) -> Self {
        Self::Bytes(value)
    }
}

/// Numbers beyond the databases' integers are stored as the largest of these.
impl From<u64> for SqlValue {
    fn from(value: u64) -> Self {
        Self::Int(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

/// See [`SqlValue::from`] of `u64`.
impl From<Option<u64>> for SqlValue {
    fn from(value: Option<u64>) -> Self {
        Self::MaybeInt(value.map(|value| i64::try_from(value).unwrap_or(i64::MAX)))
    }
}

impl From<Option<bool>> for SqlValue {
    fn from(value: Option<bool>) -> Self {
        Self::MaybeInt(value.map(i64::from))
    }
}

impl<T: Serialize> From<JsonColumn<T>> for SqlValue {
    fn from(value: JsonColumn<T>) -> Self {
        Self::Text(serde_json::to_string(&value.0).expect("plain data"))
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

/// Columns of a row that is read.
pub(crate) trait TypedRow {
    /// Names of the columns.
    const NAMES: &'static [&'static str];

    /// Returns the list of the columns, for SELECT and RETURNING.
    fn columns() -> String {
        Self::NAMES.join(", ")
    }

    /// Returns the list of the columns of a table, for SELECT and RETURNING beside another table.
    fn columns_of(table: &str) -> String {
        let columns: Vec<String> =
            Self::NAMES.iter().map(|name| format!("{table}.{name} AS {name}")).collect();
        columns.join(", ")
    }
}

/// Columns and values of a row that is written.
pub(crate) trait WrittenRow {
    /// Names of the columns, in the order of the values.
    const COLUMNS: &'static [&'static str];

    /// An array with a value for each column.
    type Values: AsRef<[SqlValue]> + std::fmt::Debug + Send + Sync;

    fn into_values(self) -> Self::Values;
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

        $crate::repository::rows::read_columns!($name { $($field),* });
    };
}

/// Declares a struct that is written as a row: each field to the column of its name.
macro_rules! written_row {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident $(<$life:lifetime>)? {
            $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$meta])*
        $vis struct $name $(<$life>)? {
            $($(#[$field_meta])* $field_vis $field: $type,)*
        }

        $crate::repository::rows::write_columns!($name $(<$life>)? { $($field),* });
    };
}

/// Declares a struct that is read and written as a row.
macro_rules! table_row {
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

        $crate::repository::rows::read_columns!($name { $($field),* });
        $crate::repository::rows::write_columns!($name { $($field),* });
    };
}

/// Implements [`TypedRow`] and [`sqlx::FromRow`].
macro_rules! read_columns {
    ($name:ident { $($field:ident),* }) => {
        impl $crate::repository::rows::TypedRow for $name {
            const NAMES: &'static [&'static str] = &[$(stringify!($field)),*];
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

/// Implements [`WrittenRow`].
macro_rules! write_columns {
    ($name:ident $(<$life:lifetime>)? { $($field:ident),* }) => {
        impl $(<$life>)? $crate::repository::rows::WrittenRow for $name $(<$life>)? {
            const COLUMNS: &'static [&'static str] = &[$(stringify!($field)),*];

            type Values = [$crate::repository::rows::SqlValue; [$(stringify!($field)),*].len()];

            fn into_values(self) -> Self::Values {
                [$(self.$field.into()),*]
            }
        }
    };
}

pub(crate) use {read_columns, table_row, typed_row, write_columns, written_row};

written_row! {
    /// A row of a table by its key.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct IdRow {
        pub(crate) id: i64,
    }
}
