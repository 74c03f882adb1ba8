//! Attempts to escape from the directory; all must fail.

use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{RenameFlags, renameat_with};

use super::*;
use crate::fs::describe;

/// Every operation that takes a path, with its name.
#[allow(clippy::type_complexity)]
fn operations() -> Vec<(&'static str, fn(&Dir, &Path) -> io::Result<()>)> {
    vec![
        ("open_dir", |dir, path| dir.open_dir(path).map(drop)),
        ("read", |dir, path| read(dir, path).map(drop)),
        ("read, following", |dir, path| {
            let how = Open { follow: true, ..Open::reading() };
            dir.open_file(path, &how).map(drop)
        }),
        ("write", |dir, path| write(dir, path, b"overwritten")),
        ("write, following", |dir, path| {
            let how = Open { follow: true, truncate: true, ..Open::creating(0o600) };
            dir.open_file(path, &how).map(drop)
        }),
        ("stat_follow", |dir, path| dir.stat_follow(path).map(drop)),
        ("stat", |dir, path| dir.stat(path).map(drop)),
        ("create_dir", |dir, path| dir.create_dir(path, 0o700)),
        ("create_dir_all", |dir, path| dir.create_dir_all(path, 0o700)),
        ("remove_file", |dir, path| dir.remove_file(path)),
        ("remove_dir", |dir, path| dir.remove_dir(path)),
        ("rename from", |dir, path| dir.rename(path, "taken")),
        ("rename to", |dir, path| dir.rename("own", path)),
        ("exchange from", |dir, path| dir.exchange(path, dir, "own")),
        ("exchange to", |dir, path| dir.exchange("own", dir, path)),
        ("rename_noreplace from", |dir, path| dir.rename_noreplace(path, "taken")),
        ("rename_noreplace to", |dir, path| dir.rename_noreplace("own", path)),
        ("symlink", |dir, path| dir.symlink("x", path)),
        ("read_link", |dir, path| dir.read_link(path).map(drop)),
        ("set_times", |dir, path| dir.set_times(path, Timestamp::default())),
        ("set_mode", |dir, path| dir.set_mode(path, 0o777)),
        ("set_owner", |dir, path| dir.set_owner(path, Some(0), Some(0))),
        ("parent", |dir, path| dir.parent(path).map(drop)),
    ]
}

fn secret_is_untouched(sandbox: &Sandbox) {
    let outside = Dir::open(sandbox.root.path()).unwrap();
    assert_eq!(read(&outside, "secret").unwrap(), b"secret");
    assert_eq!(outside.stat("secret").unwrap().mode & 0o777, 0o644);
    let names: Vec<_> = outside.entries().unwrap().map(Result::unwrap).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn escaping_paths_are_refused() {
    let sandbox = sandbox();
    write(&sandbox.inside, "own", b"own").unwrap();
    let absolute = sandbox.root.path().join("secret");
    for path in [
        absolute.as_path(),
        Path::new("../secret"),
        Path::new("own/../../secret"),
        Path::new(".."),
        Path::new("a/.."),
        Path::new("own\0"),
    ] {
        for (name, operation) in operations() {
            let error = operation(&sandbox.inside, path).expect_err(name);
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name} {path:?}: {error}");
        }
    }
    secret_is_untouched(&sandbox);
}

#[test]
fn links_to_outside_are_refused() {
    let sandbox = sandbox();
    write(&sandbox.inside, "own", b"own").unwrap();
    symlink(sandbox.root.path(), sandbox.path("absolute")).unwrap();
    symlink("..", sandbox.path("relative")).unwrap();
    symlink("relative", sandbox.path("indirect")).unwrap();
    symlink("/", sandbox.path("slash")).unwrap();
    for middle in ["absolute", "relative", "indirect"] {
        for (name, operation) in operations() {
            let path = format!("{middle}/secret");
            let error = operation(&sandbox.inside, path.as_ref()).expect_err(name);
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{name} {path}: {error}");
            assert_eq!(describe(&error), "the path leaves the directory it is confined to");
        }
    }
    let error = sandbox.inside.stat("slash/etc/passwd").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    secret_is_untouched(&sandbox);
}

