//! List of distinct paths in their given order; millions need little more memory than their text.
//!
//! [`crate::manifest::RelativePath`] validates a path; this list does not.

use std::ops::Range;

/// Largest text of a list, in bytes.
pub const TEXT_BYTES_MAX: usize = 1 << 30;

/// Distinct, normalised paths in their given order.
#[derive(Debug, Default)]
pub struct PathList {
    /// All paths concatenated.
    text: Vec<u8>,
    /// Offset and length of each path in the text.
    places: Vec<(u32, u32)>,
}

impl PathList {
    /// Parses a text in which `separator` ends each path. Paths are normalised: `./a//b/` becomes
    /// `a/b`, and the directory itself an empty path.
    ///
    /// # Panics
    /// If the text is longer than [`TEXT_BYTES_MAX`].
    #[must_use]
    pub fn of(mut text: Vec<u8>, separator: u8) -> Self {
        assert!(text.len() <= TEXT_BYTES_MAX, "a list of {} bytes", text.len());
        let mut places = Vec::new();
        let (mut start, mut to) = (0, 0);
        while start < text.len() {
            let length = text[start..].iter().position(|byte| *byte == separator);
            let end = length.map_or(text.len(), |length| start + length);
            if start < end {
                let length = normalise(&mut text, start..end, to);
                places.push((to as u32, length as u32));
                to += length;
            }
            start = end + 1;
        }
        text.truncate(to);
        text.shrink_to_fit();
        let mut list = Self { text, places };
        list.drop_repeated();
        list.places.shrink_to_fit();
        list
    }

    /// Keeps the first occurrence of each path.
    fn drop_repeated(&mut self) {
        let mut order: Vec<u32> = (0..self.places.len() as u32).collect();
        let path = |number: u32| self.get(number as usize).unwrap_or_default();
        order.sort_unstable_by(|a, b| path(*a).cmp(path(*b)).then(a.cmp(b)));
        let again = order.windows(2).filter(|two| path(two[0]) == path(two[1]));
        let again: Vec<u32> = again.map(|two| two[1]).collect();
        // `u32::MAX` marks a path for removal: no path is that long.
        again.into_iter().for_each(|number| self.places[number as usize].1 = u32::MAX);
        self.places.retain(|place| place.1 != u32::MAX);
    }

    /// Removes the directory itself from the list; returns true if it was listed.
    pub fn take_root(&mut self) -> bool {
        let before = self.places.len();
        self.places.retain(|place| place.1 > 0);
        self.places.len() < before
    }

    /// Number of paths in the list.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// True if the list has no path.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Total size of all paths in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.iter().map(<[u8]>::len).sum()
    }

    /// Returns the path with this index, from 0.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<&[u8]> {
        let (start, length) = *self.places.get(number)?;
        let start = start as usize;
        self.text.get(start..start + length as usize)
    }

    /// Iterates over the paths in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).filter_map(|number| self.get(number))
    }
}

/// Writes the normalised form of the path in `from` to `to`, which is not after it; returns its length,
/// which is not larger.
fn normalise(text: &mut [u8], from: Range<usize>, to: usize) -> usize {
    let mut end = to;
    if text[from.start] == b'/' {
        text[to] = b'/';
        end += 1;
    }
    let mut next = from.start;
    while next < from.end {
        let start = next;
        let slash = text[start..from.end].iter().position(|byte| *byte == b'/');
        let name = start..slash.map_or(from.end, |length| start + length);
        next = name.end + 1;
        if matches!(&text[name.clone()], b"" | b".") {
            continue;
        }
        if end > to && text[end - 1] != b'/' {
            text[end] = b'/';
            end += 1;
        }
        text.copy_within(name.clone(), end);
        end += name.len();
    }
    end - to
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn paths(text: &[u8], separator: u8) -> Vec<Vec<u8>> {
        PathList::of(text.to_vec(), separator).iter().map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn paths_are_normalised_and_deduplicated() {
        let list = paths(b"./a\n\nb//c/\na\n.\n/d\n../e\n//d/./\n/\n./\nb/c", b'\n');
        assert_eq!(list, [&b"a"[..], b"b/c", b"", b"/d", b"../e", b"/"]);
        assert_eq!(paths(b"a\nb\0./c\0", 0), [&b"a\nb"[..], b"c"]);
        let mut list = PathList::of(b".\na\n".to_vec(), b'\n');
        assert!(list.take_root() && !list.take_root());
        assert_eq!((list.len(), list.bytes(), list.get(0)), (1, 1, Some(&b"a"[..])));
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        /// Equals normalising and deduplicating line by line.
        #[test]
        fn list_equals_normalised_lines(text in "[a/.\n]{0,60}") {
            let mut seen = std::collections::HashSet::new();
            let plain = |line: &str| {
                let names = line.split('/').filter(|name| !matches!(*name, "" | "."));
                let slash = if line.starts_with('/') { "/" } else { "" };
                format!("{slash}{}", names.collect::<Vec<_>>().join("/")).into_bytes()
            };
            let lines = text.split('\n').filter(|line| !line.is_empty()).map(plain);
            let lines: Vec<_> = lines.filter(|line| seen.insert(line.clone())).collect();
            prop_assert_eq!(paths(text.as_bytes(), b'\n'), lines);
        }
    }
}
