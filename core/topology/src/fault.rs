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

/// The faults of a file, in its order: the first hundred, and how many follow.
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

/// Faults that are told; a file with more is mended in rounds.
const FAULTS_MAX: usize = 100;
/// Of a name that a message repeats.
const SHOWN_CHARACTERS_MAX: usize = 63;
const MESSAGE_CHARACTERS_MAX: usize = 400;

/// Collects faults of one text.
#[derive(Debug)]
pub struct Collector<'a> {
    text: &'a str,
    faults: Vec<(usize, String)>,
    suggested: usize,
}

impl<'a> Collector<'a> {
    pub(crate) const fn new(text: &'a str) -> Self {
        Self { text, faults: Vec::new(), suggested: 0 }
    }

    /// Notes a fault at a place of the text.
    pub fn note(&mut self, at: Range<usize>, fault: impl AsRef<str>) {
        self.faults.push((at.start, one_line(fault.as_ref())));
    }

    /// [`suggestion`], for as many faults as are told.
    pub fn suggest<'k>(&mut self, name: &str, known: impl Iterator<Item = &'k str>) -> String {
        self.suggested += 1;
        if self.suggested > FAULTS_MAX { String::new() } else { suggestion(name, known) }
    }

    /// What was collected, in the order of the text.
    pub fn into_faults(mut self) -> Faults {
        self.faults.sort_by_key(|(at, _)| *at);
        let more = self.faults.len().saturating_sub(FAULTS_MAX);
        if more > 0 {
            self.faults.truncate(FAULTS_MAX + 1);
            self.faults[FAULTS_MAX].1 = format!("{more} more faults from here on");
        }
        let mut faults = Vec::with_capacity(self.faults.len());
        let (mut from, mut line, mut column) = (0, 1, 1);
        for (at, text) in self.faults {
            let passed = self.text.get(from..at).unwrap_or_default();
            if let Some(last) = passed.rfind('\n') {
                line += passed.matches('\n').count();
                column = passed[last + 1..].chars().count() + 1;
            } else {
                column += passed.chars().count();
            }
            from = from.max(at);
            faults.push(Fault { line, column, text });
        }
        Faults(faults)
    }
}

/// A name from a file as messages repeat it: short, and nothing that a terminal obeys.
pub fn shown(name: &str) -> String {
    let rest = name.chars().count() > SHOWN_CHARACTERS_MAX;
    let start: String = name.chars().take(SHOWN_CHARACTERS_MAX).collect();
    let end = if rest { "..." } else { "" };
    format!("{}{end}", start.escape_debug())
}

/// A message, which may be that of a library and repeat what it read.
fn one_line(message: &str) -> String {
    let mut line = String::new();
    for c in message.trim_end().chars().take(MESSAGE_CHARACTERS_MAX) {
        match c {
            '\n' => line.push_str("; "),
            // Quotes are as they were meant.
            '\'' | '"' | '\\' => line.push(c),
            c => line.extend(c.escape_debug()),
        }
    }
    line
}

/// `; did you mean 'x'?` for the known name that is nearest to `name`, if one is near.
pub(crate) fn suggestion<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    if name.is_empty() || name.len() > 2 * SHOWN_CHARACTERS_MAX {
        return String::new();
    }
    let nearest = known
        .filter(|known| known.len() <= 2 * SHOWN_CHARACTERS_MAX)
        .map(|known| (strsim::levenshtein(name, known), known))
        .filter(|(distance, known)| *distance <= known.chars().count().div_ceil(3))
        .min();
    nearest.map_or_else(String::new, |(_, known)| format!("; did you mean '{}'?", shown(known)))
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
    }

    #[test]
    fn places_count_characters() {
        let places = |text, at: &[usize]| -> Vec<_> {
            let mut faults = Collector::new(text);
            at.iter().for_each(|at| faults.note(*at..*at, "x"));
            faults.into_faults().0.iter().map(|fault| (fault.line, fault.column)).collect()
        };
        assert_eq!(places("ab\ncä x", &[7, 0, 3, 4]), [(1, 1), (2, 1), (2, 2), (2, 4)]);
        assert_eq!(places("", &[0]), [(1, 1)]);
        assert_eq!(places("a", &[9]), [(1, 1)], "beyond the end");
    }

    #[test]
    fn a_message_is_one_short_line_that_no_terminal_obeys() {
        assert_eq!(one_line("a\nb\u{1b}[31m'c'\r"), "a; b\\u{1b}[31m'c'");
        assert_eq!(shown("a\u{202e}b\n"), "a\\u{202e}b\\n");
        assert_eq!(shown(&"x".repeat(1 << 20)).len(), SHOWN_CHARACTERS_MAX + 3);
        let mut faults = Collector::new("");
        (0..1000).for_each(|_| faults.note(0..0, "x".repeat(1 << 12)));
        let told = faults.into_faults().0;
        assert_eq!(told.len(), FAULTS_MAX + 1);
        assert_eq!(told[FAULTS_MAX].text, "900 more faults from here on");
        assert_eq!(told[0].text.len(), MESSAGE_CHARACTERS_MAX);
    }
}
