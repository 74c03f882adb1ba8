//! Release builds of both sides: binaries, and the examples that measure pure crates.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::rows::CompareRow;
use crate::cargo_build::build_release;

/// Folder below the checkout for what lasts from run to run: the worktree and its target folder.
const FOLDER: &str = "target/compare";

/// An example of a crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BenchExample {
    pub(super) package: &'static str,
    /// Folder of the crate.
    pub(super) folder: &'static str,
    pub(super) name: &'static str,
}

/// Programs of one side, by name.
type ProgramPaths = BTreeMap<String, PathBuf>;

/// Programs of both sides.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ComparedBuilds {
    /// Hash of the commit, its first digits.
    pub(super) commit: String,
    before: ProgramPaths,
    now: ProgramPaths,
    /// Reasons for programs that the commit does not have.
    missing: BTreeMap<String, String>,
}

impl ComparedBuilds {
    /// Builds what `rows` need.
    pub(super) fn build(root: &Path, commit: &str, rows: &[CompareRow]) -> Result<Self> {
        let source = root.join(FOLDER).join("source");
        let commit = check_out(root, &source, commit)?;
        let target = root.join(FOLDER).join("target");
        let mut builds = Self {
            commit,
            before: BTreeMap::new(),
            now: BTreeMap::new(),
            missing: BTreeMap::new(),
        };
        if rows.iter().any(|row| row.example().is_none()) {
            eprintln!("building penstock, before and now");
            let arguments = ["-p", "penstock", "--bin", "penstock"];
            let before = build_release(&source, Some(&target), &arguments)?;
            builds.before.insert("penstock".to_owned(), before);
            builds.now.insert("penstock".to_owned(), build_release(root, None, &arguments)?);
        }
        for example in rows.iter().filter_map(|row| row.example()) {
            if builds.now.contains_key(example.name) {
                continue;
            }
            eprintln!("building {} of {}", example.name, example.package);
            let arguments = ["-p", example.package, "--example", example.name];
            builds.now.insert(example.name.to_owned(), build_release(root, None, &arguments)?);
            match build_before(root, &source, &target, example) {
                Ok(program) => {
                    builds.before.insert(example.name.to_owned(), program);
                }
                Err(error) => {
                    builds.missing.insert(example.name.to_owned(), format!("{error:#}"));
                }
            }
        }
        Ok(builds)
    }

    /// Reason for which `row` cannot be measured.
    pub(super) fn lacks(&self, row: CompareRow) -> Option<&str> {
        self.missing.get(row.program()).map(String::as_str)
    }

    /// Programs of `row`: before and now.
    pub(super) fn programs(&self, row: CompareRow) -> Result<[&Path; 2]> {
        let name = row.program();
        let both = self.before.get(name).zip(self.now.get(name));
        let (before, now) = both.with_context(|| format!("{name} was not built"))?;
        Ok([before, now])
    }

    /// Hands the paths to the process inside the network namespace.
    pub(super) fn write(&self, root: &Path) -> Result<()> {
        let path = root.join(FOLDER).join("programs.json");
        std::fs::write(&path, serde_json::to_string(self)?)
            .with_context(|| format!("cannot write {}", path.display()))
    }

    pub(super) fn read(root: &Path) -> Result<Self> {
        let path = root.join(FOLDER).join("programs.json");
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("cannot read {}", path.display()))
    }
}

/// Checks `commit` out in the worktree at `source`; returns its short id.
fn check_out(root: &Path, source: &Path, commit: &str) -> Result<String> {
    let name = format!("{commit}^{{commit}}");
    let id = git(root, &["rev-parse", "--verify", "--short=12", &name])
        .with_context(|| format!("'{commit}' names no commit of this repository"))?;
    let path = source.to_str().context("the path of the checkout is no text")?;
    if source.join(".git").exists() {
        git(source, &["checkout", "--quiet", "--force", "--detach", &id])?;
        git(source, &["clean", "--quiet", "--force", "-d"])?;
    } else {
        // The worktree of a target folder that was removed is still registered.
        git(root, &["worktree", "prune"])?;
        git(root, &["worktree", "add", "--quiet", "--force", "--detach", path, &id])?;
    }
    Ok(id)
}

/// Builds `example` of the commit: this tree's source of it, or else the commit's own.
fn build_before(
    root: &Path,
    source: &Path,
    target: &Path,
    example: BenchExample,
) -> Result<PathBuf> {
    let arguments = ["-p", example.package, "--example", example.name];
    let file = format!("{}/examples/{}.rs", example.folder, example.name);
    let own = std::fs::read(source.join(&file)).ok();
    ensure!(source.join(example.folder).is_dir(), "the commit has no {}", example.package);
    std::fs::create_dir_all(source.join(&file).with_file_name(""))?;
    let text = std::fs::read(root.join(&file)).with_context(|| format!("cannot read {file}"))?;
    std::fs::write(source.join(&file), text)?;
    let built = build_release(source, Some(target), &arguments);
    let Err(error) = built else { return built };
    let own = own.with_context(|| {
        format!("{file} of this tree does not fit the commit's crate, which has none of its own: {error:#}")
    })?;
    eprintln!("{file} of this tree does not fit the commit: its own is used");
    std::fs::write(source.join(&file), own)?;
    build_release(source, Some(target), &arguments)
}

fn git(folder: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(folder)
        .args(arguments)
        .output()
        .context("cannot run git")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git {} failed: {}", arguments.join(" "), error.trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
