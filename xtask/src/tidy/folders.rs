//! Order of the folders inside a crate: a module imports from its own folder and from lower ones alone.
//!
//! Reads the paths that begin with `crate::` or `super::`; code of tests may import anything. Cycles within a folder have
//! at most three modules.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::TidyFault;
use super::source::code_only;

/// Crates with ordered folders, lowest level first. Folders of one level do not import each other.
const ORDERS: [(&str, &[&[&str]]); 1] = [(
    "system/mover/src",
    &[
        &["base"],
        &["net"],
        &["session"],
        &["source", "sink"],
        &["endpoint"],
        &["client"],
        &["server"],
    ],
)];
/// Folders whose files are compiled for tests alone.
const TEST_FOLDERS: [&str; 2] = ["simulation", "tests"];
/// Largest number of modules that may import each other in a circle.
const CYCLE_MODULES_MAX: usize = 3;

type ImportGraph = BTreeMap<Vec<String>, BTreeSet<Vec<String>>>;

pub(super) fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<TidyFault>> {
    let mut faults = Vec::new();
    for (folder, levels) in ORDERS {
        let mut graph = ImportGraph::new();
        for path in files.iter().filter(|path| path.starts_with(folder)) {
            let Some(module) = module_of(path.strip_prefix(folder)?) else { continue };
            let text = std::fs::read_to_string(root.join(path))
                .with_context(|| format!("cannot read {}", path.display()))?;
            let code = code_only(&text);
            let code = code.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            let imports = imports(code, &module);
            for to in imports.iter().filter(|to| !is_lower(&to[0], &module[0], levels)) {
                let message = format!(
                    "`{}` imports `{}` of a folder that is not below its own: move the shared part down",
                    module.join("::"),
                    to.join("::")
                );
                faults.push(TidyFault { path: path.clone(), line: 0, message });
            }
            graph.insert(module, imports);
        }
        faults.extend(cycles(&graph).into_iter().map(|names| TidyFault {
            path: folder.into(),
            line: 0,
            message: format!(
                "{} modules import each other ({}), {CYCLE_MODULES_MAX} may: move what they share into one below them",
                names.len(),
                names.join(", ")
            ),
        }));
    }
    Ok(faults)
}

/// Path of the module in a file such as `net/dial.rs`; `None` for the crate root and for tests.
fn module_of(path: &Path) -> Option<Vec<String>> {
    let names = path.with_extension("");
    let mut names: Vec<_> = names.iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if names.last().is_some_and(|name| name == "mod") {
        names.pop();
    }
    let is_test = names.iter().any(|name| TEST_FOLDERS.contains(&name.as_str()));
    (!is_test && names != ["lib"] && path.extension()? == "rs").then_some(names)
}

/// Modules that `code` of `module` names, as paths from the crate root.
fn imports(code: &str, module: &[String]) -> BTreeSet<Vec<String>> {
    let mut found = BTreeSet::new();
    for (prefix, base) in [("crate::", &[][..]), ("super::", &module[..module.len() - 1])] {
        for rest in code.split(prefix).skip(1) {
            let is_name = |part: &&str| {
                part.starts_with(|first: char| first.is_ascii_lowercase())
                    && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            };
            for path in use_paths(rest) {
                let parts = path.split("::").take_while(is_name).map(str::to_owned);
                let target: Vec<_> = base.iter().cloned().chain(parts).collect();
                if !target.is_empty() && target != base {
                    found.insert(target);
                }
            }
        }
    }
    found
}

/// Paths at the start of `text`: one, or all of a group such as `a::{b, c::{d, e}}`.
fn use_paths(text: &str) -> Vec<String> {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || "_:".contains(c)));
    let (path, rest) = text.split_at(end.unwrap_or(text.len()));
    let Some(group) = rest.strip_prefix('{').filter(|_| path.is_empty() || path.ends_with("::"))
    else {
        return vec![path.to_owned()];
    };
    let (mut depth, mut start) = (0, 0);
    let mut members = Vec::new();
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                members.push(group[start..at].trim());
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    let members = members.into_iter().filter(|member| !member.is_empty());
    members.flat_map(use_paths).map(|member| format!("{path}{member}")).collect()
}

fn is_lower(to: &str, from: &str, levels: &[&[&str]]) -> bool {
    let level = |name: &str| levels.iter().position(|folders| folders.contains(&name));
    to == from || level(to).is_some_and(|to| level(from).is_some_and(|from| to < from))
}

/// Groups of more than [`CYCLE_MODULES_MAX`] modules that reach each other.
fn cycles(graph: &ImportGraph) -> BTreeSet<Vec<String>> {
    // A path names a module, or something inside one: the longest known prefix counts.
    let known = |path: &Vec<String>| {
        (1..=path.len()).rev().map(|len| &path[..len]).find_map(|path| graph.get_key_value(path))
    };
    let reached = |from: &Vec<String>| {
        let mut seen = BTreeSet::new();
        let mut open: Vec<_> = graph[from].iter().filter_map(known).collect();
        while let Some((module, imports)) = open.pop() {
            if seen.insert(module.clone()) {
                open.extend(imports.iter().filter_map(known));
            }
        }
        seen
    };
    let all: BTreeMap<_, _> = graph.keys().map(|module| (module, reached(module))).collect();
    let group = |module: &Vec<String>| -> Vec<String> {
        let mutual = all[module].iter().filter(|other| all[*other].contains(module));
        mutual.map(|other| other.join("::")).collect()
    };
    graph.keys().map(group).filter(|names| names.len() > CYCLE_MODULES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_name_all_their_modules() {
        assert_eq!(use_paths("a::b;"), ["a::b"]);
        assert_eq!(use_paths("a::{b, c::{d, E},\n f};"), ["a::b", "a::c::d", "a::c::E", "a::f"]);
        let module = ["net".to_owned(), "dial".to_owned()];
        let found = imports(
            "use crate::{base::lock::lock, sink::{file, storage::X}};\nuse super::{tls, A};",
            &module,
        );
        let names: Vec<_> = found.iter().map(|path| path.join("::")).collect();
        assert_eq!(names, ["base::lock::lock", "net::tls", "sink::file", "sink::storage"]);
    }
}
