//! `cargo xtask package`: a deb, an rpm and an archive of the static binary with units, man pages and completions, and
//! an archive of its symbols.
//!
//! Each has a bill of materials (`sbom`) and the licences of third parties. Times of files are those of the commit, so that
//! the same binary gives the same packages. Nothing is started or enabled by an installation. Texts are in
//! `deploy/packages`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::program::output_text;
use crate::sbom::SoftwareInventory;
use crate::static_build;

/// Version of the packages.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Files of the checkout and their paths in the packages.
const FILES: [(&str, &str); 13] = [
    ("deploy/systemd/penstock.service", "usr/lib/systemd/system/penstock.service"),
    (
        "deploy/systemd/penstock-collector.service",
        "usr/lib/systemd/system/penstock-collector.service",
    ),
    (
        "deploy/systemd/penstock-controller.service",
        "usr/lib/systemd/system/penstock-controller.service",
    ),
    ("deploy/systemd/penstock-sample.service", "usr/lib/systemd/system/penstock-sample.service"),
    ("deploy/systemd/penstock-tag.service", "usr/lib/systemd/system/penstock-tag.service"),
    (
        "deploy/systemd/penstock.service.d/disks.conf",
        "usr/share/doc/penstock/examples/penstock.service.d/disks.conf",
    ),
    (
        "deploy/systemd/penstock.service.d/rdma.conf",
        "usr/share/doc/penstock/examples/penstock.service.d/rdma.conf",
    ),
    ("deploy/systemd/penstock.sysusers", "usr/lib/sysusers.d/penstock.conf"),
    ("deploy/systemd/penstock.tmpfiles", "usr/lib/tmpfiles.d/penstock.conf"),
    ("deploy/prometheus/penstock.rules.yml", "usr/share/doc/penstock/examples/penstock.rules.yml"),
    ("deploy/penstock.toml", "usr/share/doc/penstock/examples/penstock.toml"),
    ("deploy/penstock.toml", "etc/penstock/penstock.toml"),
    ("deploy/collector.toml", "etc/penstock/collector.toml"),
];

/// Files that an upgrade never replaces once they are changed.
const CONFIGURATIONS: [&str; 2] = ["etc/penstock/penstock.toml", "etc/penstock/collector.toml"];

/// Options of `cargo xtask package`.
#[derive(Debug, Args)]
pub struct Options {
    /// Static binary to use in place of a static release build
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Directory of the packages
    #[arg(long, value_name = "DIR", default_value = "target/package")]
    output: PathBuf,
}

/// Builds the packages and prints their paths.
///
/// # Errors
/// When the build or a program of packaging fails.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => static_build::build(root)?,
    };
    for package in build(root, &binary, &root.join(&options.output))? {
        println!("package: {} ({} bytes)", package.display(), fs::metadata(&package)?.len());
    }
    Ok(())
}

/// Builds the packages with `binary` in `output`; returns their paths.
///
/// # Errors
/// When the binary is linked dynamically, or a program of packaging is missing or fails.
pub fn build(root: &Path, binary: &Path, output: &Path) -> Result<Vec<PathBuf>> {
    let time = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(time) => time,
        Err(_) => {
            text_of(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root))?
        }
    };
    // It runs, too: a name without a folder would be searched for in `PATH`.
    let binary = binary.canonicalize().with_context(|| binary.display().to_string())?;
    ensure!(
        !static_build::is_dynamic(&binary)?,
        "{} is linked dynamically and would not start on other distributions: leave out --binary, or give the static build",
        binary.display()
    );
    let packaging = Packaging { root, binary: &binary, output, time };
    let tree = packaging.stage()?;
    let mut packages =
        vec![packaging.archive(&tree)?, packaging.rpm(&tree)?, packaging.deb(&tree)?];
    packages.extend(packaging.symbols()?);
    Ok(packages)
}

struct Packaging<'a> {
    root: &'a Path,
    binary: &'a Path,
    output: &'a Path,
    /// Seconds since 1970 of every file.
    time: String,
}

