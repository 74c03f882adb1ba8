//! Reads small files of procfs and sysfs below a root directory, which tests replace.
//!
//! Does not fail: an unreadable file is `None`.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Size limit of a file in bytes: the largest list interrupts of hundreds of processors.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Most entries of a directory that are read.
const ENTRIES_MAX: usize = 65_536;

/// Root directory of `/proc`, `/sys` and other files.
#[derive(Debug, Clone)]
pub struct Tree {
    root: PathBuf,
}

impl Default for Tree {
    fn default() -> Self {
        Self { root: "/".into() }
    }
}

impl Tree {
    /// Creates a tree below another root, for tests and copies of machines.
    #[must_use]
    pub fn below(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// True for the root of this machine.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.root == Path::new("/")
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.at(path).exists()
    }

    pub(crate) fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.at(path)).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Trimmed content of a file; `None` if empty.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        let text = String::from_utf8_lossy(&self.bytes(path)?).trim().to_owned();
        (!text.is_empty()).then_some(text)
    }

    pub(crate) fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// Last component of a symbolic link's target, as the name of a driver.
    pub(crate) fn link_name(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.at(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// Sorted names in a directory; empty if it does not exist.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.at(path)) else { return Vec::new() };
        let mut names: Vec<String> = entries
            .take(ENTRIES_MAX)
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }
}

/// Selected entry of a list, in brackets as in `[none] mq-deadline`; the whole text without brackets.
pub(crate) fn chosen(text: &str) -> &str {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(text, |(chosen, _)| chosen).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selected_entry_is_in_brackets() {
        assert_eq!(chosen("[none] mq-deadline kyber"), "none");
        assert_eq!(chosen("mq-deadline [bfq]"), "bfq");
        assert_eq!(chosen("none"), "none");
        assert_eq!(chosen("] ["), "] [");
    }

    #[test]
    fn missing_files_are_none() {
        let tree = Tree::below(Path::new("/no/such/place"));
        assert_eq!(tree.text("/proc/cmdline"), None);
        assert!(tree.names("/sys").is_empty() && !tree.is_live());
    }
}
