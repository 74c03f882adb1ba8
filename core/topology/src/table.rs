//! Reads one table of a TOML file key by key. Reading continues after an invalid value, so that all faults are
//! reported; `finish` reports unknown keys, each with the nearest known one.

use std::ops::Range;

use penstock_units::ByteCount;
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use crate::fault::{FaultCollector, FileFaults, shown, suggestion};

/// Names that other tools use, each with the key that has its meaning here.
const SYNONYMS: [(&str, &str); 11] = [
    ("bandwidth", "rate"),
    ("speed", "rate"),
    ("capacity", "rate"),
    ("latency", "delay"),
    ("distance", "length"),
    ("packet_loss", "loss"),
    ("buffer", "queue"),
    ("endpoints", "ends"),
    ("node", "host"),
    ("nodes", "host"),
    ("router", "switch"),
];

/// A table of a TOML file of which some keys have been read.
#[derive(Debug)]
pub struct TableReader<'i> {
    /// Kind of the table, for messages: `a link`.
    what: &'static str,
    at: Range<usize>,
    table: DeTable<'i>,
    read_keys: Vec<&'static str>,
}

/// Parses a file of at most `bytes_max` bytes; returns its root table and the collector of its faults.
///
/// # Errors
/// When the text is longer than `bytes_max` or is not TOML.
pub fn parse<'i>(
    text: &'i str,
    bytes_max: usize,
    what: &'static str,
) -> Result<(TableReader<'i>, FaultCollector<'i>), FileFaults> {
    let mut faults = FaultCollector::new(text);
    if text.len() > bytes_max {
        faults.note(0..0, format!("larger than {}", ByteCount(bytes_max as u64)));
        return Err(faults.into_faults());
    }
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        for error in errors {
            faults.note(error.span().unwrap_or(0..0), error.message());
        }
        return Err(faults.into_faults());
    }
    Ok((TableReader::new(what, table), faults))
}

/// The values that a key accepts.
#[derive(Debug, Clone, Copy)]
pub struct ValueRule<T> {
    /// Description of the valid values and how to write them: the message for any other value.
    pub expected: &'static str,
    /// Returns true if a value of the type is valid.
    pub is_valid: fn(&T) -> bool,
    /// Used in place of an invalid value, chosen so that no other fault follows from it.
    pub fallback: T,
}

impl<'i> TableReader<'i> {
    fn new(what: &'static str, table: Spanned<DeTable<'i>>) -> Self {
        let at = table.span();
        Self { what, at, table: table.into_inner(), read_keys: Vec::new() }
    }

    /// Reads a key that may be absent.
    pub fn optional<T: Deserialize<'i>>(
        &mut self,
        key: &'static str,
        faults: &mut FaultCollector<'_>,
    ) -> Option<Spanned<T>> {
        self.read_keys.push(key);
        let value = self.table.remove(key)?;
        let at = value.span();
        match T::deserialize(ValueDeserializer::from(value)) {
            Ok(read) => Some(Spanned::new(at, read)),
            Err(error) => {
                let at = error.span().unwrap_or(at);
                faults.note(at, format!("{key}: {}", error.message()));
                None
            }
        }
    }

    /// Reads a key that may be absent, with `rule` for its value; an invalid value is noted and becomes the
    /// fallback.
    pub fn checked<T: Deserialize<'i> + Copy>(
        &mut self,
        key: &'static str,
        rule: &ValueRule<T>,
        faults: &mut FaultCollector<'_>,
    ) -> Option<Spanned<T>> {
        self.read_keys.push(key);
        let value = self.table.remove(key)?;
        let at = value.span();
        let read = T::deserialize(ValueDeserializer::from(value)).ok().filter(rule.is_valid);
        if read.is_none() {
            faults.note(at.clone(), rule.expected);
        }
        Some(Spanned::new(at, read.unwrap_or(rule.fallback)))
    }

    /// Reads a required key; notes a fault where it is absent.
    pub fn required<T: Deserialize<'i>>(
        &mut self,
        key: &'static str,
        faults: &mut FaultCollector<'_>,
    ) -> Option<Spanned<T>> {
        if !self.table.contains_key(key) {
            faults.note(self.at.clone(), format!("{} needs a key: {key}", self.what));
        }
        self.optional(key, faults)
    }

    /// Reads a text for display: one line without control or invisible characters.
    pub fn text(&mut self, key: &'static str, faults: &mut FaultCollector<'_>) -> Option<String> {
        let text = self.optional::<String>(key, faults)?;
        if text.get_ref().chars().any(is_unseen) {
            let fault = format!("{key}: write one line without control or invisible characters");
            faults.note(text.span(), fault);
        }
        Some(text.into_inner())
    }

    /// Reads a list of tables: `[[key]]`, or `key = [{ ... }]`.
    pub fn tables(
        &mut self,
        key: &'static str,
        what: &'static str,
        faults: &mut FaultCollector<'_>,
    ) -> Vec<Self> {
        self.read_keys.push(key);
        let Some(value) = self.table.remove(key) else { return Vec::new() };
        let at = value.span();
        let DeValue::Array(list) = value.into_inner() else {
            let text =
                format!("{key}: write a list of tables, as [[{key}]] or {key} = [{{ ... }}]");
            faults.note(at, text);
            return Vec::new();
        };
        let mut all = Vec::with_capacity(list.len());
        for value in list {
            let at = value.span();
            match value.into_inner() {
                DeValue::Table(table) => all.push(Self::new(what, Spanned::new(at, table))),
                _ => faults.note(at, format!("{what} is a table, as {{ name = \"x\" }}")),
            }
        }
        all
    }

    /// Byte range of the table in the file.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        self.at.clone()
    }

    /// Notes a fault for each key that was not read.
    pub fn finish(self, faults: &mut FaultCollector<'_>) {
        for (key, _) in &self.table {
            let name = key.get_ref().as_ref();
            let synonym = SYNONYMS.iter().find(|(foreign, _)| *foreign == name);
            let near = match synonym.filter(|(_, ours)| self.read_keys.contains(ours)) {
                Some((_, ours)) => format!("; did you mean '{ours}'?"),
                None => suggestion(name, self.read_keys.iter().copied()),
            };
            let near = match near.as_str() {
                "" => format!(": its keys are {}", self.read_keys.join(", ")),
                near => near.to_owned(),
            };
            let text = format!("{} has no key '{}'{near}", self.what, shown(name));
            faults.note(key.span(), text);
        }
    }
}

/// True for control characters and for those that show nothing but change the text around them: separators of
/// lines and paragraphs, bidirectional controls (UAX 9), characters without width, tags.
fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}
