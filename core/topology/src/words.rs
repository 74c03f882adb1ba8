//! One table of the file, taken word by word. Whatever is wrong with a value is noted at the value and the
//! rest read on, so that no fault hides another; what nobody took is no word of that table, and the one
//! that was perhaps meant is named.

use std::ops::Range;

use penstock_units::ByteCount;
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use crate::fault::{Collector, Faults, shown, suggestion};

/// What others call a word, and what it is here.
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

/// A table of the file.
#[derive(Debug)]
pub struct Words<'i> {
    /// What the table is, for messages: `a link`.
    what: &'static str,
    at: Range<usize>,
    table: DeTable<'i>,
    asked: Vec<&'static str>,
}

/// The whole of a file as one table, and where faults are noted.
///
/// # Errors
/// When it is larger than this, or no TOML.
pub fn parse<'i>(
    text: &'i str,
    bytes_max: usize,
    what: &'static str,
) -> Result<(Words<'i>, Collector<'i>), Faults> {
    let mut faults = Collector::new(text);
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
    Ok((Words::new(what, table), faults))
}

/// What the value of a word is.
#[derive(Debug, Clone, Copy)]
pub struct Form<T> {
    /// What it is and how it is written: the fault of any other value.
    pub is: &'static str,
    /// Whether a value of the type is one.
    pub holds: fn(&T) -> bool,
    /// Stands for a value at fault, chosen so that no other fault follows from it.
    pub instead: T,
}

impl<'i> Words<'i> {
    fn new(what: &'static str, table: Spanned<DeTable<'i>>) -> Self {
        let at = table.span();
        Self { what, at, table: table.into_inner(), asked: Vec::new() }
    }

    /// A word that may be missing.
    pub fn optional<T: Deserialize<'i>>(
        &mut self,
        word: &'static str,
        faults: &mut Collector<'_>,
    ) -> Option<Spanned<T>> {
        self.asked.push(word);
        let value = self.table.remove(word)?;
        let at = value.span();
        match T::deserialize(ValueDeserializer::from(value)) {
            Ok(read) => Some(Spanned::new(at, read)),
            Err(error) => {
                let at = error.span().unwrap_or(at);
                faults.note(at, format!("{word}: {}", error.message()));
                None
            }
        }
    }

    /// A word that may be missing, of this form.
    pub fn formed<T: Deserialize<'i> + Copy>(
        &mut self,
        word: &'static str,
        form: &Form<T>,
        faults: &mut Collector<'_>,
    ) -> Option<Spanned<T>> {
        self.asked.push(word);
        let value = self.table.remove(word)?;
        let at = value.span();
        let read = T::deserialize(ValueDeserializer::from(value)).ok().filter(form.holds);
        if read.is_none() {
            faults.note(at.clone(), form.is);
        }
        Some(Spanned::new(at, read.unwrap_or(form.instead)))
    }

    /// A word without which there is nothing to read.
    pub fn needed<T: Deserialize<'i>>(
        &mut self,
        word: &'static str,
        faults: &mut Collector<'_>,
    ) -> Option<Spanned<T>> {
        if !self.table.contains_key(word) {
            faults.note(self.at.clone(), format!("{} needs a word: {word}", self.what));
        }
        self.optional(word, faults)
    }

    /// A word for people: one line that no terminal obeys and that is as it looks.
    pub fn text(&mut self, word: &'static str, faults: &mut Collector<'_>) -> Option<String> {
        let text = self.optional::<String>(word, faults)?;
        if text.get_ref().chars().any(is_unseen) {
            let fault = format!("{word}: write one line without control or invisible characters");
            faults.note(text.span(), fault);
        }
        Some(text.into_inner())
    }

    /// A list of tables: `[[word]]`, or `word = [{ ... }]`.
    pub fn tables(
        &mut self,
        word: &'static str,
        what: &'static str,
        faults: &mut Collector<'_>,
    ) -> Vec<Self> {
        self.asked.push(word);
        let Some(value) = self.table.remove(word) else { return Vec::new() };
        let at = value.span();
        let DeValue::Array(list) = value.into_inner() else {
            let text =
                format!("{word}: write a list of tables, as [[{word}]] or {word} = [{{ ... }}]");
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

    /// Where the table stands in the file.
    #[must_use]
    pub fn place(&self) -> Range<usize> {
        self.at.clone()
    }

    /// What is left is unknown.
    pub fn finish(self, faults: &mut Collector<'_>) {
        for (word, _) in &self.table {
            let name = word.get_ref().as_ref();
            let synonym = SYNONYMS.iter().find(|(of_others, _)| *of_others == name);
            let near = match synonym.filter(|(_, ours)| self.asked.contains(ours)) {
                Some((_, ours)) => format!("; did you mean '{ours}'?"),
                None => suggestion(name, self.asked.iter().copied()),
            };
            let near = match near.as_str() {
                "" => format!(": its words are {}", self.asked.join(", ")),
                near => near.to_owned(),
            };
            let text = format!("{} has no word '{}'{near}", self.what, shown(name));
            faults.note(word.span(), text);
        }
    }
}

/// Control characters, and what shows nothing itself but turns, breaks or joins what is around it: separators of lines
/// and paragraphs, controls of direction (UAX 9), characters without width, tags.
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
