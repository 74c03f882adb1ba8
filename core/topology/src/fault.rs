//! Faults of a file with their positions, and suggestions of the name that was probably meant.

use std::fmt;
use std::ops::Range;

/// A fault of a file with its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileFault {
    /// Line number, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Message: the fault and its remedy, in one line.
    pub text: String,
}

impl fmt::Display for FileFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.text)
    }
}

/// The faults of a file by position: the first hundred, then one entry with the number of the others.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct FileFaults(pub Vec<FileFault>);

impl fmt::Display for FileFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, fault) in self.0.iter().enumerate() {
            let gap = if number == 0 { "" } else { "\n" };
            write!(f, "{gap}{fault}")?;
        }
        Ok(())
    }
}

/// Faults that are reported; more are summed up in one entry.
const FAULTS_MAX: usize = 100;
/// Characters of a name that a message repeats.
const SHOWN_CHARACTERS_MAX: usize = 63;
const MESSAGE_CHARACTERS_MAX: usize = 400;

/// Collects the faults of one text.
#[derive(Debug)]
pub struct FaultCollector<'a> {
    text: &'a str,
    faults: Vec<(usize, String)>,
    suggested: usize,
}

impl<'a> FaultCollector<'a> {
    pub(crate) const fn new(text: &'a str) -> Self {
        Self { text, faults: Vec::new(), suggested: 0 }
    }

    /// Adds a fault at a byte range of the text.
    pub fn note(&mut self, at: Range<usize>, fault: impl AsRef<str>) {
        self.faults.push((at.start, one_line(fault.as_ref())));
    }

    /// As [`suggestion`]; returns no more suggestions than faults are reported, because each costs a search.
    pub fn suggest<'k>(&mut self, name: &str, known: impl Iterator<Item = &'k str>) -> String {
        self.suggested += 1;
        if self.suggested > FAULTS_MAX { String::new() } else { suggestion(name, known) }
    }

    /// Returns the collected faults, in the order of the text.
    pub fn into_faults(mut self) -> FileFaults {
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
            faults.push(FileFault { line, column, text });
        }
        FileFaults(faults)
    }
}

/// Shortens and escapes a name from a file, safe for a message and a terminal.
pub fn shown(name: &str) -> String {
    let rest = name.chars().count() > SHOWN_CHARACTERS_MAX;
    let start: String = name.chars().take(SHOWN_CHARACTERS_MAX).collect();
    let end = if rest { "..." } else { "" };
    format!("{}{end}", start.escape_debug())
}

/// Makes one escaped line of a message, which may come from a library and repeat its input.
fn one_line(message: &str) -> String {
    let mut line = String::new();
    for c in message.trim_end().chars().take(MESSAGE_CHARACTERS_MAX) {
        match c {
            '\n' => line.push_str("; "),
            // Quotes stay readable.
            '\'' | '"' | '\\' => line.push(c),
            c => line.extend(c.escape_debug()),
        }
    }
    line
}

/// Returns `; did you mean 'x'?` with the nearest known name by edit distance, or nothing where none is near.
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
    fn only_near_names_are_suggested() {
        let known = ["starlight", "uvic", "sfu"];
        assert_eq!(suggestion("starlihgt", known.into_iter()), "; did you mean 'starlight'?");
        assert_eq!(suggestion("uvc", known.into_iter()), "; did you mean 'uvic'?");
        assert_eq!(suggestion("geneva", known.into_iter()), "");
    }

    #[test]
    fn columns_count_characters() {
        let places = |text, at: &[usize]| -> Vec<_> {
            let mut faults = FaultCollector::new(text);
            at.iter().for_each(|at| faults.note(*at..*at, "x"));
            faults.into_faults().0.iter().map(|fault| (fault.line, fault.column)).collect()
        };
        assert_eq!(places("ab\ncä x", &[7, 0, 3, 4]), [(1, 1), (2, 1), (2, 2), (2, 4)]);
        assert_eq!(places("", &[0]), [(1, 1)]);
        assert_eq!(places("a", &[9]), [(1, 1)], "beyond the end");
    }

    #[test]
    fn messages_are_short_escaped_lines() {
        assert_eq!(one_line("a\nb\u{1b}[31m'c'\r"), "a; b\\u{1b}[31m'c'");
        assert_eq!(shown("a\u{202e}b\n"), "a\\u{202e}b\\n");
        assert_eq!(shown(&"x".repeat(1 << 20)).len(), SHOWN_CHARACTERS_MAX + 3);
        let mut faults = FaultCollector::new("");
        (0..1000).for_each(|_| faults.note(0..0, "x".repeat(1 << 12)));
        let reported = faults.into_faults().0;
        assert_eq!(reported.len(), FAULTS_MAX + 1);
        assert_eq!(reported[FAULTS_MAX].text, "900 more faults from here on");
        assert_eq!(reported[0].text.len(), MESSAGE_CHARACTERS_MAX);
    }
}
