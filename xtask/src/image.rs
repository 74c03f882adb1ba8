//! `cargo xtask image`: the OCI image of `penstock`, from nothing but the static binary, without a registry.
//!
//! buildah puts the files together and writes an archive that `docker load`, `podman load` and `ctr images import` read.
//! Times of files are those of the commit, so that the same binary gives the same bytes.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::program::output_text;
use crate::sbom::SoftwareInventory;
use crate::static_build;

/// User and group of the daemons in the image: the number of the transfer port.
const DAEMON_USER_ID: u32 = 8620;

/// Certificate authorities of this machine, for issuers, webhooks and storages.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Options of `cargo xtask image`.
#[derive(Debug, Args)]
pub struct Options {
    /// Binary to use, with its libraries if it is dynamic, in place of a static release build
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Name of the image
    #[arg(long, default_value = "localhost/penstock")]
    name: String,
    /// Tag of the image
    #[arg(long, default_value = env!("CARGO_PKG_VERSION"))]
    tag: String,
}

/// Builds the image and prints its archive.
///
/// # Errors
/// When the build of the binary or buildah fails.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => static_build::build(root)?,
    };
    let archive = build(root, &binary, &options.name, &options.tag)?;
    let bytes = std::fs::metadata(&archive)?.len();
    println!("image: {} ({bytes} bytes)", archive.display());
    Ok(())
}

/// Builds the image `NAME:TAG` with `binary`; returns the path of its archive.
///
/// # Errors
/// When buildah is missing or fails.
pub fn build(root: &Path, binary: &Path, name: &str, tag: &str) -> Result<PathBuf> {
    let folder = root.join("target/image");
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let archive = folder.join(format!("penstock-{tag}.tar"));
    let image = Scratch::new(&folder)?;
    image.put(binary, "usr/bin/penstock", 0o755)?;
    let libraries = libraries(binary)?;
    if static_build::is_dynamic(binary)? {
        println!(
            "image: {} is linked dynamically: the image has {} libraries of this machine beside it",
            binary.display(),
            libraries.len()
        );
    }
    for library in libraries {
        image.put(&library, &library.display().to_string(), 0o755)?;
    }
    image.put(Path::new(AUTHORITIES), AUTHORITIES, 0o644)?;
    let account = format!(
        "penstock:x:{DAEMON_USER_ID}:{DAEMON_USER_ID}:Penstock:/var/lib/penstock:/sbin/nologin\n"
    );
    image.write("etc/passwd", &format!("root:x:0:0:root:/root:/sbin/nologin\n{account}"))?;
    // The static C library would ask DNS first without it.
    image.write("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")?;
    image.write("etc/group", &format!("root:x:0:\npenstock:x:{DAEMON_USER_ID}:\n"))?;
    // The second one is what a pod copies to a directory of its node.
    for state in ["var/lib/penstock", "usr/share/penstock/state"] {
        image.directory(state, 0o700, DAEMON_USER_ID)?;
    }
    image.directory("srv/store", 0o755, DAEMON_USER_ID)?;
    image.directory("tmp", 0o1777, 0)?;
    let time = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(time) => time,
        Err(_) => git(root, &["log", "-1", "--format=%ct"])?,
    };
    let inventory = SoftwareInventory::read(root)?;
    image.write("usr/share/doc/penstock/penstock.cdx.json", &inventory.cyclonedx(&time)?)?;
    let licenses = "usr/share/doc/penstock/third-party-licenses.txt";
    image.write(licenses, &inventory.license_document())?;
    let version = env!("CARGO_PKG_VERSION");
    let revision = git(root, &["rev-parse", "HEAD"])?;
    let labels = [
        ("title", "penstock"),
        ("description", "Software of a data transfer node"),
        ("version", version),
        ("revision", &revision),
        ("licenses", "Apache-2.0"),
    ];
    let mut config = image.buildah(&["config", "--os", "linux", "--entrypoint"]);
    config.args(["[\"/usr/bin/penstock\"]", "--cmd", "serve"]);
    config.args([
        "--user",
        &format!("{DAEMON_USER_ID}:{DAEMON_USER_ID}"),
        "--workingdir",
        "/",
        "--stop-signal",
        "SIGTERM",
    ]);
    config.args(["--env", "PENSTOCK_STATE=/var/lib/penstock", "--env", "PATH=/usr/bin"]);
    config.args(["--port", "8620/tcp", "--port", "8621/tcp"]);
    for (key, value) in labels {
        config.args(["--label", &format!("org.opencontainers.image.{key}={value}")]);
    }
    output(config.arg(&image.container))?;
    image.commit(&time, &archive, &format!("{name}:{tag}"))?;
    Ok(archive)
}

