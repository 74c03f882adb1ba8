//! Extraction of commands, sample files and inline code from Markdown pages and help texts.
//!
//! The first word behind a fence decides what its block holds:
//!
//! | fence | holds |
//! |---|---|
//! | `sh` | commands, one on each line; a line may go on behind `\`, and `#` begins a comment |
//! | `console` | commands behind `$ `, and what they print |
//! | `toml` with a first line `# PATH` | a file: that of the repository, else written to PATH before the commands below run |
//! | `toml` without one | a part of a file: it must be TOML |
//! | `ini`, `json`, `sql`, `text`, `python`, `yaml` | neither commands nor files; the suite in `python` runs its own |
//!
//! A block without such a word is an error. Of a help text the lines below `Examples:` are commands.

/// Languages of blocks that hold neither commands nor files.
const OTHER_LANGUAGES: [&str; 7] = ["ini", "json", "sql", "text", "mermaid", "python", "yaml"];

/// Widest line of an example in a help text: wider ones are broken on terminals of 80 columns.
const EXAMPLE_COLUMNS_MAX: usize = 80;

/// A part of a page, in the page's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    /// A command with its comments, as a shell reads it.
    Command { line: usize, text: String },
    /// Output of the preceding command, in a `console` block.
    Output { line: usize, text: String },
    /// A sample file that later commands use.
    File { line: usize, path: String, text: String },
    /// TOML without a name.
    Toml { line: usize, text: String },
}

/// Parts of a Markdown page; an error names the line.
pub(crate) fn markdown(text: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let Some(language) = line.trim_start().strip_prefix("```") else { continue };
        let mut block: Vec<&str> = Vec::new();
        let closed = lines.by_ref().map(|(_, line)| line).find(|line| {
            let closes = line.trim() == "```";
            if !closes {
                block.push(line);
            }
            closes
        });
        if closed.is_none() {
            return Err(format!("line {}: the block has no end", at + 1));
        }
        let first = at + 2;
        match language.trim() {
            "sh" => parts.extend(commands(&block, first)),
            "console" => parts.extend(session(&block, first)),
            "toml" => parts.push(toml(&block, first)),
            language if OTHER_LANGUAGES.contains(&language) => {}
            language => {
                return Err(format!(
                    "line {}: `{language}` names no kind of block: sh, console, toml, {}",
                    at + 1,
                    OTHER_LANGUAGES.join(", ")
                ));
            }
        }
    }
    Ok(parts)
}

/// Commands below `Examples:` of a help text.
pub(crate) fn help(text: &str) -> Result<Vec<Part>, String> {
    let mut examples = text.lines().enumerate().skip_while(|(_, line)| line.trim() != "Examples:");
    let Some((at, _)) = examples.next() else { return Ok(Vec::new()) };
    let block: Vec<&str> =
        examples.map(|(_, line)| line).take_while(|line| line.starts_with("  ")).collect();
    for line in &block {
        if line.chars().count() > EXAMPLE_COLUMNS_MAX {
            return Err(format!(
                "`{}` is over {EXAMPLE_COLUMNS_MAX} columns: end lines with \\",
                line.trim()
            ));
        }
    }
    let parts = commands(&block, at + 2);
    for part in &parts {
        // A continuation line without `\` would be a separate command.
        if let Part::Command { text, .. } = part
            && !text.contains("penstock ")
        {
            return Err(format!("`{text}` below Examples is no command of penstock"));
        }
    }
    Ok(parts)
}

/// Subcommands that a help text lists.
pub(crate) fn subcommands(text: &str) -> Vec<String> {
    let list = text.lines().skip_while(|line| line.trim() != "Commands:").skip(1);
    list.take_while(|line| !line.trim().is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

/// Code within lines of prose that begins with `penstock `.
pub(crate) fn inline(text: &str) -> Vec<(usize, String)> {
    let mut spans = Vec::new();
    let mut in_block = false;
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            let code = line.split('`').skip(1).step_by(2);
            let code = code.filter(|code| code.starts_with("penstock "));
            spans.extend(code.map(|code| (at + 1, code.to_owned())));
        }
    }
    spans
}

fn commands(block: &[&str], first: usize) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut lines = block.iter().enumerate();
    while let Some((at, line)) = lines.next() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut text = line.to_owned();
        while text.ends_with('\\') {
            let Some((_, more)) = lines.next() else { break };
            text = format!("{text}\n{more}");
        }
        parts.push(Part::Command { line: first + at, text });
    }
    parts
}

fn session(block: &[&str], first: usize) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for (at, line) in block.iter().enumerate() {
        match (line.strip_prefix("$ "), parts.last_mut()) {
            (Some(command), _) => {
                parts.push(Part::Command { line: first + at, text: command.to_owned() });
            }
            (None, Some(Part::Output { text, .. })) => {
                text.push('\n');
                text.push_str(line);
            }
            (None, _) => parts.push(Part::Output { line: first + at, text: (*line).to_owned() }),
        }
    }
    parts
}

fn toml(block: &[&str], line: usize) -> Part {
    let text = block.iter().map(|line| format!("{line}\n")).collect();
    let path = block.first().and_then(|first| first.strip_prefix("# "));
    match path.filter(|path| path.ends_with(".toml") && !path.contains(' ')) {
        Some(path) => Part::File { line, path: path.to_owned(), text },
        None => Part::Toml { line, text },
    }
}