impl Packaging<'_> {
    /// Puts the files of all packages together; returns their folder.
    fn stage(&self) -> Result<PathBuf> {
        let tree = self.output.join("tree");
        let _ = fs::remove_dir_all(&tree);
        for (source, path) in FILES {
            put(&self.root.join(source), &tree.join(path), 0o644)?;
        }
        for path in CONFIGURATIONS {
            set_mode(&tree.join(path), 0o640)?;
        }
        set_mode(&tree.join("etc/penstock"), 0o750)?;
        put(self.binary, &tree.join("usr/bin/penstock"), 0o755)?;
        let pages = tree.join("usr/share/man/man1");
        fs::create_dir_all(&pages)?;
        text_of(Command::new(self.binary).args(["generate", "man"]).arg(&pages))?;
        for page in fs::read_dir(&pages)? {
            let page = page?.path();
            set_mode(&page, 0o644)?;
            text_of(Command::new("gzip").arg("-9n").arg(page))?;
        }
        for (shell, path) in [
            ("bash", "usr/share/bash-completion/completions/penstock"),
            ("zsh", "usr/share/zsh/vendor-completions/_penstock"),
            ("fish", "usr/share/fish/vendor_completions.d/penstock.fish"),
        ] {
            let text =
                Command::new(self.binary).args(["generate", "completions", shell]).output()?;
            ensure!(text.status.success(), "no completions for {shell}");
            write(&tree.join(path), &text.stdout, 0o644)?;
        }
        let documents = tree.join("usr/share/doc/penstock");
        let inventory = SoftwareInventory::read(self.root)?;
        let sbom = inventory.cyclonedx(&self.time)?;
        write(&documents.join("penstock.cdx.json"), sbom.as_bytes(), 0o644)?;
        let licenses = inventory.license_document();
        write(&documents.join("third-party-licenses.txt"), licenses.as_bytes(), 0o644)?;
        Ok(tree)
    }

    /// The files for any distribution, with the licence.
    fn archive(&self, tree: &Path) -> Result<PathBuf> {
        let archive = self.output.join(format!("penstock-{VERSION}-x86_64.tar.gz"));
        let name = format!("s,^\\.,penstock-{VERSION},");
        put(&self.root.join("LICENSE"), &tree.join("usr/share/doc/penstock/LICENSE"), 0o644)?;
        let mut tar = self.tar(&archive);
        text_of(tar.args(["--transform", &name]).arg("-C").arg(tree).arg("."))?;
        Ok(archive)
    }

    /// The symbols of the binary at the path where debuggers look for them, to be unpacked in `/`; none where
    /// `tools/strip.sh` left none beside it.
    fn symbols(&self) -> Result<Option<PathBuf>> {
        let mut symbols = self.binary.as_os_str().to_owned();
        symbols.push(".debug");
        if !Path::new(&symbols).is_file() {
            return Ok(None);
        }
        let tree = self.output.join("symbols");
        let _ = fs::remove_dir_all(&tree);
        put(Path::new(&symbols), &tree.join("usr/lib/debug/usr/bin/penstock.debug"), 0o644)?;
        let archive = self.output.join(format!("penstock-{VERSION}-x86_64-debug.tar.gz"));
        text_of(self.tar(&archive).arg("-C").arg(&tree).arg("usr"))?;
        Ok(Some(archive))
    }

    /// Begins the command that packs an archive; the same files give the same bytes.
    fn tar(&self, archive: &Path) -> Command {
        let mut tar = Command::new("tar");
        tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"])
            .arg(format!("--mtime=@{}", self.time))
            .args(["--use-compress-program", "gzip -9n", "-cf"])
            .arg(archive);
        tar
    }

    fn rpm(&self, tree: &Path) -> Result<PathBuf> {
        let top = self.output.join("rpmbuild");
        let _ = fs::remove_dir_all(&top);
        fs::create_dir_all(&top)?;
        let list = top.join("files");
        let mut lines =
            String::from("%defattr(-,root,root)\n%dir %attr(0750,root,root) /etc/penstock\n");
        for file in files_below(tree)? {
            let path = file.strip_prefix(tree)?.display().to_string();
            let is_configuration = CONFIGURATIONS.contains(&path.as_str());
            lines += if is_configuration { "%config(noreplace) /" } else { "/" };
            lines += &path;
            lines.push('\n');
        }
        fs::write(&list, lines)?;
        let absolute =
            |path: &Path| std::path::absolute(path).map(|path| path.display().to_string());
        let spec = self.filled("penstock.spec")?.replace("@TREE@", &absolute(tree)?);
        let file = top.join("penstock.spec");
        fs::write(&file, spec.replace("@FILES@", &absolute(&list)?))?;
        let mut rpmbuild = Command::new("rpmbuild");
        rpmbuild
            .args(["-bb", "--quiet", "--define", &format!("_topdir {}", absolute(&top)?)])
            .env("SOURCE_DATE_EPOCH", &self.time)
            .arg(&file);
        text_of(&mut rpmbuild)?;
        let name = format!("penstock-{VERSION}-1.x86_64.rpm");
        let package = self.output.join(&name);
        fs::rename(top.join("RPMS/x86_64").join(&name), &package).context("rpmbuild made none")?;
        Ok(package)
    }

    fn deb(&self, tree: &Path) -> Result<PathBuf> {
        let documents = tree.join("usr/share/doc/penstock");
        let _ = fs::remove_file(documents.join("LICENSE"));
        put(&self.source("copyright"), &documents.join("copyright"), 0o644)?;
        put(
            &self.source("lintian-overrides"),
            &tree.join("usr/share/lintian/overrides/penstock"),
            0o644,
        )?;
        let date = text_of(Command::new("date").args(["-uR", "-d", &format!("@{}", self.time)]))?;
        let changes = format!(
            "penstock ({VERSION}-1) unstable; urgency=medium\n\n  * Release {VERSION}: see CHANGELOG.md.\n\n \
             -- Penstock <maintainers@penstock.invalid>  {date}\n"
        );
        let changelog = documents.join("changelog.Debian");
        write(&changelog, changes.as_bytes(), 0o644)?;
        text_of(Command::new("gzip").arg("-9n").arg(&changelog))?;
        let files = files_below(tree)?;
        let bytes: u64 = files.iter().filter_map(|file| Some(fs::metadata(file).ok()?.len())).sum();
        let mut sums = String::new();
        for file in &files {
            let path = file.strip_prefix(tree)?.display().to_string();
            let sum = text_of(Command::new("md5sum").arg(file))?;
            sums += &format!("{}  {path}\n", sum.split_whitespace().next().unwrap_or_default());
        }
        let control = tree.join("DEBIAN");
        let text = self.filled("control")?.replace("@KILOBYTES@", &(bytes / 1024).to_string());
        write(&control.join("control"), text.as_bytes(), 0o644)?;
        write(&control.join("md5sums"), sums.as_bytes(), 0o644)?;
        let configurations = CONFIGURATIONS.map(|path| format!("/{path}\n")).concat();
        write(&control.join("conffiles"), configurations.as_bytes(), 0o644)?;
        for script in ["postinst", "prerm", "postrm"] {
            put(&self.source(script), &control.join(script), 0o755)?;
        }
        let package = self.output.join(format!("penstock_{VERSION}-1_amd64.deb"));
        let mut dpkg = Command::new("dpkg-deb");
        dpkg.args(["--root-owner-group", "-Zxz", "--build"])
            .args([tree, &package])
            .env("SOURCE_DATE_EPOCH", &self.time);
        text_of(&mut dpkg)?;
        Ok(package)
    }

    fn source(&self, name: &str) -> PathBuf {
        self.root.join("deploy/packages").join(name)
    }

    fn filled(&self, name: &str) -> Result<String> {
        let file = self.source(name);
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        Ok(text.replace("@VERSION@", VERSION))
    }
}

/// Files below a folder, sorted.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => files.extend(files_below(&path)?),
            false => files.push(path),
        }
    }
    files.sort();
    Ok(files)
}

fn put(source: &Path, target: &Path, mode: u32) -> Result<()> {
    let bytes = fs::read(source).with_context(|| format!("cannot read {}", source.display()))?;
    write(target, &bytes, mode)
}

/// Writes a file and the folders above it, whose modes do not depend on the umask.
fn write(target: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let folder = target.parent().context("a file without a folder")?;
    let mut new: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.exists()).collect();
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    new.drain(..).try_for_each(|folder| set_mode(folder, 0o755))?;
    fs::write(target, bytes).with_context(|| target.display().to_string())?;
    set_mode(target, mode)
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, PermissionsExt::from_mode(mode))
        .with_context(|| path.display().to_string())
}

/// Runs a program; returns its output without the final newline.
fn text_of(command: &mut Command) -> Result<String> {
    output_text(command, "package")
}
