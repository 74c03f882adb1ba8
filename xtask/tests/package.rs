//! The packages of `deploy/packages`: same bytes twice, lintian, and installation, upgrade and removal of deb and rpm in a mount namespace.
//!
//! A small program stands for the binary: building and compressing the real one takes minutes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use penstock_testkit::{Requirement, is_root, missing_program, skip};
use xtask::{package, static_build, workspace_root};

/// Writes a man page and a line of completions, as `penstock generate` does.
const PROGRAM: &str = r##"
#include <stdio.h>
#include <string.h>
int main(int count, char **words) {
    if (count == 4 && strcmp(words[2], "man") == 0) {
        char path[4096];
        snprintf(path, sizeof path, "%s/penstock.1", words[3]);
        FILE *page = fopen(path, "w");
        fputs(".TH penstock 1\n.SH NAME\npenstock \\- software of a data transfer node\n", page);
        return fclose(page);
    }
    return puts("# completions") < 0;
}
"##;

/// Replaces `/` by a writable copy in a mount namespace and runs a script there.
const NAMESPACE: &str = r#"
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount -t tmpfs none "$1/root/run"
mount -t tmpfs none "$1/root/tmp"
cp "$2" "$1/root/tmp/old"
cp "$3" "$1/root/tmp/new"
exec chroot "$1/root" sh -eux -c "$4"
"#;

const DEB_LIFE: &str = r#"
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
dpkg --force-depends -i /tmp/old
id penstock
test "$(stat -c '%a %G' /etc/penstock/penstock.toml)" = '640 penstock'
test "$(stat -c '%a %U' /srv/store)" = '755 penstock'
test ! -e /etc/systemd/system/multi-user.target.wants/penstock.service
echo '# edited' >> /etc/penstock/penstock.toml
mkdir -p /var/lib/penstock
echo token > /var/lib/penstock/token
dpkg --force-depends --force-confold -i /tmp/new
test "$(dpkg-query -W -f '${Version}' penstock)" = 99-1
grep -q '# edited' /etc/penstock/penstock.toml
test "$(grep -c '# shipped' /etc/penstock/penstock.toml)" = 0
grep -q '# shipped' /etc/penstock/penstock.toml.dpkg-dist
grep -q '# shipped' /etc/penstock/collector.toml
test "$(stat -c '%a %G' /etc/penstock/collector.toml)" = '640 penstock'
test -e /var/lib/penstock/token
dpkg -r penstock
test ! -e /usr/bin/penstock
test -e /etc/penstock/penstock.toml
test -e /var/lib/penstock/token
echo data > /srv/store/data
dpkg -P penstock
test ! -e /etc/penstock
test ! -e /var/lib/penstock
test -e /srv/store/data
"#;

/// rpm of Debian asks for `--force-debian`, which others do not know.
const RPM_LIFE: &str = r#"
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
force=
rpm --help | grep -q force-debian && force=--force-debian
rpm --initdb
rpm -i --nodeps $force /tmp/old
id penstock
/usr/bin/penstock
test "$(stat -c '%a %G' /etc/penstock/penstock.toml)" = '640 penstock'
test "$(stat -c '%a %U' /srv/store)" = '755 penstock'
test ! -e /etc/systemd/system/multi-user.target.wants/penstock.service
echo '# edited' >> /etc/penstock/penstock.toml
mkdir -p /var/lib/penstock
echo token > /var/lib/penstock/token
rpm -U --nodeps $force /tmp/new
test "$(rpm -q --qf '%{VERSION}' penstock)" = 99
grep -q '# edited' /etc/penstock/penstock.toml
test "$(grep -c '# shipped' /etc/penstock/penstock.toml)" = 0
grep -q '# shipped' /etc/penstock/penstock.toml.rpmnew
grep -q '# shipped' /etc/penstock/collector.toml
test "$(stat -c '%a %G' /etc/penstock/collector.toml)" = '640 penstock'
test -e /usr/bin/penstock
echo data > /srv/store/data
rpm -e penstock
test ! -e /usr/bin/penstock
grep -q '# edited' /etc/penstock/penstock.toml.rpmsave
test -e /var/lib/penstock/token
test -e /srv/store/data
"#;

/// Adds to the configurations that the newer package ships.
const SHIPPED: &str =
    "for name in penstock collector; do echo '# shipped' >> etc/penstock/$name.toml; done";

