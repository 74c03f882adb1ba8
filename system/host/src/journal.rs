//! Write-ahead journal of changes to this host, with the former values.
//!
//! A file of lines, each a checksum and one JSON object. A line is synced before its change is made, so a file that ends
//! within a line lost nothing that was done. A complete line that cannot be read was damaged later: it is counted, and the
//! other lines stay valid. One file per network namespace; a [`TuningJournal`] holds its lock.
//!
//! Fails with an error that names the file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crc_fast::{CrcAlgorithm, checksum};
use penstock_sys::lock::ExclusiveFileLock;
use serde::{Deserialize, Serialize};

use crate::change::{Change, Tunable};

/// File name for the first network namespace.
const JOURNAL_NAME: &str = "journal";

/// Largest journal that is read: thousands of changes.
const JOURNAL_BYTES_MAX: u64 = 64 << 20;

/// A line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case", deny_unknown_fields)]
pub enum JournalRecord {
    /// The application of a plan begins.
    Begin {
        /// Unique per application.
        id: String,
        /// Current boot: changes that are not persisted end with it.
        boot_id: String,
        /// Start in seconds since 1970.
        at_unix_seconds: u64,
        /// Deadline of the confirmation, in seconds since 1970.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revert_at_unix_seconds: Option<u64>,
        /// Changes to persist once confirmed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keep: Option<PersistRequest>,
    },
    /// The changes of a rule are about to be made.
    Step {
        /// Name of the rule.
        rule: String,
        /// Former and new values.
        changes: Vec<Change>,
    },
    /// The changes of the last step were refused and are undone.
    Undone {
        /// Name of the rule.
        rule: String,
    },
    /// Files that persist changes are about to be written.
    Files {
        /// Their former contents.
        files: Vec<SavedFile>,
        /// Directories created for them.
        directories: Vec<PathBuf>,
        /// Tunables that they persist.
        settings: Vec<Tunable>,
    },
    /// All rules of the plan were tried.
    End,
    /// The operator confirmed the plan.
    Confirmed,
    /// The changes of this plan were restored.
    Restored {
        /// Id of the plan.
        id: String,
    },
}

/// Changes to persist over restarts, and the target directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PersistRequest {
    /// Root directory of the files.
    pub below: PathBuf,
    /// Rules whose changes are persisted.
    pub rules: Vec<String>,
}

/// A written file with its former and new content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedFile {
    /// Absolute path of the file.
    pub path: PathBuf,
    /// Former text; `None` for a new file.
    pub before: Option<String>,
    /// New text; `None` for a link.
    pub after: Option<String>,
}

/// A plan that was applied, maybe in part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AppliedPlan {
    /// Unique id; empty where its line is damaged.
    pub id: String,
    /// Boot in which it was applied; empty where unknown.
    pub boot_id: String,
    /// Start in seconds since 1970.
    pub at_unix_seconds: u64,
    /// Deadline of the confirmation, in seconds since 1970.
    pub revert_at_unix_seconds: Option<u64>,
    /// Changes to persist over restarts.
    pub keep: Option<PersistRequest>,
    /// Rules and changes, in the order in which they were made.
    pub steps: Vec<(String, Vec<Change>)>,
    /// Files that persist changes, with their former content.
    pub files: Vec<SavedFile>,
    /// Directories created for them.
    pub directories: Vec<PathBuf>,
    /// Tunables that the files persist, of this plan and of earlier ones.
    pub kept: Vec<Tunable>,
    /// True if all rules were tried.
    pub ended: bool,
    /// True if the operator confirmed it.
    pub confirmed: bool,
}

impl AppliedPlan {
    /// True if it waits for a confirmation.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.revert_at_unix_seconds.is_some() && !self.confirmed
    }

    /// True if its confirmation deadline has passed.
    #[must_use]
    pub fn is_overdue(&self, now_unix_seconds: u64) -> bool {
        self.is_waiting() && self.revert_at_unix_seconds.is_some_and(|at| at < now_unix_seconds)
    }

    /// True for the trace of a damaged line without later lines.
    const fn is_nothing(&self) -> bool {
        self.id.is_empty() && self.steps.is_empty() && self.files.is_empty()
    }

    /// True if it was applied in this boot, or the boot is unknown.
    #[must_use]
    pub fn is_of(&self, boot_id: &str) -> bool {
        self.boot_id == boot_id || self.boot_id.is_empty()
    }
}

