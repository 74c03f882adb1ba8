//! What a page of the documentation needs to run: `pages/NAME.toml`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::extract::Part;

/// Setup of a page, and rules for those of its commands that need one. All others run to their end with exit code 0.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Page {
    /// Commands that make what the page takes for granted, such as another host; `sandbox.sh` has functions for it.
    #[serde(default)]
    pub(crate) setup: String,
    /// Whether it takes a user who is root outside the sandbox too: eBPF, labs, owners of files.
    #[serde(default)]
    pub(crate) root: bool,
    #[serde(default)]
    command: Vec<Rule>,
}

/// How the commands that begin with `is` are run; the rule with the longest `is` counts.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    pub(crate) is: String,
    /// Why it cannot run here.
    pub(crate) not_run: Option<String>,
    /// Host on which the page says that it runs.
    pub(crate) on: Option<String>,
    /// Words that the page tells its reader to replace.
    #[serde(default)]
    pub(crate) replace: BTreeMap<String, String>,
    /// A program that runs until it is interrupted: the page goes on once it has printed this.
    pub(crate) goes_on_after: Option<String>,
    /// As if the reader pressed Ctrl-C once it has printed this.
    pub(crate) interrupt_after: Option<String>,
    /// Exit code, also after an interrupt.
    #[serde(default)]
    pub(crate) code: i32,
    /// Parts of what it prints.
    #[serde(default)]
    pub(crate) prints: Vec<String>,
    /// Commands before it, as those of the setup.
    pub(crate) before: Option<String>,
    /// A check of its effect: a command that must succeed.
    pub(crate) after: Option<String>,
}

impl Page {
    pub(crate) fn rule(&self, command: &str) -> Rule {
        let line = on_one_line(command);
        let rules = self.command.iter().filter(|rule| line.starts_with(&rule.is));
        rules.max_by_key(|rule| rule.is.len()).cloned().unwrap_or_default()
    }

    /// Rules that no command of the page needs.
    pub(crate) fn stale(&self, parts: &[Part]) -> Vec<String> {
        let is_used = |rule: &&Rule| {
            parts.iter().any(|part| match part {
                Part::Command { text, .. } => self.rule(text).is == rule.is,
                _ => false,
            })
        };
        let stale = self.command.iter().filter(|rule| !is_used(rule));
        stale
            .map(|rule| format!("the rule for `{}` fits no command of the page", rule.is))
            .collect()
    }
}

/// A command without the ends of its lines.
fn on_one_line(command: &str) -> String {
    command.split("\\\n").map(str::trim).collect::<Vec<_>>().join(" ")
}

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/documentation/pages")
}

pub(crate) fn path(page: &str) -> PathBuf {
    let name = page.trim_end_matches(".md").replace(['/', ' '], "-");
    folder().join(format!("{name}.toml"))
}

/// The setup of a page; an empty one where it has no file.
pub(crate) fn read(page: &str) -> Page {
    let path = path(page);
    match fs::read_to_string(&path) {
        Ok(text) => {
            toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Page::default(),
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// The text as one word of a shell.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
