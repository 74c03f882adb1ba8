//! The packages of `deploy/packages`: same bytes twice, lintian, and installation, upgrade and purge in a mount namespace.
//!
//! A small program stands for the binary: compressing the real one takes minutes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use penstock_testkit::{Requirement, is_root, missing_program, skip};
use xtask::{package, workspace_root};

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
cp "$2" "$1/root/tmp/one.deb"
cp "$3" "$1/root/tmp/two.deb"
exec chroot "$1/root" sh -eux -c "$4"
"#;

const LIFE: &str = r#"
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
dpkg --force-depends -i /tmp/one.deb
id penstock
test "$(stat -c '%a %G' /etc/penstock/penstock.toml)" = '640 penstock'
test "$(stat -c '%a %U' /srv/store)" = '755 penstock'
test ! -e /etc/systemd/system/multi-user.target.wants/penstock.service
echo '# changed' >> /etc/penstock/penstock.toml
mkdir -p /var/lib/penstock
echo token > /var/lib/penstock/token
dpkg --force-depends --force-confold -i /tmp/two.deb
grep -q '# changed' /etc/penstock/penstock.toml
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

/// The program that stands for the binary, or none where a program of packaging is missing.
fn program(folder: &Path) -> Option<PathBuf> {
    if ["cc", "dpkg-deb", "rpmbuild"].iter().any(|program| missing_program(program)) {
        return None;
    }
    let program = folder.join("penstock");
    let source = folder.join("penstock.c");
    fs::write(&source, PROGRAM).unwrap();
    good(Command::new("cc").args(["-static", "-g", "-o"]).args([&program, &source]));
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
    let deb = packages.iter().find(|package| package.extension().is_some_and(|end| end == "deb"));
    let output = Command::new("lintian").arg("--allow-root").arg(deb.unwrap()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let faults = text.lines().filter(|line| line.starts_with("E:") || line.starts_with("W:"));
    assert_eq!(faults.collect::<Vec<_>>(), Vec::<&str>::new());
}

#[test]
fn package_installs_upgrades_and_purges() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = program(folder.path()) else { return };
    if !is_root() {
        return skip(Requirement::Root, "a mount namespace");
    }
    let packages = build(&program, &folder.path().join("one"));
    let deb = packages.iter().find(|package| package.extension().is_some_and(|end| end == "deb"));
    let deb = deb.unwrap();
    let space = folder.path().join("space");
    fs::create_dir(&space).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-eu", "-c", NAMESPACE, "sh"]);
    good(command.arg(&space).args([deb, deb]).arg(LIFE));
}