/// Parsed content of a journal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JournalContents {
    /// Plans not restored yet, oldest first.
    pub sessions: Vec<AppliedPlan>,
    /// Bytes of an incomplete last line, whose change was not made.
    pub cut_bytes: u64,
    /// Complete lines that cannot be read any more.
    pub damaged_lines: usize,
}

/// A journal that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("journal {}: {fault}", path.display())]
pub struct TuningJournalError {
    /// Path of the journal.
    pub path: PathBuf,
    /// Fault of the journal.
    #[source]
    pub fault: TuningJournalFault,
}

/// Fault of a journal.
#[derive(Debug, thiserror::Error)]
pub enum TuningJournalFault {
    /// The directory cannot be made.
    #[error("its directory cannot be made: {0}")]
    Directory(io::Error),
    /// The lock file cannot be made or locked.
    #[error("cannot be locked: {0}")]
    Lock(io::Error),
    /// Another process holds the lock for a minute.
    #[error("another penstock host keeps it: wait until it has ended")]
    Locked,
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Read(io::Error),
    /// The file cannot be written.
    #[error("cannot be written: {0}")]
    Write(io::Error),
    /// The file cannot be removed.
    #[error("cannot be removed: {0}")]
    Remove(io::Error),
    /// The file cannot be renamed.
    #[error("cannot be renamed: {0}")]
    Rename(io::Error),
}

/// The journal of this network namespace, locked.
#[derive(Debug)]
pub struct TuningJournal {
    path: PathBuf,
    _lock: ExclusiveFileLock,
}

/// Time-out for the lock: another process holds it for seconds while links come up again.
const LOCK_WAIT: std::time::Duration = std::time::Duration::from_secs(60);

