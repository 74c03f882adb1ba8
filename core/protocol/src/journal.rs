//! Resume journal: ranges of unfinished files that survive a crash of the receiver or its machine.
//!
//! The journal is a sequence of records with length and CRC-32C, each appended after the bytes it
//! covers were written. The two kinds of crash need two levels of trust:
//!
//! - The process dies, the kernel lives: what was written is in the page cache or on the device.
//!   Every record counts, as long as the machine still runs the boot that the journal names.
//! - The machine dies: only synced data counts. The receiver notes the journal's length, syncs every
//!   file with new extents, then appends `Synced` with that length and syncs the journal. Another boot
//!   trusts only records below the length of the last `Synced`.
//!
//! Replay stops at the first torn or damaged record. A file whose source changed starts again.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::digest::{Algorithm, crc32c};
use crate::extents::{Extent, coalesce};
use crate::manifest::{Entry, Time};
use crate::wire::{self, Bytes, WireFormat, wire_enum, wire_struct};

/// Size limit of a record body in bytes.
const RECORD_BYTES_MAX: usize = 64 * 1024;

wire_struct! {
    /// First record: version, boot and digest parameters.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct JournalHeader {
        /// [`JOURNAL_VERSION`] of the writer.
        pub version: u16,
        /// Boot id of the machine that wrote every record.
        pub boot: String,
        /// Algorithm of the extents' parts ([`Algorithm::of_ranges`]).
        pub algorithm: Algorithm,
        /// Block size in bytes, on which BLAKE3 parts depend.
        pub block_bytes: u32,
    }
}

/// Version of the record format.
pub const JOURNAL_VERSION: u16 = 3;

wire_struct! {
    /// Target directory of the transfer, so that its temporary files can be found without it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct TargetDirectory {
        /// Absolute path of the target directory.
        pub path: Bytes,
        /// Identifier of its file system, stable across mounts.
        pub file_system: u64,
        /// Inode number of the directory.
        pub inode: u64,
        /// Prefix of all temporary names of the transfer.
        pub mark: String,
    }
}

wire_struct! {
    /// Start of a file; its extents follow.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct FileStart {
        /// Number of the file in this journal.
        pub number: u64,
        /// Partial file and its source.
        pub partial: Partial,
    }
}

wire_struct! {
    /// Partial file: the incomplete copy of one source.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Partial {
        /// Path of its directory below the target; empty for the target itself.
        pub folder: Bytes,
        /// Identity of that directory, independent of the path.
        pub directory: Directory,
        /// Temporary name within the directory.
        pub partial_name: Bytes,
        /// Final name within the directory.
        pub name: Bytes,
        /// Identity of the source.
        pub identity: SourceIdentity,
    }
}

wire_struct! {
    /// Directory and the mount through which it was reached.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Directory {
        /// Device of its file system (`st_dev`).
        pub device: u64,
        /// Inode number of the directory.
        pub inode: u64,
        /// Mount id (`stx_mnt_id`); zero if the kernel reports none.
        pub mount: u64,
    }
}

wire_struct! {
    /// Attributes of a source that stay equal while its content does.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct SourceIdentity {
        /// Size of the source in bytes.
        pub bytes: u64,
        /// Modification time of the source (`st_mtime`).
        pub modified: Time,
        /// Time of the last change of content or metadata (`st_ctime`).
        pub changed: Time,
        /// Inode number of the source.
        pub inode: u64,
    }
}

impl SourceIdentity {
    /// Returns the identity of an announced source.
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
    /// Record of a resume journal.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum Record {
        /// Parameters of the journal; always first.
        Header(JournalHeader) = 1,
        /// A file was started.
        FileStarted(FileStart) = 2,
        /// An extent of a file was written.
        Written((u64, Extent)) = 3,
        /// Extents recorded in this many first bytes of the journal are durable.
        Synced(u64) = 4,
        /// The partial file of this file was removed durably.
        FileEnded(u64) = 5,
        /// Target directory; always second.
        Target(TargetDirectory) = 6,
        /// A directory below the target (empty: the target) that may hold temporary files from here on.
        TempDirectory(Bytes) = 7,
    }
}

/// Appends the encoded record with length and CRC-32C.
pub fn put(record: &Record, out: &mut Vec<u8>) {
    let body = wire::encode(record);
    (u32::try_from(body.len()).expect("a record is short")).put(out);
    crc32c(&body).put(out);
    out.extend_from_slice(&body);
}

/// Unfinished file as recorded in a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfinished {
    /// Location and source of the copy.
    pub partial: Partial,
    /// Extents that were synced and survive a power cut.
    pub durable: Vec<Extent>,
    /// Extents that survive the process but not the machine; empty if another boot wrote them.
    pub written: Vec<Extent>,
}

impl Unfinished {
    /// Ranges that may hold source bytes, given the directory as it is reached now. Extents that were
    /// not synced count only while device and mount are unchanged.
    #[must_use]
    pub fn ranges(&self, algorithm: Algorithm, directory: Directory) -> Vec<Extent> {
        let mut extents = self.durable.clone();
        if self.partial.directory == directory {
            extents.extend(self.written.iter().cloned());
        }
        coalesce(algorithm, self.partial.identity.bytes, extents)
    }
}

impl JournalHeader {
    /// True if the journal's digest parts fit a transfer with this digest and block size.
    #[must_use]
    pub fn has_parts_of(&self, algorithm: Algorithm, block_bytes: u32) -> bool {
        self.algorithm == algorithm.of_ranges()
            && (!algorithm.needs_grid() || self.block_bytes == block_bytes)
    }
}

