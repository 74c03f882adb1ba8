//! What the receiver remembers of unfinished files across its own death and its machine's.
//!
//! The journal is a sequence of records, each with its length and CRC-32C, appended after the bytes
//! they speak of were written. Two kinds of death need two kinds of trust:
//!
//! - The process dies, the kernel lives: what was written is in the page cache or on the device.
//!   Every record counts, as long as the machine still runs the boot that the journal names.
//! - The machine dies: only what was synced counts. The receiver notes the journal's length, syncs
//!   every file with new extents, then appends `Synced` with that length and syncs the journal.
//!   Another boot trusts only what lies below the length of the last `Synced`.
//!
//! A record that is torn or damaged ends the journal there; a file whose source changed starts again.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::digest::{Algorithm, crc32c};
use crate::extents::{Extent, coalesce};
use crate::manifest::{Entry, Time};
use crate::wire::{self, Bytes, Wire, wire_enum, wire_struct};

/// Longest record.
const RECORD_BYTES_MAX: usize = 64 * 1024;

wire_struct! {
    /// What the journal is about.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct About {
        /// Version of the journal's records.
        pub version: u16,
        /// The boot under which every record of this journal was written.
        pub boot: String,
        /// The algorithm of the extents' parts ([`Algorithm::of_ranges`]).
        pub algorithm: Algorithm,
        /// Bytes in a block, which BLAKE3's parts depend on.
        pub block_bytes: u32,
    }
}

/// Version of the records.
pub const JOURNAL_VERSION: u16 = 3;

wire_struct! {
    /// Where the transfer goes, so that what it leaves can be found without it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct At {
        /// The directory below which everything goes, from the root.
        pub path: Bytes,
        /// The file system it lies on, by a number that outlives its being mounted again.
        pub file_system: u64,
        /// Its inode number there.
        pub inode: u64,
        /// What all temporary names of the transfer begin with.
        pub mark: String,
    }
}

wire_struct! {
    /// A file of which extents follow.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Begun {
        /// Its number in this journal.
        pub number: u64,
        /// Where its partial file is, and what it is a copy of.
        pub partial: Partial,
    }
}

wire_struct! {
    /// A partial file: the copy of one source that is not whole.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Partial {
        /// Path of its directory below the target, empty for the target itself.
        pub folder: Bytes,
        /// The same directory, whatever path leads to it.
        pub directory: Directory,
        /// Its name until it is whole.
        pub partial_name: Bytes,
        /// Its name after that.
        pub name: Bytes,
        /// The source that it is a copy of.
        pub identity: Identity,
    }
}

wire_struct! {
    /// A directory and the mount through which it was reached.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Directory {
        /// Device of its file system (`st_dev`).
        pub device: u64,
        /// Its inode number there.
        pub inode: u64,
        /// Number of the mount (`stx_mnt_id`), zero where the kernel gives none.
        pub mount: u64,
    }
}

wire_struct! {
    /// The facts about a source that all stay the same while its content does.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Identity {
        /// Bytes in it.
        pub bytes: u64,
        /// Modification time.
        pub modified: Time,
        /// Time of the last change of content or metadata.
        pub changed: Time,
        /// Inode number.
        pub inode: u64,
    }
}

impl Identity {
    /// The identity of an announced source.
    #[must_use]
    pub fn of(entry: &Entry) -> Self {
        Self {
            bytes: entry.bytes,
            modified: entry.modified,
            changed: entry.changed,
            inode: entry.inode,
        }
    }
}

wire_enum! {
    /// One record.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Record {
        /// Always first.
        About(About) = 1,
        /// A file begins.
        Begun(Begun) = 2,
        /// An extent of a file is written.
        Written((u64, Extent)) = 3,
        /// Extents recorded in this many first bytes of the journal are durable.
        Synced(u64) = 4,
        /// Nothing is left of a file's partial file, durably.
        Ended(u64) = 5,
        /// Where it goes; always second.
        At(At) = 6,
        /// A directory below, empty for the one of `At`, in which temporary files may be from here on.
        Into(Bytes) = 7,
    }
}

/// Appends a record.
pub fn put(record: &Record, out: &mut Vec<u8>) {
    let body = wire::encode(record);
    (u32::try_from(body.len()).expect("a record is short")).put(out);
    crc32c(&body).put(out);
    out.extend_from_slice(&body);
}

/// An unfinished file as a journal tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfinished {
    /// The partial file.
    pub partial: Partial,
    /// Extents that were synced and so outlive a power cut.
    pub durable: Vec<Extent>,
    /// Extents that outlive the process but not the machine; empty when another boot wrote them.
    pub written: Vec<Extent>,
}

impl Unfinished {
    /// Ranges that may hold bytes of the source, given the directory as it is reached now: what was not synced counts
    /// only while device and mount are the same.
    #[must_use]
    pub fn ranges(&self, algorithm: Algorithm, directory: Directory) -> Vec<Extent> {
        let mut extents = self.durable.clone();
        if self.partial.directory == directory {
            extents.extend(self.written.iter().cloned());
        }
        coalesce(algorithm, self.partial.identity.bytes, extents)
    }
}

