//! The marker's eBPF object: built from its C source by clang, committed, and compared with a new build.
//!
//! The source is compiled under relative names, so that the object is the same wherever the checkout lies.
//! Another version of clang makes other code from the same source; that is told and is no fault.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

const FOLDER: &str = "system/marker/bpf";
const SOURCE: &str = "marker.bpf.c";
const OBJECT: &str = "marker.bpfel.o";

/// The clang of the committed object, as it says itself (Debian 12).
const CLANG: &str = "14.0.6";

/// How a new build compares with the committed object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Comparison {
    /// Byte for byte.
    Same,
    /// Not, and by the same clang: the object is not what the source says.
    Different,
    /// Not, and by this other clang, which tells nothing.
    OtherClang(String),
}

/// The version of the clang on the `PATH`.
///
/// # Errors
/// When there is none.
pub fn clang_version() -> Result<String> {
    let output = run("clang", &["--version"], Path::new("/"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.split_whitespace().skip_while(|word| *word != "version").nth(1);
    Ok(version.context("clang does not tell its version")?.to_owned())
}

/// Builds the object into `to`.
///
/// # Errors
/// When clang or llvm-strip is missing, or the source has an error.
pub fn build(root: &Path, to: &Path) -> Result<()> {
    let folder = root.join(FOLDER);
    let here = folder.to_str().context("the path of the checkout is no text")?;
    let object = to.to_str().context("the path of the object is no text")?;
    let map = format!("-ffile-prefix-map={here}=.");
    let compile = [
        "-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3", &map, "-c", SOURCE, "-o",
        object,
    ];
    run("clang", &compile, &folder)?;
    // Line numbers go, types stay: the loader needs them.
    run("llvm-strip", &["-g", object], &folder)?;
    Ok(())
}

/// Builds the object into the checkout.
///
/// # Errors
/// As [`build`].
pub fn renew(root: &Path) -> Result<()> {
    build(root, &root.join(FOLDER).join(OBJECT))
}

/// Builds the object elsewhere and compares.
///
/// # Errors
/// As [`build`].
pub fn check(root: &Path) -> Result<Comparison> {
    let fresh = tempfile::tempdir().context("no temporary directory")?;
    let new = fresh.path().join(OBJECT);
    build(root, &new)?;
    let read = |path: &Path| {
        std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
    };
    if read(&new)? == read(&root.join(FOLDER).join(OBJECT))? {
        return Ok(Comparison::Same);
    }
    let version = clang_version()?;
    Ok(if version == CLANG { Comparison::Different } else { Comparison::OtherClang(version) })
}

/// Does what `cargo xtask bpf` was asked, and says so.
///
/// # Errors
/// As [`build`], and when the committed object is not what the source says.
pub fn main(root: &Path, checking: bool) -> Result<()> {
    if !checking {
        renew(root)?;
        println!("bpf: {FOLDER}/{OBJECT} built by clang {}", clang_version()?);
        return Ok(());
    }
    match check(root)? {
        Comparison::Same => println!(
            "bpf: the committed object is what the source says (clang {})",
            clang_version()?
        ),
        Comparison::OtherClang(version) => println!(
            "bpf: not compared: this is clang {version}, the committed object is by clang {CLANG}; the source compiles"
        ),
        Comparison::Different => bail!(
            "{FOLDER}/{OBJECT} is not what {SOURCE} says: run cargo xtask bpf and commit the object"
        ),
    }
    Ok(())
}

fn run(program: &str, arguments: &[&str], folder: &Path) -> Result<Output> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .output()
        .with_context(|| format!("cannot run {program}: tools/setup.sh bpf installs it"))?;
    if !output.status.success() {
        bail!("{program} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output)
}
