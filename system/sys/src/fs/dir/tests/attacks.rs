//! Ways out of the directory, none of which may lead anywhere.

use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::renameat_with;

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

fn secret_is_untouched(place: &Place) {
    let outside = Dir::open(place.root.path()).unwrap();
    assert_eq!(read(&outside, "secret").unwrap(), b"secret");
    assert_eq!(outside.stat("secret").unwrap().mode & 0o777, 0o644);
    let names: Vec<_> = outside.entries().unwrap().map(Result::unwrap).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn what_could_never_be_right_is_refused_by_every_operation() {
    let place = place();
    write(&place.inside, "own", b"own").unwrap();
    let absolute = place.root.path().join("secret");
    for path in [
        absolute.as_path(),
        Path::new("../secret"),
        Path::new("own/../../secret"),
        Path::new(".."),
        Path::new("a/.."),
        Path::new("own\0"),
    ] {
        for (name, operation) in operations() {
            let error = operation(&place.inside, path).expect_err(name);
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name} {path:?}: {error}");
        }
    }
    secret_is_untouched(&place);
}

#[test]
fn no_operation_passes_through_a_link_to_the_outside() {
    let place = place();
    write(&place.inside, "own", b"own").unwrap();
    symlink(place.root.path(), place.path("absolute")).unwrap();
    symlink("..", place.path("relative")).unwrap();
    symlink("relative", place.path("indirect")).unwrap();
    symlink("/", place.path("slash")).unwrap();
    for middle in ["absolute", "relative", "indirect"] {
        for (name, operation) in operations() {
            let path = format!("{middle}/secret");
            let error = operation(&place.inside, path.as_ref()).expect_err(name);
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{name} {path}: {error}");
            assert_eq!(describe(&error), "the path leaves the directory it is confined to");
        }
    }
    let error = place.inside.stat("slash/etc/passwd").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    secret_is_untouched(&place);
}

#[test]
fn a_link_in_the_last_component_is_not_followed() {
    let place = place();
    symlink("../secret", place.path("out")).unwrap();
    symlink("own", place.path("in")).unwrap();
    symlink("missing", place.path("dangling")).unwrap();
    write(&place.inside, "own", b"own").unwrap();
    for link in ["out", "in", "dangling"] {
        for how in [Open::reading(), Open::writing(), Open::creating(0o600)] {
            let error = place.inside.open_file(link, &how).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ELOOP), "{link}");
        }
        assert_eq!(place.inside.stat(link).unwrap().kind, Kind::Symlink);
        let error = place.inside.set_mode(link, 0o777).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let mtime = Timestamp { seconds: 12, nanos: 34 };
        place.inside.set_times(link, mtime).unwrap();
        assert_eq!(place.inside.stat(link).unwrap().mtime, mtime);
    }
    let follow = Open { follow: true, ..Open::reading() };
    assert!(place.inside.open_file("in", &follow).is_ok());
    for escape in [
        place.inside.open_file("out", &follow).map(drop),
        place.inside.stat_follow("out").map(drop),
    ] {
        assert_eq!(escape.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
    let create = Open { follow: true, ..Open::creating(0o600) };
    place.inside.open_file("dangling", &create).unwrap();
    assert_eq!(place.inside.stat("missing").unwrap().kind, Kind::File);
    assert_ne!(place.inside.stat_follow("in").unwrap().mtime.seconds, 12);
}

#[test]
fn links_that_stay_beneath_are_followed_on_the_way() {
    let place = place();
    place.inside.create_dir_all("a/b", 0o700).unwrap();
    place.inside.symlink("../a/b", "a/link").unwrap();
    write(&place.inside, "a/link/file", b"through").unwrap();
    assert_eq!(read(&place.inside, "a/b/file").unwrap(), b"through");
    assert_eq!(place.inside.read_link("a/link").unwrap(), Path::new("../a/b"));
    place.inside.create_dir_all("a/link/c/d", 0o700).unwrap();
    assert_eq!(place.inside.stat("a/b/c/d").unwrap().kind, Kind::Directory);
    place.inside.symlink("self", "self").unwrap();
    let error = place.inside.stat("self/x").unwrap_err();
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
fn a_directory_swapped_for_a_link_never_leads_outside() {
    let place = place();
    place.inside.create_dir("way", 0o700).unwrap();
    write(&place.inside, "way/secret", b"mine").unwrap();
    symlink("..", place.path("trap")).unwrap();
    let (way, trap) = (place.path("way"), place.path("trap"));
    let done = AtomicBool::new(false);
    let results: Vec<_> = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let exchange = RenameFlags::EXCHANGE;
                renameat_with(rustix::fs::CWD, &way, rustix::fs::CWD, &trap, exchange).unwrap();
            }
        });
        let results = (0..5000).map(|_| read(&place.inside, "way/secret")).collect();
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