impl About {
    /// Whether the parts of the journal's extents are those of a transfer with this digest and block size.
    #[must_use]
    pub fn has_parts_of(&self, algorithm: Algorithm, block_bytes: u32) -> bool {
        self.algorithm == algorithm.of_ranges()
            && (!algorithm.needs_grid() || self.block_bytes == block_bytes)
    }
}

/// Reads a journal under boot `boot`: the unfinished files that it records, in the order in which they began. `None`
/// where it is not a journal of this version; a torn end is cut off.
#[must_use]
pub fn replay(bytes: &[u8], boot: &str) -> Option<(About, Vec<Unfinished>)> {
    let mut records = Records { bytes, position: 0 };
    let Some((Record::About(about), _)) = records.next() else { return None };
    if about.version != JOURNAL_VERSION {
        return None;
    }
    let mut files: BTreeMap<u64, Unfinished> = BTreeMap::new();
    let mut ends: HashMap<u64, VecDeque<u64>> = HashMap::new();
    for (record, end) in records {
        match record {
            Record::About(_) => break,
            Record::Begun(Begun { number, partial }) => {
                let (durable, written) = (Vec::new(), Vec::new());
                files.insert(number, Unfinished { partial, durable, written });
                ends.remove(&number);
            }
            Record::Written((number, extent)) => {
                if let Some(file) = files.get_mut(&number) {
                    file.written.push(extent);
                    ends.entry(number).or_default().push_back(end);
                }
            }
            Record::Synced(length) => {
                for (number, file) in &mut files {
                    let Some(ends) = ends.get_mut(number) else { continue };
                    let count = ends.partition_point(|end| *end <= length);
                    ends.drain(..count);
                    file.durable.extend(file.written.drain(..count));
                }
            }
            Record::Ended(number) => {
                files.remove(&number);
            }
            Record::At(_) | Record::Into(_) => {}
        }
    }
    if about.boot != boot {
        files.values_mut().for_each(|file| file.written.clear());
    }
    Some((about, files.into_values().collect()))
}

/// Where a transfer may have left temporary files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The directory it went to.
    pub at: At,
    /// Directories below it with files whose names begin with the transfer's mark.
    pub directories: Vec<Bytes>,
    /// Partial files that may be there.
    pub partials: Vec<Partial>,
}

/// What a journal says of where its transfer went, under any boot. `None` where it does not say.
#[must_use]
pub fn places(bytes: &[u8]) -> Option<Places> {
    let mut records = Records { bytes, position: 0 };
    let Some((Record::About(About { version: JOURNAL_VERSION, .. }), _)) = records.next() else {
        return None;
    };
    let Some((Record::At(at), _)) = records.next() else { return None };
    let mut directories = Vec::new();
    let mut partials = BTreeMap::new();
    for (record, _) in records {
        match record {
            Record::Into(path) => directories.push(path),
            Record::Begun(begun) => {
                partials.insert(begun.number, begun.partial);
            }
            Record::Ended(number) => {
                partials.remove(&number);
            }
            Record::About(_) | Record::At(_) | Record::Written(_) | Record::Synced(_) => {}
        }
    }
    Some(Places { at, directories, partials: partials.into_values().collect() })
}

/// Whole records from the start, each with the length of the journal up to its end.
struct Records<'a> {
    bytes: &'a [u8],
    position: u64,
}

