//! Rules for Rust files: `unsafe` in one crate only, a maximum length, and a module comment.
//!
//! `code_only` blanks comments and literals; it is a scanner for these rules, not a Rust parser.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::TidyFault;

/// The only crate that may contain unsafe code.
const UNSAFE_HOME: &str = "system/sys";
const LONGEST_FILE_LINES: usize = 800;

/// The sources of the controller, and the folder there that holds all its SQL.
const CONTROLLER_SOURCES: &str = "services/controller/src";
const CONTROLLER_REPOSITORY: &str = "services/controller/src/repository";

pub(super) fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<TidyFault>> {
    let mut faults = Vec::new();
    for path in files.iter().filter(|path| path.extension().is_some_and(|e| e == "rs")) {
        let text = std::fs::read_to_string(root.join(path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        let mut fault =
            |line, message: String| faults.push(TidyFault { path: path.clone(), line, message });

        let lines = text.lines().count();
        if lines > LONGEST_FILE_LINES {
            fault(
                0,
                format!(
                    "{lines} lines; the longest allowed is {LONGEST_FILE_LINES}: split it by what its parts are for"
                ),
            );
        }
        if path.components().any(|part| part.as_os_str() == "src") && !text.starts_with("//!") {
            fault(1, "opens without a `//!` line that says what the file is for".to_owned());
        }
        if path.starts_with(UNSAFE_HOME) {
            continue;
        }
        let code = code_only(&text);
        let is_without_sql =
            path.starts_with(CONTROLLER_SOURCES) && !path.starts_with(CONTROLLER_REPOSITORY);
        for (at, line) in code.lines().enumerate() {
            if is_without_sql && words(line).any(|word| word == "sqlx") {
                fault(
                    at + 1,
                    format!(
                        "`sqlx` outside {CONTROLLER_REPOSITORY}: call a function of that folder"
                    ),
                );
            }
            if words(line).any(|word| word == "unsafe") {
                fault(
                    at + 1,
                    format!("`unsafe` outside {UNSAFE_HOME}: give that crate a safe type for it"),
                );
            }
        }
        if is_crate_root(root, path) && !code.contains("#![forbid(unsafe_code)]") {
            fault(0, "crate root without `#![forbid(unsafe_code)]`".to_owned());
        }
    }
    Ok(faults)
}

fn is_crate_root(root: &Path, path: &Path) -> bool {
    let under_src =
        path.parent().is_some_and(|folder| folder.file_name().is_some_and(|name| name == "src"));
    let is_entry = path.file_name().is_some_and(|name| name == "lib.rs" || name == "main.rs");
    let package = path.parent().and_then(Path::parent);
    under_src
        && is_entry
        && package.is_some_and(|folder| root.join(folder).join("Cargo.toml").exists())
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_'))
}

/// Replaces comments, strings and character literals by blanks; line numbers stay the same.
pub(super) fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = vec![b' '; bytes.len()];
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let skip = literal_length(rest, at > 0 && is_word(bytes[at - 1]));
        if skip == 0 {
            out[at] = rest[0];
            at += 1;
            continue;
        }
        let end = (at + skip).min(bytes.len());
        for i in at..end {
            if bytes[i] == b'\n' {
                out[i] = b'\n';
            }
        }
        at = end;
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Length of the comment or literal at the start of `rest`; 0 for code.
fn literal_length(rest: &[u8], in_word: bool) -> usize {
    if rest.starts_with(b"//") {
        return rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
    }
    if rest.starts_with(b"/*") {
        return block_comment_length(rest);
    }
    match rest[0] {
        b'"' => quoted_length(rest),
        b'\'' => character_length(rest),
        b'r' if !in_word => raw_string_length(&rest[1..]).map_or(0, |length| length + 1),
        b'b' | b'c' if !in_word && rest.get(1) == Some(&b'r') => {
            raw_string_length(&rest[2..]).map_or(0, |length| length + 2)
        }
        _ => 0,
    }
}

fn block_comment_length(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn quoted_length(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != b'"' {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// A lifetime (`'a`) is code; `'x'` and `'\n'` are literals.
fn character_length(rest: &[u8]) -> usize {
    if rest.get(1) == Some(&b'\\') {
        let body = rest.get(3..).unwrap_or_default();
        return body.iter().position(|b| *b == b'\'').map_or(0, |end| end + 4);
    }
    (2..=5)
        .find(|end| rest.get(*end) == Some(&b'\''))
        .filter(|end| *end == 2 || rest[1] >= 0x80)
        .map_or(0, |end| end + 1)
}

/// `rest` begins after the `r`: any number of `#`, a quote, the text, a quote and as many `#`.
fn raw_string_length(rest: &[u8]) -> Option<usize> {
    let hashes = rest.iter().take_while(|b| **b == b'#').count();
    if rest.get(hashes) != Some(&b'"') {
        return None;
    }
    let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let body = &rest[hashes + 1..];
    let end = body.windows(close.len()).position(|window| window == close)?;
    Some(hashes + 1 + end + close.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_not_code() {
        let text = "a /* x /* y */ z */ b // c\n\"d \\\" e\" r#\"f \" g\"# 'h' '\\'' '\\u{41}' b\"i\" br\"j\" 'k: 'é' l";
        let left: String = code_only(text).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(left, "a b b 'k: l");
    }

    #[test]
    fn unterminated_literal_ends_with_file() {
        for text in ["\"x", "/* x", "r#\"x", "'", "'\\", "\"\\"] {
            code_only(text);
        }
    }
}
