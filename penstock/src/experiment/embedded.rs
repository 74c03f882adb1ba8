//! Embedded experiments: without a source tree a run extracts them into a temporary directory.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::Context;
use tempfile::TempDir;

/// Paths below `experiments/` with their contents.
const FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/experiments.rs"));
const DEFINITION: &str = "experiment.toml";

/// Sorted names of all experiments.
pub(super) fn names() -> Vec<&'static str> {
    let folder =
        |(path, _): &(&'static str, &[u8])| path.strip_suffix(DEFINITION)?.strip_suffix('/');
    let names: BTreeSet<&str> = FILES.iter().filter_map(folder).collect();
    names.into_iter().collect()
}

/// Content of an experiment's `experiment.toml`.
pub(super) fn definition(name: &str) -> Option<&'static [u8]> {
    let path = format!("{name}/{DEFINITION}");
    FILES.iter().find(|(of, _)| *of == path).map(|(_, bytes)| *bytes)
}

/// The experiment that a path names, alone or below `experiments`.
pub(super) fn named(path: &Path) -> Option<&'static str> {
    let parts: Vec<_> = path.components().filter(|part| *part != Component::CurDir).collect();
    let name = match parts.as_slice() {
        [Component::Normal(name)] => name,
        [Component::Normal(folder), Component::Normal(name)] if *folder == "experiments" => name,
        _ => return None,
    };
    names().into_iter().find(|known| *name == *known)
}

/// Extracts all experiments into a temporary directory; returns it and the folder of `name`.
pub(super) fn extract(name: &str) -> anyhow::Result<(TempDir, PathBuf)> {
    let directory = tempfile::Builder::new()
        .prefix("penstock-experiments-")
        .tempdir()
        .context("cannot make a directory for the experiment")?;
    for (path, bytes) in FILES {
        let file = directory.path().join(path);
        let cannot = || format!("cannot write {}", file.display());
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder).with_context(cannot)?;
        }
        fs::write(&file, bytes).with_context(cannot)?;
    }
    let folder = directory.path().join(name);
    Ok((directory, folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_experiments_are_embedded() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../experiments");
        let mut there: Vec<String> = fs::read_dir(root)
            .unwrap()
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.path().join(DEFINITION).exists())
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        there.sort();
        assert_eq!(names(), there);
        let (_directory, folder) = extract("heps-fabric").unwrap();
        assert!(folder.join("../topologies/heps.toml").exists());
    }

    #[test]
    fn paths_name_embedded_experiments() {
        for path in
            ["buffers", "experiments/buffers", "./experiments/buffers", "experiments/buffers/"]
        {
            assert_eq!(named(Path::new(path)), Some("buffers"), "{path}");
        }
        for path in ["/buffers", "../buffers", "other/buffers", "topologies", ""] {
            assert_eq!(named(Path::new(path)), None, "{path}");
        }
    }
}
