//! What is wrong with a file, where, and what was perhaps meant.

use std::fmt;
use std::ops::Range;

/// One fault of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong and how to mend it.
    pub text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.text)
    }
}

/// All faults of a file, in its order; never empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, fault) in self.0.iter().enumerate() {
            let gap = if number == 0 { "" } else { "\n" };
            write!(f, "{gap}{fault}")?;
        }
        Ok(())
    }
}

impl Faults {
    /// The only one that was looked for.
    pub(crate) fn one(text: &str, at: Range<usize>, fault: impl Into<String>) -> Self {
        let (line, column) = place(text, at.start);
        Self(vec![Fault { line, column, text: fault.into() }])
    }
}

/// Collects faults of one text.
#[derive(Debug)]
pub(crate) struct Collector<'a> {
    text: &'a str,
    faults: Vec<(usize, Fault)>,
}

impl<'a> Collector<'a> {
    pub(crate) const fn new(text: &'a str) -> Self {
        Self { text, faults: Vec::new() }
    }

    /// Notes a fault at a place of the text.
    pub(crate) fn note(&mut self, at: Range<usize>, text: impl Into<String>) {
        let (line, column) = place(self.text, at.start);
        self.faults.push((at.start, Fault { line, column, text: text.into() }));
    }

    /// What was collected, in the order of the text; none is success.
    pub(crate) fn finish(mut self) -> Result<(), Faults> {
        if self.faults.is_empty() {
            return Ok(());
        }
        self.faults.sort_by_key(|(at, _)| *at);
        Err(Faults(self.faults.into_iter().map(|(_, fault)| fault).collect()))
    }
}

/// Line and column of a byte.
fn place(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// `; did you mean 'x'?` for the known name that is nearest to `name`, if one is near.
pub(crate) fn suggestion<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let nearest = known
        .map(|known| (distance(name, known), known))
        .filter(|(distance, known)| *distance <= known.chars().count().div_ceil(3))
        .min();
    nearest.map_or_else(String::new, |(_, known)| format!("; did you mean '{known}'?"))
}

/// Edits between two words: insertions, deletions, replacements (Levenshtein 1966).
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, b) in right.iter().enumerate() {
            let replaced = corner + usize::from(a != *b);
            corner = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(corner + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_suggested_and_far_ones_are_not() {
        let known = ["starlight", "uvic", "sfu"];
        assert_eq!(suggestion("starlihgt", known.into_iter()), "; did you mean 'starlight'?");
        assert_eq!(suggestion("uvc", known.into_iter()), "; did you mean 'uvic'?");
        assert_eq!(suggestion("geneva", known.into_iter()), "");
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
    }

    #[test]
    fn places_count_characters() {
        assert_eq!(place("ab\ncä x", 7), (2, 4));
        assert_eq!(place("", 0), (1, 1));
    }
}
