//! Rules for documents: no dead links, every verb in the README, a change log, no forbidden words.
//!
//! The verbs are those of `docs/help/*.txt`, which a test of the binary keeps equal to `--help`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::TidyFault;

/// Words that must not occur in a published repository. Split, so that this file does not contain them.
const STRAY_WORDS: [&str; 3] =
    [concat!("cla", "ude"), concat!("sub", "agent"), concat!("as an ", "ai ")];
/// File name extensions of text files that are checked.
const READABLE: [&str; 10] = ["md", "rs", "toml", "txt", "sh", "py", "js", "html", "css", "json"];

pub(super) fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<TidyFault>> {
    let mut faults = Vec::new();
    for needed in ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"] {
        if !root.join(needed).is_file() {
            faults.push(TidyFault {
                path: needed.into(),
                line: 0,
                message: "is missing: every checkout has one".to_owned(),
            });
        }
    }
    faults.extend(verbs_in_readme(root, files));
    for path in files {
        let ending = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        if !READABLE.contains(&ending) {
            continue;
        }
        let bytes = std::fs::read(root.join(path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        let text = String::from_utf8_lossy(&bytes);
        for (at, line) in text.lines().enumerate() {
            let lower = line.to_lowercase();
            for word in STRAY_WORDS.iter().filter(|word| lower.contains(**word)) {
                let message =
                    format!("`{word}` is not for this repository: say what the reader needs");
                faults.push(TidyFault { path: path.clone(), line: at + 1, message });
            }
        }
        if ending == "md" {
            faults.extend(dead_links(root, path, &text));
        }
    }
    Ok(faults)
}

fn verbs_in_readme(root: &Path, files: &[PathBuf]) -> Vec<TidyFault> {
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap_or_default();
    let help = files.iter().filter(|path| path.parent() == Some(Path::new("docs/help")));
    let verbs = help.filter_map(|path| path.file_stem()?.to_str());
    verbs
        .filter(|verb| *verb != "penstock")
        .map(|verb| format!("penstock {verb}"))
        .filter(|command| !readme.contains(command.as_str()))
        .map(|command| TidyFault {
            path: "README.md".into(),
            line: 0,
            message: format!("does not mention `{command}`"),
        })
        .collect()
}

/// Relative links whose target does not exist. Ignores fenced blocks and links with a scheme.
fn dead_links(root: &Path, path: &Path, text: &str) -> Vec<TidyFault> {
    let mut faults = Vec::new();
    let mut fenced = false;
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if fenced {
            continue;
        }
        for target in link_targets(line) {
            let file = target.split('#').next().unwrap_or_default();
            if file.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let from = match file.strip_prefix('/') {
                Some(absolute) => root.join(absolute),
                None => root.join(path).parent().unwrap_or(root).join(file),
            };
            if !from.exists() {
                faults.push(TidyFault {
                    path: path.to_path_buf(),
                    line: at + 1,
                    message: format!("link to `{file}`, which does not exist"),
                });
            }
        }
    }
    faults
}

/// Targets of links `[text](target)` outside inline code.
fn link_targets(line: &str) -> Vec<String> {
    let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
    let mut targets = Vec::new();
    let mut rest = prose.as_str();
    while let Some(start) = rest.find("](") {
        rest = &rest[start + 2..];
        let Some(end) = rest.find(')') else { break };
        let inside = rest[..end].split_whitespace().next().unwrap_or_default();
        targets.push(inside.trim_matches(['<', '>']).to_owned());
        rest = &rest[end..];
    }
    targets
}