/// The program that stands for the binary, or none where a program of packaging is missing.
fn program(folder: &Path) -> Option<PathBuf> {
    if ["cc", "dpkg-deb", "rpmbuild"].iter().any(|program| missing_program(program)) {
        return None;
    }
    let program = folder.join("penstock");
    let source = folder.join("penstock.c");
    fs::write(&source, PROGRAM).unwrap();
    good(Command::new("cc").args(["-static-pie", "-g", "-o"]).args([&program, &source]));
    good(Command::new(workspace_root().join("tools/strip.sh")).arg(&program));
    Some(program)
}

fn good(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    output
}

fn build(program: &Path, output: &Path) -> Vec<PathBuf> {
    package::build(&workspace_root(), program, output).unwrap()
}

#[test]
fn two_builds_are_equal() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = program(folder.path()) else { return };
    let one = build(&program, &folder.path().join("one"));
    let two = build(&program, &folder.path().join("two"));
    assert_eq!(one.len(), 4);
    for (one, two) in one.iter().zip(&two) {
        assert!(fs::read(one).unwrap() == fs::read(two).unwrap(), "{} differs", one.display());
    }
}

/// Writes a workspace of a program and a library, with files of the paths of its sources in both, and the release
/// profile of this one.
fn workspace(folder: &Path) {
    let manifest = fs::read_to_string(workspace_root().join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let profile = toml::to_string(&manifest["profile"]["release"]).unwrap();
    let package = |name: &str| {
        format!("[package]\nname = \"{name}\"\nedition = \"2024\"\nversion = \"0.1.0\"\n")
    };
    let program =
        package("program") + "[dependencies]\nlibrary = { path = \"library\" }\n[workspace]\n";
    for (path, text) in [
        ("Cargo.toml", program + "[profile.release]\n" + &profile),
        (
            "src/main.rs",
            "fn main() { println!(\"{} {}\", file!(), library::half(std::env::args().count())); }"
                .into(),
        ),
        ("library/Cargo.toml", package("library")),
        (
            "library/src/lib.rs",
            "pub fn half(count: usize) -> usize { assert!(count % 2 == 0, \"odd\"); count / 2 }"
                .into(),
        ),
    ] {
        let file = folder.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    fs::copy(workspace_root().join("rust-toolchain.toml"), folder.join("rust-toolchain.toml"))
        .unwrap();
    symlink(workspace_root().join("tools"), folder.join("tools")).unwrap();
    good(Command::new("cargo").args(["generate-lockfile", "--offline"]).current_dir(folder));
}

/// The binary and its symbols do not depend on the folder of the sources, whose path has another length, too.
#[test]
fn static_build_ignores_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "the/second"].map(|name| {
        let folder = folder.path().join(name);
        workspace(&folder);
        let program = static_build::build_program(&folder, "program").unwrap();
        let symbols = program.with_extension("debug");
        [program, symbols].map(|file| fs::read(file).unwrap())
    });
    assert!(one == two, "two builds differ");
    let path = folder.path().to_string_lossy().into_owned();
    assert!(one.iter().all(|file| !file.windows(path.len()).any(|part| part == path.as_bytes())));
}

#[test]
fn symbols_are_where_debuggers_look() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = program(folder.path()) else { return };
    let packages = build(&program, &folder.path().join("one"));
    let archive = packages.iter().find(|package| package.to_string_lossy().contains("-debug."));
    let unpacked = folder.path().join("unpacked");
    fs::create_dir(&unpacked).unwrap();
    good(Command::new("tar").arg("-xf").arg(archive.unwrap()).arg("-C").arg(&unpacked));
    // The binary names this file, and /usr/bin/penstock is looked up below /usr/lib/debug/usr/bin.
    let symbols = unpacked.join("usr/lib/debug/usr/bin/penstock.debug");
    let link = good(Command::new("readelf").arg("--string-dump=.gnu_debuglink").arg(&program));
    assert!(String::from_utf8_lossy(&link.stdout).contains("penstock.debug"));
    let sections = good(Command::new("readelf").arg("-SW").arg(&symbols)).stdout;
    assert!(String::from_utf8_lossy(&sections).contains(".debug_line"));
    // A program without symbols beside it has no such archive.
    fs::remove_file(folder.path().join("penstock.debug")).unwrap();
    assert_eq!(build(&program, &folder.path().join("two")).len(), 3);
}