impl TuningJournal {
    /// Opens and locks the journal of `namespace` in `directory`, which is created if missing; `None` is the first
    /// namespace.
    ///
    /// # Errors
    /// When it cannot be created or locked, or another process holds it for a minute.
    pub fn open(directory: &Path, namespace: Option<&str>) -> Result<Self, TuningJournalError> {
        let path = Self::path_in(directory, namespace);
        let failed = |fault| TuningJournalError { path: path.clone(), fault };
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|error| failed(TuningJournalFault::Directory(error)))?;
        let begun = std::time::Instant::now();
        let lock = loop {
            let tried = ExclusiveFileLock::try_lock_at(&path.with_extension("lock"));
            match tried.map_err(|error| failed(TuningJournalFault::Lock(error)))? {
                Some(lock) => break lock,
                None if begun.elapsed() > LOCK_WAIT => {
                    return Err(failed(TuningJournalFault::Locked));
                }
                None => std::thread::sleep(std::time::Duration::from_millis(20)),
            }
        };
        Ok(Self { path, _lock: lock })
    }

    /// Path of the journal file.
    #[must_use]
    pub fn path_in(directory: &Path, namespace: Option<&str>) -> PathBuf {
        directory.join(
            namespace.map_or(JOURNAL_NAME.to_owned(), |name| format!("{JOURNAL_NAME}-{name}")),
        )
    }

    /// Journals of other network namespaces in the same directory.
    #[must_use]
    pub fn others(&self) -> Vec<PathBuf> {
        let entries = self.path.parent().and_then(|directory| fs::read_dir(directory).ok());
        let mut others: Vec<PathBuf> = entries
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_none() && *path != self.path)
            .collect();
        others.sort();
        others
    }

    /// Removes journals of network namespaces of earlier boots, which have nothing to restore. Keeps the machine's journal
    /// and locked ones.
    pub fn remove_ended(&self, boot_id: &str) {
        for other in self.others() {
            let is_machine = other.file_name().is_some_and(|name| name == JOURNAL_NAME);
            let lock = ExclusiveFileLock::try_lock_at(&other.with_extension("lock"));
            let (false, Ok(Some(_lock))) = (is_machine, lock) else { continue };
            let Ok(bytes) = fs::read(&other) else { continue };
            let found = contents(&bytes);
            let lasts = |one: &AppliedPlan| one.is_of(boot_id) || !one.files.is_empty();
            if found.damaged_lines == 0 && !found.sessions.iter().any(lasts) {
                let _ = fs::remove_file(&other);
                // Last: once it is gone, another process can lock a new file and begin a journal.
                let _ = fs::remove_file(other.with_extension("lock"));
            }
        }
    }

    /// Reads and parses the journal; empty where missing.
    ///
    /// # Errors
    /// When an existing file cannot be read.
    pub fn read(&self) -> Result<JournalContents, TuningJournalError> {
        Ok(contents(&self.bytes()?))
    }

    fn bytes(&self) -> Result<Vec<u8>, TuningJournalError> {
        let mut bytes = Vec::new();
        match File::open(&self.path) {
            Ok(file) => file.take(JOURNAL_BYTES_MAX).read_to_end(&mut bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
        .map_err(|error| self.failed(TuningJournalFault::Read(error)))?;
        Ok(bytes)
    }

    /// Appends and syncs a line. Removes an incomplete last line first.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn add(&self, record: &JournalRecord) -> Result<(), TuningJournalError> {
        let bytes = self.bytes()?;
        let whole = bytes.len() - contents(&bytes).cut_bytes as usize;
        // True after damage to the last line.
        let is_open = bytes[..whole].last().is_some_and(|last| *last != b'\n');
        let write = || -> io::Result<()> {
            let mut file =
                OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)?;
            file.set_len(whole as u64)?;
            let end = if is_open { "\n" } else { "" };
            file.write_all([end, &line(record)].concat().as_bytes())?;
            file.sync_all()?;
            // Also syncs the directory entry of a new file.
            if whole == 0 {
                File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
            }
            Ok(())
        };
        write().map_err(|error| self.failed(TuningJournalFault::Write(error)))
    }

    /// Removes the file, after everything is restored.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove(&self) -> Result<(), TuningJournalError> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(self.failed(TuningJournalFault::Remove(error)))
            }
            _ => Ok(()),
        }
    }

    /// Renames the file for inspection; returns its new path.
    ///
    /// # Errors
    /// When it cannot be renamed.
    pub fn set_aside(&self) -> Result<PathBuf, TuningJournalError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let aside = self.path.with_extension(format!("damaged-{}", now.as_nanos()));
        let renamed = fs::rename(&self.path, &aside);
        renamed.map_err(|error| self.failed(TuningJournalFault::Rename(error)))?;
        Ok(aside)
    }

    fn failed(&self, fault: TuningJournalFault) -> TuningJournalError {
        TuningJournalError { path: self.path.clone(), fault }
    }
}

fn line(record: &JournalRecord) -> String {
    let json = serde_json::to_string(record);
    let json = json.unwrap_or_else(|error| unreachable!("a record is plain data: {error}"));
    format!("{:08x} {json}\n", crc(json.as_bytes()))
}

fn crc(bytes: &[u8]) -> u64 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes)
}

/// Parses a line without its end; `None` for a damaged one.
fn record(line: &[u8]) -> Option<JournalRecord> {
    let (sum, json) = (line.get(..8)?, line.get(9..)?);
    let sum = u64::from_str_radix(std::str::from_utf8(sum).ok()?, 16).ok()?;
    (crc(json) == sum && line[8] == b' ').then(|| serde_json::from_slice(json).ok())?
}

