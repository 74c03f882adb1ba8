//! Every operation, on short, deep and oddly named paths. Attacks on the confinement are in `attacks`.

use super::*;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;

mod attacks;

/// A temporary directory with the confined directory `inside` and, beside it, the file `secret`.
struct Sandbox {
    root: tempfile::TempDir,
    inside: Dir,
}

fn sandbox() -> Sandbox {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("inside")).unwrap();
    std::fs::write(root.path().join("secret"), "secret").unwrap();
    let for_all = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(root.path().join("secret"), for_all).unwrap();
    let inside = Dir::open(root.path().join("inside")).unwrap();
    Sandbox { root, inside }
}

impl Sandbox {
    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join("inside").join(path)
    }
}

fn write(dir: &Dir, path: impl AsRef<Path>, content: &[u8]) -> io::Result<()> {
    dir.open_file(path, &Open::creating(0o600))?.write_all(content)
}

fn read(dir: &Dir, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    dir.open_file(path, &Open::reading())?.read_to_end(&mut content)?;
    Ok(content)
}

#[test]
fn paths_longer_than_the_kernel_takes() {
    let sandbox = sandbox();
    let component = "d".repeat(200);
    let deep = vec![component.as_str(); 60].join("/");
    assert!(deep.len() > 3 * 4000);
    assert_eq!(sandbox.inside.stat(&deep).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    sandbox.inside.create_dir_all(&deep, 0o700).unwrap();
    sandbox.inside.create_dir_all(&deep, 0o700).unwrap();
    assert_eq!(sandbox.inside.stat(&deep).unwrap().kind, Kind::Directory);

    let (file, renamed) = (format!("{deep}/file"), format!("{deep}/renamed"));
    write(&sandbox.inside, &file, b"deep").unwrap();
    assert_eq!(sandbox.inside.stat(&file).unwrap().size, 4);
    assert_eq!(sandbox.inside.stat_follow(&file).unwrap().size, 4);
    sandbox.inside.set_mode(&file, 0o640).unwrap();
    sandbox.inside.set_times(&file, Timestamp { seconds: 5, nanos: 6 }).unwrap();
    sandbox.inside.set_owner(&file, None, None).unwrap();
    assert_eq!(sandbox.inside.stat(&file).unwrap().mode, 0o640);
    assert_eq!(sandbox.inside.stat(&file).unwrap().mtime.seconds, 5);

    sandbox.inside.rename(&file, &renamed).unwrap();
    sandbox.inside.rename_noreplace(&renamed, "shallow").unwrap();
    sandbox.inside.rename("shallow", &renamed).unwrap();
    assert_eq!(read(&sandbox.inside, &renamed).unwrap(), b"deep");
    let (parent, name) = sandbox.inside.parent(&renamed).unwrap();
    assert_eq!(read(&parent, name).unwrap(), b"deep");
    sandbox.inside.symlink("renamed", format!("{deep}/link")).unwrap();
    assert_eq!(sandbox.inside.read_link(format!("{deep}/link")).unwrap(), Path::new("renamed"));
    let opened = sandbox.inside.open_dir(&deep).unwrap();
    assert_eq!(opened.entries().unwrap().count(), 2);

    sandbox.inside.remove_file(&renamed).unwrap();
    sandbox.inside.remove_file(format!("{deep}/link")).unwrap();
    // The temporary directory's own removal need not manage such depth.
    let mut rest = deep.as_str();
    while !rest.is_empty() {
        sandbox.inside.remove_dir(rest).unwrap();
        rest = rest.rsplit_once('/').map_or("", |(above, _)| above);
    }
    assert_eq!(sandbox.inside.entries().unwrap().count(), 0);
}

#[test]
fn overlong_component_is_enametoolong() {
    let sandbox = sandbox();
    for len in [256, 5000] {
        let error = sandbox.inside.create_dir("x".repeat(len), 0o700).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENAMETOOLONG));
        assert!(write(&sandbox.inside, format!("a/{}", "x".repeat(len)), b"").is_err());
    }
}