#[test]
fn lintian_finds_no_fault() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = program(folder.path()) else { return };
    if missing_program("lintian") {
        return;
    }
    let packages = build(&program, &folder.path().join("one"));
    let deb = with_extension(&packages, "deb");
    let output = Command::new("lintian").arg("--allow-root").arg(deb).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let faults = text.lines().filter(|line| line.starts_with("E:") || line.starts_with("W:"));
    assert_eq!(faults.collect::<Vec<_>>(), Vec::<&str>::new());
}

/// Runs a script in a mount namespace with packages of two versions at `/tmp/old` and `/tmp/new`.
fn live(folder: &Path, old: &Path, new: &Path, script: &str) {
    let space = folder.join("space");
    fs::create_dir(&space).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-eu", "-c", NAMESPACE, "sh"]);
    good(command.arg(&space).args([old, new]).arg(script));
}

/// Returns the package with this extension.
fn with_extension<'a>(packages: &'a [PathBuf], extension: &str) -> &'a Path {
    let mut packages = packages.iter();
    packages.find(|package| package.extension().is_some_and(|end| end == extension)).unwrap()
}

/// Makes a deb of version 99 with other configurations.
fn newer_deb(folder: &Path, deb: &Path) -> PathBuf {
    let new = folder.join("new.deb");
    let script = format!(
        "dpkg-deb -R \"$1\" \"$2\"; cd \"$2\"; sed -i 's/^Version: .*/Version: 99-1/' DEBIAN/control; {SHIPPED}; \
         dpkg-deb --root-owner-group -Zgzip -b . \"$3\""
    );
    let mut shell = Command::new("sh");
    good(shell.args(["-ec", &script, "sh"]).arg(deb).arg(folder.join("unpacked")).arg(&new));
    new
}

/// Makes an rpm of version 99 with other configurations, by the specification of the package in `output`.
fn newer_rpm(output: &Path) -> PathBuf {
    let top = output.join("rpmbuild");
    let file = top.join("penstock.spec");
    let spec = fs::read_to_string(&file).unwrap();
    let version = format!("Version: {}\n", env!("CARGO_PKG_VERSION"));
    assert!(spec.contains(&version) && spec.contains("\n\n# Starts, restarts"));
    // The deb has replaced the licence in the tree by its own files.
    let edits = format!("\ncd %{{buildroot}}; touch usr/share/doc/penstock/LICENSE; {SHIPPED}");
    let spec = spec
        .replace(&version, "Version: 99\n")
        .replace("\n\n# Starts, restarts", &format!("{edits}\n\n# Starts, restarts"));
    fs::write(&file, spec).unwrap();
    let mut rpmbuild = Command::new("rpmbuild");
    rpmbuild.args(["-bb", "--quiet", "--define", "_unpackaged_files_terminate_build 0"]);
    good(rpmbuild.args(["--define", &format!("_topdir {}", top.display())]).arg(&file));
    top.join("RPMS/x86_64/penstock-99-1.x86_64.rpm")
}

#[test]
fn deb_installs_upgrades_and_purges() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = program(folder.path()) else { return };
    if !is_root() {
        return skip(Requirement::Root, "a mount namespace");
    }
    let packages = build(&program, &folder.path().join("one"));
    let old = with_extension(&packages, "deb");
    live(folder.path(), old, &newer_deb(folder.path(), old), DEB_LIFE);
}

#[test]
fn rpm_installs_upgrades_and_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = program(folder.path()) else { return };
    if missing_program("rpm") {
        return;
    }
    if !is_root() {
        return skip(Requirement::Root, "a mount namespace");
    }
    let output = folder.path().join("one");
    let packages = build(&program, &output);
    live(folder.path(), with_extension(&packages, "rpm"), &newer_rpm(&output), RPM_LIFE);
}

#[test]
fn dynamic_binary_is_refused() {
    if missing_program("readelf") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("one");
    // This program is one.
    let dynamic = std::env::current_exe().unwrap();
    let error = package::build(&workspace_root(), &dynamic, &output).unwrap_err().to_string();
    assert!(error.contains("linked dynamically"), "{error}");
    assert!(!output.exists());
}
