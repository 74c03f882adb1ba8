//! Setup of a documentation page: `pages/NAME.toml`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::extract::Part;

/// Setup of a page, and rules for commands that need one. All others must end with exit code 0.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Page {
    /// Commands that create the page's prerequisites, such as another host; `sandbox.sh` has functions for it.
    #[serde(default)]
    pub(crate) setup: String,
    /// Set when the page needs root outside the sandbox too: eBPF, labs, owners of files.
    #[serde(default)]
    pub(crate) root: bool,
    #[serde(default)]
    command: Vec<Rule>,
}

/// Rule for commands that begin with `is`; the longest matching `is` applies.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    pub(crate) is: String,
    /// Reason why the command cannot run in a sandbox.
    pub(crate) not_run: Option<String>,
    /// Host on which the page runs the command.
    pub(crate) on: Option<String>,
    /// Placeholders of the page and their values.
    #[serde(default)]
    pub(crate) replace: BTreeMap<String, String>,
    /// Output after which the page continues, for a program that runs until it is interrupted.
    pub(crate) goes_on_after: Option<String>,
    /// Output after which the command receives SIGINT.
    pub(crate) interrupt_after: Option<String>,
    /// Expected exit code, also after an interrupt.
    #[serde(default)]
    pub(crate) code: i32,
    /// Texts that the output must contain.
    #[serde(default)]
    pub(crate) prints: Vec<String>,
    /// Commands to run before it, as in the setup.
    pub(crate) before: Option<String>,
    /// Command that checks the effect and must succeed.
    pub(crate) after: Option<String>,
}

impl Page {
    pub(crate) fn rule(&self, command: &str) -> Rule {
        let line = on_one_line(command);
        let rules = self.command.iter().filter(|rule| line.starts_with(&rule.is));
        rules.max_by_key(|rule| rule.is.len()).cloned().unwrap_or_default()
    }

    /// Rules that match no command of the page.
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

/// Joins the lines of a command.
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

/// Reads the setup of a page; empty if it has no file.
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

/// Quotes the text as one word of a shell.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}