#[test]
fn names_of_any_bytes() {
    let sandbox = sandbox();
    let names: Vec<&OsStr> = [
        &b"new\nline"[..],
        b"\xff\xfe",
        b" ",
        b"...",
        b"-rf",
        b"\x01\x7f\\\"'*",
        "caf\u{e9}".as_bytes(),
    ]
    .map(OsStr::from_bytes)
    .into();
    for name in &names {
        let directory = Path::new(name);
        sandbox.inside.create_dir(directory, 0o700).unwrap();
        write(&sandbox.inside, directory.join(name), b"x").unwrap();
        sandbox.inside.rename(directory.join(name), directory.join("other")).unwrap();
        sandbox.inside.symlink(name, directory.join(name)).unwrap();
        assert_eq!(sandbox.inside.read_link(directory.join(name)).unwrap(), directory);
    }
    let mut seen: Vec<_> =
        sandbox.inside.entries().unwrap().map(|entry| entry.unwrap().0).collect();
    let mut names = names;
    seen.sort();
    names.sort();
    assert_eq!(seen, names);
}

#[test]
fn the_directory_itself() {
    let sandbox = sandbox();
    for itself in ["", ".", "./", "././"] {
        assert_eq!(sandbox.inside.stat(itself).unwrap().kind, Kind::Directory);
        assert_eq!(
            sandbox.inside.stat(itself).unwrap(),
            sandbox.inside.stat_follow(itself).unwrap()
        );
        sandbox.inside.open_dir(itself).unwrap();
        sandbox.inside.create_dir_all(itself, 0o700).unwrap();
        sandbox.inside.set_times(itself, Timestamp { seconds: 9, nanos: 0 }).unwrap();
        sandbox.inside.set_mode(itself, 0o750).unwrap();
        sandbox.inside.set_owner(itself, None, None).unwrap();
        let stat = sandbox.inside.stat(itself).unwrap();
        assert_eq!((stat.mode, stat.mtime.seconds), (0o750, 9));
        for refused in [
            sandbox.inside.create_dir(itself, 0o700),
            sandbox.inside.remove_dir(itself),
            sandbox.inside.rename(itself, "x"),
            sandbox.inside.symlink("x", itself),
            sandbox.inside.parent(itself).map(drop),
        ] {
            assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        let error = sandbox.inside.open_file(itself, &Open::reading()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EISDIR));
    }
    sandbox.inside.sync_all().unwrap();
    sandbox.inside.sync_filesystem().unwrap();
    let clone = sandbox.inside.try_clone().unwrap();
    assert_eq!(clone.device().unwrap(), sandbox.inside.stat("").unwrap().device);
}

#[test]
fn nofollow_refuses_links_in_any_component() {
    let sandbox = sandbox();
    sandbox.inside.create_dir_all("a/b", 0o700).unwrap();
    sandbox.inside.symlink("a", "link").unwrap();
    sandbox.inside.symlink("b", "a/last").unwrap();
    for path in ["", "a", "a/b"] {
        sandbox.inside.open_dir_nofollow(path).unwrap();
    }
    for path in ["link", "link/b", "a/last", "a/last/.", "..", "a/../a", "/"] {
        assert!(sandbox.inside.open_dir_nofollow(path).is_err(), "{path}");
    }
    sandbox.inside.open_dir("link/b").unwrap();
    let missing = sandbox.inside.open_dir_nofollow("a/none").unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
}

#[test]
fn file_as_parent_is_enotdir() {
    let sandbox = sandbox();
    write(&sandbox.inside, "file", b"").unwrap();
    for result in [
        sandbox.inside.create_dir_all("file/a", 0o700),
        sandbox.inside.create_dir_all("file", 0o700),
        sandbox.inside.stat("file/a").map(drop),
        sandbox.inside.open_dir("file").map(drop),
    ] {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ENOTDIR));
    }
    assert!(Dir::open(sandbox.path("file")).is_err());
}