/// A container of buildah that began empty; removed when dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    storage: PathBuf,
    container: String,
    files: PathBuf,
}

impl Scratch {
    /// Makes an empty container, whose storage is below `folder`.
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        let mut image = Self {
            storage: folder.join("storage"),
            container: String::new(),
            files: PathBuf::new(),
        };
        image.container = output(&mut image.buildah(&["from", "scratch"]))?;
        let mounted = output(image.buildah(&["mount"]).arg(&image.container));
        // Without root the storage is visible in a user namespace of buildah only.
        image.files = mounted.context("run it as root, or by `buildah unshare`")?.into();
        Ok(image)
    }

    fn buildah(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("buildah");
        command
            .env("BUILDAH_ISOLATION", "chroot")
            .env("STORAGE_DRIVER", "vfs")
            .arg("--root")
            .arg(self.storage.join("root"))
            .arg("--runroot")
            .arg(self.storage.join("run"))
            .args(arguments);
        command
    }

    fn place(&self, path: &str) -> Result<PathBuf> {
        let place = self.files.join(path.trim_start_matches('/'));
        let parent = place.parent().unwrap_or(&self.files);
        std::fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        Ok(place)
    }

    /// Copies a file into the image.
    pub(crate) fn put(&self, file: &Path, path: &str, mode: u32) -> Result<()> {
        let place = self.place(path)?;
        std::fs::copy(file, &place).with_context(|| format!("cannot copy {}", file.display()))?;
        Ok(std::fs::set_permissions(&place, PermissionsExt::from_mode(mode))?)
    }

    fn write(&self, path: &str, text: &str) -> Result<()> {
        let place = self.place(path)?;
        std::fs::write(&place, text).with_context(|| place.display().to_string())
    }

    fn directory(&self, path: &str, mode: u32, user: u32) -> Result<()> {
        let place = self.place(path)?;
        std::fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
        std::fs::set_permissions(&place, PermissionsExt::from_mode(mode))?;
        chown(&place, Some(user), Some(user)).with_context(|| place.display().to_string())
    }

    /// Sets the program that the image runs.
    pub(crate) fn set_entrypoint(&self, program: &str) -> Result<()> {
        let entry = format!("[\"{program}\"]");
        output(self.buildah(&["config", "--entrypoint", &entry]).arg(&self.container)).map(drop)
    }

    /// Writes the image to an archive under a name, with `time` (seconds since 1970) as that of all its files.
    pub(crate) fn commit(&self, time: &str, archive: &Path, name: &str) -> Result<()> {
        match std::fs::remove_file(archive) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                bail!("cannot replace {}: {error}", archive.display())
            }
            _ => {}
        }
        let target = format!("docker-archive:{}:{name}", archive.display());
        let commit = &mut self.buildah(&["commit", "--quiet", "--timestamp", time]);
        output(commit.args([&self.container, &target])).map(drop)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = output(self.buildah(&["umount"]).arg(&self.container));
        let _ = output(self.buildah(&["rm"]).arg(&self.container));
    }
}

/// Libraries that a dynamic binary loads, and its loader; none of a static one.
fn libraries(binary: &Path) -> Result<Vec<PathBuf>> {
    let shown = Command::new("ldd").arg(binary).output().context("cannot run ldd")?;
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let paths = text.lines().filter_map(|line| {
        let place = line.split_once("=> ").map_or(line, |(_, place)| place).trim();
        place.starts_with('/').then(|| place.split_whitespace().next().map(PathBuf::from)).flatten()
    });
    Ok(paths.collect())
}

fn git(root: &Path, arguments: &[&str]) -> Result<String> {
    output(Command::new("git").args(arguments).current_dir(root))
}

/// Runs a program; returns its output without the final newline.
fn output(command: &mut Command) -> Result<String> {
    output_text(command, "image")
}
