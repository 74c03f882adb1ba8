//! Text in columns, for verbs that print tables.

use crate::terminal;

/// Aligns rows of cells in columns, two spaces apart.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| terminal::width(cell)).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| terminal::pad(cell, *width)).collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}
