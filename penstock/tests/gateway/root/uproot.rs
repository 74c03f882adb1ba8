//! Analysis in Python: uproot over XRootD's own bindings.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use super::{AUTHZ, root_authority, root_site};
use crate::site::Site;

/// Python of Debian, for which the package python3-xrootd has the bindings.
const PYTHON: &str = "/usr/bin/python3";

/// Serializes installations of tests that run at the same time.
static INSTALLATION: Mutex<()> = Mutex::new(());

const PACKAGES: [&str; 3] = ["uproot", "numpy", "fsspec-xrootd"];

/// Writes a tree, reads it by the server, and compares; then reads vectors by the bindings.
const SCRIPT: &str = r#"
import sys
import numpy, uproot
from XRootD import client
path, url = sys.argv[1:3]
random = numpy.random.default_rng(1727)
x, y = random.random(200000), random.integers(0, 1000, 200000)
with uproot.recreate(path) as f:
    f.mktree("t", {"x": "f8", "y": "i8"})
    for i in range(0, 200000, 10000):
        f["t"].extend({"x": x[i:i + 10000], "y": y[i:i + 10000]})
tree = uproot.open({url: "t"})
read = tree.arrays(library="np")
assert (read["x"] == x).all() and (read["y"] == y).all()
f = client.File()
status, _ = f.open(url)
assert status.ok, status.message
size = f.stat()[1].size
data = open(path, "rb").read()
assert size == len(data)
chunks = [(i * 7919 % (size - 5000), 1 + i * 131 % 5000) for i in range(1024)]
status, vector = f.vector_read(chunks)
assert status.ok, status.message
for (offset, length), chunk in zip(chunks, vector.chunks):
    assert chunk.buffer == data[offset:offset + length]
status, _ = f.vector_read([(size - 1, 2)])
assert not status.ok
f.close()
print("read", len(read["x"]), type(tree.file.source).__name__)
"#;

/// Python with the packages, made once for this target folder; `None` if they cannot be had.
fn python() -> Option<PathBuf> {
    let _installing = INSTALLATION.lock().unwrap_or_else(PoisonError::into_inner);
    let succeeds = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let missing = |what: &str| {
        penstock_testkit::skip(penstock_testkit::Requirement::Program, what);
        None
    };
    if !succeeds(PYTHON, &["-c", "import XRootD, venv"]) {
        return missing("python3-xrootd and python3-venv");
    }
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("uproot");
    let python = directory.join("bin/python");
    let text = python.to_str().unwrap();
    let imports = ["-c", "import uproot, numpy, fsspec_xrootd, XRootD"];
    if !succeeds(text, &imports) {
        let venv = ["-m", "venv", "--system-site-packages", directory.to_str().unwrap()];
        let install = [&["-m", "pip", "install", "--quiet"], &PACKAGES[..]].concat();
        if !succeeds(PYTHON, &venv) || !succeeds(text, &install) || !succeeds(text, &imports) {
            return missing("uproot and fsspec-xrootd from PyPI");
        }
    }
    Some(python)
}

/// Writes a tree to `file` and reads it at `url`; false if the packages are missing.
pub(crate) fn assert_uproot_reads(site: &Site, file: &Path, url: &str) -> bool {
    let Some(python) = python() else { return false };
    let output = Command::new("timeout")
        .arg("120")
        .arg(python)
        .args(["-c", SCRIPT])
        .arg(file)
        .arg(url)
        .env("HOME", site.env.path(""))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("read 200000"), "{output:?}");
    true
}

#[test]
fn uproot_reads_trees_and_vectors() {
    let site = root_site("");
    let url = format!("root://{}//store/data/t.root?{AUTHZ}", root_authority(&site));
    assert_uproot_reads(&site, &site.data.join("t.root"), &url);
}