/// Parses the lines of a journal.
#[must_use]
pub fn contents(bytes: &[u8]) -> JournalContents {
    let mut contents = JournalContents::default();
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let (whole, rest) = bytes.split_at(end);
    for line in whole.split_inclusive(|byte| *byte == b'\n') {
        match record(&line[..line.len() - 1]) {
            Some(record) => take(&mut contents.sessions, record),
            None => {
                contents.damaged_lines += 1;
                // The damaged line may have been a `Begin`: later lines may belong to that plan, and to this boot.
                contents.sessions.push(AppliedPlan::default());
            }
        }
    }
    contents.sessions.retain(|session| !session.is_nothing());
    // A complete record without its newline was written before its change.
    let is_whole = rest.len().checked_sub(1).is_some_and(|end| record(&rest[..end]).is_some());
    if begins_as_a_line(rest) && !is_whole {
        contents.cut_bytes = rest.len() as u64;
    } else {
        contents.damaged_lines += 1;
    }
    contents
}

/// True if these bytes may start a line.
fn begins_as_a_line(bytes: &[u8]) -> bool {
    bytes.iter().take(10).enumerate().all(|(at, byte)| match at {
        0..8 => byte.is_ascii_digit() || (b'a'..=b'f').contains(byte),
        8 => *byte == b' ',
        _ => *byte == b'{',
    })
}

