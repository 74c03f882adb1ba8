//! Text for terminals: their width, and text measured in and cut to columns.

use std::os::fd::AsFd;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Columns of a terminal of unknown width.
const COLUMNS_DEFAULT: usize = 80;

/// Columns of the terminal `fd`; [`COLUMNS_DEFAULT`] where it is none or has no size.
pub(crate) fn columns_of(fd: impl AsFd) -> usize {
    let size = terminal_size::terminal_size_of(fd);
    let columns = size.map_or(0, |(width, _)| usize::from(width.0));
    if columns == 0 { COLUMNS_DEFAULT } else { columns }
}

/// Columns of a text; wide East Asian characters take two.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// Longest prefix of a text that fits into `columns`.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    let mut room = columns;
    text.chars()
        .take_while(|c| {
            let wide = c.width().unwrap_or(0);
            let fits = wide <= room;
            room = room.saturating_sub(wide);
            fits
        })
        .collect()
}

/// Pads a text with blanks to `columns`.
pub(crate) fn pad(text: &str, columns: usize) -> String {
    format!("{text}{}", " ".repeat(columns.saturating_sub(width(text))))
}

/// Escapes control characters and marks of direction, so that foreign names cannot control the terminal or reorder a line.
pub(crate) fn printable(text: &str) -> String {
    let turns = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars()
        .map(|c| match c.is_control() || turns(c) {
            true => c.escape_default().to_string(),
            false => c.to_string(),
        })
        .collect()
}

/// Cuts each line to `columns`.
pub(crate) fn cut_lines(text: &str, columns: usize) -> String {
    text.lines().map(|line| cut(line, columns) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_direction_are_escaped() {
        assert_eq!(printable("\u{e9}t\u{e9}\u{202e}\u{7}"), "\u{e9}t\u{e9}\\u{202e}\\u{7}");
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!((width("abc"), width("数据"), width("e\u{301}")), (3, 4, 1));
        assert_eq!(cut("数据", 3), "数");
        assert_eq!((cut("ab数据", 0).as_str(), cut("ab", 9).as_str()), ("", "ab"));
        assert_eq!(pad("数", 4), "数  ");
        assert_eq!(cut_lines("abcd\nab\n", 3), "abc\nab\n");
    }
}
