//! File systems that lack features or room, and agents that are killed while they write.

use std::fs;
use std::io::{BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use penstock_testkit::raw::read_response;
use penstock_testkit::{Requirement, is_root, missing_program, skip};

use crate::common::{TestEnv, wait_until};
use crate::site::{Site, TOKEN};

/// A mounted file system, unmounted when dropped.
struct Mount {
    at: PathBuf,
    _directory: tempfile::TempDir,
}

impl Mount {
    /// Runs `program`, whose last argument is the place of the mount; other arguments may name the directory `below`.
    fn new(program: &str, arguments: impl Fn(&Path) -> Vec<String>) -> Option<Self> {
        if !is_root() {
            skip(Requirement::Root, "only root mounts a file system");
            return None;
        }
        if missing_program(program) {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let (below, at) = (directory.path().join("below"), directory.path().join("at"));
        fs::create_dir(&below).unwrap();
        fs::create_dir(&at).unwrap();
        let output = Command::new(program).args(arguments(&below)).arg(&at).output().unwrap();
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            skip(Requirement::Kernel, &format!("{program}: {error}"));
            return None;
        }
        Some(Self { at, _directory: directory })
    }

    /// A directory through FUSE: without flags of renameat2, and without files that have no name.
    fn fuse() -> Option<Self> {
        Self::new("bindfs", |below| vec![below.to_str().unwrap().to_owned()])
    }

    /// A file system of 4 MiB.
    fn small() -> Option<Self> {
        let words = ["-t", "tmpfs", "-o", "size=4m", "tmpfs"];
        Self::new("mount", |_| words.map(str::to_owned).to_vec())
    }

    /// Starts an agent that exports it as `/other`.
    fn site(&self) -> Site {
        let path = &self.at;
        let table = format!(
            "[[export]]\nname = \"/other\"\npath = {path:?}\nmode = \"read-write\"\nwho = [\"alice\"]\n"
        );
        Site::with("", &table)
    }

    fn names(&self) -> Vec<String> {
        names(&self.at)
    }

    fn write(&self, name: &str, content: &str) {
        let path = self.at.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.at.join(name)).unwrap()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Status of a `MOVE` or `COPY` within `/other`.
fn send(site: &Site, method: &str, from: &str, to: &str, overwrite: &str) -> u16 {
    let destination = format!("/other/{to}");
    let headers = [("Destination", destination.as_str()), ("Overwrite", overwrite)];
    site.ask(method, &format!("/other/{from}"), &headers, b"").status
}

#[test]
fn moves_without_rename_flags() {
    let Some(fuse) = Mount::fuse() else { return };
    let site = fuse.site();
    for (name, content) in
        [("f", "f"), ("g", "g"), ("d/in", "d"), ("e/in", "e"), ("e/more", "m"), ("x/in", "x")]
    {
        fuse.write(name, content);
    }
    for method in ["MOVE", "COPY"] {
        for (from, to) in [("f", "g"), ("f", "d"), ("d", "f"), ("d", "e")] {
            assert_eq!(send(&site, method, from, to, "F"), 412, "{method} {from} {to}");
        }
    }
    assert_eq!(fuse.names(), ["d", "e", "f", "g", "x"]);
    // Each kind over each other kind.
    assert_eq!(send(&site, "COPY", "d", "e", "T"), 204);
    assert_eq!((fuse.read("e/in"), names(&fuse.at.join("e")).len()), ("d".to_owned(), 1));
    assert_eq!(send(&site, "MOVE", "e", "x", "T"), 204);
    assert_eq!(fuse.read("x/in"), "d");
    assert_eq!(send(&site, "MOVE", "f", "g", "T"), 204);
    assert_eq!(send(&site, "MOVE", "g", "x", "T"), 204);
    assert_eq!(fuse.read("x"), "f");
    assert_eq!(send(&site, "COPY", "d", "x", "T"), 204);
    assert_eq!(send(&site, "MOVE", "x", "new", "F"), 201);
    assert_eq!(fuse.read("new/in"), "d");
    assert_eq!(fuse.names(), ["d", "new"]);
    for (content, status) in [("first", 201), ("second", 204)] {
        assert_eq!(site.ask("PUT", "/other/p", &[], content.as_bytes()).status, status);
        assert_eq!(fuse.read("p"), content);
    }
    let kept = site.ask("PUT", "/other/p", &[("If-None-Match", "*")], b"third");
    assert_eq!(kept.status, 412);
    assert_eq!(fuse.names(), ["d", "new", "p"]);
    assert!(names(&site.env.state.join("staged")).is_empty());
}

#[test]
fn one_of_concurrent_moves_succeeds() {
    let fuse = Mount::fuse();
    let site = fuse.as_ref().map_or_else(Site::new, Mount::site);
    let (export, root) = match &fuse {
        Some(fuse) => ("/other", fuse.at.as_path()),
        None => ("/store/data", site.data.as_path()),
    };
    for round in 0..10 {
        for one in 0..8 {
            fs::write(root.join(format!("s{one}")), format!("{round} {one}")).unwrap();
        }
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let send = |one: usize| {
                let destination = format!("{export}/t");
                let headers = [("Destination", destination.as_str()), ("Overwrite", "F")];
                site.ask("MOVE", &format!("{export}/s{one}"), &headers, b"").status
            };
            let sent: Vec<_> = (0..8).map(|one| scope.spawn(move || send(one))).collect();
            sent.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let moved: Vec<_> = (0..8).filter(|one| statuses[*one] == 201).collect();
        assert_eq!(moved.len(), 1, "{statuses:?}");
        assert_eq!(fs::read_to_string(root.join("t")).unwrap(), format!("{round} {}", moved[0]));
        assert_eq!(names(root).len(), 8, "{statuses:?}");
        fs::remove_file(root.join("t")).unwrap();
    }
}

/// Kills the agent while a hidden name is in `root`, and starts it again.
fn kill_while_hidden(site: &mut Site, root: &Path) {
    wait_until("a hidden name", Duration::from_secs(20), || {
        names(root).iter().any(|name| name.starts_with(".penstock-")).then_some(())
    });
    site.restart();
}

#[test]
fn killed_copy_is_removed_at_start() {
    let mut site = Site::new();
    let root = site.data.clone();
    fs::create_dir(root.join("tree")).unwrap();
    fs::create_dir(root.join("old")).unwrap();
    for file in 0..2000 {
        fs::write(root.join(format!("tree/{file}")), "content").unwrap();
    }
    for destination in ["new", "old"] {
        let mut stream = site.connect();
        let head = format!(
            "COPY /store/data/tree HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nDestination: /store/data/{destination}\r\nOverwrite: T\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        kill_while_hidden(&mut site, &root);
        assert_eq!(names(&root), ["old", "tree"]);
        assert!(names(&root.join("old")).is_empty());
    }
    assert!(names(&site.env.state.join("staged")).is_empty());
}

#[test]
fn killed_upload_is_removed_at_start() {
    let Some(fuse) = Mount::fuse() else { return };
    let mut site = fuse.site();
    fuse.write("f", "old");
    let mut stream = site.connect();
    let head = format!(
        "PUT /other/f HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 5\r\n\r\nab"
    );
    stream.write_all(head.as_bytes()).unwrap();
    kill_while_hidden(&mut site, &fuse.at);
    assert_eq!(fuse.names(), ["f"]);
    assert_eq!(fuse.read("f"), "old");
}

#[test]
fn full_disk_leaves_nothing() {
    let Some(small) = Mount::small() else { return };
    let site = small.site();
    small.write("big", &"x".repeat(3 << 20));
    small.write("tree/half", &"x".repeat(600 << 10));
    let content = vec![7; 2 << 20];
    let announced = site.ask("PUT", "/other/new", &[], &content);
    assert_eq!(announced.status, 507, "{}", announced.text());
    // Without a length nothing is reserved at the start.
    let mut stream = site.connect();
    let head = format!(
        "PUT /other/new HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n",
        content.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    // The server may refuse before it has read everything.
    let _ = stream.write_all(&content).and_then(|()| stream.write_all(b"\r\n0\r\n\r\n"));
    assert_eq!(read_response(&mut BufReader::new(stream)).status, 507);
    for (from, to) in [("big", "new"), ("big", "tree"), ("tree", "new"), ("tree", "big")] {
        let copied = send(&site, "COPY", from, to, "T");
        assert_eq!(copied, 507, "{from} to {to}");
    }
    let replaced = site.ask("PUT", "/other/tree/half", &[], &content);
    assert_eq!(replaced.status, 507, "{}", replaced.text());
    assert_eq!(small.names(), ["big", "tree"]);
    assert_eq!(names(&small.at.join("tree")), ["half"]);
    assert_eq!(small.read("tree/half").len(), 600 << 10);
    assert_eq!(site.ask("PUT", "/other/fits", &[], &content[..100]).status, 201);
}

#[test]
fn created_files_obey_the_umask() {
    let env = TestEnv::new();
    let site = Site::new();
    fs::write(env.path("own"), "").unwrap();
    let own = fs::metadata(env.path("own")).unwrap();
    assert_eq!(site.ask("PUT", "/store/data/f", &[], b"new").status, 201);
    assert_eq!(site.ask("MKCOL", "/store/data/d", &[], b"").status, 201);
    for (name, directory_bits) in [("f", 0), ("d", (own.mode() >> 2) & 0o111)] {
        let made = fs::metadata(site.data.join(name)).unwrap();
        assert_eq!((made.uid(), made.gid()), (own.uid(), own.gid()), "{name}");
        assert_eq!(made.permissions().mode() & 0o777, (own.mode() & 0o777) | directory_bits);
    }
}

#[test]
fn replaced_files_keep_their_owner() {
    if !is_root() {
        return skip(Requirement::Root, "only root gives files away");
    }
    let site = Site::new();
    let file = site.data.join("f");
    fs::write(&file, "old").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(&file, Some(1234), Some(4321)).unwrap();
    assert_eq!(site.ask("PUT", "/store/data/f", &[], b"new").status, 204);
    let replaced = fs::metadata(&file).unwrap();
    assert_eq!((replaced.uid(), replaced.gid()), (1234, 4321));
    assert_eq!(replaced.permissions().mode() & 0o777, 0o640);
}
