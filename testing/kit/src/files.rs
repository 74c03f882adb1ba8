//! Trees of files: random ones to copy, and the comparison of a copy with its source.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::Random;

/// Writes a file that only its owner may read, as tokens and keys must be.
///
/// # Panics
/// When it cannot be written.
#[track_caller]
pub fn write_private(path: &Path, content: impl AsRef<[u8]>) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Writes a file of random content, mode and modification time.
///
/// # Panics
/// When it cannot be written.
#[track_caller]
pub fn write_file(random: &mut Random, path: &Path, bytes: usize) {
    fs::write(path, random.bytes(bytes)).unwrap();
    let mode = [0o644, 0o600, 0o755, 0o444][random.between(0, 4) as usize];
    let seconds = random.between(1_000_000_000, 1_700_000_000);
    let nanos = random.between(0, 1_000_000_000) as u32;
    let file = fs::File::options().read(true).open(path).unwrap();
    file.set_permissions(fs::Permissions::from_mode(mode)).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos)).unwrap();
}

/// Writes a tree of `large` files of about 3 MiB, `small` ones of up to 20 KiB, an empty one, symlinks and an
/// empty directory. Returns the bytes in its files.
///
/// # Panics
/// When it cannot be written.
#[track_caller]
pub fn write_tree(random: &mut Random, root: &Path, large: usize, small: usize) -> u64 {
    let mut total = 0;
    fs::create_dir_all(root.join("deep/er/est")).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    for number in 0..large {
        let bytes = random.between(2 << 20, 4 << 20) as usize;
        write_file(random, &root.join(format!("large{number}")), bytes);
        total += bytes as u64;
    }
    for number in 0..small {
        let place = ["", "deep", "deep/er", "deep/er/est"][number % 4];
        let bytes = random.between(1, 20 << 10) as usize;
        write_file(random, &root.join(place).join(format!("small{number}")), bytes);
        total += bytes as u64;
    }
    write_file(random, &root.join("nothing"), 0);
    std::os::unix::fs::symlink("large0", root.join("link")).unwrap();
    std::os::unix::fs::symlink("../nowhere", root.join("deep/dangling")).unwrap();
    fs::set_permissions(root.join("deep/er"), fs::Permissions::from_mode(0o750)).unwrap();
    total
}

/// Compared properties of a tree entry: two trees are equal when all entries are.
#[derive(Debug, PartialEq, Eq)]
pub struct EntryProperties {
    kind: char,
    mode: u32,
    modified: (i64, i64),
    digest: [u8; 32],
    link: Option<PathBuf>,
}

/// Returns the entries below `root` by relative path.
///
/// # Panics
/// When one of them cannot be read.
#[must_use]
#[track_caller]
pub fn tree(root: &Path) -> BTreeMap<PathBuf, EntryProperties> {
    fn walk(root: &Path, path: &Path, entries: &mut BTreeMap<PathBuf, EntryProperties>) {
        for entry in fs::read_dir(root.join(path)).unwrap() {
            let path = path.join(entry.unwrap().file_name());
            let full = root.join(&path);
            let meta = full.symlink_metadata().unwrap();
            let kind = match meta.file_type() {
                kind if kind.is_dir() => 'd',
                kind if kind.is_symlink() => 'l',
                _ => 'f',
            };
            let digest = match kind {
                'f' => blake3::hash(&fs::read(&full).unwrap()).into(),
                _ => [0; 32],
            };
            let properties = EntryProperties {
                kind,
                mode: meta.mode(),
                modified: (meta.mtime(), meta.mtime_nsec()),
                digest,
                link: (kind == 'l').then(|| fs::read_link(&full).unwrap()),
            };
            entries.insert(path.clone(), properties);
            if kind == 'd' {
                walk(root, &path, entries);
            }
        }
    }
    let mut entries = BTreeMap::new();
    walk(root, Path::new(""), &mut entries);
    entries
}

/// Asserts equal trees: content, mode, modification time in nanoseconds and link targets.
///
/// # Panics
/// When they differ: the message names the entry.
#[track_caller]
pub fn assert_same(source: &Path, copy: &Path) {
    let (wanted, got) = (tree(source), tree(copy));
    let names =
        |entries: &BTreeMap<PathBuf, EntryProperties>| entries.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&wanted), names(&got));
    for (path, properties) in &wanted {
        assert_eq!(properties, &got[path], "{}", path.display());
    }
}

/// Returns the partial files (`.penstock-*`) below `root`.
#[must_use]
pub fn parts(root: &Path) -> Vec<PathBuf> {
    let is_part = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().as_bytes();
        name.starts_with(b".penstock-")
    };
    let mut found: Vec<_> = tree(root).into_keys().collect();
    found.retain(is_part);
    found
}

/// Asserts that `root` has no partial files and `state` no transfer journals.
///
/// # Panics
/// When either has some.
#[track_caller]
pub fn assert_no_leftovers(root: &Path, state: &Path) {
    assert_eq!(parts(root), Vec::<PathBuf>::new());
    let kept: Vec<OsString> = fs::read_dir(state.join("transfers"))
        .map(|entries| entries.map(|entry| entry.unwrap().file_name()).collect())
        .unwrap_or_default();
    assert_eq!(kept, Vec::<OsString>::new());
}