#[test]
fn create_new_truncate_and_mode() {
    let sandbox = sandbox();
    let new = Open { create_new: true, mode: 0o600, ..Open::writing() };
    let mut file = sandbox.inside.open_file("file", &new).unwrap();
    file.write_all(b"long content").unwrap();
    assert_eq!(sandbox.inside.stat("file").unwrap().mode, 0o600);
    let error = sandbox.inside.open_file("file", &new).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    write(&sandbox.inside, "file", b"over").unwrap();
    assert_eq!(read(&sandbox.inside, "file").unwrap(), b"over content");
    let truncate = Open { truncate: true, ..Open::writing() };
    sandbox.inside.open_file("file", &truncate).unwrap();
    assert_eq!(read(&sandbox.inside, "file").unwrap(), b"");
    let flags =
        rustix::fs::fcntl_getfl(sandbox.inside.open_file("file", &Open::reading()).unwrap())
            .unwrap();
    assert!(!flags.contains(OFlags::NONBLOCK));
}

#[test]
fn direct_is_on_or_refused() {
    let sandbox = sandbox();
    let direct = Open { direct: true, ..Open::creating(0o600) };
    match sandbox.inside.open_file("file", &direct) {
        Ok(file) => assert!(super::super::is_direct(&file).unwrap()),
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::Unsupported);
            penstock_testkit::skip(penstock_testkit::Requirement::Kernel, "no O_DIRECT here");
        }
    }
}

#[test]
fn rename_replaces_noreplace_fails() {
    let sandbox = sandbox();
    write(&sandbox.inside, "a", b"a").unwrap();
    write(&sandbox.inside, "b", b"b").unwrap();
    let error = sandbox.inside.rename_noreplace("a", "b").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    sandbox.inside.rename("a", "b").unwrap();
    assert_eq!(read(&sandbox.inside, "b").unwrap(), b"a");
    assert_eq!(sandbox.inside.stat("a").unwrap_err().kind(), io::ErrorKind::NotFound);
    sandbox.inside.rename_noreplace("b", "a").unwrap();
    assert_eq!(read(&sandbox.inside, "a").unwrap(), b"a");
}

#[test]
fn special_files_are_refused_without_blocking() {
    let sandbox = sandbox();
    rustix::fs::mkfifoat(&sandbox.inside, "fifo", Mode::RWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(sandbox.path("socket")).unwrap();
    assert_eq!(sandbox.inside.stat("fifo").unwrap().kind, Kind::Other("fifo"));
    assert_eq!(sandbox.inside.stat("socket").unwrap().kind, Kind::Other("socket"));
    for name in ["fifo", "socket"] {
        for how in [Open::reading(), Open::writing()] {
            let error = sandbox.inside.open_file(name, &how).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name}");
        }
    }
    let dev = Dir::open("/dev").unwrap();
    assert_eq!(dev.stat("null").unwrap().kind, Kind::Other("character device"));
    assert!(dev.open_file("null", &Open::writing()).is_err());
    let special = Open { special: true, ..Open::writing() };
    dev.open_file("null", &special).unwrap().write_all(b"x").unwrap();
}

#[test]
fn entries_give_names_and_kinds() {
    let sandbox = sandbox();
    for number in 0..500 {
        write(&sandbox.inside, format!("file {number}"), b"").unwrap();
    }
    sandbox.inside.create_dir("directory", 0o700).unwrap();
    sandbox.inside.symlink("nowhere", "link").unwrap();
    let entries: Vec<_> = sandbox.inside.entries().unwrap().map(Result::unwrap).collect();
    assert_eq!(entries.len(), 502);
    assert!(entries.contains(&("directory".into(), Kind::Directory)));
    assert!(entries.contains(&("link".into(), Kind::Symlink)));
    assert_eq!(entries.iter().filter(|(_, kind)| *kind == Kind::File).count(), 500);
}

#[test]
fn many_threads_make_the_same_directories() {
    let sandbox = sandbox();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| sandbox.inside.create_dir_all("a/b/c/d/e/f", 0o700).unwrap());
        }
    });
    assert_eq!(sandbox.inside.stat("a/b/c/d/e/f").unwrap().kind, Kind::Directory);
}
