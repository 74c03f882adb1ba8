//! Project rules that the compiler does not check; returns one list of faults.
//!
//! `layers` checks the manifests, `folders` the imports inside a crate, `source` the Rust files, `language` their names and
//! comments, `text` the documents. Each takes the root of a checkout, so that tests can check a broken one. A fault names
//! the file, the error and the remedy.

mod folders;
mod language;
mod layers;
mod source;
mod text;

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub use language::{list, lower, rules};

/// A broken rule with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TidyFault {
    /// File, relative to the root.
    pub path: PathBuf,
    /// Line number from 1; 0 for the whole file.
    pub line: usize,
    /// Description of the fault, and its remedy.
    pub message: String,
}

impl fmt::Display for TidyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path.display(), self.message),
            line => write!(f, "{}:{line}: {}", self.path.display(), self.message),
        }
    }
}

/// All faults of the checkout at `root`, in the order of their files.
pub fn check(root: &Path) -> Result<Vec<TidyFault>> {
    let files = checkout_files(root)?;
    let mut faults = layers::check(root)?;
    faults.extend(folders::check(root, &files)?);
    faults.extend(source::check(root, &files)?);
    faults.extend(text::check(root, &files)?);
    faults.extend(language::check(root, &files)?);
    faults.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    Ok(faults)
}

/// Every file of the checkout, relative to `root`; build output, hidden folders and vendored code are left out.
fn checkout_files(root: &Path) -> Result<Vec<PathBuf>> {
    const NOT_OURS: [&str; 4] = ["target", "vendor", "node_modules", "shared"];
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let here = root.join(&folder);
        for entry in
            std::fs::read_dir(&here).with_context(|| format!("cannot list {}", here.display()))?
        {
            let entry = entry?;
            let name = entry.file_name();
            let Some(text) = name.to_str() else { continue };
            let kind = entry.file_type()?;
            if kind.is_dir() && !text.starts_with('.') && !NOT_OURS.contains(&text) {
                folders.push(folder.join(text));
            } else if kind.is_file() {
                found.push(folder.join(text));
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn sound() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            "README.md",
            "See [map](ARCHITECTURE.md#rooms).\n\n`penstock cp` copies.\n",
        );
        write(dir.path(), "ARCHITECTURE.md", "# Rooms\n");
        write(dir.path(), "CHANGELOG.md", "# Changes\n");
        write(dir.path(), "docs/help/cp.txt", "Copy\n");
        write(dir.path(), "core/a/Cargo.toml", "[package]\nname = \"penstock-a\"\n");
        write(
            dir.path(),
            "core/a/src/lib.rs",
            "//! A.\n#![forbid(unsafe_code)]\n// unsafe in words\n",
        );
        write(dir.path(), "system/sys/Cargo.toml", "[package]\nname = \"penstock-sys\"\n");
        write(dir.path(), "system/sys/src/lib.rs", "//! Sys.\nunsafe fn f() {}\n");
        dir
    }

    fn messages(root: &Path) -> Vec<String> {
        check(root).unwrap().iter().map(ToString::to_string).collect()
    }

    #[track_caller]
    fn assert_one(root: &Path, path: &str, part: &str) {
        let all = messages(root);
        assert!(all.len() == 1 && all[0].starts_with(path) && all[0].contains(part), "{all:?}");
    }

    #[test]
    fn sound_checkout_has_no_faults() {
        assert_eq!(messages(sound().path()), Vec::<String>::new());
    }

    #[test]
    fn upward_dependency_is_a_fault() {
        let dir = sound();
        let manifest =
            "[package]\nname = \"penstock-a\"\n[dependencies]\npenstock-sys.workspace = true\n";
        write(dir.path(), "core/a/Cargo.toml", manifest);
        assert_one(dir.path(), "core/a/Cargo.toml", "penstock-sys");
    }

    #[test]
    fn build_dependencies_count_dev_do_not() {
        let dir = sound();
        let manifest = "[package]\nname = \"penstock-a\"\n[dev-dependencies]\npenstock-sys.workspace = true\n\
                        [target.'cfg(unix)'.build-dependencies]\nx = { package = \"penstock-sys\", path = \"y\" }\n";
        write(dir.path(), "core/a/Cargo.toml", manifest);
        assert_one(dir.path(), "core/a/Cargo.toml", "penstock-sys");
    }

    #[test]
    fn unsafe_outside_sys_has_line() {
        let dir = sound();
        write(
            dir.path(),
            "core/a/src/b.rs",
            "//! B: \"unsafe\".\nconst S: &str = r#\"unsafe \"#;\nunsafe fn f() {}\n",
        );
        assert_one(dir.path(), "core/a/src/b.rs:3", "unsafe");
    }

    #[test]
    fn sql_outside_repository_is_fault() {
        let dir = sound();
        let text = "//! B: sqlx.\nuse sqlx::Row;\n";
        write(dir.path(), "services/controller/src/repository/b.rs", text);
        write(dir.path(), "services/controller/src/api/b.rs", text);
        assert_one(dir.path(), "services/controller/src/api/b.rs:2", "repository");
    }

    #[test]
    fn crate_root_must_forbid_unsafe() {
        let dir = sound();
        write(dir.path(), "core/a/src/lib.rs", "//! A. #![forbid(unsafe_code)]\n");
        assert_one(dir.path(), "core/a/src/lib.rs", "forbid(unsafe_code)");
    }

    #[test]
    fn long_or_undocumented_file_is_fault() {
        let dir = sound();
        write(dir.path(), "core/a/src/b.rs", &format!("//! B.\n{}", "// x\n".repeat(800)));
        assert_one(dir.path(), "core/a/src/b.rs", "801 lines");
        write(dir.path(), "core/a/src/b.rs", "fn f() {}\n");
        assert_one(dir.path(), "core/a/src/b.rs", "//!");
    }

    #[test]
    fn dead_link_outside_code_is_fault() {
        let dir = sound();
        write(
            dir.path(),
            "ARCHITECTURE.md",
            "```\n[x](gone.md)\n```\n\n[y](gone.md) [z](https://example.org/)\n",
        );
        assert_one(dir.path(), "ARCHITECTURE.md:5", "gone.md");
    }

    #[test]
    fn import_from_higher_folder_is_fault() {
        let dir = sound();
        let file = |path: &str, text: &str| {
            write(dir.path(), &format!("system/mover/src/{path}"), &format!("//! M.\n{text}"));
        };
        file("net/dial.rs", "use crate::base::lock::lock;\nuse super::frame::Frame;\n");
        file("source/scan.rs", "#[cfg(test)]\nmod tests {\n    use crate::server::agent;\n}\n");
        assert_eq!(messages(dir.path()), Vec::<String>::new());
        file("source/scan.rs", "use crate::sink::file::File;\n");
        assert_one(dir.path(), "system/mover/src/source/scan.rs", "`sink::file`");
    }

    #[test]
    fn cycle_of_four_modules_is_fault() {
        let dir = sound();
        let file = |name: &str, to: &str| {
            let text = format!("//! M.\nuse super::{to}::X;\n");
            write(dir.path(), &format!("system/mover/src/net/{name}.rs"), &text);
        };
        file("a", "b");
        file("b", "c");
        file("c", "a");
        assert_eq!(messages(dir.path()), Vec::<String>::new());
        file("c", "d");
        file("d", "a");
        assert_one(dir.path(), "system/mover/src", "4 modules");
    }

    #[test]
    fn verb_missing_in_readme_is_fault() {
        let dir = sound();
        write(dir.path(), "docs/help/serve.txt", "Serve\n");
        assert_one(dir.path(), "README.md", "penstock serve");
    }
}
