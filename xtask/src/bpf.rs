//! eBPF objects: built from their C sources by clang, committed, and compared with new builds.
//!
//! The source is compiled under relative names, so that the object is the same wherever the checkout lies.
//! Another version of clang compiles the same source differently; that is reported and no fault.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

/// An object: its folder, and the names of source and object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BpfProgram {
    folder: &'static str,
    source: &'static str,
    object: &'static str,
}

/// All objects of the checkout.
pub const PROGRAMS: [BpfProgram; 4] = [
    BpfProgram { folder: "system/marker/bpf", source: "marker.bpf.c", object: "marker.bpfel.o" },
    BpfProgram { folder: "system/sampler/bpf", source: "sampler.bpf.c", object: "sampler.bpfel.o" },
    BpfProgram { folder: "system/lab/bpf", source: "tag.bpf.c", object: "tag.bpfel.o" },
    BpfProgram { folder: "system/lab/bpf", source: "arrival.bpf.c", object: "arrival.bpfel.o" },
];

/// Version of clang that built the committed objects (Debian 12).
const CLANG: &str = "14.0.6";

/// Comparison of a new build with the committed object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Comparison {
    /// Equal bytes.
    Same,
    /// Different bytes by the same clang: the object does not match its source.
    Different,
    /// Different bytes by another version of clang: inconclusive.
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
    Ok(version.context("clang does not print its version")?.to_owned())
}

impl BpfProgram {
    /// Builds the object into `to`.
    ///
    /// # Errors
    /// When clang or llvm-strip is missing, or the source has an error.
    pub fn build(self, root: &Path, to: &Path) -> Result<()> {
        let folder = root.join(self.folder);
        let here = folder.to_str().context("the path of the checkout is no text")?;
        let object = to.to_str().context("the path of the object is no text")?;
        let map = format!("-ffile-prefix-map={here}=.");
        let compile = [
            "-O2",
            "-g",
            "-Wall",
            "-Werror",
            "-target",
            "bpf",
            "-mcpu=v3",
            &map,
            "-c",
            self.source,
            "-o",
            object,
        ];
        run("clang", &compile, &folder)?;
        // Strip line numbers and keep types, which the loader needs.
        run("llvm-strip", &["-g", object], &folder)?;
        Ok(())
    }

    /// Builds the object into the checkout.
    ///
    /// # Errors
    /// As [`Self::build`].
    pub fn renew(self, root: &Path) -> Result<()> {
        self.build(root, &root.join(self.folder).join(self.object))
    }

    /// Builds the object elsewhere and compares.
    ///
    /// # Errors
    /// As [`Self::build`].
    pub fn check(self, root: &Path) -> Result<Comparison> {
        let fresh = tempfile::tempdir().context("no temporary directory")?;
        let new = fresh.path().join(self.object);
        self.build(root, &new)?;
        let read = |path: &Path| {
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
        };
        if read(&new)? == read(&root.join(self.folder).join(self.object))? {
            return Ok(Comparison::Same);
        }
        let version = clang_version()?;
        Ok(if version == CLANG { Comparison::Different } else { Comparison::OtherClang(version) })
    }
}

/// Runs `cargo xtask bpf`: builds or compares the objects and prints the result.
///
/// # Errors
/// As [`BpfProgram::build`], and when a committed object does not match its source.
pub fn main(root: &Path, checking: bool) -> Result<()> {
    let clang = clang_version()?;
    for program in PROGRAMS {
        let BpfProgram { folder, source, object } = program;
        if !checking {
            program.renew(root)?;
            println!("bpf: {folder}/{object} built by clang {clang}");
            continue;
        }
        match program.check(root)? {
            Comparison::Same => {
                println!("bpf: {folder}/{object} is what the source says (clang {clang})");
            }
            Comparison::OtherClang(version) => println!(
                "bpf: {folder}/{object} not compared: this is clang {version}, the committed object is by clang {CLANG}; the source compiles"
            ),
            Comparison::Different => bail!(
                "{folder}/{object} is not what {source} says: run cargo xtask bpf and commit the object"
            ),
        }
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