/// Replays a journal under boot `boot`; returns its unfinished files in the order in which they
/// started. `None` if it is no journal of this version. A torn end is ignored.
#[must_use]
pub fn replay(bytes: &[u8], boot: &str) -> Option<(JournalHeader, Vec<Unfinished>)> {
    let mut records = RecordReader { bytes, position: 0 };
    let Some((Record::Header(about), _)) = records.next() else { return None };
    if about.version != JOURNAL_VERSION {
        return None;
    }
    let mut files: BTreeMap<u64, Unfinished> = BTreeMap::new();
    let mut ends: HashMap<u64, VecDeque<u64>> = HashMap::new();
    for (record, end) in records {
        match record {
            Record::Header(_) => break,
            Record::FileStarted(FileStart { number, partial }) => {
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
            Record::FileEnded(number) => {
                files.remove(&number);
            }
            Record::Target(_) | Record::TempDirectory(_) => {}
        }
    }
    if about.boot != boot {
        files.values_mut().for_each(|file| file.written.clear());
    }
    Some((about, files.into_values().collect()))
}

/// Directories in which a transfer may have left temporary files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TempFileLocations {
    /// Target directory of the transfer.
    pub at: TargetDirectory,
    /// Directories below it that may hold files with the transfer's mark.
    pub directories: Vec<Bytes>,
    /// Partial files that may exist.
    pub partials: Vec<Partial>,
}

/// Reads the temporary file locations from a journal of any boot. `None` if it has none.
#[must_use]
pub fn temp_file_locations(bytes: &[u8]) -> Option<TempFileLocations> {
    let mut records = RecordReader { bytes, position: 0 };
    let Some((Record::Header(JournalHeader { version: JOURNAL_VERSION, .. }), _)) = records.next()
    else {
        return None;
    };
    let Some((Record::Target(at), _)) = records.next() else { return None };
    let mut directories = Vec::new();
    let mut partials = BTreeMap::new();
    for (record, _) in records {
        match record {
            Record::TempDirectory(path) => directories.push(path),
            Record::FileStarted(begun) => {
                partials.insert(begun.number, begun.partial);
            }
            Record::FileEnded(number) => {
                partials.remove(&number);
            }
            Record::Header(_) | Record::Target(_) | Record::Written(_) | Record::Synced(_) => {}
        }
    }
    Some(TempFileLocations { at, directories, partials: partials.into_values().collect() })
}

/// Iterator over intact records, each with the journal length at its end.
struct RecordReader<'a> {
    bytes: &'a [u8],
    position: u64,
}

impl Iterator for RecordReader<'_> {
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
        Record::Header(JournalHeader {
            version: JOURNAL_VERSION,
            boot: "this".into(),
            algorithm: Algorithm::Crc32c,
            block_bytes: 4096,
        })
    }

    fn begun(number: u64, name: &str) -> Record {
        Record::FileStarted(FileStart { number, partial: partial(name) })
    }

    fn partial(name: &str) -> Partial {
        Partial {
            folder: Bytes::default(),
            directory: Directory::default(),
            partial_name: Bytes(format!(".{name}.part").into_bytes()),
            name: Bytes(name.into()),
            identity: SourceIdentity {
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

    /// `Synced` record that covers all of `records`.
    fn synced(records: &[Record]) -> Record {
        Record::Synced(journal(records).len() as u64)
    }

    #[test]
    fn reboot_keeps_only_synced_extents() {
        let first = [about(), begun(1, "a"), Record::Written((1, extent(0)))];
        let synced = synced(&first);
        let [about, begun_a, written] = first;
        let bytes = journal(&[
            about,
            begun_a,
            written,
            // Written during the sync, so not covered by it.
            Record::Written((1, extent(10))),
            synced,
            begun(2, "done"),
            Record::FileEnded(2),
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
    fn restarted_number_replaces_file() {
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
    fn temp_file_locations_survive_torn_end() {
        let at = TargetDirectory {
            path: Bytes(b"/x".to_vec()),
            file_system: 1,
            inode: 2,
            mark: ".m-".into(),
        };
        let into = |path: &str| Bytes(path.into());
        let records = [
            about(),
            Record::Target(at.clone()),
            Record::TempDirectory(into("")),
            begun(1, "a"),
            Record::TempDirectory(into("deep/er")),
        ];
        let mut bytes = journal(&records);
        let directories = vec![into(""), into("deep/er")];
        let partials = vec![partial("a")];
        let whole = TempFileLocations { at: at.clone(), directories, partials: partials.clone() };
        assert_eq!(temp_file_locations(&bytes), Some(whole));
        bytes.pop();
        assert_eq!(
            temp_file_locations(&bytes),
            Some(TempFileLocations { at, directories: vec![into("")], partials })
        );
        assert_eq!(temp_file_locations(&journal(&[about(), begun(1, "a")])), None);
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
        #![proptest_config(penstock_testkit::properties())]

        /// A journal cut anywhere never claims more than its intact records, under any boot.
        #[test]
        fn torn_journal_claims_only_intact_records(
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
            // Independent reading: count the intact records, then evaluate them.
            let whole = RecordReader { bytes: &bytes, position: 0 }.count();
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
        fn replay_accepts_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = replay(&bytes, "this");
        }
    }
}