fn take(sessions: &mut Vec<AppliedPlan>, record: JournalRecord) {
    match (record, sessions.last_mut()) {
        (
            JournalRecord::Begin { id, boot_id, at_unix_seconds, revert_at_unix_seconds, keep },
            _,
        ) => {
            sessions.push(AppliedPlan {
                id,
                boot_id,
                at_unix_seconds,
                revert_at_unix_seconds,
                keep,
                ..AppliedPlan::default()
            });
        }
        (JournalRecord::Restored { id }, _) => sessions.retain(|session| session.id != id),
        (JournalRecord::Step { rule, changes }, Some(session)) => {
            session.steps.push((rule, changes))
        }
        (JournalRecord::Undone { rule }, Some(session)) => {
            session.steps.pop_if(|(last, _)| *last == rule);
        }
        (JournalRecord::Files { files, directories, settings }, Some(session)) => {
            session.files.extend(files);
            session.directories.extend(directories);
            session.kept.extend(settings);
        }
        (JournalRecord::End, Some(session)) => session.ended = true,
        (JournalRecord::Confirmed, _) => {
            sessions.iter_mut().for_each(|session| session.confirmed = true)
        }
        // A record without a plan cannot be undone.
        (_, None) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::Tunable;

    fn begin(id: &str) -> JournalRecord {
        JournalRecord::Begin {
            id: id.into(),
            boot_id: "b".into(),
            at_unix_seconds: 1,
            revert_at_unix_seconds: None,
            keep: None,
        }
    }

    fn step(rule: &str) -> JournalRecord {
        let changes = vec![Change::new(Tunable::sysctl("net.ipv4.tcp_sack"), "0", "1")];
        JournalRecord::Step { rule: rule.into(), changes }
    }

    #[test]
    fn truncated_journal_is_read_so_far() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal-7");
        {
            let journal = TuningJournal::open(directory.path(), Some("7")).unwrap();
            for record in [begin("1"), step("sack"), step("tcp-rmem"), JournalRecord::End] {
                journal.add(&record).unwrap();
            }
        }
        let whole = fs::read(&path).unwrap();
        let ends: Vec<usize> = whole
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'\n')
            .map(|(at, _)| at + 1)
            .collect();
        for length in 0..=whole.len() {
            let found = contents(&whole[..length]);
            let lines = ends.iter().filter(|end| **end <= length).count();
            assert_eq!(found.sessions.len(), usize::from(lines > 0), "{length}");
            let steps = found.sessions.first().map_or(0, |session| session.steps.len());
            assert_eq!(steps, lines.saturating_sub(1).min(2), "{length}");
            let read = ends.iter().copied().filter(|end| *end <= length).max().unwrap_or(0);
            assert_eq!(found.cut_bytes, (length - read) as u64);
            // New lines can be appended; the cut line stays removed.
            fs::write(&path, &whole[..length]).unwrap();
            let journal = TuningJournal::open(directory.path(), Some("7")).unwrap();
            journal.add(&begin("2")).unwrap();
            let found = journal.read().unwrap();
            assert_eq!((found.cut_bytes, found.sessions.last().unwrap().id.as_str()), (0, "2"));
        }
    }

    #[test]
    fn flipped_bit_damages_one_line() {
        let rules = [None, Some("sack"), Some("tcp-rmem"), None];
        let lines =
            [begin("1"), step("sack"), step("tcp-rmem"), JournalRecord::End].map(|one| line(&one));
        let mut at = 0;
        for (number, line) in lines.iter().enumerate() {
            let others: Vec<&str> =
                (0..4).filter(|other| *other != number).filter_map(|other| rules[other]).collect();
            for byte in at..at + line.len() - 1 {
                let mut bytes = lines.concat().into_bytes();
                bytes[byte] ^= 1;
                let found = contents(&bytes);
                let steps = found.sessions.iter().flat_map(|session| &session.steps);
                let steps: Vec<&str> = steps.map(|(rule, _)| rule.as_str()).collect();
                assert_eq!((found.damaged_lines, steps), (1, others.clone()), "{byte}");
                assert!(found.sessions.iter().all(|session| session.is_of("b")));
            }
            at += line.len();
        }
    }

    #[test]
    fn damaged_begin_keeps_boots_apart() {
        let lines = [begin("1"), step("sack"), begin("2"), step("tcp-rmem")].map(|one| line(&one));
        let mut bytes = lines.concat().into_bytes();
        bytes[lines[0].len() + lines[1].len() + 20] ^= 1;
        let found = contents(&bytes);
        let boots: Vec<&str> = found.sessions.iter().map(|one| one.boot_id.as_str()).collect();
        assert_eq!(boots, ["b", ""]);
        assert_eq!(found.sessions[1].steps[0].0, "tcp-rmem");
        // A last line that lacks only its newline is complete.
        let mut bytes = lines.concat().into_bytes();
        *bytes.last_mut().unwrap() = b'!';
        let found = contents(&bytes);
        assert_eq!((found.damaged_lines, found.cut_bytes), (1, 0));
    }

    #[test]
    fn damaged_last_line_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        fs::write(&path, "no line of ours").unwrap();
        let journal = TuningJournal::open(directory.path(), None).unwrap();
        journal.add(&begin("1")).unwrap();
        let found = journal.read().unwrap();
        assert_eq!((found.damaged_lines, found.cut_bytes, found.sessions.len()), (1, 0, 1));
        let aside = journal.set_aside().unwrap();
        assert!(aside.exists() && !path.exists() && journal.others().is_empty());
    }

    #[test]
    fn earlier_boots_namespace_journals_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        TuningJournal::open(directory.path(), Some("7")).unwrap().add(&begin("1")).unwrap();
        let journal = TuningJournal::open(directory.path(), None).unwrap();
        journal.remove_ended("b");
        assert_eq!(journal.others().len(), 1);
        journal.remove_ended("another");
        assert!(journal.others().is_empty());
        // Keeps the machine's journal and locked ones.
        journal.add(&begin("1")).unwrap();
        let held = TuningJournal::open(directory.path(), Some("8")).unwrap();
        held.add(&begin("1")).unwrap();
        drop(journal);
        let other = TuningJournal::open(directory.path(), Some("9")).unwrap();
        other.remove_ended("another");
        assert_eq!(other.others().len(), 2);
    }

    #[test]
    fn restored_plans_disappear_and_confirm_works() {
        let lines = [
            begin("1"),
            step("sack"),
            begin("2"),
            JournalRecord::Confirmed,
            JournalRecord::Restored { id: "1".into() },
        ];
        let bytes: String = lines.iter().map(line).collect();
        let found = contents(bytes.as_bytes());
        assert_eq!(found.sessions.len(), 1);
        assert!(found.sessions[0].id == "2" && found.sessions[0].confirmed);
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
            let found = contents(&bytes);
            proptest::prop_assert!(found.cut_bytes <= bytes.len() as u64);
        }
    }
}
