//! Keys of destinations, by which two requests cannot write one file.

use aws_lc_rs::digest::{SHA256, digest};

/// Bytes of a destination key that hash the directory.
const DIRECTORY_HASH_BYTES: usize = 6;

/// Computes the keys of files below one directory: a hash of the file's directory, then one of its whole path.
///
/// The directory prefix keeps files of one directory adjacent in the index of destinations. With uniform keys, 10,000
/// files would modify as many pages, the more so the larger the index.
#[derive(Debug)]
pub(super) struct DestinationKeys {
    /// Site and destination directory, the common prefix of all keys' input.
    text: Vec<u8>,
    common: usize,
    /// Directory of the last file, with its hash.
    last: Option<(String, [u8; DIRECTORY_HASH_BYTES])>,
}

impl DestinationKeys {
    pub(super) fn new(site: &str, to: &str) -> Self {
        let mut text = Vec::with_capacity(site.len() + to.len() + 256);
        text.extend_from_slice(site.as_bytes());
        text.push(0);
        text.extend_from_slice(to.trim_end_matches('/').as_bytes());
        text.push(b'/');
        Self { common: text.len(), text, last: None }
    }

    pub(super) fn of(&mut self, path: &str) -> Vec<u8> {
        let (directory, _) = path.rsplit_once('/').unwrap_or_default();
        self.text.truncate(self.common);
        self.text.extend_from_slice(path.as_bytes());
        let file = digest(&SHA256, &self.text);
        if self.last.as_ref().is_none_or(|(last, _)| last != directory) {
            self.text.truncate(self.common);
            self.text.extend_from_slice(directory.as_bytes());
            // The same for any split of the directory between `to` and the path.
            let whole = self.text.strip_suffix(b"/").unwrap_or(&self.text);
            let hash = digest(&SHA256, whole);
            let mut first = [0; DIRECTORY_HASH_BYTES];
            first.copy_from_slice(&hash.as_ref()[..DIRECTORY_HASH_BYTES]);
            self.last = Some((directory.to_owned(), first));
        }
        let (_, first) = self.last.as_ref().expect("it was set");
        [&first[..], &file.as_ref()[..16 - DIRECTORY_HASH_BYTES]].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(site: &str, to: &str, path: &str) -> Vec<u8> {
        DestinationKeys::new(site, to).of(path)
    }

    #[test]
    fn key_ignores_split_of_path() {
        assert_eq!(key("cern", "/a/b", "c/d"), key("cern", "/a", "b/c/d"));
        assert_eq!(key("cern", "/a/", "b"), key("cern", "/a", "b"));
        assert_ne!(key("cern", "/a", "b"), key("fnal", "/a", "b"));
    }

    #[test]
    fn keys_of_directory_share_prefix() {
        let mut keys = DestinationKeys::new("cern", "/a");
        let (one, other, apart) = (keys.of("x/1"), keys.of("x/2"), keys.of("y/1"));
        assert_eq!((one.len(), &one[..6]), (16, &other[..6]));
        assert!(one != other && one[..6] != apart[..6]);
    }
}
