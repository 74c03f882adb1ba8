//! Data segments and holes of a file (SEEK_DATA, SEEK_HOLE).
//!
//! For: skipping holes when reading and sending. Not for: finding stored zeroes.
//!
//! Moves the file position, which clones of the file share: use positioned reads and writes, and call these functions from
//! one thread at a time. Fails with the error of `lseek`; a file system without holes reports one segment.

use std::fs::File;
use std::io;
use std::ops::Range;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// The first byte of data at or after `offset`; `None` where there is only a hole up to the end, or nothing.
/// Moves the file's position.
pub fn next_data(file: &File, offset: u64) -> io::Result<Option<u64>> {
    seek(file, SeekFrom::Data(offset))
}

/// The first byte of a hole at or after `offset`, the file's end counting as one; `None` at or past the end.
/// Moves the file's position.
pub fn next_hole(file: &File, offset: u64) -> io::Result<Option<u64>> {
    seek(file, SeekFrom::Hole(offset))
}

fn seek(file: &File, to: SeekFrom) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, to) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The parts of the first `size` bytes of `file` that hold data, in order; everything between them reads as zeroes.
/// A file being changed meanwhile may give parts of either state. Moves the file's position.
pub fn data_segments(file: &File, size: u64) -> DataSegments<'_> {
    DataSegments { file, next: 0, size }
}

/// Iterates over the parts of a file that hold data; made by [`data_segments`].
#[derive(Debug)]
pub struct DataSegments<'a> {
    file: &'a File,
    next: u64,
    size: u64,
}

impl Iterator for DataSegments<'_> {
    type Item = io::Result<Range<u64>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.size {
            return None;
        }
        let segment = self.find_segment();
        self.next = match &segment {
            Ok(Some(segment)) => segment.end,
            _ => self.size,
        };
        segment.transpose()
    }
}

impl DataSegments<'_> {
    fn find_segment(&self) -> io::Result<Option<Range<u64>>> {
        let start = match next_data(self.file, self.next) {
            Ok(Some(start)) if start < self.size => start,
            Ok(_) => return Ok(None),
            // A file system or device without SEEK_DATA: everything is data.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                return Ok(Some(self.next..self.size));
            }
            Err(error) => return Err(error),
        };
        // No hole after data: the file was cut meanwhile. At least one byte, so that the iterator ends.
        let end = next_hole(self.file, start)?.unwrap_or(self.size);
        Ok(Some(start..end.clamp(start + 1, self.size)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{punch_hole, stat_file, write_all_at};

    const BYTES_PER_MIB: u64 = 1 << 20;

    fn segments(file: &File) -> Vec<Range<u64>> {
        let size = stat_file(file).unwrap().size;
        data_segments(file, size).map(Result::unwrap).collect()
    }

    #[test]
    fn empty_file_has_no_segments() {
        let file = tempfile::tempfile().unwrap();
        assert!(segments(&file).is_empty());
        assert_eq!(next_data(&file, 0).unwrap(), None);
        assert_eq!(next_hole(&file, 0).unwrap(), None);
    }

    #[test]
    fn segments_cover_data_without_holes() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 * BYTES_PER_MIB).unwrap();
        let data = vec![1; BYTES_PER_MIB as usize];
        for at in [0, 8 * BYTES_PER_MIB, 63 * BYTES_PER_MIB] {
            write_all_at(&file, &data, at).unwrap();
        }
        if !punch_hole(&file, 10 * BYTES_PER_MIB, BYTES_PER_MIB).unwrap() {
            penstock_testkit::skip(
                penstock_testkit::Requirement::Kernel,
                "this file system has no holes",
            );
            return;
        }
        // The file system may report more data than was written, never less.
        assert_eq!(
            segments(&file),
            [
                0..BYTES_PER_MIB,
                8 * BYTES_PER_MIB..9 * BYTES_PER_MIB,
                63 * BYTES_PER_MIB..64 * BYTES_PER_MIB
            ]
        );
        assert_eq!(next_data(&file, 2 * BYTES_PER_MIB).unwrap(), Some(8 * BYTES_PER_MIB));
        assert_eq!(next_hole(&file, 0).unwrap(), Some(BYTES_PER_MIB));
        punch_hole(&file, 63 * BYTES_PER_MIB, BYTES_PER_MIB).unwrap();
        assert_eq!(segments(&file), [0..BYTES_PER_MIB, 8 * BYTES_PER_MIB..9 * BYTES_PER_MIB]);
    }

    #[test]
    fn hole_only_file_has_no_segments() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(BYTES_PER_MIB).unwrap();
        assert!(segments(&file).is_empty());
    }

    #[test]
    fn wrong_size_is_harmless() {
        let file = tempfile::tempfile().unwrap();
        write_all_at(&file, &[1; 10_000], 0).unwrap();
        let short: Vec<_> = data_segments(&file, 5000).map(Result::unwrap).collect();
        assert_eq!(short.as_slice(), std::slice::from_ref(&(0..5000)));
        let long: Vec<_> = data_segments(&file, 50_000).map(Result::unwrap).collect();
        assert_eq!(long.len(), 1);
    }
}
