//! Puts the files of `experiments/` into the binary, as a table of paths and bytes.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../experiments").canonicalize()?;
    println!("cargo:rerun-if-changed={}", root.display());
    let mut files = Vec::new();
    walk(&root, &mut files)?;
    files.sort();
    let mut table = "&[\n".to_owned();
    for file in files {
        let path = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
        let _ =
            writeln!(table, "    ({path:?}, include_bytes!({:?})),", file.display().to_string());
    }
    table.push(']');
    let out = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    fs::write(out.join("experiments.rs"), table)
}

/// All files that a run needs: results and pictures of earlier runs are left out.
fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    println!("cargo:rerun-if-changed={}", folder.display());
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_result = name == "results.md" || name.ends_with(".svg");
        if path.is_dir() && name != "__pycache__" {
            walk(&path, files)?;
        } else if path.is_file() && !is_result && !name.starts_with('.') {
            files.push(path);
        }
    }
    Ok(())
}
