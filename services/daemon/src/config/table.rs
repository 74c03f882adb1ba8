//! Deserialisation of one table of a document, whose other tables are skipped.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

/// Reads the table `name` of a TOML text.
pub(super) fn read<T: DeserializeOwned>(
    text: &str,
    name: &str,
) -> Result<Option<T>, toml::de::Error> {
    TableSeed { name, kind: PhantomData }.deserialize(toml::Deserializer::parse(text)?)
}

struct TableSeed<'a, T> {
    name: &'a str,
    kind: PhantomData<T>,
}

impl<'de, T: DeserializeOwned> DeserializeSeed<'de> for TableSeed<'_, T> {
    type Value = Option<T>;

    fn deserialize<D: Deserializer<'de>>(self, document: D) -> Result<Option<T>, D::Error> {
        document.deserialize_map(self)
    }
}

impl<'de, T: DeserializeOwned> Visitor<'de> for TableSeed<'_, T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tables")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut document: A) -> Result<Option<T>, A::Error> {
        let mut table = None;
        while let Some(name) = document.next_key::<String>()? {
            if name == self.name {
                table = Some(document.next_value()?);
            } else {
                document.next_value::<IgnoredAny>()?;
            }
        }
        Ok(table)
    }
}