#[test]
fn trailing_link_is_not_followed() {
    let sandbox = sandbox();
    symlink("../secret", sandbox.path("out")).unwrap();
    symlink("own", sandbox.path("in")).unwrap();
    symlink("missing", sandbox.path("dangling")).unwrap();
    write(&sandbox.inside, "own", b"own").unwrap();
    for link in ["out", "in", "dangling"] {
        for how in [Open::reading(), Open::writing(), Open::creating(0o600)] {
            let error = sandbox.inside.open_file(link, &how).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ELOOP), "{link}");
        }
        assert_eq!(sandbox.inside.stat(link).unwrap().kind, Kind::Symlink);
        let error = sandbox.inside.set_mode(link, 0o777).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let mtime = Timestamp { seconds: 12, nanos: 34 };
        sandbox.inside.set_times(link, mtime).unwrap();
        assert_eq!(sandbox.inside.stat(link).unwrap().mtime, mtime);
    }
    let follow = Open { follow: true, ..Open::reading() };
    assert!(sandbox.inside.open_file("in", &follow).is_ok());
    for escape in [
        sandbox.inside.open_file("out", &follow).map(drop),
        sandbox.inside.stat_follow("out").map(drop),
    ] {
        assert_eq!(escape.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
    let create = Open { follow: true, ..Open::creating(0o600) };
    sandbox.inside.open_file("dangling", &create).unwrap();
    assert_eq!(sandbox.inside.stat("missing").unwrap().kind, Kind::File);
    assert_ne!(sandbox.inside.stat_follow("in").unwrap().mtime.seconds, 12);
}

#[test]
fn links_beneath_are_followed() {
    let sandbox = sandbox();
    sandbox.inside.create_dir_all("a/b", 0o700).unwrap();
    sandbox.inside.symlink("../a/b", "a/link").unwrap();
    write(&sandbox.inside, "a/link/file", b"through").unwrap();
    assert_eq!(read(&sandbox.inside, "a/b/file").unwrap(), b"through");
    assert_eq!(sandbox.inside.read_link("a/link").unwrap(), Path::new("../a/b"));
    sandbox.inside.create_dir_all("a/link/c/d", 0o700).unwrap();
    assert_eq!(sandbox.inside.stat("a/b/c/d").unwrap().kind, Kind::Directory);
    sandbox.inside.symlink("self", "self").unwrap();
    let error = sandbox.inside.stat("self/x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ELOOP));
}

#[test]
fn magic_links_are_refused() {
    let proc_self = Dir::open("/proc/self").unwrap();
    let root = File::open("/").unwrap();
    let link = format!("fd/{}", root.as_raw_fd());
    for (name, result) in [
        ("open_dir", proc_self.open_dir(&link).map(drop)),
        ("through it", proc_self.stat(format!("{link}/etc")).map(drop)),
        ("stat_follow", proc_self.stat_follow(&link).map(drop)),
        ("root", proc_self.open_dir("root").map(drop)),
        ("cwd", proc_self.stat("cwd/x").map(drop)),
    ] {
        let error = result.expect_err(name);
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP), "{name}: {error}");
    }
}

#[test]
fn swapped_directory_never_leads_outside() {
    let sandbox = sandbox();
    sandbox.inside.create_dir("way", 0o700).unwrap();
    write(&sandbox.inside, "way/secret", b"mine").unwrap();
    symlink("..", sandbox.path("trap")).unwrap();
    let (way, trap) = (sandbox.path("way"), sandbox.path("trap"));
    let done = AtomicBool::new(false);
    let results: Vec<_> = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let exchange = RenameFlags::EXCHANGE;
                renameat_with(rustix::fs::CWD, &way, rustix::fs::CWD, &trap, exchange).unwrap();
            }
        });
        let results = (0..5000).map(|_| read(&sandbox.inside, "way/secret")).collect();
        done.store(true, Ordering::Relaxed);
        results
    });
    for result in results {
        match result {
            Ok(content) => assert_eq!(content, b"mine"),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}"),
        }
    }
}
