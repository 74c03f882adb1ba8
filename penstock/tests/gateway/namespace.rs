//! `MOVE` and `COPY` inside an agent: what is refused or fails changes nothing.

use std::fs;
use std::io::{BufReader, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_testkit::raw::read_response;

use crate::common::{penstock, seeded, wait_until, write_file};
use crate::site::{Site, TOKEN, TestResponse};

/// Header by which also directories are replaced.
const REPLACING: &[(&str, &str)] = &[("Overwrite", "T")];

/// A site with an export `/other` on another file system.
fn site_with_other() -> (Site, tempfile::TempDir) {
    let other = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = other.path();
    let table = format!(
        "[[export]]\nname = \"/other\"\npath = {path:?}\nmode = \"read-write\"\nwho = [\"alice\"]\n"
    );
    (Site::with("", &table), other)
}

fn tree(root: &Path, files: &[(&str, &str)]) {
    for (path, content) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

fn send(site: &Site, method: &str, ends: (&str, &str), headers: &[(&str, &str)]) -> TestResponse {
    let mut all = vec![("Destination", ends.1)];
    all.extend(headers);
    site.ask(method, ends.0, &all, b"")
}

fn names(directory: &Path) -> Vec<PathBuf> {
    let mut names: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into()).collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn refused_move_keeps_its_destination() {
    let (site, other) = site_with_other();
    tree(&site.data, &[("file", "f"), ("dir/in", "d")]);
    tree(other.path(), &[("dst/p", "p")]);
    for source in ["/store/data/file", "/store/data/dir"] {
        let moved = send(&site, "MOVE", (source, "/other/dst"), REPLACING);
        assert_eq!(moved.status, 502, "{}", moved.text());
        assert_eq!(fs::read_to_string(other.path().join("dst/p")).unwrap(), "p");
    }
    assert_eq!(names(other.path()), [Path::new("dst")]);
    assert_eq!(site.names(), ["dir", "file"]);
}

#[test]
fn moved_tree_replaces_another() {
    let site = Site::new();
    tree(&site.data, &[("a/1", "1"), ("b/2", "2"), ("f", "f")]);
    assert_eq!(send(&site, "MOVE", ("/store/data/a", "/store/data/b"), REPLACING).status, 204);
    assert_eq!(names(&site.data.join("b")), [Path::new("1")]);
    assert_eq!(send(&site, "MOVE", ("/store/data/f", "/store/data/b"), REPLACING).status, 204);
    assert_eq!(site.names(), ["b"]);
    assert_eq!(fs::read_to_string(site.data.join("b")).unwrap(), "f");
}

/// `gfal-rename FILE DIRECTORY` and `davix-mv` send no `Overwrite`.
#[test]
fn directory_is_replaced_by_word_only() {
    let site = Site::new();
    tree(&site.data, &[("f", "f"), ("a/1", "1"), ("b/2", "2")]);
    for method in ["MOVE", "COPY"] {
        for source in ["/store/data/f", "/store/data/a"] {
            for destination in ["/store/data/b", "/store/data/b/"] {
                let refused = send(&site, method, (source, destination), &[]);
                assert_eq!(refused.status, 409, "{method} {source}: {}", refused.text());
            }
        }
    }
    let own = format!("http://{}/store/data/f", site.authority());
    assert_eq!(site.ask("COPY", "/store/data/b", &[("Source", &own)], b"").status, 409);
    assert_eq!(site.names(), ["a", "b", "f"]);
    assert_eq!(fs::read_to_string(site.data.join("b/2")).unwrap(), "2");
}

#[test]
fn failed_copy_keeps_its_destination() {
    let site = Site::new();
    tree(&site.data, &[("src/a/1", "1"), ("src/z", "z"), ("dst/old", "old"), ("file", "f")]);
    let socket = site.data.join("src/a/socket");
    let _socket = UnixListener::bind(&socket).unwrap();
    assert!(fs::symlink_metadata(&socket).unwrap().file_type().is_socket());
    for destination in ["/store/data/dst", "/store/data/file", "/store/data/new"] {
        let copied = send(&site, "COPY", ("/store/data/src", destination), REPLACING);
        assert_eq!(copied.status, 409, "{}", copied.text());
        assert!(copied.text().contains("src/a/socket"), "{}", copied.text());
    }
    assert_eq!(site.names(), ["dst", "file", "src"]);
    assert_eq!(fs::read_to_string(site.data.join("dst/old")).unwrap(), "old");
    assert_eq!(fs::read_to_string(site.data.join("file")).unwrap(), "f");
    fs::remove_file(&socket).unwrap();
    assert_eq!(send(&site, "COPY", ("/store/data/src", "/store/data/dst"), REPLACING).status, 204);
    assert_eq!(names(&site.data.join("dst")), [Path::new("a"), Path::new("z")]);
    assert_eq!(send(&site, "COPY", ("/store/data/src", "/store/data/file"), &[]).status, 204);
    let ends = ("/store/data/dst/z", "/store/data/dst/a");
    assert_eq!(send(&site, "COPY", ends, REPLACING).status, 204);
    assert_eq!(fs::read_to_string(site.data.join("dst/a")).unwrap(), "z");
    assert_eq!(site.names(), ["dst", "file", "src"]);
}

#[test]
fn disconnecting_client_ends_local_copy() {
    let site = Site::new();
    fs::create_dir(site.data.join("tree")).unwrap();
    for file in 0..5000 {
        fs::write(site.data.join(format!("tree/{file}")), "content").unwrap();
    }
    let is_copying = || site.names().iter().any(|name| name.starts_with(".penstock-"));
    let mut stream = site.connect();
    let head = format!(
        "COPY /store/data/tree HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nDestination: /store/data/new\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    wait_until("the copy begins", Duration::from_secs(20), || is_copying().then_some(()));
    drop(stream);
    wait_until("the copy ends", Duration::from_secs(20), || (!is_copying()).then_some(()));
    assert_eq!(site.names(), ["tree"]);
}

/// By the API as by `penstock transfers cancel`; the rate limit holds for it.
#[test]
fn cancelled_copy_leaves_nothing() {
    let site = Site::with("", "[limits]\nrate = \"8M\"\n");
    write_file(&mut seeded(1751), &site.data.join("f"), 40_000_000);
    for headers in ["", "X-Number-Of-Streams: 1\r\n"] {
        let mut stream = site.connect();
        let head = format!(
            "COPY /store/data/f HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nDestination: /store/data/new\r\n{headers}\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let id = wait_until("the copy moves bytes", Duration::from_secs(20), || {
            let all = site.transfers();
            let running = all.iter().find(|one| one["state"] == "running")?;
            (running["moved_bytes"].as_u64()? > 0).then(|| running["id"].clone())
        });
        let mut command = penstock(&site.env.state);
        command.args(["transfers", "cancel", &id.to_string(), "--http", &site.agent.http]);
        assert!(command.output().unwrap().status.success());
        let answer = read_response(&mut BufReader::new(stream));
        let text = String::from_utf8_lossy(&answer.body);
        let (status, words) = match headers {
            "" => (409, "/store/data/new: the transfer was cancelled"),
            _ => (202, "cancelled"),
        };
        assert_eq!(answer.status, status, "{text}");
        assert!(text.contains(words), "{text}");
        wait_until("the transfer is cancelled", Duration::from_secs(20), || {
            let all = site.transfers();
            let state = |one: &serde_json::Value| one["id"] == id && one["state"] == "cancelled";
            all.iter().any(state).then_some(())
        });
        wait_until("nothing is left", Duration::from_secs(20), || {
            (site.names() == ["f"]).then_some(())
        });
    }
}

#[test]
fn crashed_copy_is_removed_at_start() {
    let mut site = Site::new();
    let hidden = ".penstock-00112233445566778899aabbccddeeff.part";
    tree(&site.data, &[(&format!("{hidden}/half/f"), "1"), ("kept", "2")]);
    let inside = site.ask("GET", &format!("/store/data/{hidden}/half/f"), &[], b"");
    assert_eq!(inside.status, 404);
    let record = site.env.state.join("staged").join(hidden);
    fs::write(record, site.data.to_str().unwrap()).unwrap();
    site.restart();
    assert_eq!(site.names(), ["kept"]);
}

#[test]
fn conditions_hold_for_move_and_copy() {
    let site = Site::new();
    tree(&site.data, &[("a", "a"), ("b", "b")]);
    let (a, b) = ("/store/data/a", "/store/data/b");
    let etag = site.ask("HEAD", a, &[], b"").header("etag").unwrap().to_owned();
    let past = "Sun, 06 Nov 1994 08:49:37 GMT";
    for method in ["MOVE", "COPY"] {
        for condition in [
            ("If-Match", "\"x\""),
            ("If-None-Match", "*"),
            ("If-None-Match", etag.as_str()),
            ("If-Unmodified-Since", past),
        ] {
            let refused = send(&site, method, (a, b), &[condition]);
            assert_eq!(refused.status, 412, "{method} {condition:?}: {}", refused.text());
        }
    }
    // With Source the request is for the destination.
    let (local, elsewhere) = (format!("http://{}{a}", site.authority()), Site::new());
    tree(&elsewhere.data, &[("a", "other")]);
    let remote = format!("http://{}{a}", elsewhere.authority());
    for source in [&local, &remote] {
        for condition in [("If-Match", "\"x\""), ("If-None-Match", "*"), ("If-Match", &etag)] {
            let refused = site.ask("COPY", b, &[("Source", source), condition], b"");
            assert_eq!(refused.status, 412, "{condition:?}: {}", refused.text());
        }
    }
    let pushed = send(&site, "COPY", (a, &remote), &[("If-Match", "\"x\"")]);
    assert_eq!(pushed.status, 412, "{}", pushed.text());
    assert_eq!(fs::read_to_string(site.data.join("b")).unwrap(), "b");
    assert_eq!(send(&site, "COPY", (a, b), &[("If-Match", &etag)]).status, 204);
    assert_eq!(send(&site, "MOVE", (a, "/store/data/c"), &[("If-None-Match", "*")]).status, 201);
    assert_eq!(site.names(), ["b", "c"]);
}

#[test]
fn copied_tree_keeps_links_and_modes() {
    let site = Site::new();
    tree(&site.data, &[("d/in/f", "1"), ("outer", "o")]);
    symlink("in/f", site.data.join("d/link")).unwrap();
    symlink("missing", site.data.join("d/dangling")).unwrap();
    let permissions = fs::Permissions::from_mode;
    fs::set_permissions(site.data.join("d/in/f"), permissions(0o600)).unwrap();
    fs::set_permissions(site.data.join("d/in"), permissions(0o700)).unwrap();
    assert_eq!(send(&site, "COPY", ("/store/data/d", "/store/data/e"), &[]).status, 201);
    assert_eq!(fs::read_link(site.data.join("e/link")).unwrap(), Path::new("in/f"));
    assert_eq!(fs::read_link(site.data.join("e/dangling")).unwrap(), Path::new("missing"));
    assert_eq!(mode(&site.data.join("e/in/f")), 0o600);
    assert_eq!(mode(&site.data.join("e/in")), 0o700);
    symlink("/etc/passwd", site.data.join("d/out")).unwrap();
    let refused = send(&site, "COPY", ("/store/data/d", "/store/data/g"), &[]);
    assert_eq!(refused.status, 409);
    assert!(refused.text().contains("d/out is a link that leads out"), "{}", refused.text());
    assert_eq!(site.names(), ["d", "e", "outer"]);
}

#[test]
fn moved_hard_link_is_gone() {
    let site = Site::new();
    tree(&site.data, &[("a", "content")]);
    fs::hard_link(site.data.join("a"), site.data.join("b")).unwrap();
    assert_eq!(send(&site, "MOVE", ("/store/data/a", "/store/data/b"), &[]).status, 204);
    assert_eq!(site.names(), ["b"]);
    assert_eq!(fs::read_to_string(site.data.join("b")).unwrap(), "content");
}

#[test]
fn depth_zero_deletes_empty_only() {
    let site = Site::new();
    let directory = site.data.join("d/e");
    fs::create_dir_all(&directory).unwrap();
    // No listing shows it.
    std::os::unix::fs::symlink("nowhere", directory.join("link")).unwrap();
    fs::write(site.data.join("f"), "content").unwrap();
    let delete = |path: &str, depth: &str| {
        site.ask("DELETE", &format!("/store/data/{path}"), &[("depth", depth)], b"").status
    };
    assert_eq!([delete("d/e/", "0"), delete("d", "0"), delete("d", "1")], [409, 409, 400]);
    fs::remove_file(directory.join("link")).unwrap();
    assert_eq!([delete("d/e", "0"), delete("f", "0"), delete("d", "infinity")], [204; 3]);
    assert!(site.names().is_empty());
}

#[test]
fn too_deep_tree_gets_400() {
    let site = Site::new();
    let deep = ["d"; 300].join("/");
    fs::create_dir_all(site.data.join(&deep)).unwrap();
    let refused = site.ask("DELETE", "/store/data/d", &[], b"");
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.text().contains("directories below it first"), "{}", refused.text());
    let lower = ["d"; 100].join("/");
    assert_eq!(site.ask("DELETE", &format!("/store/data/{lower}"), &[], b"").status, 204);
    assert_eq!(site.ask("DELETE", "/store/data/d", &[], b"").status, 204);
    let page = site.ask("HEAD", "/store/data/", &[], b"");
    assert_eq!((page.status, page.header("content-length")), (200, None));
}

#[test]
fn upload_keeps_the_mode() {
    let site = Site::new();
    tree(&site.data, &[("f", "old")]);
    fs::set_permissions(site.data.join("f"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(site.ask("PUT", "/store/data/f", &[], b"new").status, 204);
    assert_eq!(mode(&site.data.join("f")), 0o600);
}

#[test]
fn ambiguous_requests_change_nothing() {
    let site = Site::new();
    tree(&site.data, &[("a", "a"), ("b", "b")]);
    for value in ["X", "false", "N", "\"F\"", ""] {
        let overwrite = [("Overwrite", value)];
        assert_eq!(site.ask("PUT", "/store/data/b", &overwrite, b"x").status, 400, "{value}");
        for method in ["MOVE", "COPY"] {
            let refused = send(&site, method, ("/store/data/a", "/store/data/b"), &overwrite);
            assert_eq!(refused.status, 400, "{method} {value}");
        }
    }
    let cut = send(&site, "MOVE", ("/store/data/a", "/store/data/b#2"), &[]);
    assert_eq!(cut.status, 400, "{}", cut.text());
    assert_eq!(site.names(), ["a", "b"]);
    assert_eq!(fs::read_to_string(site.data.join("b")).unwrap(), "b");
}

#[test]
fn links_are_refused_with_conflict() {
    let site = Site::new();
    tree(&site.data, &[("f", "f")]);
    symlink("loop", site.data.join("loop")).unwrap();
    symlink("f", site.data.join("in")).unwrap();
    symlink("/etc/passwd", site.data.join("out")).unwrap();
    assert_eq!(site.ask("GET", "/store/data/loop", &[], b"").status, 409);
    for link in ["loop", "in", "out"] {
        let refused = site.ask("PUT", &format!("/store/data/{link}"), &[], b"x");
        assert_eq!(refused.status, 409, "{link}: {}", refused.text());
    }
    assert_eq!(fs::read_to_string(site.data.join("f")).unwrap(), "f");
}