impl Iterator for Records<'_> {
    type Item = (Record, u64);

    fn next(&mut self) -> Option<(Record, u64)> {
        let (head, rest) = self.bytes.split_at_checked(8)?;
        let length = u32::from_be_bytes(head[..4].try_into().ok()?) as usize;
        let (body, rest) = rest.split_at_checked(length).filter(|_| length <= RECORD_BYTES_MAX)?;
        if crc32c(body).to_be_bytes() != head[4..] {
            return None;
        }
        self.bytes = rest;
        self.position += 8 + length as u64;
        Some((wire::decode(body).ok()?, self.position))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn about() -> Record {
        Record::About(About {
            version: JOURNAL_VERSION,
            boot: "this".into(),
            algorithm: Algorithm::Crc32c,
            block_bytes: 4096,
        })
    }

    fn begun(number: u64, name: &str) -> Record {
        Record::Begun(Begun { number, partial: partial(name) })
    }

    fn partial(name: &str) -> Partial {
        Partial {
            folder: Bytes::default(),
            directory: Directory::default(),
            partial_name: Bytes(format!(".{name}.part").into_bytes()),
            name: Bytes(name.into()),
            identity: Identity {
                bytes: 100,
                modified: Time::default(),
                changed: Time::default(),
                inode: 7,
            },
        }
    }

    fn extent(offset: u64) -> Extent {
        Extent { offset, bytes: 10, part: [offset as u8; 32] }
    }

    fn journal(records: &[Record]) -> Vec<u8> {
        let mut bytes = Vec::new();
        records.iter().for_each(|record| put(record, &mut bytes));
        bytes
    }

    /// `Synced` of everything that `records` would take.
    fn synced(records: &[Record]) -> Record {
        Record::Synced(journal(records).len() as u64)
    }

    #[test]
    fn another_boot_trusts_only_what_was_synced() {
        let first = [about(), begun(1, "a"), Record::Written((1, extent(0)))];
        let synced = synced(&first);
        let [about, begun_a, written] = first;
        let bytes = journal(&[
            about,
            begun_a,
            written,
            // Written while the sync ran, so not covered by it.
            Record::Written((1, extent(10))),
            synced,
            begun(2, "done"),
            Record::Ended(2),
        ]);
        let file = |written: &[Extent]| Unfinished {
            partial: partial("a"),
            durable: vec![extent(0)],
            written: written.to_vec(),
        };
        let (about, same) = replay(&bytes, "this").expect("a journal");
        assert_eq!(same, [file(&[extent(10)])]);
        let (_, other) = replay(&bytes, "other").expect("a journal");
        assert_eq!(other, [file(&[])]);
        assert!(about.has_parts_of(Algorithm::Crc32c, 1 << 20));
        assert!(about.has_parts_of(Algorithm::Sha256, 4096));
        assert!(!about.has_parts_of(Algorithm::Blake3, 4096));
    }

    #[test]
    fn a_number_that_begins_again_is_another_file() {
        let records = [about(), begun(1, "a"), Record::Written((1, extent(0))), begun(1, "b")];
        let synced = synced(&records);
        let mut bytes = journal(&records);
        put(&synced, &mut bytes);
        let (_, files) = replay(&bytes, "this").expect("a journal");
        assert_eq!(files.len(), 1);
        assert_eq!(files[0].partial.name, Bytes(b"b".to_vec()));
        assert!(files[0].durable.is_empty());
    }

    #[test]
    fn it_says_where_the_transfer_went() {
        let at = At { path: Bytes(b"/x".to_vec()), file_system: 1, inode: 2, mark: ".m-".into() };
        let into = |path: &str| Bytes(path.into());
        let records = [
            about(),
            Record::At(at.clone()),
            Record::Into(into("")),
            begun(1, "a"),
            Record::Into(into("deep/er")),
        ];
        let mut bytes = journal(&records);
        let directories = vec![into(""), into("deep/er")];
        let partials = vec![partial("a")];
        let whole = Places { at: at.clone(), directories, partials: partials.clone() };
        assert_eq!(places(&bytes), Some(whole));
        bytes.pop();
        assert_eq!(places(&bytes), Some(Places { at, directories: vec![into("")], partials }));
        assert_eq!(places(&journal(&[about(), begun(1, "a")])), None);
    }

    #[test]
    fn unsynced_ranges_end_with_their_mount() {
        let here = Directory { device: 1, inode: 2, mount: 3 };
        let file = Unfinished {
            partial: Partial { directory: here, ..partial("a") },
            durable: vec![extent(0)],
            written: vec![extent(20)],
        };
        let offsets = |directory| {
            let ranges = file.ranges(Algorithm::Crc32c, directory);
            ranges.iter().map(|extent| extent.offset).collect::<Vec<_>>()
        };
        assert_eq!(offsets(here), [0, 20]);
        assert_eq!(offsets(Directory { mount: 4, ..here }), [0]);
        assert_eq!(offsets(Directory { device: 4, ..here }), [0]);
    }

    proptest! {
        /// Cut anywhere, under any boot, a journal never claims more than its whole records say.
        #[test]
        fn a_torn_journal_claims_no_more_than_it_says(
            steps in proptest::collection::vec(0_u64..8, 1..40),
            cut in any::<prop::sample::Index>(),
            flip in any::<Option<prop::sample::Index>>(),
        ) {
            let mut records = vec![about(), begun(1, "a")];
            for step in steps {
                records.push(match step {
                    0 => synced(&records),
                    offset => Record::Written((1, extent(offset * 10))),
                });
            }
            let mut bytes = journal(&records);
            bytes.truncate(cut.index(bytes.len() + 1));
            if let (Some(flip), false) = (flip, bytes.is_empty()) {
                let at = flip.index(bytes.len());
                bytes[at] ^= 0x40;
            }
            // An independent reading: how many whole records are left, then what they say.
            let whole = Records { bytes: &bytes, position: 0 }.count();
            let is_synced = |record: &Record| matches!(record, Record::Synced(_));
            let synced = records[..whole].iter().rposition(is_synced);
            let count = |records: &[Record]| {
                records.iter().filter(|record| matches!(record, Record::Written(_))).count()
            };
            let files = replay(&bytes, "other").map(|(_, files)| files).unwrap_or_default();
            let claimed = files.iter().map(|file| file.durable.len()).sum::<usize>();
            prop_assert_eq!(claimed, synced.map_or(0, |at| count(&records[..at])));
        }

        #[test]
        fn any_bytes_are_a_journal_or_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = replay(&bytes, "this");
        }
    }
}
